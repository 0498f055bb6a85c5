"""Target sizes of each fit, and resampled pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from pictures import difference, smooth_image
from presize.codecs import pillow_resize
from presize.codecs.resize import Box, Target, resize, target
from presize.options import Filter, Fit, ResizeBackend, Size

sides = st.integers(1, 5000)
sizes = st.builds(Size, sides, sides)
fits = st.sampled_from(get_args(Fit))
each_backend = pytest.mark.parametrize("backend", get_args(ResizeBackend))
each_filter = pytest.mark.parametrize("filter", [name for name in get_args(Filter) if name != "nearest"])


def by_pillow(pixels: np.ndarray, found: Target, filter: Filter) -> np.ndarray:
    """Resample the box of `pixels` by Pillow."""
    box = found.box
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    resampled = Image.fromarray(pixels).resize(found.size[::-1], Image.Resampling[filter.upper()], corners)
    return np.asarray(resampled)


def pixels_of(found: Target) -> Size:
    return found.canvas or found.size


@pytest.mark.parametrize(
    ("source", "wanted", "fit", "expected", "reason"),
    [
        (Size(375, 500), Size(256, 256), "shorter", Size(256, 341), "torchvision: int(256 * 500 / 375)"),
        (Size(500, 375), Size(256, 256), "shorter", Size(341, 256), "the same, upright"),
        (Size(375, 500), Size(200, 400), "shorter", Size(300, 400), "covers a box that is not square"),
        (Size(375, 500), Size(256, 256), "longer", Size(192, 256), "fits inside"),
        (Size(375, 500), Size(256, 256), "stretch", Size(256, 256), "for any shape"),
        (Size(375, 500), Size(240, 320), "crop", Size(240, 320), "exactly"),
        (Size(375, 500), Size(256, 256), "pad", Size(256, 256), "exactly, with bars"),
        (Size(200, 500), Size(256, 256), "shorter", Size(200, 500), "small images are not enlarged"),
        (Size(200, 150), Size(256, 256), "longer", Size(200, 150), "small images are not enlarged"),
        (Size(200, 500), Size(256, 256), "stretch", Size(200, 256), "only the long axis shrinks"),
        (Size(200, 500), Size(256, 256), "crop", Size(200, 256), "crops only existing pixels"),
        (Size(200, 150), Size(256, 256), "pad", Size(256, 256), "pad is exact even for small images"),
        (Size(1, 5000), Size(256, 256), "longer", Size(1, 256), "no side vanishes"),
        (Size(256, 256), Size(256, 256), "shorter", Size(256, 256), "a fitting image is kept"),
    ],
)
def test_a_target_follows_from_the_fit(source: Size, wanted: Size, fit: Fit, expected: Size, reason: str) -> None:
    assert pixels_of(target(source, wanted, fit, upscale=False)) == expected, reason


@given(source=sizes, side=sides)
def test_shorter_yields_the_size_of_torchvision(source: Size, side: int) -> None:
    short, long = sorted(source)
    expected = Size(side, int(side * long / short))
    if source.height > source.width:
        expected = Size(expected.width, expected.height)
    assert target(source, Size(side, side), "shorter", upscale=True).size == expected


@given(source=sizes, wanted=sizes, fit=fits, up=st.booleans())
def test_a_target_is_inside_the_image_and_as_large_as_its_fit_says(
    source: Size, wanted: Size, fit: Fit, up: bool
) -> None:
    found = target(source, wanted, fit, up)
    box, size = found.box, found.size
    assert box.top >= 0 and box.top + box.height <= source.height * (1 + 1e-9)
    assert box.left >= 0 and box.left + box.width <= source.width * (1 + 1e-9)
    if not up:
        assert size.height <= box.height and size.width <= box.width
    elif fit in ("stretch", "crop", "pad"):
        assert pixels_of(found) == wanted
    if up and fit == "shorter":
        assert size.height >= wanted.height and size.width >= wanted.width
    if fit in ("longer", "pad"):
        assert size.height <= wanted.height and size.width <= wanted.width


@each_backend
@given(height=st.integers(40, 90), width=st.integers(40, 90), full=st.integers(90, 999), fit=fits)
@settings(deadline=None)
def test_a_box_that_exceeds_the_image_by_a_rounding_error_is_accepted(
    backend: ResizeBackend, height: int, width: int, full: int, fit: Fit
) -> None:
    found = target(Size(full, full), Size(17, 11), fit, False)
    y, x = height / full, width / full  # as after a reduced decode
    box = Box(found.box.top * y, found.box.left * x, found.box.height * y, found.box.width * x)
    pixels = np.zeros((height, width, 3), np.uint8)
    assert resize(pixels, found._replace(box=box), "bicubic", backend).shape[:2] == pixels_of(found)


@each_backend
@each_filter
@pytest.mark.parametrize("fit", ["shorter", "crop"])
def test_every_backend_resamples_like_pillow(fit: Fit, filter: Filter, backend: ResizeBackend) -> None:
    pixels = smooth_image(300, 401)
    pixels[::7] = 255  # edges that an aliasing filter would miss
    found = target(Size(300, 401), Size(64, 64), fit, False)
    assert difference(resize(pixels, found, filter, backend), by_pillow(pixels, found, filter)) <= 1


def in_two_passes(image: Image.Image, found: Target, filter: Filter) -> Image.Image:
    """Resize the box of an image horizontally by Pillow, then vertically."""
    (top, left, height, width), resampling = found.box, Image.Resampling[filter.upper()]
    if found.box[2:] == found.size:
        return image.crop((int(left), int(top), int(left) + found.size.width, int(top) + found.size.height))
    rows = image.resize((found.size.width, image.height), resampling, (left, 0, left + width, image.height))
    return rows.resize(found.size[::-1], resampling, (0, top, found.size.width, top + height))


@given(
    source=st.builds(Size, st.integers(1, 120), st.integers(1, 120))
    | st.builds(Size, st.integers(100, 900), st.just(2)),
    wanted=st.builds(Size, st.integers(1, 90), st.integers(1, 90)),
    fit=fits.filter(lambda fit: fit != "pad"),
    up=st.booleans(),
    filter=st.sampled_from([name for name in get_args(Filter) if name != "nearest"]),
    mode=st.sampled_from(["L", "RGB", "CMYK", "RGBA"]),
)
@settings(max_examples=examples(100), deadline=None)
def test_presize_returns_the_bytes_of_two_passes_of_pillow_compiled_or_not(
    source: Size, wanted: Size, fit: Fit, up: bool, filter: Filter, mode: str
) -> None:
    found = target(source, wanted, fit, up)
    pixels = np.random.default_rng(0).integers(-64, 320, (*source, 4)).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels) if mode == "RGBA" else Image.frombytes("CMYK", source[::-1], pixels.tobytes())
    image = image if mode in ("RGBA", "CMYK") else Image.fromarray(pixels[:, :, :3]).convert(mode)
    expected = in_two_passes(image.convert("RGBa") if mode == "RGBA" else image, found, filter).convert(mode)
    if found.box[2:] == found.size:
        expected = in_two_passes(image, found, filter)
    for compiled in (pillow_resize.compiled, replace(pillow_resize.compiled, module=None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pillow_resize, "compiled", compiled)
            resized = resize(np.asarray(image), found, filter, "presize", alpha=mode == "RGBA")
            np.testing.assert_array_equal(resized, np.asarray(expected))


NUMBERS = st.sampled_from([np.uint8, np.uint16, np.int32])
"""Pillow's modes L, I;16 and I; it resizes the second in another way."""


@given(
    source=st.builds(Size, st.integers(1, 300), st.integers(1, 300)),
    wanted=st.builds(Size, st.integers(1, 300), st.integers(1, 300)),
    fit=fits.filter(lambda fit: fit != "pad"),
    up=st.booleans(),
    dtype=NUMBERS,
)
@example(source=Size(30, 41), wanted=Size(30, 30), fit="crop", up=True, dtype=np.int32)  # the box starts at 5.5
@settings(max_examples=examples(200), deadline=None)
def test_nearest_takes_the_same_pixels_as_pillow(
    source: Size, wanted: Size, fit: Fit, up: bool, dtype: type[np.integer]
) -> None:
    found = target(source, wanted, fit, up)
    numbers = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, source, dtype, endpoint=True)
    assert np.array_equal(resize(numbers, found, "nearest", "presize"), by_pillow(numbers, found, "nearest"))


@given(side=st.integers(1, 5000), wanted=st.integers(1, 5000), dtype=st.sampled_from([np.uint16, np.int32]))
@settings(max_examples=examples(200), deadline=None)
def test_nearest_follows_pillow_on_long_sides(side: int, wanted: int, dtype: type[np.integer]) -> None:
    numbers = np.arange(side, dtype=dtype)[np.newaxis]
    found = target(Size(1, side), Size(1, wanted), "stretch", True)
    assert np.array_equal(resize(numbers, found, "nearest", "pillow"), by_pillow(numbers, found, "nearest"))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_nearest_keeps_values_and_type_of_every_channel(dtype: type[np.generic], channels: int) -> None:
    pixels = np.random.default_rng(3).integers(0, np.iinfo(dtype).max, (50, 70, channels), dtype, endpoint=True)
    small = resize(pixels, target(Size(50, 70), Size(20, 20), "pad", False), "nearest", "presize")
    assert small.dtype == dtype and small.shape == (20, 20, channels) and small.flags.c_contiguous
    for channel in range(channels):
        plain = np.asarray(Image.fromarray(pixels[:, :, channel]).resize((20, 14), Image.Resampling.NEAREST))
        assert np.array_equal(small[3:17, :, channel], plain)


@pytest.mark.parametrize("channels", [3, 4])
def test_padding_is_black_or_transparent_and_even(channels: int) -> None:
    pixels = np.full((10, 30, channels), 200, np.uint8)
    padded = resize(pixels, target(Size(10, 30), Size(30, 30), "pad", False), "bicubic", "presize", channels == 4)
    assert (padded[:10] == 0).all() and (padded[10:20] == 200).all() and (padded[20:] == 0).all()


def test_an_unchanged_size_copies_nothing_and_all_other_results_are_contiguous() -> None:
    pixels, source = smooth_image(40, 30), Size(40, 30)
    assert np.shares_memory(pixels, resize(pixels, target(source, Size(64, 64), "shorter", False), "box", "presize"))
    assert resize(pixels, target(source, Size(20, 10), "crop", False), "bicubic", "presize").flags.c_contiguous


@each_backend
@pytest.mark.parametrize("fit", ["shorter", "crop", "pad"])
def test_four_channels_are_resampled_exactly_like_three(backend: ResizeBackend, fit: Fit) -> None:
    pixels = smooth_image(301, 200)
    pixels[::5, ::3] = 255
    four = np.dstack((pixels, np.full((301, 200), 255, np.uint8)))
    before = four.copy()
    found = target(Size(301, 200), Size(64, 80), fit, upscale=True)
    resized = resize(four, found, "bicubic", backend)
    assert np.array_equal(resized[:, :, :3], resize(pixels, found, "bicubic", backend))
    assert resized.flags.c_contiguous and np.array_equal(four, before)


def transparent_image(height: int, width: int) -> np.ndarray:
    """Return RGBA, uint8, with colours that must not bleed out of its transparent areas."""
    y, x = np.mgrid[0:height, 0:width]
    alpha = (255 * np.clip(np.sin(x / 9) + np.cos(y / 7), 0, 1)).astype(np.uint8)
    colors = smooth_image(height, width)
    colors[alpha == 0] = 255
    return np.dstack((colors, alpha))


def covered(pixels: np.ndarray, white: int) -> np.ndarray:
    """Return colours weighted by alpha, and alpha, from 0 to 255."""
    scaled = pixels.astype(np.float64) / white
    return 255 * np.dstack((scaled[:, :, :3] * scaled[:, :, 3:], scaled[:, :, 3]))


@each_backend
@each_filter
@pytest.mark.parametrize("fit", ["shorter", "crop"])
def test_colours_are_weighted_by_their_alpha(filter: Filter, backend: ResizeBackend, fit: Fit) -> None:
    pixels = transparent_image(300, 401)
    found = target(Size(300, 401), Size(64, 64), fit, False)
    expected = by_pillow(pixels, found, filter)
    eight = resize(pixels, found, filter, backend, alpha=True)
    assert eight.dtype == np.uint8 and np.abs(covered(eight, 255) - covered(expected, 255)).max() <= 3.5
    sixteen = resize(pixels.astype(np.uint16) * 257, found, filter, backend, alpha=True)
    assert sixteen.dtype == np.uint16 and np.abs(covered(sixteen, 65535) - covered(expected, 255)).max() <= 3.5


@each_backend
@each_filter
@pytest.mark.parametrize("channels", [0, 3])
def test_16_bits_are_resampled_in_16_bits(filter: Filter, backend: ResizeBackend, channels: int) -> None:
    pixels = smooth_image(300, 401).astype(np.uint16) * 201 + np.arange(401, dtype=np.uint16)[:, np.newaxis]
    found = target(Size(300, 401), Size(64, 64), "crop", False)
    source = np.ascontiguousarray(pixels if channels else pixels[:, :, 0])
    got = np.atleast_3d(resize(source, found, filter, backend))
    assert got.dtype == np.uint16 and got.shape == (64, 64, channels or 1)
    for k in range(channels or 1):
        exact = by_pillow(pixels[:, :, k].astype(np.float32), found, filter)
        assert np.abs(got[:, :, k] - exact).max() < 0.6
