"""presize.codecs.icc: the fast conversion from a profile to sRGB, compared with Little CMS."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pictures import difference
from presize.codecs.decode import finish
from presize.codecs.icc import matrix_shaper, to_srgb
from profiles import GRAY_LINEAR, LINEAR, SRGB, SWAPPED, black_only_profile, curve, display_profile, profile

RAMPS = np.arange(256, dtype=np.uint8)[np.newaxis, :, np.newaxis] * np.eye(3, dtype=np.uint8)[:, np.newaxis]
"""Every value of every channel, with 0 in the others."""
PIXELS = np.concatenate((np.random.default_rng(0).integers(0, 256, (97, 256, 3), dtype=np.uint8), RAMPS))
CURVES = (b"rTRC", b"gTRC", b"bTRC")
COLORANTS = [(0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446)]  # Adobe RGB (1998)


def adobe(*curves: bytes, **tags: bytes) -> bytes:
    """Return a profile with the primaries of Adobe RGB and one curve for all channels, or three."""
    colorants = [b"XYZ " + bytes(4) + struct.pack(">3i", *(round(v * 65536) for v in color)) for color in COLORANTS]
    three = curves if len(curves) == 3 else curves * 3
    every = {**dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), colorants, strict=True)), **dict(zip(CURVES, three, strict=True))}
    return profile(b"RGB ", every | {name.encode(): tag for name, tag in tags.items()})


def parametric(kind: int, *parameters: float) -> bytes:
    values = [round(value * 65536) for value in parameters]
    return b"para" + bytes(4) + struct.pack(f">HH{len(values)}i", kind, 0, *values)


def sampled(gamma: float, count: int) -> bytes:
    points = (np.linspace(0, 1, count) ** gamma * 65535).round().astype(">u2")
    return b"curv" + bytes(4) + struct.pack(">I", count) + points.tobytes()


def lut() -> bytes:
    """Return an A2B0 table that maps all colours to one grey."""
    matrix = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    straight = bytes(range(256))
    return b"mft1" + bytes(4) + bytes((3, 3, 2, 0)) + matrix + straight * 3 + bytes((128, 128, 128)) * 8 + straight * 3


def by_lcms(pixels: npt.NDArray[np.uint8], icc: bytes) -> npt.NDArray[np.uint8]:
    image = Image.fromarray(pixels)
    transform = to_srgb(icc, "RGB")
    return np.asarray(image if transform is None else transform.apply(image))


FAST = {
    "linear": LINEAR,
    "gamma 2.2": display_profile(2.2, (1, 2, 0)),
    "gamma 1.8": display_profile(1.8),
    "swapped": SWAPPED,
    "a name that is no ASCII": display_profile(1.8).replace(b"made for a test", b"\xc9cran de test.."),
    "adobe": adobe(curve(2.2)),
    "no points": adobe(b"curv" + bytes(8)),
    "two points": adobe(sampled(1.0, 2)),
    "sampled": adobe(sampled(2.4, 1024)),
    "coarse": adobe(sampled(1.8, 17)),
    "parametric 0": adobe(parametric(0, 2.4)),
    "parametric 1": adobe(parametric(1, 2.2, 1.1, -0.1)),
    "parametric 2": adobe(parametric(2, 2.2, 1.1, -0.1, 0.0)),
    "parametric 3": adobe(parametric(3, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)),
    "parametric 4": adobe(parametric(4, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045, 0.0, 0.0)),
    "each its own": adobe(curve(1.8), sampled(2.2, 300), parametric(0, 2.4)),
}


@pytest.mark.parametrize("name", FAST)
def test_the_fast_conversion_differs_by_at_most_one_level_from_lcms(name: str) -> None:
    icc = FAST[name]
    assert matrix_shaper(icc) is not None
    converted = finish(PIXELS, icc, "rgb")
    assert converted.flags.c_contiguous and converted.flags.writeable
    assert difference(converted, by_lcms(PIXELS, icc)) == 1
    assert difference(PIXELS, converted) > 10


BROKEN_CURVES = {
    "a type of its own": b"abcd" + bytes(8),
    "cut off": b"curv" + bytes(4) + struct.pack(">I", 1),
    "more points than bytes": b"curv" + bytes(4) + struct.pack(">I", 1 << 31) + bytes(40),
    "a parametric curve of no type": parametric(9, 2.2),
    "nothing by nothing": parametric(1, 2.2, 0.0, 1.0),
    "infinite": parametric(0, -2.0),
    "overflowing": parametric(1, 32000.0, 32000.0, 1.0),
    "beyond 1": parametric(1, 2.2, 1.2, 0.0),
    "empty": b"",
}


@pytest.mark.parametrize("tag", BROKEN_CURVES.values(), ids=list(BROKEN_CURVES))
def test_broken_curves_are_left_to_lcms(tag: bytes) -> None:
    icc = adobe(curve(2.2), tag, curve(2.2))
    assert matrix_shaper(icc) is None
    assert np.array_equal(finish(PIXELS, icc, "rgb"), by_lcms(PIXELS, icc))


@pytest.mark.parametrize(
    ("icc", "changes"),
    [
        (adobe(curve(2.2), A2B0=lut()), True),
        (adobe(curve(2.2), A2B1=lut()), True),
        (adobe(parametric(4, 2.2, 0.9, 0.0, 0.0, 0.0, 0.1, 0.0)), True),  # a black that needs compensation
        (SRGB, False),
        (GRAY_LINEAR, False),
        (black_only_profile(), False),
        (b"", False),
        (SWAPPED[:200], False),
    ],
)
def test_other_profiles_are_left_to_lcms(icc: bytes, changes: bool) -> None:
    assert matrix_shaper(icc) is None
    assert np.array_equal(finish(PIXELS, icc, "rgb"), by_lcms(PIXELS, icc))
    assert np.array_equal(finish(PIXELS, icc, "rgb"), PIXELS) is not changes


def test_the_first_of_two_tags_with_a_name_counts_as_in_lcms() -> None:
    icc = bytearray(adobe(curve(1.0), zTRC=curve(3.0)))
    at = icc.index(b"zTRC")
    icc[at : at + 4] = b"gTRC"
    assert difference(finish(PIXELS, bytes(icc), "rgb"), by_lcms(PIXELS, bytes(icc))) <= 1


@pytest.mark.parametrize("shape", [(1, 1), (1, 70_000), (70_000, 1), (3, 20_001), (700, 500)])
def test_pixels_may_have_any_shape(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    pixels.setflags(write=False)
    assert difference(finish(pixels, SWAPPED, "rgb"), by_lcms(pixels, SWAPPED)) <= 1


@given(
    st.sampled_from([LINEAR, FAST["each its own"], FAST["parametric 4"], FAST["sampled"], SRGB]),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=12),
    st.integers(0, 5000),
)
def test_no_profile_raises(icc: bytes, edits: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(icc)
    for position, value in edits:
        damaged[position % len(damaged)] = value
    mutated = bytes(damaged[:length])
    pixels = PIXELS[:4]
    converted = finish(pixels, mutated, "rgb")
    if matrix_shaper(mutated) is None:
        assert np.array_equal(converted, by_lcms(pixels, mutated))
