"""Boxes resized to the size of a batch: the bytes of Pillow, with and without the compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from presize.codecs import pillow_resize
from presize.datasets.reading import regions as resampling
from presize.datasets.reading.regions import by_pillow, resample

Pixels = npt.NDArray[Any]
sides = st.integers(1, 300)


@pytest.fixture(params=["compiled", "by Pillow", "another Pillow"], autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with the C code, without it, and with a Pillow of unknown order."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "by Pillow":
            patch.setattr(pillow_resize, "compiled", replace(pillow_resize.compiled, module=None))
        elif request.param == "another Pillow":
            for module in (pillow_resize, resampling):
                patch.setattr(module, "installed_order", lambda: "another")
        elif not pillow_resize.is_available():
            pytest.skip("_pillow_resize.c is not compiled, or off")
        yield


def noise(shape: tuple[int, ...], seed: int = 0, dtype: type = np.uint8) -> Pixels:
    most = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(-most // 4, most * 5 // 4, shape).clip(0, most).astype(dtype)


@settings(max_examples=examples(300))
@given(sides, sides, sides, sides, st.booleans(), st.integers(0, 9))
def test_rgb_has_the_bytes_of_pillows_resize_of_the_box(
    height: int, width: int, to_height: int, to_width: int, flip: bool, beside: int
) -> None:
    pixels = noise((height, width + 2 * beside, 3), width)
    box = (beside, 0, beside + width, height)
    out = np.empty((to_height, to_width, 3), np.uint8)
    resample(pixels[:, beside : beside + width], out, flip)
    expected = Image.fromarray(pixels).crop(box).resize((to_width, to_height), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(out[:, ::-1] if flip else out, np.asarray(expected))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(50, 60), (12, 13), (20, 50), (20, 40)])
def test_16_bits_are_resized_like_8_bits_but_finer(size: tuple[int, int], channels: int) -> None:
    coarse = noise((20, 40, channels))
    out, flipped = np.empty((2, *size, channels), np.uint16)
    resample(coarse.astype(np.uint16) * 257, out, flip=False)
    resample(coarse.astype(np.uint16) * 257, flipped, flip=True)
    np.testing.assert_array_equal(out, flipped[:, ::-1])
    expected = np.empty((*size, channels), np.uint8)
    by_pillow(coarse, expected)
    assert np.abs(out / 257 - expected).max() < 1.01


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("width", [1, 10, 11, 32, 50])
def test_no_byte_outside_a_row_of_the_batch_is_written(width: int, dtype: type) -> None:
    for before in ((7, 5, 3), (90, 70, 3), (40, width, 3)):
        batch = np.full((3, 40, width, 3), 7, dtype)
        resample(noise(before, dtype=dtype), batch[1], flip=True)
        assert (batch[::2] == 7).all() and (batch[1] != 7).any()


@pytest.mark.parametrize(
    "view",
    [lambda x: x[:, ::-1], lambda x: x[::-1], lambda x: x[:, :, ::-1], lambda x: x[:, ::2], np.asfortranarray],
    ids=["mirrored", "upside down", "BGR", "every second column", "in another order"],
)
@pytest.mark.parametrize("size", [(50, 60), (12, 13)])
def test_pixels_in_any_memory_layout_are_resized(view: Callable[[Pixels], Pixels], size: tuple[int, int]) -> None:
    pixels = view(noise((20, 40, 3)))
    out, expected = np.empty((2, *size, 3), np.uint8)
    resample(pixels, out, flip=True)
    by_pillow(pixels, expected)
    np.testing.assert_array_equal(out[:, ::-1], expected)
