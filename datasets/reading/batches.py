"""The crops of many samples -> one batch, in memory that the caller provides. No processes, no torch types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from presize.codecs import jpeg_decoder
from presize.codecs.stored_value import DAMAGE
from presize.datasets.crops import Crop, as_size
from presize.datasets.reading.draws import uniform
from presize.datasets.reading.regions import Box, Region, cut_region, read_region, uncut_region
from presize.errors import DatasetError, OptionError
from presize.store.dataset import Dataset

_CUT_AT_A_TIME = 64
"""JPEGs that are cut to their regions before the first of them is decoded by libjpeg-turbo, so that the code for each
stays in the processor's caches: 5 % faster than one by one on an idle machine, 10 % on a busy one, where 8 at a time
gain 7 % and 128 no more than 64 (2026-11-21, AMD EPYC)."""

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]


class Skipped(NamedTuple):
    """A sample that was left out of its batch: where it would have been, and why."""

    position: int
    reason: str


class RowFormat(NamedTuple):
    """What a batch holds for each sample.

    Attributes:
        shape: of a sample's row, uint8.
        fill: writes a region of an image into a row; called as read_region is. Module-level, to be pickled.
        needs_cut: whether `fill` is given JPEGs that are cut to their regions, rather than whole ones.
    """

    shape: tuple[int, ...]
    fill: Callable[..., Any]
    needs_cut: bool


class BatchReader:
    """Reads crops of a dataset's samples into batches.

    By default a batch is uint8 (samples, height, width, channels), RGB, or one channel for a dataset that was built
    with color "gray"; "keep" gives RGB. Picklable by the dataset's path, safe across threads and forks.

    Args:
        data: the dataset.
        crop: which part of each image; None takes all of it, and then all images must be of one size.
        flip: the probability of mirroring left to right, from 0 to 1.
        rows: what a batch holds in place of pixels.

    Raises:
        OptionError: `crop` is no crop or is missing, or `flip` is out of range.
    """

    def __init__(self, data: Dataset, crop: Crop | None, flip: float = 0.0, rows: RowFormat | None = None) -> None:
        if not isinstance(flip, (int, float)) or not 0 <= flip <= 1:
            raise OptionError(f"flip: expected a probability from 0 to 1, got {flip!r}")
        if crop is not None and not hasattr(crop, "boxes"):
            raise OptionError(f"crop: expected one of presize.datasets' crops, such as CenterCrop(224), got {crop!r}")
        self.data = data
        self.crop = crop
        self.flip = flip
        self.shape = (*self._size(), 1 if data.manifest.color == "gray" else 3)
        """(height, width, channels) of each image of a batch."""
        self.rows = rows or RowFormat(self.shape, read_region, needs_cut=not jpeg_decoder.is_available())

    def _size(self) -> tuple[int, int]:
        if self.crop is not None:
            return as_size(self.crop.size)
        heights, widths = self.data.numbers("height"), self.data.numbers("width")
        if len(heights) == 0 or heights.min() != heights.max() or widths.min() != widths.max():
            raise OptionError(
                f"crop: the images of {self.data.root} have different sizes and cannot be stacked; "
                "choose one, such as RandomResizedCrop(224) or CenterCrop(224)"
            )
        if int(heights[0]) * int(widths[0]) > self.data.max_pixels:
            raise DatasetError(self._too_large(0))
        return int(heights[0]), int(widths[0])

    def read(
        self, out: Pixels, samples: Ints, seed: int, epoch: int, keys: Ints, *, skip: bool = False
    ) -> list[Skipped]:
        """Fill out[:len(samples)] with `samples`, in their order. They are read in the order in which they lie on disk.

        Args:
            out: C-contiguous, uint8 (at least n, *rows.shape).
            samples: their numbers, (n,).
            seed, epoch, keys: (seed, epoch, keys[i]) decide crop and flip of samples[i].
            skip: leave out images that are damaged or too small for the crop; the others move up.

        Returns:
            What was left out, by position.

        Raises:
            DatasetError: an image is damaged or too small for the crop, without `skip`. In any case for a record that
                is missing, or not as long as the index says: the dataset is damaged as a whole.
        """
        random = uniform(seed, epoch, keys, 1 + (0 if self.crop is None else self.crop.draws))
        heights = np.maximum(self.data.numbers("height")[samples].astype(np.int64), 1)  # an index may be damaged
        widths = np.maximum(self.data.numbers("width")[samples].astype(np.int64), 1)
        if self.crop is None:
            zeros = np.zeros_like(heights)
            boxes = np.stack((zeros, zeros, heights, widths), axis=1)
        else:
            boxes = self.crop.boxes(heights, widths, random[:, 1:])
        outside = (boxes[:, :2] < 0).any(axis=1)
        outside |= (boxes[:, 0] + boxes[:, 2] > heights) | (boxes[:, 1] + boxes[:, 3] > widths)
        too_large = heights * widths > self.data.max_pixels
        outside |= too_large
        skipped = [
            Skipped(at, (self._too_large if too_large[at] else self._too_small)(int(samples[at])))
            for at in np.flatnonzero(outside).tolist()
        ]
        if skipped and not skip:
            raise DatasetError(skipped[0].reason)
        wanted = np.flatnonzero(~outside)
        skipped += self._fill(out, samples, wanted, heights, widths, boxes, random[:, 0] < self.flip, skip)
        if skipped:
            skipped.sort()
            kept = np.setdiff1d(np.arange(len(samples)), [position for position, _ in skipped])
            out[: len(kept)] = out[kept]
        return skipped

    def _fill(
        self,
        out: Pixels,
        samples: Ints,
        wanted: Ints,
        heights: Ints,
        widths: Ints,
        boxes: Ints,
        flips: npt.NDArray[np.bool_],
        skip: bool,
    ) -> list[Skipped]:
        exact = self.crop is None or self.crop.exact
        shapes = list(zip(heights.tolist(), widths.tolist(), strict=True))
        rectangles = [tuple(box) for box in boxes[wanted].tolist()]
        mirrored = flips.tolist()
        skipped: list[Skipped] = []

        def leave_out(at: int, damage: DatasetError) -> None:
            if not skip:
                raise damage from None
            skipped.append(Skipped(positions[at], str(damage)))

        numbers: Sequence[int] = samples[wanted].tolist()
        positions = wanted.tolist()
        fill = self.rows.fill
        for at, region in self._regions(numbers, rectangles, leave_out):
            position = positions[at]
            try:
                fill(out[position], region, shapes[position], flip=mirrored[position], exact=exact)
            except DAMAGE as error:
                leave_out(at, self.data.damage(numbers[at], error))
        return skipped

    def _regions(
        self, samples: Sequence[int], boxes: Sequence[Box], on_damage: Callable[[int, DatasetError], None]
    ) -> Iterator[tuple[int, Region]]:
        """The position of each of `samples`, and the region of its box, in the order in which they lie on disk.
        A region is valid until the next one is requested. `on_damage` is as for Dataset.values."""
        format = self.data.manifest.format
        if format != "jpeg" or not self.rows.needs_cut:
            for at, value in self.data.values(samples, on_damage):
                yield at, uncut_region(value, format, boxes[at])
            return
        waiting = []
        for at, value in self.data.values(samples, on_damage):
            waiting.append((at, cut_region(value, boxes[at])))
            if len(waiting) == _CUT_AT_A_TIME:
                yield from waiting
                waiting.clear()
        yield from waiting

    def _too_small(self, sample: int) -> str:
        height, width = self.data.numbers("height")[sample], self.data.numbers("width")[sample]
        return (
            f"sample {sample} ({self.data.path(sample)}) of {self.data.root} is {height} pixels high and {width} wide, "
            f"too small for {self.crop}; build with --upscale, or choose a smaller crop, Resize or RandomResizedCrop"
        )

    def _too_large(self, sample: int) -> str:
        height, width = self.data.numbers("height")[sample], self.data.numbers("width")[sample]
        return str(self.data.damage(sample, f"{width} x {height} pixels, more than max_pixels={self.data.max_pixels}"))
