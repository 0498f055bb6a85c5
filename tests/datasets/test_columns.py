"""Columns of every type as targets: a batch of a column has one type, in Loader and in make_loader."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from batches import same
from builds import build_images
from pictures import smooth_image
from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader
from presize.errors import DatasetError, OptionError
from presize.options import BuildOptions, ImageOptions, Size
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


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build four pictures with the label table LABELS; read only."""
    images = {name: smooth_image(20, 20, seed=i) for i, name in enumerate(LABELS["path"])}
    rows = [dict(zip(LABELS, row, strict=True)) for row in zip(*LABELS.values(), strict=True)]
    options = BuildOptions(ImageOptions(sizes=(Size(16, 16),)))
    return build_images(tmp_path_factory.mktemp("labelled"), images, options, rows)


@pytest.mark.parametrize(
    ("target", "values", "kind"),
    [
        ("label", [1, 2, 0, 1], int),
        ("score", [0.5, 1.5, 2.5, 3.5], float),
        ("count", [3, None, 1, 0], None),
        ("caption", LABELS["caption"], str),
        ("good", LABELS["good"], bool),
        ("points", LABELS["points"], list),
        ("path", LABELS["path"], str),
        ("width", [16] * 4, int),
        (["label", "caption"], [(1, "a cat"), (2, "a dog"), (0, ""), (1, "été")], tuple),
        (
            {"y": "label", "text": "caption"},
            [{"y": 1, "text": "a cat"}, {"y": 2, "text": "a dog"}, {"y": 0, "text": ""}, {"y": 1, "text": "été"}],
            dict,
        ),
    ],
    ids=str,
)
def test_any_columns_can_be_the_target(labelled: Path, target: Any, values: list[Any], kind: type | None) -> None:
    ds = LMDBDataset(labelled, target=target, decode="bytes")
    for given in (ds, ds.samples, pickle.loads(pickle.dumps(ds))):
        delivered = [value for _, value in given]
        assert delivered == values
        assert kind is None or {type(value) for value in delivered} == {kind}
    if isinstance(target, str):
        assert list(ds.targets) == values
    else:
        with pytest.raises(AttributeError, match="targets needs one column"):
            _ = ds.targets


def test_without_a_target_or_labels_samples_are_images_only(labelled: Path, tmp_path: Path) -> None:
    bare = LMDBDataset(build_images(tmp_path, {"0.png": smooth_image(20, 20)}), decode="numpy")
    assert (bare.classes, bare.class_to_idx) == (None, {})
    for ds in (LMDBDataset(labelled, target=None, decode="numpy"), bare):
        assert ds[-1].ndim == 3 and ds.samples[0] == ("0.png", None)
        assert not hasattr(ds, "targets"), "for code that works with and without targets"


def test_an_unknown_target_is_named_with_the_columns(labelled: Path) -> None:
    with pytest.raises(DatasetError, match=r"has no column 'lable'; it has path, .*, label, .*, points"):
        LMDBDataset(labelled, target="lable")


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
    for size in (1, 2, 4):  # batches with and without nulls, with lists of equal and of different lengths
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
def test_values_with_several_views_stay_a_list(decode: Any, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=("label", "points"), crop=[CenterCrop(8), CenterCrop(6)], decode=decode)
    for loader in (Loader(ds, 2, num_workers=0), make_loader(ds, 2, num_workers=0)):
        for at, (views, (labels, points)) in enumerate(loader):
            assert [view.shape[0] for view in views] == [2, 2] and type(views) is tuple
            assert labels.tolist() == [[1, 2], [0, 1]][at] and points == LABELS["points"][2 * at :][:2]


def test_a_batch_without_samples_has_no_targets(labelled: Path) -> None:
    for target, expected in (("points", []), (("label", "points"), [torch.empty(0, dtype=torch.int64), []])):
        ds = LMDBDataset(labelled, target=target, crop=CenterCrop(24), decode="tensor")
        images, targets = next(iter(Loader(ds, 4, num_workers=0, on_error="skip")))
        assert images.shape == (0, 3, 24, 24) and same(targets, expected)


def test_a_target_transform_is_collated_by_torch(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="points", target_transform=len, crop=CenterCrop(8), decode="tensor")
    for loader in (Loader(ds, 4, num_workers=0), make_loader(ds, 4, num_workers=0)):
        assert next(iter(loader))[1].tolist() == [2, 2, 0, 1]


# --- several columns ---


@pytest.mark.parametrize("decode", ["tensor", "numpy"])
def test_a_batch_of_dicts_is_a_dict_of_batches(decode: Any, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=ALL, multi_hot="tags", crop=CenterCrop(8), decode=decode)
    for loader in (Loader(ds, 4, num_workers=0), make_loader(ds, 4, num_workers=1)):
        (_, targets), *_ = loader
        assert list(targets) == list(ALL)
        assert targets["y"].tolist() == [1, 2, 0, 1] and targets["area"].dtype == torch.float64
        assert (targets["text"], targets["points"]) == (LABELS["caption"], LABELS["points"])
        assert targets["tags"].tolist() == [[1, 1], [0, 0], [0, 0], [0, 1]]


def test_a_target_transform_gets_the_dict(labelled: Path) -> None:
    ds = LMDBDataset(
        labelled, target={"text": "caption"}, target_transform=lambda target: len(target["text"]), decode="bytes"
    )
    assert [target for _, target in ds] == [5, 5, 0, 3]


# --- vocabularies ---


@pytest.mark.parametrize(
    ("options", "targets", "vocabulary"),
    [
        (
            {"target": "caption", "vocabulary": {"caption": ["été", "a dog", "a cat", ""]}},
            [2, 1, 3, 0],
            {"caption": ["été", "a dog", "a cat", ""]},
        ),
        (
            {"target": ("caption", "words"), "vocabulary": {"caption": None, "words": None}},
            [(1, [0]), (2, [1, 2]), (0, [3]), (3, [4])],
            {"caption": ["", "a cat", "a dog", "été"], "words": ["a", "b", "c", "d", "e"]},
        ),
        ({"target": "ids", "vocabulary": {"ids": [90, 7, 1]}}, [[0, 1], [1], [], [2]], {"ids": [90, 7, 1]}),
        ({"target": "tags", "vocabulary": {"tags": ["y", "x"]}}, [[1, 0], [], None, [0, 0]], {"tags": ["y", "x"]}),
        ({"target": "title", "vocabulary": {"title": None}}, [0, None, 1, 2], {"title": ["a", "b", "c"]}),
    ],
    ids=["text", "sorted values", "numbers in lists", "text in lists", "a missing value"],
)
def test_a_vocabulary_numbers_values_by_position(
    options: dict[str, Any], targets: list[Any], vocabulary: Any, labelled: Path
) -> None:
    ds = LMDBDataset(labelled, **options, decode="bytes")
    assert [target for _, target in ds] == targets
    assert ds.vocabulary == vocabulary
    assert list(LMDBDataset(labelled, **options | {"vocabulary": ds.vocabulary}, decode="bytes")) == list(ds)
    if options["target"] == "caption":
        assert ds.targets.tolist() == targets and ds.targets.dtype == np.int64


def test_multi_hot_vectors_have_a_place_for_each_value(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="ids", multi_hot="ids", vocabulary={"ids": [1, 7, 8, 90]}, decode="bytes")
    expected = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.float32)
    assert same([target for _, target in ds], list(expected))
    assert ds.targets.dtype == np.float32 and np.array_equal(ds.targets, expected)
    assert np.array_equal(ds.subset([3, 0]).targets, expected[[3, 0]])
    ds[0][1].zero_()
    assert torch.equal(ds[0][1], expected[0]), "a vector belongs to the caller"


@pytest.mark.parametrize("vocabulary", [{}, {"none": ["a", "b"]}])
def test_lists_that_are_all_empty_are_vectors_of_zeros(vocabulary: Any, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="none", multi_hot="none", vocabulary=vocabulary, decode="bytes")
    assert [target.tolist() for _, target in ds] == [[0] * len(vocabulary.get("none", ()))] * 4


@pytest.mark.slow
def test_a_vocabulary_is_that_of_the_whole_dataset_in_a_subset_and_in_workers(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="tags", multi_hot="tags", crop=CenterCrop(8), decode="tensor")
    part = ds.subset([3])
    assert part.vocabulary == {"tags": ["x", "y"]} and part[0][1].tolist() == [0, 1]
    loader = DataLoader(part, 1, num_workers=1, multiprocessing_context="spawn")
    assert next(iter(loader))[1].tolist() == [[0, 1]]


def test_parts_with_different_vocabularies_cannot_be_joined(labelled: Path) -> None:
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
            "lacks 3 of the values of column 'caption' in .*, such as 'a dog'",
        ),
        ({"target": "words", "vocabulary": {"words": ["a", "b"]}}, "3 of the values of column 'words' .* such as 'c'"),
        ({"vocabulary": {"captoin": None}}, "vocabulary: 'captoin' is not a column of target='caption'"),
        ({"multi_hot": "tags"}, "multi_hot: 'tags' is not a column of target='caption'"),
        ({"multi_hot": "caption"}, "multi_hot: column 'caption' holds no lists"),
        ({"vocabulary": {"caption": [1, 2]}}, "column 'caption' holds large_string, but the values given are of"),
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


def test_text_outside_the_index_is_found_before_it_is_read_or_numbered(labelled: Path, tmp_path: Path) -> None:
    shutil.copytree(labelled, tmp_path / "OUT")
    change_offset(tmp_path / "OUT", "caption", 2, 10**12)
    assert len(LMDBDataset(tmp_path / "OUT")) == 4, "captions were not requested"
    for vocabulary in ({}, {"caption": None}):
        with pytest.raises(DatasetError, match=r"column 'caption' of .* is damaged: "):
            LMDBDataset(tmp_path / "OUT", target="caption", vocabulary=vocabulary)
