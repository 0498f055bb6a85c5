"""Crops: boxes for the images of a whole batch, computed before decoding."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from presize.codecs.pillow_resize import Filter
from presize.errors import OptionError
from presize.options import MAX_SIDE, Size, check_choice, check_range, set_in_range

DECODE_SCALES = (8, 4, 2)
"""JPEG decoders are faster at 1/8, 1/4 and 1/2 than at full size, and slower at other fractions."""

Interpolation = Literal[Filter, "random"]
"""A filter, or "random" for one of RANDOM_FILTERS, drawn for each image."""

RANDOM_FILTERS: tuple[Filter, Filter] = "bilinear", "bicubic"
"""The filters that timm's interpolation="random" chooses from."""

SUPPORTS: dict[Filter, float] = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0, "hamming": 1.0, "box": 0.5}
"""Radius of each filter in pixels when it does not shrink."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Crop(Protocol):
    """A crop to `size` that uses `draws` random numbers per image; if `exact`, it always decodes at full size. It may
    have `interpolation` ("bilinear" by default; "random" uses the last of `draws`), and `windows` as CenterCrop has."""

    @property
    def size(self) -> int | Size: ...
    @property
    def draws(self) -> int: ...
    @property
    def exact(self) -> bool: ...

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:
        """Return the boxes to cut and to resize to `size`: (top, left, height, width) in pixels, (n, 4). `random` is
        (n, draws), in [0, 1). A box that is not inside its image means that the image is too small."""
        ...


class CropGeometry(NamedTuple):
    """The part of a stored image that a sample shows."""

    box: tuple[float, float, float, float]
    """(top, left, height, width) in pixels of the stored image; fractions if it was resized before the crop."""
    size: tuple[int, int]
    """(height, width) of the resized box in pixels."""
    flip: bool = False


Crops = Crop | Sequence[Crop]
"""A crop, or several for as many views of an image."""


class _Shown:
    """A dataclass whose repr, for messages, omits defaults."""

    def __repr__(self) -> str:
        own = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default}  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())})"


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(_Shown):
    """A box of random area and aspect ratio, resized to `size`, like torchvision's transform of that name.

    Unless `exact`, a box of at least 2, 4 or 8 times `size` is decoded at 1/2, 1/4 or 1/8; its position and size
    are then rounded down to multiples of 2, 4 or 8.

    Attributes:
        size: N for a square, or Size(height, width), each from 1 to 16383 pixels.
        scale: the range of the box's share of the image's area, above 0 and up to 1, drawn uniformly.
        ratio: the range of width / height, drawn uniformly on a logarithmic scale.
        exact: always decode at full size, which gives torchvision's boxes and pixels.
        interpolation: the resize filter, antialiased: "bilinear", "bicubic", "lanczos", "hamming" or "box"; or "random"
            as in timm: bilinear or bicubic, drawn for each image.
    """

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    exact: bool = field(default=False, kw_only=True)
    interpolation: Interpolation = field(default="bilinear", kw_only=True)

    @property
    def draws(self) -> int:
        return 22 + (self.interpolation == "random")

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_size(self.size))
        check_choice("interpolation", self.interpolation, Interpolation)
        if not _is_pair(self.scale) or not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise OptionError(f"scale: expected two fractions, 0 < low <= high <= 1, got {self.scale!r}")
        if not _is_pair(self.ratio) or not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise OptionError(f"ratio: expected two ratios, 0 < low <= high, got {self.ratio!r}")

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:
        low, high = self.scale
        areas = (heights * widths)[:, np.newaxis] * (low + (high - low) * random[:, 0:10])
        first, last = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratios = np.exp(first + (last - first) * random[:, 10:20])
        # Halves round to even, as in Python's round(), which torchvision uses.
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
        if self.exact:
            return boxes
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


@dataclass(frozen=True, repr=False)
class _Exact(_Shown):
    size: int | Size
    draws: ClassVar[int] = 0
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_size(self.size))


@dataclass(frozen=True, repr=False)
class RandomCrop(_Exact):
    """A box of `size` at a random position, not resized. Stored images must be at least that large."""

    draws: ClassVar[int] = 2

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:
        height, width = as_size(self.size)
        tops = np.floor(random[:, 0] * (heights - height + 1)).astype(np.int64)
        lefts = np.floor(random[:, 1] * (widths - width + 1)).astype(np.int64)
        return np.stack((tops, lefts, np.full_like(tops, height), np.full_like(lefts, width)), axis=1)


@dataclass(frozen=True, repr=False)
class CenterCrop(_Exact):
    """The central box of `size`, for evaluation. Odd margins are rounded as in torchvision.

    Attributes:
        size: N for a square, or Size(height, width), each from 1 to 16383 pixels.
        resize: length in pixels to which the shorter side is resized before the crop, as by torchvision's Resize. It is
            at least the longer side of `size`, and at most 16383. None crops stored images, which must be at least as
            large as `size`.
        interpolation: the resize filter, as in RandomResizedCrop but not "random".
    """

    resize: int | None = field(default=None, kw_only=True)
    interpolation: Filter = field(default="bilinear", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("interpolation", self.interpolation, Filter)
        if self.resize is not None:
            set_in_range(self, "resize", max(as_size(self.size)), MAX_SIDE)

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:  # noqa: ARG002
        size, sides = np.array(as_size(self.size)), np.stack((heights, widths), axis=1)
        resized, starts = np.split(self.windows(heights, widths), 2, axis=1)
        if self.resize is None:
            return np.concatenate((starts, np.broadcast_to(size, starts.shape)), axis=1)
        steps = sides / resized
        # One pixel more than the filter reaches, so that rounding does not matter.
        reach = SUPPORTS[self.interpolation] * np.maximum(steps, 1) + 1
        begins = np.maximum(np.floor(starts * steps - reach), 0).astype(np.int64)
        ends = np.minimum(np.ceil((starts + size) * steps + reach), sides).astype(np.int64)
        return np.concatenate((begins, ends - begins), axis=1)

    def windows(self, heights: Ints, widths: Ints) -> Ints:
        """Return (height, width, top, left) in pixels, (n, 4): sizes of images after `resize`, positions of crops."""
        sides = np.stack((heights, widths), axis=1)
        if self.resize is not None:
            shorter = sides.min(axis=1, keepdims=True)
            sides = np.where(sides == shorter, self.resize, self.resize * sides // shorter)
        return np.concatenate((sides, np.rint((sides - np.array(as_size(self.size))) / 2).astype(np.int64)), axis=1)


@dataclass(frozen=True, repr=False)
class Resize(_Exact):
    """The whole image, decoded at full size and resized to `size` with antialiasing, whatever its aspect ratio.

    Attributes:
        size: N for a square, or Size(height, width), each from 1 to 16383 pixels.
        interpolation: the resize filter, as in CenterCrop.
    """

    interpolation: Filter = field(default="bilinear", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("interpolation", self.interpolation, Filter)

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:  # noqa: ARG002
        zeros = np.zeros_like(heights)
        return np.stack((zeros, zeros, heights, widths), axis=1)


def check_crops(crop: Crops) -> Crop | tuple[Crop, ...]:
    """Return `crop`, a list as a tuple. Raises OptionError unless it consists of crops."""
    views = tuple(crop) if isinstance(crop, (list, tuple)) else (crop,)
    for view in views:
        if isinstance(view, type) or not hasattr(view, "boxes"):
            raise OptionError(f"crop: expected one of presize.datasets' crops, such as CenterCrop(224), got {view!r}")
    if not views:
        raise OptionError(f"crop: expected at least one crop, got {crop!r}")
    return views if isinstance(crop, (list, tuple)) else crop  # type: ignore[return-value]


def as_size(size: int | Size) -> Size:
    return Size(size, size) if isinstance(size, int) else Size(*size)


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, numbers.Real) for v in value)


def check_size(size: Any) -> Any:
    """Return `size` with int sides. Raises OptionError unless it is N or (height, width), each from 1 to MAX_SIDE."""
    sides = size if isinstance(size, tuple) else (size, size)
    if len(sides) != 2 or isinstance(size, list):
        raise OptionError(f"size: expected N or (height, width), got {size!r}")
    whole = [check_range("size", side, 1, MAX_SIDE) for side in sides]
    return tuple.__new__(type(size), whole) if isinstance(size, tuple) else whole[0]
