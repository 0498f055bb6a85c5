"""Read a loader as usual, and learn from its workers when each batch was made, by whom and, if profiled, where the time
went.

A DataLoader is copied, and the copy's workers time their own fetches; the loader, its dataset and its collate function
are not changed. A Loader reports by itself. Of any other iterable only its batches can be observed.
"""

from __future__ import annotations

import copy
import cProfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch.utils.data
from torch.utils.data._utils import fetch as torch_fetch

from presize.datasets.loader import Loader
from presize.datasets.reading.workers import Work
from presize.measure.profile import Spent, split


class Fetch(NamedTuple):
    """How a batch was made: by which worker, when, and where the time went (None unless profiled)."""

    worker: int
    work: Work
    spent: Spent | None = None


def workers_of(loader: Iterable[Any]) -> int | None:
    """How many processes or threads make the batches of `loader`; None where that is not known."""
    if isinstance(loader, Loader):
        return loader.num_workers
    return loader.num_workers if isinstance(loader, torch.utils.data.DataLoader) else None


def prefetch_of(loader: Iterable[Any]) -> int:
    """Batches that each worker may be ahead."""
    if isinstance(loader, Loader):
        return loader.prefetch_factor
    return getattr(loader, "prefetch_factor", None) or 2


def timed(
    loader: Iterable[Any], fetches: list[Fetch], *, workers: int | None = None, profile: bool = False
) -> Iterator[Any]:
    """The batches of an epoch of `loader`. Its workers end when the iterator is closed.

    Args:
        loader: any iterable.
        fetches: gets what its workers report about each batch, before that is given. Stays empty without workers, and
            where they cannot be observed.
        workers: how many to use in place of its own, from 0.
        profile: whether workers profile themselves, which makes them slower.
    """
    if isinstance(loader, Loader):
        return _timed_loader(loader, fetches, loader.num_workers if workers is None else workers)
    if isinstance(loader, torch.utils.data.DataLoader):
        count = loader.num_workers if workers is None else workers
        return _timed_dataloader(_with_workers(loader, count, profile), fetches)
    return iter(loader)


def _timed_loader(loader: Loader, fetches: list[Fetch], workers: int) -> Iterator[Any]:
    with loader.observed(workers, lambda answer: fetches.append(Fetch(answer.worker, answer.work))) as copied:
        yield from copied


def _timed_dataloader(loader: torch.utils.data.DataLoader[Any], fetches: list[Fetch]) -> Iterator[Any]:
    for batch in loader:
        if loader.num_workers:
            batch, (worker, work, spent) = batch  # in lists, not tuples, where it was pinned
            fetches.append(Fetch(worker, Work(*work), None if spent is None else Spent(*spent)))
        yield batch
        del batch


def _with_workers(
    loader: torch.utils.data.DataLoader[Any], workers: int, profile: bool
) -> torch.utils.data.DataLoader[Any]:
    """A copy that shares dataset, sampler and collate function."""
    copied = copy.copy(loader)
    changed: dict[str, Any] = {"num_workers": workers, "persistent_workers": False, "_iterator": None}
    if workers == 0:
        changed |= {"prefetch_factor": None, "timeout": 0, "worker_init_fn": None}
        changed |= {"_DataLoader__multiprocessing_context": None}
    else:
        changed |= {"prefetch_factor": loader.prefetch_factor or 2}
        changed |= {"worker_init_fn": _TimeFetches(loader.worker_init_fn, profile)}
    vars(copied).update(changed)  # a DataLoader refuses to have most of these set later
    return copied


class _TimeFetches:
    """A worker_init_fn: from then on the worker gives (batch, what a Fetch holds)."""

    def __init__(self, init: Callable[[int], None] | None, profile: bool) -> None:
        self.init = init
        self.profile = profile

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        mine: Any = torch.utils.data.get_worker_info()
        for kind in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):
            setattr(kind, "fetch", _timed_fetch(kind.fetch, mine.dataset, worker, self.profile))  # noqa: B010


def _timed_fetch(fetch: Callable[..., Any], dataset: Any, worker: int, profile: bool) -> Callable[..., Any]:
    def timed_fetch(self: Any, index: Any) -> Any:
        if self.dataset is not dataset:  # of a DataLoader inside the dataset
            return fetch(self, index)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        spent = None
        if profile:
            profiler = cProfile.Profile()
            batch = profiler.runcall(fetch, self, index)
            spent = tuple(split(profiler))
        else:
            batch = fetch(self, index)
        return batch, (worker, (begin_s, time.perf_counter(), time.process_time() - cpu_s), spent)

    return timed_fetch
