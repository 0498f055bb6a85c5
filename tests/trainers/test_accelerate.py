"""Accelerate's prepare with Loader and make_loader, in one process and in two."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from presize import export_dataset
from presize.datasets import CenterCrop, FolderDataset, LMDBDataset, Loader, Shuffled, make_loader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accelerate: Any = pytest.importorskip("accelerate", reason="accelerate is not installed (extra: trainers)")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]


@pytest.mark.parametrize("make", [Loader, make_loader])
def test_prepare_keeps_the_batches_of_one_process(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor")
    prepared = accelerate.Accelerator(cpu=True).prepare(make(data, 8, shuffle=True, seed=1, num_workers=2))
    expected = Loader(data, 8, shuffle=True, seed=1, num_workers=0)
    for _ in range(2):
        assert [targets.tolist() for _, targets in prepared] == [targets.tolist() for _, targets in expected]


def small(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((24, 24))))


def test_a_plain_dataloader_is_prepared_like_one_of_the_exported_files(dataset: Path, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "files")
    epochs = []
    for data in (FolderDataset(tmp_path / "files", small), LMDBDataset(dataset, small)):
        torch.manual_seed(0)
        prepared = accelerate.Accelerator(cpu=True).prepare(
            torch.utils.data.DataLoader(data, 8, shuffle=True, num_workers=2)
        )
        epochs.append([(images, labels.tolist()) for _ in range(2) for images, labels in prepared])
    assert len(epochs[0]) == 2 * 7
    for (images, labels), (expected, same) in zip(*epochs, strict=True):
        assert torch.equal(images, expected) and labels == same


def test_two_processes_share_every_epoch(ranks: Callable[[str], list[Any]]) -> None:
    found = ranks("accelerate")
    for epoch in range(2):
        samples = Shuffled(56, seed=1).samples(epoch, np.arange(56)).tolist()
        together = [found[turn % 2]["Loader"][epoch][turn // 2] for turn in range(56)]
        assert together == samples
        for kind in ("make_loader", "before"):
            assert sorted(found[0][kind][epoch] + found[1][kind][epoch]) == [*range(56)], kind
    assert all("rank: Accelerate divides batches among ranks itself" in rank["refused"] for rank in found)


def test_metrics_of_two_processes_have_every_sample_once_and_the_last_step_is_taken(
    ranks: Callable[[str], list[Any]],
) -> None:
    found, other = ranks("metrics")
    assert found == other
    assert found["DataLoader"]["steps"] == 3  # 7 batches, three at a time
    for name in ("DataLoader", "Loader None", "Loader pad", "make_loader None", "make_loader pad"):
        assert sorted(found[name]["gathered"]) == [*range(51)], name
        assert found[name]["steps"] == 3, name
    for name in ("Loader drop", "make_loader drop"):
        assert len(set(found[name]["gathered"])) == len(found[name]["gathered"]) == 48, name
        assert found[name]["steps"] == 2, name
    assert found["refused"].startswith('last: "keep" gives the ranks batches of different sizes')
    for name in ("even", "sampler"):
        assert sorted(found[name]["gathered"]) == [*range(50)], name


def test_the_rest_of_an_epoch_is_stepped_even_after_one_left_early(dataset: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=5)
    data = LMDBDataset(dataset, crop=CenterCrop(24))
    model = torch.nn.Linear(3, 1)

    def steps(loader: Any, batches: int | None = None) -> list[bool]:
        taken = []
        for _ in islice(accelerator.prepare(loader), batches):
            with accelerator.accumulate(model):
                taken.append(accelerator.sync_gradients)
        return taken

    loader = Loader(data, 8, num_workers=0)
    expected = [False] * 4 + [True, False, True]
    assert steps(loader) == steps(torch.utils.data.DataLoader([0] * 56, 8)) == expected
    steps(loader, 5)
    assert not accelerator.gradient_state.in_dataloader
    assert steps(loader) == expected
    assert steps(loader, 7) == expected  # by trainers that request only len(loader) batches
