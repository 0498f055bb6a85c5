"""Data loading of well-known training scripts: batches equal those from ImageFolder.

The classes do the same as in facebookresearch's dino (7c446df), mae (efb2a80) and moco (3b42c2a), in sthalles/SimCLR
(1848fc9) and in torchvision's references; timm's loaders are timm's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import DataLoader, DistributedSampler

from batches import same
from builds import build_images
from pictures import noisy_image
from presize import export_dataset
from presize.datasets import LMDBDataset
from torchvisions import torchvision_or_skip

v1, _ = torchvision_or_skip()
timm = pytest.importorskip("timm.data")
from torchvision.datasets import ImageFolder  # noqa: E402

TO_TENSOR = v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
BICUBIC = v1.InterpolationMode.BICUBIC


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build 20 noisy images of several sizes in two classes, and export their files; read only."""
    root = tmp_path_factory.mktemp("scripts")
    build_images(root, {f"class-{i % 2}/{i:02}.png": noisy_image(60 + i, 100 - 3 * i, i) for i in range(20)})
    export_dataset(root / "out", root / "files")
    return root / "out", root / "files"


def form(value: Any) -> Any:
    """Return shapes and types of images, and labels unchanged."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype) if value.ndim > 1 else value.tolist()
    return list(map(form, value))


def check(script: Callable[[Any], Iterable[Any]], both: tuple[Path, Path], **options: Any) -> LMDBDataset:
    """Compare a script's batches from ImageFolder and from LMDBDataset; return the fused dataset."""

    def batches(dataset: Any) -> list[Any]:
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        return list(script(dataset))

    out, files = both
    expected = batches(ImageFolder(files, **options))
    assert len(expected) > 1 and same(batches(LMDBDataset(out, **options)), expected)
    fused = LMDBDataset(out, **options, fuse=True)
    assert form(batches(fused)) == form(expected)
    return fused


class Blur:
    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2)))


class Solarize:
    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image) if random.random() < 0.2 else image


class TwoCrops:
    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        return [self.base_transform(x), self.base_transform(x)]


class MultiCrop:
    def __init__(self) -> None:
        jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
        flip = v1.Compose([v1.RandomHorizontalFlip(), jitter, v1.RandomGrayscale(0.2)])
        large = v1.RandomResizedCrop(64, (0.4, 1), interpolation=BICUBIC)
        small = v1.RandomResizedCrop(32, (0.05, 0.4), interpolation=BICUBIC)
        self.global_transfo1 = v1.Compose([large, flip, Blur(1), v1.Compose(TO_TENSOR)])
        self.global_transfo2 = v1.Compose([large, flip, Blur(0.1), Solarize(), v1.Compose(TO_TENSOR)])
        self.local_transfo = v1.Compose([small, flip, Blur(0.5), v1.Compose(TO_TENSOR)])
        self.local_crops_number = 3

    def __call__(self, image: Any) -> Any:
        crops = [self.global_transfo1(image), self.global_transfo2(image)]
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class Preset:
    def __init__(self, *steps: Any) -> None:
        self.transforms = v1.Compose(steps)

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


CROP, FLIP = v1.RandomResizedCrop(64, scale=(0.2, 1)), v1.RandomHorizontalFlip()
JITTER = [v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), v1.RandomGrayscale(0.2), Blur(0.5)]
PARTS: dict[str, tuple[Any, int]] = {
    "MAE": (v1.Compose([v1.RandomResizedCrop(64, (0.2, 1), interpolation=3), FLIP, *TO_TENSOR]), 0),
    "MAE, evaluation": (v1.Compose([v1.Resize(73, interpolation=3), v1.CenterCrop(64), *TO_TENSOR]), 0),
    "DINO": (MultiCrop(), 5 * 5 + 1),
    "MoCo v2": (TwoCrops(v1.Compose([CROP, *JITTER, FLIP, *TO_TENSOR])), 2 * 6),
    "SimCLR": (TwoCrops(v1.Compose([CROP, FLIP, *JITTER, v1.ToTensor()])), 2 * 4),
    "references": (Preset(CROP, FLIP, v1.RandAugment(), v1.PILToTensor(), v1.ConvertImageDtype(torch.float)), 3),
}
"""Number of steps that fuse=True leaves, by transform."""


@pytest.mark.parametrize("name", PARTS)
def test_the_data_loading_of_a_script_yields_imagefolders_batches(name: str, both: tuple[Path, Path]) -> None:
    def script(dataset: Any) -> DataLoader[Any]:
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=2, rank=1)
        return DataLoader(dataset, 4, sampler=sampler, num_workers=2, pin_memory=True, drop_last=True)

    transform, stays = PARTS[name]
    fused = check(script, both, transform=transform).fused
    assert fused is not None and fused.crop is not None and len(fused.stays) == stays


TIMMS: dict[str, dict[str, Any]] = {
    "training": {"is_training": True, "use_prefetcher": False},
    "training, prefetched": {"is_training": True, "re_prob": 0.5},
    "RandAugment": {"is_training": True, "auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic"},
    "without augmentation": {"is_training": True, "no_aug": True},
    "workers that stay": {"is_training": True, "use_multi_epochs_loader": True},
    "evaluation": {"is_training": False, "crop_pct": 0.9, "interpolation": "bicubic", "use_prefetcher": False},
    "evaluation, prefetched": {"is_training": False},
}


@pytest.mark.parametrize("name", TIMMS)
def test_timms_create_loader_yields_imagefolders_batches(name: str, both: tuple[Path, Path]) -> None:
    def script(dataset: Any) -> Any:
        options = {"batch_size": 8, "num_workers": 2, "persistent_workers": False, "device": torch.device("cpu")}
        return timm.create_loader(dataset, input_size=(3, 48, 48), **options, **TIMMS[name])

    assert check(script, both).crop is not None


def test_timms_augmix_wraps_a_dataset(both: tuple[Path, Path]) -> None:
    def script(dataset: Any) -> Any:
        return timm.create_loader(
            timm.AugMixDataset(dataset, num_splits=2),
            **{"input_size": (3, 48, 48), "batch_size": 8, "num_workers": 0, "persistent_workers": False},
            **{"is_training": True, "num_aug_splits": 2, "re_split": True, "auto_augment": "augmix-m5-w4-d2"},
            device=torch.device("cpu"),
        )

    check(script, both)
