"""collate: a batch decoded as one array is not copied, and equals that of torch's collate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from batches import same
from presize.datasets import LMDBDataset, RandomResizedCrop, collate
from presize.errors import OptionError

CROP = RandomResizedCrop(24)


def batch_of(dataset: Path, **options: Any) -> list[Any]:
    torch.manual_seed(0)
    return LMDBDataset(dataset, crop=CROP, decode="tensor", **options).__getitems__([7, 0, 31, 7])


def test_no_collate_copies_the_pixels_of_a_batch(dataset: Path) -> None:
    for make in (collate, default_collate):
        batch = batch_of(dataset)
        images, _ = make(batch)
        assert images.shape == (4, 3, 24, 24) and images.is_contiguous(memory_format=torch.channels_last)
        for (image, _), expected in zip(batch, images, strict=True):
            assert image.data_ptr() == expected.data_ptr() and image.stride() == expected.stride()


@pytest.mark.parametrize("target", ["label", None, "path", ("label", "path", "width"), {"y": "label", "at": "path"}])
def test_our_collate_equals_torchs(target: Any, dataset: Path) -> None:
    expected = collate(batch_of(dataset, target=target))
    for batch in (batch_of(dataset, target=target), list(batch_of(dataset, target=target))):
        assert same(default_collate(batch), expected)


def test_a_target_transform_leaves_the_images_unchanged(dataset: Path) -> None:
    batch = batch_of(dataset, target_transform=lambda label: {"label": label})
    images, targets = collate(batch)
    assert images.data_ptr() == batch[0][0].data_ptr()
    assert targets["label"].dtype == torch.int64


def test_other_batches_are_collated_by_torch() -> None:
    assert collate([(1, 2.0), (3, 4.0)])[0].tolist() == [1, 3]
    assert collate([torch.zeros(1), torch.ones(1)][:1]).shape == (1, 1)


@pytest.mark.parametrize("samples", [[], (), None, 5])
def test_a_batch_without_samples_is_refused(samples: Any) -> None:
    with pytest.raises(OptionError, match=r"^samples: expected a list of at least one sample, got "):
        collate(samples)
