"""Loader processes, the queue of finished batches and the training step as events in time. Pure: nothing is run and no
clock is read.

The rules are those of torch's DataLoader (2.13, `_MultiProcessingDataLoaderIter`). Each worker is asked for
`prefetch` batches at the start, in turn. Finished batches wait to be taken, in order, and with each that is taken
one more is asked for: of the next worker in turn, or, out of order, of the worker that made it. So no more than
workers × prefetch batches are under way or waiting.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Self

import numpy as np

from presize.errors import OptionError
from presize.measure.stages import bottleneck
from presize.options import check_above_0, check_range

MOST_WORKERS = 1024

_DRAWN_AT_ONCE = 1024
_LONGEST_S = 1e6
_HIGHEST_CV = 100.0
_CONSTANT_CV = 1e-6


@dataclass(frozen=True)
class Times:
    """How long a piece of work takes when it has all the cores that it wants, and how that varies.

    Attributes:
        mean_s: Mean in seconds, from 0 to 1e6.
        cv: Coefficient of variation (standard deviation / mean), from 0 to 100. Times are drawn from a gamma
            distribution with this mean and variation.
        samples_s: Measured times in seconds. If there are any, times are drawn from them instead, with replacement;
            see `Times.measured`.

    Raises:
        OptionError: A value is out of range.
    """

    mean_s: float
    cv: float = 0.0
    samples_s: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.mean_s <= _LONGEST_S:
            raise OptionError(f"mean_s: expected seconds from 0 to {_LONGEST_S:.0f}, got {self.mean_s!r}")
        if not 0 <= self.cv <= _HIGHEST_CV:
            raise OptionError(f"cv: expected a number from 0 to {_HIGHEST_CV:.0f}, got {self.cv!r}")
        for sample in self.samples_s:
            if not 0 <= sample <= _LONGEST_S:
                raise OptionError(f"samples_s: expected seconds from 0 to {_LONGEST_S:.0f}, got {sample!r}")

    @classmethod
    def measured(cls, samples_s: Iterable[float]) -> Self:
        """Times to be drawn from measured ones. Raises OptionError if there are none."""
        samples = tuple(map(float, samples_s))
        if not samples:
            raise OptionError("samples_s: expected at least one, got none")
        mean = sum(samples) / len(samples)
        return cls(mean, float(np.std(samples)) / mean if mean else 0.0, samples)

    def times(self, factor: float) -> Times:
        """The same work, `factor` times as long."""
        return Times(self.mean_s * factor, self.cv, tuple(sample * factor for sample in self.samples_s))

    def draws(self, random: np.random.Generator) -> Iterator[float]:
        """Yield random times in seconds, endlessly."""
        samples = np.array(self.samples_s)
        while True:
            if len(samples):
                yield from random.choice(samples, _DRAWN_AT_ONCE).tolist()
            elif self.cv > _CONSTANT_CV:
                yield from random.gamma(self.cv**-2, self.mean_s * self.cv**2, _DRAWN_AT_ONCE).tolist()
            else:
                yield self.mean_s


NOTHING = Times(0.0)


@dataclass(frozen=True)
class Pipeline:
    """Loader workers and the training step that they feed.

    Attributes:
        load: Time of one worker to load one batch, above 0.
        step: Time of training on one batch, above 0.
        workers: Loader processes, 0 to 1024. With 0 the training process loads batches itself, between steps.
        prefetch: Batches requested of each worker ahead of training, 1 to 1024.
        pin: Time to copy a batch to pinned memory. One thread does it, batch after batch.
        copy: Time to copy a batch to the device. The step waits for it.
        in_order: Whether batches are taken in the order in which they were requested.
        stagger_s: Delay in seconds between the start of one worker and the next.
        cores: CPU cores that all work shares; None for as many as it takes. When more are wanted than there are,
            everything that wants cores slows down by the same factor.
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
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise OptionError(f"{name}: expected a number from 0 up, got {value!r}")
        if self.cores is not None:
            check_above_0("cores", self.cores)
        for name in ("load", "step"):
            if getattr(self, name).mean_s == 0:
                raise OptionError(f"{name}: expected work that takes time, got 0 s")


@dataclass
class Load:
    """One batch being loaded by one worker.

    Attributes:
        worker: Its number, from 0.
        batch: Its number, from 0.
        begin_s: When loading began, in seconds from the start.
        work_s: Seconds that it takes with all the cores that it wants.
        end_s: When it was done; None if the simulation ended first.
    """

    worker: int
    batch: int
    begin_s: float
    work_s: float
    end_s: float | None = None


@dataclass
class SimulatedStep:
    """One batch on its way through training.

    Attributes:
        batch: Its number, from 0.
        ready_s: When it could have been taken, in seconds from the start.
        taken_s: When training took it.
        wait_s: Seconds that training had waited for it.
        work_s: Seconds that the step takes with all the cores that it wants.
        begin_s: When it had been copied and the step began; None if the simulation ended first.
        end_s: When the step was done; None if the simulation ended first.
    """

    batch: int
    ready_s: float
    taken_s: float
    wait_s: float
    work_s: float
    begin_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class Timeline:
    """What happened in a simulation, in seconds from its start.

    Attributes:
        pipeline: What was simulated.
        seconds: Length of the simulation.
        loads: Batches loaded, in the order in which that began.
        ready: (seconds, batch) of each batch that was finished, in that order.
        steps: Training steps, in the order in which they began.
        step_work_s: Work done in steps, in the seconds that it takes with all the cores that they want.
    """

    pipeline: Pipeline
    seconds: float
    loads: tuple[Load, ...]
    ready: tuple[tuple[float, int], ...]
    steps: tuple[SimulatedStep, ...]
    step_work_s: float

    @property
    def batches(self) -> int:
        """Steps that were completed."""
        return sum(step.end_s is not None for step in self.steps)

    @property
    def utilisation(self) -> float:
        """Share of the time that the training step took, from 0 to 1: U of presize.measure.stages."""
        return self.step_work_s / self.seconds if self.seconds else 0.0

    @property
    def stall(self) -> float:
        """Share of the time that training waited for a batch, from 0 to 1.

        What is neither utilisation nor stall went into copies, and into steps that were short of cores.
        """
        return math.fsum([*self.waits_s, self._last_wait_s]) / self.seconds if self.seconds else 0.0

    @property
    def waits_s(self) -> list[float]:
        """Seconds that training waited for the batch of each step."""
        return [step.wait_s for step in self.steps]

    @property
    def _last_wait_s(self) -> float:
        """Seconds waited for a batch that had not come when the simulation ended."""
        end_s = self.steps[-1].end_s if self.steps else 0.0
        return 0.0 if end_s is None else self.seconds - end_s

    def batches_per_s(self, warmup_steps: int = 0) -> float:
        """Mean rate over the whole simulation.

        Args:
            warmup_steps: Leave out so many steps at the start, and count whole rounds of as many after them: workers
                that start together deliver their first batches together.
        """
        ends = [step.end_s for step in self.steps if step.end_s is not None]
        rounds = len(ends) // warmup_steps - 1 if warmup_steps else 0
        span_s = ends[warmup_steps * (rounds + 1) - 1] - ends[warmup_steps - 1] if rounds > 0 else 0.0
        if span_s > 0:
            return warmup_steps * rounds / span_s
        return len(ends) / self.seconds if self.seconds else 0.0

    def queue(self) -> list[tuple[float, int]]:
        """Length of the queue of finished batches: (seconds, length from then on) for each change."""
        changes = Counter(at for at, _ in self.ready)
        changes.subtract(step.taken_s for step in self.steps)
        lengths = [(0.0, 0)]
        for at, change in sorted(changes.items()):
            if change:
                lengths.append((at, lengths[-1][1] + change))
        return lengths

    def queue_mean(self) -> float:
        """Mean length of the queue of finished batches, over time."""
        queue = self.queue()
        ends = [*(at for at, _ in queue[1:]), self.seconds]
        spent = math.fsum((end - at) * length for (at, length), end in zip(queue, ends, strict=True))
        return spent / self.seconds if self.seconds else 0.0

    def stops_every(self) -> int | None:
        """n if training stalls regularly, before every n-th batch; None otherwise.

        That is how n workers that start together and take equally long show. Regular means that at least 4/5 of the
        waiting, that for the first batch left out, falls on every n-th batch, and that those stalls are about equally
        long (coefficient of variation up to 1/4).
        """
        return regular_stops(self.waits_s[1:], 2 * max(self.pipeline.workers, 1), self.seconds)

    def known(self) -> dict[str, Any]:
        """The timeline as JSON has it, times in seconds rounded to the nanosecond."""

        def line(*values: float | None) -> list[float | None]:
            return [value if value is None else round(value, 9) for value in values]

        return {
            "batches": self.batches,
            "seconds": round(self.seconds, 9),
            "batches_per_s": round(self.batches_per_s(), 9),
            "utilisation": round(self.utilisation, 9),
            "stall": round(self.stall, 9),
            "bottleneck": bottleneck(self.utilisation),
            "stops_every": self.stops_every(),
            "workers": self.pipeline.workers,
            "prefetch": self.pipeline.prefetch,
            "loads": [line(load.worker, load.batch, load.begin_s, load.end_s) for load in self.loads],
            "steps": [line(step.batch, step.ready_s, step.taken_s, step.begin_s, step.end_s) for step in self.steps],
            "queue": [line(*change) for change in self.queue()],
        }


def regular_stops(waits_s: Sequence[float], most: int, seconds: float) -> int | None:
    """n if most of the waiting, in so many seconds, falls on every n-th batch, 2 to `most`; None otherwise. See
    Timeline.stops_every."""
    waits = np.array(waits_s)
    if waits.sum() <= 0.01 * seconds:
        return None
    found = []
    for period in range(2, min(most, len(waits) // 3) + 1):
        stops = max((waits[first::period] for first in range(period)), key=np.sum)
        if stops.std() <= stops.mean() / 4:
            found.append((stops.sum() / waits.sum(), -period))
    share, period = max(found, default=(0.0, 0))
    return -period if share >= 0.8 else None


_MOST_BATCHES = 1_000_000


def simulate(
    pipeline: Pipeline, *, seconds: float | None = None, batches: int | None = None, seed: int = 0
) -> Timeline:
    """Simulate a pipeline until `seconds` have passed or `batches` are done, whichever comes first.

    The times of a batch depend on `seed` and its number alone, so that they are the same for any number of workers.

    Args:
        pipeline: What to simulate.
        seconds: Length of the simulation, above 0; None for no limit.
        batches: Batches to train on, 1 to 1,000,000; None for no limit.
        seed: Random seed, from 0.

    Raises:
        OptionError: Neither limit was given, one is out of range, or there is time for more than a million steps.
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
    return _Simulation(pipeline, math.inf if seconds is None else seconds, batches or _MOST_BATCHES, seed).run()


_Then = Callable[[int], None]


class _Clock:
    """Work in progress, and when it ends.

    Work that wants cores runs by a second clock, which goes slower than real time while more cores are wanted than
    there are. So all work ends at a fixed moment of one of the two clocks.
    """

    def __init__(self, cores: float | None) -> None:
        self.cores = math.inf if cores is None else cores
        self.now = self.work_now = 0.0
        self.wanted: dict[int, float] = {}
        self.waiting: list[tuple[float, int, _Then, int]] = []
        self.working: list[tuple[float, int, _Then, int]] = []
        self.numbers = count()

    def begin(self, seconds: float, cores: float, then: _Then, which: int) -> int:
        """Call `then(which)` once `seconds` of work on `cores` are done; 0 cores for mere waiting. Returns an
        identifier for `left_s`."""
        number = next(self.numbers)
        if cores == 0 or self.cores == math.inf:
            heapq.heappush(self.waiting, (self.now + seconds, number, then, which))
        else:
            self.wanted[number] = cores
            heapq.heappush(self.working, (self.work_now + seconds, number, then, which))
        return number

    @property
    def rate(self) -> float:
        """Seconds of work done per second."""
        wanted = math.fsum(self.wanted.values())
        return min(1.0, self.cores / wanted) if wanted else 1.0

    def next_s(self) -> float:
        """When the next work ends; infinite if there is none."""
        waiting = self.waiting[0][0] if self.waiting else math.inf
        working = self.now + (self.working[0][0] - self.work_now) / self.rate if self.working else math.inf
        return min(waiting, working)

    def advance(self, at: float) -> None:
        self.work_now += (at - self.now) * self.rate
        self.now = at

    def end_next(self) -> None:
        """Advance to the end of the work that ends first, and call what follows it."""
        at = self.next_s()
        if self.waiting and self.waiting[0][0] <= at:
            self.advance(at)
            _, _, then, which = heapq.heappop(self.waiting)
        else:
            end, number, then, which = heapq.heappop(self.working)
            self.now, self.work_now = at, end
            del self.wanted[number]
        then(which)

    def left_s(self, number: int) -> float:
        """Seconds that are left of a piece of work; 0 when it is done."""
        left = [end - self.now for end, of, *_ in self.waiting if of == number]
        return sum(left + [end - self.work_now for end, of, *_ in self.working if of == number])


class _Draws:
    """Random seconds for each batch, by its number."""

    def __init__(self, times: Times, random: np.random.Generator) -> None:
        self.drawn: list[float] = []
        self.more = times.draws(random)

    def __getitem__(self, batch: int) -> float:
        while len(self.drawn) <= batch:
            self.drawn.append(next(self.more))
        return self.drawn[batch]


class _Simulation:
    def __init__(self, pipeline: Pipeline, seconds: float, batches: int, seed: int) -> None:
        self.pipeline, self.seconds, self.batches = pipeline, seconds, batches
        self.clock = _Clock(pipeline.cores)
        parts = (pipeline.load, pipeline.pin, pipeline.copy, pipeline.step)
        randoms = np.random.default_rng(seed).spawn(len(parts))
        self.load_s, self.pin_s, self.copy_s, self.step_s = map(_Draws, parts, randoms)
        self.asked = 0
        self.tasks: list[deque[int]] = [deque() for _ in range(pipeline.workers)]
        self.idle: set[int] = set()
        self.loads: list[Load] = []
        self.load_of: dict[int, Load] = {}  # by batch, until it is taken
        self.unpinned: deque[int] = deque()
        self.ready_s: dict[int, float] = {}  # of what waits
        self.ready: list[tuple[float, int]] = []
        self.steps: list[SimulatedStep] = []
        self.training = False
        self.step_number = -1

    def run(self) -> Timeline:
        workers, prefetch = self.pipeline.workers, self.pipeline.prefetch
        for worker in range(workers):
            self.clock.begin(worker * self.pipeline.stagger_s, 0, self._worker_free, worker)
        for number in range(workers * prefetch):
            self._ask(number % workers)
        if workers == 0:
            self._load_in_process()
        last_s = self.seconds * (1 + 1e-12)  # sums of times are not exact
        while not self._done() and self.clock.next_s() <= last_s:
            self.clock.end_next()
        if not self._done():
            self.clock.advance(self.seconds)
        work_s = math.fsum(step.work_s for step in self.steps if step.begin_s is not None)
        step_work_s = max(work_s - self.clock.left_s(self.step_number), 0.0)
        return Timeline(
            self.pipeline, self.clock.now, tuple(self.loads), tuple(self.ready), tuple(self.steps), step_work_s
        )

    def _done(self) -> bool:
        return len(self.steps) == self.batches and not self.training

    def _ask(self, worker: int) -> None:
        """Request one more batch of `worker`, if any are left."""
        if self.asked < self.batches:
            self.tasks[worker].append(self.asked)
            self.asked += 1
            if worker in self.idle:
                self._worker_free(worker)

    def _worker_free(self, worker: int) -> None:
        self.idle.add(worker)
        if self.tasks[worker]:
            self.idle.remove(worker)
            self._load(worker, self.tasks[worker].popleft())

    def _load_in_process(self) -> None:
        if self.asked < self.batches:
            self._load(0, self.asked)
            self.asked += 1

    def _load(self, worker: int, batch: int) -> None:
        load = self.load_of[batch] = Load(worker, batch, self.clock.now, self.load_s[batch])
        self.loads.append(load)
        self.clock.begin(load.work_s, self.pipeline.load_cores, self._load_ended, batch)

    def _load_ended(self, batch: int) -> None:
        load = self.load_of[batch]
        load.end_s = self.clock.now
        if self.pipeline.workers:
            self._worker_free(load.worker)
        self.unpinned.append(batch)
        if len(self.unpinned) == 1:
            self._pin()

    def _pin(self) -> None:
        batch = self.unpinned[0]
        self.clock.begin(self.pin_s[batch], 0, self._pin_ended, batch)

    def _pin_ended(self, batch: int) -> None:
        self.unpinned.popleft()
        if self.unpinned:
            self._pin()
        self.ready_s[batch] = self.clock.now
        self.ready.append((self.clock.now, batch))
        self._take()

    def _take(self) -> None:
        """Give the next batch to training, if it is free and the batch is ready."""
        batch = len(self.steps) if self.pipeline.in_order else next(iter(self.ready_s), -1)
        if self.training or batch not in self.ready_s:
            return
        free_s = (self.steps[-1].end_s or 0.0) if self.steps else 0.0
        ready_s, now = self.ready_s.pop(batch), self.clock.now
        self.steps.append(SimulatedStep(batch, ready_s, now, now - free_s, self.step_s[batch]))
        self.training = True
        load = self.load_of.pop(batch)
        if self.pipeline.workers:
            self._ask(self.asked % self.pipeline.workers if self.pipeline.in_order else load.worker)
        self.clock.begin(self.copy_s[batch], 0, self._copy_ended, batch)

    def _copy_ended(self, batch: int) -> None:
        step = self.steps[-1]
        step.begin_s = self.clock.now
        self.step_number = self.clock.begin(step.work_s, self.pipeline.step_cores, self._step_ended, batch)

    def _step_ended(self, _: int) -> None:
        self.steps[-1].end_s = self.clock.now
        self.training = False
        self._take()
        if self.pipeline.workers == 0:
            self._load_in_process()


def sweep(pipeline: Pipeline, workers: Iterable[int], *, batches: int = 200, seed: int = 0) -> dict[int, Timeline]:
    """Simulate the pipeline with each of these numbers of workers, on the same random times.

    Args:
        pipeline: What to simulate; its own number of workers does not count.
        workers: The numbers to try.
        batches: Batches to simulate; at least four per worker are.
        seed: Random seed, from 0.
    """
    return {
        number: simulate(replace(pipeline, workers=number), batches=max(batches, 4 * number), seed=seed)
        for number in workers
    }


def fewest_workers(timelines: dict[int, Timeline], within: float = 0.05) -> int:
    """The smallest number of workers whose rate is within the share `within` of the fastest."""
    rates = {number: timeline.batches_per_s(warmup_steps=max(1, number)) for number, timeline in timelines.items()}
    fastest = max(rates.values())
    return min(number for number, rate in rates.items() if rate >= (1 - within) * fastest * (1 - 1e-9))
