"""Pixels of a box -> a row of a batch: bilinear, antialiased where it shrinks. Pure, thread-safe.

Where a side shrinks, the result is that of torch's antialiased interpolation of uint8 images, as torchvision does it,
and of float32 for uint16; where none does, that of OpenCV's linear interpolation, which differs by at most one grey
level. _resample.c makes the same bytes of RGB in less time, where it is compiled and the processor has AVX2, and in
even less with AVX-512 and its VBMI.

At its first use in a process the compiled code resizes a few images of noise. If one differs from what OpenCV or torch
makes of it, the code is switched off for the process, with a PresizeWarning. So does, without one, a PRESIZE_DECODER
that holds presize's other compiled code to less than the processor has. A forked child inherits the outcome.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from presize.codecs import jpeg_decoder
from presize.datasets.reading.resampling.tables import Filter, across, down
from presize.errors import PresizeWarning

_compiled: ModuleType | None
"""Use it through trusted()."""

try:
    from presize.datasets.reading.resampling import _resample as _compiled
except ImportError:
    _compiled = None

Pixels = npt.NDArray[Any]


def resample(pixels: Pixels, out: Pixels, flip: bool) -> None:
    """Bring `pixels` to the size of `out`.

    Args:
        pixels: uint8 or uint16, (height, width, channels), or (height, width) for one channel. May be a view.
        out: filled; of the same type, (height, width, channels), C-contiguous.
        flip: mirror left to right.
    """
    if pixels.shape[:2] == out.shape[:2]:
        np.copyto(out, pixels.reshape(out.shape))
    elif _resampled(pixels, out, flip):
        return
    else:
        resample_by_libraries(pixels, out)
    if flip:
        cv2.flip(out, 1, dst=out)


def _filter(pixels: Pixels, out: Pixels) -> Filter:
    return "linear" if pixels.shape[0] <= out.shape[0] and pixels.shape[1] <= out.shape[1] else "antialiased"


def resample_by_libraries(pixels: Pixels, out: Pixels) -> None:
    """As resample() without mirroring, of sizes that differ, by OpenCV or torch."""
    height, width, channels = out.shape
    if _filter(pixels, out) == "linear":
        cv2.resize(pixels, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
        return
    # Torch would copy a part of an image itself, more slowly, and it warns of memory that is read-only, as a view
    # of a shard is.
    pixels = np.require(pixels.reshape(*pixels.shape[:2], channels), requirements=["C", "W"])
    exact = out if out.dtype == np.uint8 else np.empty(out.shape, np.float32)
    source = torch.from_numpy(pixels.astype(exact.dtype, copy=False)).permute(2, 0, 1).unsqueeze(0)
    result = torch.from_numpy(exact).permute(2, 0, 1).unsqueeze(0)
    # torch.nn.functional.interpolate calls this, but takes no `out`.
    torch.ops.aten._upsample_bilinear2d_aa.out(source, [height, width], False, None, None, out=result)
    if exact is not out:
        np.copyto(out, exact.round(), casting="unsafe")  # means, so none is out of range


# ---- the compiled code ----

_is_tried = False
_TRIED = (((37, 23), (48, 40)), ((61, 53), (40, 33)), ((19, 70), (24, 41)), ((40, 11), (17, 33)))
"""Sizes of the self-check, (height, width): before and after."""


def _resampled(pixels: Pixels, out: Pixels, flip: bool) -> bool:
    """Whether the compiled code has done it."""
    compiled = trusted()
    return compiled is not None and resample_by(compiled, pixels, out, flip)


def resample_by(compiled: ModuleType, pixels: Pixels, out: Pixels, flip: bool, window: int = 0) -> bool:
    """As resample(), of sizes that differ, by `compiled` (_resample.c). False if it does not take them: other
    pixels than 8 bits of RGB, side by side in memory, and sides that shrink to less than about a third.

    Args:
        window: of a row, how many bytes it takes at a time: 16 or 64; 0 for the most that the processor can.
    """
    height, width, channels = out.shape
    window = window or compiled.window_bytes()
    if channels != 3 or out.dtype != np.uint8:
        return False
    filter = _filter(pixels, out)
    columns, rows = across(pixels.shape[1], width, filter, flip, window), down(pixels.shape[0], height, filter)
    if columns is None or rows is None:
        return False
    return bool(compiled.resize(pixels, out, columns, rows, filter == "linear", window))


def trusted() -> ModuleType | None:
    """The compiled code, once it has been tried; None if there is none, or it is not used.

    Threads may do so at the same time, with the same outcome: there is no lock that a fork could leave locked.
    """
    global _compiled, _is_tried
    compiled = _compiled
    if compiled is not None and not _is_tried:
        if not _is_wanted(compiled):
            _compiled = None
        elif not _is_right(compiled):
            _compiled = None
            warnings.warn(
                "presize's own resizing of crops failed its self-check and is switched off in this process. OpenCV and "
                "torch resize instead: slower, and the pixels are right. Please report it",
                PresizeWarning,
                stacklevel=4,
            )
        _is_tried = True
    return _compiled


def _is_wanted(compiled: ModuleType) -> bool:
    return compiled.window_bytes() > 0 and os.environ.get(jpeg_decoder.VARIABLE, "") in ("", "auto")


def _is_right(compiled: ModuleType) -> bool:
    random = np.random.default_rng(0)
    for before, after in _TRIED:
        pixels = random.integers(0, 256, (*before, 3), np.uint8)
        ours, theirs = (np.zeros((*after, 3), np.uint8) for _ in range(2))
        resample_by_libraries(pixels, theirs)
        if not resample_by(compiled, pixels, ours, flip=True) or not np.array_equal(ours, theirs[:, ::-1]):
            return False
    return True
