"""Discrete-event simulation of loader processes, the queue of finished batches and the training step. Pure.

It follows the rules of torch's DataLoader (2.13, `_MultiProcessingDataLoaderIter`). At the start, `prefetch` batches
are requested from each worker, in turn. Finished batches wait until training takes them, in order. Each batch taken
requests one more: from the next worker in turn or, out of order, from the worker that made it. So at most
workers × prefetch batches are loading or waiting.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any, Self

import numpy as np

from presize.errors import OptionError
from presize.measure.stages import bottleneck, regular_stops
from presize.options import check_above_0, check_range

MOST_WORKERS = 1024

_DRAWN_AT_ONCE = 1024
_MOST = 1e6
_CONSTANT_CV = 1e-6


def _check(name: str, value: float, most: float = _MOST) -> None:
    if not 0 <= value <= most:
        raise OptionError(f"{name}: expected a number from 0 to {most:.0f}, got {value!r}")


@dataclass(frozen=True)
class Times:
    """Duration of a piece of work with all the cores that it can use, and its variation.

    Attributes:
        mean_s: Mean in seconds, from 0 to 1e6; otherwise raises OptionError.
        cv: Coefficient of variation (standard deviation / mean) of a gamma distribution, from 0 to 100.
        samples_s: Measured times in seconds. If given, times are drawn from these, with replacement; see `measured`.
    """

    mean_s: float
    cv: float = 0.0
    samples_s: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        _check("mean_s", self.mean_s)
        _check("cv", self.cv, 100)
        for sample in self.samples_s:
            _check("samples_s", sample)

    @classmethod
    def measured(cls, samples_s: Iterable[float]) -> Self:
        """Return times that are drawn from measured ones. Raises OptionError if there are none."""
        samples = tuple(map(float, samples_s))
        if not samples:
            raise OptionError("samples_s: expected at least one, got none")
        mean = sum(samples) / len(samples)
        return cls(mean, float(np.std(samples)) / mean if mean else 0.0, samples)

    def times(self, factor: float) -> Times:
        """Return the same work, `factor` times as long."""
        return Times(self.mean_s * factor, self.cv, tuple(sample * factor for sample in self.samples_s))

    def draws(self, random: np.random.Generator) -> Iterator[float]:
        """Yield random times in seconds, endlessly."""
        while True:
            if self.samples_s:
                yield from random.choice(self.samples_s, _DRAWN_AT_ONCE).tolist()
            elif self.cv > _CONSTANT_CV:
                yield from random.gamma(self.cv**-2, self.mean_s * self.cv**2, _DRAWN_AT_ONCE).tolist()
            else:
                yield self.mean_s


NOTHING = Times(0.0)


@dataclass(frozen=True)
class Pipeline:
    """Loader workers and the training step that they feed.

    Attributes:
        load: Time for one worker to load one batch, above 0.
        step: Time of training on one batch, above 0.
        workers: Loader processes, 0 to 1024. With 0, the training process loads batches between steps.
        prefetch: Batches requested ahead from each worker, 1 to 1024.
        pin: Time to copy a batch to pinned memory. One thread pins one batch after the other.
        copy: Time to copy a batch to the device. The step waits for it.
        in_order: Take batches in the order of their requests.
        stagger_s: Delay in seconds from the start of one worker to that of the next.
        cores: CPU cores that all work shares; None for unlimited. If work wants more cores, all of it slows down by
            the same factor.
        load_cores: Cores that loading one batch keeps busy; 0 for loading that only waits.
        step_cores: Cores that the step keeps busy; 0 for a step on a GPU.
    """

    load: Times
    step: Times
    workers: int
    prefetch: int = 2
    pin: Times = NOTHING
    copy: Times = NOTHING
    in_order: bool = True
    stagger_s: float = 0.0
    cores: float | None = None
    load_cores: float = 1.0
    step_cores: float = 0.0

    def __post_init__(self) -> None:
        check_range("workers", self.workers, 0, MOST_WORKERS)
        check_range("prefetch", self.prefetch, 1, 1024)
        for name in ("stagger_s", "load_cores", "step_cores"):
            _check(name, getattr(self, name))
        if self.cores is not None:
            check_above_0("cores", self.cores)
        for name in ("load", "step"):
            if getattr(self, name).mean_s == 0:
                raise OptionError(f"{name}: expected a time above 0, got 0 s")


@dataclass
class SimulatedBatch:
    """Batch of a simulation: the seconds of its parts with all the cores that they can use, its worker, and moments in
    seconds from the start, infinite if the simulation ended earlier."""

    number: int
    load_s: float
    pin_s: float
    copy_s: float
    step_s: float
    worker: int = 0
    begin_s: float = math.inf
    loaded_s: float = math.inf
    ready_s: float = math.inf
    taken_s: float = math.inf
    copied_s: float = math.inf
    done_s: float = math.inf


@dataclass(frozen=True)
class Timeline:
    """Result of a simulation."""

    pipeline: Pipeline
    seconds: float  # simulated time
    loads: tuple[SimulatedBatch, ...]  # the batches whose loading began, in that order
    steps: tuple[SimulatedBatch, ...]  # the batches that training took, in the order in which it took them
    step_work_s: float  # seconds of work done in steps

    @property
    def batches(self) -> int:
        """Number of completed steps."""
        return sum(step.done_s < math.inf for step in self.steps)

    @property
    def utilisation(self) -> float:
        """Share of the time that the training step took, from 0 to 1."""
        return self.step_work_s / self.seconds if self.seconds else 0.0

    @property
    def stall(self) -> float:
        """Share of the time that training waited for a batch, from 0 to 1. Copies, and the slowdown of steps that lack
        cores, count neither here nor as `utilisation`."""
        done_s = self.steps[-1].done_s if self.steps else 0.0
        last_s = max(self.seconds - done_s, 0.0)  # wait for a batch that never came
        return math.fsum([*self.waits_s, last_s]) / self.seconds if self.seconds else 0.0

    @property
    def waits_s(self) -> list[float]:
        """Seconds that training waited before each step."""
        free_s = [0.0, *(step.done_s for step in self.steps)]
        return [step.taken_s - free for step, free in zip(self.steps, free_s, strict=False)]

    def batches_per_s(self, warmup_steps: int = 0) -> float:
        """Return the mean rate. With `warmup_steps`, leave these out and count only whole rounds of as many steps,
        because workers that start together deliver their batches together."""
        done = self.batches
        rounds = done // warmup_steps - 1 if warmup_steps else 0
        if rounds > 0:
            span_s = self.steps[warmup_steps * (rounds + 1) - 1].done_s - self.steps[warmup_steps - 1].done_s
            if span_s > 0:
                return warmup_steps * rounds / span_s
        return done / self.seconds if self.seconds else 0.0

    def queue(self) -> list[tuple[float, int]]:
        """Return the changes of the queue of finished batches: (seconds, length from then on)."""
        changes = Counter(load.ready_s for load in self.loads)
        changes.subtract(step.taken_s for step in self.steps)
        lengths = [(0.0, 0)]
        for at, change in sorted(changes.items()):
            if change and at < math.inf:
                lengths.append((at, lengths[-1][1] + change))
        return lengths

    def queue_mean(self) -> float:
        """Return the mean length of the queue of finished batches, over time."""
        spent_s = math.fsum(min(load.taken_s, self.seconds) - min(load.ready_s, self.seconds) for load in self.loads)
        return spent_s / self.seconds if self.seconds else 0.0

    def stops_every(self) -> int | None:
        """Return n if training stalls before every n-th batch, as n equal workers that start together cause."""
        return regular_stops(self.waits_s[1:], 2 * max(self.pipeline.workers, 1), self.seconds)

    def known(self) -> dict[str, Any]:
        """Return the timeline as plain values of JSON, with times in seconds, rounded to nanoseconds."""

        def line(*values: float) -> list[float | None]:
            return [round(value, 9) if value < math.inf else None for value in values]

        rates = {name: round(getattr(self, name), 9) for name in ("seconds", "utilisation", "stall")}
        return rates | {
            "batches": self.batches,
            "batches_per_s": round(self.batches_per_s(), 9),
            "bottleneck": bottleneck(self.utilisation),
            "stops_every": self.stops_every(),
            "workers": self.pipeline.workers,
            "prefetch": self.pipeline.prefetch,
            "loads": [line(one.worker, one.number, one.begin_s, one.loaded_s) for one in self.loads],
            "steps": [line(one.number, one.ready_s, one.taken_s, one.copied_s, one.done_s) for one in self.steps],
            "queue": [line(*change) for change in self.queue()],
        }


_MOST_BATCHES = 1_000_000


def simulate(
    pipeline: Pipeline, *, seconds: float | None = None, batches: int | None = None, seed: int = 0
) -> Timeline:
    """Simulate a pipeline until `seconds`, above 0, have passed or `batches`, 1 to 1,000,000, are done, whichever comes
    first. The times of a batch depend only on `seed`, from 0, and its number, not on the number of workers.

    Raises:
        OptionError: Both limits are None, an option is out of range, or `seconds` has room for over a million steps.
    """
    if seconds is None and batches is None:
        raise OptionError("seconds: expected seconds or batches, got neither")
    check_range("seed", seed, 0, 2**63 - 1)
    if batches is not None:
        check_range("batches", batches, 1, _MOST_BATCHES)
    if seconds is not None:
        check_above_0("seconds", seconds)
        longest_s = pipeline.step.mean_s * _MOST_BATCHES
        if batches is None and seconds > longest_s:
            raise OptionError(f"seconds: expected at most {longest_s:g}, a million steps, got {seconds!r}")
    return _Simulation(pipeline, batches or _MOST_BATCHES, seed).run(math.inf if seconds is None else seconds)


_Process = Generator[tuple[float, float] | None, None, None]
"""Yields (seconds, cores) to be resumed after that work, with 0 cores for waiting, or None to sleep until woken."""


class _Clock:
    """Scheduler of processes by the end of their work.

    Work that wants cores runs by a second clock, which is slower than real time while too few cores exist for all of
    it. So each piece of work ends at a fixed moment of one of the two clocks.
    """

    def __init__(self, cores: float | None) -> None:
        self.cores = cores
        self.now = self.work_now = 0.0
        self.wanted: dict[int, float] = {}
        self.waiting: list[tuple[float, int, _Process]] = []
        self.working: list[tuple[float, int, _Process]] = []
        self.asleep: set[_Process] = set()
        self.numbers = count()

    def read(self, cores: float) -> float:
        """Return the time of the clock for work on `cores`."""
        return self.work_now if cores and self.cores else self.now

    def resume(self, process: _Process) -> None:
        work = next(process, ())  # () if the process has ended
        if work is None:
            self.asleep.add(process)
        if not work:
            return
        (seconds, cores), number = work, next(self.numbers)
        if cores and self.cores:
            self.wanted[number] = cores
        heap = self.working if cores and self.cores else self.waiting
        heapq.heappush(heap, (self.read(cores) + seconds, number, process))

    def wake(self, process: _Process) -> None:
        if process in self.asleep:
            self.asleep.remove(process)
            self.resume(process)

    def advance(self, until: float) -> bool:
        """Advance to the next end of work, resume its process and return True; if that is later than `until`, advance
        to `until` and return False."""
        wanted = math.fsum(self.wanted.values())
        rate = min(1.0, (self.cores or 0.0) / wanted) if wanted else 1.0
        waited = self.waiting[0][0] if self.waiting else math.inf
        worked = self.now + (self.working[0][0] - self.work_now) / rate if self.working else math.inf
        at = min(waited, worked)
        is_over = at > until * (1 + 1e-12)  # sums of floats are inexact
        at = until if is_over else at
        self.work_now += (at - self.now) * rate
        self.now = at
        if is_over:
            return False
        if waited <= worked:
            _, _, process = heapq.heappop(self.waiting)
        else:
            self.work_now, number, process = heapq.heappop(self.working)
            del self.wanted[number]
        self.resume(process)
        return True


class _Simulation:
    def __init__(self, pipeline: Pipeline, batches: int, seed: int) -> None:
        self.pipeline, self.batches = pipeline, batches
        self.clock = _Clock(pipeline.cores)
        parts = (pipeline.load, pipeline.pin, pipeline.copy, pipeline.step)
        randoms = np.random.default_rng(seed).spawn(len(parts))
        draws = (part.draws(random) for part, random in zip(parts, randoms, strict=True))
        self.more = (
            SimulatedBatch(number, *times) for number, times in enumerate(islice(zip(*draws, strict=True), batches))
        )
        self.requested: list[deque[SimulatedBatch]] = [deque() for _ in range(pipeline.workers)]
        self.ready: dict[int, SimulatedBatch] = {}
        self.loads: list[SimulatedBatch] = []
        self.steps: list[SimulatedBatch] = []
        self.step_work_s = self.pinned_s = 0.0
        self.workers = [self._work(number) for number in range(pipeline.workers)]
        self.training = self._train()

    def run(self, seconds: float) -> Timeline:
        for process in (*self.workers, self.training):
            self.clock.resume(process)
        for number in range(self.pipeline.workers * self.pipeline.prefetch):
            self._request(number % self.pipeline.workers)
        is_done = False
        while not is_done and self.clock.advance(seconds):
            is_done = len(self.steps) == self.batches and self.steps[-1].done_s < math.inf
        self.training.close()  # counts the work of an unfinished step
        return Timeline(self.pipeline, self.clock.now, tuple(self.loads), tuple(self.steps), self.step_work_s)

    def _request(self, worker: int | None) -> None:
        batch = next(self.more, None)
        if batch is not None:
            batch.worker = batch.number % self.pipeline.workers if worker is None else worker
            self.requested[batch.worker].append(batch)
            self.clock.wake(self.workers[batch.worker])

    def _work(self, number: int) -> _Process:
        yield number * self.pipeline.stagger_s, 0.0
        while True:
            while not self.requested[number]:
                yield None
            yield from self._load(self.requested[number].popleft())

    def _load(self, batch: SimulatedBatch) -> _Process:
        batch.begin_s = self.clock.now
        self.loads.append(batch)
        yield batch.load_s, self.pipeline.load_cores
        batch.loaded_s = self.clock.now
        self.clock.resume(self._pin(batch))

    def _pin(self, batch: SimulatedBatch) -> _Process:
        self.pinned_s = max(self.pinned_s, self.clock.now) + batch.pin_s  # one thread pins one batch after the other
        yield self.pinned_s - self.clock.now, 0.0
        batch.ready_s = self.clock.now
        self.ready[batch.number] = batch
        self.clock.wake(self.training)

    def _train(self) -> _Process:
        clock, pipeline = self.clock, self.pipeline
        while len(self.steps) < self.batches:
            if pipeline.workers == 0:
                yield from self._load(next(self.more))
            while (number := len(self.steps) if pipeline.in_order else next(iter(self.ready), -1)) not in self.ready:
                yield None
            batch = self.ready.pop(number)
            self.steps.append(batch)
            batch.taken_s = clock.now
            if pipeline.workers:
                self._request(None if pipeline.in_order else batch.worker)
            yield batch.copy_s, 0.0
            batch.copied_s, begin = clock.now, clock.read(pipeline.step_cores)
            try:
                yield batch.step_s, pipeline.step_cores
                batch.done_s = clock.now
            finally:
                self.step_work_s += clock.read(pipeline.step_cores) - begin


def sweep(pipeline: Pipeline, workers: Iterable[int], *, batches: int = 200, seed: int = 0) -> dict[int, Timeline]:
    """Simulate with each number of `workers` on the same random times, for `batches`, at least four per worker."""
    return {
        number: simulate(replace(pipeline, workers=number), batches=max(batches, 4 * number), seed=seed)
        for number in workers
    }


def fewest_workers(timelines: dict[int, Timeline], within: float = 0.05) -> int:
    """Return the smallest number of workers whose rate is at most the share `within` below the fastest."""
    rates = {number: timeline.batches_per_s(max(number, 1)) for number, timeline in timelines.items()}
    return min(number for number, rate in rates.items() if rate >= (1 - within) * max(rates.values()) * (1 - 1e-9))
