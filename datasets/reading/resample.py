"""Pixels of a box -> a row of a batch: bilinear, antialiased where it shrinks. Pure, thread-safe.

Where a side shrinks, the result is that of torch's antialiased interpolation of uint8 images, as torchvision does it,
and of float32 for uint16; where none does, that of OpenCV's linear interpolation, which differs by at most one grey
level. _resample.c makes the same bytes of RGB in less time, where it is compiled and the processor has AVX2, and in
even less with AVX-512 and its VBMI. Its tables have the weights of both libraries, to the last bit.

At its first use in a process the compiled code resizes a few images of noise. If one differs from what OpenCV or torch
makes of it, the code is switched off for the process, with a PresizeWarning. So does, without one, a PRESIZE_DECODER
that holds presize's other compiled code to less than the processor has. A forked child inherits the outcome.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from presize.codecs import pillow_resize
from presize.codecs.compiled import Compiled, SwitchedOff
from presize.codecs.pillow_resize import Whole
from presize.datasets.crops import Filter as PillowFilter

Filter = Literal["linear", "antialiased"]

_MOST_PAIRS = 4
"""Of pixels that one is blended of, the most that _resample.c takes."""
_BLOCK = {16: 32, 64: 64}
"""Of each window, how many values of a row are stored at a time: it pads rows to whole ones."""
_VALUE_BYTES = {"linear": 2, "antialiased": 4}
"""Of a window, for each value of a group."""
_ZERO = 0x80
"""A pick that gives 0."""
_SIZES = 1024
"""More than random crops of photographs have at 256 px. A table has about 8 kB."""
_ONE = 1 << 11
"""The weights of linear interpolation add up to this."""

Ints = npt.NDArray[np.int64]


class _Weights(NamedTuple):
    """What the pixels of a row, or the rows of an image, are blended of.

    Attributes:
        firsts: for each the first that it is blended of, (n,).
        weights: for each those of that one and its neighbours, (n, an even number).
        shift: what their sum is shifted by, to the right.
        half: what is added to it before.
    """

    firsts: Ints
    weights: Ints
    shift: int = 0
    half: int = 0


@functools.lru_cache(_SIZES)
def down(inputs: int, outputs: int, filter: Filter) -> bytes | None:
    """The table for resizing `inputs` rows to `outputs`; None if _resample.c cannot do it."""
    found = _WEIGHTS[filter](inputs, outputs)
    if found is None or found.weights.shape[1] > 2 * _MOST_PAIRS:
        return None
    return _head(found, inputs, 0) + found.firsts.astype(np.int32).tobytes() + found.weights.astype(np.int16).tobytes()


@functools.lru_cache(2 * _SIZES)
def across(inputs: int, outputs: int, filter: Filter, flip: bool, window: int) -> bytes | None:
    """The table for resizing rows of `inputs` RGB pixels to `outputs`, which are mirrored with `flip`, from
    windows of so many bytes, 16 or 64; None if _resample.c cannot do it."""
    found = _WEIGHTS[filter](inputs, outputs)
    if found is None or found.weights.shape[1] > 2 * _MOST_PAIRS:
        return None
    firsts, seconds, weights = found.firsts, found.firsts + 1, found.weights
    if filter == "linear":
        firsts, seconds, weights = _inside(firsts, weights, inputs)
    if flip:
        firsts, seconds, weights = firsts[::-1], seconds[::-1], weights[::-1]
    block = _BLOCK[window]
    values = np.arange(-(-3 * outputs // block) * block).clip(max=3 * outputs - 1)  # those behind the end repeat it
    values = values.reshape(-1, window // _VALUE_BYTES[filter])
    pixels, channels = values // 3, values % 3
    places = 3 * np.minimum(firsts, seconds)[pixels].min(axis=1, keepdims=True)
    picks = np.stack((3 * firsts[pixels] + channels - places, 3 * seconds[pixels] + channels - places), axis=2)
    if picks.max() >= window:
        return None
    reach = int(places.max()) + 3 * (weights.shape[1] - 2) + window
    if filter == "linear":
        by_value = _coarse_and_fine(weights)[:, pixels].astype(np.int8)
    else:
        picks = np.stack((picks, np.full_like(picks, _ZERO)), axis=3)  # 16 bits each
        by_value = weights[pixels].reshape(*values.shape, -1, 2).transpose(2, 0, 1, 3).astype(np.int16)
    table = places.astype(np.int32).tobytes(), picks.astype(np.uint8).tobytes(), by_value.tobytes()
    return _head(found, inputs, reach) + b"".join(table)


def _head(found: _Weights, inputs: int, reach: int) -> bytes:
    outputs, taps = found.weights.shape
    return np.array((inputs, outputs, taps // 2, found.shift, found.half, reach), np.int32).tobytes()


def _linear(inputs: int, outputs: int) -> _Weights | None:
    """OpenCV's: a pixel and the next one. Those at the ends begin with -1, or have no next one."""
    middles = ((np.arange(outputs) + 0.5) * (1 / (outputs / inputs)) - 0.5).astype(np.float32)
    firsts = np.floor(middles)
    shares = middles - firsts
    weights = np.rint(np.stack((np.float32(1) - shares, shares), axis=1) * np.float32(_ONE)).astype(np.int64)
    if (weights.sum(axis=1) != _ONE).any():  # both were rounded down
        return None
    return _Weights(firsts.astype(np.int64), weights)


def _inside(firsts: Ints, weights: Ints, inputs: int) -> tuple[Ints, Ints, Ints]:
    """Those pixels, the next ones and their weights, for a row: at its ends OpenCV takes one pixel alone."""
    alone = (firsts < 0) | (firsts >= inputs - 1)
    firsts = firsts.clip(0, inputs - 1)
    return firsts, np.where(alone, firsts, firsts + 1), np.where(alone[:, np.newaxis], (_ONE, 0), weights)


def _coarse_and_fine(weights: Ints) -> Ints:
    """Weights of pixels in 128ths, and what is missing in 2048ths, each for a pixel and the next one: none is 128."""
    second = weights[:, 1]
    coarse = np.where(second <= _ONE // 2, -(-second // 16), second // 16).clip(1, 127)
    fine = second - 16 * coarse
    return np.stack((np.stack((128 - coarse, coarse), axis=1), np.stack((-fine, fine), axis=1)))


def _antialiased(inputs: int, outputs: int) -> _Weights:
    """torch's: as many bits as the largest weight allows."""
    scale = inputs / outputs
    support = max(scale, 1.0)
    middles = scale * (np.arange(outputs) + 0.5)
    firsts = np.maximum((middles - support + 0.5).astype(np.int64), 0)
    ends = np.minimum((middles + support + 0.5).astype(np.int64), inputs)
    pixels = firsts[:, np.newaxis] + np.arange(2 * math.ceil(support) + 1)
    distances = np.abs((pixels - middles[:, np.newaxis] + 0.5) * (1 / support))
    shares = np.where((distances < 1) & (pixels < ends[:, np.newaxis]), 1 - distances, 0)
    shares /= functools.reduce(np.add, shares.T)[:, np.newaxis]  # in this order, on which the last bit depends
    bits = next((bits for bits in range(22) if int(0.5 + shares.max() * (2 << bits)) >= 1 << 15), 22)
    weights = (shares * (1 << bits) + 0.5).astype(np.int64)
    used = int(np.flatnonzero(weights.any(axis=0)).max()) + 1
    return _Weights(firsts, np.pad(weights[:, :used], ((0, 0), (0, used % 2))), bits, 1 << (bits - 1))


_WEIGHTS = {"linear": _linear, "antialiased": _antialiased}


try:
    from presize.datasets.reading import _resample
except ImportError:
    _resample = None  # type: ignore[assignment]

Pixels = npt.NDArray[Any]


def resample(
    pixels: Pixels, out: Pixels, flip: bool, filter: PillowFilter = "bilinear", whole: Whole | None = None
) -> None:
    """Bring `pixels` to the size of `out`.

    Args:
        pixels: uint8 or uint16, (height, width, channels), or (height, width) for one channel. May be a view.
        out: filled; of the same type, (height, width, channels), C-contiguous.
        flip: mirror left to right.
        filter: other filters than "bilinear" are the installed Pillow's.
        whole: the image of which `pixels` and `out` are parts; it is always resized by Pillow's filters. `pixels` are
            all of it, unless resizes_parts(their dtype).
    """
    if whole is not None and whole.shape == whole.size:
        top, left = whole.corner[0] - whole.start[0], whole.corner[1] - whole.start[1]
        pixels, whole = pixels[top : top + out.shape[0], left : left + out.shape[1]], None
    if whole is None and pixels.shape[:2] == out.shape[:2]:
        np.copyto(out, pixels.reshape(out.shape))
    elif filter != "bilinear" or whole is not None:
        _resample_as_pillow(pixels.reshape(*pixels.shape[:2], -1), out, filter, whole)
    elif _resampled(pixels, out, flip):
        return
    else:
        resample_by_libraries(pixels, out)
    if flip:
        cv2.flip(out, 1, dst=out)


def resizes_parts(dtype: npt.DTypeLike) -> bool:
    """Return whether a part of a resized image can be made from a part of the image: Pillow resizes whole ones."""
    return dtype == np.uint8 and pillow_resize.installed_order() != "another" and pillow_resize.is_available()


def _resample_as_pillow(pixels: Pixels, out: Pixels, filter: PillowFilter, whole: Whole | None) -> None:
    """Fill `out` with what the installed Pillow makes of each channel; 16 bits are resized as floats."""
    height, width = out.shape[:2]
    is_deep = out.dtype != np.uint8
    if resizes_parts(out.dtype):
        is_new = pillow_resize.installed_order() == "vertical when it shrinks more"
        how: dict[str, Any] = {"vertical_first": is_new, "out": out, "whole": whole}
        if pillow_resize.resize(pixels, (height, width), filter, **how) is not None:
            return
    rows, columns = (height, width) if whole is None else whole.size
    top, left = (0, 0) if whole is None else whole.corner
    for channel in range(out.shape[2]):
        source = pixels[:, :, channel]
        image = Image.fromarray(source.astype(np.float32) if is_deep else np.ascontiguousarray(source))
        resized = np.asarray(image.resize((columns, rows), Image.Resampling[filter.upper()]))
        part = resized[top : top + height, left : left + width]
        out[:, :, channel] = part.round().clip(0, np.iinfo(out.dtype).max) if is_deep else part


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

_TRIED = (((37, 23), (48, 40)), ((61, 53), (40, 33)), ((19, 70), (24, 41)), ((40, 11), (17, 33)))
"""Sizes of the self-check, (height, width): before and after."""


def _resampled(pixels: Pixels, out: Pixels, flip: bool) -> bool:
    """Whether the compiled code has done it."""
    module = compiled.trusted()
    return module is not None and resample_by(module, pixels, out, flip)


def resample_by(module: ModuleType, pixels: Pixels, out: Pixels, flip: bool, window: int = 0) -> bool:
    """As resample(), of sizes that differ, by `module` (_resample.c). False if it does not take them: other
    pixels than 8 bits of RGB, side by side in memory, and sides that shrink to less than about a third.

    Args:
        window: of a row, how many bytes it takes at a time: 16 or 64; 0 for the most that the processor can.
    """
    height, width, channels = out.shape
    window = window or module.window_bytes()
    if channels != 3 or out.dtype != np.uint8:
        return False
    filter = _filter(pixels, out)
    columns, rows = across(pixels.shape[1], width, filter, flip, window), down(pixels.shape[0], height, filter)
    if columns is None or rows is None:
        return False
    return bool(module.resize(pixels, out, columns, rows, filter == "linear", window))


def check(module: ModuleType, setting: str) -> SwitchedOff | None:
    """Return why `module` (_resample.c) must not be used, if so: the processor, PRESIZE_DECODER, or the self-check."""
    if module.window_bytes() == 0 or setting not in ("", "auto"):
        return SwitchedOff("environment", "it takes AVX2, and PRESIZE_DECODER=auto")
    if _is_right(module):
        return None
    return SwitchedOff(
        "self-check",
        "it makes other pixels than OpenCV and torch",
        "presize's own resizing of crops failed its self-check and is switched off in this process. OpenCV and torch "
        "resize instead: slower, and the pixels are right. Please report it",
    )


def _is_right(module: ModuleType) -> bool:
    random = np.random.default_rng(0)
    for before, after in _TRIED:
        pixels = random.integers(0, 256, (*before, 3), np.uint8)
        ours, theirs = (np.zeros((*after, 3), np.uint8) for _ in range(2))
        resample_by_libraries(pixels, theirs)
        if not resample_by(module, pixels, ours, flip=True) or not np.array_equal(ours, theirs[:, ::-1]):
            return False
    return True


compiled = Compiled(_resample, check)
