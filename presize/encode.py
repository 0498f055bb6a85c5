"""Pixels -> stored bytes. Pure, deterministic for given library versions, thread-safe."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, PngImagePlugin

from presize import jpeg
from presize.options import ImageOptions


class Metadata(NamedTuple):
    """What an image says about itself: EXIF as TIFF bytes, XMP, a JPEG comment. Empty by default."""

    exif: bytes | None = None
    xmp: bytes | None = None
    comment: bytes | None = None


def encode(pixels: npt.NDArray[np.uint8], options: ImageOptions, metadata: Metadata = Metadata()) -> bytes:
    """`pixels` (height, width, 3) RGB or (height, width) grey, C-contiguous, in the format asked for.

    jpeg: baseline, `quality`, `subsampling`. webp: lossy, `quality`. png: lossless, zlib level 6.
    raw: height x width x channels bytes, rows first, no header; it takes no metadata.
    """
    if options.format == "jpeg":
        value = _jpeg(pixels, options)
        return jpeg.with_metadata(value, *metadata) if any(metadata) else value
    if options.format == "raw":
        return pixels.tobytes()
    return _pillow(pixels, options, metadata)


def _jpeg(pixels: npt.NDArray[np.uint8], options: ImageOptions) -> bytes:
    if pixels.ndim == 2:
        gray = pixels[:, :, np.newaxis]
        return bytes(simplejpeg.encode_jpeg(gray, options.quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, options.quality, "RGB", options.subsampling))


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
