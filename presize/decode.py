"""Bytes -> upright 8-bit pixels in sRGB. Pure, deterministic for given library versions, thread-safe.

The policies, one by one: content decides what a format is; an ordinary JPEG goes to presize.baseline or
simplejpeg, all else to Pillow; the first frame of an animation; EXIF orientation applied; ICC profiles
converted to sRGB; alpha composed on white; 16 bits scaled to 8; floating point refused, for it has no
defined range.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from presize import baseline, jpeg
from presize.containers import first_tiff_frame, has_several, png_chunks, sniff, webp_size
from presize.errors import ImageError, NotAnImageError
from presize.facts import Colors, Facts
from presize.icc import matrix_shaper, to_srgb
from presize.options import MAX_PIXELS, Color

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Pixels = npt.NDArray[np.uint8]


# Straight to the one plugin: Image.open would try others, and would hold an image to Pillow's own limit.
_PLUGINS: Final = {
    "jpeg": "JpegImagePlugin.JpegImageFile",
    "png": "PngImagePlugin.PngImageFile",
    "gif": "GifImagePlugin.GifImageFile",
    "bmp": "BmpImagePlugin.BmpImageFile",
    "webp": "WebPImagePlugin.WebPImageFile",
    "tiff": "TiffImagePlugin.TiffImageFile",
    "ppm": "PpmImagePlugin.PpmImageFile",
    "avif": "AvifImagePlugin.AvifImageFile",
    "jpeg2000": "Jpeg2KImagePlugin.Jpeg2KImageFile",
}

# What Pillow raises for broken files, found by feeding it a million damaged ones of all formats.
_DECODER_ERRORS: Final = (
    OSError,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
    OverflowError,
    RuntimeError,
    TypeError,
    ZeroDivisionError,
    struct.error,
    zlib.error,
)

# Without those of an animation (the default image is its first frame) and of metadata nobody asks for.
_PNG_CHUNKS: Final = frozenset((b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"eXIf", b"iTXt", b"IDAT", b"IEND"))

_TIFF_BITS, _TIFF_PHOTOMETRIC = 258, 262

_JPEG_MODE: Final = {"gray": "L", "CMYK": "CMYK", "YCCK": "CMYK"}
_GREY_MODES: Final = ("1", "L", "LA", "La", "I", "F")


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image, upright, in sRGB unless `icc` says otherwise.

    pixels: (height, width, 3) RGB, (height, width) grey, or what `unfinished` leaves; C-contiguous.
    source_height, source_width: of the whole image, upright; larger than `pixels` after a scaled decode.
    icc: the profile that the pixels are in still, None for sRGB.
    header: of a JPEG. plain: a JPEG that the strict decoder read without complaint.
    exif (the bytes of a TIFF file), xmp, comment: as found; a TIFF's tags are not gathered into `exif`.
    facts: what the source was.
    """

    pixels: Pixels
    source_height: int
    source_width: int
    format: str
    icc: bytes | None = None
    header: jpeg.JpegHeader | None = None
    plain: bool = False
    exif: bytes | None = None
    xmp: bytes | None = None
    comment: bytes | None = None
    facts: Facts = Facts()


def decode(
    data: bytes,
    color: Color = "rgb",
    max_pixels: int = MAX_PIXELS,
    scale: int = 1,
    header: jpeg.JpegHeader | None = None,
    unfinished: bool = False,
) -> Decoded:
    """The image in `data`, of any format that `sniff` knows.

    color: "rgb" gives three channels, "gray" ITU-R 601 luma, "keep" grey where the source is grey.
    scale: 1, 2, 4 or 8. A JPEG that the fast decoder takes comes at 1/scale, each side rounded up.
    header: of this JPEG, if it is parsed already.
    unfinished: an ordinary JPEG may come in its own colours (`icc`), and with four channels, BGRX: the decoder
        is faster so, and resize and OpenCV's encoder take it without a copy. `finish` makes of it what is
        promised else, and is cheaper on the pixels that remain after a resize. X is 255.

    Raises NotAnImageError if it is no image, ImageError if it is broken, has more than `max_pixels`
    pixels (known before anything is decoded) or is of a kind that has no 8-bit meaning.
    """
    name = "jpeg" if header else sniff(data)
    if name is None:
        raise NotAnImageError(_why_no_image(data))
    if name == "jpeg":
        header = header or jpeg.parse(data)
        _check_size(header.height, header.width, max_pixels)
        return _decode_jpeg(data, color, scale, header, unfinished)
    return _decode_other(data, name, color, max_pixels)


def _why_no_image(data: bytes) -> str:
    if not data:
        return "the file is empty"
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page, not an image"
    return "not an image format that presize reads"


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise ImageError(f"{width} x {height} pixels, more than max_pixels allows ({max_pixels})")


def finish(pixels: Pixels, icc: bytes | None, color: Color) -> Pixels:
    """Pixels that were left unfinished, (height, width, 4) BGRX, (height, width, 3) RGB or (height, width)
    grey, with the profile `icc`: in sRGB and the colours asked for, as any others are."""
    if pixels.shape[2:] == (4,):
        import cv2  # 150 ms in each worker, and not all need it

        pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGB), np.uint8)
    if icc is None:
        return pixels
    shaper = matrix_shaper(icc) if pixels.ndim == 3 else None
    if shaper is None:
        return _finished(Image.fromarray(pixels), icc, color)
    converted = shaper.apply(pixels)
    return np.array(Image.fromarray(converted).convert("L")) if color == "gray" else converted


def _decode_jpeg(data: bytes, color: Color, scale: int, header: jpeg.JpegHeader, unfinished: bool) -> Decoded:
    gray = header.colorspace == "gray"
    wants_gray = color == "gray" or (color == "keep" and gray)
    mode = _JPEG_MODE.get(header.colorspace, "RGB")
    convert = has_profile = header.icc is not None and to_srgb(header.icc, mode) is not None
    # Y of YCbCr is the luma of the RGB that it stands for, unless a profile has to change that first.
    as_gray = gray if convert else wants_gray and header.colorspace != "RGB"
    leave = unfinished and (convert or not wants_gray)
    pixels: Pixels | None = None
    refusal: ValueError | None = None
    if header.colorspace in ("gray", "YCbCr", "RGB"):
        try:
            pixels = _strictly(data, "GRAY" if as_gray else "BGRX" if leave else "RGB", scale, header)
        except ValueError as error:
            refusal = error
    plain = pixels is not None
    if pixels is None:
        pixels = _finished(_second_opinion(data, refusal), header.icc, color)
        convert = False
    elif (convert and not unfinished) or (not convert and as_gray != wants_gray):
        pixels = _finished(Image.fromarray(pixels), header.icc, color)
        convert = False
    icc = header.icc if convert else None
    upright = _upright(pixels, header.orientation)
    height, width = header.height, header.width
    if header.orientation >= 5:
        height, width = width, height
    facts = Facts(
        "jpeg",
        _colors(mode),
        header.orientation,
        header.process,
        header.quality,
        deep=header.precision > 8,
        several=header.several,
        profile=has_profile,
        tolerated=refusal is not None,
    )
    return Decoded(upright, height, width, "jpeg", icc, header, plain, header.exif, header.xmp, header.comment, facts)


def _strictly(data: bytes, mode: baseline.Mode, scale: int, header: jpeg.JpegHeader) -> Pixels:
    """A JPEG without anything to warn of; raises ValueError for others."""
    pixels = baseline.decode(data, mode, (header.height, header.width)) if scale == 1 else None
    if pixels is None:
        height, width = (-(-header.height // scale), -(-header.width // scale)) if scale > 1 else (0, 0)
        pixels = np.asarray(simplejpeg.decode_jpeg(data, mode, min_height=height, min_width=width))
    return pixels[:, :, 0] if mode == "GRAY" else pixels


def _second_opinion(data: bytes, refusal: ValueError | None) -> Image.Image:
    """A JPEG by Pillow: it reads CMYK, too, always with Adobe's inverted inks as browsers do, and it
    takes stray bytes, which some real photographs have, but no file that ends too early."""
    try:
        # Without metadata, since Pillow would look into EXIF and warn about what it finds there.
        image = _opened(jpeg.bare(data), "jpeg")
        _load(image, "jpeg")
    except ImageError as error:
        raise ImageError(f"broken JPEG: {_reason(refusal)}" if refusal else str(error)) from error
    return image


def _decode_other(data: bytes, name: str, color: Color, max_pixels: int) -> Decoded:
    orientation = 1
    several = has_several(data, name)
    if name == "png":
        data = png_chunks(data, _PNG_CHUNKS)
    elif name == "webp":
        _check_size(*webp_size(data), max_pixels)  # opening it would allocate its pixels
    elif name == "tiff":
        orientation = jpeg.orientation_of(data)  # a TIFF is what EXIF is written as
        data = first_tiff_frame(data)
    image = _opened(data, name)
    _check_size(image.height, image.width, max_pixels)
    if name == "tiff":
        # Pillow holds TIFFs to its own limit, and warns, unless the memory is there already.
        image.im = Image.new(image.mode, image.size).im
    _load(image, name)
    icc = image.info.get("icc_profile")
    if not isinstance(icc, bytes) or image.mode == "LAB":
        icc = None
    exif = _bytes(image.info.get("exif"))
    if exif is not None:
        exif = exif.removeprefix(b"Exif\0\0")
        orientation = jpeg.orientation_of(exif)
    converted = _eight_bit(image, data, name)
    transparent = converted.mode in ("LA", "RGBA")
    has_profile = icc is not None and to_srgb(icc, _opaque(converted.mode)) is not None
    facts = Facts(
        name,
        _colors(image.mode),
        orientation,
        transparent=transparent,
        deep=_is_deep(image, data, name),
        several=several,
        profile=has_profile,
    )
    pixels = _upright(_finished(converted, icc, color), orientation)
    height, width = pixels.shape[:2]
    xmp, comment = _bytes(image.info.get("xmp")), _bytes(image.info.get("comment"))
    return Decoded(pixels, height, width, name, exif=exif, xmp=xmp, comment=comment, facts=facts)


def _opened(data: bytes, name: str) -> ImageFile:
    module, _, plugin = _PLUGINS[name].partition(".")
    image_file: Callable[[io.BytesIO], ImageFile] = getattr(importlib.import_module(f"PIL.{module}"), plugin)
    try:
        return image_file(io.BytesIO(data))
    except _DECODER_ERRORS as error:
        raise ImageError(f"broken {name.upper()}: {_reason(error)}") from error


def _load(image: ImageFile, name: str) -> None:
    try:
        image.load()
    except _DECODER_ERRORS as error:
        raise ImageError(f"broken {name.upper()}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The error in one line that is the same every time: no addresses, nothing unprintable."""
    cause = error.args[0] if error.args else None
    if isinstance(cause, KeyError):  # Pillow wraps those that mean a value it does not know
        return f"unknown value {cause}"
    text = re.sub(r"<[^<>]* at 0x[0-9a-fA-F]+>", "the file", str(error))
    text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())[:200] or type(error).__name__


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) and value else None


def _eight_bit(image: ImageFile, data: bytes, name: str) -> Image.Image:
    """The loaded `image` in one of the modes L, LA, RGB, RGBA, CMYK."""
    tags: Any = image.tag_v2 if name == "tiff" else {}  # type: ignore[attr-defined]
    mode, bits = image.mode, tags.get(_TIFF_BITS, ())
    if mode.startswith("I;16") or (mode == "I" and name == "ppm"):
        return _eight_bit_gray(image, white=4095 if 12 in bits else 65535, inverted=tags.get(_TIFF_PHOTOMETRIC) == 0)
    if mode in ("I", "F"):
        kind = "floating-point" if mode == "F" else "signed or 32-bit"
        raise ImageError(f"{kind} pixel values are not supported: they have no defined range")
    if mode in ("P", "PA") and image.palette is None:
        raise ImageError(f"broken {name.upper()}: it has no palette")
    target = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "CMYK": "CMYK"}.get(mode, "RGB")
    if image.has_transparency_data:
        target = {"L": "LA", "RGB": "RGBA"}.get(target, target)
    converted = image if mode == target else image.convert(target)
    if (name == "png" and data[24] == 16) or (16 in bits and mode in ("RGB", "RGBA")):
        return _rounded(converted, data, name)
    return converted


def _eight_bit_gray(image: ImageFile, white: int, inverted: bool) -> Image.Image:
    values = np.asarray(image).astype(np.uint32)
    shades = (white - values if inverted else values) * 255
    gray = Image.fromarray(((shades + white // 2) // white).astype(np.uint8))
    transparency = image.info.get("transparency")
    if transparency is None:
        return gray
    alpha = np.where(values == transparency, 0, 255).astype(np.uint8)
    return Image.merge("LA", (gray, Image.fromarray(alpha)))


def _rounded(image: Image.Image, data: bytes, name: str) -> Image.Image:
    """`image`, of 16 bits a channel, better than Pillow has it: rounded, where Pillow drops the low byte."""
    import cv2  # 150 ms in each worker, and seldom needed

    if name == "png":
        data = png_chunks(data, frozenset((b"IHDR", b"IDAT", b"IEND")))
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # it would print what it dislikes
    try:
        values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return image
    finally:
        cv2.utils.logging.setLogLevel(level)
    coarse = np.asarray(image)
    if values is None or values.dtype != np.uint16 or values.ndim != 3 or values.shape[:2] != coarse.shape[:2]:
        return image
    fine = np.asarray((values.astype(np.uint32) + 128) // 257, np.uint8)
    fine = fine[:, :, (1, 3) if image.mode == "LA" else (2, 1, 0, 3)[: fine.shape[2]]]
    bands = min(fine.shape[2], coarse.shape[2])
    # Where the two differ by more than rounding, OpenCV took the file for something else.
    if np.abs(fine[:, :, :bands].astype(np.int16) - coarse[:, :, :bands]).max() > 1:
        return image
    return Image.fromarray(np.concatenate((fine[:, :, :bands], coarse[:, :, bands:]), axis=2), image.mode)


def _colors(mode: str) -> Colors:
    """What the modes of Pillow mean by their colours."""
    if mode in _GREY_MODES or mode.startswith("I;16"):
        return "grey"
    if mode in ("P", "PA"):
        return "palette"
    return "CMYK" if mode == "CMYK" else "LAB" if mode == "LAB" else "RGB"


def _opaque(mode: str) -> str:
    return {"LA": "L", "RGBA": "RGB"}.get(mode, mode)


def _is_deep(image: ImageFile, data: bytes, name: str) -> bool:
    """True when more than 8 bits a channel were there to be scaled."""
    if name == "tiff":
        bits = image.tag_v2.get(_TIFF_BITS, ())  # type: ignore[attr-defined]
        return 12 in bits or 16 in bits
    return image.mode.startswith("I") or (name == "png" and data[24] == 16)


def _finished(image: Image.Image, icc: bytes | None, color: Color) -> Pixels:
    """`image`, of mode L, LA, RGB, RGBA or CMYK, in sRGB, on white, in the colours asked for."""
    source_is_gray = image.mode in ("L", "LA")
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    image.info.pop("transparency", None)  # it is in alpha by now, and would confuse conversions
    if alpha is not None:
        image = image.convert(_opaque(image.mode))
    transform = to_srgb(icc, image.mode) if icc else None
    if transform is not None:
        image = transform.apply(image)
    elif image.mode == "CMYK":
        image = image.convert("RGB")
    if alpha is not None:
        white = Image.new(image.mode, image.size, "white")
        white.paste(image, mask=alpha)
        image = white
    wanted = "L" if color == "gray" or (color == "keep" and source_is_gray) else "RGB"
    return np.array(image if image.mode == wanted else image.convert(wanted))


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """`pixels` turned and mirrored as EXIF orientation 1 to 8 says, C-contiguous."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])
