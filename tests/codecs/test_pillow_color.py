"""presize's operations on colours return the bytes of the installed Pillow."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from presize.codecs import pillow_color
from presize.codecs.pillow_color import OPERATIONS, Name, planes, run

MODULE: Any = pillow_color.compiled.trusted()
compiled = pytest.mark.skipif(MODULE is None, reason="_pillow_color.c is not compiled, or off")

factors = st.tuples(st.floats(0, 2) | st.floats(-3, 5) | st.sampled_from([0.0, 0.5, 1.0, 1.5]))
deviations = st.floats(0, 3) | st.floats(0, 90) | st.integers(0, 9)
numbers = st.floats(-2, 2) | st.sampled_from([0.0, 1.0, -1.0])
shifts = st.floats(-60, 60) | st.integers(-9, 9)
ARGUMENTS: dict[Name, st.SearchStrategy[tuple[Any, ...]]] = {
    "gray": st.just(()),
    "saturate": factors,
    "blend": st.builds(lambda value, factor: (value, *factor), st.integers(0, 255), factors),
    "sharpen": factors,
    "hue": st.tuples(st.integers(-255, 255)),
    "blur": st.tuples(st.tuples(deviations, deviations)),
    "affine": st.tuples(
        st.tuples(st.integers(1, 60), st.integers(1, 60)),
        st.tuples(numbers, numbers, shifts, numbers, numbers, shifts),
        st.none() | st.integers(0, 255),
    ),
}


@st.composite
def images(draw: st.DrawFn) -> npt.NDArray[np.uint8]:
    """Draw RGB or L: noise, a fifth of it black and a fifth white, or few colours; rows may be padded or mirrored."""
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    shape = (height + 2, width + 3, *draw(st.sampled_from([(), (3,), (3,)])))
    pixels = np.random.default_rng(draw(st.integers(0, 99))).integers(-64, 320, shape).clip(0, 255).astype(np.uint8)
    pixels &= draw(st.sampled_from([255, 255, 0xC0]))
    return draw(st.sampled_from([pixels[1:-1, 2:-1], pixels[1:-1, -2:0:-1][:, :width]]))


@pytest.fixture
def plain_c() -> Any:
    MODULE.limit(0)
    yield
    MODULE.limit(2)


@compiled
@pytest.mark.parametrize("name", get_args(Name))
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_an_operation_returns_the_bytes_of_pillow(name: Name, data: st.DataObject) -> None:
    pixels, arguments = data.draw(images()), data.draw(ARGUMENTS[name])
    made = run(name, pixels, *arguments)
    expected = np.asarray(OPERATIONS[name].pillows(Image.fromarray(pixels), *arguments))
    if made is None:
        assert pixels.ndim == 2 or min(pixels.shape[:2]) < 3 or name == "affine"
    else:
        np.testing.assert_array_equal(made, expected)


@compiled
@pytest.mark.parametrize("name", get_args(Name))
@pytest.mark.usefixtures("plain_c")
def test_without_avx2_the_bytes_are_the_same(name: Name) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (67, 45, 3), np.uint8)
    for arguments in OPERATIONS[name].tried:
        expected = np.asarray(OPERATIONS[name].pillows(Image.fromarray(pixels), *arguments))
        np.testing.assert_array_equal(OPERATIONS[name].ours(MODULE, pixels, *arguments), expected)


@compiled
@pytest.mark.slow
def test_every_colour_of_a_hue_equals_pillows() -> None:
    every = np.arange(1 << 24, dtype=np.uint32).reshape(4096, 4096)
    pixels = np.stack([every >> 16, every >> 8 & 255, every & 255], axis=-1).astype(np.uint8)
    for shift in (0, 1, 37, 128, 230):
        expected = np.asarray(pillow_color.pillows_hue(Image.fromarray(pixels), shift))
        assert np.array_equal(run("hue", pixels, shift), expected), shift


@compiled
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("saturate", (float("nan"),)),
        ("saturate", (float("inf"),)),
        ("blend", (9, float("nan"))),
        ("sharpen", (1e300,)),
        ("blur", ((-1.0, 1.0),)),
        ("blur", ((float("nan"), 1.0),)),
        ("affine", ((0, 5), (1, 0, 0, 0, 1, 0), 0)),
        ("affine", ((5, 5), (1, 0, float("nan"), 0, 1, 0), 0)),
        ("affine", ((5, 5), (1, 0, 10**400, 0, 1, 0), 0)),
        ("affine", ((4000, 5), (7, 0, 0, 0, 1, 0), 0)),
    ],
)
def test_numbers_that_only_pillow_accepts_or_refuses_return_none(name: Name, arguments: tuple[Any, ...]) -> None:
    assert run(name, np.zeros((9, 9, 3), np.uint8), *arguments) is None


@compiled
@pytest.mark.parametrize(
    "call",
    [
        lambda array: MODULE.gray(array(11), array(4)),
        lambda array: MODULE.saturate(array(12), array(9), 0.5),
        lambda array: MODULE.saturate(array(10), array(10), 0.5),
        lambda array: MODULE.blend(array(12), array(9), 0, 0.5),
        lambda array: MODULE.blend(array(9), array(9), 256, 0.5),
        lambda array: MODULE.sharpen(array(27), array(27), 3, 3, 1, 0.5),
        lambda array: MODULE.sharpen(array(6), array(6), 2, 3, 1, 0.5),
        lambda array: MODULE.blur_columns(array(27), array(27), 4, 1.0),
        lambda array: MODULE.blur_columns(array(27), array(27), 3, -1.0),
        lambda array: MODULE.hue(array(27), array(27), 4, array(3), array(3), array(3)),
        lambda array: MODULE.affine(array(27), array(27), 3, 3, 3, 3, 4, (1, 0, 0, 0, 1, 0)),
        lambda array: MODULE.affine(array(27), array(27), 3, 3, 3, 3, 3, (1, 0, 1e9, 0, 1, 0)),
        lambda array: MODULE.planes(array(27), array(27), array(3 * 1024), 3),
    ],
)
def test_the_c_code_refuses_arrays_of_other_sizes(call: Any) -> None:
    with pytest.raises(ValueError, match="the arrays are not of one size"):
        call(lambda size: np.zeros(size, np.uint8))


@compiled
@pytest.mark.parametrize("shape", [(13, 7, 3), (13, 7)])
def test_planes_hold_the_values_of_the_tables(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)[:, ::-1]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    tables = np.random.default_rng(1).normal(size=(channels, 256)).astype(np.float32)
    out = np.empty((channels, 13, 7), np.float32)
    assert planes(pixels, tables, out)
    for channel in range(channels):
        np.testing.assert_array_equal(out[channel], tables[channel][pixels.reshape(13, 7, -1)[:, :, channel]])
