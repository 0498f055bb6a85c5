"""Transforms that presize takes for torchvision's, by their names, and an ImageFolder, for tests without
torchvision."""

from __future__ import annotations

import copyreg
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class CenterCrop:
    def __init__(self, size: int) -> None:
        self.size = (size, size)

    def __call__(self, image: Image.Image) -> Image.Image:
        height, width = self.size
        top, left = round((image.height - height) / 2), round((image.width - width) / 2)
        return image.crop((left, top, left + width, top + height))


class RandomHorizontalFlip:
    """Flip whose p is 0 or 1, so that two runs can be compared."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.mirror(image) if self.p else image


class ToTensor:
    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)


class Normalize:
    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - torch.as_tensor(self.mean).view(-1, 1, 1)) / torch.as_tensor(self.std).view(-1, 1, 1)


def noisy(image: Any) -> torch.Tensor:
    """Draw from each of the generators that transform libraries use."""
    drawn = [torch.rand(()).item(), torch.randn(()).item(), np.random.random(), random.random(), random.gauss(0, 1)]
    return torch.tensor([*drawn, int(np.asarray(image).sum())], dtype=torch.float64)


for kind in (Compose, CenterCrop, RandomHorizontalFlip, ToTensor, Normalize):
    kind.__module__ = "torchvision.transforms.like"
    copyreg.pickle(kind, lambda transform: (_transform, (type(transform).__name__, vars(transform))))


def _transform(name: str, attributes: dict[str, Any]) -> Any:
    """Return an unpickled transform: there is no module of that name to look it up."""
    kind: Any = globals()[name]
    transform = kind.__new__(kind)
    vars(transform).update(attributes)
    return transform


class LikeImageFolder(Dataset[Any]):
    """Dataset of images in memory that applies a transform like ImageFolder."""

    def __init__(self, pairs: Any, transform: Callable[[Any], Any] | None = None) -> None:
        self.pairs = list(pairs)
        self.transform = transform
        self.target_transform: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        image, target = self.pairs[index]
        image = image if self.transform is None else self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)
