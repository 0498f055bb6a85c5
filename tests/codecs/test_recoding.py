"""JPEGs coded again in tiles without loss: the same coefficients, and crops like those of any other."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from coefficients import coefficients
from effort import examples
from jpegs import compiled, held_to, segment, with_bytes, without_compiled_code
from pictures import noisy_image, opened, saved
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.segments import DHT, header_segments
from presize.codecs.jpeg.tiles import OF_AC, cut_jpeg, huffman_tables, recoded, restart_interval, with_index
from presize.errors import OptionError

PIXELS = noisy_image(64, 64)
PLAIN = saved(PIXELS, "JPEG")


def has_ends(data: bytes) -> bool:
    """Return True if every AC table has a code for the end of a block, which tiles across rows need. Tables of small
    images may lack one."""
    payloads = (data[begin + 4 : end] for marker, begin, end in header_segments(data) or () if marker == DHT)
    tables = [table for payload in payloads for table in huffman_tables(payload) if table[0] & OF_AC]
    return bool(tables) and all(0 in table[17:] for table in tables)


@compiled
@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 90),
    st.sampled_from([1, 30, 75, 90, 100]),
    st.sampled_from(["4:4:4", "4:2:2", "4:2:0", "grey"]),
    st.booleans(),
    st.integers(0, 7),
)
def test_the_coefficients_are_the_same_in_the_new_intervals(
    height: int, width: int, quality: int, sampling: str, optimize: bool, interval: int
) -> None:
    pixels = noisy_image(height, width, quality)
    options = {} if sampling == "grey" else {"subsampling": sampling}
    data = saved(
        pixels[:, :, 0] if sampling == "grey" else pixels, "JPEG",
        quality=quality, optimize=optimize, restart_marker_blocks=interval, **options,
    )  # fmt: skip
    tiled = recoded(data)
    assert tiled is not data or not has_ends(data)
    with held_to(0):
        assert recoded(data) == tiled
    assert coefficients(tiled) == coefficients(data)
    assert np.array_equal(simplejpeg.decode_jpeg(tiled), simplejpeg.decode_jpeg(data))


@compiled
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_crops_are_cut_from_the_tiles(sampling: str) -> None:
    data = saved(noisy_image(120, 180), "JPEG", quality=90, subsampling=sampling, optimize=True)
    tiled = recoded(data)
    part = cut_jpeg(tiled, 40, 50, 30, 40)
    assert part is not None and len(part.data) < len(tiled) / 3
    expected = simplejpeg.decode_jpeg(data)[40:70, 50:90]
    assert np.array_equal(simplejpeg.decode_jpeg(part.data)[part.top :, part.left :][:30, :40], expected)
    assert np.array_equal(jpeg_decoder.decode(tiled, "RGB", (120, 180), (40, 50, 30, 40)), expected)


@compiled
@pytest.mark.parametrize("mcus", [11, 21])
def test_a_jpeg_with_the_usual_codes_gets_only_markers(mcus: int) -> None:
    pixels = noisy_image(48, 16 * mcus)
    data = saved(pixels, "JPEG", quality=90)
    same = saved(pixels, "JPEG", quality=90, restart_marker_blocks=restart_interval(mcus))
    assert recoded(data) == recoded(same) == with_index(recoded(same))
    scan = same[same.index(b"\xff\xda") :]
    assert recoded(data).endswith(scan)


@compiled
def test_metadata_and_tables_stay_unchanged() -> None:
    data = saved(PIXELS, "JPEG", quality=80, optimize=True, comment=b"a comment", icc_profile=b"a profile")
    before, after = opened(data), opened(recoded(data))
    assert before.info["comment"] == after.info["comment"] == b"a comment"
    assert before.info["icc_profile"] == after.info["icc_profile"]
    assert before.quantization == after.quantization  # type: ignore[attr-defined]


@compiled
def test_the_names_of_components_are_kept() -> None:
    data = bytearray(saved(PIXELS, "JPEG", quality=80))
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    data[frame + 10 : frame + 19 : 3] = data[scan + 5 : scan + 11 : 2] = b"YUV"
    tiled = recoded(bytes(data))
    assert tiled != data
    assert np.array_equal(simplejpeg.decode_jpeg(tiled), simplejpeg.decode_jpeg(bytes(data)))


@compiled
def test_tables_in_one_segment_equal_those_in_separate_segments() -> None:
    data = saved(PIXELS, "JPEG", quality=80)
    tables = [(begin, end) for marker, begin, end in header_segments(data) or () if marker == DHT]
    assert len(tables) == 4
    together = b"".join(data[begin + 4 : end] for begin, end in tables)
    joined = data[: tables[0][0]] + segment(DHT, together) + data[tables[-1][1] :]
    assert recoded(joined) == recoded(data)


@compiled
def test_recoding_twice_changes_nothing() -> None:
    tiled = recoded(saved(noisy_image(64, 96), "JPEG", quality=90, optimize=True))
    assert recoded(tiled) is tiled, "it has an index"
    begin = tiled.index(b"\xff\xe9")
    without = tiled[:begin] + tiled[begin + 2 + int.from_bytes(tiled[begin + 2 : begin + 4], "big") :]
    assert recoded(without) == tiled


FACTORS = PLAIN.index(b"\xff\xc0") + 11
"""Offset of the numbers of luma blocks across (4 bits) and down in the frame header."""
LEFT_ALONE = {
    "progressive": saved(PIXELS, "JPEG", progressive=True),
    "extended": saved(np.zeros((64, 64, 3), np.uint8), "JPEG").replace(b"\xff\xc0", b"\xff\xc1"),
    "cut short": PLAIN[:-40],
    "no JPEG": b"\x89PNG\r\n",
    "nothing": b"",
    "a header alone": PLAIN[:400],
    "an empty frame": b"\xff\xd8\xff\xc0\0\2\xff\xda\0\2",
    "a frame cut short by a byte": b"\xff\xd8\xff\xc0\0\4\x08\x08\xff\xda\0\3\1",
    "MCUs of no blocks": with_bytes(PLAIN, FACTORS, b"\x02"),
    "4:1:1": with_bytes(PLAIN, FACTORS, b"\x41"),
    "another index": PLAIN.replace(b"\xff\xdb", b"\xff\xfe\0\x0bpresize\0\2\xff\xdb", 1),
}


@compiled
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_jpegs_that_the_decoder_refuses_stay_unchanged(name: str) -> None:
    assert recoded(LEFT_ALONE[name]) is LEFT_ALONE[name]


@compiled
def test_differences_that_only_a_hostile_jpeg_has_are_refused() -> None:
    """Each DC coefficient adds 2,047 to the previous one, so that none can start an interval."""
    data = saved(np.zeros((8, 64), np.uint8), "JPEG", quality=100)
    scan = data.index(b"\xff\xda") + 10
    # The code of 11 bits is 111111110, its value 11111111111; that of the end of a block is 1010.
    bits = ("111111110" + "1" * 11 + "1010") * 8
    coded = int(bits + "1" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8), "big").replace(b"\xff", b"\xff\0")
    hostile = data[:scan] + coded + b"\xff\xd9"
    assert [block[0] for block in coefficients(hostile)] == [2047 * (number + 1) for number in range(8)]
    assert recoded(hostile) is hostile


@compiled
@pytest.mark.parametrize(("height", "width"), [(256, 8 * 211), (800, 800)], ids=["across rows", "many tiles"])
def test_an_image_of_one_colour_has_room_for_its_longer_codes(height: int, width: int) -> None:
    data = saved(np.full((height, width), 77, np.uint8), "JPEG", optimize=True)
    tiled = recoded(data)
    assert tiled is not data
    assert coefficients(tiled) == coefficients(data)


COLUMNS = 8179


def of_short_codes(end_bits: int) -> bytes:
    """Return a grey JPEG with alternating DC coefficients of 1365 and 0: such a difference has a code of 1 bit, instead
    of 11 bits as in T.81's table K.4, and the end of a block one of `end_bits`."""
    bits = "".join("0" + value + "0" * end_bits for value in ("10101010101", "01010101010")) * (COLUMNS // 2 + 1)
    bits = bits[: (12 + end_bits) * COLUMNS]
    row = int(bits + "1" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8), "big")
    assert b"\xff" not in row
    segments = [
        (0xDB, b"\0" + b"\1" * 64),
        (0xC0, struct.pack(">BHHBBBB", 8, 16, 8 * COLUMNS, 1, 1, 0x11, 0)),
        (0xC4, b"\x01\1" + bytes(15) + b"\x0b"),
        (0xC4, b"\x10" + bytes(int(length == end_bits) for length in range(1, 17)) + b"\0"),
        (0xDD, struct.pack(">H", COLUMNS)),
        (0xDA, b"\1\1\x10\0\x3f\0"),
    ]
    return b"".join((b"\xff\xd8", *(segment(*each) for each in segments), row, b"\xff\xd0", row, b"\xff\xd9"))


@compiled
def test_a_scan_may_grow_to_twice_its_length_and_is_unchanged_if_it_grows_more() -> None:
    data = of_short_codes(end_bits=3)
    scan = jpeg_decoder.recode_scan(data, COLUMNS, 2)
    assert scan is not None
    assert 1.8 < len(scan) / len(data) < 2
    tiled = recoded(data)  # with room for the markers
    assert np.array_equal(simplejpeg.decode_jpeg(tiled), simplejpeg.decode_jpeg(data))
    assert jpeg_decoder.recode_scan(of_short_codes(end_bits=2), COLUMNS, 2) is None


def test_without_the_compiled_code_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiled_code(monkeypatch)
    with pytest.raises(OptionError, match=r"^tiles: all needs presize's own JPEG decoder, which is not compiled"):
        recoded(PLAIN)
