"""Baseline JPEG -> pixels, faster than libjpeg-turbo and bit for bit the same, if _jpeg_decoder.c is compiled.

Without it, and for unusual JPEGs, `decode` returns None, and callers fall back to simplejpeg's libjpeg-turbo."""

from __future__ import annotations

from types import ModuleType
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import simplejpeg

from presize.codecs.compiled import Compiled
from presize.codecs.golden import decoder_images
from presize.codecs.jpeg.segments import APP9, DRI, SOS, check_scans, segments
from presize.errors import OptionError

try:
    from presize.codecs import _jpeg_decoder
except ImportError:
    _jpeg_decoder = None  # type: ignore[assignment]

Pixels = npt.NDArray[np.uint8]
Mode = Literal["GRAY", "RGB", "BGRX"]

_CHANNELS = {"GRAY": 1, "RGB": 3, "BGRX": 4}
_NARROW = 8
"""Up to this width, an image may have the same size at another scale, such as 3/8, and simplejpeg then uses that."""
_ROOM_BYTES = 8192
"""Free bytes that recoding needs at the end of its output."""


def is_available() -> bool:
    """Return whether the compiled code is used. Otherwise decode always returns None."""
    return compiled.trusted() is not None


def decode(
    data: bytes | memoryview,
    mode: Mode,
    shape: tuple[int, int],
    box: tuple[int, int, int, int] | None = None,
    buffer: Pixels | None = None,
    scale: int = 1,
) -> Pixels | None:
    """Decode a JPEG of `shape` (height, width) like simplejpeg.decode_jpeg, to uint8 (height, width, channels).

    Return None unless the JPEG has this shape and is one intact baseline scan of 8 bits, grey or YCbCr with chroma at
    full or half resolution. With a tile index (presize.codecs.jpeg.tiles), only the tiles under the box are read and
    checked. Thread-safe; releases the GIL.

    Args:
        box: (top, left, height, width), in pixels of the image at 1/scale, inside it; None decodes all of it.
        buffer: flat uint8, at least as large as the result, which is written to its beginning. Undefined after None.
        scale: 1, 2, 4 or 8: decode at 1/scale, each side rounded up."""
    module = compiled.trusted()
    if module is None or (scale > 1 and shape[1] <= _NARROW):
        return None
    box = box or (0, 0, -(-shape[0] // scale), -(-shape[1] // scale))
    result = (*box[2:], _CHANNELS[mode])
    out = np.empty(result, np.uint8) if buffer is None else np.ndarray(result, np.uint8, buffer)
    return out if module.decode(data, out, result[2], shape, box, scale) else None


def decode_into(data: bytes | memoryview, mode: Mode, shape: tuple[int, int], scale: int, sink: object) -> bool:
    """Decode like decode(), row by row into `sink`, from pillow_resize.row_sink() for the image at 1/scale.

    Return False if decode() would return None; the sink can then not be used again."""
    module = compiled.trusted()
    if module is None or (scale > 1 and shape[1] <= _NARROW):
        return False
    return cast("bool", module.decode_into(data, sink, _CHANNELS[mode], shape, scale))


def decode_whole(
    data: bytes | memoryview,
    mode: Mode,
    shape: tuple[int, int],
    scale: int = 1,
    *,
    max_pixels: int,
    strict: bool = True,
) -> Pixels:
    """Decode a whole JPEG of `shape` with the compiled decoder, or else with libjpeg-turbo. Raises the errors of
    decode_with_libjpeg()."""
    pixels = decode(data, mode, shape, scale=scale)
    if pixels is not None:
        return pixels
    return decode_with_libjpeg(data, mode, shape, scale, max_pixels=max_pixels, strict=strict)


def decode_with_libjpeg(
    data: bytes | memoryview,
    mode: Mode,
    shape: tuple[int, int],
    scale: int,
    buffer: Pixels | None = None,
    *,
    max_pixels: int,
    strict: bool = True,
) -> Pixels:
    """Decode a whole JPEG with libjpeg-turbo, into `buffer` if given, which must be large enough for the full size.

    Raises ValueError for errors, and also for warnings, such as stray bytes, if `strict` or if the end marker is
    missing. Raises ImageError like jpeg_segments.check_scans."""
    check_scans(data, shape[0] * shape[1], max_pixels)
    strict = strict or bytes(data[-2:]) != b"\xff\xd9"
    height, width = (-(-shape[0] // scale), -(-shape[1] // scale)) if scale > 1 else (0, 0)
    return np.asarray(
        simplejpeg.decode_jpeg(data, mode, min_height=height, min_width=width, buffer=buffer, strict=strict)
    )


def recode_scan(data: bytes, interval: int, marks: int) -> bytes | None:
    """Recode the scan of `data`, a JPEG without a tile index, with a restart marker after each `interval` MCUs.

    All coefficients and the codes of AC coefficients stay the same. DC coefficients get the codes of T.81's table K.3
    where the scan names table 0, and of K.4 where it names another. `marks` is about the number of new markers, for
    allocating memory. Return None for a JPEG that `decode` refuses, if a difference between DC coefficients has more
    than 11 bits, or if the scan would become twice as long. Raises OptionError without the compiled code: stored bytes
    must not depend on it."""
    module = compiled.trusted()
    if module is None:
        why = f"is switched off: {compiled.off.reason}" if compiled.off else "is not compiled"
        raise OptionError(f"tiles: all needs presize's own JPEG decoder, which {why}; choose resized")
    out = np.empty(2 * len(data) + 16 * marks + _ROOM_BYTES, np.uint8)
    nbytes = module.recode(data, out, interval)
    return out[:nbytes].tobytes() if nbytes else None


def tile_lengths(data: bytes, scan: int, tiles: int) -> bytes | None:
    """Return the lengths in bytes of the `tiles` tiles of `data` from offset `scan` on, each including its marker, as
    16-bit big-endian numbers.

    Return None if the markers are not those of `tiles` tiles in order, or if a tile has more than 65,535 bytes."""
    module = compiled.trusted()
    if module is not None and tiles <= len(data):
        return cast("bytes | None", module.tile_lengths(data, scan, tiles))
    values = np.frombuffer(data, np.uint8)
    # FF 00 stands for a byte FF; FF and anything else ends a tile.
    ends = np.flatnonzero((values[scan:-1] == 0xFF) & (values[scan + 1 :] != 0)) + (scan + 2)
    markers = (bytes(range(0xD0, 0xD8)) * (tiles // 8 + 1))[: tiles - 1] + b"\xd9"
    if values[ends - 1].tobytes() != markers or ends[-1] != len(data):
        return None
    lengths = np.diff(ends, prepend=scan)
    return None if lengths.max() > 0xFFFF else lengths.astype(">u2").tobytes()


# ---- self-check ----

_TAG_BYTES = 9  # of a tile index (presize.codecs.jpeg.tiles), the only APP9 segment of a golden image
_USUAL_CODES = b"\0\0\1\5\1\1\1\1\1\1\0\0\0\0\0\0\0" + bytes(range(12))
"""Huffman table of DC coefficients: T.81's table K.3, with number 0."""


def difference(module: ModuleType) -> str | None:
    """Describe how `module` (_jpeg_decoder.c) differs from libjpeg-turbo; None if it does not. Takes about 3 ms."""
    for number, (name, data) in enumerate(decoder_images().items()):
        ends = {marker: (begin, end) for marker, begin, end in segments(data)}
        try:
            if not _has_equal_pixels(module, data, number):
                return f"its pixels differ from libjpeg-turbo's ({name})"
            if APP9 in ends and not _has_equal_lengths(module, data, *ends[APP9], ends[SOS][1]):
                return f"its tiles differ from the index ({name})"
            if _USUAL_CODES in data and not _has_equal_codes(module, data, ends):
                return f"recoding changes the scan ({name})"
        except Exception as error:  # any exception means that the module must not be used
            return f"it fails with {type(error).__name__}: {error} ({name})"
    return None


def _has_equal_pixels(module: ModuleType, data: bytes, number: int) -> bool:
    """Return whether the whole image at each scale, and a box at full size, equal libjpeg-turbo's, in varying modes."""
    shape, modes = simplejpeg.decode_jpeg_header(data)[:2], ("RGB", "BGRX", "GRAY")
    top, left = shape[0] // 3, shape[1] // 2
    boxes = [(scale, (0, 0, -(-shape[0] // scale), -(-shape[1] // scale))) for scale in (1, 2, 4, 8)]
    boxes.append((1, (top, left, shape[0] // 3, shape[1] - left - number % 4)))
    for step, (scale, box) in enumerate(boxes):
        mode = modes[(number + step) % 3]
        top, left, height, width = box
        whole = simplejpeg.decode_jpeg(data, mode, min_height=-(-shape[0] // scale), min_width=-(-shape[1] // scale))
        out = np.zeros((height, width, _CHANNELS[mode]), np.uint8)
        if not module.decode(data, out, out.shape[2], shape, box, scale):
            return False
        if not np.array_equal(out, whole[top : top + height, left : left + width]):
            return False
    return True


def _has_equal_lengths(module: ModuleType, data: bytes, begin: int, end: int, scan: int) -> bool:
    """Return whether the tiles of an image have the lengths of its index."""
    lengths = data[begin + 4 + _TAG_BYTES : end]
    return bool(module.tile_lengths(data, scan, len(lengths) // 2) == lengths)


def _has_equal_codes(module: ModuleType, data: bytes, ends: dict[int, tuple[int, int]]) -> bool:
    """Return whether recoding an image that has the usual codes, with its own restart interval, changes nothing."""
    scan = data[ends[SOS][1] :]
    mcus = int.from_bytes(data[ends[DRI][0] + 4 : ends[DRI][1]], "big") if DRI in ends else 0xFFFF
    if APP9 in ends:
        data = data[: ends[APP9][0]] + data[ends[APP9][1] :]
    out = np.zeros(len(scan) + _ROOM_BYTES, np.uint8)
    return bool(module.recode(data, out, mcus) == len(scan) and out[: len(scan)].tobytes() == scan)


compiled = Compiled(_jpeg_decoder, difference, "JPEG decoder", "libjpeg-turbo decodes")
