"""Stored value -> pixels, for reading, verifying and comparing datasets. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from presize.codecs.arrays import decode_array, index_size
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.segments import coded_size
from presize.codecs.sniff import check_size
from presize.errors import ImageError, OptionError
from presize.options import MAX_PIXELS, Color, CompanionFormat, StoredColor

Pixels = npt.NDArray[Any]

DAMAGE = (ValueError, ImageError, MemoryError)
"""Exceptions that decode_value raises for damaged bytes, or when memory is too small for the pixels."""


def check_shape(found: tuple[int, int], expected: tuple[int, int]) -> None:
    """Raise ValueError unless an image has the (height, width) of the index."""
    if found != expected:
        raise ValueError(
            f"it is {found[0]} pixels high and {found[1]} wide, but the index says {expected[0]} and {expected[1]}"
        )


def decode_value(
    value: memoryview,
    format: CompanionFormat,
    color: StoredColor,
    shape: tuple[int, int],
    max_pixels: int = MAX_PIXELS,
    depth: int = 8,
) -> Pixels:
    """Decode a stored value of this format, color and depth.

    Return a new uint8 or uint16 array: (height, width, 3) RGB, (height, width, 4) RGBA or (height, width) grey; for
    "npy", an array of any numeric type and shape. `shape` is the (height, width) from the index: an image with more
    pixels is refused before memory is allocated. Raises the exceptions in DAMAGE, also for another shape."""
    check_size(*shape, max_pixels)
    if format == "npy":
        values = decode_array(value)
        check_shape(index_size(values.shape), shape)
        return values
    if format == "raw":
        return _decode_raw(value, color, shape, depth)
    if format == "jpeg" and color != "exact":
        return _decode_jpeg(value, color, shape, max_pixels)
    from presize.codecs import decode, exact, pillow_decoder  # imports Pillow, which JPEG does not need

    if color == "exact":
        pixels = exact.decode_exact(bytes(value), shape[0] * shape[1])[0]
    else:
        wanted = pillow_decoder.Wanted(color, 16 if depth == 16 else 8, "ignore")
        pixels = decode.decode(bytes(value), wanted, shape[0] * shape[1]).pixels
    check_shape((pixels.shape[0], pixels.shape[1]), shape)
    return pixels


def decode_jpeg(
    data: bytes | memoryview,
    *,
    gray: bool = False,
    box: tuple[int, int, int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Decode a JPEG like presize's readers, with the pixels of libjpeg-turbo. Thread-safe; releases the GIL.

    presize's own decoder decodes intact baseline JPEGs of 8 bits, grey or YCbCr; of a JPEG in tiles, only the tiles
    under the box. libjpeg-turbo decodes all others. EXIF orientation and colour profiles are ignored.

    Args:
        data: the JPEG.
        gray: return only the luma channel.
        box: (top, left, height, width) in pixels, inside the image; None decodes all of it.
        max_pixels: refuse an image of more pixels before allocating memory.

    Returns:
        A new uint8 array, (height, width, 3) RGB, or (height, width) with `gray`.

    Raises:
        ImageError: `data` is not a JPEG, is damaged, or has too many pixels.
        OptionError: `box` is not inside the image.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise OptionError(f"data: expected bytes, got {data!r:.100}")
    if bytes(data[:2]) != b"\xff\xd8":
        raise ImageError("not a JPEG: it does not begin with FF D8")
    try:
        height, width, _ = coded_size(data)
        check_size(height, width, max_pixels)
        top, left, rows, columns = (0, 0, height, width) if box is None else box
        if not (0 <= top < top + rows <= height and 0 <= left < left + columns <= width):
            raise OptionError(f"box: expected (top, left, height, width) in {width} x {height} pixels, got {box}")
        mode: jpeg_decoder.Mode = "GRAY" if gray else "RGB"
        pixels = jpeg_decoder.decode(data, mode, (height, width), box)
        if pixels is None:
            shape = (height, width)
            whole = jpeg_decoder.decode_with_libjpeg(data, mode, shape, 1, max_pixels=max_pixels, strict=False)
            pixels = np.ascontiguousarray(whole[top : top + rows, left : left + columns])
    except OptionError:
        raise
    except ValueError as error:
        raise ImageError(f"cannot be decoded as a JPEG: {error}") from None
    return pixels[:, :, 0] if gray else pixels


def _decode_jpeg(value: memoryview, color: Color, shape: tuple[int, int], max_pixels: int) -> Pixels:
    height, width, is_gray = coded_size(value)
    check_shape((height, width), shape)
    if color == "keep":
        color = "gray" if is_gray else "rgb"
    mode: jpeg_decoder.Mode = "GRAY" if color == "gray" else "RGB"
    # Not strict: a JPEG that a build stored unchanged may have stray bytes.
    pixels = jpeg_decoder.decode_whole(value, mode, shape, max_pixels=max_pixels, strict=False)
    return pixels[:, :, 0] if color == "gray" else pixels


def _decode_raw(value: memoryview, color: StoredColor, shape: tuple[int, int], depth: int) -> Pixels:
    pixels = shape[0] * shape[1]
    if color == "exact":  # 8-bit numbers or, for grey, 16-bit ones
        depth = 16 if len(value) == 2 * pixels else 8
    numbers = np.array(value) if depth == 8 else np.frombuffer(value, "<u2").astype(np.uint16)
    if color == "gray" or (color in ("keep", "exact") and numbers.size == pixels):
        return numbers.reshape(shape)
    return numbers.reshape(*shape, 4 if color == "rgba" else 3)
