"""BatchReader: reads the crops of many samples into one batch, in memory of the caller and without other processes."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.stored_value import DAMAGE
from presize.datasets.applied import EachView, apply
from presize.datasets.collate import NEEDS_A_CROP
from presize.datasets.crops import DECODE_SCALES, RANDOM_FILTERS, Crop, CropGeometry, Crops, as_size, check_crops
from presize.datasets.reading.draws import uniform
from presize.datasets.reading.generators import seeded
from presize.datasets.reading.memory import TensorFormat, new_batch, tensors_over
from presize.datasets.reading.regions import (
    ArrayRows,
    Box,
    Region,
    Sampling,
    View,
    cut_region,
    mask_channels,
    read_region,
    read_values,
    resizes_parts,
    uncut_region,
)
from presize.datasets.reading.stored_image import Decode, images_of
from presize.errors import DatasetError, OptionError
from presize.store.dataset import Dataset

_CUT_AT_A_TIME = 64
"""JPEGs to cut to their regions before libjpeg-turbo decodes the first, so that the code of each step stays in the CPU
caches: 5 to 10% faster than one by one (2026-11-21, AMD EPYC)."""

_TILE = (16, 64)
"""(height, width) in pixels of the tiles of most images: about the excess that is decoded around a box."""

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]


class Skipped(NamedTuple):
    position: int
    reason: str


class _Part(NamedTuple):
    """A box that is decoded once, at 1/scale, and the views that are cut from it."""

    box: Box
    views: tuple[int, ...]
    scale: int


class _Drawn(NamedTuple):
    shapes: Ints  # (n, 2)
    boxes: Ints  # (n, views, 4)
    flips: npt.NDArray[np.bool_]  # (n, views)
    samplings: Sequence[Sequence[Sampling]]  # for each view, n of them


class BatchReader:
    """A reader of batches of crops.

    By default a batch is uint8 (samples, height, width, channels), RGB, grey or RGBA; 16-bit images are the bytes of
    uint16. Several crops give one batch each. Pickled with the dataset's path; safe across threads and forks.

    Args:
        data: the dataset.
        crop: as in LMDBDataset; None for whole images, which must all have the same size.
        fill, dtype: a function that writes the views of a region into their rows, called like read_region, and the type
            that it writes; None for pixels.
        companions: companions (see Dataset.companion) to crop alike, except arrays of another size.
        skips: leave out samples that are damaged or too small for a crop.
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
        given: object = flip  # may be of a NumPy type
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
        channels = arrays.shape if arrays else mask_channels(data) if is_exact else (data.manifest.channels,)
        is_cropped = arrays is None or arrays.is_cropped
        sizes = [self._size() if crop is None else as_size(crop.size) for crop in self._views]
        self.shapes = [(*size, *channels) if is_cropped else channels for size in sizes]
        """Shape of each view's images: (height, width, channels); for masks that are not RGB, (height, width); for
        arrays their own."""
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
        """A reader for each companion; crops and flips are drawn once, for the images."""
        channels_last = is_cropped and bool(channels)
        shapes = [(shape[2], *shape[:2]) for shape in self.shapes] if channels_last else self.shapes
        self.formats = [TensorFormat(shape, self._dtype, channels_last) for shape in shapes]
        """Formats of the images in a batch: each view, then each companion."""
        self.formats += [companion.formats[0] for companion in self.companions]

    @property
    def has_views(self) -> bool:
        """Return whether `crop` is a tuple of crops, even of only one."""
        return isinstance(self.crop, tuple)

    @property
    def gives_tuples(self) -> bool:
        return self.has_views or bool(self.companions)

    def structured(self, tensors: Sequence[torch.Tensor]) -> Any:
        return tuple(tensors) if self.gives_tuples else tensors[0]

    def _size(self) -> tuple[int, int]:
        heights, widths = self.data.numbers("height"), self.data.numbers("width")
        if len(heights) == 0 or heights.min() != heights.max() or widths.min() != widths.max():
            raise OptionError(f"crop: the images of {self.data.root} {NEEDS_A_CROP}")
        if int(heights[0]) * int(widths[0]) > self.data.max_pixels:
            raise DatasetError(self._too_large(0))
        return int(heights[0]), int(widths[0])

    def read(self, out: Sequence[Pixels], samples: Ints, seed: int, epoch: int, keys: Ints) -> list[Skipped]:
        """Fill the first rows of `out`, which has a C-contiguous uint8 array (at least n, *row_shape) for each format.

        (seed, epoch, keys[i]) determine the crop and flip of samples[i]. A reader with `skips` leaves out and returns
        damaged and too small images, and later rows move up. A missing record always raises DatasetError.
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
        """Return the crop geometry of each of `samples` in the first view that read() makes with these arguments."""
        shapes, boxes, flips, samplings = self._draw(samples, seed, epoch, keys)
        height, width = self.shapes[0][:2]
        shown = boxes[:, 0].tolist()
        for i, (_, window) in enumerate(samplings[0]):
            if window is not None:  # the box is larger, by the radius of the filter
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
        if self._dtype == torch.uint16:  # else bytes, which `fill` views as its type
            out = [rows.view(np.uint16) for rows in out[: self.views]]
        for at, regions in self._regions(numbers, parts, leave_out):
            position = positions[at]
            shape, box, flip = tuple(shapes[position]), boxes[position], flips[position]
            try:
                for (_, parts_views, scale), region in zip(parts[at], regions, strict=True):
                    views = [View(out[i][position], box[i], flip[i], drawn.samplings[i][position]) for i in parts_views]
                    self._write(views, region, shape, scale)
            except OptionError:  # intact arrays that cannot be stacked
                raise
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
        """Return the scale at which to decode each view, (n, views): 8 for 1/8, if that leaves enough pixels."""
        scales = np.ones(boxes.shape[:2], np.int64)
        if (boxes[:, :, 2:] >= 2 * self._sides).any():  # a check that costs less than the rest does for one sample
            most = (boxes[:, :, 2:] // self._sides).min(axis=2)
            for scale in reversed(DECODE_SCALES):
                scales[self._can_reduce & (most >= scale) & (boxes % scale == 0).all(axis=2)] = scale
        return scales

    def _regions(
        self, samples: Sequence[int], parts: Sequence[list[_Part]], on_damage: Callable[[int, DatasetError], None]
    ) -> Iterator[tuple[int, list[Region]]]:
        """Yield positions in `samples` and regions of their parts, in their order on disk, valid until the next."""
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
        return str(
            self.data.damage(sample, f"{width} x {height} pixels, more than max_pixels allows ({self.data.max_pixels})")
        )


def _resizes_first(crop: Crop) -> bool:
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
    """Return the box around the `members` (n, views) of each sample's `boxes`, (n, 4), and whether decoding it decodes
    fewer pixels than decoding them one by one, (n,)."""
    chosen = members[:, :, np.newaxis]
    begins = np.where(chosen, boxes[:, :, :2], np.iinfo(np.int64).max).min(axis=1)
    ends = np.where(chosen, boxes[:, :, :2] + boxes[:, :, 2:], 0).max(axis=1)
    sides = np.where(np.any(members, axis=1, keepdims=True), ends - begins, 0)
    apart = (np.prod(boxes[:, :, 2:] + _TILE, axis=2) * members).sum(axis=1)
    return np.concatenate((begins, sides), axis=1), np.prod(sides + _TILE, axis=1) < apart


# ---- with a transform called for each image ----

Visits = tuple[Ints, int, int, Ints]
"""(samples, seed, epoch, keys), as for BatchReader.read."""

Transformed = tuple[int, list[torch.Tensor], TreeSpec]
"""A sample and the result of its transform: the tensors and their structure."""


class TransformedReader:
    """A reader of crops that calls a transform with each, as LMDBDataset does. If `is_seeded`, torch's, NumPy's and
    Python's generators are seeded for each visit and restored afterwards; all threads share them."""

    formats: Sequence[TensorFormat]  # set by learn()
    _spec: TreeSpec

    def __init__(self, reader: BatchReader, transform: Callable[[Any], Any], decode: Decode, is_seeded: bool) -> None:
        self._reader, self._transform, self._decode, self._is_seeded = reader, transform, decode, is_seeded

    def learn(self, batches: Iterable[Visits]) -> None:
        """Set `formats` from the first readable sample of `batches`, which must not be empty."""
        found: list[Transformed] = []
        for samples, seed, epoch, keys in batches:
            for at in range(len(samples)):
                one = slice(at, at + 1)
                skipped = self._each(samples[one], seed, epoch, keys[one], found.append)
                if found:
                    _, tensors, self._spec = found[0]
                    self._described = _described(tensors)
                    self.formats = [TensorFormat.of(tensor) for tensor in tensors]
                    return
        raise DatasetError(skipped[0].reason)

    def read(self, out: Sequence[Pixels], samples: Ints, seed: int, epoch: int, keys: Ints) -> list[Skipped]:
        batch, rows = tensors_over(self.formats, out), count()

        def take(result: Transformed) -> None:
            sample, tensors, spec = result
            described = _described(tensors)
            if spec != self._spec or described != self._described:
                raise OptionError(
                    f"transform: returns {described} for {self._name(sample)}, and {self._described} for the first "
                    "sample; a Loader needs one shape for all samples; use make_loader for others"
                )
            row = next(rows)
            for stacked, tensor in zip(batch, tensors, strict=True):
                stacked[row].copy_(tensor)

        return self._each(samples, seed, epoch, keys, take)

    def structured(self, tensors: Sequence[torch.Tensor]) -> Any:
        return tree_unflatten(list(tensors), self._spec)

    def _each(
        self, samples: Ints, seed: int, epoch: int, keys: Ints, take: Callable[[Transformed], object]
    ) -> list[Skipped]:
        out, batch = new_batch(self._reader.formats, len(samples))
        skipped = self._reader.read(out, samples, seed, epoch, keys)
        kept = np.delete(np.arange(len(samples)), [position for position, _ in skipped])
        views = self._reader.views
        parts = [images_of(tensor[: len(kept)], self._decode) for tensor in batch[:views]]
        parts += [tensor[: len(kept)].unbind() for tensor in batch[views:]]
        with seeded((seed, epoch, keys[kept]) if self._is_seeded else None) as seed_at:
            for at, (sample, *images) in enumerate(zip(samples[kept].tolist(), *parts, strict=True)):
                seed_at(at)
                try:
                    result = self._transformed(images)
                    leaves, spec = tree_flatten(result)
                    tensors = [_as_tensor(leaf) for leaf in leaves or [result]]
                except Exception as error:  # any error of the transform; the note names the sample
                    error.add_note(f"in the transform of {self._name(sample)}")
                    raise
                take((sample, tensors, spec))
        return skipped

    def _transformed(self, images: Sequence[Any]) -> Any:
        views = self._reader.views
        if not self._reader.gives_tuples:
            return apply(self._transform, images[0])
        if isinstance(self._transform, EachView):
            return self._transform(images)
        return (*(apply(self._transform, image) for image in images[:views]), *images[views:])

    def _name(self, sample: int) -> str:
        data = self._reader.data
        return f"sample {sample} ({data.path(sample)}) of {data.root}"


def _described(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in tensors)


def _as_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().as_subclass(torch.Tensor)
    if isinstance(leaf, Image.Image):
        pixels = torch.from_numpy(np.array(leaf))
        return pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels.unsqueeze(0)
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(np.require(leaf, requirements=("C", "W")))
    if isinstance(leaf, (int, float, np.generic)):
        return torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None, device="cpu")
    raise OptionError(
        f"transform: returns {type(leaf).__name__}; a Loader batches only tensors, arrays, images and numbers; use "
        "make_loader for others"
    )
