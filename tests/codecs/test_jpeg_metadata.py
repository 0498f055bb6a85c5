"""A JPEG's metadata is removed and inserted exactly."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from jpegs import JPEGS, by_libjpeg, segment
from pictures import opened
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import segments as jpeg_segments
from presize.errors import ImageError

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
JFIF = segment(0xE0, b"JFIF\0\1\2\0\0\1\0\1\0\0")
ADOBE = segment(0xEE, b"Adobe\0\x64\0\0\0\0\1")
FRAME = segment(0xC0, struct.pack(">BHHB3B", 8, 8, 8, 1, 1, 0x11, 0))
SCAN = segment(0xDA, b"\1\1\0\0\x3f\0") + b"scan"


def stripped(data: bytes, keep_metadata: bool = False) -> bytes:
    return jpeg_metadata.strip(data, keep_metadata)[0]


@pytest.mark.parametrize("name", JPEGS)
@pytest.mark.parametrize("keep_metadata", [False, True])
def test_all_metadata_is_removed_or_kept_and_the_pixels_stay_the_same(name: str, keep_metadata: bool) -> None:
    before = JPEGS[name]
    after = stripped(before + b"trailer\xff\xd8\xff\xd9", keep_metadata)
    assert stripped(after, keep_metadata) == after
    assert after.endswith(b"\xff\xd9") and b"trailer" not in after
    assert after.count(b"\xff\xd8\xff") == 1 and b"MPF\0" not in after  # the first of several frames
    assert np.array_equal(by_libjpeg(after), by_libjpeg(before))
    assert jpeg_metadata.strip(after, keep_metadata)[1] == after.count(b"\xff\xda")
    found, read = jpeg_segments.parse(before), jpeg_segments.parse(after)
    metadata = (found.exif, found.xmp, found.comment, found.icc)
    assert all(metadata) == (name == "metadata")
    assert (read.exif, read.xmp, read.comment, read.icc) == (metadata if keep_metadata else (None,) * 4)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_a_file_without_an_end_is_refused(kept: float) -> None:
    data = JPEGS["progressive"]
    with pytest.raises(ImageError, match="truncated JPEG"):
        jpeg_metadata.strip(data[: int(len(data) * kept)])


def test_end_markers_inside_segments_and_stuffed_bytes_do_not_mislead() -> None:
    between = segment(0xC4, b"\xff\xd9\xff\xd9") + segment(0xFE, b"\xff\xd9") + SCAN[:-4]
    scan = b"ab\xff\0\xd9\xff\xd0cd\xff\xff\xd1ef"
    data = SOI + FRAME + SCAN[:-4] + scan + between + scan + EOI
    assert stripped(data + b"trailer\xff\xd9") == data.replace(segment(0xFE, b"\xff\xd9"), b"")


def test_bare_keeps_everything_after_the_first_scan_header() -> None:
    data = JFIF + FRAME + SCAN + b", and no end"
    assert jpeg_metadata.bare(SOI + segment(0xE1, b"Exif\0\0II*\0") + data) == SOI + data


def taken_out(*segments: bytes) -> list[bytes]:
    """Return what both functions that remove metadata keep of these segments before a frame."""
    data = SOI + b"".join(segments) + FRAME + SCAN + EOI
    found = [stripped(data), jpeg_metadata.bare(data)]
    assert all(each.startswith(SOI) and each.endswith(FRAME + SCAN + EOI) for each in found)
    return [each[len(SOI) : -len(FRAME + SCAN + EOI)] for each in found]


# Removal


@pytest.mark.parametrize("marker", [*range(0xE0, 0xF0), 0xFE], ids=hex)
def test_any_application_segment_or_comment_is_removed(marker: int) -> None:
    assert taken_out(segment(marker, b"a secret of many bytes")) == [b"", b""]


@pytest.mark.parametrize("marker", [0x02, 0xC4, 0xDB, 0xDD, 0xDF, 0xF0, 0xFD], ids=hex)
def test_no_other_segment_is_removed(marker: int) -> None:
    other = segment(marker, b"a table of many bytes")
    assert taken_out(other) == [other, other]


def test_jfif_and_adobe_stay_without_trailing_bytes_in_their_segments() -> None:
    longer = segment(0xE0, JFIF[4:-2] + b"\1\1rgb"), segment(0xEE, ADOBE[4:] + b"secret")
    assert taken_out(*longer) == taken_out(segment(0xFE, b"_" * 9), JFIF, ADOBE) == [JFIF + ADOBE] * 2


@pytest.mark.parametrize(
    ("removed", "reason"),
    [
        (segment(0xEE, b"Adobi\0\x64\0\0\0\0\1"), "Adobe's marker, another's segment"),
        (segment(0xED, b"Adobe_CM\0\1\2\3\4\5"), "Adobe's name in another of its segments"),
        (segment(0xE1, JFIF[4:]), "JFIF's name under another marker"),
        (segment(0xE0, b"JFXX\0\x10" + b"_" * 20), "JFIF's marker, an extension"),
        (segment(0xEE, ADOBE[4:-1]), "Adobe's, a byte too short"),
        (segment(0xE0, JFIF[4:-1]), "JFIF's, a byte too short"),
    ],
)
def test_segments_that_only_resemble_jfif_or_adobe_are_removed(removed: bytes, reason: str) -> None:
    assert taken_out(removed) == [b"", b""], reason


def test_only_the_index_of_further_frames_is_removed_when_metadata_is_kept() -> None:
    kept = segment(0xE1, b"MPF\0 of another marker"), segment(0xE2, b"ICC_PROFILE\0\1\1p"), segment(0xE2, b"MPX\0")
    data = SOI + b"".join(kept) + segment(0xE2, b"MPF\0index") + FRAME + SCAN + EOI
    assert stripped(data, keep_metadata=True) == SOI + b"".join(kept) + FRAME + SCAN + EOI


@pytest.mark.parametrize(
    ("tail", "stays"),
    [(segment(0xFE, b"secret"), b""), (segment(0xDC, b"\0\x08"), segment(0xDC, b"\0\x08"))],
    ids=["comment", "number of lines"],
)
def test_segments_may_stand_between_the_last_scan_and_the_end(tail: bytes, stays: bytes) -> None:
    assert stripped(SOI + FRAME + SCAN + tail + EOI) == SOI + FRAME + SCAN + stays + EOI


@pytest.mark.parametrize("count", [1, 2, 3])
def test_scans_are_counted(count: int) -> None:
    data = SOI + FRAME + SCAN * count + EOI
    assert jpeg_metadata.strip(data, keep_metadata=False) == (data, count)


# Insertion


@pytest.mark.parametrize("name", ["baseline", "RGB"])
def test_inserted_metadata_is_found_again(name: str) -> None:
    data, exif = JPEGS[name], jpeg_segments.parse(JPEGS["metadata"]).exif
    after = jpeg_metadata.with_metadata(data, exif, b"<x/>", b"hello")
    read = jpeg_segments.parse(after)
    assert (read.exif, read.xmp, read.comment, read.orientation) == (exif, b"<x/>", b"hello", 6)
    assert stripped(after) == stripped(data)
    assert jpeg_metadata.with_metadata(data) == data
    with opened(after) as image:
        assert image.getexif()[0x0112] == 6
        assert (image.info["xmp"], image.info["comment"]) == (b"<x/>", b"hello")


@pytest.mark.parametrize("thumbnail", [b"\0\0", b"\2\2" + b"rgb" * 4, b"\12\12" + b"rgb" * 100], ids=len)
def test_metadata_is_inserted_right_after_jfif(thumbnail: bytes) -> None:
    jfif = segment(0xE0, JFIF[4:-2] + thumbnail)
    after = jpeg_metadata.with_metadata(SOI + jfif + FRAME + SCAN + EOI, b"II*\0", b"<x/>", b"hello")
    found = segment(0xE1, b"Exif\0\0II*\0") + segment(0xE1, jpeg_segments.XMP + b"<x/>") + segment(0xFE, b"hello")
    assert after == SOI + jfif + found + FRAME + SCAN + EOI


@pytest.mark.parametrize("first", [ADOBE, segment(0xDB, b"_" * 65), b""], ids=["Adobe", "table", "frame"])
def test_metadata_is_inserted_first_without_jfif(first: bytes) -> None:
    after = jpeg_metadata.with_metadata(SOI + first + FRAME + SCAN + EOI, comment=b"hello")
    assert after == SOI + segment(0xFE, b"hello") + first + FRAME + SCAN + EOI


@pytest.mark.parametrize(
    ("name", "most", "length"),
    [("exif", 65_527, 65_535), ("xmp", 65_502, 65_533), ("comment", 65_533, 65_535)],
)
def test_metadata_is_inserted_up_to_the_limit_of_a_segment(name: str, most: int, length: int) -> None:
    data = SOI + JFIF + FRAME + SCAN + EOI
    after = jpeg_metadata.with_metadata(data, **{name: b"_" * most})
    _, (_, begin, end), *_ = jpeg_segments.segments(after)
    assert end - begin == 2 + length
    assert getattr(jpeg_segments.parse(after), name) == b"_" * most
    assert jpeg_metadata.with_metadata(data, **{name: b"_" * (most + 1)}) == data
