"""Pixels -> stored bytes. Pure, thread-safe, deterministic for given library versions."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, PngImagePlugin

from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import tiles as tiling
from presize.errors import ImageError
from presize.options import MAX_SIDE, ImageOptions

_CHANNELS = {3: "RGB", 4: "BGRX"}

MAX_JPEG_SIDE = 65_500
"""Limit of libjpeg, in pixels."""
_LONGEST = {"jpeg": ("JPEG", MAX_JPEG_SIDE), "webp": ("WebP", MAX_SIDE)}
"""Name and longest side in pixels of each limited format."""


class Metadata(NamedTuple):
    """Metadata to store: EXIF as TIFF bytes, XMP, and a JPEG comment. Empty by default."""

    exif: bytes | None = None
    xmp: bytes | None = None
    comment: bytes | None = None


def encode(pixels: npt.NDArray[Any], options: ImageOptions, metadata: Metadata = Metadata()) -> bytes:
    """Encode pixels in the format of `options`: jpeg is baseline, with a tile index unless `tiles` is "none"; webp is
    lossy; png has zlib level 6; raw is 8- or 16-bit little-endian numbers, row by row, without header or metadata.

    `pixels` are C-contiguous, (height, width, 3) RGB or (height, width) grey; (height, width, 4) is BGRX for jpeg and
    RGBA for the others. They are uint8, or uint16 for png and raw. Raises ImageError if a side is too long for the
    format."""
    name, longest = _LONGEST.get(options.format, ("", max(pixels.shape)))
    if max(pixels.shape[:2]) > longest:
        height, width = pixels.shape[:2]
        raise ImageError(f"{width}x{height} pixels exceed the limit of {name}: {longest} per side")
    if options.format == "jpeg":
        value = _jpeg(pixels, options)
        return jpeg_metadata.with_metadata(value, *metadata) if any(metadata) else value
    if options.format == "raw":
        return pixels.astype("<u2").tobytes() if pixels.dtype == np.uint16 else pixels.tobytes()
    if pixels.dtype == np.uint16:
        return _deep_png(pixels, metadata)
    return _pillow(pixels, options, metadata)


def _jpeg(pixels: npt.NDArray[np.uint8], options: ImageOptions) -> bytes:
    if options.tiles != "none":
        return _tiled_jpeg(pixels, options)
    if pixels.ndim == 2:
        gray = pixels[:, :, np.newaxis]
        return bytes(simplejpeg.encode_jpeg(gray, options.quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, options.quality, _CHANNELS[pixels.shape[2]], options.subsampling))


def _tiled_jpeg(pixels: npt.NDArray[np.uint8], options: ImageOptions) -> bytes:
    # simplejpeg cannot write restart markers; OpenCV can, with the same quantisation tables.
    import cv2  # slow, and not always needed

    if pixels.shape[2:] == (3,):
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)  # type: ignore[assignment]
    gray = pixels.ndim == 2
    mcu_width = 8 if gray or options.subsampling == "444" else 16
    interval = tiling.restart_interval(-(-pixels.shape[1] // mcu_width))
    parameters = [cv2.IMWRITE_JPEG_QUALITY, options.quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    if not gray:
        factor: int = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{options.subsampling}")
        parameters += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
    encoded, data = cv2.imencode(".jpg", pixels, parameters)
    if not encoded:
        raise ImageError("OpenCV could not encode it as JPEG")
    return tiling.with_index(data.tobytes())


def _pillow(pixels: npt.NDArray[np.uint8], options: ImageOptions, metadata: Metadata) -> bytes:
    extra: dict[str, Any] = {}
    if metadata.exif:
        extra["exif"] = metadata.exif
    if options.format == "webp":
        extra.update(quality=options.quality)
        if metadata.xmp:
            extra["xmp"] = metadata.xmp
    elif metadata.xmp:
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", metadata.xmp.decode("utf-8", "replace"))
        extra["pnginfo"] = text
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, options.format, **extra)
    return buffer.getvalue()


def _deep_png(pixels: npt.NDArray[np.uint16], metadata: Metadata) -> bytes:
    """Encode a 16-bit PNG with OpenCV: Pillow writes only grey ones. Metadata follows the header, the first chunk."""
    import cv2  # slow, and not always needed

    order = {(3,): [2, 1, 0], (4,): [2, 1, 0, 3]}.get(pixels.shape[2:])
    bgr = pixels if order is None else np.ascontiguousarray(pixels[:, :, order])
    encoded, data = cv2.imencode(".png", bgr, (cv2.IMWRITE_PNG_COMPRESSION, 6))
    if not encoded:
        raise ImageError("OpenCV could not encode it as PNG")
    png = data.tobytes()
    extra = b""
    if metadata.exif:
        extra += _png_chunk(b"eXIf", metadata.exif)
    if metadata.xmp:
        extra += _png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + metadata.xmp)
    return png[:_PNG_HEADER_END] + extra + png[_PNG_HEADER_END:]


_PNG_HEADER_END = 33


def _png_chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))
