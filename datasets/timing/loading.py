"""Read batches of any loader, and measure how long a worker takes, on what, and how that varies.

A DataLoader is copied, and the workers of the copy time and profile their own fetches. The loader, its dataset and its
collate function are not changed. A Loader reports its own times. Of any other iterable, only batches are observed."""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch.utils.data._utils import fetch as torch_fetch

from presize.datasets.loader import Loader
from presize.datasets.reading.transfer import map_tensors, tensors_of
from presize.datasets.reading.workers import Work
from presize.datasets.timing.epochs import LEAST, SHORTEST_S, Budget, count_images, taken
from presize.errors import DiagnosisError
from presize.measure.diagnosis import Loading
from presize.measure.profile import Profile, Spent, split
from presize.measure.simulation import Times

_PROFILED = 8


class Fetch(NamedTuple):
    """Record of how a batch was made. `spent`: profile of the worker so far without its first batch, or None."""

    worker: int
    work: Work
    spent: Spent | None = None


def workers_of(loader: Iterable[Any]) -> int | None:
    """Return the number of processes or threads that make the batches of `loader`; None if not known."""
    return loader.num_workers if isinstance(loader, (Loader, torch.utils.data.DataLoader)) else None


def prefetch_of(loader: Iterable[Any]) -> int:
    """Return the number of batches that each worker prefetches."""
    return getattr(loader, "prefetch_factor", None) or 2


def timed(
    loader: Iterable[Any], fetches: list[Fetch], *, workers: int | None = None, profile: bool = False
) -> Iterator[Any]:
    """Yield the batches of an epoch of `loader`. `workers`: how many make them, None for its own number; they end when
    the iterator is closed. The record of each batch is appended to `fetches` before the batch is given. `profile`:
    profile the workers of a DataLoader."""
    if isinstance(loader, Loader):
        count = loader.num_workers if workers is None else workers
        with loader.observed(count, lambda answer: fetches.append(Fetch(answer.worker, answer.work))) as observed:
            yield from observed
        return
    copied: Any = loader
    if isinstance(loader, torch.utils.data.DataLoader):
        copied = changed(loader, persistent_workers=False, **{} if workers is None else {"num_workers": workers})
        if copied.num_workers:
            vars(copied).update(worker_init_fn=partial(_time_fetches, loader.worker_init_fn, profile))
    for batch in copied:
        if copied is not loader and copied.num_workers:
            batch, (worker, work, spent) = batch  # pinning turns tuples into lists
            fetches.append(Fetch(worker, Work(*work), None if spent is None else Spent(*spent)))
        yield batch
        del batch


def _time_fetches(init: Callable[[int], None] | None, profile: bool, worker: int) -> None:
    """Make a worker return (batch, fields of a Fetch) instead of batches. A worker_init_fn."""
    if init is not None:
        init(worker)
    mine: Any = torch.utils.data.get_worker_info()
    for kind in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):
        setattr(kind, "fetch", _timed_fetch(kind.fetch, mine.dataset, worker, profile))  # noqa: B010


def _timed_fetch(fetch: Callable[..., Any], dataset: Any, worker: int, profile: bool) -> Callable[..., Any]:
    profilers = [Profile(), Profile()]  # one only for the first batch, which imports modules

    def timed_fetch(self: Any, index: Any) -> Any:
        if self.dataset is not dataset:  # belongs to a DataLoader inside the dataset
            return fetch(self, index)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        spent = None
        if profile:
            profiler = profilers.pop() if len(profilers) > 1 else profilers[0]
            batch = profiler.runcall(fetch, self, index)
            spent = tuple(split(profiler, collate=self.collate_fn))
        else:
            batch = fetch(self, index)
        return batch, (worker, (begin_s, time.perf_counter(), time.process_time() - cpu_s), spent)

    return timed_fetch


def changed(loader: Iterable[Any], **options: Any) -> Iterable[Any]:
    """Return a copy of a DataLoader or a Loader that shares everything but the workers, with the `options` of a Change.
    Other iterables are returned unchanged, except for "channels_last"."""
    copied: Any = loader
    if options.pop("channels_last", False):
        return _ChannelsLast(changed(loader, **options))
    if isinstance(loader, Loader):
        copied = loader.observed(options.pop("num_workers", loader.num_workers), lambda _: None)
    elif isinstance(loader, torch.utils.data.DataLoader):
        copied = copy.copy(loader)
        options = {"_iterator": None, **options}
        if options.get("num_workers", loader.num_workers) == 0:
            options |= {"prefetch_factor": None, "timeout": 0, "persistent_workers": False, "worker_init_fn": None}
            options |= {"_DataLoader__multiprocessing_context": None}
        else:
            options = {"prefetch_factor": prefetch_of(loader), **options}
    if options:
        vars(copied).update(options)  # a DataLoader refuses to set most of these
    iterable: Iterable[Any] = copied
    return iterable


def in_channels_last(batch: Any) -> Any:
    """Return the batch with its images in channels-last memory. None if they are not images, or already lie in it."""
    layout = torch.channels_last
    first = next(iter(tensors_of(batch)), None)
    if first is None or first.dim() != 4 or first.shape[1] not in (3, 4) or first.is_contiguous(memory_format=layout):
        return None
    return map_tensors(lambda each: each.contiguous(memory_format=layout) if each.dim() == 4 else each, batch)


class _ChannelsLast:
    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return map(in_channels_last, self.loader)


class _Window:
    """Batches read until `budget` was spent or they ended: time.perf_counter() before the first and after each, the
    number of images in each, the last batch, and the CPU time of this process and of the thread that took them."""

    def __init__(self, batches: Iterator[Any], budget: Budget, least: int, profiler: Profile | None = None) -> None:
        take: Any = next if profiler is None else partial(profiler.runcall, next)  # type: ignore[arg-type]
        self.images: list[int] = []
        self.ends_s: list[float] = []
        self.begin_s, cpu_s, thread_s = time.perf_counter(), time.process_time(), time.thread_time()
        with closing(taken(batches, budget, least, take)) as some:
            for batch in some:
                self.ends_s.append(time.perf_counter())
                self.images.append(count_images(batch))
                self.batch = batch
                del batch
            self.cpu_s, self.thread_s = time.process_time() - cpu_s, time.thread_time() - thread_s
        if not self.ends_s:
            raise DiagnosisError("loader: expected at least one batch, got none")

    def rate(self, burst: int) -> float:
        """Return batches/s over all whole bursts after the first. A burst is `burst` batches that come together."""
        ends = self.ends_s
        whole = (len(ends) - burst) // burst * burst
        if whole <= 0:
            return len(ends) / (ends[-1] - self.begin_s)
        return whole / max(ends[burst + whole - 1] - ends[burst - 1], SHORTEST_S)


def measure_loading(loader: Iterable[Any], budget: Budget) -> tuple[Loading, Any]:
    """Read up to three times, within `budget` each: with all workers, with one, and with one under a profiler. Returns
    the measurements, and a batch. Raises DiagnosisError if there is no batch, or the loader fails."""
    workers = workers_of(loader)
    burst = max(workers or 1, 1)
    fetches: list[Fetch] = []
    window = _Window(timed(loader, fetches), budget, 2 * burst + LEAST)
    between = [max(after - before, SHORTEST_S) for before, after in pairwise([window.begin_s, *window.ends_s])]
    between = between[1:] or between  # the first includes the start
    if workers is None:
        load = in_process = Times.measured(between)
        cpu_s, handover_s = window.cpu_s / len(window.ends_s), 0.0
    else:
        one, alone = fetches, window
        if workers != 1:
            one = []
            alone = _Window(timed(loader, one, workers=1), budget, 1 + LEAST)
        seconds = [fetch.work.seconds for fetch in one]
        # From each batch to the next, with the handover: the worker is never idle.
        cycles = [after.work.end_s - before.work.end_s for before, after in pairwise(one)]
        load = Times.measured(cycles or seconds)
        in_process = Times.measured(between if workers == 0 else seconds)
        cpu_s = fmean(fetch.work.cpu_s for fetch in one)
        received = window if workers else alone
        handover_s = received.thread_s / len(received.ends_s)
    spent = _spent(loader, workers, budget)
    total_s = sum(spent.parts.values()) or math.inf
    worker_s: dict[int, list[float]] = defaultdict(list)
    for fetch in fetches:
        worker_s[fetch.worker].append(fetch.work.seconds)
    first = next(iter(tensors_of(window.batch)), None)
    loading = Loading(
        images=fmean(window.images),
        load=load,
        in_process=in_process,
        handover_s=handover_s,
        cores=min(cpu_s / load.mean_s, 1.0) if load.mean_s else 0.0,
        workers=workers or 0,
        prefetch=prefetch_of(loader),
        in_order=getattr(loader, "in_order", None),
        chosen=workers is not None,
        batches_per_s=window.rate(burst),
        first_batch_s=window.ends_s[0] - window.begin_s,
        persistent=loader.persistent_workers if isinstance(loader, torch.utils.data.DataLoader) else None,
        pinned=first is not None and (first.device.type != "cpu" or first.is_pinned()),
        worker_s=tuple(fmean(worker_s[worker]) for worker in sorted(worker_s)),
        parts={part: seconds * load.mean_s / total_s for part, seconds in spent.parts.items() if total_s < math.inf},
        functions=tuple((name, part, seconds / total_s) for name, part, seconds in spent.functions),
        frames={name: seconds / total_s for name, seconds in spent.frames.items()},
    )
    return loading, window.batch


def _spent(loader: Iterable[Any], workers: int | None, budget: Budget) -> Spent:
    """Return the profile of a few batches: of one worker of a DataLoader, or else of this process."""
    few = Budget(min(_PROFILED, budget.batches), budget.seconds / 2)
    if workers and not isinstance(loader, Loader):
        fetches: list[Fetch] = []
        _Window(timed(loader, fetches, workers=1, profile=True), few, 2)
        return fetches[-1].spent or Spent({}, [], {})
    profiler = Profile()
    _Window(timed(loader, [], workers=0), few, 2, profiler)
    return split(profiler, collate=getattr(loader, "collate_fn", None))
