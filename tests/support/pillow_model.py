"""Slow model of Pillow's `resize` of 8-bit pixels, in integers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

BITS = 22
"""Bits of a weight."""

Pixels = npt.NDArray[np.uint8]
Weights = list[tuple[int, list[int]]]
"""First input pixel of each output pixel, and the weights of it and the following ones."""


def box(x: float) -> float:
    return 1.0 if -0.5 < x <= 0.5 else 0.0


def bilinear(x: float) -> float:
    return max(0.0, 1 - abs(x))


def hamming(x: float) -> float:
    x = abs(x)
    if x == 0 or x >= 1:
        return float(x == 0)
    x *= math.pi
    return math.sin(x) / x * (float(np.float32(0.54)) + float(np.float32(0.46)) * math.cos(x))


def bicubic(x: float, a: float = -0.5) -> float:
    x = abs(x)
    if x < 1:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def sinc(x: float) -> float:
    return 1.0 if x == 0 else math.sin(x * math.pi) / (x * math.pi)


def lanczos(x: float) -> float:
    return sinc(x) * sinc(x / 3) if -3 <= x < 3 else 0.0


FILTERS: dict[str, tuple[Callable[[float], float], float]] = {
    "box": (box, 0.5), "bilinear": (bilinear, 1.0), "hamming": (hamming, 1.0), "bicubic": (bicubic, 2.0),
    "lanczos": (lanczos, 3.0),
}  # fmt: skip
"""Functions of the weight at a distance, and their radius."""


def weights_of(inputs: int, begin: float, end: float, outputs: int, filter: str) -> Weights:
    weight, support = FILTERS[filter]
    first, last = np.float32(begin), np.float32(end)
    scale = float(last - first) / outputs
    stretch = max(scale, 1.0)
    support *= stretch
    found = []
    for output in range(outputs):
        centre = float(first) + (output + 0.5) * scale
        inside = range(max(0, int(centre - support + 0.5)), min(inputs, int(centre + support + 0.5)))
        exact = [weight((i - centre + 0.5) * (1.0 / stretch)) for i in inside]
        total = 0.0
        for one in exact:
            total += one
        exact = [one / total if total else one for one in exact]
        found.append((inside.start, [int((-0.5 if one < 0 else 0.5) + one * (1 << BITS)) for one in exact]))
    return found


def one_pass(pixels: Pixels, found: Weights) -> Pixels:
    """Resize along axis 1 and round to 8 bits."""
    result = np.empty((pixels.shape[0], len(found), *pixels.shape[2:]), np.uint8)
    for output, (first, weights) in enumerate(found):
        part = pixels[:, first : first + len(weights)].astype(np.int64)
        sums = np.tensordot(part, np.array(weights, np.int64), axes=([1], [0]))
        result[:, output] = ((sums + (1 << (BITS - 1))) >> BITS).clip(0, 255)
    return result


def resize(
    pixels: Pixels,
    size: tuple[int, int],
    filter: str,
    box: Sequence[float] | None = None,
    vertical_first: bool = False,
    alpha: bool = False,
) -> Pixels:
    """Resize `pixels` (height, width) or (height, width, channels) to `size` (height, width), like
    presize.codecs.pillow_resize."""
    if alpha:
        covering = pixels[:, :, 3:].astype(np.int64)
        premultiplied = np.dstack(((2 * covering * pixels[:, :, :3] + 255) // 510, covering)).astype(np.uint8)
        resized = resize(premultiplied, size, filter, box)
        colors, covering = resized[:, :, :3].astype(np.int64), resized[:, :, 3:].astype(np.int64)
        colors = np.where(covering > 0, (255 * colors // covering.clip(1)).clip(max=255), colors)
        return np.dstack((colors, covering)).astype(np.uint8)
    (height, width), (rows, columns) = size, pixels.shape[:2]
    left, top, right, bottom = (0, 0, columns, rows) if box is None else np.array(box, np.float32).tolist()
    passes = []
    if width != columns or left != 0 or right != width:
        passes.append((weights_of(columns, left, right, width, filter), False))
    if height != rows or top != 0 or bottom != height:
        passes.append((weights_of(rows, top, bottom, height, filter), True))
    if vertical_first and rows - height > 0 and rows - height > 2 * (columns - width):
        passes.reverse()
    for found, is_vertical in passes:
        pixels = one_pass(pixels.swapaxes(0, 1), found).swapaxes(0, 1) if is_vertical else one_pass(pixels, found)
    return pixels


class RowSink(ctypes.Structure):
    """The structure of presize/codecs/row_sink.h."""

    _fields_ = (
        ("height", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("take", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)),
    )


def give_rows(capsule: object, pixels: Pixels, rows: int) -> None:
    """Pass an image to a row sink, up to 31 `rows` at a time, like a decoder."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    sink = RowSink.from_address(pointer_of(capsule, b"presize.codecs.row_sink"))
    sink.count = rows + 1
    image = pixels.reshape(len(pixels), -1)
    for end in [*range(rows, len(image), rows), len(image)]:
        for y in range((end - 1) // rows * rows, end):
            ctypes.memmove(sink.rows + y % sink.count * sink.row_bytes, image[y].tobytes(), sink.row_bytes)
        sink.take(ctypes.addressof(sink), end)
