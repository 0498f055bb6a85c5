"""A JPEG's metadata taken out and put in, to the byte."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import segments as jpeg_segments

SOI, EOI = b"\xff\xd8", b"\xff\xd9"


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


JFIF = segment(0xE0, b"JFIF\0\1\2\0\0\1\0\1\0\0")
ADOBE = segment(0xEE, b"Adobe\0\x64\0\0\0\0\1")
FRAME = segment(0xC0, struct.pack(">BHHB3B", 8, 8, 8, 1, 1, 0x11, 0))
SCAN = segment(0xDA, b"\1\1\0\0\x3f\0") + b"scan"


def progressive() -> bytes:
    buffer = io.BytesIO()
    pixels = np.arange(40 * 56 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 56, 3)
    Image.fromarray(pixels).save(buffer, "JPEG", progressive=True)
    return buffer.getvalue()


def taken_out(*segments: bytes) -> list[bytes]:
    """By both functions that take metadata out: what stays of these segments before a frame."""
    data = SOI + b"".join(segments) + FRAME + SCAN + EOI
    stripped = [jpeg_metadata.strip(data), jpeg_metadata.bare(data)]
    assert all(each.startswith(SOI) and each.endswith(FRAME + SCAN + EOI) for each in stripped)
    return [each[len(SOI) : -len(FRAME + SCAN + EOI)] for each in stripped]


# Taken out


@pytest.mark.parametrize("marker", [*range(0xE0, 0xF0), 0xFE], ids=hex)
def test_any_application_segment_or_comment_is_taken_out(marker: int) -> None:
    assert taken_out(segment(marker, b"a secret of many bytes")) == [b"", b""]


@pytest.mark.parametrize("marker", [0x02, 0xC4, 0xDB, 0xDD, 0xDF, 0xF0, 0xFD], ids=hex)
def test_no_other_segment_is_taken_out(marker: int) -> None:
    other = segment(marker, b"a table of many bytes")
    assert taken_out(other) == [other, other]


@pytest.mark.parametrize("before", range(32))
def test_jfif_and_adobe_stay_wherever_they_stand(before: int) -> None:
    assert taken_out(segment(0xFE, b"_" * before), JFIF, ADOBE) == [JFIF + ADOBE] * 2


def test_jfif_and_adobe_stay_without_what_follows_in_their_segments() -> None:
    longer = segment(0xE0, JFIF[4:-2] + b"\1\1rgb"), segment(0xEE, ADOBE[4:] + b"secret")
    assert taken_out(*longer) == [JFIF + ADOBE] * 2


@pytest.mark.parametrize(
    ("removed", "reason"),
    [
        (segment(0xEE, b"Adobi\0\x64\0\0\0\0\1"), "Adobe's marker, another's segment"),
        (segment(0xED, b"Adobe_CM\0\1\2\3\4\5"), "Adobe's name in another segment of theirs"),
        (segment(0xE1, JFIF[4:]), "JFIF's name under another marker"),
        (segment(0xE0, b"JFXX\0\x10" + b"_" * 20), "JFIF's marker, an extension"),
        (segment(0xEE, ADOBE[4:-1]), "Adobe's, a byte too short"),
        (segment(0xE0, JFIF[4:-1]), "JFIF's, a byte too short"),
    ],
)
def test_what_only_resembles_jfif_or_adobe_is_taken_out(removed: bytes, reason: str) -> None:
    assert taken_out(removed) == [b"", b""], reason


def test_the_index_of_further_frames_is_all_that_goes_when_metadata_is_kept() -> None:
    kept = segment(0xE1, b"MPF\0 of another marker"), segment(0xE2, b"ICC_PROFILE\0\1\1p"), segment(0xE2, b"MPX\0")
    data = SOI + b"".join(kept) + segment(0xE2, b"MPF\0index") + FRAME + SCAN + EOI
    assert jpeg_metadata.strip(data, keep_metadata=True) == SOI + b"".join(kept) + FRAME + SCAN + EOI


@pytest.mark.parametrize(
    ("tail", "stays"),
    [(segment(0xFE, b"secret"), b""), (segment(0xDC, b"\0\x08"), segment(0xDC, b"\0\x08"))],
    ids=["comment", "number of lines"],
)
def test_segments_may_stand_between_the_last_scan_and_the_end(tail: bytes, stays: bytes) -> None:
    assert jpeg_metadata.strip(SOI + FRAME + SCAN + tail + EOI) == SOI + FRAME + SCAN + stays + EOI


@pytest.mark.parametrize("count", [1, 2, 3])
def test_scans_are_counted(count: int) -> None:
    data = SOI + FRAME + SCAN * count + EOI
    assert jpeg_metadata.strip_and_count(data, keep_metadata=False) == (data, count)


def test_a_segment_after_the_last_scan_is_no_scan() -> None:
    data = SOI + FRAME + SCAN + segment(0xFE, b"after") + EOI
    assert jpeg_metadata.strip_and_count(data, keep_metadata=True) == (data, 1)


def test_the_scans_of_a_progressive_jpeg_are_counted() -> None:
    data = progressive()
    assert jpeg_metadata.strip_and_count(data, keep_metadata=False)[1] == data.count(b"\xff\xda") > 2


# Put in


@pytest.mark.parametrize("thumbnail", [b"\0\0", b"\2\2" + b"rgb" * 4, b"\12\12" + b"rgb" * 100], ids=len)
def test_metadata_is_put_in_right_after_jfif(thumbnail: bytes) -> None:
    jfif = segment(0xE0, JFIF[4:-2] + thumbnail)
    after = jpeg_metadata.with_metadata(SOI + jfif + FRAME + SCAN + EOI, b"II*\0", b"<x/>", b"hello")
    found = segment(0xE1, b"Exif\0\0II*\0") + segment(0xE1, jpeg_segments.XMP + b"<x/>") + segment(0xFE, b"hello")
    assert after == SOI + jfif + found + FRAME + SCAN + EOI


@pytest.mark.parametrize("first", [ADOBE, segment(0xDB, b"_" * 65), b""], ids=["Adobe", "table", "frame"])
def test_metadata_is_put_in_first_where_there_is_no_jfif(first: bytes) -> None:
    after = jpeg_metadata.with_metadata(SOI + first + FRAME + SCAN + EOI, comment=b"hello")
    assert after == SOI + segment(0xFE, b"hello") + first + FRAME + SCAN + EOI


@pytest.mark.parametrize(
    ("name", "most", "length"),
    [("exif", 65_527, 65_535), ("xmp", 65_502, 65_533), ("comment", 65_533, 65_535)],
)
def test_metadata_is_put_in_up_to_what_a_segment_holds(name: str, most: int, length: int) -> None:
    data = SOI + JFIF + FRAME + SCAN + EOI
    after = jpeg_metadata.with_metadata(data, **{name: b"_" * most})
    _, (_, begin, end), *_ = jpeg_segments.segments(after)
    assert end - begin == 2 + length
    assert getattr(jpeg_segments.parse(after), name) == b"_" * most
    assert jpeg_metadata.with_metadata(data, **{name: b"_" * (most + 1)}) == data
