"""Pictures that tests make for themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def smooth_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth random picture, uint8 (height, width, 3): codecs change it little."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        128
        + 100
        * np.sin(
            rng.uniform(0.5, 3) * 2 * np.pi * (y / height * rng.uniform() + x / width * rng.uniform())
            + rng.uniform(0, 6)
        )
        for _ in range(3)
    ]
    return np.stack(waves, axis=-1).round().astype(np.uint8)


def save_image(path: Path, height: int = 40, width: int = 50, seed: int = 0, **options: Any) -> Path:
    """Save a smooth random picture, in the format of the suffix. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(smooth_image(height, width, seed)).save(path, **options)
    return path
