"""Read epochs of a raw folder, a presized folder and an LMDB dataset in several ways, and print each rate.

python tools/demo.py RAW FOLDER DATASET
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from presize.datasets import FolderDataset, LMDBDataset, Loader, RandomResizedCrop, make_loader
from presize.errors import ImageError


def random_crop(image: Image.Image) -> torch.Tensor:
    """Return a random square of `image`, resized to 224 pixels and flipped half of the time: uint8 (3, 224, 224)."""
    side = int(min(image.size) * (0.5 + 0.5 * torch.rand(()).item()))
    left, top = (int(torch.randint(0, length - side + 1, ())) for length in image.size)
    square = image.resize((224, 224), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)
    return pixels.flip(-1) if torch.rand(()).item() < 0.5 else pixels


class Readable(FolderDataset):
    """Raw folder that replaces broken images with a grey one."""

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        try:
            return super().__getitem__(index)
        except ImageError:
            image = random_crop(Image.new("RGB", (256, 256), "gray"))
            return image if self.classes is None else (image, 0)


def images_per_s(loader: Iterable[Any], images: int) -> float:
    """Return the rate of the second epoch: the first starts the workers and fills the page cache."""
    for _ in range(2):
        start = time.perf_counter()
        for _ in loader:
            pass
    return images / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw")
    parser.add_argument("folder")
    parser.add_argument("dataset")
    args = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    plain: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": workers, "persistent_workers": True}
    cropped: dict[str, Any] = {"crop": RandomResizedCrop(224, scale=(0.25, 1), ratio=(1, 1)), "flip": 0.5}
    variants: dict[str, Iterable[Any]] = {
        "raw folder": DataLoader(Readable(args.raw, random_crop), **plain),
        "presized folder": DataLoader(FolderDataset(args.folder, random_crop), **plain),
        "LMDBDataset": DataLoader(LMDBDataset(args.dataset, random_crop), **plain),
        "LMDBDataset, crop=": make_loader(
            LMDBDataset(args.dataset, decode="tensor", **cropped), 64, shuffle=True, num_workers=workers
        ),
        "Loader": Loader(LMDBDataset(args.dataset), 64, shuffle=True, num_workers=workers, **cropped),
    }
    images = len(LMDBDataset(args.dataset))
    print(f"\nAn epoch of random 224 px crops of {images:,} images, {workers} workers:\n")
    baseline = None
    for name, loader in variants.items():
        rate = images_per_s(loader, images)
        baseline = baseline or rate
        print(f"  {name:18} {rate:8,.0f} images/s   {rate / baseline:4.1f} x")


if __name__ == "__main__":
    main()
