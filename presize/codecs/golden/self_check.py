"""Whether presize's own decoder gives the pixels of libjpeg-turbo in this process: tried on the golden images. Pure."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import simplejpeg

from presize.codecs.golden.images import decoder_images

_MODES = ((3, "RGB"), (4, "BGRX"), (1, "GRAY"))
_INDEX = b"presize\0\1"  # what a tile index begins with (presize.codecs.jpeg_tiles)


def difference(compiled: ModuleType) -> str | None:
    """How the module `compiled` (_jpeg_decoder.c) differs from libjpeg-turbo; None if it does not. Takes about 3 ms."""
    for number, (name, data) in enumerate(decoder_images().items()):
        try:
            if not _has_equal_pixels(compiled, data, number):
                return f"it decodes other pixels than libjpeg-turbo ({name})"
            if not _has_equal_lengths(compiled, data):
                return f"it finds other tiles than there are ({name})"
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
    begin = data.find(_INDEX) + len(_INDEX)
    if begin < len(_INDEX):
        return True
    end = begin + int.from_bytes(data[begin - len(_INDEX) - 2 : begin - len(_INDEX)], "big") - len(_INDEX) - 2
    scan = end + 2 + int.from_bytes(data[end + 2 : end + 4], "big")
    return bool(compiled.tile_lengths(data, scan, (end - begin) // 2) == data[begin:end])
