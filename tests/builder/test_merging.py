"""Datasets of different options merged into one: each image keeps its bytes, its boxes and masks fit its pixels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import SERIAL
from presize.builder.derive import DeriveOptions, derive_dataset
from presize.builder.run import build_dataset
from presize.errors import SourceError
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size, SourceOptions
from presize.store.dataset import Dataset

MASK = Companion("mask", "masks/{stem}.png")
OPTIONS = BuildOptions(
    ImageOptions((Size(40, 40),)),
    companions=(MASK,),
    boxes=(Coordinates("box", "xyxy"),),
    keypoints=(Coordinates("corner", "xy"),),
)
SIZES = ((80, 60), (36, 24))
"""(width, height) of the two images of each dataset; the second image is smaller than the target."""


def save_rectangles(folder: Path, name: str) -> SourceOptions:
    """Save dark images with a bright rectangle, and a matching box, mask and corner keypoint."""
    rows = []
    for number, (width, height) in enumerate(SIZES):
        box = [width // 4, height // 3, 3 * width // 4, 2 * height // 3]
        for kind, dark, bright in (("images", 20, 230), ("masks", 0, 7)):
            pixels = np.full((height, width), dark, np.uint8)
            pixels[box[1] : box[3], box[0] : box[2]] = bright
            path = folder / kind / f"{name}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
        rows.append({"path": f"images/{name}{number}.png", "box": [box], "corner": [box[:2]]})
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SourceOptions(folder / "labels.jsonl")


def built(folder: Path, name: str, options: BuildOptions) -> Path:
    """Build the dataset of two such images, and return the first of several sizes."""
    samples = save_rectangles(folder / name, name)
    out = folder / f"{name}-out"
    build_dataset(folder / name, out, options, SERIAL, samples)
    return out if len(options.image.sizes) == 1 else out / str(options.image.sizes[0])


def stored(data: Dataset) -> dict[str, tuple[bytes, bytes]]:
    """Return the bytes of each sample and of its mask, by path."""
    masks = data.companion("mask")
    return {data.path(i): (data.value(i), masks.value(i)) for i in range(len(data))}


def rectangle(pixels: np.ndarray, threshold: int) -> list[int]:
    """Return x1, y1, x2, y2 around the bright pixels."""
    rows, columns = np.nonzero(pixels.reshape(*pixels.shape[:2], -1).max(axis=2) > threshold)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def check_annotations(data: Dataset) -> None:
    """Assert that boxes, keypoints and masks mark the bright rectangles."""
    boxes, corners = data.column("box").to_pylist(), data.column("corner").to_pylist()
    masks = dict(data.companion("mask").pixels(range(len(data))))
    for i, pixels in data.pixels(range(len(data))):
        bright = rectangle(pixels, 128 if pixels.dtype == np.uint8 else 128 << 8)
        assert masks[i].shape == pixels.shape[:2]
        assert np.abs(np.subtract(rectangle(masks[i], 3), bright)).max() <= 1
        assert np.abs(np.subtract(boxes[i][0], bright)).max() <= 1.5
        assert np.abs(np.subtract(corners[i][0], bright[:2])).max() <= 1.5


OTHERS: dict[str, dict[str, Any]] = {
    "crop": {"fit": "crop"},
    "pad": {"fit": "pad"},
    "stretch": {"fit": "stretch"},
    "longer": {"fit": "longer"},
    "upscale": {"upscale": True},
    "filter": {"filter": "nearest"},
    "coding": {"quality": 50, "subsampling": "444", "tiles": "none", "keep_metadata": True},
    "pixels": {"icc": "ignore", "resize_backend": "pillow", "max_pixels": 10_000},
    "sizes": {"sizes": (Size(40, 40), Size(20, 20))},
    "smaller": {"sizes": (Size(32, 32),)},
    "png": {"format": "png"},
    "gray": {"color": "gray"},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("base"), "a", OPTIONS)


@pytest.mark.parametrize("other", OTHERS)
def test_datasets_of_different_options_are_copied_refused_or_resized_in_any_order(
    other: str, base: Path, tmp_path: Path
) -> None:
    second = built(tmp_path, "b", replace(OPTIONS, image=replace(OPTIONS.image, **OTHERS[other])))
    expected = stored(Dataset(base)) | stored(Dataset(second))
    for name, order in {"new": [base, second], "other": [second, base]}.items():
        out = tmp_path / name
        if other in ("smaller", "png", "gray"):
            with pytest.raises(SourceError, match=r"give --size|cannot be one dataset"):
                derive_dataset(order, out, run=SERIAL)
        else:
            assert derive_dataset(order, out, run=SERIAL).resized == 0
            assert stored(Dataset(out)) == expected
            check_annotations(Dataset(out))
        if other in ("crop", "pad", "stretch", "longer", "upscale", "smaller"):
            derive_dataset(order, tmp_path / f"{name}-30", DeriveOptions(Size(30, 30)), SERIAL)
            check_annotations(Dataset(tmp_path / f"{name}-30"))
