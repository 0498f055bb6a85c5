"""Pixels of a box -> a row of a batch: by one of Pillow's filters, antialiased where it shrinks. Pure, thread-safe.

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

from presize.codecs.pillow_resize import Filter, Whole, installed_order, is_available, resize_as_installed

Pixels = npt.NDArray[Any]

_MODES = {1: "L", 3: "RGB", 4: "RGBX"}
"""By the number of channels. X, because Pillow would multiply colours by alpha."""


def resample(pixels: Pixels, out: Pixels, flip: bool, filter: Filter = "bilinear", whole: Whole | None = None) -> None:
    """Bring `pixels`, uint8 or uint16 (height, width[, channels]), to the size of `out`, C-contiguous, 1, 3 or 4
    channels. They may be parts of a `whole` image: all of it, unless resizes_parts(the type of `pixels`)."""
    pixels = pixels.reshape(*pixels.shape[:2], out.shape[2])
    if whole is not None and whole.shape == whole.size:
        pixels, whole = _cut(pixels, out, whole.corner[0] - whole.start[0], whole.corner[1] - whole.start[1]), None
    if whole is None and pixels.shape == out.shape:
        np.copyto(out, pixels)
    elif resize_as_installed(pixels, out.shape[:2], filter, flip=flip, out=out, whole=whole) is not None:
        return
    elif whole is None:
        _by_library(pixels, out, filter)
    else:
        resized = np.empty((*whole.size, out.shape[2]), out.dtype)
        _by_library(pixels, resized, filter)
        np.copyto(out, _cut(resized, out, *whole.corner))
    if flip:
        cv2.flip(out, 1, dst=out)


def resizes_parts(dtype: npt.DTypeLike) -> bool:
    """Return whether a part of a resized image can be made from a part of the image: Pillow resizes whole ones."""
    return dtype == np.uint8 and installed_order() != "another" and is_available()


def _cut(pixels: Pixels, out: Pixels, top: int, left: int) -> Pixels:
    return pixels[top : top + out.shape[0], left : left + out.shape[1]]


def _by_library(pixels: Pixels, out: Pixels, filter: Filter) -> None:
    if pixels.dtype == np.uint8:
        by_pillow(pixels, out, filter)
    elif filter == "bilinear":
        _by_torch(pixels, out)
    else:  # Pillow has none of 16 bits, but floats
        for channel in range(out.shape[2]):
            image = Image.fromarray(pixels[:, :, channel].astype(np.float32))
            resized = np.asarray(image.resize(out.shape[1::-1], Image.Resampling[filter.upper()]))
            out[:, :, channel] = resized.round().clip(0, np.iinfo(out.dtype).max)


def by_pillow(pixels: Pixels, out: Pixels, filter: Filter = "bilinear") -> None:
    """Resize uint8 (height, width, channels) by the installed Pillow."""
    height, width, channels = out.shape
    source = (pixels.shape[1], pixels.shape[0])
    image = Image.frombuffer(_MODES[channels], source, np.ascontiguousarray(pixels), "raw", _MODES[channels], 0, 1)
    np.copyto(out, np.asarray(image.resize((width, height), Image.Resampling[filter.upper()])).reshape(out.shape))


def _by_torch(pixels: Pixels, out: Pixels) -> None:
    result = np.empty(out.shape, np.float32)
    views = [torch.from_numpy(array).permute(2, 0, 1).unsqueeze(0) for array in (pixels.astype(np.float32), result)]
    # torch.nn.functional.interpolate calls this, but takes no `out`.
    torch.ops.aten._upsample_bilinear2d_aa.out(views[0], list(out.shape[:2]), False, None, None, out=views[1])
    np.copyto(out, result.round(), casting="unsafe")  # means, so none is out of range
