"""Companions as readers see them: the records of masks, as a dataset of their own beside that of the images."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from builds import SERIAL
from paired import CLASS_NUMBERS, WITH_MASKS, make_pairs
from presize.build.run import build_dataset
from presize.errors import DatasetError
from presize.store.dataset import Dataset
from tampering import read_table, with_value, write_table


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("pairs") / "raw")


@pytest.fixture(scope="module")
def built(pairs: Path) -> Path:
    out = pairs.parent / "out"
    build_dataset(pairs, out, WITH_MASKS, SERIAL)
    return out


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copied"))


def test_the_companions_of_a_dataset_have_names(built: Path, dataset: Path) -> None:
    assert Dataset(built).companions == ("mask",)
    assert Dataset(dataset).companions == ()


def test_a_companion_is_read_as_a_dataset_of_the_same_samples(built: Path) -> None:
    data = Dataset(built)
    masks = data.companion("mask")
    everything = range(len(data))
    assert len(masks) == len(data) == 12
    assert (masks.root, masks.max_pixels) == (data.root, data.max_pixels)
    assert [masks.path(i) for i in everything] == [data.path(i) for i in everything]
    assert [masks.shape(i) for i in everything] == [data.shape(i) for i in everything]
    assert (masks.manifest.format, masks.manifest.color, masks.manifest.depth) == ("png", "exact", 8)
    sizes = {position: len(value) for position, value in masks.values(everything)}
    assert [sizes[i] for i in everything] == masks.numbers("nbytes").tolist() == data.numbers("mask_nbytes").tolist()


def test_its_pixels_are_class_numbers(built: Path) -> None:
    for position, mask in (masks := Dataset(built).companion("mask")).pixels(range(12)):
        assert mask.dtype == np.uint8 and mask.shape == masks.shape(position)
        assert set(np.unique(mask)) <= set(CLASS_NUMBERS)


def test_a_companion_can_be_pickled(built: Path) -> None:
    masks = Dataset(built).companion("mask")
    again = pickle.loads(pickle.dumps(masks))
    assert again.value(3) == masks.value(3) != Dataset(built).value(3)


def test_an_unknown_companion_is_refused_with_those_that_there_are(built: Path) -> None:
    with pytest.raises(DatasetError, match="no companion 'depth'; this dataset has mask"):
        Dataset(built).companion("depth")


def test_damage_says_that_it_is_the_companions(copied: Path) -> None:
    write_table(copied, with_value(read_table(copied), "mask_crc32", 4, 0))
    data = Dataset(copied)
    data.value(4)
    with pytest.raises(DatasetError, match=r"^the mask of sample 4 \(images/04\.jpg\) .* CRC-32"):
        data.companion("mask").value(4)
