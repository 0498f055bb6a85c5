"""Pillow's resize of 8-bit pixels, to the byte, in a fraction of the time, where _pillow_resize.c is compiled.

The bytes depend neither on the processor nor on the Pillow that is installed. Without the compiled code, `resize` gives
None, and callers resize by Pillow itself.

Versions of Pillow differ in the order of the two passes, and other libraries take its place: `resize_as_installed`
makes the bytes of the installed one, where `installed_order` knows it.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from presize.codecs.compiled import Compiled

try:
    from presize.codecs import _pillow_resize
except ImportError:
    _pillow_resize = None  # type: ignore[assignment]

Pixels = npt.NDArray[np.uint8]
Filter = Literal["box", "bilinear", "hamming", "bicubic", "lanczos"]
"""In the order of resampling/resampling.h."""
Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels; fractions are parts of a pixel."""
Order = Literal["horizontal first", "vertical when it shrinks more", "another"]

_UINT8 = np.dtype(np.uint8)
_MOST_SIDE = (1 << 24) - 1


class Whole(NamedTuple):
    """The image whose part is resized, to a part of the result. All in pixels.

    Attributes:
        shape: its (height, width).
        start: (top, left) of the part that `pixels` are; they hold all that the filter needs.
        size: (height, width) to which it would be resized.
        corner: (top, left) of the part of that which is made.
    """

    shape: tuple[int, int]
    start: tuple[int, int]
    size: tuple[int, int]
    corner: tuple[int, int]


class How(TypedDict, total=False):
    """Options of a resize.

    Attributes:
        flip: mirror the result left to right.
        out: filled and returned; uint8, C-contiguous, of the shape of the result; must not overlap the pixels.
        whole: the image, if the pixels and the result are parts of it; it decides the order of passes. Without a box.
        vertical_first: the order of passes of Pillow 13 and later, which is vertical first for an image that shrinks by
            more than twice as many rows as columns, whatever the box. The default is horizontal first, always.
        alpha: the fourth channel is alpha, and colours count as much as they cover; horizontal first alone. By default
            it is a channel as the others are.
    """

    flip: bool
    out: Pixels | None
    whole: Whole | None
    vertical_first: bool
    alpha: bool


def resize(
    pixels: Pixels, size: tuple[int, int], filter: Filter, box: Box | None = None, **how: Unpack[How]
) -> Pixels | None:
    """Return what Pillow's resize makes of an image: uint8, C-contiguous. Thread-safe; releases the GIL.

    Args:
        pixels: uint8 (height, width) or (height, width, 1 to 4), of any memory layout in which the channels of a pixel
            lie side by side, and the pixels of a row; rows may be apart, in either order, and mirrored.
        size: (height, width) of the result.
        filter: how to resample.
        box: the part of the image that is used, as Pillow's `box`; cut to float32. None takes all of it.
        how: options.

    None without the compiled code, and for pixels, sizes or boxes that are not among those above. Raises MemoryError,
    and ValueError if `out` has another shape or memory layout."""
    module = compiled.trusted()
    return None if module is None else resize_by(module, pixels, size, filter, box, level=module.level(), **how)


def resize_as_installed(
    pixels: Pixels, size: tuple[int, int], filter: Filter, box: Box | None = None, **how: Unpack[How]
) -> Pixels | None:
    """Resize like resize(), in the order of passes of the installed Pillow.

    None where that is not known, too: for another library; and for an image over a hundred times as high as wide that
    gets lower, unless Pillow is 13 or later: 12.2 and 12.3 resize it vertically first, earlier ones do not.
    """
    order, whole = installed_order(), how.get("whole")
    shape, height = (pixels.shape, size[0]) if whole is None else (whole.shape, whole.size[0])
    is_tall = len(shape) > 1 and shape[0] > 100 * shape[1] and height < shape[0]
    if order == "another" or (order == "horizontal first" and is_tall):
        return None
    how["vertical_first"] = order == "vertical when it shrinks more"
    return resize(pixels, size, filter, box, **how)


def is_available() -> bool:
    """Return whether the compiled code is used. Otherwise resize always gives None."""
    return compiled.trusted() is not None


def resize_by(
    module: ModuleType,
    pixels: Pixels,
    size: tuple[int, int],
    filter: Filter,
    box: Box | None = None,
    *,
    level: int,
    flip: bool = False,
    out: Pixels | None = None,
    whole: Whole | None = None,
    vertical_first: bool = False,
    alpha: bool = False,
) -> Pixels | None:
    """Resize like resize(), by `module`, with instructions up to a level: 0 for plain C, 1 for AVX2, 2 for AVX-512."""
    shape, strides = pixels.shape, pixels.strides
    if pixels.dtype != _UINT8 or not 2 <= len(shape) <= 3 or filter not in _NUMBERS:
        return None
    rows, columns, channels = shape if len(shape) == 3 else (*shape, 1)
    sides = (rows, columns, *size)
    if min(sides) < 1 or max(sides) > _MOST_SIDE or not 0 < channels <= 4:
        return None
    mirrored = columns > 1 and strides[1] == -channels
    if (channels > 1 and strides[2] != 1) or (columns > 1 and not mirrored and strides[1] != channels):
        return None
    if mirrored:
        pixels = pixels[:, ::-1]
    spans: Spans | None
    if whole is None:
        source, target, spans = (rows, columns), size, _spans_of_box((rows, columns), size, box)
    else:
        source, target = whole.shape, whole.size
        pixels, spans = _spans_of_part(pixels, size, whole, mirrored)
    fewer_rows, fewer_columns = source[0] - target[0], source[1] - target[1]
    vertical_first = vertical_first and fewer_rows > 0 and fewer_rows > 2 * fewer_columns
    if spans is None or (alpha and (channels != 4 or vertical_first)):
        return None
    if alpha:  # a pass that changes nothing, which the C does not leave out
        spans = [span or (side, 0.0, float(side), side) for span, side in zip(spans, size, strict=True)]
    rows_span, columns_span = spans
    across = down = None
    if rows_span is not None:
        down = _table(module, rows_span, filter, 0, False, False, 0)
        if down is None:
            return None
    if columns_span is not None:
        across = _table(module, columns_span, filter, channels, mirrored, flip, level)
        if across is None:
            return None
    result = (*size, *pixels.shape[2:])
    if out is None:
        out = np.empty(result, np.uint8)
    elif out.shape != result or out.dtype != _UINT8 or not out.flags.c_contiguous:
        raise ValueError(f"out: expected uint8 {result}, C-contiguous, got {out.dtype} {out.shape}")
    if across is None and down is None:
        out[:] = pixels
    else:
        module.resize(pixels, out, across, down, vertical_first, level, alpha)
    if across is None and mirrored != flip:  # a table of columns sees to that itself
        out[:] = out[:, ::-1].copy()
    return out


def row_sink(
    shape: tuple[int, int], out: Pixels, filter: Filter, box: Box, behind: object | None = None
) -> object | None:
    """Begin to resize an image of `shape` (height, width) into `out`, horizontally first, once.

    jpeg_decoder.decode_into() gives its rows, and completes `out`, and that of `behind`: another sink of this image.
    Other arguments and bytes are those of resize(). None where resize() gives None, and where an axis keeps its size.
    """
    module = compiled.trusted()
    rows, columns = _spans_of_box(shape, out.shape[:2], box) or (None, None)
    if module is None or rows is None or columns is None:
        return None
    level = module.level()
    down = _table(module, rows, filter, 0, False, False, 0)
    across = _table(module, columns, filter, math.prod(out.shape[2:]), False, False, level)
    return None if down is None or across is None else module.row_sink(*shape, out, across, down, level, behind)


Span = tuple[float, ...]
"""How an axis is resized: its inputs, where the part of them begins and ends that is used, and the outputs. Of a part
also the inputs and outputs of the whole, and how many of them are skipped."""
Spans = list[Span | None]
"""Of the rows and of the columns; None where they keep their size."""


def _spans_of_box(shape: tuple[int, int], size: tuple[int, ...], box: Box | None) -> Spans | None:
    (rows, columns), (height, width) = shape, size
    left, top, right, bottom = 0.0, 0.0, float(columns), float(rows)
    if box is not None:
        left, top, right, bottom = box
        if not (-1 < left < columns and -1 < top < rows and 0 < right < columns + 1 and 0 < bottom < rows + 1):
            return None
        left, top, right, bottom = np.array(box, np.float32).tolist()
    return [
        None if height == rows and top == 0 and bottom == height else (rows, top, bottom, height),
        None if width == columns and left == 0 and right == width else (columns, left, right, width),
    ]


def _spans_of_part(pixels: Pixels, size: tuple[int, int], whole: Whole, mirrored: bool) -> tuple[Pixels, Spans | None]:
    """The spans of a part, and its pixels, cut along an axis that is not resized."""
    spans: Spans = []
    for axis in (0, 1):
        inputs, outputs = pixels.shape[axis], size[axis]
        shape, start, resized, corner = (sides[axis] for sides in whole)
        if shape != resized:
            spans.append((inputs, 0.0, float(shape), outputs, shape, resized, start, corner))
            continue
        begin = corner - start
        if not 0 <= begin <= inputs - outputs:
            return pixels, None
        # Mirrored pixels are turned round here, from right to left.
        begin = inputs - outputs - begin if axis and mirrored else begin
        pixels = pixels[begin : begin + outputs] if axis == 0 else pixels[:, begin : begin + outputs]
        spans.append(None)
    return pixels, spans


def _table(
    module: ModuleType, span: Span, filter: Filter, channels: int, mirrored: bool, flip: bool, level: int
) -> bytes | None:
    """The weights of an axis, of rows without channels; None where they are not for the C. Those of usual sizes are
    kept: small tables have some 45 kB at most, and 10 kB for random crops of photographs at 256 px, which have fewer
    than 1024; most photographs of a folder have a few sizes."""
    inputs, begin, end, outputs, *part = span
    taps = 2 * _SUPPORT[filter] * max(outputs, end - begin) + outputs  # of all outputs, at most
    weights = (channels or 1) * taps
    make = _kept_table if weights < 8000 else _kept_large_table if weights < 40_000 else _make_table
    axis = (inputs, begin, end, outputs, _NUMBERS[filter], channels, mirrored, flip, level, *part)
    return make(module.table, *axis)


_NUMBERS = {name: number for number, name in enumerate(get_args(Filter))}
_SUPPORT = {"box": 0.5, "bilinear": 1, "hamming": 1, "bicubic": 2, "lanczos": 3}
"""Pixels that a pixel is blended of, to either side."""


def _make_table(table: Callable[..., bytes | None], *axis: Any) -> bytes | None:
    return table(*axis)


_kept_table = functools.lru_cache(1024)(_make_table)
_kept_large_table = functools.lru_cache(16)(_make_table)


# ---- what is tried ----

TRIED: tuple[tuple[Filter, tuple[int, ...], tuple[int, int], Box | None, tuple[int, int]], ...] = (
    ("bilinear", (23, 17, 3), (40, 37), None, (0x5D4000D4, 0x5D4000D4)),
    ("bilinear", (70, 61, 3), (33, 30), None, (0x78046E0E, 0x78046E0E)),
    ("bicubic", (90, 30, 3), (20, 25), None, (0xF57C77C4, 0x291D1573)),
    ("bicubic", (40, 52, 4), (30, 37), None, (0x1B570F87, 0x1B570F87)),
    ("bicubic", (9, 400, 3), (14, 31), None, (0x2EE6E596, 0x2EE6E596)),
    ("lanczos", (70, 25), (24, 41), None, (0x85475311, 0x94AF2202)),
    ("lanczos", (33, 200, 4), (30, 13), None, (0xB0D83E13, 0xB0D83E13)),
    ("lanczos", (12, 500), (9, 40), None, (0x95A0A1D0, 0x95A0A1D0)),
    ("box", (60, 50, 3), (17, 23), None, (0x3E00F50F, 0x3E00F50F)),
    ("hamming", (40, 50, 3), (27, 49), (3.25, 0.5, 47.125, 39.0), (0xF891E5DA, 0x94B145F8)),
)
"""Filter, shape of the image, size of the result and box, and the checksums of the bytes that Pillow makes with the
passes in either order, the second one of 13 and later; tests compute them from the definition."""

TRIED_ALPHA: tuple[Filter, tuple[int, ...], tuple[int, int], int] = ("lanczos", (33, 70, 4), (25, 40), 0xDD906D53)
"""The same of an image with alpha."""


def noise(shape: tuple[int, ...]) -> Pixels:
    """The same pixels always: half of them are black or white, where sums are clipped."""
    numbered = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(747796405)
    mixed = (numbered ^ (numbered >> 16)) * np.uint32(2246822519)
    hashed = mixed ^ (mixed >> 13)
    return ((hashed % 511).astype(np.int32) - 128).clip(0, 255).astype(np.uint8).reshape(shape)


@functools.cache
def installed_order() -> Order:
    """The order of passes of the installed Pillow.

    The first call in a process takes a few milliseconds. "another" is a library that makes other bytes, such as
    pillow-simd or a later Pillow: callers that want its bytes resize by it.
    """
    possible = [True, True]
    for filter, shape, (height, width), box, expected in TRIED:
        mode = {1: "L", 3: "RGB", 4: "RGBX"}[math.prod(shape[2:])]
        image = Image.frombytes(mode, (shape[1], shape[0]), noise(shape).tobytes())
        checksum = zlib.crc32(image.resize((width, height), Image.Resampling[filter.upper()], box).tobytes())
        possible = [one and checksum == each for one, each in zip(possible, expected, strict=True)]
    horizontal, vertical = possible
    return "horizontal first" if horizontal else "vertical when it shrinks more" if vertical else "another"


def difference(module: ModuleType) -> str | None:
    """Describe how `module` (_pillow_resize.c) differs from Pillow; None if it does not."""
    for filter, shape, size, box, expected in TRIED:
        for vertical_first in (False, True):
            how: dict[str, Any] = {"vertical_first": vertical_first, "level": module.level()}
            resized = resize_by(module, noise(shape), size, filter, box, **how)
            if resized is None or zlib.crc32(resized.tobytes()) != expected[vertical_first]:
                return "it makes other pixels than Pillow"
    filter, shape, size, checksum = TRIED_ALPHA
    resized = resize_by(module, noise(shape), size, filter, alpha=True, level=module.level())
    if resized is None or zlib.crc32(resized.tobytes()) != checksum:
        return "it makes other pixels than Pillow of images with alpha"
    return None


compiled = Compiled(_pillow_resize, difference, "resizing", "Pillow resizes")
