"""Random crops as in most training scripts: Pillow decodes, torchvision transforms."""

from __future__ import annotations

import io

import torch
import torchvision_shim  # noqa: F401  # first, and then torchvision
from loading import CROP_SIZE
from PIL import Image
from torchvision.transforms import v2

PACKAGES = ("torch", "torchvision", "pillow")

_transform = v2.Compose(
    [
        v2.RandomResizedCrop(CROP_SIZE, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), antialias=True),
        v2.RandomHorizontalFlip(0.5),
        v2.PILToTensor(),
    ]
)


def cropped(value: bytes) -> torch.Tensor:
    """Return a random crop, uint8 (3, 224, 224)."""
    image: torch.Tensor = _transform(Image.open(io.BytesIO(value)).convert("RGB"))
    return image
