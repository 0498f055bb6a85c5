"""--depth 16, --color rgba and --icc ignore: what becomes of one image."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from pictures import opened, oriented, saved, smooth_image, with_chunk
from presize.codecs import sixteen
from presize.codecs.decode import decode
from presize.codecs.pillow_decoder import Wanted
from presize.codecs.source_facts import unpack_facts
from presize.codecs.stored_value import decode_value
from presize.codecs.transcode import transcode
from presize.errors import ImageError
from presize.options import KEEP, Color, ImageOptions, Size
from profiles import GRAY_LINEAR, SWAPPED

PHOTO = smooth_image(30, 40)
DEEP = PHOTO.astype(np.uint16) * 251 + 7
ALPHA = np.repeat(np.linspace(0, 65535, 40).round().astype(np.uint16)[np.newaxis], 30, axis=0)
OPTIONS = ImageOptions(sizes=(KEEP,), depth=16, format="raw")


def deep_file(pixels: np.ndarray, suffix: str = ".png") -> bytes:
    """`pixels`, RGB, RGBA or grey, as a lossless file."""
    order = [2, 1, 0, 3][: pixels.shape[2]] if pixels.ndim == 3 else None
    encoded, data = cv2.imencode(suffix, pixels if order is None else pixels[:, :, order])
    assert encoded
    return data.tobytes()


def stored(data: bytes, options: ImageOptions = OPTIONS) -> np.ndarray:
    ((value, height, width),) = transcode(data, options).records
    return decode_value(memoryview(value), options.format, options.color, (height, width), depth=options.depth)


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
@pytest.mark.parametrize("format", ["raw", "png"])
def test_16_bits_are_stored_to_the_bit(suffix: str, format: Any) -> None:
    options = replace(OPTIONS, format=format)
    assert np.array_equal(stored(deep_file(DEEP, suffix), options), DEEP)
    gray = replace(options, color="gray")
    assert np.array_equal(stored(deep_file(DEEP[:, :, 0], suffix), gray), DEEP[:, :, 0])


def test_grey_of_12_bits_is_scaled_to_16() -> None:
    values = (DEEP[:, :, 0] >> 4).astype(np.uint16)
    decoded = sixteen.gray_values(Image.fromarray(values), 4095, False)[:, :, 0]
    assert np.abs(decoded - values * (65535 / 4095)).max() <= 0.5
    assert np.array_equal(sixteen.gray_values(Image.fromarray(values), 4095, True)[:, :, 0], 65535 - decoded)


@pytest.mark.parametrize("format", ["jpeg", "png", "bmp", "webp"])
def test_8_bits_are_scaled_to_16(format: str) -> None:
    data = saved(PHOTO, format)
    assert np.array_equal(stored(data), decode(data).pixels.astype(np.uint16) * 257)


def test_a_reduced_jpeg_is_resized_in_16_bits() -> None:
    data = saved(smooth_image(640, 640), "jpeg", quality=95)
    options = replace(OPTIONS, sizes=(Size(40, 40),))
    fine = stored(data, options)
    coarse = stored(data, replace(options, depth=8))
    assert np.abs(fine / 257 - coarse).max() <= 1
    assert (fine % 257 != 0).any(), "not merely widened"


COLORS: list[tuple[Color, tuple[int, ...]]] = [
    ("rgb", (30, 40, 3)),
    ("gray", (30, 40)),
    ("keep", (30, 40, 3)),
    ("rgba", (30, 40, 4)),
]


@pytest.mark.parametrize(("color", "shape"), COLORS)
@pytest.mark.parametrize("transparent", [False, True])
def test_colours_of_16_bits_are_those_of_8(color: Color, shape: tuple[int, ...], transparent: bool) -> None:
    pixels = np.dstack((DEEP, ALPHA)) if transparent else DEEP
    fine = decode(deep_file(pixels), Wanted(color, 16)).pixels
    coarse = decode(deep_file(pixels), color).pixels
    assert fine.shape == coarse.shape == shape
    assert np.abs(fine / 257 - coarse).max() <= 1.5
    if color == "rgba" and transparent:
        assert np.array_equal(fine, pixels)


@pytest.mark.parametrize(("color", "gray"), [("keep", True), ("gray", True), ("rgb", False), ("rgba", False)])
def test_grey_stays_grey_where_it_may(color: Color, gray: bool) -> None:
    pixels = decode(deep_file(DEEP[:, :, 0]), Wanted(color, 16)).pixels
    assert (pixels.ndim == 2) == gray
    assert np.array_equal(pixels if gray else pixels[:, :, 1], DEEP[:, :, 0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_16_bits_are_stored_upright(orientation: int) -> None:
    exif = oriented(orientation)
    upright = decode(saved(PHOTO, "png", exif=exif)).pixels
    data = with_chunk(deep_file(PHOTO.astype(np.uint16) * 257), b"eXIf", exif.removeprefix(b"Exif\0\0"))
    assert np.array_equal(stored(data), upright.astype(np.uint16) * 257)


def test_a_profile_of_16_bits_is_refused_unless_it_is_to_be_ignored() -> None:
    data = with_chunk(deep_file(DEEP), b"iCCP", b"icc\0\0" + zlib.compress(SWAPPED))
    with pytest.raises(ImageError, match=r"its colour profile cannot be converted with 16 bits; --icc ignore"):
        stored(data)
    assert np.array_equal(stored(data, replace(OPTIONS, icc="ignore")), DEEP)


def test_a_profile_of_8_bits_is_converted_whatever_the_depth() -> None:
    data = saved(PHOTO, "png", icc_profile=SWAPPED)
    assert np.array_equal(stored(data), decode(data).pixels.astype(np.uint16) * 257)


@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("size", [KEEP, Size(20, 20)])
def test_an_ignored_profile_changes_no_pixel(format: Any, size: Size) -> None:
    options = ImageOptions(sizes=(size,), format=format, icc="ignore")
    plain, profiled = saved(PHOTO, format), saved(PHOTO, format, icc_profile=SWAPPED)
    assert transcode(profiled, options).records == transcode(plain, options).records
    assert transcode(profiled, replace(options, icc="convert")).records != transcode(plain, options).records


def test_an_ignored_profile_is_still_counted() -> None:
    data = saved(PHOTO[:, :, 0], "jpeg", icc_profile=GRAY_LINEAR)
    facts = transcode(data, ImageOptions(sizes=(Size(20, 20),), icc="ignore", color="gray")).facts
    assert unpack_facts(np.array([facts]), "profile")[0] == 1


def test_metadata_may_be_kept_with_16_bits() -> None:
    data = saved(PHOTO, "jpeg", exif=oriented(1, "maker"), xmp=b"<x:xmpmeta/>")
    options = replace(OPTIONS, format="png", keep_metadata=True)
    image = opened(transcode(data, options).records[0].value)
    image.load()
    assert image.getexif()[0x010F] == "maker"
    assert image.info["xmp"] == b"<x:xmpmeta/>"


@pytest.mark.parametrize("depth", [8, 16])
def test_a_jpeg_is_opaque(depth: Any) -> None:
    data = saved(PHOTO, "jpeg")
    pixels = stored(data, replace(OPTIONS, color="rgba", depth=depth))
    assert (pixels[:, :, 3] == (255 if depth == 8 else 65535)).all()
    assert np.array_equal(pixels[:, :, :3], stored(data, replace(OPTIONS, depth=depth)))


def test_a_palette_with_transparency_keeps_it() -> None:
    image = Image.fromarray(PHOTO).quantize(8)
    pixels = stored(saved(image, "png", transparency=3), replace(OPTIONS, color="rgba", depth=8))
    assert np.array_equal(pixels[:, :, 3] == 0, np.asarray(image) == 3)
