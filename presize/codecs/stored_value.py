"""A stored value -> pixels, for reading, verifying and comparing datasets. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from presize.codecs import jpeg_decoder
from presize.codecs.jpeg_segments import coded_size
from presize.errors import ImageError
from presize.options import MAX_SIDE, Color, Format

Pixels = npt.NDArray[np.uint8]


DAMAGE = (ValueError, ImageError)
"""What decode_value raises for damaged bytes."""


def decode_value(value: memoryview, format: Format, color: Color, shape: tuple[int, int]) -> Pixels:
    """Decode a stored value.

    Args:
        value: the bytes of a record.
        format: of the dataset.
        color: that the dataset was built for.
        shape: (height, width) of the image, in pixels; used by format "raw" alone.

    Returns:
        A new uint8 array, (height, width, 3) RGB or (height, width) grey.

    Raises:
        ValueError, ImageError: the value is damaged (see DAMAGE).
    """
    if format == "jpeg":
        return _decode_jpeg(value, color)
    if format == "raw":
        return _decode_raw(value, color, shape)
    from presize.codecs import decode  # brings Pillow, which JPEG does not need

    return decode.decode(bytes(value), color, MAX_SIDE**2).pixels


def _decode_jpeg(value: memoryview, color: Color) -> Pixels:
    height, width, is_gray = coded_size(value)
    if color == "keep":
        color = "gray" if is_gray else "rgb"
    mode: jpeg_decoder.Mode = "GRAY" if color == "gray" else "RGB"
    pixels = jpeg_decoder.decode_strictly(value, mode, (height, width))
    return pixels[:, :, 0] if color == "gray" else pixels


def _decode_raw(value: memoryview, color: Color, shape: tuple[int, int]) -> Pixels:
    height, width = shape
    if color == "gray" or (color == "keep" and len(value) == height * width):
        return np.array(value).reshape(height, width)
    return np.array(value).reshape(height, width, 3)
