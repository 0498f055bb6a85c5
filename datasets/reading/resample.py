"""Pixels of a box -> a row of a batch: bilinear, antialiased where it shrinks. Pure, thread-safe.

Of 8 bits, the result is that of the installed Pillow, which torchvision and most training scripts resize with:
presize.codecs.pillow_resize makes the same bytes in a fraction of the time, where it is compiled. Of 16 bits, which
Pillow has for one channel alone, it is torch's antialiased interpolation in float32, rounded.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from presize.codecs.pillow_resize import installed_order, resize

Pixels = npt.NDArray[Any]

_MODES = {1: "L", 3: "RGB", 4: "RGBX"}
"""By the number of channels. X, because Pillow would multiply colours by alpha."""


def resample(pixels: Pixels, out: Pixels, flip: bool) -> None:
    """Bring `pixels` to the size of `out`.

    Args:
        pixels: uint8 or uint16, (height, width, channels), or (height, width) for one channel. May be a view.
        out: filled; of the same type, (height, width, channels), C-contiguous, 1, 3 or 4 channels.
        flip: mirror left to right.
    """
    pixels = pixels.reshape(*pixels.shape[:2], out.shape[2])
    if pixels.shape == out.shape:
        np.copyto(out, pixels)
    elif pixels.dtype != np.uint8:
        _by_torch(pixels, out)
    elif _by_compiled_code(pixels, out, flip):
        return
    else:
        by_pillow(pixels, out)
    if flip:
        cv2.flip(out, 1, dst=out)


def _by_compiled_code(pixels: Pixels, out: Pixels, flip: bool) -> bool:
    """Resize as the installed Pillow does; False where that is not known, or nothing is compiled."""
    order = installed_order()
    if order == "another":
        return False
    vertical_first = order == "vertical when it shrinks more"
    return resize(pixels, out.shape[:2], "bilinear", vertical_first=vertical_first, flip=flip, out=out) is not None


def by_pillow(pixels: Pixels, out: Pixels) -> None:
    """Resize uint8 (height, width, channels) by the installed Pillow."""
    height, width, channels = out.shape
    source = (pixels.shape[1], pixels.shape[0])
    image = Image.frombuffer(_MODES[channels], source, np.ascontiguousarray(pixels), "raw", _MODES[channels], 0, 1)
    np.copyto(out, np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(out.shape))


def _by_torch(pixels: Pixels, out: Pixels) -> None:
    result = np.empty(out.shape, np.float32)
    views = [torch.from_numpy(array).permute(2, 0, 1).unsqueeze(0) for array in (pixels.astype(np.float32), result)]
    # torch.nn.functional.interpolate calls this, but takes no `out`.
    torch.ops.aten._upsample_bilinear2d_aa.out(views[0], list(out.shape[:2]), False, None, None, out=views[1])
    np.copyto(out, result.round(), casting="unsafe")  # means, so none is out of range
