"""Instrumented loaders: they report how batches are made, and yield the same batches."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader
from presize.datasets.timing.loading import Fetch, prefetch_of, timed, workers_of
from presize.system.resources import usable_cores


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index * index


class Slow(Squares):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return super().__getitem__(index)


class Nested(Squares):
    """Dataset with its own DataLoader in the worker."""

    def __getitem__(self, index: int) -> int:
        return sum(int(batch.sum()) for batch in DataLoader(Squares(), 4)) + index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, 12, step)


def init(worker: int) -> None:
    os.environ["PRESIZE_TEST_WORKER"] = str(worker)


class KnowsItsInit(Squares):
    def __getitem__(self, index: int) -> int:
        return int(os.environ["PRESIZE_TEST_WORKER"])


def values(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("dataset", [Slow(), Nested(), Stream()], ids=["map", "nested", "stream"])
@pytest.mark.parametrize(("workers", "profile"), [(0, False), (2, False), (2, True)])
def test_a_timed_loader_yields_the_same_batches_and_its_workers_report_when_and_how_they_made_them(
    dataset: Any, workers: int, profile: bool
) -> None:
    loader = DataLoader(dataset, 2, num_workers=workers)
    fetches: list[Fetch] = []
    begin_s = time.perf_counter()
    assert values(timed(loader, fetches, profile=profile)) == values(loader)
    assert [fetch.worker for fetch in fetches] == ([0, 1, 0, 1, 0, 1] if workers else [])
    for fetch in fetches:
        assert begin_s < fetch.work.begin_s < fetch.work.end_s < time.perf_counter()
        assert (fetch.spent is not None) == profile
        if isinstance(dataset, Slow):
            assert fetch.work.end_s - fetch.work.begin_s >= 0.02
        if isinstance(dataset, Slow) and fetch.spent is not None:
            assert sum(fetch.spent.parts.values()) >= 0.02
            assert any("sleep" in name for name, _, _ in fetch.spent.functions)


def test_the_number_of_workers_can_be_changed() -> None:
    loader = DataLoader(Squares(), 3, num_workers=2, persistent_workers=True, timeout=60, prefetch_factor=3)
    for workers in (0, 1, 2):
        fetches: list[Fetch] = []
        assert values(timed(loader, fetches, workers=workers)) == [[0, 1, 4], [9, 16, 25], [36, 49, 64], [81, 100, 121]]
        assert {fetch.worker for fetch in fetches} == set(range(workers))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    fetches = []
    assert len(values(timed(DataLoader(Squares(), 4), fetches, workers=1))) == len(fetches) == 3


def test_the_users_worker_init_fn_is_called_and_a_dictionary_batch_stays_one() -> None:
    loader = DataLoader(KnowsItsInit(), 6, num_workers=2, worker_init_fn=init)
    assert values(timed(loader, [])) == [[0] * 6, [1] * 6]
    loader = DataLoader([{"x": i} for i in range(4)], 2, num_workers=1)  # type: ignore[arg-type]
    assert [batch["x"].tolist() for batch in timed(loader, [])] == [[0, 1], [2, 3]]


@pytest.mark.slow
def test_spawned_workers_report_their_times() -> None:
    fetches: list[Fetch] = []
    numbers: Any = range(12)  # a new process can import it
    loader = DataLoader(numbers, 6, num_workers=1, multiprocessing_context="spawn")
    assert len(values(timed(loader, fetches))) == 2
    assert len(fetches) == 2


@pytest.fixture
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset, crop=RandomResizedCrop(16), flip=0.5, decode="tensor")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_presize_reports_its_times_and_yields_the_same(data: LMDBDataset, workers: int) -> None:
    plain = [images.clone() for images, _ in Loader(data, 8, seed=0, num_workers=workers)]
    fetches: list[Fetch] = []
    found = [images.clone() for images, _ in timed(Loader(data, 8, seed=0, num_workers=workers), fetches)]
    assert all(torch.equal(one, other) for one, other in zip(plain, found, strict=True))
    assert len(fetches) == len(plain)
    assert {fetch.worker for fetch in fetches} <= set(range(max(workers, 1)))
    assert all(0 < fetch.work.cpu_s <= fetch.work.end_s - fetch.work.begin_s + 0.02 for fetch in fetches)


def test_the_facts_of_a_loader_are_known(data: LMDBDataset) -> None:
    loaders = [DataLoader(Squares(), num_workers=1, prefetch_factor=5), DataLoader(Squares()), Loader(data, 8), [1]]
    assert [prefetch_of(loader) for loader in loaders] == [5, 2, 2, 2]
    assert [workers_of(loader) for loader in loaders] == [1, 0, usable_cores(), None]
    fetches: list[Fetch] = []
    assert len(list(timed(make_loader(data, 8, num_workers=1), fetches))) == len(fetches) == 7


def test_any_other_iterable_is_read_unchanged() -> None:
    fetches: list[Fetch] = []
    assert (list(timed([1, 2, 3], fetches)), fetches) == ([1, 2, 3], [])
