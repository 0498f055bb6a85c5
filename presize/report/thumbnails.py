"""Pixels -> the small JPEGs that pages embed. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import simplejpeg

from presize.codecs import resize
from presize.options import Size

Pixels = npt.NDArray[np.uint8]


def thumbnail(pixels: Pixels, side: int) -> Pixels:
    """`pixels` uint8 (height, width, 3) or (height, width), antialiased, so that no side is longer than `side`."""
    target = resize.target(Size(*pixels.shape[:2]), Size(side, side), "longer", upscale=False)
    return resize.resize(pixels, target, "bilinear", "cykooz")


def jpeg_of(pixels: Pixels, quality: int = 80, subsampling: str = "420") -> bytes:
    """A JPEG of uint8 (height, width, 3) RGB or (height, width) grey."""
    if pixels.ndim == 2:
        return bytes(simplejpeg.encode_jpeg(pixels[:, :, np.newaxis], quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", subsampling))
