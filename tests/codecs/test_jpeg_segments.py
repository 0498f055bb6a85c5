"""A JPEG's segments: its header, and removal and insertion of metadata."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from jpegs import JPEGS, PHOTO, damaged, segment
from pictures import opened, saved
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.tiff import orientation_of, with_orientation_reset
from presize.errors import ImageError
from processes import run_python


def header(*segments: bytes, ids: bytes = b"\1\2\3", sof: int = 0xC0, height: int = 8, width: int = 8) -> bytes:
    """Return a JPEG up to its first scan."""
    frame = struct.pack(">BHHB", 8, height, width, len(ids)) + b"".join(bytes((i, 0x11, 0)) for i in ids)
    return b"\xff\xd8" + b"".join(segments) + segment(sof, frame) + segment(0xDA, b"\1\1\0\0\x3f\0")


def exif(order: str = "<", kind: int = 3, value: int = 6, count: int = 1, tag: int = 0x0112) -> bytes:
    start = b"II*\0" if order == "<" else b"MM\0*"
    packed = struct.pack(order + ("HH" if kind == 3 else "I"), *((value, 0) if kind == 3 else (value,)))
    fields = struct.pack(order + "HHI", 0x010E, 2, 4) + b"abc\0" + struct.pack(order + "HHI", tag, kind, count)
    return start + struct.pack(order + "IH", 8, 2) + fields + packed + struct.pack(order + "I", 0) + b"rest"


def icc_part(number: int, total: int, part: bytes) -> bytes:
    return segment(0xE2, b"ICC_PROFILE\0" + bytes((number, total)) + part)


JFIF = segment(0xE0, b"JFIF\0\1\2\0\0\1\0\1\0\0")


def adobe(transform: int) -> bytes:
    return segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


def table(number: int, values: list[int]) -> bytes:
    wide = max(values) > 255
    return bytes([number | wide << 4]) + b"".join(value.to_bytes(1 + wide, "big") for value in values)


def tables(*payloads: bytes) -> bytes:
    return header(*(segment(0xDB, payload) for payload in payloads))


def profile(*parts: tuple[int, int, bytes]) -> bytes:
    return header(*(icc_part(*part) for part in parts))


def sampled(factors: int) -> bytes:
    return header().replace(b"\1\x11\0", bytes((1, factors, 0)))


FINE, COARSE, DEEP = [1] * 64, [255] * 64, [300] + [1] * 63
COMMENT, OTHER = segment(0xFE, b""), segment(0xE2, b"FPXR\0")
MPF = segment(0xE2, b"MPF\0")
XMP = b"http://ns.adobe.com/xap/1.0/\0"
METADATA = segment(0xE1, XMP + b"<x/>"), segment(0xFE, b"c"), segment(0xE1, b"Exif\0\0" + exif())
LATER = segment(0xE1, b"Exif\0\0" + exif(value=3)), segment(0xE1, XMP + b"<later/>"), segment(0xFE, b"later")
HEADERS = {
    "colorspace": [
        (header(ids=b"\1"), "gray", "one component"),
        (header(), "YCbCr", "the usual ids"),
        (header(ids=b"RGB"), "RGB", "ids that spell it"),
        (header(ids=b"\5\6\7"), "YCbCr", "libjpeg's guess for other ids"),
        (header(JFIF, ids=b"RGB"), "YCbCr", "JFIF means YCbCr, whatever the ids"),
        (header(adobe(0)), "RGB", "Adobe: no transform"),
        (header(adobe(1), ids=b"RGB"), "YCbCr", "Adobe: transform"),
        (header(JFIF, adobe(0)), "YCbCr", "JFIF counts before Adobe"),
        (header(segment(0xEE, adobe(1)[4:-1]), ids=b"RGB"), "RGB", "an Adobe segment a byte too short"),
        (header(segment(0xE0, JFIF[4:-1]), ids=b"RGB"), "RGB", "a JFIF segment a byte too short"),
        (header(segment(0xEE, adobe(1)[4:] + b"more"), ids=b"RGB"), "YCbCr", "a longer Adobe segment"),
        (header(ids=b"\1\2\3\4"), "CMYK", "four components"),
        (header(adobe(0), ids=b"\1\2\3\4"), "CMYK", "Adobe: no transform"),
        (header(adobe(2), ids=b"\1\2\3\4"), "YCCK", "Adobe: transform"),
        (header(ids=b"\1\2"), "other", "no meaning for two"),
    ],
    "process": [
        (header(sof=0xC0), "baseline", "SOF0"),
        (header(sof=0xC1), "extended", "SOF1"),
        (header(sof=0xC2), "progressive", "SOF2"),
        (header(sof=0xC5), "hierarchical", "SOF5"),
        (header(sof=0xC9), "arithmetic", "SOF9"),
    ],
    "sampling": [
        (sampled(factors), ((factors >> 4, factors & 15), (1, 1), (1, 1)), f"{factors:x}")
        for factors in (0x14, 0x41, 0x44)
    ],
    "quality": [
        (header(), 0, "no table"),
        (tables(table(0, FINE)), 100, "the finest there is"),
        (tables(table(0, COARSE)), 1, "the coarsest there is"),
        (tables(table(0, DEEP)), 95, "of 16 bits, and fine"),
        (tables(table(1, COARSE)), 0, "not the one that luma uses"),
        (tables(table(1, COARSE) + table(0, FINE)), 100, "two in one segment"),
        (tables(table(0, FINE)[:-1]), 0, "cut short"),
        (tables(table(0, [0] * 63 + [1])), 100, "finer than there is"),
        (tables(table(8, COARSE) + table(0, FINE)), 100, "after one of a number that no decoder takes"),
        (tables(table(0, FINE), table(0, COARSE)), 1, "two of the same number: the last counts, as in a decoder"),
    ],
    "several": [
        (header(), False, "no index"),
        (header(segment(0xE2, b"MPF\0MM\0*")), True, "an index"),
        (header(MPF, OTHER), True, "an index before another segment"),
        (header(OTHER, MPF), True, "an index after another segment"),
        (header(OTHER), False, "another segment of the same marker"),
        (header(segment(0xE1, b"MPF\0")), False, "another marker"),
    ],
    "icc": [
        (profile((1, 2, b"a"), (2, 2, b"b")), b"ab", "in order"),
        (profile((2, 2, b"b"), (1, 2, b"a")), b"ab", "out of order"),
        (profile((1, 1, b"a")), b"a", "one"),
        (profile((1, 2, b"a")), None, "one is missing"),
        (profile((1, 2, b"a"), (1, 2, b"b")), None, "one is there twice"),
        (profile((0, 1, b"a")), None, "counted from 0"),
        (header(), None, "none"),
    ],
}


@pytest.mark.parametrize(
    ("field", "data", "expected"),
    [pytest.param(field, *row[:2], id=f"{field}: {row[2]}") for field, rows in HEADERS.items() for row in rows],
)
def test_a_header_is_read_by_the_rules_of_libjpeg_and_of_its_inner_formats(
    field: str, data: bytes, expected: object
) -> None:
    assert getattr(jpeg_segments.parse(data), field) == expected


def test_the_first_metadata_of_each_kind_counts_in_any_order() -> None:
    others = segment(0xE1, b"of another kind"), segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0<long/>")
    read = jpeg_segments.parse(header(*others, *METADATA, *LATER))
    assert (read.exif, read.xmp, read.comment, read.orientation) == (exif(), b"<x/>", b"c", 6)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not begin with FF D8"),
        (b"\xff\xd8", "ends within its header"),
        (b"\xff\xd8\xff\xe0", "ends within its header"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "ends within a segment (FF E0)"),
        (b"\xff\xd8\xff\xe0\0\1", "a segment (FF E0) of length 1"),
        (b"\xff\xd8\xff\xd9", "no image data"),
        (b"\xff\xd8\xff\xd8\xff\xd9", "a second start marker"),
        (b"\xff\xd8" + segment(0xDA, b"\0"), "without a frame header"),
        (header(height=0), "the header lacks the height"),
        (header(width=0), "its width is 0"),
        (header(segment(0xC0, b"x" * 9)), "two frame headers"),
        (b"\xff\xd8" + segment(0xC0, b"\x08\0\x08\0\x08\3") + segment(0xDA, b""), "of the wrong length"),
        (header(ids=b""), "of the wrong length"),
        (header().replace(b"\1\x11\0", b"\1\x51\0"), "sampling factors 5x1"),
        (header().replace(b"\1\x11\0", b"\1\x10\0"), "sampling factors 1x0"),
    ],
)
def test_a_malformed_header_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ImageError) as caught:
        jpeg_segments.parse(data)
    assert reason in str(caught.value)


ALONE = [bytes((0xFF, marker)) for marker in (0x01, *range(0xD0, 0xD8))]
"""Markers without a length."""


@pytest.mark.parametrize(
    "between",
    [
        b"\xff", b"\xff\xff\xff", b"\0", b"\xfe", b"\xfe\xe0", b"\xfe\xe0\0\2", b"\xff\0", b"\xff\0\xff\xd0", b"stray",
        *ALONE,
    ],
    ids=bytes.hex,
)  # fmt: skip
def test_bytes_that_are_not_a_segment_before_a_scan_are_skipped(between: bytes) -> None:
    data = header(JFIF, between, segment(0xFE, b"hi"), between, between)
    found = list(jpeg_segments.segments(data))
    assert [marker for marker, _, _ in found] == [0xE0, 0xFE, 0xC0, 0xDA]
    assert [data[begin + 1] for _, begin, _ in found] == [0xE0, 0xFE, 0xC0, 0xDA]
    read = jpeg_segments.parse(data)
    assert (read.comment, read.colorspace, read.height) == (b"hi", "YCbCr", 8)


FRAMES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
WITH_LENGTH = sorted({*range(0x02, 0xFF)} - {*FRAMES, *range(0xD0, 0xDB)})
"""Tables, intervals, APPn, comments and reserved markers; neither frames nor RSTn, SOI, EOI and SOS."""


@pytest.mark.parametrize("marker", WITH_LENGTH, ids=hex)
def test_any_other_segment_before_a_scan_is_skipped_by_its_length(marker: int) -> None:
    hidden = segment(0xC0, b"not a frame")  # found only if the length is ignored
    data = header(segment(marker, hidden))
    assert [found for found, _, _ in jpeg_segments.segments(data)] == [marker, 0xC0, 0xDA]
    assert jpeg_segments.parse(data).height == 8


@pytest.mark.parametrize("marker", FRAMES, ids=hex)
def test_a_second_frame_of_any_process_before_a_scan_is_refused(marker: int) -> None:
    with pytest.raises(ImageError, match="two frame headers"):
        jpeg_segments.parse(header(segment(marker, b"x" * 9)))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
@given(value=st.integers(1, 8), rest=st.binary(max_size=60))
def test_orientation_is_read_and_reset_in_both_byte_orders_and_widths(
    order: str, kind: int, value: int, rest: bytes
) -> None:
    tiff = exif(order, kind, value) + rest
    read = jpeg_segments.parse(header(segment(0xE1, b"Exif\0\0" + tiff)))
    assert (orientation_of(tiff), read.orientation, read.exif) == (value, value, tiff)
    assert with_orientation_reset(tiff) == exif(order, 3, 1) + rest


@pytest.mark.parametrize(
    ("tiff", "reason"),
    [
        (b"", "nothing there"),
        (b"II*\0", "no directory"),
        (exif()[:20], "cut within the directory"),
        (b"XX" + exif()[2:], "no byte order"),
        (exif(value=0), "below the range"),
        (exif(value=9), "above the range"),
        (exif(kind=7), "a type without byte order"),
        (exif(count=2), "two orientations"),
        (exif(tag=0x0113), "another tag"),
    ],
)
def test_an_odd_orientation_counts_as_upright(tiff: bytes, reason: str) -> None:
    assert orientation_of(tiff) == 1, reason
    assert jpeg_segments.parse(header(segment(0xE1, b"Exif\0\0" + tiff))).orientation == 1, reason


def test_exif_without_an_orientation_is_left_as_it_is() -> None:
    assert with_orientation_reset(exif(tag=0x0113)) == exif(tag=0x0113)
    assert with_orientation_reset(b"junk") == b"junk"


QUALITIES = range(1, 101)


@pytest.mark.parametrize("pixels", [PHOTO, PHOTO[:, :, 0]], ids=["colours", "grey"])
def test_the_quality_is_read_from_the_tables(pixels: np.ndarray) -> None:
    found = [jpeg_segments.parse(saved(pixels, "JPEG", quality=quality)).quality for quality in QUALITIES]
    assert found == list(QUALITIES)


def test_the_quality_of_any_table_is_the_nearest_one_and_the_lower_of_two() -> None:
    grey = {quality: saved(Image.new("L", (8, 8)), "JPEG", quality=quality) for quality in QUALITIES}
    sums = {quality: sum(opened(data).quantization[0]) for quality, data in grey.items()}  # type: ignore[attr-defined]
    for value in (0, 2, 12, 100, 255, 256, 259, 300, 511, 1000, 65535):
        for count in range(1, 64):
            values = [value] * count + [1] * (64 - count)
            nearest = min(QUALITIES, key=lambda quality: (abs(sums[quality] - sum(values)), quality))
            assert jpeg_segments.parse(header(segment(0xDB, table(0, values)))).quality == nearest, values


# Headers that another image of the same encoder has made known


def parsed(data: bytes, anew: bool) -> object:
    """Return the header, or the reason why there is none; `anew` ignores images that were read before."""
    try:
        return jpeg_segments.parse_afresh(data) if anew else (jpeg_segments.parse(data), jpeg_segments.parse(data))[1]
    except ImageError as error:
        return str(error)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_a_damaged_header_is_read_the_same_whether_or_not_another_is_known(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([*JPEGS.values(), header(JFIF), header(adobe(0)), header()]))
    damaged = bytearray(whole[: data.draw(st.integers(0, min(len(whole), 1000)))])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        marker = data.draw(st.sampled_from([b"\xff\xc0", b"\xff\xda", b"\xff\xd8", b"\xff\xfe\0\2", b"\0", b"\xff"]))
        damaged[place : place + data.draw(st.integers(0, 2))] = marker
    assert parsed(bytes(damaged), anew=False) == parsed(bytes(damaged), anew=True)


def test_markers_within_metadata_are_not_taken_for_a_frame_or_a_scan() -> None:
    within = segment(0xE1, b"Exif\0\0" + header(height=3, width=5))
    assert jpeg_segments.parse(header(within, height=70, width=90))[:2] == (70, 90)
    assert jpeg_segments.parse(header(within, height=71, width=91))[:2] == (71, 91)


BEFORE_A_FRAME = [
    JFIF, segment(0xE0, b"JFIF\0\1\2\1\0\x48\0\x48\1\1rgb"), segment(0xE0, b"JFIF\0\1\2\0\0\1\0\1\1\0"),
    segment(0xE0, b"JFXX"), adobe(1), segment(0xEE, adobe(1)[4:] + b"more"), segment(0xEE, b"other"),
    segment(0xFE, b"a comment"), segment(0xE1, b"Exif\0\0"), segment(0xDB, b"\0" * 65), b"\xff", b"\0stray", b"",
]  # fmt: skip


@pytest.mark.parametrize("second", BEFORE_A_FRAME, ids=repr)
@pytest.mark.parametrize("first", BEFORE_A_FRAME, ids=repr)
def test_a_header_is_bare_when_there_is_no_metadata_to_remove(first: bytes, second: bytes) -> None:
    data = header(first, second) + b"scan\xff\xd9"
    assert jpeg_segments.parse(data).bare == (jpeg_metadata.bare(data) == data)


WHOLE = [
    b"\xff\xd8\xff",
    b"II*\0",
    b"",
    JPEGS["baseline"],
    JPEGS["progressive"],
    header(segment(0xE1, b"Exif\0\0" + exif()), icc_part(1, 1, b"p")),
]


@settings(max_examples=examples(130), deadline=None)
@given(st.sampled_from(WHOLE).flatmap(damaged), st.binary(max_size=100))
def test_any_bytes_yield_a_result_or_an_image_error(damaged: bytes, rest: bytes) -> None:
    data = damaged + rest
    assert orientation_of(with_orientation_reset(data)) == 1
    assert 1 <= orientation_of(data) <= 8
    for read in (jpeg_segments.parse, jpeg_metadata.strip, jpeg_metadata.bare):
        try:
            read(data)
        except ImageError as error:
            assert str(error) and "\n" not in str(error)


def vertical_411() -> bytes:
    """Return a JPEG of 4:4:1, 32 pixels high and 8 wide, converted from one MCU of 16×16 pixels of 4:2:0."""
    square = np.ascontiguousarray(PHOTO[:16, :16])
    data = simplejpeg.encode_jpeg(square, colorsubsampling="420")
    frame = struct.pack(">HHBBB", 16, 16, 3, 1, 0x22)
    assert data.count(frame) == 1
    return data.replace(frame, struct.pack(">HHBBB", 32, 8, 3, 1, 0x14))


def test_the_coded_size_is_read_although_simplejpeg_cannot_name_the_subsampling() -> None:
    with pytest.raises(KeyError):
        simplejpeg.decode_jpeg_header(vertical_411())
    assert jpeg_segments.coded_size(vertical_411()) == (32, 8, False)
    assert jpeg_segments.coded_size(memoryview(JPEGS["baseline"])) == (*PHOTO.shape[:2], False)
    assert jpeg_segments.coded_size(JPEGS["grey"]) == (*PHOTO.shape[:2], True)


# Bombs


@pytest.mark.parametrize(
    ("scans", "pixels", "max_pixels", "passes"),
    [
        (100, 1, 10**9, True),
        (101, 1, 10**6, False),
        (10, 1000, 1000, True),
        (11, 1000, 1000, False),
        (10, 1001, 1000, False),
        (1, 10_000, 1000, True),
        (1, 10_001, 1000, False),
    ],
)
def test_one_scan_or_pixel_too_many_is_refused(scans: int, pixels: int, max_pixels: int, passes: bool) -> None:
    data = header() + b"\xff\xda" * (scans - 1)
    if passes:
        jpeg_segments.check_scans(data, pixels, max_pixels)
        jpeg_segments.check_scans(b"\xff\xda" * scans, pixels, max_pixels)  # for any other bytes
        return
    with pytest.raises(ImageError) as caught:
        jpeg_segments.check_scans(data, pixels, max_pixels)
    assert str(caught.value) == (
        f"{scans} scans of {pixels} pixels each, more than allowed (at most 100 scans, and {10 * max_pixels} "
        "pixels in all)"
    )


@pytest.mark.parametrize(("scans", "max_pixels"), [(200, 1000), (200, 10**9), (50, 1000), (50, 100)])
def test_scans_of_a_thumbnail_in_the_metadata_do_not_count(scans: int, max_pixels: int) -> None:
    data = jpeg_metadata.with_metadata(JPEGS["baseline"], exif=b"II*\0\x08\0\0\0" + b"\xff\xda" * scans)
    jpeg_segments.check_scans(data, 1000, max_pixels)


MANY_TABLES = """
    from presize.codecs.jpeg import segments as jpeg_segments
    table = bytes.fromhex("ffdb004300") + bytes(range(1, 65))
    frame = bytes.fromhex("ffc0000b080008000801011100")
    scan = bytes.fromhex("ffda000801010000 3f00")
    print(jpeg_segments.parse(bytes.fromhex("ffd8") + table * 250_000 + frame + scan).quality)
"""


def test_a_million_segments_do_not_hang_the_parser() -> None:
    assert run_python(MANY_TABLES).strip().isdigit(), "it must not take quadratic time"
