"""_jpeg_decoder.c: it accepts ordinary files, and returns the pixels of libjpeg-turbo."""

from __future__ import annotations

import contextlib
import platform
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import presize
from effort import examples
from jpegs import (
    LEVELS,
    ORDINARY,
    boxes,
    by_libjpeg,
    compiled,
    encoded,
    held_to,
    segment,
    tiled,
    without_compiled_code,
)
from pictures import noisy_image, saved, smooth_image
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.decoder import Mode
from presize.codecs.jpeg.tiles import TAG, with_index
from presize.codecs.pillow_resize import resize, row_sink
from presize.errors import ImageError, OptionError

MODES: list[Mode] = ["GRAY", "RGB", "BGRX"]
PIXELS = noisy_image(40, 60, seed=2)
PLAIN = encoded(PIXELS)


def is_too_narrow(width: int, sampling: str, scale: int) -> bool:
    """Return True if libjpeg repeats chroma instead of interpolating it, or could choose another scale."""
    halved = sampling == "4:2:2" or (sampling == "4:2:0" and scale == 1)
    return (halved and scale < 8 and -(-width // scale) <= 4) or (scale > 1 and width <= 8)


@compiled
@settings(deadline=None, max_examples=examples(370))
@given(
    draw=st.data(),
    height=st.integers(1, 160),
    width=st.integers(1, 160),
    sampling=st.sampled_from(ORDINARY),
    quality=st.sampled_from([1, 10, 50, 75, 90, 95, 100]),
    interval=st.sampled_from([0, 1, 2, 3, 5, 7]),
    mode=st.sampled_from(MODES),
    scale=st.sampled_from([1, 2, 4, 8]),
    level=st.integers(0, 2),
)
def test_an_ordinary_jpeg_and_its_boxes_have_the_pixels_of_libjpeg_turbo(
    draw: st.DataObject,
    height: int,
    width: int,
    sampling: str,
    quality: int,
    interval: int,
    mode: Mode,
    scale: int,
    level: int,
) -> None:
    image = noisy_image(height, width, seed=width)
    data = encoded(image, sampling, quality, interval, optimize=draw.draw(st.booleans()))
    if draw.draw(st.booleans()):
        data = with_index(data)
    if draw.draw(st.booleans()):
        data = data[:2] + profile_part(1, 2) + profile_part(2, 2) + data[2:]
    whole = by_libjpeg(data, mode, scale)
    every = [(0, 0, *whole.shape[:2]), *(draw.draw(boxes(*whole.shape[:2])) for _ in range(3))]
    for top, left, rows, columns in every:
        box = None if (rows, columns) == whole.shape[:2] else (top, left, rows, columns)
        with held_to(level):
            pixels = jpeg_decoder.decode(memoryview(data), mode, (height, width), box, scale=scale)
        assert (pixels is None) == is_too_narrow(width, sampling, scale)
        if pixels is not None:
            np.testing.assert_array_equal(pixels, whole[top : top + rows, left : left + columns])


@compiled
@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("level", range(len(LEVELS)), ids=LEVELS)
@pytest.mark.parametrize("at", ["in the middle", "at the end"])
def test_a_reduced_decode_detects_damage_that_it_could_skip(scale: int, level: int, at: str) -> None:
    data = bytearray(encoded(noisy_image(64, 96, seed=3), "4:4:4"))
    damaged_at = len(data) - 60 if at == "at the end" else len(data) * 3 // 4
    data[damaged_at : damaged_at + 8] = b"\xf0\xe0" * 4
    with pytest.raises(ValueError, match=r"\w"):
        by_libjpeg(bytes(data), "RGB", scale)
    with held_to(level):
        assert jpeg_decoder.decode(bytes(data), "RGB", (64, 96), scale=scale) is None


@compiled
@pytest.mark.parametrize("width", [256, 272], ids=["rows of whole tiles", "tiles across rows"])
def test_damage_in_another_tile_does_not_affect_a_box(width: int) -> None:
    data = bytearray(tiled(64, width))
    whole = simplejpeg.decode_jpeg(bytes(data))
    data[-30:-28] = b"\xff\xd0"  # in the last tile
    assert jpeg_decoder.decode(bytes(data), "RGB", (64, width)) is None
    pixels = jpeg_decoder.decode(bytes(data), "RGB", (64, width), (3, 5, 20, 90))
    np.testing.assert_array_equal(pixels, whole[3:23, 5:95])


def behind_start(*segments: bytes) -> bytes:
    return b"".join((PLAIN[:2], *segments, PLAIN[2:]))


def profile_part(number: int, parts: int) -> bytes:
    return segment(0xE2, b"ICC_PROFILE\0" + bytes((number, parts)) + b"icc!")


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


TILED = tiled(40, 60)
LENGTH = TILED.index(TAG) + 10
INTERVALS = encoded(PIXELS, interval=2)
NOT_ORDINARY = {
    "progressive": saved(PIXELS, "JPEG", progressive=True),
    "CMYK": saved(Image.fromarray(PIXELS).convert("CMYK"), "JPEG"),
    "RGB": saved(PIXELS, "JPEG", keep_rgb=True),
    "cut short": PLAIN[:-2],
    "a byte too many": PLAIN[:-2] + b"\0\xff\xd9",
    "markers": INTERVALS.replace(b"\xff\xd3", b"\xff\xd4"),
    "index": TILED[:LENGTH] + bytes((TILED[LENGTH] ^ 1,)) + TILED[LENGTH + 1 :],
    "two intervals": changed(INTERVALS, b"\xff\xdd\0\4\0\2", 2 * b"\xff\xdd\0\4\0\2"),
    "half a profile": behind_start(profile_part(2, 2)),
    "the other half": behind_start(profile_part(1, 2)),
    "JFIF 2": changed(PLAIN, b"JFIF\0\1", b"JFIF\0\2"),
    "grey of 0 x 5": changed(encoded(PIXELS, "grey"), b"\0\x3c\x01\x01\x11\0", b"\0\x3c\x01\x01\x05\0"),
    "another size": encoded(noisy_image(40, 61)),
    "empty": b"",
    "no image": b"\xff\xd8\xff\xd9",
}


@compiled
@pytest.mark.parametrize("name", NOT_ORDINARY)
def test_unusual_jpegs_are_left_to_libjpeg_turbo(name: str) -> None:
    assert jpeg_decoder.decode(NOT_ORDINARY[name], "RGB", (40, 60)) is None


@compiled
def test_a_side_longer_than_libjpegs_limit_is_left_to_it() -> None:
    data = encoded(np.zeros((8, 65_500, 3), np.uint8), "grey")
    assert jpeg_decoder.decode(data, "GRAY", (8, 65_500)) is not None
    longer = data.replace(b"\0\x08\xff\xdc", b"\0\x08\xff\xe0")  # the same number of blocks
    assert longer != data and jpeg_decoder.decode(longer, "GRAY", (8, 65_504)) is None


@compiled
@pytest.mark.parametrize(
    ("box", "scale"),
    [
        *(((0, 0, 41, 60), 1), ((1, 0, 40, 60), 1), ((-1, 0, 4, 4), 1), ((0, 57, 4, 4), 1), ((0, 0, 0, 4), 1)),
        *(((0, 0, 11, 15), 4), ((0, 0, 10, 16), 4), ((9, 14, 2, 1), 4), (None, 3)),
    ],
)
def test_a_box_outside_the_image_or_another_scale_raises(box: tuple[int, int, int, int] | None, scale: int) -> None:
    shape = (38 if scale == 4 else 40, 60)
    with pytest.raises(ValueError, match="box does not lie in the image" if box else "scale: expected 1, 2, 4 or 8"):
        jpeg_decoder.decode(encoded(noisy_image(*shape)), "RGB", shape, box, scale=scale)


@compiled
def test_a_result_is_written_into_the_buffer_and_not_beyond_it() -> None:
    data = encoded(noisy_image(33, 47, seed=4))
    for mode, channels in zip(MODES, (1, 3, 4), strict=True):
        nbytes = 33 * 47 * channels
        buffer = np.full(nbytes + 100, 7, np.uint8)
        pixels = jpeg_decoder.decode(data, mode, (33, 47), buffer=buffer)
        assert pixels is not None and np.shares_memory(pixels, buffer)
        np.testing.assert_array_equal(buffer[:nbytes].reshape(pixels.shape), simplejpeg.decode_jpeg(data, mode))
        assert (buffer[nbytes:] == 7).all()
        with pytest.raises(TypeError, match="too small"):
            jpeg_decoder.decode(data, mode, (33, 47), buffer=buffer[: nbytes - 1])


@compiled
@pytest.mark.parametrize(
    ("shape", "mode", "scale"),
    [((40, 61), "RGB", 1), ((41, 60), "RGB", 1), ((40, 60), "BGRX", 1), ((40, 60), "RGB", 2), ((40, 60), "RGB", 3)],
)
def test_rows_for_a_resize_of_another_image_are_refused(shape: tuple[int, int], mode: Mode, scale: int) -> None:
    data, out = encoded(noisy_image(40, 60)), np.empty((9, 8, 3), np.uint8)
    sink = row_sink((40, 60), out, "bicubic", (0, 0, 60, 40))
    assert jpeg_decoder.decode_into(data, "RGB", (40, 60), 1, sink)
    np.testing.assert_array_equal(out, resize(simplejpeg.decode_jpeg(data), (9, 8), "bicubic"))
    with pytest.raises(ValueError, match=r"of another size|1, 2, 4 or 8"):
        jpeg_decoder.decode_into(data, mode, shape, scale, sink)
    with pytest.raises(ValueError, match="PyCapsule"):
        jpeg_decoder.decode_into(data, "RGB", (40, 60), 1, object())


@compiled
def test_threads_with_different_tables_do_not_interfere() -> None:
    values = [encoded(noisy_image(90, 120, seed), quality=60 + seed, optimize=True) for seed in range(8)]
    expected = [simplejpeg.decode_jpeg(value) for value in values]

    def decode_often(number: int) -> bool:
        shape = expected[number].shape[:2]
        results = (jpeg_decoder.decode(values[number], "RGB", shape) for _ in range(50))
        return all(pixels is not None and np.array_equal(pixels, expected[number]) for pixels in results)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(decode_often, range(8)))


STRAY = PLAIN[:-2] + b"stray bytes\xff\xd9"


@pytest.mark.parametrize(("data", "is_accepted"), [(STRAY, True), (STRAY[:-2], False)], ids=["stray bytes", "no end"])
def test_warnings_of_libjpeg_are_errors_unless_harmless(data: bytes, is_accepted: bool) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        jpeg_decoder.decode_whole(data, "RGB", (40, 60), max_pixels=10**6)
    with contextlib.nullcontext() if is_accepted else pytest.raises(ValueError, match=r"\w"):
        pixels = jpeg_decoder.decode_with_libjpeg(data, "RGB", (40, 60), 1, max_pixels=10**6, strict=False)
        np.testing.assert_array_equal(pixels, simplejpeg.decode_jpeg(STRAY, strict=False))


def test_the_pixels_of_all_scans_count_against_the_limit() -> None:
    data = NOT_ORDINARY["progressive"]
    assert data.count(b"\xff\xda") == 10
    assert jpeg_decoder.decode_whole(data, "RGB", (40, 60), max_pixels=40 * 60).shape == (40, 60, 3)
    with pytest.raises(ImageError, match="10 scans of 2400 pixels each"):
        jpeg_decoder.decode_whole(data, "RGB", (40, 60), max_pixels=40 * 60 - 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("sampling", ["4:2:0", "grey"])
@pytest.mark.parametrize("shape", [(9, 1), (1, 9), (61, 90)], ids=str)
def test_the_fallback_to_libjpeg_has_the_same_pixels(
    mode: Mode, scale: int, sampling: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(noisy_image(*shape), sampling)
    pixels = jpeg_decoder.decode_whole(data, mode, shape, scale, max_pixels=10**6)
    assert pixels.shape == (-(-shape[0] // scale), -(-shape[1] // scale), {"GRAY": 1, "RGB": 3, "BGRX": 4}[mode])
    without_compiled_code(monkeypatch)
    np.testing.assert_array_equal(jpeg_decoder.decode_whole(data, mode, shape, scale, max_pixels=10**6), pixels)
    with pytest.raises(ValueError, match=r"\w"):
        jpeg_decoder.decode_whole(data[: len(data) // 2], mode, shape, scale, max_pixels=10**6)


@compiled
@settings(deadline=None)
@given(st.binary(min_size=1, max_size=40), st.lists(st.binary(max_size=12), min_size=1, max_size=9), st.booleans())
@example(b"\0", [b""] * 24, True)  # the markers three times
def test_tiles_are_measured_the_same_without_the_compiled_code(head: bytes, parts: list[bytes], sound: bool) -> None:
    tiles = [part.replace(b"\xff", b"\xff\0") if sound else part for part in parts]
    markers = [bytes((0xFF, 0xD0 + i % 8)) for i in range(len(tiles) - 1)] + [b"\xff\xd9"]
    data = head + b"".join(tile + marker for tile, marker in zip(tiles, markers, strict=True))
    lengths = jpeg_decoder.tile_lengths(data, len(head), len(tiles))
    with pytest.MonkeyPatch.context() as patch:
        without_compiled_code(patch)
        assert jpeg_decoder.tile_lengths(data, len(head), len(tiles)) == lengths
    if sound:
        assert lengths == np.array([len(tile) + 2 for tile in tiles], ">u2").tobytes()


@pytest.mark.parametrize("is_compiled", [pytest.param(True, marks=compiled), False])
@pytest.mark.parametrize(
    ("data", "tiles", "reason"),
    [
        (b"\xff\xd0\xff\xd1\xff\xd9\0", 3, "a byte after the end"),
        (b"\xff\xd0\xff\xd2\xff\xd9", 3, "out of order"),
        (b"\xff\xd0\xff\xd1\xff\xd2", 3, "no end"),
        (b"\xff\xd0\xff\xd9", 3, "too few"),
        (b"\xff\xd9", 3, "more tiles than bytes"),
        (b"\0\0\0", 3, "no markers"),
        (bytes(65_534) + b"\xff\xd9", 1, "a tile of 65,536 bytes"),
        (bytes(65_533) + b"\xff\xd9", 1, None),
    ],
)
def test_too_long_tiles_or_wrong_markers_have_no_lengths(
    data: bytes, tiles: int, reason: str | None, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        without_compiled_code(monkeypatch)
    assert (jpeg_decoder.tile_lengths(data, 0, tiles) is None) == (reason is not None), reason


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64") or not shutil.which("gcc"), reason="needs gcc, and x86-64 or ARM64"
)
def test_it_is_compiled_where_possible() -> None:
    is_available, off = jpeg_decoder.is_available(), jpeg_decoder.compiled.off
    if off is not None and off.by == "environment":
        pytest.skip(off.reason)
    assert is_available


# presize.decode_jpeg


def a_jpeg(mode: str = "RGB", **options: object) -> bytes:
    return saved(Image.fromarray(smooth_image(61, 83, 1)).convert(mode), "JPEG", **options)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 5}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("gray", [False, True])
def test_pixels_are_those_of_libjpeg_turbo(options: dict[str, object], mode: str, gray: bool) -> None:
    data = a_jpeg(mode, **options)
    expected = simplejpeg.decode_jpeg(data, "GRAY" if gray else "RGB")
    expected = expected[:, :, 0] if gray else expected
    for view in (data, memoryview(data)):
        pixels = presize.decode_jpeg(view, gray=gray)
        assert pixels.dtype == np.uint8 and np.array_equal(pixels, expected)
    assert np.array_equal(presize.decode_jpeg(data, gray=gray, box=(7, 20, 31, 50)), expected[7:38, 20:70])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a JPEG"),
        (b"\x89PNG" * 20, "not a JPEG"),
        (a_jpeg()[:300], "JPEG"),
        (a_jpeg()[:-500], "JPEG"),
    ],
)
def test_bytes_that_cannot_be_decoded_are_an_image_error(data: bytes, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        presize.decode_jpeg(data)


def test_a_size_is_checked_before_memory_is_allocated() -> None:
    with pytest.raises(ImageError, match="83 x 61 pixels, more than max_pixels"):
        presize.decode_jpeg(a_jpeg(), max_pixels=1000)


def test_a_path_is_not_a_jpeg() -> None:
    with pytest.raises(OptionError, match=r"^data: expected bytes, got 'photo\.jpg'$"):
        presize.decode_jpeg("photo.jpg")  # type: ignore[arg-type]


@pytest.mark.parametrize("box", [(0, 0, 62, 10), (-1, 0, 5, 5), (0, 80, 5, 5), (0, 0, 0, 5)])
def test_a_box_must_be_inside_the_image(box: tuple[int, int, int, int]) -> None:
    with pytest.raises(OptionError, match="in 83 x 61 pixels"):
        presize.decode_jpeg(a_jpeg(), box=box)
