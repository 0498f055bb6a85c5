"""Decoding: every format and colour becomes upright 8-bit sRGB, and broken bytes raise only ImageError."""

from __future__ import annotations

import base64
import importlib
import io
import re
import struct
import sys
import zlib
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, features

from effort import examples
from jpegs import damaged, encoded
from mangled import ARITHMETIC
from pictures import difference, gray_png, opened, oriented, png_chunk, saved, smooth_image, with_chunk
from presize.codecs import decode, plugins, sniff
from presize.codecs.exact import decode_exact
from presize.codecs.icc import is_srgb
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.pillow_decoder import Wanted
from presize.codecs.source_facts import KINDS, Facts, unpack_facts
from presize.errors import ImageError, NotAnImageError
from presize.options import Color, Depth
from profiles import GRAY_LINEAR, LINEAR, SRGB, SWAPPED, black_only_profile, display_profile

_Y, _X = np.mgrid[0:24, 0:40]
PIXELS = np.stack([_X * 6, _Y * 10, (_X + _Y) * 4], axis=-1).astype(np.uint8)
PHOTO = Image.fromarray(PIXELS)
GRAY = PHOTO.convert("L")
INKS = PHOTO.convert("CMYK")
INDICES = PHOTO.convert("P")
SHEER = Image.fromarray(np.dstack((PIXELS, np.linspace(0, 255, 24 * 40).round().astype(np.uint8).reshape(24, 40))))
FRAMES: dict[str, Any] = {"save_all": True, "append_images": [ImageOps.flip(PHOTO), PHOTO]}
FOOTER_BYTES = 26  # of a TGA
needs_avif = pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")


def tga(image: Image.Image, **options: Any) -> bytes:
    return saved(image, "TGA", **options)[:-FOOTER_BYTES]


BASELINE = Facts("jpeg", "RGB", 1, "baseline", 75)
TURNED: dict[str, Any] = {"exif": oriented(6)}
ICON: dict[str, Any] = {"sizes": [(40, 24)]}
ALPHAS = bytes(255 - i for i in range(256))
INDEX, SHADE, COLOR = (image.getpixel((3, 4)) for image in (INDICES, GRAY, PHOTO))
DEEP_PNG = cv2.imencode(".png", PIXELS.astype(np.uint16) * 257)[1].tobytes()

FILES: dict[str, tuple[bytes, Facts]] = {
    "JPEG, turned": (saved(PHOTO, "JPEG", comment=b"c", **TURNED), BASELINE._replace(orientation=6)),
    "JPEG, progressive": (saved(PHOTO, "JPEG", progressive=True), BASELINE._replace(process="progressive")),
    "JPEG, CMYK": (saved(INKS, "JPEG"), BASELINE._replace(colors="CMYK")),
    "JPEG, grey": (saved(GRAY, "JPEG"), BASELINE._replace(colors="grey")),
    "JPEG, RGB": (saved(PHOTO, "JPEG", keep_rgb=True), BASELINE),
    "JPEG, profile": (saved(PHOTO, "JPEG", icc_profile=SWAPPED), BASELINE._replace(profile=True)),
    "JPEG, grey profile": (
        saved(GRAY, "JPEG", icc_profile=GRAY_LINEAR),
        BASELINE._replace(colors="grey", profile=True),
    ),
    "MPO": (saved(PHOTO, "MPO", **FRAMES), BASELINE._replace(several=True)),
    "PNG": (saved(PHOTO, "PNG"), Facts("png", "RGB")),
    "PNG, turned": (saved(PHOTO, "PNG", **TURNED), Facts("png", "RGB", 6)),
    "PNG, grey": (saved(GRAY, "PNG"), Facts("png", "grey")),
    "PNG, grey in three channels": (saved(GRAY.convert("RGB"), "PNG"), Facts("png", "RGB")),
    "PNG, grey with alpha": (saved(SHEER.convert("LA"), "PNG"), Facts("png", "grey", transparent=True)),
    "PNG, alpha": (saved(SHEER, "PNG"), Facts("png", "RGB", transparent=True)),
    "PNG, 1 bit": (saved(PHOTO.convert("1"), "PNG"), Facts("png", "grey")),
    "PNG, palette": (saved(INDICES, "PNG"), Facts("png", "palette")),
    "PNG, clear palette": (saved(INDICES, "PNG", transparency=ALPHAS), Facts("png", "palette", transparent=True)),
    "PNG, clear index": (saved(INDICES, "PNG", transparency=INDEX), Facts("png", "palette", transparent=True)),
    "PNG, clear shade": (saved(GRAY, "PNG", transparency=SHADE), Facts("png", "grey", transparent=True)),
    "PNG, clear colour": (saved(PHOTO, "PNG", transparency=COLOR), Facts("png", "RGB", transparent=True)),
    "PNG, 16 bits": (DEEP_PNG, Facts("png", "RGB", deep=True)),
    "PNG, animated": (saved(PHOTO, "PNG", **FRAMES), Facts("png", "RGB", several=True)),
    "PNG, beside frames": (saved(PHOTO, "PNG", default_image=True, **FRAMES), Facts("png", "RGB", several=True)),
    "PNG, sRGB": (saved(PHOTO, "PNG", icc_profile=SRGB), Facts("png", "RGB")),
    "PNG, profile": (saved(PHOTO, "PNG", icc_profile=SWAPPED), Facts("png", "RGB", profile=True)),
    "GIF": (saved(PHOTO, "GIF", disposal=2, **FRAMES), Facts("gif", "palette", several=True)),
    "BMP": (saved(PHOTO, "BMP"), Facts("bmp", "RGB")),
    "WebP": (saved(PHOTO, "WEBP", **TURNED), Facts("webp", "RGB", 6)),
    "WebP, lossless": (saved(PHOTO, "WEBP", lossless=True), Facts("webp", "RGB")),
    "WebP, alpha": (saved(SHEER, "WEBP", lossless=True), Facts("webp", "RGB", transparent=True)),
    "WebP, animated": (saved(PHOTO, "WEBP", lossless=True, **FRAMES), Facts("webp", "RGB", several=True)),
    "TIFF": (saved(PHOTO, "TIFF", **TURNED), Facts("tiff", "RGB", 6)),
    "TIFF, Deflate": (saved(PHOTO, "TIFF", compression="tiff_adobe_deflate"), Facts("tiff", "RGB")),
    "TIFF, grey": (saved(GRAY, "TIFF"), Facts("tiff", "grey")),
    "TIFF, 1 bit": (saved(PHOTO.convert("1"), "TIFF"), Facts("tiff", "grey")),
    "TIFF, grey with alpha": (saved(SHEER.convert("LA"), "TIFF"), Facts("tiff", "grey", transparent=True)),
    "TIFF, alpha": (saved(SHEER, "TIFF"), Facts("tiff", "RGB", transparent=True)),
    "TIFF, palette": (saved(INDICES, "TIFF"), Facts("tiff", "palette")),
    "TIFF, CMYK": (saved(INKS, "TIFF"), Facts("tiff", "CMYK")),
    "TIFF, YCbCr": (saved(PHOTO.convert("YCbCr"), "TIFF"), Facts("tiff", "RGB")),
    "TIFF, Lab": (saved(PHOTO.convert("LAB"), "TIFF"), Facts("tiff", "LAB")),
    "TIFF, pages": (saved(PHOTO, "TIFF", **FRAMES), Facts("tiff", "RGB", several=True)),
    "PPM": (saved(PHOTO, "PPM"), Facts("ppm", "RGB")),
    "PGM": (saved(GRAY, "PPM"), Facts("ppm", "grey")),
    "JPEG 2000": (saved(PHOTO, "JPEG2000"), Facts("jpeg2000", "RGB")),
    "TGA": (saved(PHOTO, "TGA"), Facts("tga", "RGB")),
    "TGA, run-length": (saved(PHOTO, "TGA", compression="tga_rle"), Facts("tga", "RGB")),
    "TGA without a footer": (tga(PHOTO), Facts("tga", "RGB")),
    "TGA without a footer, run-length": (tga(PHOTO, compression="tga_rle"), Facts("tga", "RGB")),
    "TGA without a footer, grey": (tga(GRAY), Facts("tga", "grey")),
    "TGA without a footer, palette": (tga(PHOTO.quantize(16)), Facts("tga", "palette")),
    "TGA, alpha": (saved(SHEER, "TGA"), Facts("tga", "RGB", transparent=True)),
    "ICO": (saved(PHOTO, "ICO", **ICON), Facts("ico", "RGB")),
    "ICO of bitmaps": (saved(SHEER, "ICO", bitmap_format="bmp", **ICON), Facts("ico", "RGB", transparent=True)),
    "ICO of several sizes": (saved(PHOTO, "ICO", sizes=[(16, 16), (40, 24)]), Facts("ico", "RGB")),
    "SGI": (saved(PHOTO, "SGI"), Facts("sgi", "RGB")),
    "SGI, grey": (saved(GRAY, "SGI"), Facts("sgi", "grey")),
    "PCX": (saved(PHOTO, "PCX"), Facts("pcx", "RGB")),
    "PCX, palette": (saved(PHOTO.quantize(16), "PCX"), Facts("pcx", "palette")),
    "PCX, 1 bit": (saved(PHOTO.convert("1"), "PCX"), Facts("pcx", "grey")),
    "DDS": (saved(PHOTO, "DDS"), Facts("dds", "RGB")),
    "DDS, alpha": (saved(SHEER, "DDS"), Facts("dds", "RGB", transparent=True)),
    "DDS, compressed": (saved(PHOTO, "DDS", pixel_format="DXT1"), Facts("dds", "RGB", transparent=True)),
}
"""Images of 24×40 pixels before rotation, and their known properties."""
if features.check("avif"):
    FILES["AVIF"] = saved(PHOTO, "AVIF", **TURNED), Facts("avif", "RGB", 6)
every_file = pytest.mark.parametrize("name", FILES)


def by_pillow(data: bytes) -> np.ndarray:
    """Return (height, width, 3), upright, on white."""
    with opened(data) as image:
        image = ImageOps.exif_transpose(image)
        if image.mode in ("LAB", "CMYK", "YCbCr"):
            return np.asarray(image.convert("RGB"))
        rgba = image.convert("RGBA")
        return np.asarray(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"))


@every_file
def test_every_format_is_recognized_by_its_content_and_decoded_in_the_requested_colours(name: str) -> None:
    data, facts = FILES[name]
    decoded = decode.decode(data, max_pixels=24 * 40)
    kind = KINDS[unpack_facts(np.array([decoded.facts.pack()]), "kind")[0]]
    assert kind == ("other" if facts.kind in ("sgi", "pcx") else facts.kind) and sniff.sniff(data) == facts.kind
    assert decoded.facts == decode.decode(data, "gray", unfinished=True).facts == facts
    size = (40, 24) if facts.orientation == 6 else (24, 40)
    assert decoded.source == size and decoded.pixels.shape == (*size, 3)
    assert decoded.pixels.dtype == np.uint8 and decoded.pixels.flags.c_contiguous and decoded.pixels.flags.writeable
    if facts.kind != "jpeg":
        assert np.array_equal(decode.decode(data, scale=8).pixels, decoded.pixels)
    if not facts.profile:
        assert difference(decoded.pixels, by_pillow(data)) <= 1
    for color, channels in (("gray", ()), ("keep", () if facts.colors == "grey" else (3,)), ("rgba", (4,))):
        pixels = decode.decode(data, color).pixels
        assert pixels.shape == (*size, *channels) and pixels.dtype == np.uint8 and pixels.flags.c_contiguous
    assert (pixels[:, :, 3] < 255).any() == (facts.transparent and name != "DDS, compressed")
    if facts.kind == "png" and facts.colors == "palette":
        assert np.array_equal(pixels[:, :, 3], Image.open(io.BytesIO(data)).convert("RGBA").getchannel("A"))


@every_file
def test_too_large_or_truncated_files_are_refused_without_python_messages(name: str) -> None:
    data, reasons = FILES[name][0], set()
    with pytest.raises(ImageError, match="max_pixels"):
        decode.decode(data, max_pixels=24 * 40 - 1)
    with pytest.raises(ImageError):
        decode.decode(data[: len(data) * 3 // 10])
    for end in range(1, min(len(data), 120)):
        try:
            decode.decode(data[:end] + b"\xff" * (end % 3))
        except ImageError as error:
            reasons.add(str(error))
    assert not [text for text in reasons if re.search(r"unpack|requires a buffer|out of range|literal| at 0x", text)]


@pytest.mark.parametrize("name", [name for name in FILES if "without a footer" in name])
def test_a_tga_without_a_footer_has_exactly_the_announced_bytes(name: str) -> None:
    data = FILES[name][0]
    assert sniff.sniff(data + b"x") is None and sniff.sniff(data[:-1]) is None


@pytest.mark.parametrize("name", [name for name in FILES if name[:3] in ("TGA", "SGI", "PCX") and name[-1] in "ye"])
def test_masks_of_old_formats_keep_their_numbers(name: str) -> None:
    values, facts = decode_exact(FILES[name][0], 10**6)
    assert np.array_equal(values, np.asarray(opened(FILES[name][0]))) and facts.pack()


NO_IMAGES = {
    b"": "the file is empty",
    b"\n <!DOCTYPE html><title>404</title>": "an HTML page, not an image",
    b"\xef\xbb\xbf<html>": "an HTML page, not an image",
    b"PK\3\4" + bytes(30): "a zip archive, such as .npz or .pt; unpack images, and save an array with numpy.save",
    b"\x93NUMPY\x01\x00v\x00" + bytes(200): "an array, not an image; --pair-format npy stores it as a companion",
    **dict.fromkeys(
        (
            b"BM is how this text begins", b"P7\nWIDTH 1", b"P5", b"RIFF\0\0\0\0WAVEfmt ", b"%!PS-Adobe-3.0 EPSF-3.0",
            b"8BPS\0\1", b"\xff\xd8", bytes(4000), np.arange(1000, dtype=np.float32).tobytes(),
            b"\0\0\0\x18ftyp", b"\0\0\0\x18ftypmp42" + bytes(200), b"\0\0\2\0\1\0" + bytes(200),
        ),
        "not an image format that presize reads",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), NO_IMAGES.items(), ids=lambda value: str(value[:20]))
def test_bytes_that_are_not_an_image_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(NotAnImageError) as caught:
        decode.decode(data)
    assert str(caught.value) == reason


def test_an_icon_may_contain_a_png_larger_than_its_directory_entry() -> None:
    data = icon((saved(smooth_image(300, 400), "PNG"), 0, 0))
    assert decode.decode(data).pixels.shape == (300, 400, 3)
    with pytest.raises(ImageError, match="max_pixels"):
        decode.decode(data, max_pixels=300 * 400 - 1)


def bitmap(image: Image.Image, header_bytes: int, masks: bool, down: bool) -> bytes:
    """Return a bitmap of 32 bits as in an icon, with its mask below it and a header of 12 (OS/2), 40, 52, 56, 64
    (OS/2), 108 (V4) or 124 bytes (V5). It may name the `masks` of colours; rows may go `down`, with a negative
    height."""
    width, height = image.size
    rows = np.asarray(image)[:, :, (2, 1, 0, 3)][:: 1 if down else -1]
    if header_bytes == 12:
        header = struct.pack("<IHHHH", 12, width, 2 * height, 1, 32)
    else:
        sides = width, 2 * height * (-1 if down else 1)
        header = struct.pack("<IiiHHIIiiII", header_bytes, *sides, 1, 32, 3 * masks, 0, 0, 0, 0, 0)
        header += struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    return header[:header_bytes].ljust(header_bytes, b"\0") + rows.tobytes() + bytes(-(-width // 32) * 4 * height)


def icon(*entries: tuple[bytes, int, int]) -> bytes:
    """Return an ICO of bitmaps or PNGs, each with its width and height."""
    directory, contents, end = struct.pack("<HHH", 0, 1, len(entries)), b"", 6 + 16 * len(entries)
    for content, width, height in entries:
        directory += struct.pack("<BBBBHHII", width, height, 0, 0, 1, 32, len(content), end + len(contents))
        contents += content
    return directory + contents


MODERN = [(40, False), (52, True), (56, True), (64, False), (108, False), (108, True), (124, False), (124, True)]


@pytest.mark.parametrize(
    ("header_bytes", "masks", "down"),
    [(12, False, False), *((*header, down) for header in MODERN for down in (False, True))],
)
def test_the_largest_image_of_an_icon_is_read_as_pillow_does_with_any_header(
    header_bytes: int, masks: bool, down: bool
) -> None:
    small = SHEER.resize((16, 16))
    others = [(bitmap(small, 40, False, False), 16, 16), (saved(small, "PNG"), 16, 16)]
    data = bytearray(icon(others[0], (bitmap(SHEER, header_bytes, masks, down), 40, 24), others[1]))
    data[9] = 255  # .NET writes 255 where Microsoft's documentation says 0
    expected = np.asarray(opened(bytes(data)).convert("RGBA"))
    assert expected.shape == (24, 40, 4) and np.array_equal(decode.decode(bytes(data), "rgba").pixels, expected)


# Colours


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("shape", [(64, 96), (65, 97), (71, 103)])
def test_a_jpeg_is_decoded_at_the_requested_scale(scale: int, shape: tuple[int, int]) -> None:
    data = saved(PHOTO.resize(shape[::-1]), "JPEG", exif=oriented(6))
    decoded = decode.decode(data, scale=scale)
    assert decoded.pixels.shape == (-(-shape[1] // scale), -(-shape[0] // scale), 3)
    assert decoded.source == (shape[1], shape[0])


NOISE = np.random.default_rng(0).integers(0, 65536, (24, 40, 4), dtype=np.uint16)
NOISE[:, :, 3] = 65535


@pytest.mark.parametrize(
    ("kind", "channels"), [("jpeg2000", 1), *((kind, channels) for kind in ("png", "tiff") for channels in (1, 3, 4))]
)
def test_16_bits_are_rounded_to_8(kind: str, channels: int) -> None:
    if channels == 1:
        data = saved(NOISE[:, :, 2], kind)
    else:
        data = cv2.imencode(f".{kind}", NOISE[:, :, :channels])[1].tobytes()
    expected = np.round(NOISE[:, :, 2::-1] / 257).astype(np.uint8)
    found = decode.decode(data, "keep").pixels
    assert np.array_equal(found, expected[:, :, 0] if channels == 1 else expected)


def jpeg2000(values: np.ndarray, bits: int) -> bytes:
    """Return a lossless JPEG 2000 of (height, width, channels) with 1 to 16 bits; OpenCV writes only 8 and 16."""
    middle, dtype = (128, np.uint8) if bits <= 8 else (1 << 15, np.uint16)
    shifted = (values + middle - (1 << (bits - 1))).astype(dtype)  # levels are stored from their middle
    data = bytearray(cv2.imencode(".jp2", shifted, [cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000])[1])
    begin = data.find(b"\xff\x4f\xff\x51") + 42
    data[begin : begin + 3 * values.shape[2] : 3] = bytes([bits - 1]) * values.shape[2]
    data[data.find(b"ihdr") + 14] = bits - 1
    return bytes(data)


def test_a_palette_of_a_jpeg_2000_may_repeat_colours() -> None:
    indices = np.repeat(np.arange(0, 80, 10, dtype=np.uint8), 8)[:, np.newaxis].repeat(64, axis=1)
    colors = np.zeros((256, 3), np.uint8)
    colors[::10] = np.arange(78).reshape(26, 3) + 100
    boxes = b"".join(
        struct.pack(">I", 8 + len(content)) + kind + content
        for kind, content in (
            (b"pclr", struct.pack(">HB", 256, 3) + b"\x07\x07\x07" + colors.tobytes()),
            (b"cmap", struct.pack(">HBBHBBHBB", 0, 1, 0, 0, 1, 1, 0, 1, 2)),
        )
    )
    data = saved(indices, "jpeg2000", irreversible=False).replace(struct.pack(">I", 17), struct.pack(">I", 16), 1)
    header, end = data.index(b"jp2h") - 4, data.index(b"jp2c") - 4
    nbytes = int.from_bytes(data[header : header + 4]) + len(boxes)
    data = data[:header] + nbytes.to_bytes(4) + data[header + 4 : end] + boxes + data[end:]
    assert np.array_equal(decode.decode(data).pixels, colors[indices])


LARGE_NOISE = np.tile(NOISE[:, :, :3], (3, 2, 1))  # JPEG 2000 needs 32 pixels a side
DEEP_COLORS = {
    "jpeg2000": jpeg2000(LARGE_NOISE, 16),
    "ppm": b"P6 # a comment\n80 72\n65535\n" + LARGE_NOISE[:, :, ::-1].astype(">u2").tobytes(),
}


@pytest.mark.parametrize("kind", DEEP_COLORS)
def test_16_bit_colours_that_pillow_opens_with_8_bits_keep_their_values(kind: str) -> None:
    found = decode.decode(DEEP_COLORS[kind], Wanted("keep", 16))
    assert found.facts.deep and np.array_equal(found.pixels, LARGE_NOISE[:, :, ::-1])
    rounded = decode.decode(DEEP_COLORS[kind], "keep")
    assert rounded.facts.deep and np.array_equal(rounded.pixels, np.round(LARGE_NOISE[:, :, ::-1] / 257))


@pytest.mark.parametrize("channels", [3, 4])
def test_white_of_a_jpeg_2000_of_12_bits_is_white(channels: int) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (72, 80, channels))
    values[:40, :, :3], values[:, :, 3:] = 4095, 4095
    for depth, white in ((8, 255), (16, 65535)):
        found = decode.decode(jpeg2000(values, 12), Wanted("rgb", depth)).pixels
        assert np.array_equal(found, np.floor(values[:, :, 2::-1] * white / 4095 + 0.5))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("bits", [1, 3, 4, 7, 8])
def test_white_of_a_jpeg_2000_of_few_bits_is_white(bits: int, channels: int) -> None:
    values, top = LARGE_NOISE[:, :, :channels] >> 16 - bits, (1 << bits) - 1
    expected = np.round(values[:, :, ::-1] * (255 / top)).astype(np.uint8)
    found = decode.decode(jpeg2000(values, bits), "keep").pixels
    assert np.array_equal(found, expected[:, :, 0] if channels == 1 else expected)


def test_16_bits_that_no_library_reads_are_refused() -> None:
    data = struct.pack(">hBBHHHH", 474, 0, 2, 3, 1, 1, 3).ljust(512, b"\0") + b"\x01\x02" * 3
    assert decode.decode(data).facts.deep
    with pytest.raises(ImageError, match=r"pixels of mode RGB with more than 8 bits .* in a SGI; --depth 8 scales"):
        decode.decode(data, Wanted("keep", 16))


@needs_avif
@pytest.mark.parametrize("bits", [8, 10, 12])
def test_an_avif_of_more_than_8_bits_is_not_taken_for_one_of_8_bits(bits: int) -> None:
    pixels = np.full((8, 8, 3), 99, np.uint8 if bits == 8 else np.uint16)
    data = cv2.imencode(".avif", pixels, [cv2.IMWRITE_AVIF_DEPTH, bits])[1].tobytes()
    assert decode.decode(data).facts.deep == (bits > 8)
    if bits == 8:
        assert decode.decode(data, Wanted("rgb", 16)).pixels.dtype == np.uint16
        return
    with pytest.raises(ImageError, match="more than 8 bits a channel are not supported in a AVIF; --depth 8 scales"):
        decode.decode(data, Wanted("rgb", 16))
    with pytest.raises(ImageError, match="more than 8 bits in three channels"):
        decode_exact(data, 64)


def test_a_16_bit_pgm_is_scaled_from_its_own_maximum() -> None:
    data = b"P5 3 1 1000\n" + struct.pack(">3H", 0, 500, 1000)
    assert decode.decode(data, "keep").pixels.tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_values_without_a_defined_range_are_refused(mode: str) -> None:
    with pytest.raises(ImageError, match="no defined range"):
        decode.decode(saved(GRAY.convert(mode), "TIFF"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [("f4", "floating-point"), ("f8", "floating-point"), ("i1", "signed or 32-bit"), ("i4", "signed or 32-bit")],
)
def test_colours_without_a_defined_range_are_refused(kind: str, words: str) -> None:
    data = cv2.imencode(".tiff", np.ones((8, 8, 3), kind))[1].tobytes()
    with pytest.raises(ImageError, match=f"^{words} pixel values are not supported: they have no defined range$"):
        decode.decode(data)


@pytest.mark.parametrize(("bits", "key"), [(2, 1), (4, 5), (8, 5)])
def test_the_transparent_grey_of_a_png_is_found_at_any_bit_depth(bits: int, key: int) -> None:
    numbers = np.arange(1 << min(bits, 4))[np.newaxis]
    data = gray_png(numbers, bits, png_chunk(b"tRNS", struct.pack(">H", key)))
    assert np.array_equal(decode.decode(data, "rgba").pixels[:, :, 3] == 0, numbers == key)


@pytest.mark.parametrize("color", ["rgba", "rgb"])
@pytest.mark.parametrize("depth", [8, 16])
def test_the_transparent_color_of_a_16_bit_png_is_compared_in_all_bits(depth: Depth, color: Color) -> None:
    key, other = (0x1234, 0x5678, 0x9ABC), (0x3400, 0x7800, 0xBC00)  # high bytes equal the key's low ones
    pixels = np.array([[key, other, (0xFFFF, 0, 0)]], np.uint16)
    png = cv2.imencode(".png", pixels[:, :, ::-1])[1].tobytes()
    found = decode.decode(with_chunk(png, b"tRNS", struct.pack(">3H", *key)), Wanted(color, depth)).pixels
    white = (1 << depth) - 1
    if color == "rgba":
        assert (found[0, :, 3] == [0, white, white]).all()
    else:
        assert (found[0, 0] == white).all() and (found[0, 1] != white).all()


def without_adobe(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def test_cmyk_has_inverted_inks_with_and_without_an_adobe_marker() -> None:
    data = saved(INKS, "JPEG", quality=98)
    with_marker, without = decode.decode(data), decode.decode(without_adobe(data))
    assert difference(with_marker.pixels, PIXELS) <= 6
    assert np.array_equal(without.pixels, with_marker.pixels)


def test_a_jpeg_of_12_bits_is_refused_but_not_called_broken() -> None:
    data = bytearray(FILES["JPEG, grey"][0])
    data[data.index(b"\xff\xc0") + 4] = 12
    with pytest.raises(ImageError, match=r"^a JPEG of 12 bits per channel; only those of 8 bits are supported$"):
        decode.decode(bytes(data))


def test_an_arithmetic_coded_jpeg_is_decoded() -> None:
    y, x = np.mgrid[0:8, 0:8]
    decoded = decode.decode(ARITHMETIC, "keep")
    assert difference(decoded.pixels, x * 20 + y * 10) <= 1
    assert decoded.facts.process == "arithmetic"


# Orientation


LOSSLESS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 98},
    "PNG": {},
    "TIFF": {},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": 98},
}
"""Options for nearly lossless encoding."""
formats = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[needs_avif] * (kind == "AVIF")) for kind in LOSSLESS]
)


@formats
@pytest.mark.parametrize("value", range(1, 9))
def test_every_orientation_yields_the_same_upright_picture(kind: str, value: int) -> None:
    carrier = PHOTO.copy()
    carrier.getexif()[0x0112] = {6: 8, 8: 6}.get(value, value)  # rotates the image back
    stored = np.asarray(ImageOps.exif_transpose(carrier))
    decoded = decode.decode(saved(stored, kind, exif=oriented(value), **LOSSLESS[kind]))
    assert decoded.source == (24, 40)
    assert difference(decoded.pixels, PIXELS) <= (12 if kind in ("JPEG", "AVIF") else 0)


@formats
def test_a_profile_other_than_srgb_is_converted(kind: str) -> None:
    plain = decode.decode(saved(PHOTO, kind, **LOSSLESS[kind])).pixels
    converted = decode.decode(saved(PHOTO, kind, icc_profile=SWAPPED, **LOSSLESS[kind])).pixels
    assert difference(converted, plain[:, :, ::-1]) <= 12  # its gamma differs slightly from sRGB's curve


# Profiles


@pytest.mark.parametrize(
    ("image", "kind", "profile", "expected", "reason"),
    [
        (Image.new("RGB", (16, 16), (55, 55, 55)), "PNG", LINEAR, 128, "brightened for sRGB"),
        (Image.new("RGBA", (16, 16), (55, 55, 55, 128)), "PNG", LINEAR, 191, "composed after the conversion"),
        (Image.new("L", (16, 16), 55), "PNG", GRAY_LINEAR, 128, "grey"),
        (Image.new("L", (16, 16), 55), "JPEG", GRAY_LINEAR, 128, "grey"),
        (Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "TIFF", None, (0, 255, 255), "cyan"),
        (Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "TIFF", black_only_profile(), 255, "an invisible cyan"),
        (Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", black_only_profile(), 255, "an invisible cyan"),
    ],
)
def test_a_colour_is_converted_to_srgb(
    image: Image.Image, kind: str, profile: bytes | None, expected: Any, reason: str
) -> None:
    data = saved(image, kind, icc_profile=profile)
    assert np.abs(decode.decode(data).pixels.astype(int) - expected).max() <= 3, reason
    kept = decode.decode(data, "keep").pixels
    assert kept.shape == ((16, 16) if image.mode == "L" else (16, 16, 3))
    assert np.abs(kept.astype(int) - expected).max() <= 3, reason


@pytest.mark.parametrize(
    ("image", "icc", "reason"),
    [
        (PHOTO, SRGB, "sRGB already"),
        (PHOTO, GRAY_LINEAR, "a grey profile on colours"),
        (GRAY, LINEAR, "a profile for colours on grey"),
        (PHOTO, LINEAR[:200], "truncated"),
        (PHOTO, b"no profile", "no profile"),
        (PHOTO, LINEAR[:16] + b"\xff\xfe\xfd\xfc" + LINEAR[20:], "a colour space that is not text"),
    ],
)
def test_pixels_stay_unchanged(image: Image.Image, icc: bytes, reason: str) -> None:
    for kind in ("JPEG", "PNG"):
        expected = decode.decode(saved(image, kind)).pixels
        assert np.array_equal(decode.decode(saved(image, kind, icc_profile=icc)).pixels, expected), reason


@pytest.mark.parametrize(
    ("icc", "expected", "reason"),
    [
        (SRGB, True, "the standard profile"),
        (SWAPPED, False, "other primaries"),
        (LINEAR, False, "another curve"),
        (LINEAR.replace(b"made for a test", b"linear sRGB\0\0\0\0"), False, "sRGB only by name"),
        (display_profile(2.2).replace(b"made for a test", b"sRGB Profile\0\0\0"), True, "sRGB, simplified"),
        (display_profile(2.2), False, "the same under another name"),
        (GRAY_LINEAR, False, "linear grey"),
        (black_only_profile(), False, "CMYK"),
        (b"broken", True, "unusable: its images are taken as sRGB"),
    ],
)
def test_a_profile_counts_as_srgb_by_its_effect(icc: bytes, expected: bool, reason: str) -> None:
    assert is_srgb(icc) is expected, reason


@pytest.mark.parametrize("color", ["rgb", "gray", "keep"])
@pytest.mark.parametrize("icc", [None, SWAPPED, GRAY_LINEAR], ids=["none", "swapped", "grey"])
@pytest.mark.parametrize("name", ["JPEG, progressive", "JPEG, CMYK", "JPEG, grey", "PNG", "WebP"])
def test_unfinished_pixels_can_be_finished_to_the_same_result(name: str, icc: bytes | None, color: Color) -> None:
    data, facts = FILES[name]
    if icc is not None and facts.kind == "jpeg":
        data = saved(opened(data), "JPEG", icc_profile=icc)
    left, whole = decode.decode(data, color, unfinished=True), decode.decode(data, color)
    finished = decode.finish(left.pixels, left.icc, color)
    assert whole.icc is None and left.pixels.flags.c_contiguous
    assert difference(finished, whole.pixels) <= (0 if left.icc is None else 1)
    if icc is None:
        gray = color == "gray" or (color == "keep" and facts.colors == "grey")
        assert left.pixels.shape[2:] == (() if gray else (4,) if facts.kind == "jpeg" and name[6] != "C" else (3,))


# Metadata


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("JPEG", ("exif", "xmp", "comment")),
        ("WEBP", ("exif", "xmp")),
        ("PNG", ("exif",)),
        pytest.param("AVIF", ("exif",), marks=needs_avif),
        ("GIF", ("comment",)),
    ],
)
def test_metadata_is_returned_and_exif_as_the_bytes_of_a_tiff_file(kind: str, names: tuple[str, ...]) -> None:
    metadata = {"exif": oriented(1, "a maker"), "xmp": b"<x/>", "comment": b"hello"}
    decoded = decode.decode(saved(PHOTO, kind, **{name: metadata[name] for name in names}))
    assert (decoded.exif or b"II*")[:2] in (b"II", b"MM")
    for name in names:
        assert {"exif": b"a maker"}.get(name, metadata[name]) in getattr(decoded, name)


# Broken and hostile files


def test_a_jpeg_with_stray_bytes_is_decoded_by_the_second_decoder() -> None:
    data = encoded(PIXELS, interval=1)
    at = data.index(b"\xff\xd1")
    stray = data[:at] + b"stray" + data[at:]
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(stray)
    decoded, sound = decode.decode(stray), decode.decode(data)
    assert np.array_equal(decoded.pixels, sound.pixels)
    assert decoded.facts.tolerated and not sound.facts.tolerated


@pytest.mark.parametrize(("kind", "image"), [("JPEG", PHOTO), ("PNG", PHOTO), ("WEBP", PHOTO), ("JPEG", INKS)])
def test_broken_exif_does_not_fail_an_image(kind: str, image: Image.Image) -> None:
    broken = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 30
    assert decode.decode(saved(image, kind, exif=broken)).pixels.shape == (24, 40, 3)


HUGE = 60_000
_HUGE_TIFF_TAGS = [(256, HUGE), (257, HUGE), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (279, 4)]
BOMBS = {
    "jpeg": jpeg_metadata.bare(saved(PHOTO, "JPEG")).replace(
        struct.pack(">HH", 24, 40), struct.pack(">HH", HUGE, HUGE), 1
    ),
    "png": b"\x89PNG\r\n\x1a\n"
    + png_chunk(b"IHDR", struct.pack(">IIBBBBB", HUGE, HUGE, 8, 2, 0, 0, 0))
    + png_chunk(b"IDAT", zlib.compress(bytes(1000))),
    "gif": b"GIF89a" + struct.pack("<HHBBB", HUGE, HUGE, 0, 0, 0) + b"," + bytes(4) + b"\1\0\1\0\0\2\0;",
    "bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, HUGE, HUGE, 1, 24, 0, 0, 0, 0, 0, 0),
    "webp": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + struct.pack("<I", HUGE - 1)[:3] * 2,
    "tiff": b"II*\0\x08\0\0\0"
    + struct.pack("<H", len(_HUGE_TIFF_TAGS))
    + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in _HUGE_TIFF_TAGS)
    + bytes(4),
    "ppm": b"P6 60000 60000 255\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_too_many_pixels_are_refused_before_decoding(name: str) -> None:
    with pytest.raises(ImageError, match=r"60000 x 60000 pixels, more than max_pixels allows \(178956970\)"):
        decode.decode(BOMBS[name])


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF"])
def test_pillows_own_limit_does_not_apply(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(PHOTO, kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode.decode(data).pixels.shape == (24, 40, 3)


# Pillow warns about broken EXIF inside an AVIF and about a huge frame of a GIF. These warnings cannot be disabled.
@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@settings(max_examples=examples(510), deadline=None)
@given(st.sampled_from([data for data, _ in FILES.values()]).flatmap(lambda data: damaged(data, within=300)))
def test_damaged_images_yield_an_image_or_an_image_error(data: bytes) -> None:
    try:
        decoded = decode.decode(data, max_pixels=100_000)
    except ImageError as error:
        reason = str(error)
        assert reason and "\n" not in reason and " at 0x" not in reason
    else:
        assert decoded.pixels.dtype == np.uint8 and decoded.pixels.shape[2:] == (3,)
        assert decoded.pixels.shape[:2] == decoded.source


# Plug-ins


MISSING = {"heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "jxl": b"\xff\x0a" + bytes((0x00, 0x08)) + bytes(20)}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_plug_in_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, plugins.PLUGINS[name].module, None)
    assert sniff.sniff(MISSING[name]) == name
    with pytest.raises(ImageError, match=rf'^{name.upper()} needs a Pillow plug-in, .*"presize\[{name}\]"$'):
        decode.decode(MISSING[name])


def test_versions_of_plug_ins_are_reported_for_the_files_that_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = plugins.PLUGINS["jxl"]._replace(distribution="no-such-thing-here")
    monkeypatch.setattr(plugins, "PLUGINS", plugins.PLUGINS | {"jxl": lacking})
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9" if name == "pillow-heif" else version(name))
    assert plugins.versions([".jpg", ".hif"]) == {"pillow-heif": "9"}
    assert plugins.versions([".jxl", ".heic"]) == {"pillow-heif": "9", "no-such-thing-here": "none"}


class Plugged(NamedTuple):
    """A format whose plug-in is installed, and its encoder."""

    name: str
    kind: str
    options: dict[str, Any]

    def saved(self, image: Image.Image | np.ndarray, **options: Any) -> bytes:
        return saved(image, self.kind, **self.options, **options)


@pytest.fixture(
    scope="module",
    params=[Plugged("heic", "HEIF", {"quality": 95, "chroma": 444}), Plugged("jxl", "JXL", {"lossless": True})],
    ids=lambda plugged: plugged.name,
)
def plugged(request: pytest.FixtureRequest) -> Plugged:
    plugin = plugins.PLUGINS[request.param.name]
    package = pytest.importorskip(plugin.module.partition(".")[0])
    if request.param.name == "heic":
        package.register_heif_opener()
    importlib.import_module(plugin.module)
    return request.param


@pytest.mark.parametrize("shape", [(33, 41), (64, 64), (9, 300)])
def test_plug_ins_decode_up_to_max_pixels(plugged: Plugged, shape: tuple[int, int]) -> None:
    pixels = smooth_image(*shape)
    data = plugged.saved(pixels)
    decoded = decode.decode(data, max_pixels=shape[0] * shape[1])
    assert decoded.pixels.shape == pixels.shape
    assert np.abs(decoded.pixels.astype(int) - pixels).mean() <= 3
    assert sniff.sniff(data) == decoded.facts.kind == plugged.name
    sheer = np.asarray(SHEER)
    assert difference(decode.decode(plugged.saved(sheer), "rgba").pixels[:, :, 3], sheer[:, :, 3]) <= 2
    with pytest.raises(ImageError, match=f"{shape[1]} x {shape[0]} pixels, more than max_pixels"):
        decode.decode(data, max_pixels=shape[0] * shape[1] - 1)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_images_of_plug_ins_are_rotated_once(plugged: Plugged, orientation: int) -> None:
    upright = smooth_image(48, 64)
    lying = Image.fromarray(np.rot90(upright, {1: 0, 3: 2, 6: 1}[orientation]))
    exif = oriented(orientation)
    if plugged.name == "jxl":  # like a JPEG converted by cjxl, which can be restored
        with opened(saved(lying, "JPEG", quality=95, subsampling=0, exif=exif)) as jpeg:
            jpeg.filename = ""  # type: ignore[attr-defined]
            jpeg.save(buffer := io.BytesIO(), "JXL", lossless_jpeg=False, lossless=True, exif=exif)
        data = buffer.getvalue()
        expected = np.asarray(opened(data).convert("RGB"))
    else:
        data, expected = plugged.saved(lying, exif=exif), upright
    pixels = decode.decode(data).pixels
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).mean() <= 3


@pytest.fixture(scope="module")
def plugged_file(plugged: Plugged) -> bytes:
    return plugged.saved(PIXELS)


@given(data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_damaged_files_of_plug_ins_are_decoded_or_refused(data: st.DataObject, plugged_file: bytes) -> None:
    try:
        decode.decode(data.draw(damaged(plugged_file)), max_pixels=10**6)
    except ImageError:
        pass


# JPEG XL of 2 x 1 pixels: 16 bits of colour, 16 of grey and alpha, and 10 of grey, the values 5 and 1000.
JXL_COLORS = base64.b64decode(
    "/woAcPwAFC0CCAIBAOACSxibnHGEAziAAzggSsA5BQEAIESACBABIkCE//8/+P//oj7GGHOutffe55xzDgFFRERERGRmZt73flVVVRX8///B"
    "//8X9THGmHOtvfc+55xzCCgiIiIiIjMz8773q6qqquD//w/+/7+ojzHGnGvtvfc555xDQBERERERmZmZ971fVVVVBf//f/D//0V9jDHmXGvv"
    "vc855xwCioiIiIjIzMy87/2qqqqqA/AG/Rc9/P78r1EDflICAA=="
)
JXL_SHEER = base64.b64decode(
    "/woAcPwIfgCKFgEICBAA0AJLGJuccYQDOIADOCBKwDkFAQAgRIAIEAEiQIT//z/4//+iPsYYc661997nnHMOAUVEREREZGZm3vd+VVVVFfz/"
    "/8H//xf1McaYc6299z7nnHMIKCIiIiIiMzPzvverqqqq4P//D/7/v6iPMcaca+299znnnENAERERERGZmZn3vV9VVVUF//9/8P//RX2MMeZc"
    "a++9zznnHAKKiIiIiMjMzLzv/aqqqqp5Qf8DC/Pj///TWQE="
)
JXL_GREY = base64.b64decode("/woAcBQULQIIBAEAKABLGIsVwlnRDjUe")


def jxl_boxes(codestream: bytes) -> bytes:
    """Return a JPEG XL in boxes: the codestream in two parts, and metadata that looks like one before each."""
    metadata = (b"Exif", b"\xff\x0a" + b"\x7f" * 9)
    parts = (b"jxlp", b"\0\0\0\0" + codestream[:5]), (b"jxlp", b"\x80\0\0\1" + codestream[5:])
    boxes = ((b"JXL ", b"\r\n\x87\n"), (b"ftyp", b"jxl \0\0\0\0jxl "), metadata, parts[0], metadata, parts[1])
    return b"".join(struct.pack(">I", 8 + len(content)) + kind + content for kind, content in boxes)


@pytest.mark.parametrize(("codestream", "bits"), [(JXL_COLORS, 16), (JXL_SHEER, 16), (JXL_GREY, 10)])
def test_the_size_and_the_bits_of_a_jpeg_xl_are_read_from_its_codestream(codestream: bytes, bits: int) -> None:
    assert plugins.jxl_header(codestream) == plugins.jxl_header(jxl_boxes(codestream)) == (1, 2, bits, False)


def test_a_jpeg_xl_of_more_than_8_bits_is_not_taken_for_one_of_8_bits() -> None:
    pytest.importorskip("pillow_jxl")
    assert decode.decode(JXL_COLORS).facts.deep
    with pytest.raises(ImageError, match="mode RGB with more than 8 bits a channel are not supported in a JXL"):
        decode.decode(JXL_COLORS, Wanted("rgb", 16, "ignore"))
    with pytest.raises(ImageError, match="more than 8 bits of grey with alpha are not supported in a JPEG XL"):
        decode.decode(JXL_SHEER)
    assert decode.decode(JXL_GREY, Wanted("gray", 16, "ignore")).pixels.tolist() == [[320, 64062]]
    with pytest.raises(ImageError, match="10 bits in a JXL; nearest supports 16 bits in PNG, TIFF and PGM"):
        decode_exact(JXL_GREY, 2)


JXL_ANIMATION = base64.b64decode("/woAEEETAIgJCAQBACAASxKlQoUkHAAIBAUANABLEqVChSTWKGA8AH0A")


def test_an_animated_jpeg_xl_is_refused_as_the_plug_in_reads_its_last_frame() -> None:
    assert plugins.jxl_header(JXL_ANIMATION) == (1, 1, 8, True)
    with pytest.raises(ImageError, match="an animated JPEG XL, of which the plug-in reads only the last frame"):
        decode.decode(JXL_ANIMATION)
