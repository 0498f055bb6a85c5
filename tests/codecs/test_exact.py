"""Masks: the values of their pixels come through decoding, resizing and storing as they are."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paired import CLASS_NUMBERS, mask_of
from pictures import gray_png, opened, oriented, saved
from presize.codecs import resize
from presize.codecs.exact import decode_exact
from presize.codecs.source_facts import FIELDS
from presize.codecs.stored_value import decode_value
from presize.codecs.transcode import transcode_companion
from presize.errors import ImageError, NotAnImageError
from presize.options import Companion, Fit, Format, ImageOptions, Size
from tiffs import page, tiff

MAX_PIXELS = 10_000


def palette(mask: np.ndarray, **options: Any) -> bytes:
    image = Image.fromarray(mask, "P")
    image.putpalette([(37 * i) % 256 for i in range(768)])
    return saved(image, "png", **options)


def values(data: bytes) -> np.ndarray:
    return decode_exact(data, MAX_PIXELS).values


# What is read


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_indices_of_a_palette_are_kept_and_not_its_colours(bits: int) -> None:
    mask = mask_of(20, 31, numbers=tuple(range(min(1 << bits, 200))))
    assert np.array_equal(values(palette(mask, bits=bits)), mask)


def test_a_transparent_index_is_an_index_like_others() -> None:
    mask = mask_of(20, 31)
    assert np.array_equal(values(palette(mask, transparency=7)), mask)


@pytest.mark.parametrize(
    ("numbers", "kinds"),
    [
        ((0, 1), ("png", "tiff", "bmp", "ppm")),
        (CLASS_NUMBERS, ("png", "tiff", "bmp", "ppm")),
        ((0, 255, 256, 65_535), ("png", "tiff", "ppm")),
    ],
    ids=["1 bit", "8 bits", "16 bits"],
)
def test_grey_is_kept_in_every_format(numbers: tuple[int, ...], kinds: tuple[str, ...]) -> None:
    mask = mask_of(20, 31, numbers=numbers)
    for kind in kinds:
        found, facts = decode_exact(saved(mask.astype(bool) if max(numbers) == 1 else mask, kind), MAX_PIXELS)
        assert found.dtype == mask.dtype and np.array_equal(found, mask), kind
        assert facts.deep == (mask.dtype == np.uint16)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_grey_png_of_few_bits_has_the_numbers_that_are_in_it(bits: int) -> None:
    """Pillow reads such images in shades, 0 to 255."""
    mask = mask_of(9, 16, numbers=tuple(range(1 << bits)))
    assert np.array_equal(values(gray_png(mask, bits)), mask)


def test_32_bits_are_kept_if_16_hold_them() -> None:
    mask = mask_of(20, 31, numbers=(0, 300, 65_535))
    assert np.array_equal(values(saved(mask.astype(np.int32), "tiff")), mask)
    with pytest.raises(ImageError, match="values from 0 to 65536; nearest keeps those from 0 to 65535"):
        values(saved(mask.astype(np.int32) // 65_535 * 65_536, "tiff"))


def test_numbers_in_three_channels_are_kept() -> None:
    """As panoptic masks have them."""
    mask = np.stack([mask_of(20, 31, seed) for seed in range(3)], axis=2)
    assert np.array_equal(values(saved(mask, "png")), mask)
    opaque = np.concatenate([mask, np.full((20, 31, 1), 255, np.uint8)], axis=2)
    assert np.array_equal(values(saved(opaque, "png")), mask)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "CMYK", "F"])
def test_pixels_that_are_no_numbers_are_refused_by_their_mode(mode: str) -> None:
    with pytest.raises(ImageError, match=rf"^pixels of mode {mode}; nearest keeps grey, palettes and RGB"):
        values(saved(Image.new(mode, (8, 8)), "tiff"))


def test_a_mask_is_turned_upright() -> None:
    mask = mask_of(20, 31)
    turned = Image.fromarray(mask).transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(values(saved(turned, "png", exif=oriented(8))), mask)


def test_what_is_no_image_is_told_from_a_broken_one() -> None:
    with pytest.raises(NotAnImageError, match="an HTML page"):
        values(b"<html>")
    with pytest.raises(ImageError, match="broken PNG"):
        values(palette(mask_of(20, 31))[:60])
    with pytest.raises(ImageError, match="more than max_pixels allows"):
        decode_exact(palette(mask_of(20, 31)), 600)


# What is stored


def stored(data: bytes, source: Size, options: ImageOptions, format: Format = "png") -> list[np.ndarray]:
    its_own = Companion("mask", "x", format=format).image_options(options)
    made = transcode_companion(data, source, its_own)
    return [decode_value(memoryview(value), format, "exact", (height, width)) for value, height, width in made.records]


@given(
    source=st.builds(Size, st.integers(1, 60), st.integers(1, 60)),
    wanted=st.builds(Size, st.integers(1, 40), st.integers(1, 40)),
    fit=st.sampled_from(["shorter", "longer", "stretch", "crop", "pad"]),
    upscale=st.booleans(),
    numbers=st.sampled_from([CLASS_NUMBERS, (0, 300, 65_535)]),
    format=st.sampled_from(["png", "raw"]),
)
def test_a_stored_mask_is_its_source_by_nearest(
    source: Size, wanted: Size, fit: Fit, upscale: bool, numbers: tuple[int, ...], format: Format
) -> None:
    mask = mask_of(*source, numbers=numbers)
    data = palette(mask) if mask.dtype == np.uint8 else saved(mask, "png")
    (found,) = stored(data, source, ImageOptions(sizes=(wanted,), fit=fit, upscale=upscale), format)
    expected = resize.resize(mask, resize.target(source, wanted, fit, upscale), "nearest", "cykooz")
    assert found.dtype == mask.dtype
    assert np.array_equal(found, expected)
    assert set(np.unique(found)) <= {0, *np.unique(mask)}


def test_its_facts_say_what_it_was() -> None:
    options = Companion("mask", "x").image_options(ImageOptions(sizes=(Size(8, 8),)))
    made = transcode_companion(palette(mask_of(20, 31)), Size(20, 31), options)
    shift, bits = FIELDS["colors"]
    assert made.facts >> shift & bits == 3
    assert made.source == (20, 31)


@pytest.mark.parametrize("size", [(19, 40), (40, 19), (100, 75)])
@pytest.mark.parametrize(
    ("format", "dtype"),
    [("png", np.uint8), ("png", np.uint16), ("tiff", np.uint16), ("ppm", np.uint16), ("tiff", np.int32)],
)
def test_a_mask_is_resized_as_pillow_resizes_the_file(
    format: str, dtype: type[np.integer], size: tuple[int, int]
) -> None:
    top = 255 if dtype == np.uint8 else 65_535
    mask = np.random.default_rng(1).integers(0, top, (40, 40), endpoint=True).astype(dtype)
    mask[0, 0] = top  # which a PGM of 16 bits has to have
    data = saved(mask, format)
    options = Companion("mask", "m").image_options(ImageOptions(sizes=(Size(*size),), fit="stretch", upscale=True))
    (record,) = transcode_companion(data, Size(40, 40), options).records
    expected = np.asarray(opened(data).resize(size[::-1], Image.Resampling.NEAREST))
    assert np.array_equal(decode_value(memoryview(record.value), "png", "exact", size), expected)


@pytest.mark.parametrize("filter", ["nearest", "bicubic"])
def test_another_size_than_that_of_its_image_is_refused(filter: str) -> None:
    options = Companion("mask", "x", filter=filter).image_options(ImageOptions(sizes=(Size(8, 8),)))
    with pytest.raises(ImageError, match="31 x 20 pixels, and its image has 20 x 31, upright"):
        transcode_companion(palette(mask_of(20, 31)), Size(31, 20), options)


@pytest.mark.parametrize("format", ["png", "raw"])
def test_a_stored_mask_of_another_size_is_damaged(format: Format) -> None:
    its_own = Companion("mask", "x", format=format).image_options(ImageOptions(sizes=(Size(64, 64),)))
    value = transcode_companion(palette(mask_of(20, 31)), Size(20, 31), its_own).records[0].value
    with pytest.raises(ValueError):
        decode_value(memoryview(value), format, "exact", (20, 32))


# What Pillow has scaled or inverted


# Rows of 0, 1, 7, 15 and of 0, 1, 7, 4095, and a pixel (0, 1, 7): Pillow writes JPEG 2000 of 8 and 16 bits alone.
J2K_4_BITS = base64.b64decode(
    "/0//UQApAAAAAAAEAAAAAQAAAAAAAAAAAAAABAAAAAEAAAAAAAAAAAABAwEB/1IADAAAAAEAAAQE"
    "AAH/XAAEQCD/kAAKAAAAAAAUAAH/k98gMAZqIf/Z"
)
J2K_12_BITS = base64.b64decode(
    "/0//UQApAAAAAAAEAAAAAQAAAAAAAAAAAAAABAAAAAEAAAAAAAAAAAABCwEB/1IADAAAAAEAAAQE"
    "AAH/XAAEQGD/kAAKAAAAAAAZAAH/k9/gIAZX62pwOwp//9k="
)
J2K_RGB_12_BITS = base64.b64decode(
    "/0//UQAvAAAAAAABAAAAAQAAAAAAAAAAAAAAAQAAAAEAAAAAAAAAAAADCwEBCwEBCwEB/1IADAAA"
    "AAEBAAQEAAH/XAAEQGD/kAAKAAAAAAAcAAH/k8/kCAoNwA+EEAHAAhAH/9k="
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"P5 4 1 20\n" + bytes([0, 1, 7, 20]), [0, 1, 7, 20]),
        (b"P5\n# 21 classes\n4 1\n255\n" + bytes([0, 1, 7, 255]), [0, 1, 7, 255]),
        (b"P5 4 1 1000\n" + struct.pack(">4H", 0, 1, 7, 1000), [0, 1, 7, 1000]),
        (b"P2 4 1 20\n0 1 7 20\n", [0, 1, 7, 20]),
        (b"P6 1 1 20\n" + bytes([1, 7, 20]), [[1, 7, 20]]),
        (J2K_4_BITS, [0, 1, 7, 15]),
        (J2K_12_BITS, [0, 1, 7, 4095]),
    ],
)
def test_the_numbers_are_those_of_the_file_whatever_is_its_largest(data: bytes, expected: list[Any]) -> None:
    assert values(data)[0].tolist() == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"P6 1 1 1000\n" + struct.pack(">3H", 1, 7, 1000), "16 bits in three channels"),
        (J2K_RGB_12_BITS, "12 bits in a channel"),
        (struct.pack(">hBBHHHH", 474, 0, 2, 2, 1, 1, 1).ljust(512, b"\0") + b"\x01\x02", "16 bits in an SGI"),
    ],
    ids=["PPM", "JPEG 2000", "SGI"],
)
def test_numbers_that_pillow_cuts_to_8_bits_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        values(data)


@pytest.mark.parametrize("photometric", [0, 1], ids=["0 is white", "0 is black"])
@pytest.mark.parametrize(
    ("bits", "row", "expected"),
    [
        (None, bytes([0b01100000]), [0, 1, 1, 0]),
        (1, bytes([0b01100000]), [0, 1, 1, 0]),
        (2, bytes([0b00011011]), [0, 1, 2, 3]),
        (4, bytes([0x01, 0x7F]), [0, 1, 7, 15]),
        (8, bytes([0, 1, 7, 20]), [0, 1, 7, 20]),
        (16, struct.pack("<4H", 0, 1, 7, 2000), [0, 1, 7, 2000]),
    ],
)
def test_the_numbers_of_a_tiff_are_those_of_the_file_whichever_is_white(
    bits: int | None, row: bytes, expected: list[int], photometric: int
) -> None:
    pixels = np.frombuffer(row, np.uint8 if bits != 16 else "<u2").reshape(1, -1, 1)
    one = page(pixels, photometric, t256=(4,), t258=() if bits is None else (bits,))
    assert values(tiff(one))[0].tolist() == expected
