"""Parts and sums of an LMDBDataset: the samples, options and draws in a Loader and make_loader."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

from builds import SERIAL, SMALL, build_images
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import (
    CenterCrop,
    FolderDataset,
    LMDBDataset,
    Loader,
    RandomResizedCrop,
    ShardShuffled,
    class_balanced,
    make_loader,
)
from presize.errors import DatasetError, OptionError
from presize.options import SourceOptions
from presize.sources.sample import SampleOptions, make_samples
from tampering import change_offset

CROP = RandomResizedCrop(24)
SOME = [3, 50, 7, 3, -1]


def digest(batches: Any) -> list[tuple[bytes, list[int]]]:
    return [(images.numpy().tobytes(), targets.tolist()) for images, targets in batches]


def double(label: int) -> int:
    return 2 * label


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build another dataset with as many classes."""
    folder = tmp_path_factory.mktemp("other")
    make_samples(folder / "raw", SampleOptions(images=20, classes=3, long_side=120, seed=5))
    build_dataset(folder / "raw", folder / "OUT", SMALL, SERIAL)
    return folder / "OUT"


# --- subset ---


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda some: np.array(some, np.int8)])
def test_a_subset_has_the_samples_at_its_indices(kind: Callable[[list[int]], Any], dataset: Path) -> None:
    whole = LMDBDataset(dataset, decode="bytes", target_transform=double)
    part = whole.subset(kind(SOME))
    assert len(part) == 5
    assert list(part) == [whole[i] for i in SOME]
    assert part.__getitems__([4, 0]) == [whole[-1], whole[3]]
    assert part[-1] == whole[55] and part.samples == [whole.samples[i] for i in SOME]
    assert part.targets.tolist() == whole.targets[SOME].tolist()
    assert (part.classes, part.class_to_idx, part.decode) == (whole.classes, whole.class_to_idx, "bytes")
    with pytest.raises(IndexError, match=r"sample 5 of .*: expected from -5 to 4"):
        part[5]


def test_a_subset_of_a_subset_has_samples_of_the_whole(data: LMDBDataset) -> None:
    part = data.subset(range(10, 50)).subset([0, -1]).subset(np.array([1, 0]))
    assert part.targets.tolist() == data.targets[[49, 10]].tolist()
    assert (part.crop, part.flip, len(data)) == (CROP, 0.5, 56)
    assert data.subset([]).targets.tolist() == []


def test_a_subset_is_pickled_as_a_path_and_its_numbers(data: LMDBDataset) -> None:
    part = data.subset(SOME)
    copied = pickle.loads(pickle.dumps(part))
    assert copied.targets.tolist() == part.targets.tolist()
    assert len(pickle.dumps(data.subset(np.arange(56).repeat(1000)))) < 8 * 56_000 + 10_000


def test_a_subset_keeps_a_subclass_and_its_own_getitem(dataset: Path) -> None:
    class WithNumber(LMDBDataset):
        def __getitem__(self, index: Any) -> Any:
            return index, super().__getitem__(index)

    part = WithNumber(dataset, decode="bytes").subset([8, 9])
    assert part.__getitems__([1]) == [(1, LMDBDataset(dataset, decode="bytes")[9])]


@pytest.mark.parametrize(
    ("indices", "said"),
    [
        ([0, 56], "numbers from -56 to 55, got 56 at position 1"),
        ([-57], "numbers from -56 to 55, got -57 at position 0"),
        ([2**70], "a list or an array of whole numbers, got an array of shape .* and type object"),
        ([0.5], r"a list or an array of whole numbers, got an array of shape \(1,\) and type float64"),
        (["0"], "a list or an array of whole numbers, got an array of shape"),
        ([[1, 2]], r".* got an array of shape \(1, 2\)"),
        ([[1], [2, 3]], "a list or an array of whole numbers, got list"),
        ({1, 2}, "a list or an array of whole numbers, got set"),
        (3, "a list or an array of whole numbers, got int"),
        (None, "a list or an array of whole numbers, got NoneType"),
        ([True] * 56, r".* type bool; for a mask use numpy.flatnonzero\(mask\)"),
    ],
)
def test_invalid_indices_are_refused(indices: Any, said: str, data: LMDBDataset) -> None:
    said = f"indices: expected {said}"
    with pytest.raises(OptionError, match=said):
        data.subset(indices)
    with pytest.raises(OptionError, match=said):
        Loader(Subset(data, indices), 4, num_workers=0)


# --- in loaders ---


def nested(data: Dataset[Any]) -> Dataset[Any]:
    return Subset(Subset(data, range(40)), [*range(39, 9, -1)])


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_subsets_of_a_dataset_are_read_like_its_own(workers: int, data: LMDBDataset) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": workers}
    train, val = random_split(data, [50, 6], torch.Generator().manual_seed(0))
    for given, rows in [(train, train.indices), (val, val.indices), (nested(data), [*range(39, 9, -1)])]:
        with Loader(data.subset(rows), 8, shuffle=True, seed=3, num_workers=0) as loader:
            expected = [digest(loader), digest(loader)]
        with Loader(given, 8, **options) as loader:
            assert [digest(loader), digest(loader)] == expected
            assert loader.dataset.classes == data.classes
        loader = make_loader(given, 8, **options)
        assert [digest(loader), digest(loader)] == expected
        assert sorted(t for _, targets in expected[0] for t in targets) == sorted(data.targets[rows].tolist())


def test_orders_draw_from_a_subset(data: LMDBDataset) -> None:
    part = data.subset(np.flatnonzero(data.targets < 2))
    shards = Loader(part, 8, shuffle=ShardShuffled(part, window=1), num_workers=0)
    assert sorted(t for _, targets in shards for t in targets.tolist()) == sorted(part.targets.tolist())
    balanced = Loader(part, 50, shuffle=class_balanced(part.targets, length=50), num_workers=0)
    assert {t for _, targets in balanced for t in targets.tolist()} == {0, 1}
    with pytest.raises(OptionError, match="shuffle: expected an order over"):
        Loader(part, 8, shuffle=ShardShuffled(data.data), num_workers=0)


def test_damage_in_a_subset_is_named_by_its_number_in_the_dataset(dataset: Path, damaged: Path) -> None:
    part = LMDBDataset(damaged, crop=CROP).subset([19, 20, 21])
    with pytest.raises(DatasetError, match=r"sample 20 \(.*\) of .* is damaged"):
        list(Loader(part, 3, num_workers=0))
    loader = Loader(part, 3, num_workers=0, on_error="skip")
    assert [targets.tolist() for _, targets in loader] == [LMDBDataset(dataset).targets[[19, 21]].tolist()]


# --- ConcatDataset ---


def test_datasets_are_joined_with_the_samples_of_each(data: LMDBDataset, other: Path) -> None:
    more = LMDBDataset(other, crop=CROP, flip=0.5, decode="tensor")
    both = ConcatDataset([Subset(data, [5, 6]), ConcatDataset([more, data])])
    part = Subset(both, [0, 1, 2, 21, 22, 77])
    expected = [data.targets[5], data.targets[6], more.targets[0], more.targets[19], data.targets[0], data.targets[55]]
    for loader in (Loader(part, 4, num_workers=0), Loader(part, 4, num_workers=2), make_loader(part, 4, num_workers=2)):
        batches = list(loader)
        assert [t for _, targets in batches for t in targets.tolist()] == expected
        del loader
    single = Loader(part, 6, crop=CenterCrop(24), flip=0, num_workers=0)
    images, _ = next(iter(single))
    alone = Loader(more, 20, crop=CenterCrop(24), flip=0, num_workers=0)
    assert torch.equal(images[2:4], next(iter(alone))[0][[0, 19]])


def test_a_joined_dataset_is_read_like_one(data: LMDBDataset, other: Path, dataset: Path) -> None:
    more = LMDBDataset(other, crop=CROP, flip=0.5, decode="tensor")
    joined = Loader(ConcatDataset([more, data]), 8, num_workers=0).dataset
    assert joined.targets.tolist() == [*more.targets, *data.targets]
    assert joined.samples == more.samples + data.samples
    copied = pickle.loads(pickle.dumps(joined))
    assert copied.samples == joined.samples
    shards = joined.numbers("shard")
    assert set(shards[:20]).isdisjoint(shards[20:])
    assert shards.dtype == np.int64  # with any NumPy: states of ShardShuffled contain a checksum of it
    assert sorted(ShardShuffled(joined, window=1).samples(0, np.arange(76)).tolist()) == [*range(76)]
    paths = [LMDBDataset(root, target="path", crop=CROP) for root in (other, dataset)]
    _, names = next(iter(Loader(ConcatDataset(paths), 76, num_workers=0)))
    assert list(names) == [path for path, _ in joined.samples]
    whole = Loader(
        ConcatDataset([LMDBDataset(root, decode="numpy") for root in (other, dataset)]), 8, crop=CROP
    ).dataset
    assert np.array_equal(whole[20][0], LMDBDataset(dataset, decode="numpy")[0][0])


def test_parts_of_one_dataset_are_a_subset_of_it(data: LMDBDataset) -> None:
    joined = Loader(ConcatDataset([data.subset([4, 5]), data]), 8, num_workers=0).dataset
    assert joined.data is data.data
    assert joined.targets.tolist() == [*data.targets[[4, 5]], *data.targets]


def test_damage_in_a_joined_dataset_is_named_by_its_own_dataset(other: Path, damaged: Path) -> None:
    both = ConcatDataset([LMDBDataset(root, crop=CROP) for root in (other, damaged)])
    with pytest.raises(DatasetError, match=rf"sample 20 \(.*\) of {damaged} is damaged"):
        list(Loader(both, 8, num_workers=0))
    loader = Loader(both, 76, num_workers=0, on_error="skip")
    assert [len(images) for images, _ in loader] == [75]


# --- refusals ---


class Own(LMDBDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


class OwnSubset(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


def test_unsupported_datasets_are_refused_in_one_line(data: LMDBDataset, other: Path, fewer: Path) -> None:
    folder = Subset(FolderDataset(other.parent / "raw"), [0])
    how: dict[str, Any] = {"decode": "tensor", "crop": CROP, "flip": 0.5}
    sums: dict[str, list[Any]] = {
        r"crop, but those of .* differ: RandomResizedCrop\(.*\) and CenterCrop": [
            data, LMDBDataset(other, **how | {"crop": CenterCrop(24)}),
        ],
        "target, but those of .* and .* differ: 'path' and 'label'": [
            LMDBDataset(data.root, target="path"), LMDBDataset(other),
        ],
        "max_pixels, got 9999 in": [LMDBDataset(other, max_pixels=9999), LMDBDataset(data.root)],
        "classes, but those of .* and .* differ$": [data, LMDBDataset(fewer, **how)],
    }  # fmt: skip
    rows: list[tuple[Any, str]] = [
        ([1, 2], "dataset: expected an LMDBDataset, or a Subset or ConcatDataset of them, got list"),
        (folder, "got a Subset of FolderDataset; make_lo"),
        (ConcatDataset([data, folder]), "got a ConcatDataset of LMDBDataset and a Subset of FolderDataset"),
        (Own(other), "dataset: a Loader does not call the __getitem__ of Own; use make_loader"),
        (Subset(Own(other), [0]), "does not call the __getitem__ of Own"),
        (OwnSubset(data, [0]), "does not call the __getitem__ of OwnSubset"),
        (Subset(LMDBDataset(other, str, decode="bytes"), [0]), "decode: bytes are not decoded"),
        *((ConcatDataset(parts), f"must have the same {said}") for said, parts in sums.items()),
    ]
    for given, said in rows:
        with pytest.raises(OptionError, match=said) as raised:
            Loader(given, 4, crop=CROP, num_workers=0)
        assert "\n" not in str(raised.value)


def test_a_column_of_another_type_in_another_part_is_named(tmp_path: Path) -> None:
    parts = []
    for name, score in (("whole", 1), ("broken", 1.5)):
        rows = [{"path": f"{i}.png", "score": score} for i in range(4)]
        root = build_images(tmp_path / name, {f"{i}.png": smooth_image(40, 50) for i in range(4)}, rows=rows)
        parts.append(LMDBDataset(root, target="score", crop=CROP))
    with pytest.raises(DatasetError, match=r"column 'score' is int\d+ in .*whole/out and double in .*broken/out"):
        Loader(ConcatDataset(parts), 4, num_workers=0)
    alone = Loader(ConcatDataset([parts[1], parts[1]]), 8, num_workers=0)
    assert next(iter(alone))[1].tolist() == [1.5] * 8


def test_a_removed_dataset_is_noticed_when_a_copy_is_read(data: LMDBDataset, other: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(other, tmp_path / "moved"))
    both = [data, LMDBDataset(moved, crop=CROP, flip=0.5, decode="tensor")]
    pickled = pickle.dumps(Loader(ConcatDataset(both), 4, num_workers=0).dataset)
    shutil.rmtree(moved)
    copied = pickle.loads(pickled)
    with pytest.raises(DatasetError, match="moved"):
        copied[60]


# --- splits ---


@pytest.fixture(scope="module")
def fewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a dataset of fewer classes, with a column ``kind`` of other values than in `kinds`."""
    return labelled(tmp_path_factory.mktemp("fewer"), 2, "xyz")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("kinds"), 3, "abc")


def labelled(folder: Path, classes: int, kinds: str) -> Path:
    labels = [f"{'pqr'[i % classes]}" for i in range(6)]
    rows = [{"path": f"{label}/{i}.png", "label": label, "kind": kinds[i % 3]} for i, label in enumerate(labels)]
    return build_images(folder, {row["path"]: smooth_image(45, 60, i) for i, row in enumerate(rows)}, rows=rows)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (({}, {}), "classes"),
        (({"crop": CROP, "decode": "tensor"}, {"flip": 0.5, "crop": CROP, "decode": "tensor"}), "classes"),
        (({"target_transform": double}, {"target_transform": double}), "classes"),
        (({"target": ("width", "label")}, {"target": ("width", "label")}), "classes"),
        (({"target": "kind", "vocabulary": {"kind": None}},) * 2, "vocabulary"),
        (({}, {"target": "width"}), "target"),
    ],
)
@pytest.mark.parametrize("shape", ["two", "nested", "subsets", "with another"])
def test_make_loader_refuses_parts_whose_labels_differ_in_meaning(
    options: tuple[Any, Any], name: str, shape: str, kinds: Path, fewer: Path
) -> None:
    one, two = LMDBDataset(kinds, **options[0]), LMDBDataset(fewer, **options[1])
    parts: dict[str, Any] = {
        "two": [one, two],
        "nested": [ConcatDataset([one, one]), ConcatDataset([Subset(one, [0]), two])],
        "subsets": [Subset(one, [1, 2]), two.subset([0])],
        "with another": [[(0, 0)], one, two],
    }
    with pytest.raises(OptionError, match=rf"^dataset: the parts of a ConcatDataset must have the same {name}, but"):
        make_loader(ConcatDataset(parts[shape]), 4, num_workers=0)


def test_make_loader_compares_folders_and_parts_of_which_the_first_has_its_own_labels(kinds: Path, fewer: Path) -> None:
    folders = [FolderDataset(root.parent / "raw") for root in (kinds, fewer)]
    own = [
        LMDBDataset(kinds, target_transform=double),
        LMDBDataset(kinds, target=None),
        FolderDataset(kinds.parent / "raw", target_transform=double),
    ]
    for parts in (folders, *([first, LMDBDataset(kinds), LMDBDataset(fewer)] for first in own)):
        with pytest.raises(OptionError, match="must have the same classes"):
            make_loader(ConcatDataset(parts), 4, num_workers=0)


LABEL_FIRST, LABEL_LAST = ("label", "width"), ("width", "label")


def test_make_loader_still_reads_parts_with_consistent_labels(kinds: Path, fewer: Path) -> None:
    class Relabelled(LMDBDataset):
        def __getitem__(self, index: Any) -> Any:
            image, label = super().__getitem__(index)
            return image, label + 3

    cropped: dict[str, Any] = {"crop": CROP, "decode": "tensor"}
    vocabulary = {"kind": list("abcxyz")}
    for parts in (
        [LMDBDataset(kinds, **cropped), LMDBDataset(kinds, flip=1.0, **cropped)],
        [LMDBDataset(kinds, target="width", **cropped), LMDBDataset(fewer, target="height", **cropped)],
        [LMDBDataset(kinds, target="path", **cropped), LMDBDataset(fewer, target="path", **cropped)],
        [LMDBDataset(kinds, target=None, **cropped), LMDBDataset(fewer, target=None, **cropped)],
        [LMDBDataset(kinds, target={name: name for name in names}, **cropped) for names in (LABEL_FIRST, LABEL_LAST)],
        [LMDBDataset(kinds, **cropped), LMDBDataset(fewer, target_transform=double, **cropped)],
        [LMDBDataset(root, target="kind", vocabulary=vocabulary, **cropped) for root in (kinds, fewer)],
        [LMDBDataset(kinds, **cropped), Relabelled(fewer, **cropped)],
    ):
        assert sum(len(batch) > 0 for batch in make_loader(ConcatDataset(parts), 5, num_workers=0)) == len(parts) + 1


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory, raw: Path) -> Path:
    """Build `raw` with splits by shares, and another column of folds."""
    out = tmp_path_factory.mktemp("splits") / "OUT"
    build_dataset(raw, out, SMALL, SERIAL, SourceOptions(split="train=0.7,val=0.3"))
    return out


def test_a_split_has_the_samples_of_its_name_in_their_order(splits: Path) -> None:
    ds = LMDBDataset(splits, target=("split", "path"), decode="bytes")
    train, val = ds.split("train"), ds.split("val")
    assert ds.splits == ["train", "val"]
    assert len(train) + len(val) == len(ds) == 56 and len(val) > 5
    assert list(train) == [sample for sample in ds if sample[1][0] == "train"]
    assert {split for _, (split, _) in val} == {"val"}
    assert (val.classes, val.splits, val.decode) == (ds.classes, ["val"], "bytes")


def test_a_split_of_a_subset_contains_only_its_samples(splits: Path) -> None:
    ds = LMDBDataset(splits, target=("split", "path"), decode="bytes")
    part = ds.subset([40, 3, 3, 55, 20])
    found = [sample for split in part.splits for sample in part.split(split)]
    assert sorted(found) == sorted(part) and len(found) == 5
    with pytest.raises(OptionError, match=r"no sample of .* has 'val' in column 'split'; it has 'train'"):
        ds.split("train").split("val")


def test_any_column_can_be_split(splits: Path) -> None:
    ds = LMDBDataset(splits, decode="bytes")
    assert set(ds.split(2, column="label").targets.tolist()) == {2}
    path = ds.data.path(7)
    assert [found for found, _ in ds.split(path, column="path").samples] == [path]


def test_splits_are_read_by_loaders_pickled_and_joined(splits: Path) -> None:
    val, train = parts = [LMDBDataset(splits, crop=CROP, decode="tensor").split(name) for name in ("val", "train")]
    expected = sorted(val.targets.tolist())
    for loader in (Loader(val, 8, num_workers=0), DataLoader(pickle.loads(pickle.dumps(val)), 8, num_workers=1)):
        assert sorted(t for _, targets in loader for t in targets.tolist()) == expected
    joined = Loader(ConcatDataset(parts), 8, num_workers=0).dataset
    assert joined.splits == ["train", "val"] and len(joined.split("train")) == len(train)


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("trian", "split", "split: no sample of .* has 'trian' in column 'split'; it has 'train', 'val'"),
        ("Train", "split", "has 'Train'"),
        (0, "split", "has 0 in column 'split'"),
        (None, "split", "has None in column 'split'"),
        ("0", "label", "has '0' in column 'label'; it has 0, 1, 2"),
        (2**70, "label", "in column 'label'"),
    ],
)
def test_a_split_without_samples_is_refused(name: Any, column: str, said: str, splits: Path) -> None:
    with pytest.raises(OptionError, match=said):
        LMDBDataset(splits).split(name, column)


def test_a_dataset_without_splits_says_which_columns_it_has(data: LMDBDataset) -> None:
    assert data.splits == []
    with pytest.raises(DatasetError, match=r"has no column 'split'; it has path, .*; presize build --split adds"):
        data.split("train")


def test_names_of_splits_outside_the_index_are_found_before_they_are_read(splits: Path, tmp_path: Path) -> None:
    shutil.copytree(splits, tmp_path / "OUT")
    change_offset(tmp_path / "OUT", "split", 2, 10**12)
    ds = LMDBDataset(tmp_path / "OUT")
    for read in (lambda: ds.split("val"), lambda: ds.splits):
        with pytest.raises(DatasetError, match=r"column 'split' of .* is damaged: "):
            read()
