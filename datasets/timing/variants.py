"""The variants of a benchmark as loaders: the same samples and crops in the same order, read in four ways."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from presize.datasets.crops import Crop, as_size
from presize.datasets.folder import FolderDataset
from presize.datasets.lmdb import LMDBDataset
from presize.datasets.loader import Loader
from presize.datasets.make_loader import CountingLoader, make_loader
from presize.datasets.reading.draws import uniform
from presize.datasets.reading.order import Last, Order
from presize.datasets.reading.permutation import permute
from presize.datasets.reading.regions import resample
from presize.datasets.sampler import visits
from presize.errors import DatasetError
from presize.measure.bench_options import Variant

FLIP = 0.5


class CroppedFolder(FolderDataset):
    """A folder whose images are cropped after decoding, as by any transform.

    Gives uint8 tensors (3, height, width), cropped, resized and mirrored as by ``LMDBDataset(crop=, flip=)``, from the
    same random numbers.

    Args:
        root: the folder.
        crop, flip: as in LMDBDataset.
        tell_path: give (path, label) as the target, or the path where there are no labels.
    """

    def __init__(self, root: str | os.PathLike[str], crop: Crop, flip: float, *, tell_path: bool = False) -> None:
        super().__init__(root, decode="numpy")
        self.crop = crop
        self.flip = flip
        self.tell_path = tell_path

    def __getitem__(self, index: SupportsIndex) -> Any:
        sample = super().__getitem__(index)
        pixels, label = (sample, None) if self._targets is None else sample
        seed, epoch, keys = visits((index,))
        random = uniform(seed, epoch, keys, 1 + self.crop.draws)
        heights, widths = (np.array([side]) for side in pixels.shape[:2])
        top, left, height, width = self.crop.boxes(heights, widths, random[:, 1:])[0].tolist()
        if top < 0 or left < 0:
            raise DatasetError(f"{self.path(int(index))} of {self.root} is too small for {self.crop}")
        out = np.empty((*as_size(self.crop.size), 3), np.uint8)
        resample(pixels[top : top + height, left : left + width], out, bool(random[0, 0] < self.flip))
        image = torch.from_numpy(out).permute(2, 0, 1)
        if self.tell_path:
            return image, (self.path(int(index)) if label is None else (self.path(int(index)), label))
        return image if label is None else (image, label)

    def dev_shm_bytes(self, batch_size: int) -> int:
        """Bytes of /dev/shm that a batch takes on its way from a DataLoader's worker."""
        height, width = as_size(self.crop.size)
        return batch_size * (3 * height * width + 8)

    def path(self, sample: int) -> str:
        """The path of a sample, relative to the folder."""
        return str(self._paths[sample].as_py())


@dataclass(frozen=True, eq=False)
class Chosen:
    """An order over chosen samples, shuffled anew each epoch.

    Crops are drawn from the place in `numbers`, so that variants that number the same samples differently take the
    same crops.

    Attributes:
        numbers: the samples, int64 (n,).
        population: samples in the dataset.
        seed: of the order and the crops.
        most: positions after which an epoch ends; None for no limit.
    """

    numbers: npt.NDArray[np.int64]
    population: int
    seed: int = 0
    most: int | None = None
    _length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        length = len(self.numbers) if self.most is None else min(self.most, len(self.numbers))
        object.__setattr__(self, "_length", length)

    def __len__(self) -> int:
        return self._length

    def samples(self, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.numbers[self.keys(epoch, positions)]

    def keys(self, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return permute(positions, len(self.numbers), (self.seed, epoch, 0))


def open_variant(
    variant: Variant, root: str, crop: Crop, flip: float, *, tell_path: bool = False
) -> CroppedFolder | LMDBDataset:
    """The dataset of a variant, cropped. tell_path: give (path in the variant, label), or the path, as the target."""
    if variant in ("raw", "presized"):
        return CroppedFolder(root, crop, flip, tell_path=tell_path)
    dataset = LMDBDataset(root, crop=crop, flip=flip, decode="tensor")
    if tell_path:
        target = "path" if dataset.target is None else ("path", "label")
        dataset = LMDBDataset(root, crop=crop, flip=flip, decode="tensor", target=target)
    return dataset


def load_variant(
    variant: Variant,
    dataset: CroppedFolder | LMDBDataset,
    order: Order,
    *,
    batch: int,
    workers: int,
    prefetch: int,
    pin_memory: bool,
    device: torch.device,
    last: Last,
) -> CountingLoader | Loader:
    """The loader of a variant. Loader gives batches on `device`, the DataLoaders on the CPU."""
    if variant == "loader":
        return Loader(
            dataset,
            batch,
            order=order,
            workers=workers,
            prefetch=prefetch,
            last=last,
            device=device,
        )
    return make_loader(
        dataset, batch, order=order, workers=workers, prefetch=prefetch, last=last, pin_memory=pin_memory
    )
