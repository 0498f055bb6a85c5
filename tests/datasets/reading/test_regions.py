"""A box of a stored value, decoded and brought to size: against a full decode and torch's interpolation."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from pictures import smooth_image
from presize.codecs.compiled import Compiled
from presize.codecs.encode import encode
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.datasets.reading.regions import Region, cut_region, read_region, uncut_region
from presize.options import Format, ImageOptions, Subsampling

HEIGHT, WIDTH = 150, 201


@pytest.fixture(autouse=True, scope="module", params=["_jpeg_decoder.c", "simplejpeg"])
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here is true with the C code and without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "simplejpeg":
            patch.setattr(jpeg_decoder, "compiled", Compiled(None, jpeg_decoder.check))
        elif not jpeg_decoder.is_available():
            pytest.skip("_jpeg_decoder.c is not compiled here")
        yield


def part_of(value: memoryview, format: Format, box: tuple[int, int, int, int]) -> Region:
    """As a BatchReader has it."""
    if format == "jpeg" and not jpeg_decoder.is_available():
        return cut_region(value, box)
    return uncut_region(value, format, box)


def stored(format: Format = "jpeg", subsampling: Subsampling = "420", tiles: bool = True) -> memoryview:
    image = smooth_image(HEIGHT, WIDTH, seed=3)
    image[40:110, 50:140] = np.random.default_rng(0).integers(0, 256, (70, 90, 3))  # and something sharp
    return memoryview(encode(image, ImageOptions(format=format, subsampling=subsampling, tiles=tiles)))


def whole(value: memoryview, format: Format = "jpeg") -> np.ndarray:
    out = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    read_region(out, part_of(value, format, (0, 0, HEIGHT, WIDTH)), (HEIGHT, WIDTH), flip=False, exact=True)
    return out


def region(
    value: memoryview, box: tuple[int, int, int, int], size: tuple[int, int], format: Format = "jpeg", **how: bool
) -> np.ndarray:
    out = np.full((*size, 3), 99, np.uint8)
    flip, exact = how.get("flip", False), how.get("exact", True)
    read_region(out, part_of(value, format, box), (HEIGHT, WIDTH), flip=flip, exact=exact)
    return out


def by_pillow(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """torchvision's resize of a PIL image."""
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    height, width = draw(st.integers(1, HEIGHT)), draw(st.integers(1, WIDTH))
    return draw(st.integers(0, HEIGHT - height)), draw(st.integers(0, WIDTH - width)), height, width


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "raw"])
@pytest.mark.parametrize("tiles", [True, False])
def test_a_box_that_needs_no_resize_is_a_part_of_the_whole_to_the_bit(format: Format, tiles: bool) -> None:
    value = stored(format, tiles=tiles)
    box = region(value, (33, 47, 64, 80), (64, 80), format)
    assert np.array_equal(box, whole(value, format)[33:97, 47:127])


@settings(max_examples=examples(25))
@given(boxes(), st.integers(1, 120), st.integers(1, 120), st.booleans())
def test_a_resized_box_is_what_torchvision_makes_of_a_pil_image(
    box: tuple[int, int, int, int], height: int, width: int, flip: bool
) -> None:
    value = stored()
    top, left, h, w = box
    expected = by_pillow(whole(value)[top : top + h, left : left + w], (height, width))
    got = region(value, box, (height, width), flip=flip)
    np.testing.assert_array_equal(got[:, ::-1] if flip else got, expected)


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("subsampling", ["420", "444"])
def test_a_large_box_may_be_decoded_at_reduced_size_and_looks_the_same(scale: int, subsampling: Subsampling) -> None:
    value = memoryview(encode(smooth_image(512, 640, seed=1), ImageOptions(subsampling=subsampling)))
    out, exact = np.empty((48, 56, 3), np.uint8), np.empty((48, 56, 3), np.uint8)
    box = (8, 16, 48 * scale, 56 * scale)
    read_region(out, part_of(value, "jpeg", box), (512, 640), flip=False, exact=False)
    read_region(exact, part_of(value, "jpeg", box), (512, 640), flip=False, exact=True)
    difference = out.astype(int) - exact
    assert not np.array_equal(out, exact), "it was decoded in full"
    assert np.abs(difference).mean() < 1.5 and abs(difference.mean()) < 0.5


def test_evaluation_never_decodes_at_reduced_size() -> None:
    value = stored()
    expected = by_pillow(whole(value)[0:144, 0:192], (36, 48))
    np.testing.assert_array_equal(region(value, (0, 0, 144, 192), (36, 48), exact=True), expected)


def test_grey_is_read_as_one_channel_or_as_three() -> None:
    gray = smooth_image(HEIGHT, WIDTH)[:, :, 0].copy()
    for format in ("jpeg", "raw", "png"):
        value = memoryview(encode(gray, ImageOptions(color="gray", format=format)))
        three, one = np.empty((20, 30, 3), np.uint8), np.empty((20, 30, 1), np.uint8)
        for out in (three, one):
            read_region(out, part_of(value, format, (5, 5, 40, 60)), (HEIGHT, WIDTH), flip=True, exact=True)
        assert (three == one).all()
        assert np.abs(by_pillow(gray[5:45, 5:65], (20, 30))[:, ::-1, np.newaxis].astype(int) - one).mean() < 1.5


@pytest.mark.parametrize("format", ["jpeg", "png", "raw"])
def test_an_index_that_promises_more_pixels_than_there_are_is_damage(format: Format) -> None:
    with pytest.raises(ValueError, match=r"the index says|cannot reshape"):
        out = np.empty((8, 8, 3), np.uint8)
        part = part_of(stored(format), format, (0, 0, HEIGHT + 9, 8))
        read_region(out, part, (HEIGHT + 9, WIDTH), flip=False, exact=True)


def test_channels_that_are_not_those_asked_for_are_damage() -> None:
    image = smooth_image(HEIGHT, WIDTH)
    out = np.full((200, 300, 3), 7, np.uint8)
    for value, shape in [(image.tobytes(), (HEIGHT // 2, WIDTH)), (b"", (HEIGHT, WIDTH))]:
        with pytest.raises(ValueError, match=r"channels|reshape"):
            part = part_of(memoryview(value), "raw", (0, 0, 60, 90))
            read_region(out, part, shape, flip=False, exact=True)
    with pytest.raises(ValueError, match="expected 1 channel, got"):
        gray = out[:, :, :1].copy()
        part = part_of(memoryview(image.tobytes()), "raw", (0, 0, 60, 90))
        read_region(gray, part, (HEIGHT, WIDTH), flip=False, exact=True)


def test_an_index_that_promises_billions_of_pixels_takes_no_memory_for_them() -> None:
    tracemalloc.start()
    for side in (60_000, 2**31 - 1):
        with pytest.raises(ValueError, match=f"it is {HEIGHT} pixels high and {WIDTH} wide"):
            out = np.empty((8, 8, 3), np.uint8)
            read_region(out, part_of(stored(), "jpeg", (0, 0, side, side)), (side, side), flip=False, exact=True)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 30


def test_a_jpeg_of_another_size_than_the_index_says_is_damage() -> None:
    value = stored(tiles=False)
    with pytest.raises(ValueError, match=f"it is {HEIGHT} pixels high and {WIDTH} wide, and the index says"):
        part = part_of(value, "jpeg", (0, 0, 8, 8))
        read_region(np.empty((8, 8, 3), np.uint8), part, (99, 99), flip=False, exact=True)


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("subsampling", ["444", "420"])
@pytest.mark.parametrize("tiles", [True, False])
def test_a_crop_is_decoded_at_reduced_size_by_the_c_code_where_it_is(
    scale: int, subsampling: Subsampling, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = stored(subsampling=subsampling, tiles=tiles)
    reduced = simplejpeg.decode_jpeg(value, min_height=-(-HEIGHT // scale), min_width=-(-WIDTH // scale))
    top, left, height, width = 16 // scale, 72 // scale, 96 // scale, 112 // scale
    if jpeg_decoder.is_available():
        monkeypatch.delattr(jpeg_decoder, "decode_with_libjpeg")
    pixels = region(value, (16, 72, 96, 112), (height, width), exact=False)
    np.testing.assert_array_equal(pixels, reduced[top : top + height, left : left + width])
