"""Bytes -> upright pixels in sRGB: ordinary JPEGs by presize.codecs.jpeg.decoder, all others by Pillow. By default,
profiles are converted, alpha is composited on white, and 16 bits are scaled to 8. Pure, thread-safe."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from PIL import Image

from presize.codecs import resize
from presize.codecs.icc import matrix_shaper, to_srgb
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.pillow_decoder import Decoded, Pixels, Wanted, decode_other, pixels_of, upright
from presize.codecs.plugins import load, open_image, reason
from presize.codecs.sniff import EXR, NPY, check_size, sniff
from presize.errors import ImageError, NotAnImageError
from presize.options import MAX_PIXELS, Color, Filter

_JPEG_MODE: Final = {"gray": "L", "CMYK": "CMYK", "YCCK": "CMYK"}


def decode(
    data: bytes,
    wanted: Wanted | Color = "rgb",
    max_pixels: int = MAX_PIXELS,
    scale: int = 1,
    header: jpeg_segments.JpegHeader | None = None,
    unfinished: bool = False,
    targets: list[resize.Target] | None = None,
    filter: Filter = "nearest",
) -> Decoded:
    """Decode an image to upright pixels of the format `wanted`. 16-bit pixels are uint16, with white 65535.

    Args:
        scale: 1, 2, 4 or 8: decode an ordinary JPEG at 1/scale, each side rounded up.
        header: the parsed header, if `data` is a JPEG.
        unfinished: for speed, a JPEG may stay in its own colours (`Decoded.icc`), or be BGRX with X = 255. `finish`
            converts it, cheaper after a resize. Not with "rgba" or 16 bits.
        targets: with `unfinished`, resize to these by `filter` while decoding if possible; in pixels at 1/scale.

    Raises NotAnImageError, and ImageError if the image is broken, exceeds `max_pixels`, or cannot be converted."""
    name = "jpeg" if header else sniff(data)
    if name is None:
        raise NotAnImageError(_why_no_image(data))
    if isinstance(wanted, str):
        wanted = Wanted(wanted)
    if name != "jpeg":
        return decode_other(data, name, max_pixels, wanted)
    header = header or jpeg_segments.parse(data)
    check_size(header.height, header.width, max_pixels)
    if header.precision > 8:
        raise ImageError(f"a JPEG of {header.precision} bits per channel; only those of 8 bits are supported")
    opaque = wanted._replace(color="rgb") if wanted.color == "rgba" else wanted
    decoded = _decode_jpeg(data, opaque, max_pixels, scale, header, unfinished, targets if unfinished else None, filter)
    if wanted == opaque and wanted.depth == 8:
        return decoded
    pixels = decoded.pixels
    if wanted.color == "rgba":
        pixels = np.dstack((pixels, np.full(pixels.shape[:2], 255, np.uint8)))
    return replace(decoded, pixels=wanted.deepened(pixels))


def _why_no_image(data: bytes) -> str:
    if not data:
        return "the file is empty"
    if data.startswith((NPY, EXR)):
        return "an array, not an image; --pair-format npy stores it as a companion"
    if data.startswith(b"PK\3\4"):
        return "a zip archive, such as .npz or .pt; unpack images, and save an array with numpy.save"
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page, not an image"
    return "not an image format that presize reads"


def finish(pixels: Pixels, icc: bytes | None, color: Color) -> Pixels:
    """Convert `pixels` from decode(unfinished=True), with the profile `icc` (None for sRGB), to sRGB and `color`."""
    if pixels.shape[2:] == (4,):
        import cv2  # slow, and not always needed

        pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGB), np.uint8)
    if icc is None:
        return pixels
    shaper = matrix_shaper(icc) if pixels.ndim == 3 else None
    if shaper is None:
        return pixels_of(Image.fromarray(pixels), icc, color)
    converted = shaper(pixels)
    return np.array(Image.fromarray(converted).convert("L")) if color == "gray" else converted


def _decode_jpeg(
    data: bytes,
    wanted: Wanted,
    max_pixels: int,
    scale: int,
    header: jpeg_segments.JpegHeader,
    unfinished: bool,
    targets: list[resize.Target] | None,
    filter: Filter,
) -> Decoded:
    color, shape = wanted.color, (header.height, header.width)
    icc = header.icc if wanted.icc == "convert" else None
    gray = header.colorspace == "gray"
    wants_gray = color == "gray" or (color == "keep" and gray)
    mode = _JPEG_MODE.get(header.colorspace, "RGB")
    has_profile = header.icc is not None and to_srgb(header.icc, mode) is not None
    convert = has_profile and icc is not None
    # Y of YCbCr is the luma of its RGB, unless a profile changes the RGB first.
    as_gray = gray if convert else wants_gray and header.colorspace != "RGB"
    converts_first = not convert and as_gray != wants_gray
    pixels: Pixels | None = None
    resized: list[Pixels] = []
    refusal: ValueError | None = None
    if header.colorspace in ("gray", "YCbCr", "RGB"):
        layout: jpeg_decoder.Mode = "RGB"
        if as_gray:
            layout = "GRAY"
        elif unfinished and (convert or not wants_gray):
            layout = "BGRX"
        try:
            if targets and header.orientation == 1 and header.process == "baseline" and not converts_first:
                resized = resize.decode_resized(data, layout, shape, scale, targets, filter)
            if resized:
                pixels = resized[0]
            else:
                pixels = jpeg_decoder.decode_whole(data, layout, shape, scale, max_pixels=max_pixels)
                pixels = pixels[:, :, 0] if as_gray else pixels
        except ValueError as error:
            refusal = error
    if pixels is None:
        jpeg_segments.check_scans(data, header.height * header.width, max_pixels)
        pixels = pixels_of(_second_opinion(data, refusal), icc, color)
        convert = False
    elif (convert and not unfinished) or converts_first:
        pixels = pixels_of(Image.fromarray(pixels), icc, color)
        convert = False
    facts = header.facts._replace(profile=has_profile, tolerated=refusal is not None)
    left = icc if convert else None
    pixels, metadata = upright(pixels, header.orientation), (header.exif, header.xmp, header.comment)
    return Decoded(pixels, header.upright_size, facts, left, *metadata, resized)


def _second_opinion(data: bytes, refusal: ValueError | None) -> Image.Image:
    """Decode a JPEG with Pillow, which also reads CMYK and tolerates stray bytes, but not a truncated file."""
    try:
        # Pillow inverts inks, as browsers do. It would read EXIF and warn about it, so the metadata is removed.
        image = open_image(jpeg_metadata.bare(data), "jpeg")
        load(image, "jpeg")
    except ImageError as error:
        raise ImageError(f"broken JPEG: {reason(refusal)}" if refusal else str(error)) from error
    return image
