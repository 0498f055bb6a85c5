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
from presize.datasets.reading.memory import LentRows, TensorFormat, send_without_descriptors
from presize.datasets.reading.order import Numbers, sample_numbers
from presize.datasets.reading.stored_image import Decode, check_decode
from presize.datasets.reading.transfer import Normalize
from presize.datasets.sample_images import SampleImages, TransformedImages
from presize.datasets.sampler import visits
from presize.datasets.targets import (
    FlipPairs,
    Records,
    Shown,
    Target,
    Targets,
    Vocabulary,
    chosen_target,
    find_split,
    find_splits,
)
from presize.errors import DatasetError, OptionError, warn
from presize.options import MAX_PIXELS, check_choice, check_type
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
    """The dataset that ``presize build SRC root`` made, sample for sample what ImageFolder(SRC) gives.

    Works in DataLoader workers of every start method, pickled as its path and options. Safe across threads.

    Args:
        root: the folder with manifest.json, or its URL: s3://BUCKET/PATH, http(s)://, gs:// or az:// (docs/remote.md).
        transform, target_transform: called with the image and the target, as in torchvision. Both can be assigned
            later; other options cannot.
        target: the index column beside the image; several names give a tuple, a dict of names a dict; None, or a
            dataset without labels, the image alone. Boxes and keypoints are tensors, moved with the crop
            (docs/detection.md).
        vocabulary: columns whose values, or lists of values, become numbers: their places in the list given, or for
            None in the sorted values of the column. The attribute has the list of each.
        multi_hot: columns of lists that become float32 vectors: 1 for each number of the vocabulary in the list.
        decode: what `transform` gets. "pil": a PIL image (RGB, RGBA, L or I;16). "numpy": uint8 (height, width, 3), or
            (height, width) for grey. "tensor": uint8 (3, height, width) in channels-last memory, or (1, height, width).
            Of a dataset built with --depth 16 uint16, and four channels with --color rgba.
            "bytes": the stored value, undecoded.
        crop: one of presize.datasets' crops, applied before decoding and before `transform`. It is drawn from (seed,
            epoch, sample) under presize's samplers, under any other from torch's generator. Several give as many views
            of each image, drawn independently: a tuple in place of the image, with `transform` called for each view.
        flip: the probability of mirroring an image, from 0 to 1, drawn likewise.
        fuse: take over what `transform`, one of torchvision's or timm's, begins with: crop, flip, normalization
            (presize.datasets.fuse). `fused` tells what is taken over. A transform that is assigned later or changed in
            place is taken over, too.
        readahead: whether the kernel reads more of a shard than the missing page. None suits random order, see
            presize.store.dataset.Dataset; True suits ShardShuffled.
        preload: "page-cache" reads all shards into the page cache; the kernel may evict them later. "memory" also locks
            them there while this dataset lives in this process, for which ``ulimit -l`` must allow; workers share it.
        max_pixels: an image of more pixels counts as damaged.
        check: compare the SHA-256 of the index (up to 256 MB) when it is opened, and the CRC-32 of each record when a
            process first reads it.
        companions: names of further images of each sample, None for all of them. (image, companion, ...) then comes
            in place of the image, all cropped and mirrored alike, and the image alone is transformed.
        flip_pairs: keypoints that change places where an image is mirrored, by their numbers: ``[(1, 2), (3, 4)]``.
        tv_tensors: boxes, keypoints and masks that are tensors are those of torchvision.tv_tensors.
        cache_dir: for a URL, where fetched shards are kept, for all processes of this user and the next run; None for
            ``~/.cache``.
        cache_bytes: that all shards in `cache_dir` may take, None for any number. Those used longest ago are removed.
        options: ImageFolder's loader, is_valid_file and allow_empty, which are refused unless they change nothing.

    Raises:
        RemoteError: the URL cannot be read; here, or where a shard is fetched.
        DatasetError: `root` is not a dataset, or one that is unfinished, truncated, newer, or of another layout.
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
        self.root = expanded(root)
        self.data = open_dataset(self.root, readahead, max_pixels, check, cache_dir, cache_bytes, companions)
        check_type("fuse", fuse, bool)
        if fuse and (crop is not None or flip):
            raise OptionError("fuse: crop and flip come from the transform; leave out crop= and flip=")
        self.fuse = fuse
        self.target_transform = target_transform
        self._rows: Numbers | None = None  # of a subset: the numbers of its samples in `data`
        self.target: Target = chosen_target(self.data, target)
        check_type("vocabulary", {} if vocabulary is None else vocabulary, Mapping)
        self.vocabulary: Vocabulary = vocabulary or {}
        self.multi_hot = (multi_hot,) if isinstance(multi_hot, str) else tuple(multi_hot)
        self.flip_pairs, self.tv_tensors = flip_pairs, tv_tensors
        self.companions = self.data.companions if companions is None else tuple(companions)
        # Without what a transform gives:
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
            raise OptionError("decode: PIL has no colour images of 16 bits; choose numpy or tensor")
        if reading.fused is not None and reading.fused.crop is None:
            warn(f"fuse: nothing was fused: {reading.fused.reason}")
        return reading

    @property
    def _reading(self) -> TransformedImages:
        """Return how images are read now: a fused transform may have been changed in place."""
        reading = self._last_reading
        transform = self.transform if _has_own_transform(self) else reading.transform
        if transform is not reading.transform or not (reading.fused is None or reading.fused.is_current()):
            reading = self._last_reading = self._read_with(transform)
        return reading

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """Return the transform as given or assigned. With ``fuse=True`` only its `fused.rest` is called."""
        return self._last_reading.transform

    @transform.setter
    def transform(self, transform: Callable[[Any], Any] | None) -> None:
        if "_is_finished" in vars(self):  # else a subclass sets it before __init__ does
            self._last_reading = self._read_with(transform)

    @property
    def fused(self) -> Fused | None:
        """The part of the transform that ``fuse=True`` took over."""
        return self._reading.fused

    @property
    def decode(self) -> Decode:
        """The form of the images before what is called with them."""
        return self._reading.images.decode

    _class_numbers: dict[str, int] | None = None

    @property
    def class_to_idx(self) -> dict[str, int]:
        if self._class_numbers is None:
            self._class_numbers = super().class_to_idx
        return self._class_numbers

    def _open(self) -> None:
        """Set what is not pickled."""
        jpeg_decoder.is_available()  # checked here, once, and not again in every worker that is forked
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
        self._formats: list[TensorFormat] = []  # of what the transform made of the last batch

    def __getstate__(self) -> dict[str, Any]:
        kept_out = ("_classes", "_class_names", "_class_numbers", "_targets", "_own_targets", "_formats", "_held")
        return {name: value for name, value in vars(self).items() if name not in kept_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._held = []  # the dataset that preloaded holds them
        with suppress(DatasetError):  # raised on first use
            self._open()

    def __len__(self) -> int:
        return len(self.data) if self._rows is None else len(self._rows)

    def subset(self, indices: Any) -> LMDBDataset:
        """The samples at `indices`, as a dataset with the same classes, crop, transform and other options: a view, of 8
        bytes a sample. They are whole numbers from -len to len - 1, in any order: a list, a range, an array or a
        tensor. A sample that comes twice is cropped twice. Anything else raises OptionError."""
        return self._over(self.data, self.records(sample_numbers(indices, len(self))))

    def split(self, name: Any, column: str = "split") -> LMDBDataset:
        """The samples whose value in a column is `name`, such as a split or the number of a fold, in their order, as
        subset() gives them. Raises DatasetError where there is no such column, OptionError where no sample has that
        value."""
        return self.subset(find_split(self.data, self._rows, name, column))

    @property
    def splits(self) -> list[Any]:
        """The names of the splits in the column ``split``, sorted; none without that column."""
        return find_splits(self.data, self._rows)

    def _over(self, data: Any, rows: Numbers | None) -> LMDBDataset:
        """A dataset with the options of this one over `rows` of `data`, a Dataset or JoinedData, or over all of it."""
        view = type(self).__new__(type(self))
        vars(view).update(vars(self), data=data, _rows=rows, _own_targets=None)
        if data is not self.data:
            vars(view)["root"] = str(data.root)
            view._given = self._given.of(data)
            view._last_reading = view._read_with(self.transform)
            view._open()
        return view

    def records(self, samples: Numbers) -> Numbers:
        """The numbers in `data` of these samples of a dataset that may be a subset: int64 (n,)."""
        return samples if self._rows is None else self._rows[samples]

    def fetch_ahead(self, groups: Sequence[Sequence[int]]) -> None:
        self.data.fetch_ahead(groups)

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """A numeric index column without nulls, a number for each sample; a DatasetError where there is none."""
        values: npt.NDArray[Any] = self.data.numbers(name)
        return values if self._rows is None else values[self._rows]

    def __getitem__(self, index: SupportsIndex) -> Any:
        """The sample at `index`, from -len to len - 1: (image, target), or the image alone. Raises IndexError, and
        DatasetError for a damaged image."""
        return self._read((index,))[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """The samples at `indices`, in their order; a DataLoader calls it once a batch.

        With `crop` and decode "tensor" the images are views of one batch. Samples are read in their order on disk;
        transforms are called in the order of `indices`. A subclass with its own ``__getitem__`` has that called.
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
        if reader is None:
            images = reading.images.stored(samples, lazily=rest is not None)
        else:
            draws = visits(indices)
            images = reading.images.crops(reader, samples, draws, whole=reading.reads_batches)
            shown = self._targets.shown(reader, np.array(samples, np.int64), *draws)
        read = []
        for i, image, geometry in zip(samples, images, shown, strict=True):
            if rows is not None:
                rows.next_sample()
            if rest is not None:
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
        """The targets of many samples, from records(), as presize.datasets.collate combines them; None without a
        target. `shown`: as BatchReader.shown gives it, None for all of each image."""
        if self.target is None:
            return None
        if self.target_transform is None:
            return self._targets.batch(records, shown)
        each = zip(records.tolist(), shown or [None] * len(records), strict=True)
        return collate_targets(tuple(self.target_transform(self._targets.at(*one)) for one in each), False)

    @property
    def crop(self) -> Crop | tuple[Crop, ...] | None:
        """The crop that images are read with, or those of the views."""
        reader = self._reading.images.reader
        return None if reader is None else reader.crop

    @property
    def flip(self) -> float:
        """The probability of mirroring an image."""
        reader = self._reading.images.reader
        return 0.0 if reader is None else reader.flip

    @property
    def normalize(self) -> Normalize | None:
        """(mean, std) that ``fuse=True`` took over; None for images that are not normalized."""
        return self._reading.normalize

    @property
    def classes(self) -> list[str] | None:
        """The class names, in the order of their numbers; None without classes."""
        return self._classes

    @property
    def targets(self) -> npt.NDArray[Any]:
        """The targets of all samples, as an array: a copy, made at the first use, with int64 for whole numbers. Samples
        keep their targets whatever is written to it. For columns of text or lists it is a read-only array of objects,
        for multi_hot a matrix (samples, values). Without a target, or with several, there is no such attribute."""
        if not isinstance(self.target, str):
            raise AttributeError(f"{self.root} was opened with target={self.target!r}: targets needs one column")
        if self._own_targets is not None:
            return self._own_targets
        targets = self._targets.array(self._all_records())
        self._own_targets = None if targets.dtype == object else targets
        return targets

    def path_and_target(self, index: int) -> tuple[str, Any]:
        """One of `samples`, from 0 on: the path in the source, and the target."""
        i = index if self._rows is None else self._rows.item(index)
        return self.data.path(i), None if self.target is None else self._targets.at(i)

    def _all_records(self) -> Records:
        return np.arange(len(self)) if self._rows is None else self._rows

    def dev_shm_bytes(self, batch_size: int) -> int:
        """Roughly the bytes of /dev/shm that a batch takes on its way from a DataLoader's worker: 8 a sample, and the
        pixels unless the batch is read as one."""
        reading = self._reading
        pixels = 0 if reading.reads_batches else reading.images.nbytes()
        return int(batch_size * (pixels + 8))

    def __repr__(self) -> str:
        fused = "" if self.fused is None else f", {self.fused!r}"
        return f"LMDBDataset({self.root!r}, {len(self)} samples, target={self.target!r}, decode={self.decode!r}{fused})"

    def _repr_html_(self) -> str | None:
        from presize.pages.gallery import dataset_html  # for notebooks alone

        return dataset_html(self.data, self._all_records(), repr(self))


def _has_own_transform(dataset: LMDBDataset) -> bool:
    return type(dataset).transform is not LMDBDataset.transform
