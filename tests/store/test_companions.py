"""Companions as readers see them: the records of masks, as a separate dataset next to that of the images."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from paired import CLASS_NUMBERS
from presize.errors import DatasetError
from presize.store.data_files import DataFile
from presize.store.dataset import Dataset


@pytest.fixture
def data(small: Path) -> Dataset:
    return Dataset(small / "masks")


def test_a_companion_is_a_dataset_of_the_same_samples_in_grey_pngs(data: Dataset, dataset: Path) -> None:
    masks, everything = data.companion("mask"), range(len(data))
    assert (data.companions, Dataset(dataset).companions) == (("mask",), ())
    assert len(masks) == len(data) == 12
    assert (masks.root, masks.max_pixels) == (data.root, data.max_pixels)
    assert [masks.path(i) for i in everything] == [data.path(i) for i in everything]
    assert [masks.shape(i) for i in everything] == [data.shape(i) for i in everything]
    assert (masks.manifest.format, masks.manifest.color, masks.manifest.depth) == ("png", "exact", 8)
    sizes = {position: len(value) for position, value in masks.values(everything)}
    assert [sizes[i] for i in everything] == masks.numbers("nbytes").tolist() == data.numbers("mask_nbytes").tolist()
    assert data.manifest.stored_bytes == data.numbers("nbytes").sum() + sum(sizes.values())
    for position, mask in masks.pixels(everything):
        assert mask.dtype == np.uint8 and mask.shape == masks.shape(position)
        assert set(np.unique(mask)) <= set(CLASS_NUMBERS)
    stored = Image.open(BytesIO(masks.value(0)))
    assert (stored.format, stored.mode, stored.size[::-1]) == ("PNG", "L", data.shape(0))


def test_a_pickle_keeps_its_companion_and_the_companions_to_read(data: Dataset) -> None:
    masks = data.companion("mask")
    assert pickle.loads(pickle.dumps(masks)).value(3) == masks.value(3) != data.value(3)
    assert pickle.loads(pickle.dumps(data)).read_with == ("mask",)
    data.read_with = ()
    assert pickle.loads(pickle.dumps(data)).read_with == ()


def test_an_unknown_companion_is_refused_with_the_known_ones(data: Dataset) -> None:
    with pytest.raises(DatasetError, match="no companion 'depth'; this dataset has mask"):
        data.companion("depth")


def test_unread_companions_are_not_fetched_from_an_origin(small: Path) -> None:
    class Origin:
        max_bytes = None
        groups: ClassVar[list[list[list[str]]]] = []

        def provide(self, files: Sequence[DataFile]) -> None:
            pass

        def fetch_ahead(self, groups: Sequence[Sequence[DataFile]]) -> None:
            self.groups.append([[file.file for file in group] for group in groups])

    data = Dataset(small / "masks", origin=Origin())
    data.fetch_ahead([[0]])
    data.read_with = ()
    data.fetch_ahead([[0]])
    assert Origin.groups == [[["shards/00000.lmdb", "shards/mask-00000.lmdb"]], [["shards/00000.lmdb"]]]
