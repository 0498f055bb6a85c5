"""LMDBDataset: a presize dataset as a replacement for torchvision's ImageFolder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, SupportsIndex, Unpack

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.datasets.applied import EachView, apply
from presize.datasets.collate import SampleList, Views, collate_targets
from presize.datasets.crops import Crop, Crops
from presize.datasets.fuse import Fused
from presize.datasets.read_only import (
    ImageFolderNames,
    ImageFolderOptions,
    check_hooks,
    names_instead,
    position,
    read_only,
)
from presize.datasets.reading.generators import seeded
from presize.datasets.reading.memory import LentRows, TensorFormat, send_without_descriptors
from presize.datasets.reading.order import Numbers, sample_numbers
from presize.datasets.reading.stored_image import Decode, check_decode
from presize.datasets.reading.transfer import Normalize
from presize.datasets.sample_images import SampleImages, TransformedImages
from presize.datasets.sampler import Visit, visits
from presize.datasets.targets import (
    FlipPairs,
    Records,
    Shown,
    Target,
    Targets,
    Vocabulary,
    checked_pairs,
    chosen_target,
    find_split,
    find_splits,
)
from presize.errors import DatasetError, OptionError, warn
from presize.options import MAX_PIXELS, check_choice, check_function, check_list, check_type
from presize.remote.cache import open_dataset
from presize.system.files import expanded
from presize.system.pagecache import Preload

_SUBSET = "dataset.subset(indices)"


@read_only(
    "make another LMDBDataset with it",
    data=f"use {_SUBSET}, or make another LMDBDataset",
    **dict.fromkeys(("normalize", "fused"), "it comes from the transform"),
    **names_instead(_SUBSET, "use target_transform, or another column of the index"),
)
class LMDBDataset(ImageFolderNames, torch.utils.data.Dataset[Any]):
    """A dataset written by ``presize build SRC root``, with the same samples in the same order as ImageFolder(SRC).

    Works in DataLoader workers with every start method: it is pickled as its path and options. Thread-safe.

    Args:
        root: the folder with manifest.json, or its URL: s3://BUCKET/PATH, http(s)://, gs:// or az:// (docs/remote.md).
        transform, target_transform: called with the image and the target, as in torchvision. Both can be assigned
            later; other options cannot. With presize's samplers, the generators of torch, NumPy and Python are seeded
            for each call of `transform` and restored afterwards; threads of one process share them.
        target: the index column to return with the image. A list of names gives a tuple, a dict of names a dict. With
            None, or "label" in a dataset without labels, a sample is only its image. Boxes and keypoints are tensors
            and move with the crop (docs/detection.md).
        vocabulary: columns whose values, or lists of values, are replaced by numbers: positions in the list given, or
            for None in the sorted values of the column. The attribute `vocabulary` holds the list of each column.
        multi_hot: columns of lists to convert to float32 vectors: 1 for each value of the vocabulary in the list.
        decode: type of the image passed to `transform`. "pil": a PIL image (RGB, RGBA, L or I;16). "numpy": uint8
            (height, width, 3), or (height, width) for grey. "tensor": uint8 (3, height, width) in channels-last memory,
            or (1, height, width). Datasets built with --depth 16 give uint16, those with --color rgba four channels.
            "bytes": the stored value, undecoded.
        crop: one of the crops of presize.datasets, applied before decoding and before `transform`. With presize's
            samplers it is drawn from (seed, epoch, sample), with others from torch's generator. Several crops give as
            many independent views of each image: a tuple replaces the image, and `transform` is called for each view.
        flip: the probability of a horizontal flip, from 0 to 1, drawn in the same way.
        fuse: take over the crop, flip and normalization at the beginning of `transform`, torchvision's or timm's (see
            presize.datasets.fuse). `fused` lists them. Transforms assigned later or changed in place are fused again.
        readahead: let the kernel read more of a shard than the missing page. None chooses for random order (see
            presize.store.dataset.Dataset); True suits ShardShuffled.
        preload: "page-cache" reads all shards into the page cache; the kernel may evict them later. "memory" also locks
            them there while this dataset exists in this process; workers share them, and ``ulimit -l`` must allow it.
        max_pixels: images with more pixels count as damaged.
        check: compare the SHA-256 of the index (up to 256 MB) when opening it, and the CRC-32 of each record when a
            process first reads it.
        companions: names of the companion images to read, None for all. A tuple (image, companion, ...) then replaces
            the image. All are cropped and flipped alike; only the image is transformed.
        flip_pairs: pairs of keypoints, numbered from 0, to swap when an image is flipped: ``[(1, 2), (3, 4)]``.
        tv_tensors: return tensors of boxes, keypoints and masks as torchvision.tv_tensors.
        cache_dir: for a URL, the folder of fetched shards, which all processes and later runs of this user share; None
            for ``~/.cache``.
        cache_bytes: limit in bytes for all shards in `cache_dir`, or None. The least recently used are removed.
        options: ImageFolder's loader, is_valid_file and allow_empty, refused unless they change nothing.

    Raises:
        RemoteError: the URL cannot be read, when opening it or when fetching a shard.
        DatasetError: `root` is not a dataset, or it is unfinished, truncated, too new, or of another layout.
        OptionError: an option is out of range, or the dataset cannot be preloaded.
    """

    _subset = _SUBSET

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        target: Target = "label",
        vocabulary: Vocabulary | None = None,
        multi_hot: str | Sequence[str] = (),
        decode: Decode = "pil",
        crop: Crops | None = None,
        flip: float = 0.0,
        fuse: bool = False,
        readahead: bool | None = None,
        preload: Preload | None = None,
        max_pixels: int = MAX_PIXELS,
        check: bool = True,
        companions: Sequence[str] | None = None,
        flip_pairs: FlipPairs = (),
        tv_tensors: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        **options: Unpack[ImageFolderOptions],
    ) -> None:
        check_hooks(self, LMDBDataset, options)
        check_decode(decode, is_cropped=crop is not None or bool(flip))
        if preload is not None:
            check_choice("preload", preload, Preload)
        if companions is not None:
            check_list("companions", companions)
        self.root = expanded(root)
        self.data = open_dataset(self.root, readahead, max_pixels, check, cache_dir, cache_bytes, companions)
        check_type("fuse", fuse, bool)
        if fuse and (crop is not None or flip):
            raise OptionError("fuse: crop and flip come from the transform; leave out crop= and flip=")
        self.fuse = fuse
        check_function("target_transform", target_transform)
        self.target_transform = target_transform
        self._rows: Numbers | None = None  # in a subset, the record numbers of its samples
        self.target: Target = chosen_target(self.data, target)
        check_type("vocabulary", {} if vocabulary is None else vocabulary, Mapping)
        self.vocabulary: Vocabulary = vocabulary or {}
        multi_hot = (multi_hot,) if isinstance(multi_hot, str) else multi_hot
        check_list("multi_hot", multi_hot)
        self.multi_hot = tuple(multi_hot)
        self.flip_pairs, self.tv_tensors = checked_pairs(flip_pairs), tv_tensors
        self.companions = self.data.companions if companions is None else tuple(companions)
        # With the options as given, before a transform is fused.
        self._given = SampleImages(self.data, decode, self.companions, tv_tensors, crop, flip)
        self._last_reading = self._read_with(transform)
        preloaded = [] if preload is None else [self.data, *self._given.companions]
        self._held = [held for data in preloaded for held in data.preload(preload)]
        self._open()
        self._is_finished = True
        if _has_own_transform(self):
            self.transform = transform

    def _read_with(self, transform: Callable[[Any], Any] | None) -> TransformedImages:
        reading = self._given.read_with(transform, takes_over=self.fuse and transform is not None)
        manifest = self.data.manifest
        if reading.images.decode == "pil" and manifest.depth == 16 and manifest.color not in ("gray", "exact"):
            raise OptionError("decode: PIL has no 16-bit colour images; choose numpy or tensor")
        if reading.fused is not None and reading.fused.crop is None:
            warn(f"fuse: nothing was fused: {reading.fused.reason}")
        return reading

    @property
    def _reading(self) -> TransformedImages:
        """The current reading of images: a fused transform may have been changed in place."""
        reading = self._last_reading
        transform = self.transform if _has_own_transform(self) else reading.transform
        if transform is not reading.transform or not (reading.fused is None or reading.fused.is_current()):
            reading = self._last_reading = self._read_with(transform)
        return reading

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The transform as given or assigned. With ``fuse=True`` only `fused.rest` is called."""
        return self._last_reading.transform

    @transform.setter
    def transform(self, transform: Callable[[Any], Any] | None) -> None:
        if "_is_finished" in vars(self):  # not when a subclass assigns it before calling __init__
            self._last_reading = self._read_with(transform)

    @property
    def fused(self) -> Fused | None:
        """The transform as ``fuse=True`` split it; None without fuse or without a transform."""
        return self._reading.fused

    @property
    def decode(self) -> Decode:
        """The type of the image passed to the transform, with ``fuse=True`` to `fused.rest`."""
        return self._reading.images.decode

    _class_numbers: dict[str, int] | None = None

    @property
    def class_to_idx(self) -> dict[str, int]:
        if self._class_numbers is None:
            self._class_numbers = super().class_to_idx
        return self._class_numbers

    def _open(self) -> None:
        """Set the attributes that are not pickled."""
        jpeg_decoder.is_available()  # cached, so that forked workers need not check again
        self._class_names = self.data.manifest.classes or ()
        self._classes = None if self.data.manifest.classes is None else list(self._class_names)
        self._class_numbers = None
        self._targets = Targets(
            self.data, self.target, self.vocabulary, self.multi_hot, self.flip_pairs, self.tv_tensors
        )
        vars(self)["vocabulary"] = self._targets.vocabulary
        if self._given.reader is not None:
            self._targets.check_reader(self._given.reader)
        self._own_targets: npt.NDArray[Any] | None = None
        self._formats: list[TensorFormat] = []  # of the transform's tensors in the last batch

    def __getstate__(self) -> dict[str, Any]:
        kept_out = ("_classes", "_class_names", "_class_numbers", "_targets", "_own_targets", "_formats", "_held")
        return {name: value for name, value in vars(self).items() if name not in kept_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._held = []  # only the dataset that preloaded the shards holds them
        with suppress(DatasetError):  # raised on first use
            self._open()

    def __len__(self) -> int:
        return len(self.data) if self._rows is None else len(self._rows)

    def subset(self, indices: Any) -> LMDBDataset:
        """Return a view of the samples at `indices`, with the same classes, crop, transform and other options.

        `indices` is a list, range, array or tensor of whole numbers from -len to len - 1, in any order; anything else
        raises OptionError. Repeated samples are cropped independently. A view takes 8 bytes per sample."""
        return self._over(self.data, self.records(sample_numbers(indices, len(self))))

    def split(self, name: Any, column: str = "split") -> LMDBDataset:
        """Return the subset of samples with the value `name` in `column`, such as a split or the number of a fold, in
        their order. Raises DatasetError if the column does not exist, OptionError if no sample has that value."""
        return self.subset(find_split(self.data, self._rows, name, column))

    @property
    def splits(self) -> list[Any]:
        """The sorted names in the column ``split``; an empty list without that column."""
        return find_splits(self.data, self._rows)

    def _over(self, data: Any, rows: Numbers | None) -> LMDBDataset:
        """Return a dataset with these options over `rows` of `data`, a Dataset or JoinedData; None for all rows."""
        view = type(self).__new__(type(self))
        vars(view).update(vars(self), data=data, _rows=rows, _own_targets=None)
        if data is not self.data:
            vars(view)["root"] = str(data.root)
            view._given = self._given.of(data)
            view._last_reading = view._read_with(self.transform)
            view._open()
        return view

    def records(self, samples: Numbers) -> Numbers:
        """Return the record numbers in `data` of `samples`, int64 (n,); they differ only in a subset."""
        return samples if self._rows is None else self._rows[samples]

    def fetch_ahead(self, groups: Sequence[Sequence[int]]) -> None:
        self.data.fetch_ahead(groups)

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return an index column, one number per sample. Raises DatasetError unless it is numeric and has no nulls."""
        values: npt.NDArray[Any] = self.data.numbers(name)
        return values if self._rows is None else values[self._rows]

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return the sample at `index`, from -len to len - 1: (image, target), or only the image. Raises IndexError,
        and DatasetError for a damaged image."""
        return self._read((index,))[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return the samples at `indices`, in their order; a DataLoader calls this once per batch.

        With `crop` and decode="tensor" the images are views of one batch. Samples are read in their order on disk;
        transforms are called in the order of `indices`. If a subclass overrides ``__getitem__``, that is called.
        """
        if type(self).__getitem__ is not LMDBDataset.__getitem__:
            return [self[index] for index in indices]
        samples = self._read(indices)
        as_list = self._targets.as_list if self.target_transform is None else False
        return SampleList(samples, as_list) if as_list else samples

    def _read(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        if torch.utils.data.get_worker_info() is not None:
            send_without_descriptors()
        reading, of = self._reading, f" of {self.root}"
        rest, reader = reading.rest, reading.images.reader
        samples = [position(index, len(self), of) for index in indices]
        if self._rows is not None:
            samples = self._rows[samples].tolist()
        rows = LentRows(self._formats, len(samples)) if rest is not None and len(samples) > 1 else None
        shown: Shown = [None] * len(samples)
        is_keyed = rest is not None and len(indices) > 0 and isinstance(indices[0], Visit)
        draws = None if reader is None and not is_keyed else visits(indices)
        if reader is None or draws is None:
            images = reading.images.stored(samples, lazily=rest is not None)
        else:
            images = reading.images.crops(reader, samples, draws, whole=reading.reads_batches)
            shown = self._targets.shown(reader, np.array(samples, np.int64), *draws)
        read = []
        with seeded(draws if is_keyed else None) as seed_at:
            for at, (i, image, geometry) in enumerate(zip(samples, images, shown, strict=True)):
                if rows is not None:
                    rows.next_sample()
                if rest is not None:
                    seed_at(at)
                    image = self._transformed(rest, image, rows)
                if self.target is not None:
                    target = self._targets.at(i, geometry)
                    image = image, target if self.target_transform is None else self.target_transform(target)
                read.append(image)
        return read

    def _transformed(self, rest: Callable[[Any], Any], image: Any, rows: LentRows | None) -> Any:
        if not isinstance(image, Views) or isinstance(rest, EachView):
            return apply(rest, image, rows)
        if self.companions:
            return Views((apply(rest, image[0], rows), *image[1:]))
        return Views(apply(rest, view, rows) for view in image)

    def batch_targets(self, records: Records, shown: Shown | None = None) -> Any:
        """Return the targets of `records`, combined as by presize.datasets.collate; None without a target. `shown`: the
        result of BatchReader.shown, None for whole images."""
        if self.target is None:
            return None
        if self.target_transform is None:
            return self._targets.batch(records, shown)
        each = zip(records.tolist(), shown or [None] * len(records), strict=True)
        return collate_targets(tuple(self.target_transform(self._targets.at(*one)) for one in each), False)

    @property
    def crop(self) -> Crop | tuple[Crop, ...] | None:
        """The crop of images, a tuple of crops for several views, or None."""
        reader = self._reading.images.reader
        return None if reader is None else reader.crop

    @property
    def flip(self) -> float:
        """The probability of a horizontal flip."""
        reader = self._reading.images.reader
        return 0.0 if reader is None else reader.flip

    @property
    def normalize(self) -> Normalize | None:
        """The (mean, std) that ``fuse=True`` took over; None if there is none."""
        return self._reading.normalize

    @property
    def classes(self) -> list[str] | None:
        """The class names, in the order of their numbers; None without classes."""
        return self._classes

    @property
    def targets(self) -> npt.NDArray[Any]:
        """The targets of all samples in one array: int64 for whole numbers, a read-only array of objects for text or
        lists, a matrix (samples, values) for multi_hot. It is a copy, made at first use: writing to it does not change
        the samples. AttributeError without a target, or with several."""
        if not isinstance(self.target, str):
            raise AttributeError(f"{self.root} was opened with target={self.target!r}: targets needs one column")
        if self._own_targets is not None:
            return self._own_targets
        targets = self._targets.array(self._all_records())
        self._own_targets = None if targets.dtype == object else targets
        return targets

    def path_and_target(self, index: int) -> tuple[str, Any]:
        """Return the path in the source and the target of sample `index`, from 0."""
        i = index if self._rows is None else self._rows.item(index)
        return self.data.path(i), None if self.target is None else self._targets.at(i)

    def _all_records(self) -> Records:
        return np.arange(len(self)) if self._rows is None else self._rows

    def dev_shm_bytes(self, batch_size: int) -> int:
        """Estimate the bytes of a worker's batch in /dev/shm: 8 per sample, and the pixels unless read as one batch."""
        reading = self._reading
        pixels = 0 if reading.reads_batches else reading.images.nbytes()
        return int(batch_size * (pixels + 8))

    def __repr__(self) -> str:
        fused = "" if self.fused is None else f", {self.fused!r}"
        return f"LMDBDataset({self.root!r}, {len(self)} samples, target={self.target!r}, decode={self.decode!r}{fused})"

    def _repr_html_(self) -> str | None:
        from presize.pages.gallery import dataset_html  # only for notebooks

        return dataset_html(self.data, self._all_records(), repr(self))


def _has_own_transform(dataset: LMDBDataset) -> bool:
    return type(dataset).transform is not LMDBDataset.transform
