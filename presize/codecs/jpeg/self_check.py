"""Whether presize's own decoder gives the pixels of libjpeg-turbo in this process: tried on the golden images. Pure."""

from __future__ import annotations

from types import ModuleType

import numpy as np
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
        ends = {marker: (begin, end) for marker, begin, end in segments(data)}
        try:
            if not _has_equal_pixels(compiled, data, number):
                return f"it decodes other pixels than libjpeg-turbo ({name})"
            if APP9 in ends and not _has_equal_lengths(compiled, data, *ends[APP9], ends[SOS][1]):
                return f"it finds other tiles than there are ({name})"
            if _USUAL_CODES in data and not _has_equal_codes(compiled, data, ends):
                return f"it codes other coefficients again than there are ({name})"
        except Exception as error:  # whatever is wrong with it, it is not to be used
            return f"it fails with {type(error).__name__}: {error} ({name})"
    return None


def _has_equal_pixels(compiled: ModuleType, data: bytes, number: int) -> bool:
    """Whether at each scale the whole image is equal, and at full size a box of it, in two of the modes."""
    shape = simplejpeg.decode_jpeg_header(data)[:2]
    top, left = shape[0] // 3, shape[1] // 2
    boxes = [(scale, (0, 0, -(-shape[0] // scale), -(-shape[1] // scale))) for scale in (1, 2, 4, 8)]
    boxes.append((1, (top, left, shape[0] // 3, shape[1] - left - number % 4)))
    for step, (scale, box) in enumerate(boxes):
        channels, mode = _MODES[(number + step) % 3]
        top, left, height, width = box
        whole = simplejpeg.decode_jpeg(data, mode, min_height=-(-shape[0] // scale), min_width=-(-shape[1] // scale))
        out = np.zeros((height, width, channels), np.uint8)
        if not compiled.decode(data, out, channels, shape, box, scale):
            return False
        if not np.array_equal(out, whole[top : top + height, left : left + width]):
            return False
    return True


def _has_equal_lengths(compiled: ModuleType, data: bytes, begin: int, end: int, scan: int) -> bool:
    """Whether the tiles of an image are found where its index says."""
    lengths = data[begin + 4 + _TAG_BYTES : end]
    return bool(compiled.tile_lengths(data, scan, len(lengths) // 2) == lengths)


def _has_equal_codes(compiled: ModuleType, data: bytes, ends: dict[int, tuple[int, int]]) -> bool:
    """Whether an image with the usual codes becomes itself, when it is coded again in the intervals that it has."""
    scan = data[ends[SOS][1] :]
    mcus = int.from_bytes(data[ends[DRI][0] + 4 : ends[DRI][1]], "big") if DRI in ends else 0xFFFF
    if APP9 in ends:
        data = data[: ends[APP9][0]] + data[ends[APP9][1] :]
    out = np.zeros(len(scan) + _ROOM_BYTES, np.uint8)
    return bool(compiled.recode(data, out, mcus) == len(scan) and out[: len(scan)].tobytes() == scan)
