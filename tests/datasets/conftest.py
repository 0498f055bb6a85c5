"""Datasets of several tests of reading."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from presize.datasets import LMDBDataset, RandomResizedCrop
from tampering import overwrite_value


@pytest.fixture(scope="session")
def data(dataset: Path) -> LMDBDataset:
    """Return a dataset of 56 images, randomly cropped to 24 px, as rows of batches; read only."""
    return LMDBDataset(dataset, crop=RandomResizedCrop(24), flip=0.5, decode="tensor")


@pytest.fixture
def damaged(dataset: Path, tmp_path: Path) -> Path:
    """Copy the dataset, with sample 20 damaged."""
    copied = Path(shutil.copytree(dataset, tmp_path / "damaged"))
    overwrite_value(copied, 20)
    return copied
