"""Pillow's resize of 8-bit pixels, byte for byte, in a fraction of the time, if _pillow_resize.c is compiled.

The bytes depend neither on the processor nor on the installed Pillow. Without the compiled code, `resize` returns None,
and callers fall back to Pillow itself.

Versions of Pillow differ in the order of the two passes, and other libraries can replace Pillow. `resize_as_installed`
returns the bytes of the installed library, if `installed_order` recognizes it."""

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
"""In the order of the filters in resampling/resampling.h."""
Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels; may be fractional."""
Order = Literal["horizontal first", "vertical when it shrinks more", "another"]

_UINT8 = np.dtype(np.uint8)
_MOST_SIDE = (1 << 24) - 1


class Whole(NamedTuple):
    """Geometry for computing a part of the result from a part of an image. All in pixels.

    Attributes:
        shape: (height, width) of the whole image.
        start: (top, left) of `pixels` in the image; they must include all pixels that the filter needs.
        size: (height, width) of the whole result.
        corner: (top, left) of the computed part in the whole result.
    """

    shape: tuple[int, int]
    start: tuple[int, int]
    size: tuple[int, int]
    corner: tuple[int, int]


class How(TypedDict, total=False):
    """Options of a resize.

    Attributes:
        flip: mirror the result left to right.
        out: an array to fill and return; uint8, C-contiguous, of the shape of the result; must not overlap `pixels`.
        whole: the geometry, if pixels and result are parts of larger images; it decides the order of passes. Not with a
            box.
        vertical_first: use the order of passes of Pillow 13 and later: vertical first if an image loses more than twice
            as many rows as columns, whatever the box. The default is always horizontal first.
        alpha: treat the fourth channel as alpha, and weight colours by it; only horizontal first. By default it is a
            channel like the others.
    """

    flip: bool
    out: Pixels | None
    whole: Whole | None
    vertical_first: bool
    alpha: bool


def resize(
    pixels: Pixels, size: tuple[int, int], filter: Filter, box: Box | None = None, **how: Unpack[How]
) -> Pixels | None:
    """Return the result of Pillow's resize: uint8, C-contiguous. Thread-safe; releases the GIL.

    Args:
        pixels: uint8 (height, width) or (height, width, 1 to 4). The channels of a pixel and the pixels of a row must
            be adjacent; rows may be apart, in either order, and mirrored.
        size: (height, width) of the result.
        filter: the resampling filter.
        box: the part of the image to use, like Pillow's `box`; rounded to float32. None uses the whole image.
        how: options.

    Return None without the compiled code, and for other pixels, sizes or boxes. Raises MemoryError, and ValueError if
    `out` has the wrong shape or memory layout."""
    module = compiled.trusted()
    return None if module is None else resize_by(module, pixels, size, filter, box, level=module.level(), **how)


def resize_as_installed(
    pixels: Pixels, size: tuple[int, int], filter: Filter, box: Box | None = None, **how: Unpack[How]
) -> Pixels | None:
    """Resize like resize(), in the order of passes of the installed Pillow.

    Also return None if that order is unknown: for another library, and before Pillow 13 when reducing the height of an
    image over a hundred times as high as wide: Pillow 12.2 and 12.3 resize it vertically first; earlier versions do
    not."""
    order, whole = installed_order(), how.get("whole")
    shape, height = (pixels.shape, size[0]) if whole is None else (whole.shape, whole.size[0])
    is_tall = len(shape) > 1 and shape[0] > 100 * shape[1] and height < shape[0]
    if order == "another" or (order == "horizontal first" and is_tall):
        return None
    how["vertical_first"] = order == "vertical when it shrinks more"
    return resize(pixels, size, filter, box, **how)


def is_available() -> bool:
    """Return whether the compiled code is used. Otherwise resize always returns None."""
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
    """Resize like resize(), with `module` and its instructions up to `level`: 0 is plain C, 1 AVX2, 2 AVX-512."""
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
    if alpha:  # the C code needs both passes, even one that changes nothing
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
    if across is None and mirrored != flip:  # a table of columns includes the mirroring
        out[:] = out[:, ::-1].copy()
    return out


def row_sink(
    shape: tuple[int, int], out: Pixels, filter: Filter, box: Box, behind: object | None = None
) -> object | None:
    """Return a sink that resizes one image of `shape` (height, width) into `out`, horizontally first, row by row.

    jpeg_decoder.decode_into() passes it the rows, and completes `out` and the output of `behind`, another sink for the
    same image. A sink can be used once. The other arguments and the bytes are those of resize(). Return None if
    resize() would return None, and if an axis keeps its size."""
    module = compiled.trusted()
    rows, columns = _spans_of_box(shape, out.shape[:2], box) or (None, None)
    if module is None or rows is None or columns is None:
        return None
    level = module.level()
    down = _table(module, rows, filter, 0, False, False, 0)
    across = _table(module, columns, filter, math.prod(out.shape[2:]), False, False, level)
    return None if down is None or across is None else module.row_sink(*shape, out, across, down, level, behind)


Span = tuple[float, ...]
"""Resizing of one axis: the number of inputs, begin and end of the used part of them, and the number of outputs; for a
part, also the inputs and outputs of the whole, and how many of each are skipped."""
Spans = list[Span | None]
"""Spans of the rows and of the columns; None for an axis that keeps its size."""


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
    """Return the pixels of a part, cropped along each axis that is not resized, and its spans."""
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
        # Mirrored pixels run from right to left here.
        begin = inputs - outputs - begin if axis and mirrored else begin
        pixels = pixels[begin : begin + outputs] if axis == 0 else pixels[:, begin : begin + outputs]
        spans.append(None)
    return pixels, spans


def _table(
    module: ModuleType, span: Span, filter: Filter, channels: int, mirrored: bool, flip: bool, level: int
) -> bytes | None:
    """Return the weights of an axis (for rows, `channels` is 0); None if the C code cannot handle them.

    Tables of usual sizes are cached. A small one takes 45 kB at most, and 10 kB for random crops of photographs at
    256 px, which need fewer than 1024 tables. A large one takes 170 kB at most, and 60 kB for the columns of most
    ImageNet photographs. A thousand of these have 200 different widths."""
    inputs, begin, end, outputs, *part = span
    taps = 2 * _SUPPORT[filter] * max(outputs, end - begin) + outputs  # upper limit for all outputs together
    weights = (channels or 1) * taps
    make = _kept_table if weights < 8000 else _kept_large_table if weights < 40_000 else _make_table
    axis = (inputs, begin, end, outputs, _NUMBERS[filter], channels, mirrored, flip, level, *part)
    return make(module.table, *axis)


_NUMBERS = {name: number for number, name in enumerate(get_args(Filter))}
_SUPPORT = {"box": 0.5, "bilinear": 1, "hamming": 1, "bicubic": 2, "lanczos": 3}
"""Radius of each filter in pixels."""


def _make_table(table: Callable[..., bytes | None], *axis: Any) -> bytes | None:
    return table(*axis)


_kept_table = functools.lru_cache(1024)(_make_table)
_kept_large_table = functools.lru_cache(64)(_make_table)


# ---- self-check ----

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
"""Filter, shape of the image, size of the result, box, and CRC-32s of Pillow's bytes with each order of passes: always
horizontal first, and that of Pillow 13 and later. Tests compute them from the definition."""

TRIED_ALPHA: tuple[Filter, tuple[int, ...], tuple[int, int], int] = ("lanczos", (33, 70, 4), (25, 40), 0xDD906D53)
"""Filter, shape, size and checksum for an image with alpha."""


def noise(shape: tuple[int, ...]) -> Pixels:
    """Return deterministic noise. Half of the pixels are black or white, so that sums are clipped."""
    numbered = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(747796405)
    mixed = (numbered ^ (numbered >> 16)) * np.uint32(2246822519)
    hashed = mixed ^ (mixed >> 13)
    return ((hashed % 511).astype(np.int32) - 128).clip(0, 255).astype(np.uint8).reshape(shape)


@functools.cache
def installed_order() -> Order:
    """Return the order of passes of the installed Pillow.

    The first call in a process takes a few milliseconds. "another" means a library with different bytes, such as
    pillow-simd or a later Pillow: callers that want its bytes must call it."""
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
                return "its pixels differ from Pillow's"
    filter, shape, size, checksum = TRIED_ALPHA
    resized = resize_by(module, noise(shape), size, filter, alpha=True, level=module.level())
    if resized is None or zlib.crc32(resized.tobytes()) != checksum:
        return "its pixels differ from Pillow's for images with alpha"
    return None


compiled = Compiled(_pillow_resize, difference, "resizing", "Pillow resizes")
