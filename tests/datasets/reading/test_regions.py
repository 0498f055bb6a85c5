"""A box of a stored value, decoded and resized, compared with a full decode and torch's interpolation."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from pictures import smooth_image
from presize.codecs.encode import encode
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.datasets.reading.regions import View, cut_region, read_region, uncut_region
from presize.options import Format, ImageOptions, Subsampling

HEIGHT, WIDTH = 150, 201


@pytest.fixture(autouse=True, scope="module", params=["_jpeg_decoder.c", "simplejpeg"])
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with and without the C code."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "simplejpeg":
            patch.setattr(jpeg_decoder, "compiled", replace(jpeg_decoder.compiled, module=None))
        elif not jpeg_decoder.is_available():
            pytest.skip("_jpeg_decoder.c is not compiled")
        yield


Box = tuple[int, int, int, int]


def fill(
    out: np.ndarray,
    value: memoryview,
    box: Box,
    format: Format = "jpeg",
    shape: tuple[int, int] = (HEIGHT, WIDTH),
    flip: bool = False,
    scale: int = 1,
) -> np.ndarray:
    """Fill `out` with a box of a value, like a BatchReader."""
    is_cut = format == "jpeg" and not jpeg_decoder.is_available()
    region = cut_region(value, box) if is_cut else uncut_region(value, format, box)
    read_region([View(out, box, flip)], region, shape, scale)
    return out


def stored(format: Format = "jpeg", subsampling: Subsampling = "420", tiles: bool = True) -> memoryview:
    image = smooth_image(HEIGHT, WIDTH, seed=3)
    image[40:110, 50:140] = np.random.default_rng(0).integers(0, 256, (70, 90, 3))  # and noise
    return memoryview(encode(image, ImageOptions(format=format, subsampling=subsampling, tiles=tiles)))


def whole(value: memoryview, format: Format = "jpeg") -> np.ndarray:
    return region(value, (0, 0, HEIGHT, WIDTH), (HEIGHT, WIDTH), format)


def region(value: memoryview, box: Box, size: tuple[int, int], format: Format = "jpeg", **how: Any) -> np.ndarray:
    return fill(np.full((*size, 3), 99, np.uint8), value, box, format, **how)


def by_pillow(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize a PIL image like torchvision."""
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    height, width = draw(st.integers(1, HEIGHT)), draw(st.integers(1, WIDTH))
    return draw(st.integers(0, HEIGHT - height)), draw(st.integers(0, WIDTH - width)), height, width


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "raw"])
@pytest.mark.parametrize("tiles", [True, False])
def test_a_box_without_resize_equals_its_part_of_the_whole_exactly(format: Format, tiles: bool) -> None:
    value = stored(format, tiles=tiles)
    box = region(value, (33, 47, 64, 80), (64, 80), format)
    assert np.array_equal(box, whole(value, format)[33:97, 47:127])


@settings(max_examples=examples(25))
@given(boxes(), st.integers(1, 120), st.integers(1, 120), st.booleans())
def test_a_resized_box_equals_torchvisions_resize_of_a_pil_image(box: Box, height: int, width: int, flip: bool) -> None:
    value = stored()
    top, left, h, w = box
    expected = by_pillow(whole(value)[top : top + h, left : left + w], (height, width))
    got = region(value, box, (height, width), flip=flip)
    np.testing.assert_array_equal(got[:, ::-1] if flip else got, expected)


def test_grey_is_read_as_one_channel_or_as_three() -> None:
    gray = smooth_image(HEIGHT, WIDTH)[:, :, 0].copy()
    for format in ("jpeg", "raw", "png"):
        value = memoryview(encode(gray, ImageOptions(color="gray", format=format)))
        three, one = np.empty((20, 30, 3), np.uint8), np.empty((20, 30, 1), np.uint8)
        for out in (three, one):
            fill(out, value, (5, 5, 40, 60), format, flip=True)
        assert (three == one).all()
        assert np.abs(by_pillow(gray[5:45, 5:65], (20, 30))[:, ::-1, np.newaxis].astype(int) - one).mean() < 1.5


@pytest.mark.parametrize("format", ["jpeg", "png", "raw"])
def test_an_index_that_claims_too_many_pixels_is_damage(format: Format) -> None:
    with pytest.raises(ValueError, match=r"the index says|cannot reshape"):
        region(stored(format), (0, 0, HEIGHT + 9, 8), (8, 8), format, shape=(HEIGHT + 9, WIDTH))


def test_unexpected_channels_are_damage() -> None:
    image = smooth_image(HEIGHT, WIDTH)
    out = np.full((200, 300, 3), 7, np.uint8)
    for value, shape in [(image.tobytes(), (HEIGHT // 2, WIDTH)), (b"", (HEIGHT, WIDTH))]:
        with pytest.raises(ValueError, match=r"channels|reshape"):
            fill(out, memoryview(value), (0, 0, 60, 90), "raw", shape)
    with pytest.raises(ValueError, match="expected 1 channel, got"):
        fill(out[:, :, :1].copy(), memoryview(image.tobytes()), (0, 0, 60, 90), "raw")


def test_an_index_that_claims_billions_of_pixels_takes_no_memory() -> None:
    tracemalloc.start()
    for side in (60_000, 2**31 - 1):
        with pytest.raises(ValueError, match=f"it is {HEIGHT} pixels high and {WIDTH} wide"):
            region(stored(), (0, 0, side, side), (8, 8), shape=(side, side))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 30


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("subsampling", ["444", "420"])
@pytest.mark.parametrize("tiles", [True, False])
def test_a_crop_is_decoded_at_reduced_size_by_the_c_code_if_available(
    scale: int, subsampling: Subsampling, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = stored(subsampling=subsampling, tiles=tiles)
    reduced = simplejpeg.decode_jpeg(value, min_height=-(-HEIGHT // scale), min_width=-(-WIDTH // scale))
    top, left, height, width = 16 // scale, 72 // scale, 96 // scale, 112 // scale
    if jpeg_decoder.is_available():
        monkeypatch.delattr(jpeg_decoder, "decode_with_libjpeg")
    pixels = region(value, (16, 72, 96, 112), (height, width), scale=scale)
    np.testing.assert_array_equal(pixels, reduced[top : top + height, left : left + width])
