"""Tile-indexed JPEG: a cut decodes to the pixels of the whole, and no file content can do harm."""

from __future__ import annotations

import re
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import cv2
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from jpegs import ORDINARY, boxes, by_libjpeg, damaged, encoded, plain, segment, tiled, with_bytes
from pictures import noisy_image, opened, saved
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.jpeg.tiles import cut_jpeg, layout_of, restart_interval, with_index

whole = lru_cache(maxsize=64)(by_libjpeg)


@contextmanager
def within_a_megabyte() -> Iterator[None]:
    """Assert that the block allocates at most a megabyte at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def check_cut(stored: bytes, box: tuple[int, int, int, int], reference: bytes, scale: int = 1) -> bool:
    """Return True if `stored` has a cut. Its pixels must equal those of the box in `reference`, both at 1/scale."""
    part = cut_jpeg(memoryview(stored), *box)
    if part is None:
        return False
    assert part.top % scale == part.left % scale == 0
    top, left, rows, columns = (-(-value // scale) for value in box)
    y, x = part.top // scale, part.left // scale
    pixels = by_libjpeg(part.data, scale=scale)[y : y + rows, x : x + columns]
    np.testing.assert_array_equal(pixels, whole(reference, None, scale)[top:, left:][:rows, :columns])
    return True


sizes = st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 100, 128, 129, 176, 203, 272])


@settings(deadline=None, max_examples=examples(80))
@given(
    data=st.data(),
    height=sizes,
    width=sizes,
    sampling=st.sampled_from(ORDINARY),
    quality=st.sampled_from([1, 30, 75, 90, 100]),
    interval=st.one_of(st.none(), st.integers(2, 9)),
    scale=st.sampled_from([1, 1, 2, 4, 8]),
)
def test_a_cut_has_the_pixels_of_the_whole(
    data: st.DataObject, height: int, width: int, sampling: str, quality: int, interval: int | None, scale: int
) -> None:
    assume(scale == 1 or min(height, width) > 8)
    stored = tiled(height, width, sampling, quality, interval)
    for _ in range(4):
        assert check_cut(stored, data.draw(boxes(height, width, scale)), stored, scale)


def test_a_cut_includes_a_neighbour_only_at_an_edge_of_a_tile() -> None:
    stored = tiled(128, 256)  # 8 rows of 4 tiles of 16×64 pixels
    shapes = {
        (17, 65, 14, 62): (16, 64, 1, 1),
        (16, 65, 14, 62): (32, 64, 16, 1),
        (17, 64, 14, 62): (16, 128, 1, 64),
        (17, 65, 15, 63): (32, 128, 1, 1),
        (0, 0, 15, 63): (16, 64, 0, 0),
        (113, 193, 15, 63): (16, 64, 1, 1),
    }
    for box, expected in shapes.items():
        assert shape_of(stored, box) == expected
    for sampling in ("4:4:4", "grey"):
        assert shape_of(tiled(128, 256, sampling), (8, 32, 8, 32)) == (8, 32, 0, 0)  # tiles of 8×32 pixels


def shape_of(stored: bytes, box: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Return (height, width) of a cut, and the position of the box in it."""
    part = cut_jpeg(stored, *box)
    assert part is not None
    return *by_libjpeg(part.data).shape[:2], part.top, part.left


def test_a_cut_across_rows_of_tiles_has_the_width_of_the_image_and_only_the_tiles_of_its_box() -> None:
    stored = tiled(112, 112)  # 7 rows of 7 MCUs in tiles of 4: a tile begins in the first column of rows 0 and 4
    for box, (height, top, tiles) in {
        (17, 33, 14, 14): (64, 17, {2}),
        (65, 33, 14, 14): (48, 1, {7}),
        (17, 33, 30, 14): (64, 17, {2, 4}),
        (49, 33, 14, 14): (64, 49, {5}),
        (49, 33, 30, 14): (112, 49, {5, 7}),
        (49, 1, 30, 110): (112, 49, {5, 6, 7, 8}),
        (97, 97, 15, 15): (48, 33, {12}),
    }.items():
        assert shape_of(stored, box) == (height, 112, top, box[1])
        part = cut_jpeg(stored, *box)
        first = {64: 0, 48: 7, 112: 0}[height]
        assert part and {first + number for number, tile in enumerate(scan_of(part.data)) if len(tile) > 20} == tiles


def scan_of(data: bytes | memoryview) -> list[bytes]:
    """Return the tiles of a JPEG without their markers."""
    data = bytes(data)
    return re.split(rb"\xff[^\0]", data[data.index(b"\xff\xda") + 14 :])[:-1]


@pytest.mark.parametrize("width", [128, 112], ids=["rows of whole tiles", "tiles across rows"])
def test_damage_outside_the_tiles_of_a_box_does_not_affect_its_cut(width: int) -> None:
    stored = tiled(112, width)
    cut_out = set()
    for number, tile in enumerate(tiles := scan_of(stored)):
        at = stored.index(tile) + len(tile) // 2
        with suppress(ValueError, AssertionError):  # an error of the decoder, or different pixels
            assert check_cut(with_bytes(stored, at, b"\xff\0\xff\0"), (20, 20, 60, 40), stored)
            cut_out.add(number)
    columns = width // 16
    needed = {(row * columns + column) // 4 for row in range(1, 6) for column in range(1, 4)}
    assert cut_out == set(range(len(tiles))) - needed


def test_a_tile_across_rows_needs_codes_for_blank_tiles() -> None:
    sound = plain(64, 112)
    for table in (b"\xff\xc4\0\x1f\0", b"\xff\xc4\0\xb5\x10", b"\xff\xc4\0\x1f\1", b"\xff\xc4\0\xb5\x11"):
        at = sound.index(table) + 21
        symbols = sound[at : at + 12 if table[3] == 0x1F else at + 162]
        without = with_bytes(sound, at, symbols.replace(b"\0", b"\x0b" if table[3] == 0x1F else b"\xf9"))
        assert with_index(sound) is not sound
        assert with_index(without) is without


def test_a_box_that_needs_every_tile_gets_the_same_bytes() -> None:
    stored = tiled(64, 80)
    assert cut_jpeg(stored, 0, 0, 64, 80) == (stored, 0, 0)
    part = cut_jpeg(stored, 2, 3, 60, 70)
    assert part is not None and part.data is stored and part[1:] == (2, 3)


@pytest.mark.parametrize(
    "box",
    [(-1, 0, 8, 8), (0, -1, 8, 8), (0, 0, 8, 0), (0, 0, 65, 8), (60, 0, 5, 8), (0, 80, 1, 1), (9, 9, -4, 4)],
)
def test_a_box_outside_the_image_has_no_cut(box: tuple[int, int, int, int]) -> None:
    assert cut_jpeg(tiled(64, 80), *box) is None


@given(mcus=st.integers(1, 8192))
def test_the_interval_divides_a_row_if_possible_and_is_nearest_to_4_or_the_larger_of_two(mcus: int) -> None:
    k = restart_interval(mcus)
    assert 2 <= k <= 5 or mcus == k == 1
    assert mcus % k == 0 or (k == 4 and all(mcus % other for other in (2, 3, 5)))
    assert all((abs(k - 4), -k) <= (abs(other - 4), -other) for other in range(2, 6) if mcus % other == 0)


SCAN = b"\3\1\0\2\x11\3\x11"
"""Start of the header of a scan of three components: their number, then the id and tables of each."""
PHOTO = Image.fromarray(noisy_image(64, 80))
SOUND = plain(64, 80)
WITHOUT_INDEX = {
    "no restart markers": saved(PHOTO, "JPEG"),
    "progressive": saved(PHOTO, "JPEG", progressive=True, restart_marker_rows=1),
    "4:1:1": plain(64, 80, "4:1:1", interval=3),
    "CMYK": saved(PHOTO.convert("CMYK"), "JPEG", restart_marker_rows=1),
    "an interval of one": plain(64, 80, interval=1),
    "an interval of one in a row of two": plain(64, 32, interval=1),
    "an interval of two rows": encoded(noisy_image(64, 80), interval=10),
    "bytes after the end": SOUND + b"\0",
    "truncated": SOUND[:-2],
    "truncated in its header": SOUND[:300],
    "a marker lost": SOUND.replace(b"\xff\xd1", b"\xd1"),
    "markers out of order": SOUND.replace(b"\xff\xd1", b"\xff\xd2"),
    "two frame headers": SOUND[:20] + SOUND[SOUND.find(b"\xff\xc0") :][:19] + SOUND[20:],
    "stray bytes in its header": SOUND[:20] + b"\0" + SOUND[20:],
    "a scan of the components in another order": SOUND.replace(SCAN, SCAN[:1] + SCAN[3:5] + SCAN[1:3] + SCAN[5:]),
    "a scan that says it has fewer components": SOUND.replace(SCAN, b"\x02" + SCAN[1:]),
    "a scan that says it has more components": SOUND.replace(SCAN, b"\x04" + SCAN[1:]),
    "an index already": tiled(64, 80),
    "no JPEG": b"RIFF",
    "nothing": b"",
}


@pytest.mark.parametrize("name", WITHOUT_INDEX)
def test_jpegs_that_cannot_be_cut_stay_unchanged(name: str) -> None:
    assert SOUND.count(SCAN) == 1
    assert with_index(WITHOUT_INDEX[name]) is WITHOUT_INDEX[name]


@pytest.mark.parametrize("sampling", ORDINARY)
def test_a_jpeg_without_an_index_has_no_cut(sampling: str) -> None:
    assert cut_jpeg(plain(64, 80, sampling), 0, 0, 8, 8) is None


@pytest.mark.parametrize(("mcus", "is_indexed"), [(509, True), (1021, False)])
def test_a_tile_too_long_for_the_index_means_no_index(mcus: int, is_indexed: bool) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 8 * mcus), np.uint8)
    data = encoded(noise, "grey", quality=100, interval=mcus)
    assert (len(data) < 2 * 65535) == is_indexed
    assert (with_index(data) is not data) == is_indexed


@pytest.mark.parametrize(
    ("rows", "mcus", "interval", "indexed"),
    [(181, 362, 2, True), (679, 193, 4, True), (29, 4519, 4, False), (201, 326, 2, False)],
    ids=["32,761", "32,762, across rows", "32,763, across rows", "32,763"],
)
def test_more_tiles_than_a_segment_can_list_mean_no_index(rows: int, mcus: int, interval: int, indexed: bool) -> None:
    data = encoded(np.zeros((8 * rows, 8 * mcus), np.uint8), "grey", interval=interval)
    assert (with_index(data) is not data) == indexed
    assert (cut_jpeg(with_index(data), 8 * rows - 8, 8 * mcus - 16, 8, 16) is not None) == indexed


@pytest.mark.parametrize(("height", "width"), [(0, 96), (64, 0)])
def test_an_image_without_pixels_has_no_index(height: int, width: int) -> None:
    sound = plain(64, 96)
    header = with_bytes(
        sound[: sound.find(b"\xff\xda") + 14], sound.find(b"\xff\xc0") + 5, struct.pack(">HH", height, width)
    )
    # More tiles than an index can list.
    data = header + b"".join(bytes((0xFF, 0xD0 + number % 8)) for number in range((1 << 15) - 1)) + b"\xff\xd9"
    assert with_index(data) is data


def test_the_index_matches_the_format_page() -> None:
    before, stored = plain(64, 128), tiled(64, 128)
    sos = before.find(b"\xff\xda")
    assert stored[:sos] == before[:sos]
    assert struct.unpack_from(">HH8sB", stored, sos) == (0xFFE9, 2 + 8 + 1 + 2 * 8, b"presize\0", 1)
    lengths = struct.unpack_from(">8H", stored, sos + 13)
    assert stored[sos + 13 + 16 :] == before[sos:]
    position = len(stored) - sum(lengths)
    assert position == sos + 13 + 16 + 14
    for number, length in enumerate(lengths):
        position += length
        assert stored[position - 2 : position] == (bytes((0xFF, 0xD0 + number % 8)) if number < 7 else b"\xff\xd9")


@pytest.mark.parametrize("sampling", ORDINARY)
def test_other_decoders_read_stored_jpegs(sampling: str) -> None:
    before, stored = plain(100, 170, sampling), tiled(100, 170, sampling)
    for data in (before, stored):
        assert jpeg_segments.parse(data).process == "baseline"
    np.testing.assert_array_equal(by_libjpeg(stored), by_libjpeg(before))
    for read in (_pillow, _opencv):
        np.testing.assert_array_equal(read(stored), read(before))
    # A cut is an ordinary JPEG, too.
    part = cut_jpeg(stored, 30, 50, 20, 60)
    assert part is not None
    assert _pillow(part.data).shape == _opencv(part.data).shape == by_libjpeg(part.data).squeeze().shape


def _pillow(data: bytes | memoryview) -> np.ndarray:
    return np.asarray(opened(data))


def _opencv(data: bytes | memoryview) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


@pytest.mark.parametrize("sampling", ["4:2:0", "grey"])
def test_an_index_coexists_with_metadata(sampling: str) -> None:
    exif = b"II*\0\x08\0\0\0" + bytes(5000)
    stored = jpeg_metadata.with_metadata(tiled(64, 80, sampling), exif, comment=b"presize")
    assert check_cut(stored, (20, 20, 10, 10), stored)
    assert jpeg_metadata.strip(stored) == jpeg_metadata.strip(plain(64, 80, sampling))


def test_metadata_that_looks_like_an_index_only_prevents_cuts() -> None:
    stored = jpeg_metadata.with_metadata(tiled(64, 80), comment=tiled(16, 16))
    assert cut_jpeg(stored, 20, 20, 10, 10) is None
    looks, names = (jpeg_metadata.with_metadata(plain(64, 80), comment=text) for text in (b"presize\0", b"presize"))
    assert with_index(looks) is looks
    assert with_index(names) is not names


HOSTILE = tiled(64, 96)
ACROSS = tiled(64, 112)
"""28 MCUs in tiles of 4 that cross rows of 7."""
of_either = pytest.mark.parametrize("stored", [HOSTILE, ACROSS], ids=["rows of whole tiles", "tiles across rows"])
INDEX = HOSTILE.find(b"presize\0") - 4
SCAN_BEGIN = HOSTILE.find(b"\xff\xda") + 14


EMPTY_CODES = bytes((*[1] * 15, 2, *[1] * 16, 0))
"""A table whose last code, of 16 ones, is the one of symbol 0."""


def of_empty_tiles(side: int) -> bytes:
    """Return a grey JPEG that declares `side` pixels a side, whose tiles, one MCU narrower than it, are only
    markers."""
    columns = -(-side // 8)
    interval = columns - 1
    tiles = -(-columns * columns // interval)
    return b"".join(
        (
            b"\xff\xd8",
            segment(0xDB, b"\0" + b"\1" * 64),
            segment(0xC0, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0"),
            segment(0xC4, b"\0" + EMPTY_CODES + b"\x10" + EMPTY_CODES),
            segment(0xDD, struct.pack(">H", interval)),
            segment(0xE9, b"presize\0\1" + b"\0\2" * tiles),
            segment(0xDA, b"\1\1\0\0\x3f\0"),
            *(bytes((0xFF, 0xD0 + number % 8)) for number in range(tiles - 1)),
            b"\xff\xd9",
        )
    )


def test_blank_tiles_longer_than_a_whole_image_mean_no_cut() -> None:
    value = of_empty_tiles(side=8000)
    with within_a_megabyte():
        assert cut_jpeg(value, 4000, 4000, 8, 8) is None


def check_harmless(data: bytes, box: tuple[int, int, int, int]) -> None:
    """Cut without an exception and without reading outside of the value, to a JPEG or to None."""
    # A separate buffer with guards reveals reads past its ends.
    part = cut_jpeg(memoryview(b"\xff\xd9" * 40 + data + b"\xff\xd9" * 40)[80:-80], *box)
    assert part == cut_jpeg(data, *box)
    if part is not None:
        assert part.top >= 0 and part.left >= 0 and len(part.data) <= len(data) and bytes(part.data[:2]) == b"\xff\xd8"


@of_either
@settings(deadline=None, max_examples=examples(110))
@given(data=st.data(), end=st.floats(0, 1), begin=st.integers(0, 40), box=boxes(64, 96))
def test_damage_does_no_harm(
    stored: bytes, data: st.DataObject, end: float, begin: int, box: tuple[int, int, int, int]
) -> None:
    check_harmless(data.draw(damaged(stored, within=SCAN_BEGIN + 40)), box)
    at = round(end * len(stored))
    for missing in (stored[:at], stored[begin:at], stored[:begin] + stored[at:]):
        check_harmless(missing, box)
    if at < len(stored):
        assert cut_jpeg(stored[:at], *box) is None


@settings(deadline=None, max_examples=examples(50))
@given(payload=st.binary(max_size=60), length=st.integers(0, 0xFFFF), box=boxes(64, 96))
@example(payload=b"", length=0xFFFF, box=(0, 0, 8, 8))
@example(payload=b"", length=0, box=(0, 0, 8, 8))
def test_an_index_of_any_bytes_does_no_harm(payload: bytes, length: int, box: tuple[int, int, int, int]) -> None:
    check_harmless(with_bytes(HOSTILE, INDEX + 2, struct.pack(">H", length)), box)
    for begun in (payload, b"presize\0" + payload, b"presize\0\1" + payload):
        check_harmless(HOSTILE[:INDEX] + segment(0xE9, begun) + HOSTILE[SCAN_BEGIN - 14 :], box)


@of_either
@settings(deadline=None, max_examples=examples(50))
@given(data=st.data())
def test_lengths_that_are_not_those_of_the_tiles_give_no_wrong_pixels(stored: bytes, data: st.DataObject) -> None:
    index, scan = stored.index(b"presize\0") - 4, stored.index(b"\xff\xda")
    lengths = list(struct.unpack_from(f">{(scan - index - 13) // 2}H", stored, index + 13))
    one, other = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=2, max_size=2, unique=True))
    moved = data.draw(st.integers(1, lengths[one]))
    lengths[one] -= moved
    lengths[other] += moved  # their sum is right
    changed = with_bytes(stored, index + 13, struct.pack(f">{len(lengths)}H", *lengths))
    box = data.draw(boxes(64, 96))
    check_harmless(changed, box)
    check_cut(changed, box, stored)


def test_metadata_is_not_kept() -> None:
    values = [
        jpeg_metadata.with_metadata(tiled(64, 80), exif=b"II*\0\x08\0\0\0" + bytes((number,)) * 60_000)
        for number in range(20)
    ]
    with within_a_megabyte():  # twenty of them are larger
        assert all(cut_jpeg(value, 0, 0, 8, 8) is not None for value in values)


def test_a_huge_declared_image_takes_no_memory() -> None:
    huge = with_bytes(HOSTILE, HOSTILE.find(b"\xff\xc0") + 5, b"\xff" * 4)
    value = with_bytes(huge, huge.find(b"\xff\xdd") + 4, b"\0\2")  # would make 16 million tiles
    with within_a_megabyte():
        assert cut_jpeg(value, 0, 0, 8, 8) is None


@settings(deadline=None, max_examples=examples(30))
@given(damaged(plain(64, 96), within=2000))
def test_an_index_is_made_for_any_bytes_or_not_at_all(data: bytes) -> None:
    stored = with_index(data)
    assert stored is data or cut_jpeg(stored, 0, 0, 1, 1) is not None


# --- what guards the index ---


@pytest.mark.parametrize(("tile", "is_cut"), [(1, True), (2, True), (3, False), (4, False), (5, True)])
def test_an_index_must_be_right_for_the_tiles_of_a_box(tile: int, is_cut: bool) -> None:
    lengths = list(struct.unpack_from(">8H", HOSTILE, INDEX + 13))
    lengths[tile] += 1
    lengths[tile + 1] -= 1
    changed = with_bytes(HOSTILE, INDEX + 13, struct.pack(">8H", *lengths))
    assert check_cut(changed, (34, 2, 10, 40), HOSTILE) == is_cut  # in tile 4 of 0 to 7


def test_an_index_across_rows_may_be_wrong_outside_the_tiles_of_a_box() -> None:
    stored = tiled(112, 112)
    lengths = stored.index(b"presize\0\1") + 9
    first, second = struct.unpack_from(">2H", stored, lengths)
    changed = with_bytes(stored, lengths, struct.pack(">2H", first + 1, second - 1))
    assert check_cut(changed, (65, 33, 14, 14), stored)  # in tile 7 of 0 to 12
    assert cut_jpeg(changed, 1, 33, 14, 14) is None


def test_blank_tiles_use_the_codes_of_symbol_0_of_any_length() -> None:
    value = of_empty_tiles(side=800)
    scan = value.index(b"\xff\xda")
    header = value[: value.index(b"\xff\xe9")] + value[scan : scan + 10]
    layout = layout_of(header)
    assert layout is not None and layout.blank == 2 * "1" * 16
    of_zeros = bytes((*[0] * 15, 1, 0))
    layout = layout_of(with_payload(header, 0xC4, b"\0" + of_zeros + b"\x10" + of_zeros))
    assert layout is not None and layout.blank == 2 * "0" * 16


def with_payload(data: bytes, marker: int, payload: bytes) -> bytes:
    """Return `data` with another payload in the first segment of this marker."""
    begin = data.index(bytes((0xFF, marker)))
    end = begin + 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
    return data[:begin] + segment(marker, payload) + data[end:]


FRAME = HOSTILE.find(b"\xff\xc0")
INTERVAL = HOSTILE.find(b"\xff\xdd")
GREY = tiled(8, 96, "grey")
LENGTHS = HOSTILE[INDEX + 13 : SCAN_BEGIN - 14]
DOUBTFUL = {
    "an index that is no marker": with_bytes(HOSTILE, INDEX, b"\xfe"),
    "an index in APP8": with_bytes(HOSTILE, INDEX + 1, b"\xe8"),
    "an index in a comment": with_bytes(HOSTILE, INDEX + 1, b"\xfe"),
    "another identifier": with_bytes(HOSTILE, INDEX + 4, b"q"),
    "an identifier without its zero": with_bytes(HOSTILE, INDEX + 11, b"\1"),
    **{f"version {number}": with_bytes(HOSTILE, INDEX + 12, bytes((number,))) for number in (0, 2, 255)},
    "a tile more than there are": with_payload(HOSTILE, 0xE9, b"presize\0\1" + LENGTHS + b"\0\0"),
    "a tile less than there are": with_payload(HOSTILE, 0xE9, b"presize\0\1" + LENGTHS[:-2]),
    "a zero behind the last tile": HOSTILE + b"\0",
    "a marker behind the last tile": HOSTILE + b"\xff\xd9",
    "zeros behind the last tile": HOSTILE + b"\0" * 100,
    "a reserved marker for its frame": with_bytes(HOSTILE, FRAME + 1, b"\xbf"),
    "12 bits a sample": with_bytes(HOSTILE, FRAME + 4, b"\x0c"),
    "more MCUs in a row than in its tiles": with_bytes(HOSTILE, FRAME + 7, b"\0\x70"),
    "fewer MCUs in a row than in a tile": with_bytes(HOSTILE, FRAME + 7, b"\0\x20"),
    "MCUs of no height": with_bytes(HOSTILE, FRAME + 11, b"\x20"),
    "chroma of twice the height": with_bytes(HOSTILE, FRAME + 14, b"\x12"),
    "grey of twice the height": with_bytes(GREY, GREY.find(b"\xff\xc0") + 11, b"\x12"),
    "a frame that ends too early": with_payload(HOSTILE, 0xC0, HOSTILE[FRAME + 4 : FRAME + 18]),
    "an interval of 0": with_bytes(HOSTILE, INTERVAL + 4, b"\0\0"),
    "an interval of one byte": with_payload(HOSTILE, 0xDD, b"\3"),
    "an interval of three bytes": with_payload(HOSTILE, 0xDD, b"\0\0\3"),
    "half an index, behind the scan's header": HOSTILE[:INDEX]
    + HOSTILE[SCAN_BEGIN - 14 : SCAN_BEGIN]
    + HOSTILE[INDEX:][:20],
    "two intervals": HOSTILE[:INTERVAL] + b"\xff\xdd\0\4\0\3" + HOSTILE[INTERVAL:],
    "another interval later": HOSTILE[:INDEX] + b"\xff\xdd\0\4\0\6" + HOSTILE[INDEX:],
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_an_index_or_a_header_that_contradicts_the_tiles_means_no_cut(name: str) -> None:
    assert cut_jpeg(HOSTILE, 0, 0, 8, 8) is not None
    assert cut_jpeg(DOUBTFUL[name], 0, 0, 8, 8) is None


HARMLESS = {0xC4, 0xDB, *range(0xE0, 0xF0), 0xFE}
"""Permitted segments in the header of a JPEG that is cut, in addition to its frame and interval: tables, APPn and
comments."""


@pytest.mark.parametrize("marker", sorted({*range(0xC0, 0xFF)} - {*range(0xD0, 0xDB)}), ids=hex)
def test_a_jpeg_is_cut_only_if_its_header_has_no_segment_that_changes_the_meaning_of_tiles(marker: int) -> None:
    part = cut_jpeg(HOSTILE[:2] + segment(marker, b"xx") + HOSTILE[2:], 0, 0, 8, 8)
    assert (part is not None) == (marker in HARMLESS)
