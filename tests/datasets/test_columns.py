"""Columns of every type as targets: a batch of a column has one type, in Loader and in make_loader."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from builds import SERIAL
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, Loader, collate, make_loader
from presize.errors import DatasetError, OptionError
from presize.options import BuildOptions, ImageOptions, Size, SourceOptions
from tampering import change_offset

LABELS: dict[str, list[Any]] = {
    "path": [f"{i}.png" for i in range(4)],
    "label": ["cat", "dog", "ant", "cat"],
    "score": [0.5, 1.5, 2.5, 3.5],
    "whole": [3, 2**40, -1, 0],
    "count": [3, None, 1, 0],
    "caption": ["a cat", "a dog", "", "été"],
    "title": ["a", None, "b", "c"],
    "good": [True, False, True, True],
    "pair": [[1, 2], [3, 4], [5, 6], [7, 8]],
    "points": [[1, 2], [3, 4], [], [5]],
    "words": [["a"], ["b", "c"], ["d"], ["e"]],
    "tags": [["x", "y"], [], None, ["y", "y"]],
    "ids": [[90, 7], [7], [], [1]],
    "none": [[], [], None, []],
}

TENSORS = {"label": torch.int64, "score": torch.float64, "whole": torch.int64, "good": torch.bool}


def to_array(image: Any) -> Any:
    return np.array(image)


def same(found: Any, expected: Any) -> bool:
    """Whether two batches of targets are equal in type and value."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(found, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in found)
    if isinstance(found, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures with the label table LABELS; read only."""
    folder = tmp_path_factory.mktemp("labelled")
    (folder / "photos").mkdir()
    for i in range(4):
        Image.fromarray(smooth_image(20, 20, seed=i)).save(folder / "photos" / f"{i}.png")
    rows = [dict(zip(LABELS, row, strict=True)) for row in zip(*LABELS.values(), strict=True)]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    options = BuildOptions(ImageOptions(sizes=(Size(16, 16),)))
    build_dataset(
        folder / "photos", folder / "OUT", options, SERIAL, samples=SourceOptions(labels=folder / "labels.jsonl")
    )
    return folder / "OUT"


ALL = {"y": "label", "area": "score", "text": "caption", "points": "points", "tags": "tags", "also": "tags"}
NUMBERED: list[dict[str, Any]] = [
    {"target": "caption", "vocabulary": {"caption": None}},
    {"target": "title", "vocabulary": {"title": ["b", "a", "c"]}},
    {"target": "words", "vocabulary": {"words": None}},
    {"target": "pair", "vocabulary": {"pair": range(9)}},
    {"target": "tags", "multi_hot": "tags"},
    {"target": ("label", "ids"), "multi_hot": ["ids"], "vocabulary": {"ids": [1, 7, 90]}},
    {"target": ALL, "multi_hot": ("tags",)},
]


@pytest.mark.parametrize(
    "options",
    [
        *({"target": target} for target in [*LABELS, "width", ("label", "points"), ("caption", "score"), ["count"]]),
        {"target": {"y": "label", "text": "caption", "w": "width"}},
        {"target": ALL},
        *NUMBERED,
    ],
    ids=str,
)
def test_a_column_has_one_type_in_every_loader_and_batch(options: Any, labelled: Path) -> None:
    target = options["target"]
    cropped = LMDBDataset(labelled, **options, crop=CenterCrop(8), decode="tensor")
    transformed = LMDBDataset(labelled, to_array, **options)
    for size in (1, 2, 4):  # batches with and without nulls, of even and of uneven lists
        expected = [targets for _, targets in Loader(cropped, size, num_workers=0)]
        for ds in (cropped, transformed):
            found = [targets for _, targets in make_loader(ds, size, num_workers=0)]
            assert all(map(same, found, expected)), (found, expected)
    if str(target) in TENSORS:
        assert {batch.dtype for batch in expected} == {TENSORS[target]}


@pytest.mark.parametrize("column", ["count", "title", "points", "words"])
def test_values_that_torch_cannot_stack_stay_a_list(column: str, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=column, crop=CenterCrop(8), decode="tensor")
    for loader in (Loader(ds, 2, num_workers=0), make_loader(ds, 2, num_workers=1)):
        assert [targets for _, targets in loader] == [LABELS[column][:2], LABELS[column][2:]]


@pytest.mark.parametrize("decode", ["tensor", "numpy"])
def test_values_beside_several_views_stay_a_list_too(decode: Any, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=("label", "points"), crop=[CenterCrop(8), CenterCrop(6)], decode=decode)
    for loader in (Loader(ds, 2, num_workers=0), make_loader(ds, 2, num_workers=0)):
        for at, (views, (labels, points)) in enumerate(loader):
            assert [view.shape[0] for view in views] == [2, 2] and type(views) is tuple
            assert labels.tolist() == [[1, 2], [0, 1]][at] and points == LABELS["points"][2 * at :][:2]


def test_of_several_columns_only_those_stay_lists(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=("label", "points", "caption"), crop=CenterCrop(8), decode="tensor")
    (_, (labels, points, captions)), *_ = make_loader(ds, 4, num_workers=0)
    assert labels.tolist() == [1, 2, 0, 1]
    assert (points, captions) == (LABELS["points"], tuple(LABELS["caption"]))
    assert LMDBDataset(labelled, target="points").targets[0] == [1, 2]


def test_a_batch_of_which_all_is_left_out_has_no_targets(labelled: Path) -> None:
    for target, expected in (("points", []), (("label", "points"), [torch.empty(0, dtype=torch.int64), []])):
        ds = LMDBDataset(labelled, target=target, crop=CenterCrop(24), decode="tensor")
        batch = next(iter(Loader(ds, 4, num_workers=0, on_error="skip")))
        assert same(batch[1], expected)


def test_a_target_transform_is_collated_by_torch(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="points", target_transform=len, crop=CenterCrop(8), decode="tensor")
    for loader in (Loader(ds, 4, num_workers=0), make_loader(ds, 4, num_workers=0)):
        assert next(iter(loader))[1].tolist() == [2, 2, 0, 1]


# --- several ---


def test_a_dict_of_names_gives_dicts_of_values(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target={"y": "label", "text": "caption"}, decode="bytes")
    assert [target for _, target in ds] == [
        {"y": 1, "text": "a cat"},
        {"y": 2, "text": "a dog"},
        {"y": 0, "text": ""},
        {"y": 1, "text": "été"},
    ]
    assert ds.samples[1] == ("1.png", {"y": 2, "text": "a dog"})
    assert pickle.loads(pickle.dumps(ds))[3][1] == {"y": 1, "text": "été"}


@pytest.mark.parametrize("decode", ["tensor", "numpy"])
def test_a_batch_of_dicts_is_a_dict_of_batches(decode: Any, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=ALL, multi_hot="tags", crop=CenterCrop(8), decode=decode)
    for loader in (
        Loader(ds, 4, num_workers=0),
        DataLoader(ds, 4, collate_fn=collate),
        make_loader(ds, 4, num_workers=1),
    ):
        (_, targets), *_ = loader
        assert list(targets) == list(ALL)
        assert targets["y"].tolist() == [1, 2, 0, 1] and targets["area"].dtype == torch.float64
        assert (targets["text"], targets["points"]) == (LABELS["caption"], LABELS["points"])
        assert targets["tags"].tolist() == [[1, 1], [0, 0], [0, 0], [0, 1]]


def test_torchs_own_collate_takes_dicts_of_what_it_can_stack(labelled: Path) -> None:
    ds = LMDBDataset(
        labelled, target={"y": "label", "tags": "tags"}, multi_hot="tags", crop=CenterCrop(8), decode="tensor"
    )
    (_, targets), *_ = DataLoader(ds, 4)
    assert targets["y"].tolist() == [1, 2, 0, 1] and targets["tags"].shape == (4, 2)


def test_a_target_transform_gets_the_dict(labelled: Path) -> None:
    ds = LMDBDataset(
        labelled, target={"text": "caption"}, target_transform=lambda target: len(target["text"]), decode="bytes"
    )
    assert [target for _, target in ds] == [5, 5, 0, 3]


# --- vocabularies ---


def targets_of(labelled: Path, **options: Any) -> list[Any]:
    return [target for _, target in LMDBDataset(labelled, **options, decode="bytes")]


def test_a_vocabulary_numbers_text_by_its_place(labelled: Path) -> None:
    words = ["été", "a dog", "a cat", ""]
    ds = LMDBDataset(labelled, target="caption", vocabulary={"caption": words}, decode="bytes")
    assert [target for _, target in ds] == [2, 1, 3, 0]
    assert ds.targets.tolist() == [2, 1, 3, 0] and ds.targets.dtype == np.int64
    assert ds.vocabulary == {"caption": words}


def test_without_a_list_the_sorted_values_are_the_vocabulary(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=("caption", "words"), vocabulary={"caption": None, "words": None}, decode="bytes")
    assert ds.vocabulary == {"caption": ["", "a cat", "a dog", "été"], "words": ["a", "b", "c", "d", "e"]}
    assert [target for _, target in ds] == [(1, [0]), (2, [1, 2]), (0, [3]), (3, [4])]
    again = LMDBDataset(labelled, target=("caption", "words"), vocabulary=ds.vocabulary, decode="bytes")
    assert list(again) == list(ds)


def test_a_vocabulary_numbers_the_values_in_lists(labelled: Path) -> None:
    assert targets_of(labelled, target="ids", vocabulary={"ids": [90, 7, 1]}) == [[0, 1], [1], [], [2]]
    assert targets_of(labelled, target="tags", vocabulary={"tags": ["y", "x"]}) == [[1, 0], [], None, [0, 0]]


def test_a_missing_value_stays_none(labelled: Path) -> None:
    assert targets_of(labelled, target="title", vocabulary={"title": None}) == [0, None, 1, 2]


def test_multi_hot_vectors_have_a_place_for_each_value(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="ids", multi_hot="ids", vocabulary={"ids": [1, 7, 8, 90]}, decode="bytes")
    expected = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.float32)
    assert same([target for _, target in ds], list(expected))
    assert ds.targets.dtype == np.float32 and np.array_equal(ds.targets, expected)
    assert np.array_equal(ds.subset([3, 0]).targets, expected[[3, 0]])


def test_a_multi_hot_vector_is_the_callers_own(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="tags", multi_hot="tags", decode="bytes")
    ds[0][1].zero_()
    assert ds[0][1].tolist() == [1, 1]


def test_lists_that_are_all_empty_are_vectors_of_nothing(labelled: Path) -> None:
    assert [len(target) for target in targets_of(labelled, target="none", multi_hot="none")] == [0] * 4
    given = targets_of(labelled, target="none", multi_hot="none", vocabulary={"none": ["a", "b"]})
    assert [target.tolist() for target in given] == [[0, 0]] * 4


@pytest.mark.slow
def test_a_vocabulary_is_that_of_the_whole_dataset_in_a_subset_and_in_workers(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="tags", multi_hot="tags", crop=CenterCrop(8), decode="tensor")
    part = ds.subset([3])
    assert part.vocabulary == {"tags": ["x", "y"]} and part[0][1].tolist() == [0, 1]
    loader = DataLoader(part, 1, num_workers=1, multiprocessing_context="spawn")
    assert next(iter(loader))[1].tolist() == [[0, 1]]


def test_parts_with_other_vocabularies_are_no_sum(labelled: Path) -> None:
    parts = [
        LMDBDataset(labelled, target="tags", vocabulary={"tags": words}, multi_hot="tags", crop=CenterCrop(8))
        for words in (["x", "y"], ["x", "y"], ["y", "x"])
    ]
    loader = Loader(ConcatDataset(parts[:2]), 8, num_workers=0)
    assert next(iter(loader))[1].tolist() == [[1, 1], [0, 0], [0, 0], [0, 1]] * 2
    with pytest.raises(OptionError, match="must have the same vocabulary"):
        Loader(ConcatDataset(parts), 8, num_workers=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"vocabulary": {"caption": ["a cat"]}},
            "3 of the values of column 'caption' in .* are not in it, such as 'a dog'",
        ),
        ({"target": "words", "vocabulary": {"words": ["a", "b"]}}, "3 of the values of column 'words' .* such as 'c'"),
        ({"vocabulary": {"captoin": None}}, "vocabulary: 'captoin' is no column of target='caption'"),
        ({"multi_hot": "tags"}, "multi_hot: 'tags' is no column of target='caption'"),
        ({"multi_hot": "caption"}, "multi_hot: column 'caption' holds no lists"),
        ({"vocabulary": {"caption": [1, 2]}}, "column 'caption' holds large_string, and the values given are not"),
        ({"vocabulary": {"caption": ["a", "b", "a"]}}, r"expected a list of different values, got \['a', 'b', 'a'\]"),
        ({"vocabulary": {"caption": []}}, r"expected a list of different values, got \[\]"),
        ({"vocabulary": {"caption": "cat"}}, "expected a list of different values, got 'cat'"),
        ({"vocabulary": {"caption": {"cat"}}}, "vocabulary: expected Sequence, got {'cat'}"),
        ({"vocabulary": ["caption"]}, r"vocabulary: expected Mapping, got \['caption'\]"),
        (
            {"target": "score", "vocabulary": {"score": None}},
            "column 'score' holds double, expected text, whole numbers",
        ),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(options: dict[str, Any], said: str, labelled: Path) -> None:
    with pytest.raises(OptionError, match=said):
        LMDBDataset(labelled, **({"target": "caption"} | options))


def test_text_outside_the_index_is_found_before_it_is_numbered(labelled: Path, tmp_path: Path) -> None:
    shutil.copytree(labelled, tmp_path / "OUT")
    change_offset(tmp_path / "OUT", "caption", 2, 10**12)
    with pytest.raises(DatasetError, match=r"column 'caption' of .* is damaged: "):
        LMDBDataset(tmp_path / "OUT", target="caption", vocabulary={"caption": None})
