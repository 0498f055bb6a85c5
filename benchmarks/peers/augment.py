"""Random resized crop and flip on the CPU, by one library, in a DataLoader, for several batch sizes.

Each library decodes as in its own examples: torchvision's transforms get images from Pillow, albumentations gets arrays
from OpenCV, presize decodes itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from loading import CROP_SIZE, check, chosen, contents, parser, time_epoch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Files transformed by `augment`, from bytes to uint8 (3, 224, 224)."""

    def __init__(self, names: list[str], augment: Callable[[bytes], torch.Tensor]) -> None:
        self.names, self.augment = names, augment

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.augment(contents(self.names[i])), i % 1000


def torchvision(options: Any) -> Callable[..., Any]:
    from pil_crop import cropped

    return partial(DataLoader, Files(chosen(options), cropped), shuffle=True)


def albumentations(options: Any) -> Callable[..., Any]:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # or the import checks the network for a new version
    import albumentations
    import cv2
    import numpy as np
    from albumentations.pytorch import ToTensorV2

    cv2.setNumThreads(0)
    transform = albumentations.Compose(
        [
            albumentations.RandomResizedCrop((CROP_SIZE, CROP_SIZE), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)),
            albumentations.HorizontalFlip(p=0.5),
            ToTensorV2(),
        ]
    )

    def augment(value: bytes) -> torch.Tensor:
        pixels = cv2.imdecode(np.frombuffer(value, np.uint8), cv2.IMREAD_COLOR_RGB)
        image: torch.Tensor = transform(image=pixels)["image"]
        return image

    return partial(DataLoader, Files(chosen(options), augment), shuffle=True)


def fused(options: Any) -> Callable[..., Any]:
    """Load from LMDB, decoding only the tiles under a crop."""
    from presize.datasets import LMDBDataset, RandomResizedCrop

    return plain_loader(LMDBDataset(options.folder, decode="tensor", crop=RandomResizedCrop(CROP_SIZE), flip=0.5))


def unfused(options: Any) -> Callable[..., Any]:
    """Load from files, which are decoded in full and then cropped by the same functions."""
    from presize.datasets import RandomResizedCrop
    from presize.datasets.timing.variants import CroppedFolder

    return plain_loader(CroppedFolder(options.folder, RandomResizedCrop(CROP_SIZE), 0.5))


def plain_loader(data: Any) -> Callable[..., Any]:
    from presize.datasets import make_loader

    def made(batch: int, *, num_workers: int, **_: Any) -> Any:
        return make_loader(data, batch, shuffle=True, num_workers=num_workers, drop_last=True)

    return made


LIBRARIES = {
    "torchvision": (torchvision, ("torchvision", "pillow", "torch")),
    "albumentations": (albumentations, ("albumentations", "opencv-python-headless", "torch")),
    "presize": (fused, ("presize", "simplejpeg", "opencv-python-headless", "torch")),
    "presize-after": (unfused, ("presize", "simplejpeg", "opencv-python-headless", "torch")),
}
"""Functions that load by a library, and the packages whose versions are reported."""


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("library", choices=LIBRARIES)
    arguments.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128, 256], help="batch sizes in order")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    make, packages = LIBRARIES[options.library]
    try:
        load = make(options)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    found = {}
    for batch in options.batches:
        loader = load(batch, num_workers=options.workers, persistent_workers=True, drop_last=True)
        options.batch = batch
        for number, images in enumerate(loader):  # warm-up: starts the workers
            if number == 0:
                check(images, options)
        epoch = time_epoch(loader)
        found[batch] = {"images": epoch.images, "seconds": round(epoch.seconds, 4)}
        del loader
    versions = " ".join(f"{name}={version(name)}" for name in packages)
    print(json.dumps({"batches": found, "versions": versions}))


if __name__ == "__main__":
    main()
