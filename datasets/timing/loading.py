"""Read batches of any loader, and measure how it makes them: how long a worker takes, on what, and how that varies.

A DataLoader is copied, and the copy's workers time, and profile, their own fetches; the loader, its dataset and its
collate function are not changed. A Loader reports by itself. Of any other iterable only its batches can be observed."""

from __future__ import annotations

import copy
import cProfile
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
from presize.datasets.timing.epochs import count_images
from presize.datasets.timing.loops import LEAST, Budget, TimedIterator, closed
from presize.errors import DiagnosisError
from presize.measure.diagnosis import Loading
from presize.measure.profile import Part, Spent, split
from presize.measure.simulation import Times


class Fetch(NamedTuple):
    """How a batch was made: by which worker, when, and where the time went (None unless profiled)."""

    worker: int
    work: Work
    spent: Spent | None = None


def workers_of(loader: Iterable[Any]) -> int | None:
    """Return how many processes or threads make the batches of `loader`; None where that is not known."""
    if isinstance(loader, Loader):
        return loader.num_workers
    return loader.num_workers if isinstance(loader, torch.utils.data.DataLoader) else None


def prefetch_of(loader: Iterable[Any]) -> int:
    """Return how many batches each worker may be ahead."""
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
        copied: Any = changed(loader, persistent_workers=False, **{} if workers is None else {"num_workers": workers})
        if copied.num_workers:
            vars(copied).update(worker_init_fn=_TimeFetches(loader.worker_init_fn, profile))
        return _timed_dataloader(copied, fetches)
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


def changed(loader: Iterable[Any], **options: Any) -> Iterable[Any]:
    """A loader like `loader`, with which it shares dataset, sampler and collate function, but not its workers.

    Args:
        loader: a DataLoader or a Loader. Any other iterable is returned as it is.
        options: what is different: "num_workers", "prefetch_factor", and of a DataLoader "in_order", "pin_memory" and
            "persistent_workers" too; "channels_last" to have its images in that memory format.
    """
    if options.pop("channels_last", False):
        return _ChannelsLast(changed(loader, **options))
    copied: Any = loader
    if isinstance(loader, Loader):
        copied = loader.observed(options.pop("num_workers", loader.num_workers), lambda _: None)
    elif isinstance(loader, torch.utils.data.DataLoader):
        copied = copy.copy(loader)
        options = {"_iterator": None, **options}
        if options.get("num_workers", loader.num_workers) == 0:
            options |= {"prefetch_factor": None, "timeout": 0, "persistent_workers": False, "worker_init_fn": None}
            options |= {"_DataLoader__multiprocessing_context": None}
        else:
            options = {"prefetch_factor": loader.prefetch_factor or 2, **options}
    if options:
        vars(copied).update(options)  # a DataLoader refuses to have most of these set later
    iterable: Iterable[Any] = copied
    return iterable


def in_channels_last(batch: Any) -> Any:
    """The same batch with its images in channels-last memory; None where they are no images, or lie in it already."""
    tensors = list(tensors_of(batch))
    if not tensors or tensors[0].dim() != 4 or tensors[0].shape[1] not in (3, 4):
        return None
    if tensors[0].is_contiguous(memory_format=torch.channels_last):
        return None

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return map_tensors(change, batch)


class _ChannelsLast:
    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield in_channels_last(batch)
            del batch


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
            spent = tuple(split(profiler, collate=self.collate_fn))
        else:
            batch = fetch(self, index)
        return batch, (worker, (begin_s, time.perf_counter(), time.process_time() - cpu_s), spent)

    return timed_fetch


_PROFILED = 8
_FUNCTIONS_SHOWN = 8


@dataclass
class Window:
    """Batches that were read: time.perf_counter() before the first and after each, the images in each, the last one,
    and the CPU time of this process and of the thread that took them."""

    begin_s: float
    ends_s: list[float] = field(default_factory=list)
    images: list[int] = field(default_factory=list)
    batch: Any = None
    cpu_s: float = 0.0
    thread_s: float = 0.0


def read(batches: Iterator[Any], budget: Budget, least: int, profiler: cProfile.Profile | None = None) -> Window:
    """Take batches until `budget` is spent, or to their end, and then end the workers that `timed` started.

    Raises:
        DiagnosisError: there is no batch, or the loader fails; its error is the cause.
    """
    window, cpu_s, thread_s = Window(time.perf_counter()), time.process_time(), time.thread_time()
    take: Any = next if profiler is None else partial(profiler.runcall, next)  # type: ignore[arg-type]
    with closed(batches):
        for batch in TimedIterator(batches, budget, least, take):
            window.ends_s.append(time.perf_counter())
            window.images.append(images_of(batch))
            window.batch = batch
            del batch
        window.cpu_s, window.thread_s = time.process_time() - cpu_s, time.thread_time() - thread_s
    if not window.ends_s:
        raise DiagnosisError("loader: expected at least one batch, got none")
    return window


def images_of(batch: Any) -> int:
    """How many images there are in a batch. Raises DiagnosisError where nothing has a length."""
    try:
        return count_images(batch)
    except (TypeError, IndexError):
        raise DiagnosisError(
            "loader: expected batches that have a length, or whose first part has one, got "
            f"{type(batch).__name__}; give batches as (images, ...)"
        ) from None


@dataclass(frozen=True)
class Measured:
    """A loader, measured alone, and one of its batches."""

    loading: Loading
    batch: Any


def measure_loading(loader: Iterable[Any], budget: Budget) -> Measured:
    """Read up to three times, within `budget` each: with all workers, with one, and with one that is profiled."""
    workers = workers_of(loader)
    burst = max(workers or 1, 1)
    fetches: list[Fetch] = []
    window = read(timed(loader, fetches), budget, 2 * burst + LEAST)
    between = [max(after - before, 1e-9) for before, after in pairwise([window.begin_s, *window.ends_s])]
    between = between[1:] or between  # the start is in the first
    if workers is None:
        load = in_process = Times.measured(between)
        cpu_s, handover_s = window.cpu_s / len(window.ends_s), 0.0
    else:
        one, alone = fetches, window
        if workers != 1:
            one = []
            alone = read(timed(loader, one, workers=1), budget, 1 + LEAST)
        load = Times.measured(_cycles(one))
        in_process = Times.measured(between if workers == 0 else [fetch.work.seconds for fetch in one])
        cpu_s = fmean(fetch.work.cpu_s for fetch in one)
        received = window if workers else alone
        handover_s = received.thread_s / len(received.ends_s)
    spent = _spent(loader, workers, budget)
    total_s = sum(spent.parts.values()) or math.inf
    tensors = list(tensors_of(window.batch))
    loading = Loading(
        images=sum(window.images) / len(window.images),
        load=load,
        in_process=in_process,
        handover_s=handover_s,
        cores=min(cpu_s / load.mean_s, 1.0) if load.mean_s else 0.0,
        workers=workers or 0,
        prefetch=prefetch_of(loader),
        in_order=getattr(loader, "in_order", None),
        chosen=workers is not None,
        batches_per_s=_rate(window, burst),
        first_batch_s=window.ends_s[0] - window.begin_s,
        persistent=loader.persistent_workers if isinstance(loader, torch.utils.data.DataLoader) else None,
        pinned=bool(tensors) and (tensors[0].device.type != "cpu" or tensors[0].is_pinned()),
        worker_s=_worker_means(fetches),
        parts={part: seconds * load.mean_s / total_s for part, seconds in spent.parts.items() if total_s < math.inf},
        functions=tuple((name, part, seconds / total_s) for name, part, seconds in spent.functions),
        frames={name: seconds / total_s for name, seconds in spent.frames.items()},
    )
    return Measured(loading, window.batch)


def _rate(window: Window, burst: int) -> float:
    """Batches/s after the first `burst`, which come together, over as many whole bursts as there are."""
    ends = window.ends_s
    whole = (len(ends) - burst) // burst * burst
    if whole <= 0:
        return len(ends) / (ends[-1] - window.begin_s)
    return whole / max(ends[burst + whole - 1] - ends[burst - 1], 1e-9)


def _cycles(fetches: Sequence[Fetch]) -> list[float]:
    """Seconds from each batch of a worker to its next one, handing over included, for workers that are never idle."""
    ends: dict[int, list[float]] = defaultdict(list)
    for fetch in fetches:
        ends[fetch.worker].append(fetch.work.end_s)
    cycles = [after - before for moments in ends.values() for before, after in pairwise(moments)]
    return cycles or [fetch.work.seconds for fetch in fetches]


def _worker_means(fetches: Sequence[Fetch]) -> tuple[float, ...]:
    """Mean seconds of each worker for a batch."""
    workers = sorted({fetch.worker for fetch in fetches})
    return tuple(fmean(fetch.work.seconds for fetch in fetches if fetch.worker == worker) for worker in workers)


def _spent(loader: Iterable[Any], workers: int | None, budget: Budget) -> Spent:
    """Where the time goes for a few batches: in one worker of a DataLoader, or else in this process."""
    few = Budget(min(_PROFILED, budget.batches), budget.seconds / 2)
    if workers and not isinstance(loader, Loader):
        fetches: list[Fetch] = []
        read(timed(loader, fetches, workers=1, profile=True), few, 2)
        return _sum([fetch.spent for fetch in fetches[1:] or fetches if fetch.spent is not None])
    profiler = cProfile.Profile()
    read(timed(loader, [], workers=0), few, 2, profiler)
    return split(profiler, _FUNCTIONS_SHOWN, collate=getattr(loader, "collate_fn", None))


def _sum(several: Sequence[Spent]) -> Spent:
    parts: Counter[Part] = Counter()
    functions: Counter[tuple[str, Part]] = Counter()
    frames: Counter[str] = Counter()
    for spent in several:
        parts.update(spent.parts)
        functions.update({(name, part): seconds for name, part, seconds in spent.functions})
        frames.update(spent.frames)
    longest = functions.most_common(_FUNCTIONS_SHOWN)
    return Spent(dict(parts), [(*name, seconds) for name, seconds in longest], dict(frames.most_common()))
