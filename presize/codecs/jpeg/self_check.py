"""Whether presize's own decoder gives the pixels of libjpeg-turbo in this process: tried on the golden images. Pure."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import simplejpeg

from presize.codecs.golden import decoder_images
from presize.codecs.jpeg.segments import APP9, DRI, SOS, segments

_MODES = ((3, "RGB"), (4, "BGRX"), (1, "GRAY"))
_TAG_BYTES = 9  # of a tile index (presize.codecs.jpeg.tiles), the only APP9 segment of a golden image
_USUAL_CODES = b"\0\0\1\5\1\1\1\1\1\1\0\0\0\0\0\0\0" + bytes(range(12))
"""Of DC coefficients: T.81's table K.3, as number 0."""
_ROOM_BYTES = 8192


def difference(compiled: ModuleType) -> str | None:
    """How the module `compiled` (_jpeg_decoder.c) differs from libjpeg-turbo; None if it does not. Takes about 3 ms."""
    for number, (name, data) in enumerate(decoder_images().items()):
        try:
            if not _has_equal_pixels(compiled, data, number):
                return f"it decodes other pixels than libjpeg-turbo ({name})"
            if not _has_equal_lengths(compiled, data):
                return f"it finds other tiles than there are ({name})"
            if not _has_equal_codes(compiled, data):
                return f"it codes other coefficients again than there are ({name})"
        except Exception as error:  # whatever is wrong with it, it is not to be used
            return f"it fails with {type(error).__name__}: {error} ({name})"
    return None


def _has_equal_pixels(compiled: ModuleType, data: bytes, number: int) -> bool:
    """Whether at each scale the whole image is equal, and at full size a box of it, in two of the modes."""
    shape = simplejpeg.decode_jpeg_header(data)[:2]
    for step, scale in enumerate((1, 2, 4, 8)):
        channels, mode = _MODES[(number + step) % 3]
        height, width = (-(-side // scale) for side in shape)
        expected = simplejpeg.decode_jpeg(data, mode, min_height=height, min_width=width)
        if not np.array_equal(_decoded(compiled, data, channels, shape, (0, 0, height, width), scale), expected):
            return False
    channels, mode = _MODES[(number + 1) % 3]
    top, left = shape[0] // 3, shape[1] // 2
    box = top, left, shape[0] // 3, shape[1] - left - number % 4
    expected = simplejpeg.decode_jpeg(data, mode)[top : top + box[2], left : left + box[3]]
    return np.array_equal(_decoded(compiled, data, channels, shape, box, 1), expected)


def _decoded(
    compiled: ModuleType, data: bytes, channels: int, shape: tuple[int, int], box: tuple[int, int, int, int], scale: int
) -> npt.NDArray[np.uint8]:
    """What the compiled code makes of a box; an empty array if it does not take the image."""
    out = np.zeros((*box[2:], channels), np.uint8)
    return out if compiled.decode(data, out, channels, shape, box, scale) else out[:0]


def _has_equal_lengths(compiled: ModuleType, data: bytes) -> bool:
    """Whether the tiles of an image with an index are found where it says."""
    ends = {marker: (begin, end) for marker, begin, end in segments(data)}
    if APP9 not in ends:
        return True
    begin, end = ends[APP9]
    lengths = data[begin + 4 + _TAG_BYTES : end]
    return bool(compiled.tile_lengths(data, ends[SOS][1], len(lengths) // 2) == lengths)


def _has_equal_codes(compiled: ModuleType, data: bytes) -> bool:
    """Whether an image with the usual codes becomes itself, when it is coded again in the intervals that it has."""
    if _USUAL_CODES not in data:
        return True
    ends = {marker: (begin, end) for marker, begin, end in segments(data)}
    scan = data[ends[SOS][1] :]
    mcus = int.from_bytes(data[ends[DRI][0] + 4 : ends[DRI][1]], "big") if DRI in ends else 0xFFFF
    if APP9 in ends:
        data = data[: ends[APP9][0]] + data[ends[APP9][1] :]
    out = np.zeros(len(scan) + _ROOM_BYTES, np.uint8)
    return bool(compiled.recode(data, out, mcus) == len(scan) and out[: len(scan)].tobytes() == scan)
