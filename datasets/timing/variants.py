"""Loaders for the variants of a benchmark: the same samples and crops in the same order, read in five ways."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from PIL import Image

from presize.datasets.crops import Crop, as_size
from presize.datasets.dataset import LMDBDataset
from presize.datasets.folder import FolderDataset
from presize.datasets.loader import Loader
from presize.datasets.make_loader import CountingLoader, make_loader
from presize.datasets.reading.draws import permute, uniform
from presize.datasets.reading.order import Order
from presize.datasets.reading.regions import resample
from presize.datasets.reading.stored_image import Decode
from presize.datasets.sampler import visits
from presize.datasets.targets import Target
from presize.errors import DatasetError, ImageError
from presize.measure.bench_options import Variant
from presize.store.manifest import read_manifest

FLIP = 0.5


class CroppedFolder(FolderDataset):
    """Folder whose images are cropped after decoding: uint8 tensors (3, height, width), cropped, resized and mirrored
    as by ``LMDBDataset(crop=, flip=)``, from the same random numbers. With `tell_path`, the target is (path, label), or
    the path if there are no labels."""

    reads: ClassVar[Decode] = "numpy"

    def __init__(self, root: str | os.PathLike[str], crop: Crop, flip: float, *, tell_path: bool = False) -> None:
        super().__init__(root, decode=self.reads)
        self.crop = crop
        self.flip = flip
        self.tell_path = tell_path

    def __getitem__(self, index: SupportsIndex) -> Any:
        sample = super().__getitem__(index)
        content, label = (sample, None) if self._targets is None else sample
        seed, epoch, keys = visits((index,))
        image = self._cropped(content, uniform(seed, epoch, keys, 1 + self.crop.draws), int(index))
        if self.tell_path:
            return image, (self.path(int(index)) if label is None else (self.path(int(index)), label))
        return image if label is None else (image, label)

    def _cropped(self, pixels: Any, random: npt.NDArray[np.float64], sample: int) -> torch.Tensor:
        top, left, height, width = self._box(pixels.shape[0], pixels.shape[1], random, sample)
        out = np.empty((*as_size(self.crop.size), 3), np.uint8)
        resample(pixels[top : top + height, left : left + width], out, bool(random[0, 0] < self.flip))
        return torch.from_numpy(out).permute(2, 0, 1)

    def _box(self, height: int, width: int, random: npt.NDArray[np.float64], sample: int) -> list[int]:
        box: list[int] = self.crop.boxes(np.array([height]), np.array([width]), random[:, 1:])[0].tolist()
        if min(box[:2]) < 0:
            raise DatasetError(f"{self.path(sample)} of {self.root} is too small for {self.crop}")
        return box

    def dev_shm_bytes(self, batch_size: int) -> int:
        """Return the bytes that a batch takes in /dev/shm on its way from a DataLoader's worker."""
        height, width = as_size(self.crop.size)
        return batch_size * (3 * height * width + 8)

    def path(self, sample: int) -> str:
        return str(self._paths[sample].as_py())


class PILFolder(CroppedFolder):
    """Folder as most training scripts read it: Pillow decodes, crops and resizes, with the calls of torchvision. As in
    ImageFolder, EXIF orientation and colour profiles are ignored."""

    reads: ClassVar[Decode] = "bytes"

    def _cropped(self, content: Any, random: npt.NDArray[np.float64], sample: int) -> torch.Tensor:
        try:
            with Image.open(io.BytesIO(content)) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            path = os.path.join(self.root, self.path(sample))
            raise ImageError(f"{path}: Pillow cannot decode it: {type(error).__name__}") from None
        top, left, height, width = self._box(image.height, image.width, random, sample)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize(as_size(self.crop.size)[::-1], Image.Resampling.BILINEAR)
        if random[0, 0] < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@dataclass(frozen=True, eq=False)
class Chosen:
    """Order over chosen samples of `population`, shuffled for each epoch, which ends after `most` positions. The random
    numbers of a crop depend on the position in `numbers`, so variants that number samples differently crop alike."""

    numbers: npt.NDArray[np.int64]
    population: int
    seed: int = 0
    most: int | None = None

    def __len__(self) -> int:
        return len(self.numbers) if self.most is None else min(self.most, len(self.numbers))

    def samples(self, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.numbers[self.keys(epoch, positions)]

    def keys(self, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return permute(positions, len(self.numbers), (self.seed, epoch, 0))


def open_variant(
    variant: Variant, root: str, crop: Crop, flip: float, *, tell_path: bool = False
) -> CroppedFolder | LMDBDataset:
    """Return the dataset of a variant, cropped. `tell_path`: the target is (path in the variant, label), or the path.
    Labels that are not classes, and companions, are left out: the models cannot be trained on them."""
    if variant == "pil":
        return PILFolder(root, crop, flip, tell_path=tell_path)
    if variant in ("raw", "presized"):
        return CroppedFolder(root, crop, flip, tell_path=tell_path)
    target: Target = None if read_manifest(root).classes is None else "label"
    if tell_path:
        target = "path" if target is None else ("path", "label")
    return LMDBDataset(root, crop=crop, flip=flip, decode="tensor", target=target, companions=())


def load_variant(
    variant: Variant, dataset: CroppedFolder | LMDBDataset, order: Order, how: Any, device: torch.device,
    *, pin_memory: bool = False, drop_last: bool = False,
) -> CountingLoader | Loader:  # fmt: skip
    """Return the loader of a variant, with the batch, workers and prefetch of `how`. Loader gives batches on `device`,
    DataLoaders on the CPU."""
    same: dict[str, Any] = {
        "shuffle": order, "num_workers": how.workers, "prefetch_factor": how.prefetch, "drop_last": drop_last,
    }  # fmt: skip
    if variant == "loader":
        return Loader(dataset, how.batch, device=device, **same)
    return make_loader(dataset, how.batch, pin_memory=pin_memory, **same)
