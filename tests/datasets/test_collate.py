"""collate: a batch that was decoded as one array is not copied, and is what torch's own makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from presize.datasets import LMDBDataset, RandomResizedCrop, collate
from presize.datasets.collate import WholeBatch

CROP = RandomResizedCrop(24)


def batch_of(dataset: Path, **options: Any) -> list[Any]:
    return LMDBDataset(dataset, crop=CROP, decode="tensor", **options).__getitems__([7, 0, 31, 7])


def is_the_same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(is_the_same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return type(ours) is list and len(ours) == len(theirs) and all(map(is_the_same, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


def test_the_samples_of_a_batch_are_views_of_one_array(dataset: Path) -> None:
    batch = batch_of(dataset)
    assert isinstance(batch, WholeBatch)
    assert batch.images.shape == (4, 3, 24, 24)
    for (image, _), expected in zip(batch, batch.images, strict=True):
        assert image.data_ptr() == expected.data_ptr() and image.stride() == expected.stride()


def test_our_collate_copies_no_pixels(dataset: Path) -> None:
    batch = batch_of(dataset)
    images, _ = collate(batch)
    assert images.untyped_storage().data_ptr() == batch[0][0].untyped_storage().data_ptr()
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("target", ["label", None, "path", ("label", "path", "width"), {"y": "label", "at": "path"}])
def test_our_collate_makes_what_torchs_own_makes(target: Any, dataset: Path) -> None:
    batch = batch_of(dataset, target=target)
    assert isinstance(batch, WholeBatch)
    assert is_the_same(collate(batch), default_collate(list(batch)))
    assert is_the_same(collate(batch), default_collate(batch))


def test_a_target_transform_leaves_the_images_as_they_are(dataset: Path) -> None:
    batch = batch_of(dataset, target_transform=lambda label: {"label": label})
    assert isinstance(batch, WholeBatch)
    images, targets = collate(batch)
    assert images is batch.images
    assert targets["label"].dtype == torch.int64


def test_a_batch_with_a_transform_is_an_ordinary_list(dataset: Path) -> None:
    batch = batch_of(dataset, transform=torch.Tensor.float)
    assert type(batch) is list
    images, labels = collate(batch)
    assert images.dtype == torch.float32 and labels.shape == (4,)


def test_what_is_no_batch_of_views_goes_to_torchs_own_collate() -> None:
    assert collate([(1, 2.0), (3, 4.0)])[0].tolist() == [1, 3]
    part = WholeBatch([torch.zeros(1), torch.ones(1)], torch.zeros(2, 1))[:1]
    assert type(part) is list and collate(part).shape == (1, 1), "a slice is not the batch"
