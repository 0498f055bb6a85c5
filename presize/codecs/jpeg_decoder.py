"""Baseline JPEG -> pixels, faster than libjpeg-turbo and the same to the bit, where _jpeg_decoder.c could be compiled.

That takes a C compiler when presize is installed, and a processor with AVX2. All else here works without:
who gets None asks simplejpeg, as before.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

try:
    from presize.codecs import _jpeg_decoder as _compiled
except ImportError:
    _compiled = None  # type: ignore[assignment]

Pixels = npt.NDArray[np.uint8]
Mode = Literal["GRAY", "RGB", "BGRX"]

_CHANNELS = {"GRAY": 1, "RGB": 3, "BGRX": 4}


def is_available() -> bool:
    """False where it was not compiled or this processor has no AVX2: decode then gives None for everything."""
    return _compiled is not None


def decode(
    data: bytes | memoryview,
    mode: Mode,
    shape: tuple[int, int],
    box: tuple[int, int, int, int] | None = None,
    buffer: Pixels | None = None,
) -> Pixels | None:
    """What simplejpeg.decode_jpeg makes of `data`, or of a box of it: uint8 (height, width, channels), C-contiguous.

    None where it has to be asked itself: for anything that is not one sound baseline scan of 8 bits, grey or YCbCr,
    of chroma at full or half resolution; for an image that is not of `shape` (height, width); for damage.
    Of a JPEG with a tile index (presize.codecs.jpeg_tiles), only the tiles under the box are read and vouched for.

    box: top, left, height, width, in pixels, inside `shape`; None is all of it. mode: X is 255.
    buffer: uint8, flat, at least as large as the result, which then lies at its beginning. What is in it after None is
    not defined. Raises ValueError for a `shape` that no JPEG has and a box that does not lie in it, TypeError for a
    buffer that is too small.
    Thread-safe; lets other threads of Python run.
    """
    if _compiled is None:
        return None
    box = box or (0, 0, *shape)
    result = (*box[2:], _CHANNELS[mode])
    out = np.empty(result, np.uint8) if buffer is None else np.ndarray(result, np.uint8, buffer)
    return out if _compiled.decode(data, out, result[2], shape, box) else None


def tile_lengths(data: bytes, scan: int, tiles: int) -> bytes | None:
    """The lengths in bytes of the `tiles` tiles of `data` from `scan` to its end, each with the marker that ends it: 16
    bits each, the highest first. None where other markers are there than those of so many tiles, or in another order,
    or where a tile has more than 65,535 bytes.
    """
    if _compiled is not None and tiles <= len(data):
        return _compiled.tile_lengths(data, scan, tiles)
    values = np.frombuffer(data, np.uint8)
    # FF 00 stands for a byte FF; FF and anything else ends a tile.
    ends = np.flatnonzero((values[scan:-1] == 0xFF) & (values[scan + 1 :] != 0)) + (scan + 2)
    markers = (bytes(range(0xD0, 0xD8)) * (tiles // 8 + 1))[: tiles - 1] + b"\xd9"
    if values[ends - 1].tobytes() != markers or ends[-1] != len(data):
        return None
    lengths = np.diff(ends, prepend=scan)
    return None if lengths.max() > 0xFFFF else lengths.astype(">u2").tobytes()
