"""Columns of every type as targets: a batch of a column has one type, in Loader and in make_loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from builds import SERIAL
from pictures import smooth_image
from presize.build.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader
from presize.options import BuildOptions, ImageOptions, Size, SourceOptions

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


@pytest.mark.parametrize("target", [*LABELS, "width", ("label", "points"), ("caption", "score"), ["count"]], ids=str)
def test_a_column_has_one_type_in_every_loader_and_batch(target: Any, labelled: Path) -> None:
    cropped = LMDBDataset(labelled, target=target, crop=CenterCrop(8), decode="tensor")
    transformed = LMDBDataset(labelled, to_array, target=target)
    for size in (1, 2, 4):  # batches with and without nulls, of even and of uneven lists
        expected = [targets for _, targets in Loader(cropped, size, workers=0)]
        for ds in (cropped, transformed):
            found = [targets for _, targets in make_loader(ds, size, workers=0)]
            assert all(map(same, found, expected)), (found, expected)
    if str(target) in TENSORS:
        assert {batch.dtype for batch in expected} == {TENSORS[target]}


@pytest.mark.parametrize("column", ["count", "title", "points", "words"])
def test_values_that_torch_cannot_stack_stay_a_list(column: str, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=column, crop=CenterCrop(8), decode="tensor")
    for loader in (Loader(ds, 2, workers=0), make_loader(ds, 2, workers=1)):
        assert [targets for _, targets in loader] == [LABELS[column][:2], LABELS[column][2:]]


@pytest.mark.parametrize("decode", ["tensor", "numpy"])
def test_values_beside_several_views_stay_a_list_too(decode: Any, labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=("label", "points"), crop=[CenterCrop(8), CenterCrop(6)], decode=decode)
    for loader in (Loader(ds, 2, workers=0), make_loader(ds, 2, workers=0)):
        for at, (views, (labels, points)) in enumerate(loader):
            assert [view.shape[0] for view in views] == [2, 2] and type(views) is tuple
            assert labels.tolist() == [[1, 2], [0, 1]][at] and points == LABELS["points"][2 * at :][:2]


def test_of_several_columns_only_those_stay_lists(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=("label", "points", "caption"), crop=CenterCrop(8), decode="tensor")
    (_, (labels, points, captions)), *_ = make_loader(ds, 4, workers=0)
    assert labels.tolist() == [1, 2, 0, 1]
    assert (points, captions) == (LABELS["points"], tuple(LABELS["caption"]))
    assert LMDBDataset(labelled, target="points").targets[0] == [1, 2]


def test_a_batch_of_which_all_is_left_out_has_no_targets(labelled: Path) -> None:
    for target, expected in (("points", []), (("label", "points"), [torch.empty(0, dtype=torch.int64), []])):
        ds = LMDBDataset(labelled, target=target, crop=CenterCrop(24), decode="tensor")
        batch = next(iter(Loader(ds, 4, workers=0, on_error="skip")))
        assert same(batch[1], expected)


def test_a_target_transform_is_collated_by_torch(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target="points", target_transform=len, crop=CenterCrop(8), decode="tensor")
    for loader in (Loader(ds, 4, workers=0), make_loader(ds, 4, workers=0)):
        assert next(iter(loader))[1].tolist() == [2, 2, 0, 1]
