"""Small read-only datasets for tests of the store, and copies to modify."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from builds import REPORTED, SERIAL
from paired import WITH_MASKS, make_pairs
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.options import BuildOptions, ImageOptions, Size

SMALL_OPTIONS = BuildOptions(ImageOptions(sizes=(Size(24, 24),)), shard_samples=3)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build ``lmdb``, two shards, and ``folder`` from the 6 images of ``raw``, in 2 classes; and ``masks``, 12 images
    with masks, from ``pairs``. Read only."""
    root = tmp_path_factory.mktemp("small")
    for i in range(6):
        path = root / "raw" / f"class-{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(40, 50, seed=i)).save(path)
    build_dataset(root / "raw", root / "lmdb", SMALL_OPTIONS, REPORTED)
    build_dataset(root / "raw", root / "folder", BuildOptions(SMALL_OPTIONS.image, "folder"), SERIAL)
    build_dataset(make_pairs(root / "pairs"), root / "masks", WITH_MASKS, SERIAL)
    return root


@pytest.fixture
def copied(dataset: Path, tmp_path: Path) -> Path:
    """Copy `dataset`, to be modified."""
    return Path(shutil.copytree(dataset, tmp_path / "copied"))
