"""Defaults: seeds, drawn like those of a DataLoader and stored in states, and the last batches of ranks."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shards import Shards
from torch.utils.data import ConcatDataset, DataLoader

from presize.datasets import (
    EpochSampler,
    FolderDataset,
    LMDBDataset,
    Loader,
    RandomResizedCrop,
    ShardShuffled,
    Shuffled,
    Weighted,
    class_balanced,
    make_loader,
)
from presize.errors import OptionError


@pytest.fixture(scope="module")
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset, crop=RandomResizedCrop(16), flip=0.5, decode="tensor")


def epoch(loader: Any) -> bytes:
    return b"".join(images.numpy().tobytes() for images, _ in loader)


def in_order(order: Callable[[LMDBDataset], Any]) -> Callable[[LMDBDataset], Loader]:
    return lambda data: Loader(data, 8, shuffle=order(data), num_workers=0)


WAYS: dict[str, Callable[[LMDBDataset], Any]] = {
    "DataLoader": lambda data: DataLoader(data, 8, shuffle=True),
    "Loader of a subset": lambda data: Loader(data.subset(range(50)), 8, shuffle=True, num_workers=0),
    "Loader that does not shuffle": lambda data: Loader(data, 8, num_workers=0),
    "make_loader": lambda data: make_loader(data, 8, shuffle=True, num_workers=0),
    "EpochSampler": lambda data: DataLoader(data, 8, sampler=EpochSampler(Shuffled(len(data)))),
    "Loader": in_order(lambda _: True),
    "Shuffled": in_order(lambda data: Shuffled(len(data))),
    "ShardShuffled": in_order(lambda data: ShardShuffled(data.data, window=2)),
    "Weighted": in_order(lambda data: Weighted(np.ones(len(data)))),
    "class_balanced": in_order(lambda data: class_balanced(data.targets)),
}
"""presize's loaders created without a seed, and a DataLoader."""


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_loaders_created_for_each_epoch_read_different_ones_and_the_same_after_manual_seed(
    make: Callable[[LMDBDataset], Any], data: LMDBDataset
) -> None:
    torch.manual_seed(1)
    first = [epoch(make(data)) for _ in range(3)]
    assert len(set(first)) == 3
    torch.manual_seed(1)
    assert [epoch(make(data)) for _ in range(3)] == first
    torch.manual_seed(2)
    assert epoch(make(data)) not in first


def test_both_loaders_draw_the_same_seed(data: LMDBDataset) -> None:
    seeds = set()
    for make, workers in product((Loader, make_loader), (0, 1)):
        torch.manual_seed(1)
        loader: Any = make(data, 8, shuffle=True, num_workers=workers)
        epoch(loader)
        seeds.add(loader.state_dict()["seed"])
    assert len(seeds) == 1


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_seed_is_drawn_when_the_first_epoch_starts(make: Callable[[LMDBDataset], Any], data: LMDBDataset) -> None:
    loader = make(data)
    torch.manual_seed(1)
    first = [epoch(loader), epoch(loader)]
    assert first[0] != first[1]
    torch.manual_seed(1)
    again = make(data)
    assert [epoch(again), epoch(again)] == first


def test_only_one_number_is_drawn_from_torchs_generator(data: LMDBDataset) -> None:
    torch.manual_seed(1)
    torch.randint(2**62, ())
    after = torch.get_rng_state()
    torch.manual_seed(1)
    loader = Loader(data, 8, shuffle=True, num_workers=0)
    len(loader), repr(loader), copy.copy(loader.sampler)
    epoch(loader), epoch(loader), loader.state_dict()
    assert torch.equal(torch.get_rng_state(), after)
    given = Loader(data, 8, shuffle=True, seed=0, num_workers=0)
    epoch(given)
    assert torch.equal(torch.get_rng_state(), after), "none for a given seed"
    assert given.sampler.order == Shuffled(len(data), 0) and given.state_dict()["seed"] == 0


@pytest.mark.parametrize("make", [Loader, make_loader])
def test_a_run_is_resumed_without_knowing_its_seed(make: Any, data: LMDBDataset) -> None:
    def batches(loader: Any) -> Iterator[bytes]:
        return (images.numpy().tobytes() for images, _ in loader)

    first = make(data, 8, shuffle=True, num_workers=0)
    running = batches(first)
    next(running)
    state = json.loads(json.dumps(first.state_dict()))
    expected = [*running, *batches(first)]
    torch.manual_seed(5)
    resumed = make(data, 8, shuffle=True, num_workers=0)
    next(batches(resumed))  # draws another seed
    resumed = make(data, 8, shuffle=True, num_workers=0) if make is Loader else resumed
    resumed.load_state_dict(state)
    assert [*batches(resumed), *batches(resumed)] == expected
    with pytest.raises(OptionError, match=r"state: seed is 7, and was [0-9]+ when this was saved; give seed="):
        make(data, 8, shuffle=True, seed=7, num_workers=0).load_state_dict(state)


def with_its_state(sampler: EpochSampler) -> EpochSampler:
    other = EpochSampler(Shuffled(100))
    other.load_state_dict(sampler.state_dict())
    return other


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler)), with_its_state]
)
def test_a_copy_of_a_sampler_has_the_drawn_seed(copied: Callable[[Any], Any]) -> None:
    sampler = EpochSampler(Shuffled(100))
    sampler.state_dict()
    again = copied(sampler)
    assert list(again) == list(sampler)


def test_two_loaders_of_one_order_draw_separate_seeds(data: LMDBDataset) -> None:
    order = Shuffled(len(data))
    assert epoch(Loader(data, 8, shuffle=order, num_workers=0)) != epoch(Loader(data, 8, shuffle=order, num_workers=0))
    assert order.seed is None


def between_ranks(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Pretend that torch.distributed has two ranks and this process is `rank`."""
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", rank)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)


@pytest.mark.parametrize("share", [{}, {"rank": 0, "ranks": 1}])
def test_ranks_agree_on_an_order_without_a_seed(share: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = set()
    for rank in range(2):
        torch.manual_seed(rank)
        sampler = EpochSampler(Shuffled(100), **share)
        list(sampler)  # before the process group: each rank draws a seed
        between_ranks(monkeypatch, rank)
        list(sampler)
        seeds.add(sampler.order.seed)
        monkeypatch.undo()
    assert seeds == {0}, "as in DistributedSampler; Accelerate shares the samples of a sampler of one rank"


def test_an_incomplete_batch_is_kept_by_one_process_and_filled_up_by_several(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = EpochSampler(Shuffled(993), batch_size=16)
    assert (len(sampler), sampler.schedule.last) == (993, "keep")
    between_ranks(monkeypatch, 1)
    assert (len(sampler), sampler.schedule.batch_count(0), sampler.schedule.last) == (512, 32, "pad")
    assert len(list(sampler)) == len(sampler) == 512
    assert len(EpochSampler(Shuffled(993), batch_size=16, last="keep")) == 496, "given options stay"
    assert len(EpochSampler(Shuffled(993), batch_size=16, rank=0, ranks=1)) == 993


def test_a_state_of_other_samples_is_refused(data: LMDBDataset, raw: Path) -> None:
    state = Loader(data.subset(range(40)), 8, shuffle=True, num_workers=0).state_dict()
    with pytest.raises(OptionError, match=r"^state: the samples of the dataset, .*; begin .* with set_epoch\(0\)$"):
        Loader(data.subset(range(16, 56)), 8, shuffle=True, num_workers=0).load_state_dict(state)
    same = [
        data.subset(range(40)),
        data.subset(range(50)).subset(range(40)),
        ConcatDataset([data.subset(range(10)), data.subset(range(10, 40))]),
    ]
    for other in same:
        make_loader(other, 8, shuffle=True, num_workers=0).load_state_dict(state)
    first, others = (torch.utils.data.Subset(FolderDataset(raw), numbers) for numbers in (range(40), range(10, 50)))
    state = make_loader(first, 8, num_workers=0).state_dict()
    make_loader(first, 8, num_workers=0).load_state_dict(state)
    with pytest.raises(OptionError, match="state: the samples of the dataset, or their order, have changed"):
        make_loader(others, 8, num_workers=0).load_state_dict(state)
    Loader(same[0], 8, shuffle=True, num_workers=0).load_state_dict(EpochSampler(Shuffled(40)).state_dict())


@pytest.mark.parametrize("load", [Loader, make_loader])
def test_the_states_of_a_part_are_of_its_present_samples(load: Any, data: LMDBDataset) -> None:
    old, new = (torch.utils.data.Subset(data, numbers) for numbers in (range(8), range(8, 16)))
    part = torch.utils.data.Subset(data, range(8))
    loader = load(part, 2, num_workers=0)
    list(loader)
    part.indices = range(8, 16)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    load(new, 2, num_workers=0).load_state_dict(state)
    part.indices = range(8)
    for other in (loader, load(old, 2, num_workers=0)):
        with pytest.raises(OptionError, match="state: the samples of the dataset, or their order, have changed"):
            other.load_state_dict(state)


def test_a_shard_shuffle_refuses_a_state_of_samples_in_other_shards() -> None:
    first, second, other = (
        ShardShuffled(Shards(np.repeat(np.array(numbers, np.int32), 10)), window=1)
        for numbers in ([0, 1, 2, 3], [0, 1, 2, 3], [3, 0, 1, 2])
    )
    state = EpochSampler(first).state_dict()
    EpochSampler(second).load_state_dict(state)
    with pytest.raises(OptionError, match=r"state: samples of the dataset have moved to other shards .* set_epoch"):
        EpochSampler(other).load_state_dict(state)
