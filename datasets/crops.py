"""Which part of each image a batch takes: boxes from stored sizes and random numbers, before anything is decoded.

All crops are frozen dataclasses with the same three things, and functions of arrays: geometry for a whole
batch costs what it costs for one image. There is no state and no randomness but the numbers handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from presize.errors import OptionError
from presize.options import MAX_SIDE, Size, check_range

DECODE_SCALES = (8, 4, 2)
"""JPEG decoders make 1/8, 1/4 and 1/2 of an image for less than the whole; other fractions cost more."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Crop(Protocol):
    """What reading asks of a crop.

    size: (height, width) of what it gives, in pixels.
    draws: how many random numbers it takes for an image.
    exact: True when images must never be decoded at reduced size, as in evaluation.
    """

    @property
    def size(self) -> int | Size: ...
    @property
    def draws(self) -> int: ...
    @property
    def exact(self) -> bool: ...

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:
        """For images of `heights` and `widths` (n,) and numbers `random` (n, draws) from [0, 1): the boxes
        (n, 4) to cut and to bring to `size`: top, left, height, width, in pixels. Boxes that do not lie
        inside the image say that it is too small."""
        ...


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape, brought to `size`: torchvision's transform of that name.

    size: N for a square, or Size(height, width), from 1 to 16383.
    scale: the share of the image's area, from above 0 to 1, drawn evenly.
    ratio: width / height, drawn evenly on a logarithmic scale.

    Of ten tries the first box that fits is taken, else the middle of the image at the nearest ratio,
    as torchvision does it. A box of at least 2, 4 or 8 times `size` is decoded at 1/2, 1/4 or 1/8: its
    edges are moved up and left to multiples of that.
    """

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    draws: int = field(default=22, init=False, repr=False)
    exact: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_size(self.size)
        if not _is_pair(self.scale) or not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise OptionError(f"scale: expected two shares, 0 < low <= high <= 1, got {self.scale!r}")
        if not _is_pair(self.ratio) or not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise OptionError(f"ratio: expected two ratios, 0 < low <= high, got {self.ratio!r}")

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:
        low, high = self.scale
        areas = (heights * widths)[:, np.newaxis] * (low + (high - low) * random[:, 0:10])
        first, last = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratios = np.exp(first + (last - first) * random[:, 10:20])
        # As round() in Python, which torchvision uses: halves to the even number.
        tried_widths = np.rint(np.sqrt(areas * ratios)).astype(np.int64)
        tried_heights = np.rint(np.sqrt(areas / ratios)).astype(np.int64)
        fits = (
            (tried_heights > 0)
            & (tried_heights <= heights[:, np.newaxis])
            & (tried_widths > 0)
            & (tried_widths <= widths[:, np.newaxis])
        )
        rows, taken = np.arange(len(heights)), np.argmax(fits, axis=1)
        box_heights, box_widths = tried_heights[rows, taken], tried_widths[rows, taken]
        tops = (random[:, 20] * (heights - box_heights + 1)).astype(np.int64)
        lefts = (random[:, 21] * (widths - box_widths + 1)).astype(np.int64)
        for i in np.flatnonzero(~fits.any(axis=1)):
            tops[i], lefts[i], box_heights[i], box_widths[i] = self._middle(int(heights[i]), int(widths[i]))
        boxes = np.stack((tops, lefts, box_heights, box_widths), axis=1)
        height, width = as_size(self.size)
        reduction = np.minimum(box_heights // height, box_widths // width)
        scales = np.select([reduction >= scale for scale in DECODE_SCALES], DECODE_SCALES, 1)
        boxes -= boxes % scales[:, np.newaxis]
        return boxes

    def _middle(self, height: int, width: int) -> tuple[int, int, int, int]:
        box_height, box_width = height, width
        if width / height < self.ratio[0]:
            box_height = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            box_width = min(width, max(1, round(height * self.ratio[1])))
        return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


@dataclass(frozen=True)
class RandomCrop:
    """A box of exactly `size` somewhere in the image, not resized. Stored images must be that large."""

    size: int | Size
    draws: int = field(default=2, init=False, repr=False)
    exact: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        check_size(self.size)

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:
        height, width = as_size(self.size)
        tops = np.floor(random[:, 0] * (heights - height + 1)).astype(np.int64)
        lefts = np.floor(random[:, 1] * (widths - width + 1)).astype(np.int64)
        return np.stack((tops, lefts, np.full_like(tops, height), np.full_like(lefts, width)), axis=1)


@dataclass(frozen=True)
class CenterCrop:
    """The middle of the image at exactly `size`, not resized: evaluation. Where the margin is odd the
    box lies as torchvision's does, by Python's round(). Stored images must be that large."""

    size: int | Size
    draws: int = field(default=0, init=False, repr=False)
    exact: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        check_size(self.size)

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:  # noqa: ARG002
        height, width = as_size(self.size)
        tops, lefts = np.rint((heights - height) / 2), np.rint((widths - width) / 2)
        boxes = np.stack((tops, lefts, np.full_like(tops, height), np.full_like(lefts, width)), axis=1)
        return boxes.astype(np.int64)


@dataclass(frozen=True)
class Resize:
    """The whole image brought to exactly `size`, whatever its shape. From a full decode, antialiased."""

    size: int | Size
    draws: int = field(default=0, init=False, repr=False)
    exact: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        check_size(self.size)

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:  # noqa: ARG002
        zeros = np.zeros_like(heights)
        return np.stack((zeros, zeros, heights, widths), axis=1)


def as_size(size: int | Size) -> Size:
    """(height, width) of what may be a number for a square."""
    return Size(size, size) if isinstance(size, int) else Size(*size)


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, (int, float)) for v in value)


def check_size(size: object) -> None:
    """Raise OptionError unless `size` is N or (height, width), each from 1 to MAX_SIDE."""
    sides = size if isinstance(size, tuple) else (size, size)
    if len(sides) != 2 or isinstance(size, list):
        raise OptionError(f"size: expected N or (height, width), got {size!r}")
    for side in sides:
        check_range("size", side, 1, MAX_SIDE)
