"""Pillow's resize of 8-bit pixels, to the byte, in a fraction of the time, where _pillow_resize.c is compiled.

That takes a C compiler when presize is installed; AVX2 or AVX-512 is used where the processor has it. The bytes depend
neither on the processor nor on the Pillow that is installed. Without the compiled code, `resize` gives None, and
callers resize by Pillow itself.

Versions of Pillow differ in the order of the two passes, and other libraries take its place: `resize_as_installed`
makes the bytes of the installed one, where `installed_order` knows it.

At its first use in a process the compiled code resizes a few images of noise. If the bytes are not those of Pillow, the
code is switched off for the process, with a PresizeWarning. PRESIZE_DECODER=libjpeg in the environment switches it off
as well. A forked child inherits the outcome.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from presize.codecs.compiled import VARIABLE, Compiled, SwitchedOff

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
_KEPT_TABLES = 1024
"""More than random crops of photographs have at 256 px."""
_KEPT_WEIGHTS = 8000
"""Of a table that is kept: it then has some 45 kB at most, and 10 kB for a crop of that kind."""
_KEPT_LARGE_TABLES = 16
"""Of those up to five times as large: most photographs of a folder have a few sizes."""


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


def resize(
    pixels: Pixels,
    size: tuple[int, int],
    filter: Filter,
    box: Box | None = None,
    *,
    vertical_first: bool = False,
    flip: bool = False,
    out: Pixels | None = None,
    whole: Whole | None = None,
) -> Pixels | None:
    """Return what Pillow's resize makes of an image. Thread-safe; releases the GIL.

    Args:
        pixels: uint8 (height, width) or (height, width, 1 to 4), of any memory layout in which the channels of a pixel
            lie side by side, and the pixels of a row; rows may be apart, in either order, and mirrored. Alpha is a
            channel as the others are: premultiply it first, as Pillow does.
        size: (height, width) of the result, in pixels.
        filter: one of `Filter`.
        box: the part of the image that is used, as Pillow's `box`; cut to float32. None takes all of it.
        vertical_first: the order of passes of Pillow 13 and later, which is vertical first for an image that shrinks by
            more than twice as many rows as columns, whatever the box. The default is horizontal first, always.
        flip: mirror the result left to right.
        out: filled and returned; uint8, C-contiguous, of the shape of the result; must not overlap `pixels`.
        whole: the image, if `pixels` and the result are parts of it; it decides the order of passes. Not with `box`.

    Returns:
        uint8 (height, width) or (height, width, channels), C-contiguous. None for pixels, sizes or boxes that are not
        among those above, some of which Pillow takes and others of which it refuses, and without the compiled code.

    Raises:
        MemoryError: there is not enough.
        ValueError: `out` has another shape or memory layout.
    """
    module = compiled.trusted()
    if module is None:
        return None
    how: dict[str, Any] = {"vertical_first": vertical_first, "flip": flip, "out": out, "whole": whole}
    return resize_by(module, pixels, size, filter, box, **how, level=module.level())


def resize_as_installed(
    pixels: Pixels,
    size: tuple[int, int],
    filter: Filter,
    box: Box | None = None,
    *,
    flip: bool = False,
    out: Pixels | None = None,
    whole: Whole | None = None,
) -> Pixels | None:
    """As resize(), in the order of passes of the installed Pillow.

    Returns:
        None where that is not known, too: for another library; and for an image over a hundred times as high as wide
        that gets lower, unless Pillow is 13 or later: 12.2 and 12.3 resize it vertically first, earlier ones do not.
    """
    order = installed_order()
    shape, height = (pixels.shape, size[0]) if whole is None else (whole.shape, whole.size[0])
    is_tall = len(shape) > 1 and shape[0] > 100 * shape[1] and height < shape[0]
    if order == "another" or (order == "horizontal first" and is_tall):
        return None
    vertical_first = order == "vertical when it shrinks more"
    return resize(pixels, size, filter, box, vertical_first=vertical_first, flip=flip, out=out, whole=whole)


def is_available() -> bool:
    """Whether _pillow_resize.c is compiled, and nothing has switched it off. Otherwise resize always gives None."""
    return compiled.trusted() is not None


def resize_by(
    module: ModuleType,
    pixels: Pixels,
    size: tuple[int, int],
    filter: Filter,
    box: Box | None = None,
    *,
    vertical_first: bool = False,
    flip: bool = False,
    out: Pixels | None = None,
    whole: Whole | None = None,
    level: int,
) -> Pixels | None:
    """As resize(), by `module` (_pillow_resize.c), with instructions up to a level: 0 for plain C, 1 for AVX2, 2 for
    AVX-512."""
    shape, strides, (height, width) = pixels.shape, pixels.strides, size
    if pixels.dtype != _UINT8 or not 2 <= len(shape) <= 3 or filter not in _NUMBERS:
        return None
    rows, columns, channels = shape if len(shape) == 3 else (*shape, 1)
    if not (0 < rows <= _MOST_SIDE and 0 < columns <= _MOST_SIDE and 0 < channels <= 4):
        return None
    if not (0 < height <= _MOST_SIDE and 0 < width <= _MOST_SIDE):
        return None
    mirrored = columns > 1 and strides[1] == -channels
    if (channels > 1 and strides[2] != 1) or (columns > 1 and not mirrored and strides[1] != channels):
        return None
    if mirrored:
        pixels = pixels[:, ::-1]
    if whole is not None:
        return _resize_part(module, pixels, whole, filter, size, vertical_first, mirrored, flip, out, level)
    tables = _tables(module, (rows, columns), size, filter, box, channels, mirrored, flip, level)
    if tables is None:
        return None
    vertical_first = vertical_first and rows - height > 0 and rows - height > 2 * (columns - width)
    return _resized(module, pixels, size, *tables, vertical_first, mirrored != flip, out, level)


def row_sink(shape: tuple[int, int], out: Pixels, filter: Filter, box: Box) -> object | None:
    """Begin to resize an image of `shape` (height, width) into `out`, horizontally first, once.

    jpeg_decoder.decode_into() gives its rows, and completes `out`. Arguments and bytes are those of resize(). None
    where resize() gives None, and where an axis keeps its size.
    """
    module = compiled.trusted()
    if module is None:
        return None
    channels, level = math.prod(out.shape[2:]), module.level()
    tables = _tables(module, shape, out.shape[:2], filter, box, channels, False, False, level)
    return None if tables is None or None in tables else module.row_sink(*shape, out, *tables, level)


def _tables(
    module: ModuleType,
    shape: tuple[int, int],
    size: tuple[int, ...],
    filter: Filter,
    box: Box | None,
    channels: int,
    mirrored: bool,
    flip: bool,
    level: int,
) -> tuple[bytes | None, bytes | None] | None:
    """The weights of columns and of rows, None for an axis that keeps its size. None where they are not for the C."""
    (rows, columns), (height, width) = shape, size
    left, top, right, bottom = 0.0, 0.0, float(columns), float(rows)
    if box is not None:
        left, top, right, bottom = box
        if not (-1 < left < columns and -1 < top < rows and 0 < right < columns + 1 and 0 < bottom < rows + 1):
            return None
        left, top, right, bottom = np.array(box, np.float32).tolist()
    across = down = None
    if height != rows or top != 0 or bottom != height:
        down = _table(module, rows, top, bottom, height, filter, 0, False, False, 0)
        if down is None:
            return None
    if width != columns or left != 0 or right != width:
        across = _table(module, columns, left, right, width, filter, channels, mirrored, flip, level)
        if across is None:
            return None
    return across, down


def _resize_part(
    module: ModuleType,
    pixels: Pixels,
    whole: Whole,
    filter: Filter,
    size: tuple[int, int],
    vertical_first: bool,
    mirrored: bool,
    flip: bool,
    out: Pixels | None,
    level: int,
) -> Pixels | None:
    """As resize_by() of a part of an image."""
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    tables: list[bytes | None] = []
    for axis in (0, 1):
        inputs, outputs = pixels.shape[axis], size[axis]
        shape, start, resized, corner = (sides[axis] for sides in whole)
        if shape == resized:  # this axis is not resized, only cut
            begin = corner - start
            if not 0 <= begin <= inputs - outputs:
                return None
            # Mirrored pixels are turned round here, from right to left.
            begin = inputs - outputs - begin if axis and mirrored else begin
            pixels = pixels[begin : begin + outputs] if axis == 0 else pixels[:, begin : begin + outputs]
            tables.append(None)
            continue
        turned = (channels, mirrored, flip, level) if axis else (0, False, False, 0)
        table = _table(module, inputs, 0.0, float(shape), outputs, filter, *turned, shape, resized, start, corner)
        if table is None:
            return None
        tables.append(table)
    down, across = tables
    rows, columns = (whole.shape[axis] - whole.size[axis] for axis in (0, 1))
    vertical_first = vertical_first and rows > 0 and rows > 2 * columns
    return _resized(module, pixels, size, across, down, vertical_first, mirrored != flip, out, level)


def _resized(
    module: ModuleType,
    pixels: Pixels,
    size: tuple[int, int],
    across: bytes | None,
    down: bytes | None,
    vertical_first: bool,
    turned: bool,
    out: Pixels | None,
    level: int,
) -> Pixels:
    """`pixels` resized by tables of weights, and mirrored if `turned`, for which a table of columns sees itself."""
    result = (*size, *pixels.shape[2:])
    if out is None:
        out = np.empty(result, np.uint8)
    elif out.shape != result or out.dtype != _UINT8 or not out.flags.c_contiguous:
        raise ValueError(f"out: expected uint8 {result}, C-contiguous, got {out.dtype} {out.shape}")
    if across is None and down is None:
        out[:] = pixels
    else:
        module.resize(pixels, out, across, down, vertical_first, level)
    if across is None and turned:
        out[:] = out[:, ::-1].copy()
    return out


_NUMBERS = {name: number for number, name in enumerate(get_args(Filter))}
_SUPPORT = {"box": 0.5, "bilinear": 1, "hamming": 1, "bicubic": 2, "lanczos": 3}
"""Pixels that a pixel is blended of, to either side."""


def _table(
    module: ModuleType,
    inputs: int,
    begin: float,
    end: float,
    outputs: int,
    filter: Filter,
    channels: int,
    mirrored: bool,
    flipped: bool,
    level: int,
    *part: int,
) -> bytes | None:
    """The weights of an axis; those of usual sizes are kept. `part` is for parts: inputs and outputs of the whole, and
    how many of them are skipped."""
    axis = (inputs, begin, end, outputs, _NUMBERS[filter], channels, mirrored, flipped, level, *part)
    taps = 2 * _SUPPORT[filter] * max(outputs, end - begin) + outputs  # of all outputs, at most
    weights = (channels or 1) * taps
    if weights >= 5 * _KEPT_WEIGHTS:
        return _make_table(module.table, *axis)
    return (_kept_table if weights < _KEPT_WEIGHTS else _kept_large_table)(module.table, *axis)


def _make_table(table: Callable[..., bytes | None], *axis: Any) -> bytes | None:
    return table(*axis)


_kept_table = functools.lru_cache(_KEPT_TABLES)(_make_table)
_kept_large_table = functools.lru_cache(_KEPT_LARGE_TABLES)(_make_table)


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


def check(module: ModuleType, setting: str) -> SwitchedOff | None:
    """Return why `module` (_pillow_resize.c) must not be used, if so: PRESIZE_DECODER or the self-check."""
    if setting == "no-avx2":
        module.use_avx2(False)
    elif setting not in ("", "auto"):
        return SwitchedOff("environment", f"{VARIABLE}={setting}")
    if _is_right(module):
        return None
    return SwitchedOff(
        "self-check",
        "it makes other pixels than Pillow",
        "presize's own resizing failed its self-check and is switched off in this process. Pillow resizes instead: "
        "slower, and the pixels are right. Please report it",
    )


def _is_right(module: ModuleType) -> bool:
    for filter, shape, size, box, expected in TRIED:
        for vertical_first in (False, True):
            resized = resize_by(
                module, noise(shape), size, filter, box, vertical_first=vertical_first, level=module.level()
            )
            if resized is None or zlib.crc32(resized.tobytes()) != expected[vertical_first]:
                return False
    return True


compiled = Compiled(_pillow_resize, check)
