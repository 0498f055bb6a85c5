"""Images of 16 bits a channel: reading the values that Pillow drops, and conversion to the stored colours. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from presize.codecs.sniff import PNG_IMAGE, png_of
from presize.options import Color

Deep = npt.NDArray[np.uint16]

WHITE = 65535


def gray_values(image: Image.Image, white: int, inverted: bool, top: int = WHITE) -> Deep:
    """Scale grey of more than 8 bits so that `white`, or 0 if `inverted`, becomes `top`. Return (height, width, 1), or
    (height, width, 2) with alpha if one value is transparent."""
    values = np.asarray(image).astype(np.uint32)
    shades = white - values if inverted else values
    if top != white:
        shades = (shades * top + white // 2) // white
    transparency = image.info.get("transparency")
    if transparency is None:
        return shades.astype(np.uint16)[:, :, np.newaxis]
    return np.stack((shades, np.where(values == transparency, 0, top)), axis=-1).astype(np.uint16)


def values_behind(coarse: Image.Image, data: bytes, name: str, white: int = WHITE) -> Deep | None:
    """Read the values of more than 8 bits of an image with OpenCV, and scale them so that `white` becomes 65535.
    `coarse` (LA, RGB or RGBA, of the same shape) has Pillow's high 8 bits. None if OpenCV cannot read the file or
    interprets it differently."""
    import cv2  # slow, and seldom needed

    key = None
    if name == "png":
        key = _transparent_color(data)
        data = png_of(data, PNG_IMAGE)
    log: Any = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # before and since OpenCV 4.13
    level = log.getLogLevel()
    log.setLogLevel(0)  # silent: it would print warnings
    try:
        values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    finally:
        log.setLogLevel(level)
    shallow = np.asarray(coarse)
    if values is None or values.dtype != np.uint16 or values.ndim != 3 or values.shape[:2] != shallow.shape[:2]:
        return None
    channels = (1, 3) if coarse.mode == "LA" else (2, 1, 0, 3)[: values.shape[2]]
    deep = values.take(channels, axis=2)  # C-contiguous, unlike values[:, :, channels]
    if white != WHITE:
        deep = ((deep.astype(np.uint32) * WHITE + white // 2) // white).astype(np.uint16)
    bands = min(deep.shape[2], shallow.shape[2])
    difference = rounded(deep[:, :, :bands]).astype(np.int16) - shallow[:, :, :bands]
    if name == "jpeg2000":
        if bands < shallow.shape[2]:
            return None
        difference = (difference + 128) % 256 - 128  # Pillow rounds white up to 256, which becomes 0
    # If the two differ by more than rounding, OpenCV interpreted the file differently.
    if np.abs(difference).max() > 1:
        return None
    others = widened(shallow[:, :, bands:])
    if key is not None and others.shape[2] == 1:  # Pillow compares only the high bytes with the key
        others = np.where((deep == key).all(axis=2, keepdims=True), 0, WHITE)
    return np.asarray(np.concatenate((deep[:, :, :bands], others), axis=2), np.uint16)


def _transparent_color(data: bytes) -> npt.NDArray[np.uint16] | None:
    """Return the colour of a PNG's tRNS chunk, (3,); None without one."""
    chunk = png_of(data, (b"tRNS",))[8:]
    return np.frombuffer(chunk, ">u2", 3, 8).astype(np.uint16) if len(chunk) >= 18 else None


def rounded(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Round 16-bit values to 8 bits."""
    return np.asarray((values.astype(np.uint32) + 128) // 257, np.uint8)


def widened(pixels: npt.NDArray[Any]) -> Deep:
    """Scale 8-bit values to 16 bits: 255 becomes 65535."""
    return np.asarray(np.multiply(pixels, 257, dtype=np.uint16))


def in_color(values: Deep, color: Color) -> Deep:
    """Convert (height, width, 1 to 4), which is grey, grey and alpha, RGB or RGBA, to `color`, composited on white
    unless `color` has alpha."""
    gray = values.shape[2] <= 2
    shades, alpha = (values[:, :, :-1], values[:, :, -1:]) if values.shape[2] in (2, 4) else (values, None)
    if alpha is not None and color != "rgba":
        cover = alpha.astype(np.uint32)
        shades = ((shades * cover + WHITE * (WHITE - cover) + WHITE // 2) // WHITE).astype(np.uint16)
    if color == "gray" or (color == "keep" and gray):
        return shades[:, :, 0] if gray else _luma(shades)
    shades = np.repeat(shades, 3, axis=2) if gray else shades
    if color != "rgba":
        return np.ascontiguousarray(shades)
    opaque = np.full((*shades.shape[:2], 1), WHITE, np.uint16)
    return np.asarray(np.concatenate((shades, opaque if alpha is None else alpha), axis=2))


def _luma(shades: Deep) -> Deep:
    """Return the luma of ITU-R 601, with Pillow's weights for 8 bits."""
    weighted = shades.astype(np.uint32) * np.array((19595, 38470, 7471), np.uint32)
    return np.asarray(weighted.sum(axis=2, dtype=np.uint32) + 0x8000 >> 16, np.uint16)
