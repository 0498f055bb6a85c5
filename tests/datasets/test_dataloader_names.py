"""DataLoader's names of options, given to Loader and make_loader."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, collate, make_loader
from presize.errors import OptionError


@pytest.fixture(scope="module")
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset, crop=RandomResizedCrop(24), decode="tensor")


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
def test_names_that_mean_the_same_are_accepted(data: LMDBDataset) -> None:
    options: dict[str, Any] = {"num_workers": 3, "prefetch_factor": 4, "drop_last": True}
    loader = Loader(data, 16, **options)
    assert (loader.workers, loader.prefetch, loader.drop_last, len(loader)) == (3, 4, True, 3)
    made = make_loader(data, 16, **options)
    assert (made.num_workers, made.prefetch_factor, len(made)) == (3, 4, 3)
    for make in (Loader, make_loader):
        assert len(make(data, 16, num_workers=0, prefetch_factor=None, drop_last=False)) == 4


def test_options_that_a_loader_meets_anyway_are_accepted(data: LMDBDataset) -> None:
    loader = Loader(
        data,
        16,
        num_workers=1,
        pin_memory=not torch.cuda.is_available(),
        persistent_workers=True,
        collate_fn=collate,
        sampler=None,
        batch_sampler=None,
        worker_init_fn=None,
        generator=None,
        timeout=0,
        in_order=True,
        pin_memory_device="",
        multiprocessing_context="spawn",
    )
    assert loader.context == "spawn"
    assert Loader(data, 16, multiprocessing_context=multiprocessing.get_context("fork")).context == "fork"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sampler": SequentialSampler(range(4))},
            "sampler: a Loader takes no sampler; give order=, such as",
        ),
        ({"batch_sampler": [[0, 1]]}, "batch_sampler: a Loader takes no batch_sampler; give order="),
        ({"collate_fn": list}, "collate_fn: a Loader calls none, .*; use make_loader"),
        ({"worker_init_fn": print}, "worker_init_fn: a Loader calls none"),
        ({"generator": torch.Generator()}, "generator: a Loader draws from seed="),
        ({"multiprocessing_context": "thread"}, "context: expected one of fork, spawn, forkserver, got 'thread'"),
        ({"context": 3}, "context: expected one of fork, spawn, forkserver, got 3"),
        ({"timeout": 30}, "timeout: a Loader needs none"),
        ({"in_order": False}, "in_order: a Loader gives batches in order"),
        ({"persistent_workers": False}, r"persistent_workers: a Loader's workers stay until close\(\)"),
        ({"pin_memory_device": "cuda"}, "pin_memory_device: a Loader pins its own memory .*; give device="),
    ],
)
def test_what_a_loader_does_otherwise_is_answered_in_a_line(
    options: dict[str, Any], said: str, data: LMDBDataset
) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        Loader(data, 16, **options)
    assert "\n" not in str(raised.value)


def test_memory_is_pinned_for_a_device_alone(data: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Loader(data, 16, pin_memory=False)
    with pytest.raises(OptionError, match=r'pin_memory: a Loader pins its own memory .*; give device="cuda"'):
        Loader(data, 16, pin_memory=True)


@pytest.mark.parametrize("make", [Loader, make_loader])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_workers": 2, "workers": 1}, "num_workers: it is called workers here; give one of the two"),
        ({"prefetch_factor": 3, "prefetch": 4}, "prefetch_factor: it is called prefetch here; give one of the two"),
        ({"drop_last": True, "last": "pad"}, 'drop_last: expected it without last="pad"'),
        ({"drop_last": True, "last": "keep"}, 'drop_last: expected it without last="keep", which keeps the last batch'),
        ({"drop_last": "yes"}, "drop_last: expected True or False, got 'yes'"),
        ({"num_workers": -1}, "workers: expected a whole number from 0 to 4096, got -1"),
        ({"prefetch_factor": 0}, "prefetch: expected a whole number from 1 to 64, got 0"),
    ],
)
def test_both_names_of_an_option_or_a_wrong_value_are_refused(
    make: Any, options: dict[str, Any], said: str, data: LMDBDataset
) -> None:
    with pytest.raises(OptionError, match=said):
        make(data, 16, **options)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_make_loader_takes_an_order_and_no_sampler(name: str, data: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=rf"{name}: make_loader takes order=; for a {name} use DataLoader\("):
        make_loader(data, 16, **{name: [0, 1]})
    assert len(make_loader(data, 16, workers=0, **{name: None})) == 4


@pytest.mark.parametrize("make", [Loader, make_loader])
def test_a_name_that_dataloader_has_not_either_is_a_type_error(make: Any, data: LMDBDataset) -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'wokers'"):
        make(data, 16, workers=0, wokers=2)
