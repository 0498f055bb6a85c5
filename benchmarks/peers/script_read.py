"""Data loading of well-known training scripts, from ImageFolder, or from LMDBDataset with only that line changed.

The transforms are copied from torchvision, timm, and the MAE, MoCo and DINO repositories.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import psutil
import torchvision_shim  # noqa: F401  # first, and then torchvision
from loading import CROP_SIZE, parser
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from presize.datasets import LMDBDataset

PACKAGES = ("torch", "torchvision", "pillow", "presize")
Transform = Callable[[Any], Any]

_BICUBIC = transforms.InterpolationMode.BICUBIC
_TO_TENSOR = (transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


class Blur:
    """GaussianBlur of MoCo and DINO."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() >= self.probability:
            return image
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


class Solarize:
    """Solarization of DINO."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image) if random.random() < 0.2 else image


class Views:
    """A list of views of an image, as in MoCo's TwoCropsTransform and in DataAugmentationDINO."""

    def __init__(self, *views: Transform) -> None:
        self.views = views

    def __call__(self, image: Image.Image) -> list[Any]:
        return [view(image) for view in self.views]


def classic() -> Transform:
    return transforms.Compose([transforms.RandomResizedCrop(CROP_SIZE), transforms.RandomHorizontalFlip(), *_TO_TENSOR])


def timm() -> Transform:
    from timm.data import create_transform

    made: Transform = create_transform((3, CROP_SIZE, CROP_SIZE), is_training=True)
    return made


def mae() -> Transform:
    crop = transforms.RandomResizedCrop(CROP_SIZE, scale=(0.2, 1.0), interpolation=_BICUBIC)
    return transforms.Compose([crop, transforms.RandomHorizontalFlip(), *_TO_TENSOR])


def randaugment() -> Transform:
    crop = transforms.RandomResizedCrop(CROP_SIZE)
    return transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.RandAugment(), *_TO_TENSOR])


def evaluation() -> Transform:
    return transforms.Compose([transforms.Resize(256), transforms.CenterCrop(CROP_SIZE), *_TO_TENSOR])


def simclr() -> Transform:
    jitter = transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    crop = [transforms.RandomResizedCrop(CROP_SIZE), transforms.RandomHorizontalFlip()]
    view = transforms.Compose([*crop, jitter, transforms.RandomGrayscale(p=0.2), Blur(0.5), transforms.ToTensor()])
    return Views(view, view)


def moco() -> Transform:
    view = transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP_SIZE, scale=(0.2, 1.0)),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            Blur(0.5),
            transforms.RandomHorizontalFlip(),
            *_TO_TENSOR,
        ]
    )
    return Views(view, view)


def dino() -> Transform:
    flip_and_jitter = [
        transforms.RandomHorizontalFlip(p=0.5),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
    ]

    def view(size: int, scale: tuple[float, float], *blurs: Transform) -> Transform:
        crop = transforms.RandomResizedCrop(size, scale=scale, interpolation=_BICUBIC)
        return transforms.Compose([crop, *flip_and_jitter, *blurs, *_TO_TENSOR])

    large = view(CROP_SIZE, (0.4, 1.0), Blur(1.0)), view(CROP_SIZE, (0.4, 1.0), Blur(0.1), Solarize())
    return Views(*large, *[view(96, (0.05, 0.4), Blur(0.5))] * 8)


_FUNCTIONS = (classic, evaluation, timm, mae, randaugment, simclr, moco, dino)
TRANSFORMS = {function.__name__: function for function in _FUNCTIONS}


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children())]
    return sum(each.user + each.system for each in times)


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--transform", choices=TRANSFORMS, required=True)
    arguments.add_argument("--reads", choices=("folder", "lmdb", "fused"), required=True)
    options = arguments.parse_args()
    transform = TRANSFORMS[options.transform]()
    data: Any
    if options.reads == "folder":
        data = ImageFolder(options.folder, transform=transform)
    else:
        data = LMDBDataset(options.folder, transform=transform, fuse=options.reads == "fused")
    loader: DataLoader[Any] = DataLoader(
        data, options.batch, shuffle=True, drop_last=True, num_workers=options.workers, persistent_workers=True
    )
    for epoch in range(options.epochs + 1):
        if epoch == 1:  # the first epoch starts the workers
            start, cpu, images = time.perf_counter(), cpu_seconds(), 0
        for number, (_, labels) in enumerate(loader, 1):
            images = len(labels) + (images if epoch else 0)
            if number == options.limit:
                break
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    packages = (*PACKAGES, "timm") if options.transform == "timm" else PACKAGES
    versions = " ".join(f"{name}={version(name)}" for name in packages)
    found = {"images": images, "seconds": round(seconds, 4), "cpu_seconds": round(cpu, 3), "versions": versions}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
