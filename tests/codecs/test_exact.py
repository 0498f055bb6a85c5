"""Masks: pixel values survive decoding, resizing and storing unchanged."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paired import CLASS_NUMBERS, mask_of
from pictures import gray_png, opened, oriented, png_chunk, saved
from presize.codecs import resize
from presize.codecs.exact import decode_exact
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


def tiff_row(bits: int | None, photometric: int, row: bytes) -> bytes:
    """Return a TIFF with a row of four grey values; None omits the tag of the bits, whose default is 1."""
    pixels = np.frombuffer(row, np.uint8 if bits != 16 else "<u2").reshape(1, -1, 1)
    return tiff(page(pixels, photometric, t256=(4,), t258=() if bits is None else (bits,)))


def indexed_bmp(mask: np.ndarray, bits: int, colors: bytes, has_offset: bool = True, used: int | None = None) -> bytes:
    """Return a BMP of indices into `colors`, four bytes each; without an offset, pixels follow the palette."""
    width = mask.shape[1]
    rows = np.zeros((mask.shape[0], -(-width * bits // 32) * 4), np.uint8)
    if bits == 8:
        rows[:, :width] = mask[::-1]
    else:
        rows[:, : -(-width // 2)] = mask[::-1, ::2] << 4
        rows[:, : width // 2] |= mask[::-1, 1::2]
    count = len(colors) // 4 if used is None else used
    header = struct.pack("<IiiHHIIiiII", 40, width, len(mask), 1, bits, 0, rows.size, 0, 0, count, 0)
    offset = 54 + len(colors) * has_offset
    return b"BM" + struct.pack("<IHHI", 54 + rows.size, 0, 0, offset) + header + colors + rows.tobytes()


# Rows of 0, 1, 7, 15 and of 0, 1, 7, 4095, and a pixel (0, 1, 7): Pillow writes only JPEG 2000 of 8 and 16 bits.
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
MASK, BITS, DEEP = mask_of(20, 31), mask_of(20, 31, numbers=(0, 1)), mask_of(20, 31, numbers=(0, 255, 256, 65_535))
PANOPTIC = np.stack([mask_of(20, 31, seed) for seed in range(3)], axis=2)
OPAQUE = np.full((20, 31, 1), 255, np.uint8)
FEW = {bits: mask_of(9, 16, numbers=tuple(range(min(1 << bits, 200)))) for bits in (1, 2, 4, 8)}
WIDE = mask_of(20, 31, numbers=(0, 300, 65_535))
GREYS = b"".join(bytes((grey, grey, grey, 0)) for grey in range(16))
TURNED = Image.fromarray(MASK).transpose(Image.Transpose.ROTATE_270)
KEPT: dict[str, tuple[bytes, object]] = {
    **{f"the indices of a palette of {bits} bits": (palette(FEW[bits], bits=bits), FEW[bits]) for bits in FEW},
    "a transparent index": (palette(MASK, transparency=7), MASK),
    **{f"1 bit, {kind}": (saved(BITS.astype(bool), kind), BITS) for kind in ("png", "tiff", "bmp", "ppm")},
    **{
        f"a bmp of {bits} bits with a palette of {'black and white' if colors == 2 else 'black'}": (
            indexed_bmp(BITS * (colors - 1), bits, b"\0\0\0\0\xff\xff\xff\0"[: 4 * colors], has_offset),
            BITS * (colors - 1),
        )
        for bits in (4, 8)
        for colors in (1, 2)
        for has_offset in (True, False)
    },
    **{
        f"a bmp of 4 bits, {width} wide, with {used} of the greys 0, 1, 2 and so on": (
            indexed_bmp(FEW[4][:, :width] % colors, 4, GREYS[: 4 * colors], used=used),
            FEW[4][:, :width] % colors,
        )
        for width in (3, 16)
        for colors, used in ((3, 3), (15, 15), (16, 16), (16, 0))
    },
    **{f"8 bits, {kind}": (saved(MASK, kind), MASK) for kind in ("png", "tiff", "bmp", "ppm")},
    **{f"16 bits, {kind}": (saved(DEEP, kind), DEEP) for kind in ("png", "tiff", "ppm")},
    # Pillow reads these as greys from 0 to 255.
    **{f"grey of {bits} bits in a png": (gray_png(FEW[bits], bits), FEW[bits]) for bits in (1, 2, 4)},
    "32 bits that 16 hold": (saved(WIDE.astype(np.int32), "tiff"), WIDE),
    "three channels, as panoptic masks have them": (saved(PANOPTIC, "png"), PANOPTIC),
    "opaque alpha beside them": (saved(np.dstack((PANOPTIC, OPAQUE)), "png"), PANOPTIC),
    "opaque alpha beside grey": (saved(np.dstack((MASK, OPAQUE)), "png"), MASK),
    "turned": (saved(TURNED, "png", exif=oriented(8)), MASK),
    "pgm up to 20": (b"P5 4 1 20\n" + bytes([0, 1, 7, 20]), [[0, 1, 7, 20]]),
    "pgm with a comment": (b"P5\n# 21 classes\n4 1\n255\n" + bytes([0, 1, 7, 255]), [[0, 1, 7, 255]]),
    "pgm up to 1000": (b"P5 4 1 1000\n" + struct.pack(">4H", 0, 1, 7, 1000), [[0, 1, 7, 1000]]),
    "pgm in letters": (b"P2 4 1 20\n0 1 7 20\n", [[0, 1, 7, 20]]),
    "ppm up to 20": (b"P6 1 1 20\n" + bytes([1, 7, 20]), [[[1, 7, 20]]]),
    "jpeg 2000 of 4 bits": (J2K_4_BITS, [[0, 1, 7, 15]]),
    "jpeg 2000 of 12 bits": (J2K_12_BITS, [[0, 1, 7, 4095]]),
    **{
        f"tiff of {bits} bits where 0 is {'black' if photometric else 'white'}": (
            tiff_row(bits, photometric, row),
            [expected],
        )
        for photometric in (0, 1)
        for bits, row, expected in (
            (None, bytes([0b01100000]), [0, 1, 1, 0]),
            (1, bytes([0b01100000]), [0, 1, 1, 0]),
            (2, bytes([0b00011011]), [0, 1, 2, 3]),
            (4, bytes([0x01, 0x7F]), [0, 1, 7, 15]),
            (8, bytes([0, 1, 7, 20]), [0, 1, 7, 20]),
            (12, bytes([0, 0, 1, 0, 0x77, 0xD0]), [0, 1, 7, 2000]),
            (16, struct.pack("<4H", 0, 1, 7, 2000), [0, 1, 7, 2000]),
        )
    },
}
DEEP_WITH_ALPHA = b"".join((
    b"\x89PNG\r\n\x1a\n",
    png_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 4, 0, 0, 0)),
    png_chunk(b"IDAT", zlib.compress(b"\0\1\2\xff\xff")),
    png_chunk(b"IEND", b""),
))  # fmt: skip
REFUSED = {
    "no image": (b"<html>", "an HTML page"),
    "broken": (palette(MASK)[:60], "broken PNG"),
    "too many pixels": (palette(mask_of(101, 100)), "more than max_pixels allows"),
    "32 bits that 16 do not hold": (
        saved(WIDE.astype(np.int32) // 65_535 * 65_536, "tiff"),
        "values from 0 to 65536; nearest supports 0 to 65535",
    ),
    **{
        mode: (saved(Image.new(mode, (8, 8)), "tiff"), rf"^pixels of mode {mode}; nearest supports grey, palettes")
        for mode in ("RGBA", "LA", "CMYK")
    },
    "16-bit grey with alpha": (DEEP_WITH_ALPHA, "more than 8 bits"),
    "negative numbers of 8 bits": (
        tiff(page(np.full((1, 4, 1), 255, np.uint8), 1, t339=(2,))),
        "values from -1 to -1; nearest supports 0 to 65535",
    ),
    "floating point": (saved(Image.new("F", (8, 8)), "tiff"), "pixels of mode F; .* --pair-format npy keeps these"),
    "ppm up to 1000": (b"P6 1 1 1000\n" + struct.pack(">3H", 1, 7, 1000), "more than 8 bits in three channels"),
    "jpeg 2000 of 12 bits": (J2K_RGB_12_BITS, "more than 8 bits in three channels"),
    "jpeg 2000 of signed numbers": (
        J2K_12_BITS.replace(b"\0\1\x0b\1\1", b"\0\1\x8b\1\1"),
        "signed numbers in a JPEG 2000; nearest supports unsigned ones",
    ),
    "sgi of 16 bits": (
        struct.pack(">hBBHHHH", 474, 0, 2, 2, 1, 1, 1).ljust(512, b"\0") + b"\x01\x02",
        "16 bits in an SGI",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_pixel_values_are_those_of_the_file(name: str) -> None:
    data, expected = KEPT[name]
    values, facts = decode_exact(data, MAX_PIXELS)
    assert values.tolist() == np.asarray(expected).tolist()
    assert values.dtype == (np.uint16 if facts.deep else np.uint8)
    assert facts.deep or np.max(expected) <= 255


@pytest.mark.parametrize("name", REFUSED)
def test_files_without_numbers_or_with_lossy_ones_are_refused(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(ImageError, match=reason) as caught:
        decode_exact(data, MAX_PIXELS)
    assert isinstance(caught.value, NotAnImageError) == (name == "no image")


# Stored masks


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
def test_a_stored_mask_is_its_source_resized_by_nearest(
    source: Size, wanted: Size, fit: Fit, upscale: bool, numbers: tuple[int, ...], format: Format
) -> None:
    mask = mask_of(*source, numbers=numbers)
    data = palette(mask) if mask.dtype == np.uint8 else saved(mask, "png")
    (found,) = stored(data, source, ImageOptions(sizes=(wanted,), fit=fit, upscale=upscale), format)
    expected = resize.resize(mask, resize.target(source, wanted, fit, upscale), "nearest", "presize")
    assert found.dtype == mask.dtype
    assert np.array_equal(found, expected)
    assert set(np.unique(found)) <= {0, *np.unique(mask)}


@pytest.mark.parametrize("size", [(19, 40), (40, 19), (100, 75)])
@pytest.mark.parametrize(
    ("format", "dtype"),
    [("png", np.uint8), ("png", np.uint16), ("tiff", np.uint16), ("ppm", np.uint16), ("tiff", np.int32)],
)
def test_a_mask_is_resized_as_pillow_does(format: str, dtype: type[np.integer], size: tuple[int, int]) -> None:
    top = 255 if dtype == np.uint8 else 65_535
    mask = np.random.default_rng(1).integers(0, top, (40, 40), endpoint=True).astype(dtype)
    mask[0, 0] = top  # a PGM needs this maximum for 16 bits
    data = saved(mask, format)
    options = Companion("mask", "m").image_options(ImageOptions(sizes=(Size(*size),), fit="stretch", upscale=True))
    (record,) = transcode_companion(data, Size(40, 40), options).records
    expected = np.asarray(opened(data).resize(size[::-1], Image.Resampling.NEAREST))
    assert np.array_equal(decode_value(memoryview(record.value), "png", "exact", size), expected)


@pytest.mark.parametrize("filter", ["nearest", "bicubic"])
def test_a_size_that_differs_from_the_image_is_refused(filter: str) -> None:
    options = Companion("mask", "x", filter=filter).image_options(ImageOptions(sizes=(Size(8, 8),)))
    with pytest.raises(ImageError, match="31 x 20 pixels, but its image has 20 x 31, upright; EXIF turns only one"):
        transcode_companion(palette(mask_of(20, 31)), Size(31, 20), options)


@pytest.mark.parametrize("format", ["png", "raw"])
def test_a_stored_mask_of_another_size_is_damage(format: Format) -> None:
    its_own = Companion("mask", "x", format=format).image_options(ImageOptions(sizes=(Size(64, 64),)))
    value = transcode_companion(palette(mask_of(20, 31)), Size(20, 31), its_own).records[0].value
    with pytest.raises(ValueError):
        decode_value(memoryview(value), format, "exact", (20, 32))
