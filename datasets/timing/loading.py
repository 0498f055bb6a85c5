"""Read batches of any loader, and measure how it makes them: how long a worker takes, on what, and how that varies."""

from __future__ import annotations

import cProfile
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from presize.datasets.loader import Loader
from presize.datasets.make_loader import SHARED_MEMORY
from presize.datasets.reading.transfer import tensors_of
from presize.datasets.timing.epochs import count_images
from presize.datasets.timing.instrument import Fetch, prefetch_of, timed, workers_of
from presize.datasets.timing.loops import LEAST, Budget, Taking, closed
from presize.errors import DiagnosisError
from presize.measure.loader_alone import LEAST_CORES, Loading
from presize.measure.profile import Part, Spent, split
from presize.measure.simulation import Times

_PROFILED = 8
_FUNCTIONS_SHOWN = 8


@dataclass
class Window:
    """Batches that were read.

    Attributes:
        begin_s: time.perf_counter() before the first.
        ends_s: the same after each.
        images: in each.
        batch: the last one.
        cpu_s, thread_s: CPU time of this process, and of the thread that took them.
    """

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
        for batch in Taking(batches, budget, least, take):
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
    """A loader, measured alone.

    Attributes:
        loading: how it makes batches when nothing else runs.
        span_s: mean seconds of a worker for a batch, without handing it over; None where that is not known.
        batch: one of its batches.
    """

    loading: Loading
    span_s: float | None
    batch: Any


def measure_loading(loader: Iterable[Any], budget: Budget, saturation: int = 1) -> Measured:
    """Read up to four times, within `budget` each: with all workers, with one, with one that is profiled, and with
    `saturation` workers if that is 2 or more."""
    workers = workers_of(loader)
    warmup_steps = max(workers or 1, 1)
    fetches: list[Fetch] = []
    window = read(timed(loader, fetches), budget, warmup_steps + LEAST)
    between = [after - before for before, after in pairwise([window.begin_s, *window.ends_s])]
    between = between[1:] or between  # the start is in the first
    if workers is None:
        load = in_process = Times.measured(between)
        cpu_s, handover_s, span_s = window.cpu_s / len(window.ends_s), 0.0, None
    else:
        one, alone = fetches, window
        if workers != 1:
            one = []
            alone = read(timed(loader, one, workers=1), budget, 1 + LEAST)
        load = Times.measured(_cycles(one))
        in_process = Times.measured(between if workers == 0 else [fetch.work.seconds for fetch in one])
        cpu_s, span_s = fmean(fetch.work.cpu_s for fetch in one), mean_span_s(one)
        taking = window if workers else alone
        handover_s = taking.thread_s / len(taking.ends_s)
    spent = _spent(loader, workers, budget)
    total_s = sum(spent.parts.values())
    rate = _rate(window, warmup_steps)
    cores = min(cpu_s / load.mean_s, 1.0) if load.mean_s else 0.0
    loading = Loading(
        images=sum(window.images) / len(window.images),
        load=load,
        in_process=in_process,
        handover_s=handover_s,
        cores=cores,
        workers=workers or 0,
        prefetch=prefetch_of(loader),
        in_order=getattr(loader, "in_order", None),
        chosen=workers is not None,
        batches_per_s=rate,
        first_batch_s=window.ends_s[0] - window.begin_s,
        worker_s=_worker_means(fetches),
        saturation=None
        if workers is None or cores < LEAST_CORES
        else _saturate(loader, budget, saturation, window.batch, (workers, rate)),
        parts={part: seconds * load.mean_s / total_s for part, seconds in spent.parts.items()} if total_s else {},
        functions=tuple((name, part, seconds / total_s) for name, part, seconds in spent.functions) if total_s else (),
    )
    return Measured(loading, span_s, window.batch)


def _saturate(
    loader: Iterable[Any], budget: Budget, workers: int, batch: Any, known: tuple[int, float]
) -> tuple[int, float] | None:
    """(workers, batches/s) with `workers`; None for fewer than two, and where their batches might not fit /dev/shm."""
    if workers < 2 or known[0] == workers:
        return known if known[0] == workers > 1 else None
    nbytes = sum(tensor.nbytes for tensor in tensors_of(batch)) * workers * prefetch_of(loader)
    with suppress(OSError):  # not Linux
        if nbytes > shutil.disk_usage(SHARED_MEMORY).free / 2:
            return None
    return workers, _rate(read(timed(loader, [], workers=workers), budget, 2 * workers + LEAST), workers)


def _rate(window: Window, warmup_steps: int) -> float:
    """Batches/s after the first `warmup_steps`, which come together."""
    ends = window.ends_s
    if len(ends) <= warmup_steps:
        return len(ends) / (ends[-1] - window.begin_s)
    return (len(ends) - warmup_steps) / max(ends[-1] - ends[warmup_steps - 1], 1e-9)


def _cycles(fetches: Sequence[Fetch]) -> list[float]:
    """Seconds from each batch of a worker to its next one, handing over included, for workers that are never idle."""
    ends: dict[int, list[float]] = defaultdict(list)
    for fetch in fetches:
        ends[fetch.worker].append(fetch.work.end_s)
    cycles = [after - before for moments in ends.values() for before, after in pairwise(moments)]
    return cycles or [fetch.work.seconds for fetch in fetches]


def mean_span_s(fetches: Sequence[Fetch]) -> float:
    """Mean seconds of a worker for a batch."""
    return fmean(fetch.work.seconds for fetch in fetches)


def _worker_means(fetches: Sequence[Fetch]) -> tuple[float, ...]:
    spans: dict[int, list[float]] = defaultdict(list)
    for fetch in fetches:
        spans[fetch.worker].append(fetch.work.seconds)
    return tuple(sum(spans[worker]) / len(spans[worker]) for worker in sorted(spans))


def _spent(loader: Iterable[Any], workers: int | None, budget: Budget) -> Spent:
    """Where the time goes for a few batches: in one worker of a DataLoader, or else in this process."""
    few = Budget(min(_PROFILED, budget.batches), budget.seconds / 2)
    if workers and not isinstance(loader, Loader):
        fetches: list[Fetch] = []
        read(timed(loader, fetches, workers=1, profile=True), few, 2)
        return _sum([fetch.spent for fetch in fetches[1:] or fetches if fetch.spent is not None])
    profiler = cProfile.Profile()
    read(timed(loader, [], workers=0), few, 2, profiler)
    return split(profiler, _FUNCTIONS_SHOWN)


def _sum(several: Sequence[Spent]) -> Spent:
    parts: dict[Part, float] = defaultdict(float)
    functions: dict[tuple[str, Part], float] = defaultdict(float)
    for spent in several:
        for part, seconds in spent.parts.items():
            parts[part] += seconds
        for name, part, seconds in spent.functions:
            functions[name, part] += seconds
    longest = sorted(functions, key=functions.__getitem__, reverse=True)[:_FUNCTIONS_SHOWN]
    return Spent(dict(parts), [(*name, functions[name]) for name in longest])
