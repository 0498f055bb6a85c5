"""Companions as readers see them: the records of masks, as a dataset of their own beside that of the images."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import SERIAL
from paired import CLASS_NUMBERS, WITH_MASKS, make_pairs
from presize.builder.run import build_dataset
from presize.errors import DatasetError
from presize.store.dataset import Dataset
from presize.store.index import COMPANION_COLUMNS
from presize.store.manifest import read_manifest, version_of
from presize.store.verify import VerifyResult, verify_dataset
from tampering import change_manifest, read_table, with_value, write_table


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


def test_what_a_dataset_stores_is_its_images_and_their_companions(built: Path) -> None:
    data = Dataset(built)
    assert data.manifest.stored_bytes == data.numbers("nbytes").sum() + data.numbers("mask_nbytes").sum()


def test_its_pixels_are_class_numbers(built: Path) -> None:
    for position, mask in (masks := Dataset(built).companion("mask")).pixels(range(12)):
        assert mask.dtype == np.uint8 and mask.shape == masks.shape(position)
        assert set(np.unique(mask)) <= set(CLASS_NUMBERS)


def test_a_companion_can_be_pickled(built: Path) -> None:
    masks = Dataset(built).companion("mask")
    again = pickle.loads(pickle.dumps(masks))
    assert again.value(3) == masks.value(3) != Dataset(built).value(3)


def test_a_pickle_keeps_which_companions_are_read(built: Path) -> None:
    data = Dataset(built)
    assert pickle.loads(pickle.dumps(data)).read_with == ("mask",)
    data.read_with = ()
    assert pickle.loads(pickle.dumps(data)).read_with == ()


def test_an_unknown_companion_is_refused_with_those_that_there_are(built: Path) -> None:
    with pytest.raises(DatasetError, match="no companion 'depth'; this dataset has mask"):
        Dataset(built).companion("depth")


def test_damage_says_that_it_is_the_companions(copied: Path) -> None:
    write_table(copied, with_value(read_table(copied), "mask_crc32", 4, 0))
    data = Dataset(copied)
    data.value(4)
    with pytest.raises(DatasetError, match=r"^the mask of sample 4 \(images/04\.jpg\) .* CRC-32"):
        data.companion("mask").value(4)


# --- the manifest, and what is checked ---


@pytest.mark.parametrize(
    ("companions", "image", "version"),
    [
        ((), {"color": "rgb"}, 1),
        ((), {"color": "keep", "depth": 8}, 1),
        (("mask",), {"color": "rgb"}, 2),
        ((), {"color": "rgba"}, 2),
        ((), {"color": "rgb", "depth": 16}, 2),
    ],
)
def test_the_version_is_2_where_readers_of_1_would_err(
    companions: tuple[str, ...], image: dict[str, Any], version: int
) -> None:
    assert version_of({"image": image}, companions) == version


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"name": "../mask"}, "'../mask' is not the name of a companion"),
        ({"format": "bmp"}, "format: expected one of jpeg, png, webp, raw, got 'bmp'"),
        ({"filter": "sharp"}, "filter: expected one of nearest"),
        ({"depth": 12}, "depth: expected one of 8, 16, got 12"),
        ({"bytes": -1}, "expected a count, got -1"),
        ({"shards": []}, "the shards of a companion have other rows than those of the images"),
        ({"shards": [{"file": "shards/mask.lmdb", "bytes": 1, "sha256": "", "rows": 1}]}, "is not the name of a file"),
    ],
)
def test_a_manifest_with_such_a_companion_is_damaged(change: dict[str, Any], what: str, copied: Path) -> None:
    change_manifest(copied, lambda values: values["companions"][0].update(change))
    with pytest.raises(DatasetError) as caught:
        read_manifest(copied)
    assert what in str(caught.value)


def test_a_companion_may_have_16_bits(copied: Path) -> None:
    change_manifest(copied, lambda values: values["companions"][0].update(depth=16))
    assert Dataset(copied).companion("mask").manifest.depth == 16


def test_a_companion_is_named_once(copied: Path) -> None:
    change_manifest(copied, lambda values: values["companions"].append(values["companions"][0]))
    with pytest.raises(DatasetError, match="it has a companion twice"):
        read_manifest(copied)


@pytest.mark.parametrize("column", ["mask_width", "mask_nbytes", "mask_source_facts"])
def test_an_index_without_a_column_of_a_companion_is_damaged(column: str, copied: Path) -> None:
    write_table(copied, read_table(copied).drop([column]))
    with pytest.raises(DatasetError, match=f"expected one column {column} of type"):
        Dataset(copied)


def test_the_index_has_the_columns_of_a_companion(built: Path) -> None:
    names = Dataset(built).index.schema.names
    assert [name for name in names if name.startswith("mask_")] == [
        f"mask_{name}" for name in COMPANION_COLUMNS if name != "source_crc32"
    ]


def zeros_in_a_mask_shard(root: Path) -> None:
    shard = root / read_manifest(root).companions[0].shards[0].file
    shard.write_bytes(bytes(shard.stat().st_size))


def no_mask_shard(root: Path) -> None:
    (root / read_manifest(root).companions[0].shards[0].file).unlink()


def another_size_in_the_index(root: Path) -> None:
    write_table(root, with_value(read_table(root), "mask_height", 5, 7))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (zeros_in_a_mask_shard, "its SHA-256 differs from the manifest"),
        (no_mask_shard, "cannot be read: No such file or directory"),
        (another_size_in_the_index, "(images/05.jpg) cannot be decoded: "),
    ],
)
def test_verify_finds_damage_in_companions(damage: Callable[[Path], None], what: str, copied: Path) -> None:
    damage(copied)
    problems = verify_dataset(copied).problems
    assert [problem.file.startswith("shards/mask-") for problem in problems] == [True]
    assert what in problems[0].what


def test_verify_counts_images_and_companions(built: Path) -> None:
    checked: list[int] = []
    assert verify_dataset(built, on_images=checked.append) == VerifyResult(12)
    assert sum(checked) == 24


def test_a_stored_mask_is_a_grey_png(built: Path) -> None:
    mask = Image.open(BytesIO(Dataset(built).companion("mask").value(0)))
    assert (mask.format, mask.mode, mask.size[::-1]) == ("PNG", "L", Dataset(built).shape(0))
