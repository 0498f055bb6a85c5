"""Decoding of all images except ordinary JPEGs, by Pillow's plug-ins. Pure, thread-safe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImagePalette

from presize.codecs import plugins, sixteen
from presize.codecs.bands import bands_of, declares_alpha, jp2_boxes, plain
from presize.codecs.icc import to_srgb
from presize.codecs.plugins import load, open_image
from presize.codecs.sniff import PNG_BITS, bmp_with_palette, check_size, has_several, largest_icon, png_of, webp_size
from presize.codecs.source_facts import Colors, Facts
from presize.codecs.tiff import BITS, HEIGHT, PHOTOMETRIC, SAMPLE_FORMAT, WIDTH, find_image, orientation_of
from presize.errors import ImageError
from presize.options import Color, Depth, Icc, Size

Pixels = npt.NDArray[np.uint8]

# Excludes the chunks of animations (the default image is the first frame) and unused metadata.
_PNG_CHUNKS: Final = frozenset((b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"eXIf", b"iTXt", b"IDAT", b"IEND"))

PILLOW_SCALE: Final = {2: 85, 4: 17}
"""By bits of a grey value: the factor with which Pillow makes white 255."""

_J2K_BEGIN, _J2K_BITS = b"\xff\x4f\xff\x51", 42
"""First bytes of a JPEG 2000 codestream; offset of the byte with the first component's bits, less one, and a flag."""

_SIGNED, _FLOAT = 2, 3
"""Values of SAMPLE_FORMAT."""

_PPM_HEADER: Final = re.compile(rb"P[2356](?:(?:\s|#[^\r\n]*[\r\n])+([0-9]+)){3}")
"""Its group is the last of three numbers: the width, the height and the value of white."""
_GREY_MODES: Final = ("1", "L", "LA", "La", "I", "F")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded image, upright.

    Attributes:
        pixels: uint8 or uint16, C-contiguous: (height, width, 3) RGB, (height, width, 4) RGBA, (height, width) grey, or
            as decode(unfinished=True) allows.
        source: (height, width) of the whole image, upright; larger than `pixels` after a scaled decode.
        icc: the profile of the pixels if they are not converted yet; None for sRGB.
        exif: the bytes of a TIFF file, without the tags of a TIFF source.
        resized: the pixels for each target, if decode() has resized; `pixels` is then the first of them.
    """

    pixels: npt.NDArray[Any]
    source: Size
    facts: Facts
    icc: bytes | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    comment: bytes | None = None
    resized: Sequence[npt.NDArray[Any]] = ()


class Wanted(NamedTuple):
    """Pixel format to decode to; its fields are options of ImageOptions."""

    color: Color = "rgb"
    depth: Depth = 8
    icc: Icc = "convert"

    def deepened(self, pixels: Pixels) -> npt.NDArray[Any]:
        return sixteen.widened(pixels) if self.depth == 16 else pixels


class Opened(NamedTuple):
    """Image loaded from `data` with its stored pixels: not rotated upright, without extra bands. `facts` still lack
    `transparent` and `profile`, which only the conversion determines."""

    image: Image.Image
    data: bytes
    facts: Facts
    exif: bytes | None


def open_other(data: bytes, name: str, max_pixels: int) -> Opened:
    """Load an image of the format `name`, as returned by sniff()."""
    orientation = 1
    several = has_several(data, name)
    surplus = previewed = False
    if name == "png":
        data = png_of(data, _PNG_CHUNKS)
    elif name == "webp":
        check_size(*webp_size(data), max_pixels)  # opening a WebP allocates its pixels
    elif name == "tiff":
        tiff, fields, orientation, several, previewed = find_image(data)
        check_size(tiff.number(fields, HEIGHT, 0), tiff.number(fields, WIDTH, 0), max_pixels)
        bands = bands_of(tiff, fields)
        surplus = bands.has_surplus
        data = plain(tiff, fields, bands, max_pixels)
    elif name == "jxl":
        header = plugins.jxl_header(data)
        check_size(header.height, header.width, max_pixels)  # opening a JPEG XL decodes it
        if header.animated:
            raise ImageError("an animated JPEG XL, of which the plug-in reads only the last frame")
    form = name
    if name == "ico":
        data, form = largest_icon(data)
    elif name == "bmp":
        data = bmp_with_palette(data)
    try:
        opened = open_image(data, form)
        if name == "tiff" and bands.photometric == 0:
            opened.tag_v2[PHOTOMETRIC] = 0  # type: ignore[attr-defined]
        if name == "jpeg2000" and opened.palette is not None:
            opened.palette = jp2_palette(data, opened.palette)
        check_size(opened.height, opened.width, max_pixels)
        load(opened, name)
    except ImageError as error:
        if previewed:
            raise ImageError(f"a camera raw file; only its preview can be read ({error})") from error
        if name == "tiff":  # Pillow has no mode for colour images of these values
            if _FLOAT in (formats := tiff.numbers(fields, SAMPLE_FORMAT)):
                raise _without_range("floating-point") from error
            if _SIGNED in formats or max(tiff.numbers(fields, BITS), default=1) > 16:
                raise _without_range("signed or 32-bit") from error
        raise
    if name in ("webp", "avif", "heic"):
        several = getattr(opened, "n_frames", 1) > 1
    exif = _bytes(opened.info.get("exif"))
    if exif is not None:
        exif = exif.removeprefix(b"Exif\0\0")
        if name != "jxl" or getattr(opened, "jpeg", False):  # any other JPEG XL is decoded upright
            orientation = orientation_of(exif)
    image: Image.Image = opened
    if opened.mode in ("LA", "RGBA") and not declares_alpha(data, name):
        image, surplus = opened.convert(_opaque(opened.mode)), True
    deep = image.mode.startswith("I")
    if name in ("png", "tiff", "heic"):
        deep = 8 < sample_bits(image, data, name) <= 16
    elif name in ("jpeg2000", "sgi", "ppm", "avif", "jxl") and not deep:  # Pillow opens their colours with 8 bits
        deep = sample_bits(image, data, name) > 8 or (name == "ppm" and image.mode == "RGB" and ppm_white(data) > 255)
    if name == "jxl" and deep and opened.mode == "LA":  # the plug-in mixes up their bytes
        raise ImageError("more than 8 bits of grey with alpha are not supported in a JPEG XL")
    facts = Facts(name, colors_of(image.mode), orientation, deep=deep, several=several, surplus=surplus)
    return Opened(image, data, facts, exif)


def decode_other(data: bytes, name: str, max_pixels: int, wanted: Wanted) -> Decoded:
    image, data, facts, exif = open_other(data, name, max_pixels)
    icc = image.info.get("icc_profile")
    if not isinstance(icc, bytes) or image.mode == "LAB":
        icc = None
    deep = facts.deep and wanted.depth == 16
    if deep:
        values = _sixteen_bit(image, data, name)
        mode = ("L", "LA", "RGB", "RGBA")[values.shape[2] - 1]
    else:
        converted = _eight_bit(image, data, name)
        mode = converted.mode
    has_profile = icc is not None and to_srgb(icc, _opaque(mode)) is not None
    facts = facts._replace(transparent=mode in ("LA", "RGBA"), profile=has_profile)
    if wanted.icc == "ignore":
        icc, has_profile = None, False
    if not deep:
        pixels = wanted.deepened(pixels_of(converted, icc, wanted.color))
    elif has_profile:
        raise ImageError(
            "its colour profile cannot be converted with 16 bits; --icc ignore stores its pixels unconverted"
        )
    else:
        pixels = sixteen.in_color(values, wanted.color)
    pixels = upright(pixels, facts.orientation)
    xmp, comment = _bytes(image.info.get("xmp")), _bytes(image.info.get("comment"))
    return Decoded(pixels, Size(*pixels.shape[:2]), facts, exif=exif, xmp=xmp, comment=comment)


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) and value else None


def _eight_bit(image: Image.Image, data: bytes, name: str) -> Image.Image:
    """Convert the loaded `image` to one of the modes L, LA, RGB, RGBA, CMYK."""
    white, inverted = _white(image, data, name)
    if white:
        bands = sixteen.gray_values(image, white, inverted, top=255).astype(np.uint8)
        return Image.fromarray(bands if bands.shape[2] == 2 else bands[:, :, 0])
    converted = _converted(image, data, name)
    bits, has_colors = sample_bits(image, data, name), image.mode in ("LA", "RGB", "RGBA")
    if name == "jpeg2000" and bits > 8 and has_colors:  # Pillow would make white black
        return Image.fromarray(sixteen.rounded(_sixteen_bit(image, data, name)), converted.mode)
    if name == "jpeg2000" and bits < 8 and (has_colors or image.mode == "L"):  # Pillow shifts them: white is not 255
        top = (1 << bits) - 1
        shifted = (np.asarray(converted) >> 8 - bits).astype(np.uint16)
        return Image.fromarray(((shifted * 255 + top // 2) // top).astype(np.uint8))
    if bits == 16 and (name == "png" or (name == "tiff" and image.mode in ("RGB", "RGBA"))):
        values = sixteen.values_behind(converted, data, name)  # Pillow dropped the low byte
        return converted if values is None else Image.fromarray(sixteen.rounded(values), converted.mode)
    return converted


def _sixteen_bit(image: Image.Image, data: bytes, name: str) -> sixteen.Deep:
    """Return the 16-bit pixels of the loaded `image`: (height, width, 1 to 4) for L, LA, RGB, RGBA. Fewer bits, from 9,
    are scaled to 16."""
    white, inverted = _white(image, data, name)
    if white:
        return sixteen.gray_values(image, white, inverted)
    converted = _converted(image, data, name)
    top = {"jpeg2000": (1 << sample_bits(image, data, name)) - 1, "ppm": ppm_white(data)}.get(name, sixteen.WHITE)
    readable = name not in ("avif", "jxl") and converted.mode in ("LA", "RGB", "RGBA")
    values = sixteen.values_behind(converted, data, name, top) if readable else None
    if values is None:
        fix = "" if name == "jpeg2000" else "; --depth 8 scales them to 8 bits"
        raise ImageError(
            f"pixels of mode {image.mode} with more than 8 bits a channel are not supported in a {name.upper()}{fix}"
        )
    return values


def _white(image: Image.Image, data: bytes, name: str) -> tuple[int, bool]:
    """Return the largest value of grey of more than 8 bits (0 for other images), and whether it is black, not white."""
    if not (image.mode.startswith("I;16") or (image.mode == "I" and name == "ppm")):
        return 0, False
    is_12_bits = name == "tiff" and sample_bits(image, data, name) == 12
    return 4095 if is_12_bits else 65535, zero_is_white(image, name)


def zero_is_white(image: Image.Image, name: str) -> bool:
    """Return whether 0 is white in the file. Pillow itself inverts values of up to 8 bits."""
    return name == "tiff" and image.tag_v2.get(PHOTOMETRIC) == 0  # type: ignore[attr-defined]


def is_signed(image: Image.Image, name: str) -> bool:
    """Return whether the values in the file are signed integers. Pillow opens those of 8 bits as unsigned."""
    return name == "tiff" and _SIGNED in image.tag_v2.get(SAMPLE_FORMAT, ())  # type: ignore[attr-defined]


def sample_bits(image: Image.Image, data: bytes, name: str) -> int:
    """Return the largest number of bits of a sample in the file; 8 for formats that have only 8."""
    if name == "png":
        return data[PNG_BITS]
    if name == "tiff":
        return int(max(image.tag_v2.get(BITS, (1,))))  # type: ignore[attr-defined]
    if name == "heic":
        return int(image.info.get("bit_depth", 8))
    if name == "jpeg2000":
        return (_j2k_component(data) & 127) + 1
    if name == "avif":
        flags = data[data.find(b"av1C") + 6] & 0x60  # high bit depth, and in addition twelve bits
        return {0x40: 10, 0x60: 12}.get(flags, 8)
    if name == "jxl":
        return plugins.jxl_header(data).bits
    return 8 * data[3] if name == "sgi" else 8


def j2k_is_signed(data: bytes) -> bool:
    """Return whether the first numbers of a JPEG 2000 are signed: Pillow makes the smallest black."""
    return _j2k_component(data) > 127


def _j2k_component(data: bytes) -> int:
    begin = data.find(_J2K_BEGIN) + _J2K_BITS
    return int.from_bytes(data[begin : begin + 1])


def jp2_palette(data: bytes, palette: ImagePalette.ImagePalette) -> ImagePalette.ImagePalette:
    """Return the palette of a JP2 as it is in the file: Pillow leaves out repeated colours, so that others move."""
    box = next((content for kind, content in jp2_boxes(data) if kind == b"pclr"), b"")
    colors = box[3 + box[2] :] if len(box) > 2 else b""
    return ImagePalette.raw(palette.mode, colors) if colors else palette


def ppm_white(data: bytes) -> int:
    """Return the value of white in a PGM or PPM."""
    header = _PPM_HEADER.match(data)
    return 255 if header is None else int(header[1])


def _converted(image: Image.Image, data: bytes, name: str) -> Image.Image:
    """Convert with Pillow, which keeps only the high 8 bits of 16 in a channel."""
    mode = image.mode
    if mode in ("I", "F") or is_signed(image, name):
        raise _without_range("floating-point" if mode == "F" else "signed or 32-bit")
    if mode in ("P", "PA") and image.palette is None:
        raise ImageError(f"broken {name.upper()}: it has no palette")
    target = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "CMYK": "CMYK"}.get(mode, "RGB")
    if image.has_transparency_data:
        target = {"L": "LA", "RGB": "RGBA"}.get(target, target)
        if name == "png" and mode == "L" and data[PNG_BITS] in PILLOW_SCALE:  # Pillow scales the values, not the key
            image.info["transparency"] *= PILLOW_SCALE[data[PNG_BITS]]
    return image if mode == target else image.convert(target)


def _without_range(kind: str) -> ImageError:
    """Return the error of an image whose values have no known black and white."""
    return ImageError(f"{kind} pixel values are not supported: they have no defined range")


def colors_of(mode: str) -> Colors:
    if mode in _GREY_MODES or mode.startswith("I;16"):
        return "grey"
    if mode in ("P", "PA"):
        return "palette"
    return "CMYK" if mode == "CMYK" else "LAB" if mode == "LAB" else "RGB"


def _opaque(mode: str) -> str:
    return {"LA": "L", "RGBA": "RGB"}.get(mode, mode)


def pixels_of(image: Image.Image, icc: bytes | None, color: Color) -> Pixels:
    """Convert `image` (L, LA, RGB, RGBA or CMYK) to sRGB and `color`, composited on white unless that has alpha."""
    source_is_gray, opaque = image.mode in ("L", "LA"), _opaque(image.mode)
    transform = to_srgb(icc, opaque) if icc else None
    if image.mode == "RGBA" and color == "rgba" and transform is None:
        return np.array(image)
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    image.info.pop("transparency", None)  # already part of alpha; it would confuse conversions
    if alpha is not None:
        image = image.convert(opaque)
    if transform is not None:
        image = transform.apply(image)
    elif image.mode == "CMYK":
        image = image.convert("RGB")
    if color == "rgba":
        image = image.convert("RGB")
        image.putalpha(255 if alpha is None else alpha)
        return np.array(image)
    if alpha is not None:
        white = Image.new(image.mode, image.size, "white")
        white.paste(image, mask=alpha)
        image = white
    wanted = "L" if color == "gray" or (color == "keep" and source_is_gray) else "RGB"
    return np.array(image if image.mode == wanted else image.convert(wanted))


def upright(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Rotate and mirror `pixels` according to EXIF orientation 1 to 8. The result is C-contiguous."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])
