"""The crops of many samples -> one batch, in memory that the caller provides. No processes."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.stored_value import DAMAGE
from presize.datasets.collate import NEEDS_A_CROP
from presize.datasets.crops import DECODE_SCALES, RANDOM_FILTERS, Crop, CropGeometry, Crops, as_size, check_crops
from presize.datasets.reading.batch import TensorFormat
from presize.datasets.reading.draws import uniform
from presize.datasets.reading.regions import (
    ArrayRows,
    Box,
    Region,
    Sampling,
    View,
    cut_region,
    read_region,
    read_values,
    uncut_region,
)
from presize.datasets.reading.resample import resizes_parts
from presize.errors import DatasetError, OptionError
from presize.store.dataset import Dataset

_CUT_AT_A_TIME = 64
"""JPEGs that are cut to their regions before the first of them is decoded by libjpeg-turbo, so that the code for each
stays in the processor's caches: 5 % faster than one by one on an idle machine, 10 % on a busy one, where 8 at a time
gain 7 % and 128 no more than 64 (2026-11-21, AMD EPYC)."""

_TILE = (16, 64)
"""(height, width) of a tile in pixels, as a build makes them of most images: about what is decoded beyond a box."""

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]


class Skipped(NamedTuple):
    """A sample that was left out of its batch: where it would have been, and why."""

    position: int
    reason: str


class _Part(NamedTuple):
    """A box that is decoded once, at 1/scale, and the views that are cut from it."""

    box: Box
    views: tuple[int, ...]
    scale: int


class _Drawn(NamedTuple):
    """What is read of each sample of a batch, drawn once for the images and all their companions."""

    shapes: Ints  # (n, 2)
    boxes: Ints  # (n, views, 4)
    flips: npt.NDArray[np.bool_]  # (n, views)
    samplings: Sequence[Sequence[Sampling]]  # for each view, n of them


class BatchReader:
    """Reads crops of a dataset's samples into batches.

    By default a batch is uint8 (samples, height, width, channels), RGB, one channel for a dataset that was built with
    color "gray", or four for "rgba"; "keep" gives RGB. For one of 16 bits it has the bytes of uint16. Several crops
    give several views of each sample, a batch each. Picklable by the dataset's path, safe across threads and forks.

    Args:
        data: the dataset.
        crop: as in LMDBDataset; None takes all of each image, and then all images must be of one size.
        fill, dtype: what writes the views of a region into their rows, called as read_region is, and the type of what
            it writes, in place of pixels.
        companions: as Dataset.companion gives them, which are cropped alike. Arrays that do not have their image's
            height and width are read as they are.
        skips: leave out damaged samples.
    """

    def __init__(
        self,
        data: Dataset,
        crop: Crops | None,
        flip: float = 0.0,
        fill: Callable[..., Any] | None = None,
        dtype: torch.dtype | None = None,
        companions: Sequence[Dataset] = (),
        skips: bool = False,
    ) -> None:
        given: object = flip  # of NumPy's types, too
        if not isinstance(given, numbers.Real) or not 0 <= flip <= 1:
            raise OptionError(f"flip: expected a probability from 0 to 1, got {flip!r}")
        self.data = data
        self.crop = None if crop is None else check_crops(crop)
        self.flip = flip
        self.skips = skips
        self._views: tuple[Crop | None, ...] = self.crop if isinstance(self.crop, tuple) else (self.crop,)
        self.views = len(self._views)
        is_exact = data.manifest.color == "exact"
        arrays = ArrayRows.of(data) if data.manifest.is_array else None
        channels = arrays.shape if arrays else () if is_exact else (data.manifest.channels,)
        is_cropped = arrays is None or arrays.is_cropped
        sizes = [self._size() if crop is None else as_size(crop.size) for crop in self._views]
        self.shapes = [(*size, *channels) if is_cropped else channels for size in sizes]
        """(height, width, channels) of the images of each view, (height, width) of masks; of arrays theirs."""
        self._sides = np.array(sizes)
        is_jpeg = data.manifest.format == "jpeg"
        self._can_reduce = np.array([is_jpeg and crop is not None and not crop.exact for crop in self._views])
        self.deep = data.manifest.depth == 16 and not is_exact
        """True if images have 16 bits per channel."""
        if arrays is not None:
            fill, dtype = arrays, torch.from_numpy(np.empty(0, arrays.dtype)).dtype
        self._write = fill or (read_values if is_exact else read_region)
        self._dtype = dtype or (torch.uint16 if data.manifest.depth == 16 else torch.uint8)
        if companions and self.has_views:
            raise OptionError(
                f"crop: companions come with one view of their image, got {len(self._views)}; choose one crop, or "
                "companions=()"
            )
        self.companions = [BatchReader(companion, self.crop, flip, skips=skips) for companion in companions]
        """A reader for each companion; what is drawn for the images holds for them."""
        channels_last = is_cropped and bool(channels)
        shapes = [(shape[2], *shape[:2]) for shape in self.shapes] if channels_last else self.shapes
        self.formats = [TensorFormat(shape, self._dtype, channels_last) for shape in shapes]
        """Formats of the images in a batch: each view, then each companion."""
        self.formats += [companion.formats[0] for companion in self.companions]

    @property
    def has_views(self) -> bool:
        """Whether `crop` is several, even if only one is among them: samples and batches then hold tuples of images."""
        return isinstance(self.crop, tuple)

    @property
    def gives_tuples(self) -> bool:
        """Whether samples and batches hold tuples of images: of several views, or of an image and its companions."""
        return self.has_views or bool(self.companions)

    def structured(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The tensors of a batch as callers get them: a tuple of several, or the only one."""
        return tuple(tensors) if self.gives_tuples else tensors[0]

    def _size(self) -> tuple[int, int]:
        heights, widths = self.data.numbers("height"), self.data.numbers("width")
        if len(heights) == 0 or heights.min() != heights.max() or widths.min() != widths.max():
            raise OptionError(f"crop: the images of {self.data.root} {NEEDS_A_CROP}")
        if int(heights[0]) * int(widths[0]) > self.data.max_pixels:
            raise DatasetError(self._too_large(0))
        return int(heights[0]), int(widths[0])

    def read(self, out: Sequence[Pixels], samples: Ints, seed: int, epoch: int, keys: Ints) -> list[Skipped]:
        """Fill the first rows of `out`, for each of `formats` C-contiguous uint8 (at least n, *row_shape).

        Samples are read in the order in which they lie on disk, each once for all views. (seed, epoch, keys[i]) decide
        crops and flips of samples[i]. A reader that skips leaves out images that are damaged or too small for a crop,
        returns them, and the others move up. A record that is missing, or not as long as the index says, is always a
        DatasetError: the dataset is damaged as a whole.
        """
        drawn = self._draw(samples, seed, epoch, keys)
        begins, ends = drawn.boxes[:, :, :2], drawn.boxes[:, :, :2] + drawn.boxes[:, :, 2:]
        outside: npt.NDArray[np.bool_] = np.any((begins < 0) | (ends > drawn.shapes[:, np.newaxis]), axis=2)
        too_large = drawn.shapes[:, 0] * drawn.shapes[:, 1] > self.data.max_pixels
        left_out = outside.any(axis=1) | too_large
        skipped = []
        for at in np.flatnonzero(left_out).tolist():
            sample = int(samples[at])
            view = int(outside[at].argmax())
            skipped.append(Skipped(at, self._too_large(sample) if too_large[at] else self._too_small(sample, view)))
        if skipped and not self.skips:
            raise DatasetError(skipped[0].reason)
        skipped += self._fill(out, samples, np.flatnonzero(~left_out), drawn)
        for number, companion in enumerate(self.companions, len(self._views)):
            kept = np.setdiff1d(np.arange(len(samples)), [position for position, _ in skipped])
            skipped += companion._fill(out[number : number + 1], samples, kept, drawn)
        if skipped:
            skipped.sort()
            kept = np.setdiff1d(np.arange(len(samples)), [position for position, _ in skipped])
            for rows in out:
                rows[: len(kept)] = rows[kept]
        return skipped

    def shown(self, samples: Ints, seed: int, epoch: int, keys: Ints) -> list[CropGeometry]:
        """What read() shows of each of `samples`, in the first view; arguments as for read()."""
        shapes, boxes, flips, samplings = self._draw(samples, seed, epoch, keys)
        height, width = self.shapes[0][:2]
        shown = boxes[:, 0].tolist()
        for i, (_, window) in enumerate(samplings[0]):
            if window is not None:  # its box is larger, by what the filter reaches
                y_step, x_step = (shapes[i] / window[:2]).tolist()
                shown[i] = window[2] * y_step, window[3] * x_step, height * y_step, width * x_step
        first = zip(shown, flips[:, 0].tolist(), strict=True)
        return [CropGeometry(tuple(box), (height, width), flip) for box, flip in first]

    def _draw(self, samples: Ints, seed: int, epoch: int, keys: Ints) -> _Drawn:
        heights = np.maximum(self.data.numbers("height")[samples].astype(np.int64), 1)  # an index may be damaged
        widths = np.maximum(self.data.numbers("width")[samples].astype(np.int64), 1)
        boxes = np.empty((len(samples), len(self._views), 4), np.int64)
        flips = np.empty(boxes.shape[:2], np.bool_)
        all_of_it = np.stack((np.zeros_like(heights), np.zeros_like(heights), heights, widths), axis=1)
        samplings = []
        for view, crop in enumerate(self._views):
            random = uniform(seed, epoch, keys, 1 + (0 if crop is None else crop.draws), view)
            flips[:, view] = random[:, 0] < self.flip
            if crop is None or (_resizes_first(crop) and not resizes_parts(np.uint16 if self.deep else np.uint8)):
                boxes[:, view] = all_of_it
            else:
                boxes[:, view] = crop.boxes(heights, widths, random[:, 1:])
            samplings.append(_samplings(crop, heights, widths, random))
        return _Drawn(np.stack((heights, widths), axis=1), boxes, flips, samplings)

    def _fill(self, out: Sequence[Pixels], samples: Ints, wanted: Ints, drawn: _Drawn) -> list[Skipped]:
        skipped: list[Skipped] = []

        def leave_out(at: int, damage: DatasetError) -> None:
            if not self.skips:
                raise damage from None
            skipped.append(Skipped(positions[at], str(damage)))

        numbers: Sequence[int] = samples[wanted].tolist()
        positions = wanted.tolist()
        parts = self._parts(drawn.boxes[wanted])
        shapes, boxes, flips = (array.tolist() for array in drawn[:3])
        if self._dtype == torch.uint16:  # else the bytes, of which arrays make their numbers
            out = [rows.view(np.uint16) for rows in out[: self.views]]
        for at, regions in self._regions(numbers, parts, leave_out):
            position = positions[at]
            shape, box, flip = tuple(shapes[position]), boxes[position], flips[position]
            try:
                for (_, parts_views, scale), region in zip(parts[at], regions, strict=True):
                    views = [View(out[i][position], box[i], flip[i], drawn.samplings[i][position]) for i in parts_views]
                    self._write(views, region, shape, scale)
            except DAMAGE as error:
                leave_out(at, self.data.damage(numbers[at], error))
        return skipped

    def _parts(self, boxes: Ints) -> list[list[_Part]]:
        scales = self._scales(boxes)
        if len(self._views) == 1:
            alone = zip(boxes[:, 0].tolist(), scales[:, 0].tolist(), strict=True)
            return [[_Part(tuple(box), (0,), scale)] for box, scale in alone]
        apart = np.ones(boxes.shape[:2], np.bool_)
        joined: list[list[_Part]] = [[] for _ in boxes]
        for scale in (1, *DECODE_SCALES):
            members = scales == scale
            around, joins = _around(boxes, members)
            if self.data.manifest.format != "jpeg":  # decoded in full, whatever the box
                joins[:] = True
            for at in np.flatnonzero(joins & members.any(axis=1)).tolist():
                views = tuple(np.flatnonzero(members[at]).tolist())
                joined[at].append(_Part(tuple(around[at].tolist()), views, scale))
            apart &= ~(members & joins[:, np.newaxis])
        for at, view in np.argwhere(apart).tolist():
            joined[at].append(_Part(tuple(boxes[at, view].tolist()), (view,), int(scales[at, view])))
        return joined

    def _scales(self, boxes: Ints) -> Ints:
        """At which fraction each view is decoded, (n, views): 8 for 1/8, where that leaves enough pixels, and the box
        lies on whole ones of it."""
        scales = np.ones(boxes.shape[:2], np.int64)
        if (boxes[:, :, 2:] >= 2 * self._sides).any():  # else none: it takes less than what follows for one sample
            most = (boxes[:, :, 2:] // self._sides).min(axis=2)
            for scale in reversed(DECODE_SCALES):
                scales[self._can_reduce & (most >= scale) & (boxes % scale == 0).all(axis=2)] = scale
        return scales

    def _regions(
        self, samples: Sequence[int], parts: Sequence[list[_Part]], on_damage: Callable[[int, DatasetError], None]
    ) -> Iterator[tuple[int, list[Region]]]:
        """Positions in `samples` and regions of their parts, in the order in which they lie on disk. They are valid
        until the next ones are requested."""
        format = self.data.manifest.format
        if format != "jpeg" or jpeg_decoder.is_available():
            for at, value in self.data.values(samples, on_damage):
                yield at, [uncut_region(value, format, box) for box, *_ in parts[at]]
            return
        waiting = []
        for at, value in self.data.values(samples, on_damage):
            waiting.append((at, [cut_region(value, box) for box, *_ in parts[at]]))
            if len(waiting) == _CUT_AT_A_TIME:
                yield from waiting
                waiting.clear()
        yield from waiting

    def _too_small(self, sample: int, view: int) -> str:
        which = f"view {view}, {self._views[view]}" if self.has_views else f"{self.crop}"
        height, width = self.data.numbers("height")[sample], self.data.numbers("width")[sample]
        return (
            f"sample {sample} ({self.data.path(sample)}) of {self.data.root} is {height} pixels high and {width} wide, "
            f"too small for {which}; build with --upscale, or choose a smaller crop, Resize or RandomResizedCrop"
        )

    def _too_large(self, sample: int) -> str:
        height, width = self.data.numbers("height")[sample], self.data.numbers("width")[sample]
        return str(self.data.damage(sample, f"{width} x {height} pixels, more than max_pixels={self.data.max_pixels}"))


def _resizes_first(crop: Crop) -> bool:
    """Return whether `crop` cuts its box from a whole image that is resized."""
    return getattr(crop, "resize", None) is not None


def _samplings(crop: Crop | None, heights: Ints, widths: Ints, random: npt.NDArray[np.float64]) -> Sequence[Sampling]:
    interpolation: Any = getattr(crop, "interpolation", "bilinear")
    if crop is not None and _resizes_first(crop):
        windows = crop.windows(heights, widths).tolist()  # type: ignore[attr-defined]
        return [Sampling(interpolation, tuple(window)) for window in windows]
    if interpolation != "random":
        return [Sampling(interpolation)] * len(heights)
    return [Sampling(RANDOM_FILTERS[second]) for second in (random[:, -1] >= 0.5).tolist()]


def _around(boxes: Ints, members: npt.NDArray[np.bool_]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The box around the `members` (n, views) of `boxes` (n, views, 4) of each sample, (n, 4), and whether to decode it
    rather than each by itself, since it has fewer pixels, (n,)."""
    chosen = members[:, :, np.newaxis]
    begins = np.where(chosen, boxes[:, :, :2], np.iinfo(np.int64).max).min(axis=1)
    ends = np.where(chosen, boxes[:, :, :2] + boxes[:, :, 2:], 0).max(axis=1)
    sides = np.where(np.any(members, axis=1, keepdims=True), ends - begins, 0)
    apart = (np.prod(boxes[:, :, 2:] + _TILE, axis=2) * members).sum(axis=1)
    return np.concatenate((begins, sides), axis=1), np.prod(sides + _TILE, axis=1) < apart
