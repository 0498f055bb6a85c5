"""The transforms of torchvision's reference training script on the CPU: float32 batches of random resized crops,
mirrored and normalized by torchvision v2, from ImageFolder and from LMDBDataset, without and with fuse=True."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
import torchvision_shim  # noqa: F401  # first, and then torchvision
from loading import CROP_SIZE, parser, time_epoch
from torch.utils.data import DataLoader, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader

PACKAGES = ("torch", "torchvision", "pillow", "presize")
_WARM_UP = 4
"""Untimed epochs that start the workers and allocate the memory of batches, 77 MB each."""
_STAGED = 192
"""Images that stages() times."""

_TRANSFORM = v2.Compose(
    [
        v2.RandomResizedCrop(CROP_SIZE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


def plain(dataset: Any, options: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset, options.batch, shuffle=True, drop_last=True, num_workers=options.workers, persistent_workers=True
    )


def loader(options: Any, **arguments: Any) -> Iterable[Any]:
    data = LMDBDataset(options.folder, transform=_TRANSFORM, fuse=True)
    return Loader(data, options.batch, shuffle=True, num_workers=options.workers, drop_last=True, **arguments)


def uint8(options: Any) -> Iterable[Any]:
    data = LMDBDataset(options.folder, crop=RandomResizedCrop(CROP_SIZE), flip=0.5, decode="tensor")
    return make_loader(data, options.batch, shuffle=True, num_workers=options.workers, drop_last=True)


VARIANTS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "folder": lambda options: plain(ImageFolder(options.folder, _TRANSFORM), options),
    "lmdb": lambda options: plain(LMDBDataset(options.folder, transform=_TRANSFORM), options),
    "fused": lambda options: plain(LMDBDataset(options.folder, transform=_TRANSFORM, fuse=True), options),
    "loader": loader,
    "uint8": uint8,
}


def stages(folder: Path, kind: str) -> dict[str, float]:
    """Return the CPU milliseconds per image of each stage, in one process. With LMDB, decoding is part of the crop,
    which determines the pixels to decode."""
    torch.set_num_threads(1)
    data: Any = ImageFolder(folder) if kind == "folder" else LMDBDataset(folder, transform=lambda image: image)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:_STAGED].tolist()
    found: dict[str, float] = {}

    def timed(name: str, function: Callable[[Any], Any], samples: list[Any]) -> list[Any]:
        start = time.process_time()
        made = [function(sample) for sample in samples]
        found[name] = min(found.get(name, 1e9), (time.process_time() - start) / len(samples) * 1e3)
        return made

    for _ in range(3):
        for first in range(0, _STAGED, 64):
            images = timed("read", lambda i: data[i][0], order[first : first + 64])
            for step in _TRANSFORM.transforms:
                images = timed(type(step).__name__, step, images)
            timed("collate", default_collate, [images] * 1)
    found["collate"] /= 64
    return {name: round(ms, 4) for name, ms in found.items()}


def warm_up(batches: Iterable[Any], options: Any) -> None:
    """Read a few epochs, and check their batches. A separate function, so that no reference to a batch remains."""
    expected = torch.uint8 if options.variant == "uint8" else torch.float32
    for images, _ in chain.from_iterable(repeat(batches, _WARM_UP)):
        if images.shape != (options.batch, 3, CROP_SIZE, CROP_SIZE) or images.dtype != expected:
            raise SystemExit(f"{options.variant}: got {images.dtype} {tuple(images.shape)}")


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("variant", choices=[*VARIANTS, "stages-folder", "stages-lmdb"])
    options = arguments.parse_args()
    versions = " ".join(f"{name}={version(name)}" for name in PACKAGES)
    if options.variant.startswith("stages-"):
        found = stages(options.folder, options.variant.removeprefix("stages-"))
        print(json.dumps({"stages": found, "versions": versions}))
        return
    batches = VARIANTS[options.variant](options)
    warm_up(batches, options)
    epochs = [time_epoch(batches) for _ in range(options.epochs)]
    images_read, seconds = sum(epoch.images for epoch in epochs), sum(epoch.seconds for epoch in epochs)
    print(json.dumps({"images": images_read, "seconds": round(seconds, 4), "versions": versions}))


if __name__ == "__main__":
    main()
