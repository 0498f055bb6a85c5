"""Decoding: every format and colour to upright 8-bit sRGB, and nothing but ImageError for broken bytes."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, features

from effort import examples
from presize.codecs import decode, sniff
from presize.codecs.icc import is_srgb
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.pillow_decoder import Wanted
from presize.codecs.source_facts import Facts
from presize.errors import ImageError, NotAnImageError
from presize.options import Color, Depth
from profiles import GRAY_LINEAR, LINEAR, SRGB, SWAPPED, black_only_profile, display_profile

_Y, _X = np.mgrid[0:24, 0:40]
PIXELS = np.stack([_X * 6, _Y * 10, (_X + _Y) * 4], axis=-1).astype(np.uint8)
PHOTO = Image.fromarray(PIXELS)
GRAY = PHOTO.convert("L")
needs_avif = pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def oriented(value: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = value
    return tags.tobytes()


def off(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> int:
    """By how much the two differ at most; they must have one shape."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(np.int16) - b).max())


ENCODINGS = {
    "jpeg": saved(PHOTO, "JPEG", exif=oriented(6), comment=b"c"),
    "jpeg progressive": saved(PHOTO, "JPEG", progressive=True),
    "jpeg CMYK": saved(PHOTO.convert("CMYK"), "JPEG"),
    "png": saved(PHOTO, "PNG", exif=oriented(6)),
    "png palette": saved(PHOTO.convert("P"), "PNG", transparency=b"\0\x80"),
    "png 16": cv2.imencode(".png", PIXELS.astype(np.uint16) * 257)[1].tobytes(),
    "gif": saved(PHOTO, "GIF", save_all=True, append_images=[ImageOps.flip(PHOTO)], disposal=2),
    "bmp": saved(PHOTO, "BMP"),
    "webp": saved(PHOTO, "WEBP", exif=oriented(6)),
    "webp lossless": saved(PHOTO.convert("RGBA"), "WEBP", lossless=True),
    "tiff": saved(PHOTO, "TIFF", exif=oriented(6)),
    "tiff deflate": saved(PHOTO, "TIFF", compression="tiff_adobe_deflate"),
    "ppm": saved(PHOTO, "PPM"),
    "jpeg2000": saved(PHOTO, "JPEG2000"),
}
if features.check("avif"):
    ENCODINGS["avif"] = saved(PHOTO, "AVIF", exif=oriented(6))

LOSSLESS = {
    "png": {},
    "bmp": {},
    "ppm": {},
    "tiff": {},
    "webp": {"lossless": True},
    "jpeg2000": {},
}


# What it is


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_format_is_told_by_its_content(name: str) -> None:
    kind = name.split()[0]
    assert sniff.sniff(ENCODINGS[name]) == kind
    assert decode.decode(ENCODINGS[name]).format == kind


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"BM is how this text begins", "two letters are no bitmap"),
        (b"P7\nWIDTH 1", "PAM is not read"),
        (b"P5", "no white space"),
        (b"RIFF\0\0\0\0WAVEfmt ", "another kind of RIFF"),
        (b"\0\0\0\x18ftyp", "a box cut short"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "PostScript is a program"),
        (b"8BPS\0\1", "Photoshop"),
        (b"\xff\xd8", "the start of a JPEG alone"),
    ],
)
def test_what_only_looks_like_an_image_is_none(data: bytes, reason: str) -> None:
    assert sniff.sniff(data) is None, reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"\n <!DOCTYPE html><title>404</title>", "an HTML page, not an image"),
        (b"\xef\xbb\xbf<html>", "an HTML page, not an image"),
        (b"import numpy", "not an image format that presize reads"),
    ],
)
def test_what_is_no_image_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(NotAnImageError) as caught:
        decode.decode(data)
    assert str(caught.value) == reason


# Pixels


@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_lossless_format_gives_its_pixels_back(kind: str) -> None:
    decoded = decode.decode(saved(PHOTO, kind.upper(), **LOSSLESS[kind]))
    assert np.array_equal(decoded.pixels, PIXELS)
    assert (decoded.source_height, decoded.source_width) == (24, 40)
    assert decoded.pixels.flags.c_contiguous and decoded.pixels.flags.writeable


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("color", ["rgb", "gray", "keep"])
def test_every_format_gives_what_color_asks_for(name: str, color: Color) -> None:
    decoded = decode.decode(ENCODINGS[name], color)
    assert decoded.pixels.ndim == (2 if color == "gray" else 3)
    assert decoded.pixels.dtype == np.uint8 and decoded.pixels.flags.c_contiguous


@pytest.mark.parametrize(
    ("data", "ndim", "reason"),
    [
        (saved(GRAY, "JPEG"), 2, "grey JPEG"),
        (saved(GRAY, "PNG"), 2, "grey PNG"),
        (saved(PHOTO.convert("LA"), "PNG"), 2, "grey with alpha"),
        (saved(PHOTO.convert("1"), "PNG"), 2, "black and white"),
        (saved(GRAY, "TIFF"), 2, "grey TIFF"),
        (saved(GRAY, "PPM"), 2, "PGM"),
        (saved(PHOTO.convert("P"), "PNG"), 3, "a palette has colours"),
        (saved(GRAY.convert("RGB"), "PNG"), 3, "three channels, though they are equal"),
    ],
)
def test_keep_gives_grey_for_grey_sources_only(data: bytes, ndim: int, reason: str) -> None:
    assert decode.decode(data, "keep").pixels.ndim == ndim, reason
    assert decode.decode(data, "rgb").pixels.shape == (24, 40, 3), reason


def test_gray_of_a_jpeg_is_the_luma_of_its_rgb() -> None:
    data = saved(PHOTO, "JPEG", quality=95)
    luma = np.asarray(Image.fromarray(decode.decode(data).pixels).convert("L"))
    assert off(decode.decode(data, "gray").pixels, luma) <= 2
    rgb_inside = saved(PHOTO, "JPEG", quality=95, keep_rgb=True)
    luma = np.asarray(Image.fromarray(decode.decode(rgb_inside).pixels).convert("L"))
    assert np.array_equal(decode.decode(rgb_inside, "gray").pixels, luma)


@pytest.mark.parametrize("mode", ["1", "LA", "P", "RGBA", "CMYK", "YCbCr", "LAB"])
def test_every_mode_of_tiff_comes_as_rgb(mode: str) -> None:
    image = PHOTO.convert(mode)
    expected = np.asarray(image.convert("RGB"))
    assert off(decode.decode(saved(image, "TIFF")).pixels, expected) <= 1


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("shape", [(64, 96), (65, 97), (71, 103)])
def test_a_jpeg_comes_at_the_scale_asked_for(scale: int, shape: tuple[int, int]) -> None:
    data = saved(PHOTO.resize(shape[::-1]), "JPEG", exif=oriented(6))
    decoded = decode.decode(data, scale=scale)
    assert decoded.pixels.shape == (-(-shape[1] // scale), -(-shape[0] // scale), 3)
    assert (decoded.source_height, decoded.source_width) == (shape[1], shape[0])


def test_other_formats_ignore_the_scale() -> None:
    assert decode.decode(saved(PHOTO, "PNG"), scale=8).pixels.shape == (24, 40, 3)


@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("kind", [".png", ".tiff"])
def test_16_bits_are_rounded_to_8(kind: str, alpha: bool) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (24, 40, 4 if alpha else 3), dtype=np.uint16)
    if alpha:
        values[:, :, 3] = 65535
    data = cv2.imencode(kind, values)[1].tobytes()
    expected = np.round(values[:, :, 2::-1] / 257).astype(np.uint8)
    assert np.array_equal(decode.decode(data).pixels, expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000"])
def test_16_bit_grey_is_rounded_to_8(kind: str) -> None:
    values = np.arange(0, 65536, 257 * 3 // 5, dtype=np.uint16).reshape(1, -1).repeat(8, 0)
    data = saved(Image.fromarray(values), kind)
    assert np.array_equal(decode.decode(data, "keep").pixels, np.round(values / 257).astype(np.uint8))


def test_a_16_bit_pgm_is_scaled_from_its_own_maximum() -> None:
    data = b"P5 3 1 1000\n" + struct.pack(">3H", 0, 500, 1000)
    assert decode.decode(data, "keep").pixels.tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_values_without_a_defined_range_are_refused(mode: str) -> None:
    with pytest.raises(ImageError, match="no defined range"):
        decode.decode(saved(GRAY.convert(mode), "TIFF"))


# Alpha, animations, CMYK


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_alpha_is_composed_on_white(mode: str, kind: str) -> None:
    image = Image.new("RGBA", (3, 1), (100, 100, 100, 0))
    image.putpixel((1, 0), (100, 100, 100, 128))
    image.putpixel((2, 0), (100, 100, 100, 255))
    pixels = decode.decode(saved(image.convert(mode), kind), "gray").pixels
    assert pixels.tolist() == [[255, 177, 100]]


@pytest.mark.parametrize(
    ("image", "options", "reason"),
    [
        (PHOTO.convert("P"), {"transparency": 7}, "one colour of a palette"),
        (PHOTO.convert("P"), {"transparency": bytes(255 - i for i in range(256))}, "a palette with alpha"),
        (GRAY, {"transparency": 60}, "one shade of grey"),
        (PHOTO, {"transparency": (60, 50, 60)}, "one colour"),
    ],
)
def test_transparent_colours_of_a_png_become_white(image: Image.Image, options: dict[str, object], reason: str) -> None:
    data = saved(image, "PNG", **options)
    with Image.open(io.BytesIO(data)) as opened:
        rgba = opened.convert("RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    expected = np.asarray(Image.alpha_composite(white, rgba).convert("RGB"))
    assert (expected == 255).all(axis=2).any(), reason
    assert off(decode.decode(data).pixels, expected) <= 1, reason


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GIF", {}),
        ("PNG", {}),
        ("PNG", {"default_image": True}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("MPO", {"quality": 95}),
    ],
)
def test_the_first_frame_of_several_is_taken(kind: str, options: dict[str, object]) -> None:
    flat = Image.new("RGB", PHOTO.size, (200, 30, 30))
    data = saved(flat, kind, save_all=True, append_images=[PHOTO.copy(), flat], **options)
    assert off(decode.decode(data).pixels, np.asarray(flat)) <= 2


def test_several_frames_or_pages_are_noticed() -> None:
    for kind, options in [("GIF", {}), ("PNG", {}), ("WEBP", {}), ("TIFF", {}), ("MPO", {})]:
        frames = [Image.new("RGB", PHOTO.size, color) for color in ("red", "green", "blue")]
        several = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert decode.decode(several).facts.several, kind
    for name in ENCODINGS:
        assert decode.decode(ENCODINGS[name]).facts.several == (name == "gif"), name


@pytest.mark.parametrize(
    ("data", "expected", "reason"),
    [
        (ENCODINGS["jpeg"], Facts("jpeg", "RGB", 6, "baseline", 75), "an ordinary one, turned"),
        (ENCODINGS["jpeg progressive"], Facts("jpeg", "RGB", 1, "progressive", 75), "progressive"),
        (ENCODINGS["jpeg CMYK"], Facts("jpeg", "CMYK", 1, "baseline", 75), "inks"),
        (ENCODINGS["png"], Facts("png", "RGB", 6), "PNG, turned"),
        (ENCODINGS["png palette"], Facts("png", "palette", transparent=True), "a palette with alpha"),
        (ENCODINGS["png 16"], Facts("png", "RGB", deep=True), "16 bits"),
        (saved(Image.new("RGBA", (9, 9), (1, 2, 3, 4)), "WEBP"), Facts("webp", "RGB", transparent=True), "alpha"),
        (saved(GRAY, "TIFF"), Facts("tiff", "grey"), "grey"),
        (saved(PHOTO.convert("1"), "PNG"), Facts("png", "grey"), "black and white"),
        (saved(PHOTO.convert("CMYK"), "TIFF"), Facts("tiff", "CMYK"), "inks in a TIFF"),
        (saved(PHOTO.convert("LAB"), "TIFF"), Facts("tiff", "LAB"), "Lab"),
        (saved(PHOTO, "PNG", icc_profile=SRGB), Facts("png", "RGB"), "a profile that changes nothing"),
        (saved(PHOTO, "PNG", icc_profile=SWAPPED), Facts("png", "RGB", profile=True), "a profile that does"),
        (saved(PHOTO, "JPEG", icc_profile=SWAPPED), Facts("jpeg", "RGB", 1, "baseline", 75, profile=True), "in a JPEG"),
        (saved(GRAY, "JPEG", icc_profile=GRAY_LINEAR), Facts("jpeg", "grey", 1, "baseline", 75, profile=True), "grey"),
    ],
)
def test_the_facts_tell_what_an_image_was(data: bytes, expected: Facts, reason: str) -> None:
    assert decode.decode(data).facts == expected, reason
    assert decode.decode(data, "gray", unfinished=True).facts == expected, reason


def without_adobe(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def test_cmyk_has_inverted_inks_with_and_without_an_adobe_marker() -> None:
    data = saved(PHOTO.convert("CMYK"), "JPEG", quality=98)
    with_marker, without = decode.decode(data), decode.decode(without_adobe(data))
    assert off(with_marker.pixels, PIXELS) <= 6
    assert np.array_equal(without.pixels, with_marker.pixels)
    assert with_marker.header is not None and not with_marker.plain


def test_an_arithmetic_coded_jpeg_is_decoded() -> None:
    data = base64.b64decode(
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAIBAQEBAQIBAQECAgICAgQDAgICAgUEBAMEBgUGBgYFBgYGBwkIBgcJBwYGCAsICQoKCgoK"
        "BggLDAsKDAkKCgr/yQALCAAIAAgBAREA/8wABgAQEAX/2gAIAQEAAD8A/wC5UE9+0si6i0qA9z1c/9k="
    )
    y, x = np.mgrid[0:8, 0:8]
    decoded = decode.decode(data, "keep")
    assert off(decoded.pixels, (x * 20 + y * 10).astype(np.uint8)) <= 1
    assert decoded.header is not None and not decoded.header.huffman


# Orientation


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", pytest.param("AVIF", marks=needs_avif)])
@pytest.mark.parametrize("value", range(1, 9))
def test_every_orientation_brings_the_same_upright_picture(kind: str, value: int) -> None:
    turned_back = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}[value]
    carrier = Image.fromarray(PIXELS)
    carrier.getexif()[0x0112] = turned_back
    stored = ImageOps.exif_transpose(carrier)
    quality = {"lossless": True} if kind == "WEBP" else {"quality": 98}
    options = {} if kind in ("PNG", "TIFF") else quality
    decoded = decode.decode(saved(Image.fromarray(np.asarray(stored)), kind, exif=oriented(value), **options))
    assert (decoded.source_height, decoded.source_width) == (24, 40)
    assert off(decoded.pixels, PIXELS) <= (0 if kind in ("PNG", "TIFF", "WEBP") else 12)


# Profiles


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", pytest.param("AVIF", marks=needs_avif)])
def test_a_profile_other_than_srgb_is_converted(kind: str) -> None:
    quality = {"lossless": True} if kind == "WEBP" else {"quality": 98}
    options = quality if kind in ("JPEG", "WEBP", "AVIF") else {}
    plain = decode.decode(saved(PHOTO, kind, **options)).pixels
    converted = decode.decode(saved(PHOTO, kind, icc_profile=SWAPPED, **options)).pixels
    assert off(converted, plain[:, :, ::-1]) <= 12  # its gamma is not quite sRGB's curve


def test_a_linear_profile_is_brightened_as_srgb_wants() -> None:
    data = saved(Image.new("RGB", (4, 4), (55, 55, 55)), "PNG", icc_profile=LINEAR)
    assert off(decode.decode(data).pixels, np.full((4, 4, 3), 128, np.uint8)) <= 2


def test_alpha_is_composed_after_the_conversion() -> None:
    image = Image.new("RGBA", (4, 4), (55, 55, 55, 128))
    data = saved(image, "PNG", icc_profile=LINEAR)
    assert off(decode.decode(data).pixels, np.full((4, 4, 3), 191, np.uint8)) <= 2


def test_a_grey_profile_is_applied_to_a_grey_image() -> None:
    image = Image.new("L", (4, 4), 55)
    for kind in ("JPEG", "PNG"):
        data = saved(image, kind, icc_profile=GRAY_LINEAR)
        assert off(decode.decode(data, "keep").pixels, np.full((4, 4), 128, np.uint8)) <= 2
        assert off(decode.decode(data, "rgb").pixels, np.full((4, 4, 3), 128, np.uint8)) <= 2


def test_a_cmyk_profile_is_applied_to_a_cmyk_image() -> None:
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    assert decode.decode(saved(cyan, "TIFF")).pixels[0, 0].tolist() == [0, 255, 255]
    for kind in ("TIFF", "JPEG"):
        pixels = decode.decode(saved(cyan, kind, icc_profile=black_only_profile())).pixels
        assert off(pixels, np.full((16, 16, 3), 255, np.uint8)) <= 3


@pytest.mark.parametrize(
    ("image", "icc", "reason"),
    [
        (PHOTO, SRGB, "sRGB already"),
        (PHOTO, GRAY_LINEAR, "a grey profile on colours"),
        (GRAY, LINEAR, "a profile for colours on grey"),
        (PHOTO, LINEAR[:200], "cut short"),
        (PHOTO, b"no profile", "no profile"),
        (PHOTO, LINEAR[:16] + b"\xff\xfe\xfd\xfc" + LINEAR[20:], "a colour space that is no text"),
    ],
)
def test_pixels_stay_as_they_are(image: Image.Image, icc: bytes, reason: str) -> None:
    for kind in ("JPEG", "PNG"):
        expected = decode.decode(saved(image, kind)).pixels
        assert np.array_equal(decode.decode(saved(image, kind, icc_profile=icc)).pixels, expected), reason


@pytest.mark.parametrize(
    ("icc", "expected", "reason"),
    [
        (SRGB, True, "the standard one"),
        (SWAPPED, False, "other primaries"),
        (LINEAR, False, "another curve"),
        (LINEAR.replace(b"made for a test", b"linear sRGB\0\0\0\0"), False, "sRGB by name alone"),
        (display_profile(2.2).replace(b"made for a test", b"sRGB Profile\0\0\0"), True, "sRGB, simplified"),
        (display_profile(2.2), False, "the same, not by that name"),
        (GRAY_LINEAR, False, "linear grey"),
        (black_only_profile(), False, "CMYK"),
        (b"broken", True, "of no use: what it is for is taken as sRGB"),
    ],
)
def test_a_profile_counts_as_srgb_by_its_effect(icc: bytes, expected: bool, reason: str) -> None:
    assert is_srgb(icc) is expected, reason


# Metadata


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", pytest.param("AVIF", marks=needs_avif)])
def test_exif_comes_as_the_bytes_of_a_tiff_file(kind: str) -> None:
    tags = Image.Exif()
    tags[0x010F] = "maker"
    exif = decode.decode(saved(PHOTO, kind, exif=tags.tobytes())).exif
    assert exif is not None and exif[:2] in (b"II", b"MM") and b"maker" in exif


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_xmp_is_handed_on(kind: str) -> None:
    assert decode.decode(saved(PHOTO, kind, xmp=b"<x/>")).xmp == b"<x/>"


@pytest.mark.parametrize("kind", ["JPEG", "GIF"])
def test_a_comment_is_handed_on(kind: str) -> None:
    assert decode.decode(saved(PHOTO, kind, comment=b"hello")).comment == b"hello"


# Broken and hostile files


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "ppm"])
def test_a_truncated_image_is_refused_with_a_reason(name: str) -> None:
    data = ENCODINGS[name]
    with pytest.raises(ImageError) as caught:
        decode.decode(data[: len(data) * 6 // 10 if name != "gif" else 600])
    assert len(str(caught.value)) > 10 and "\n" not in str(caught.value)


def test_a_jpeg_with_stray_bytes_goes_to_the_second_decoder() -> None:
    data = cv2.imencode(".jpg", PIXELS, [cv2.IMWRITE_JPEG_RST_INTERVAL, 1])[1].tobytes()
    at = data.index(b"\xff\xd1")
    stray = data[:at] + b"stray" + data[at:]
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(stray)
    decoded, sound = decode.decode(stray), decode.decode(data)
    assert np.array_equal(decoded.pixels, sound.pixels)
    assert sound.plain and not decoded.plain
    assert decoded.facts.tolerated and not sound.facts.tolerated


def test_broken_exif_does_not_fail_an_image() -> None:
    broken = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 30
    for kind in ("JPEG", "PNG", "WEBP"):
        assert decode.decode(saved(PHOTO, kind, exif=broken)).pixels.shape == (24, 40, 3)
    cmyk = saved(PHOTO.convert("CMYK"), "JPEG", exif=broken)
    assert decode.decode(cmyk).pixels.shape == (24, 40, 3)


def test_a_reason_is_the_same_every_time() -> None:
    for data in (ENCODINGS["png"][:60], ENCODINGS["webp"][:40], ENCODINGS["tiff"][:30]):
        reasons = set()
        for _ in range(3):
            with pytest.raises(ImageError) as caught:
                decode.decode(data)
            reasons.add(str(caught.value))
        assert len(reasons) == 1 and " at 0x" not in reasons.pop()


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


HUGE = 60_000
_HUGE_TIFF_TAGS = [(256, HUGE), (257, HUGE), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (279, 4)]
BOMBS = {
    "jpeg": jpeg_metadata.strip(saved(PHOTO, "JPEG")).replace(
        struct.pack(">HH", 24, 40), struct.pack(">HH", HUGE, HUGE), 1
    ),
    "png": b"\x89PNG\r\n\x1a\n"
    + png_chunk(b"IHDR", struct.pack(">IIBBBBB", HUGE, HUGE, 8, 2, 0, 0, 0))
    + png_chunk(b"IDAT", zlib.compress(bytes(1000))),
    "gif": b"GIF89a"
    + struct.pack("<HHBBB", HUGE, HUGE, 0, 0, 0)
    + b","
    + struct.pack("<4HB", 0, 0, 1, 1, 0)
    + b"\2\0;",
    "bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, HUGE, HUGE, 1, 24, 0, 0, 0, 0, 0, 0),
    "webp": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + struct.pack("<I", HUGE - 1)[:3] * 2,
    "tiff": b"II*\0\x08\0\0\0"
    + struct.pack("<H", len(_HUGE_TIFF_TAGS))
    + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in _HUGE_TIFF_TAGS)
    + bytes(4),
    "ppm": b"P6 60000 60000 255\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_too_many_pixels_are_refused_before_anything_is_decoded(name: str) -> None:
    with pytest.raises(ImageError, match=r"60000 x 60000 pixels, more than max_pixels allows \(178956970\)"):
        decode.decode(BOMBS[name])


@pytest.mark.parametrize("name", ENCODINGS)
def test_max_pixels_is_the_most_that_is_taken(name: str) -> None:
    assert decode.decode(ENCODINGS[name], max_pixels=24 * 40).format == name.split()[0]
    with pytest.raises(ImageError, match="max_pixels"):
        decode.decode(ENCODINGS[name], max_pixels=24 * 40 - 1)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF"])
def test_pillows_own_limit_does_not_count(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(PHOTO, kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode.decode(data).pixels.shape == (24, 40, 3)


def check_an_image_or_an_image_error(data: bytes) -> None:
    try:
        decoded = decode.decode(data, max_pixels=100_000)
    except ImageError as error:
        reason = str(error)
        assert reason and "\n" not in reason and " at 0x" not in reason
    else:
        assert decoded.pixels.dtype == np.uint8 and decoded.pixels.shape[2:] == (3,)
        assert decoded.pixels.shape[:2] == (decoded.source_height, decoded.source_width)


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from([data[:12] for data in ENCODINGS.values()] + [b""]), st.binary(max_size=100))
def test_any_bytes_give_an_image_or_an_image_error(start: bytes, rest: bytes) -> None:
    check_an_image_or_an_image_error(start + rest)


# Pillow warns about broken EXIF inside an AVIF and about a huge frame of a GIF, and cannot be asked not to.
@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_damaged_images_give_an_image_or_an_image_error(data: st.DataObject) -> None:
    whole = ENCODINGS[data.draw(st.sampled_from(sorted(ENCODINGS)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, min(len(whole), 300)), min_size=1, max_size=4)))
    pieces = [whole[a:b] + data.draw(st.binary(max_size=4)) for a, b in pairwise([0, *cuts])]
    skipped = data.draw(st.integers(0, 4))
    check_an_image_or_an_image_error(b"".join([*pieces, whole[cuts[-1] + skipped :]]))


@pytest.mark.parametrize("color", ["rgb", "gray", "keep"])
@pytest.mark.parametrize("name", ["jpeg", "jpeg progressive", "jpeg CMYK", "png", "webp"])
def test_what_is_left_unfinished_is_finished_to_the_same_pixels(name: str, color: Color) -> None:
    left = decode.decode(ENCODINGS[name], color, unfinished=True)
    whole = decode.decode(ENCODINGS[name], color)
    assert np.array_equal(decode.finish(left.pixels, left.icc, color), whole.pixels)
    assert left.pixels.flags.c_contiguous
    ordinary = name in ("jpeg", "jpeg progressive")
    assert left.pixels.shape[2:] == (() if color == "gray" else (4,) if ordinary else (3,))


@pytest.mark.parametrize("color", ["rgb", "gray", "keep"])
@pytest.mark.parametrize("icc", [SWAPPED, GRAY_LINEAR, None], ids=["swapped", "grey", "none"])
def test_an_unfinished_jpeg_keeps_its_profile_until_it_is_finished(icc: bytes | None, color: Color) -> None:
    for image in (PHOTO, GRAY):
        data = saved(image, "JPEG", **({"icc_profile": icc} if icc else {}))
        left, whole = decode.decode(data, color, unfinished=True), decode.decode(data, color)
        assert whole.icc is None
        assert off(decode.finish(left.pixels, left.icc, color), whole.pixels) <= 1


@pytest.mark.parametrize(("bits", "key"), [(2, 1), (4, 5), (8, 5)])
def test_the_transparent_grey_of_a_png_is_found_however_few_bits_it_has(bits: int, key: int) -> None:
    numbers = np.arange(1 << min(bits, 4), dtype=np.uint8)[np.newaxis]
    row = np.packbits(np.unpackbits(numbers[0][:, np.newaxis], axis=1)[:, -bits:].reshape(-1)).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", numbers.shape[1], 1, bits, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"tRNS", struct.pack(">H", key))
    data += chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    pixels = decode.decode(data, Wanted("rgba")).pixels
    assert np.array_equal(pixels[:, :, 3] == 0, numbers == key)


@pytest.mark.parametrize("color", ["rgba", "rgb"])
@pytest.mark.parametrize("depth", [8, 16])
def test_the_transparent_color_of_a_png_of_16_bits_is_compared_in_all_of_them(depth: Depth, color: Color) -> None:
    key, other = (0x1234, 0x5678, 0x9ABC), (0x3400, 0x7800, 0xBC00)  # whose high bytes are the low ones of the key
    pixels = np.array([[key, other, (0xFFFF, 0, 0)]], np.uint16)
    _, png = cv2.imencode(".png", pixels[:, :, ::-1])
    at = png.tobytes().index(b"IDAT") - 4
    chunk = b"tRNS" + struct.pack(">3H", *key)
    data = png.tobytes()
    data = data[:at] + struct.pack(">I", 6) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[at:]
    found = decode.decode(data, Wanted(color, depth)).pixels
    white = (1 << depth) - 1
    if color == "rgba":
        assert (found[0, :, 3] == [0, white, white]).all()
    else:
        assert (found[0, 0] == white).all() and (found[0, 1] != white).all()
