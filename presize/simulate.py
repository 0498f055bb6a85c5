"""Loader processes, the queue of finished batches and the training step, as events in time: a timeline and a
prediction. Pure: nothing is run and no clock is read.

The rules are those of torch's DataLoader (2.13, `_MultiProcessingDataLoaderIter`). Each worker is asked for
`prefetch` batches at the start, in turn. Finished batches wait to be taken, in order, and with each that is taken
one more is asked for: of the next worker in turn, or, out of order, of the next that has fewer than `prefetch` to do.
So no more than workers × prefetch batches are under way or waiting.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal, Self

import numpy as np

from presize.errors import OptionError
from presize.options import check_range

_DRAWN_AT_ONCE = 1024
_MOST_BATCHES = 1_000_000


@dataclass(frozen=True)
class Times:
    """Seconds that a piece of work takes when it has the cores that it wants, and how they vary.

    mean_s: from 0 up. cv: the coefficient of variation (standard deviation / mean), from 0 up, of a gamma
    distribution. samples_s: measured times, drawn from at random instead, with replacement; `Times.measured` makes
    such. Raises OptionError for what cannot be.
    """

    mean_s: float
    cv: float = 0.0
    samples_s: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("mean_s", "cv"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise OptionError(f"{name}: expected a number from 0 up, got {value!r}")
        if any(not 0 <= sample < math.inf for sample in self.samples_s):
            raise OptionError(f"samples_s: expected seconds from 0 up, got {min(self.samples_s)!r}")

    @classmethod
    def measured(cls, samples_s: Iterable[float]) -> Self:
        """Raises OptionError when there are none."""
        samples = tuple(map(float, samples_s))
        if not samples:
            raise OptionError("samples_s: expected at least one, got none")
        mean = sum(samples) / len(samples)
        return cls(mean, float(np.std(samples)) / mean if mean else 0.0, samples)

    def times(self, factor: float) -> Times:
        """The same, `factor` times as long."""
        return Times(self.mean_s * factor, self.cv, tuple(sample * factor for sample in self.samples_s))

    def draws(self, random: np.random.Generator) -> Iterator[float]:
        """Without end."""
        while True:
            if self.samples_s:
                yield from random.choice(self.samples_s, _DRAWN_AT_ONCE).tolist()
            elif self.cv and self.mean_s:
                yield from random.gamma(self.cv**-2, self.mean_s * self.cv**2, _DRAWN_AT_ONCE).tolist()
            else:
                yield self.mean_s


NOTHING = Times(0.0)


@dataclass(frozen=True)
class Pipeline:
    """What is simulated.

    load: of one batch by one worker. step: of training on one batch. pin: of copying a batch to page-locked memory,
        by one thread, batch after batch. copy: of bringing it to the device, which the step waits for.
    workers: from 0 (batches are loaded where training runs, between steps). prefetch: batches asked of each
        worker ahead, from 1. in_order: whether batches are taken in the order in which they were asked for.
    stagger_s: worker n begins n times so many seconds after the first.
    cores: that all share; None: enough for all. load_cores, step_cores: how many loading one batch and the step
        keep busy, 0 for what only waits. Where more are wanted than there are, all that wants some runs slower by
        the same factor.
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
        check_range("workers", self.workers, 0, 1024)
        check_range("prefetch", self.prefetch, 1, 1024)
        for name in ("stagger_s", "load_cores", "step_cores"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise OptionError(f"{name}: expected a number from 0 up, got {value!r}")
        if self.cores is not None and not 0 < self.cores < math.inf:
            raise OptionError(f"cores: expected a number above 0, got {self.cores!r}")
        if self.load.mean_s + self.step.mean_s + self.pin.mean_s + self.copy.mean_s == 0:
            raise OptionError("step: expected work that takes time, got 0 s for all of it")


@dataclass
class Load:
    """A worker and the batch that it makes. end_s: None while it is not done."""

    worker: int
    batch: int
    begin_s: float
    end_s: float | None = None


@dataclass
class Step:
    """A batch on its way through training: taken at `taken_s`, copied until `begin_s`, done at `end_s`; None for
    what did not come before time was up. ready_s: when it could have been taken. wait_s: how long training had
    waited for it."""

    batch: int
    ready_s: float
    taken_s: float
    wait_s: float
    begin_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class Timeline:
    """What happened, in seconds from the start, and what can be read off it.

    seconds: how long was simulated. loads, steps: in the order in which they began. ready: (seconds, batch), of all
    that were finished, in that order. step_work_s: the seconds that the steps would have taken with all the cores
    that they want.
    """

    pipeline: Pipeline
    seconds: float
    loads: tuple[Load, ...]
    ready: tuple[tuple[float, int], ...]
    steps: tuple[Step, ...]
    step_work_s: float

    @property
    def batches(self) -> int:
        """Steps that were done."""
        return sum(step.end_s is not None for step in self.steps)

    @property
    def utilisation(self) -> float:
        """The share of the time that training took, from 0 to 1: U of presize.measure."""
        return self.step_work_s / self.seconds

    @property
    def waits_s(self) -> list[float]:
        """Of each step, how long training waited for its batch."""
        return [step.wait_s for step in self.steps]

    def batches_per_s(self, lead: int = 0) -> float:
        """After the first `lead` steps, which find what workers began at the same time; of all of them where
        there are no more."""
        ends = [step.end_s for step in self.steps if step.end_s is not None]
        if len(ends) <= lead or lead == 0:
            return len(ends) / self.seconds
        return (len(ends) - lead) / (ends[-1] - ends[lead - 1])

    def queue(self) -> list[tuple[float, int]]:
        """(seconds, batches that are finished and wait): each time when it changes, and the number from then on."""
        changes = [(at, 1) for at, _ in self.ready] + [(step.taken_s, -1) for step in self.steps]
        lengths = [(0.0, 0)]
        for at, change in sorted(changes, key=lambda pair: (pair[0], -pair[1])):
            lengths.append((at, lengths[-1][1] + change))
        return lengths

    def stops_every(self) -> int | None:
        """n, if at least 4/5 of the waiting, the first batch left out, comes before every n-th batch alone, as with
        n workers that begin together and take equally long; None otherwise."""
        waits = np.array(self.waits_s[1:])
        if waits.sum() <= 0.01 * self.seconds:
            return None
        found = []
        for period in range(2, min(2 * max(self.pipeline.workers, 1), len(waits) // 3) + 1):
            found.append((max(waits[first::period].sum() for first in range(period)) / waits.sum(), -period))
        share, period = max(found, default=(0.0, 0))
        return -period if share >= 0.8 else None

    def known(self) -> dict[str, Any]:
        """All of it as plain values of JSON."""
        return {
            "batches": self.batches,
            "seconds": self.seconds,
            "utilisation": self.utilisation,
            "stops_every": self.stops_every(),
            "workers": self.pipeline.workers,
            "prefetch": self.pipeline.prefetch,
            "loads": [[load.worker, load.batch, load.begin_s, load.end_s] for load in self.loads],
            "steps": [[step.batch, step.ready_s, step.taken_s, step.begin_s, step.end_s] for step in self.steps],
            "queue": [list(change) for change in self.queue()],
        }


def simulate(
    pipeline: Pipeline, *, seconds: float | None = None, batches: int | None = None, seed: int = 0
) -> Timeline:
    """Run `pipeline` for so many seconds above 0, or until so many batches from 1 are done, whichever is first.

    The times of a batch are drawn by its number, from `seed`: they are the same whatever the workers. Raises
    OptionError when neither is given, or is out of range.
    """
    if seconds is None and batches is None:
        raise OptionError("seconds: expected seconds or batches, got neither")
    if seconds is not None and not 0 < seconds < math.inf:
        raise OptionError(f"seconds: expected a number above 0, got {seconds!r}")
    if batches is not None:
        check_range("batches", batches, 1, _MOST_BATCHES)
    return _Simulation(pipeline, math.inf if seconds is None else seconds, batches or _MOST_BATCHES, seed).run()


_What = Literal["start", "load", "pin", "copy", "step"]


class _Clock:
    """What is under way. Work that wants cores runs by a clock of its own, which goes slower than time while more
    are wanted than there are: all that is under way ends at a fixed moment of one of the two clocks."""

    def __init__(self, cores: float | None) -> None:
        self.cores = math.inf if cores is None else cores
        self.now = self.work_now = 0.0
        self.wanted: dict[int, float] = {}
        self.waiting: list[tuple[float, int, _What, int]] = []
        self.working: list[tuple[float, int, _What, int]] = []
        self.numbers = count()

    def begin(self, what: _What, which: int, seconds: float, cores: float) -> None:
        number = next(self.numbers)
        if cores == 0 or self.cores == math.inf:
            heapq.heappush(self.waiting, (self.now + seconds, number, what, which))
        else:
            self.wanted[number] = cores
            heapq.heappush(self.working, (self.work_now + seconds, number, what, which))

    @property
    def rate(self) -> float:
        """Seconds of work in a second."""
        wanted = math.fsum(self.wanted.values())
        return min(1.0, self.cores / wanted) if wanted else 1.0

    def next_s(self) -> float:
        """When something ends; infinite if nothing is under way."""
        waiting = self.waiting[0][0] if self.waiting else math.inf
        working = self.now + (self.working[0][0] - self.work_now) / self.rate if self.working else math.inf
        return min(waiting, working)

    def pop(self) -> tuple[_What, int]:
        """What ends first. It is then."""
        at = self.next_s()
        if self.waiting and self.waiting[0][0] <= at:
            self.advance(at)
            _, _, what, which = heapq.heappop(self.waiting)
        else:
            end, number, what, which = heapq.heappop(self.working)
            self.now, self.work_now = at, end
            del self.wanted[number]
        return what, which

    def advance(self, at: float) -> None:
        self.work_now += (at - self.now) * self.rate
        self.now = at

    def left_s(self, what: _What) -> float:
        """The work that is left of what is under way."""
        left = [end - self.now for end, _, of, _ in self.waiting if of == what]
        return math.fsum([*left, *(end - self.work_now for end, _, of, _ in self.working if of == what)])


class _Simulation:
    def __init__(self, pipeline: Pipeline, seconds: float, batches: int, seed: int) -> None:
        self.pipeline, self.seconds, self.batches = pipeline, seconds, batches
        self.clock = _Clock(pipeline.cores)
        parts = (pipeline.load, pipeline.pin, pipeline.copy, pipeline.step)
        randoms = np.random.default_rng(seed).spawn(len(parts))
        draws = [part.draws(random) for part, random in zip(parts, randoms, strict=True)]
        self.load_draws, self.pin_draws, self.copy_draws, self.step_draws = draws
        self.load_s: list[float] = []
        self.asked = 0
        self.tasks: list[deque[int]] = [deque() for _ in range(pipeline.workers)]
        self.turn = 0
        self.at_work: dict[int, Load] = {}
        self.started: set[int] = set()
        self.unpinned: deque[int] = deque()
        self.ready_s: dict[int, float] = {}
        self.training = False
        self.free_s = 0.0
        self.loads: list[Load] = []
        self.ready: list[tuple[float, int]] = []
        self.steps: list[Step] = []
        self.step_work_s = 0.0
        self.done = 0

    def run(self) -> Timeline:
        if self.pipeline.workers == 0:
            self._load_here()
        for worker in range(self.pipeline.workers):
            self.clock.begin("start", worker, worker * self.pipeline.stagger_s, 0)
        for _ in range(self.pipeline.workers * self.pipeline.prefetch):
            self._ask()
        last = self.seconds * (1 + 1e-12)  # sums of times are not exact
        while self.done < self.batches and self.clock.next_s() <= last:
            what, which = self.clock.pop()
            getattr(self, f"_{what}_ended")(which)
        if self.done < self.batches:
            self.clock.advance(self.seconds)
        return Timeline(
            self.pipeline, self.clock.now, tuple(self.loads), tuple(self.ready), tuple(self.steps),
            max(self.step_work_s - self.clock.left_s("step"), 0.0),
        )  # fmt: skip

    def _ask(self) -> None:
        """One more batch of the worker whose turn it is."""
        if self.asked == self.batches:
            return
        workers = self.pipeline.workers
        for _ in range(workers):
            worker, self.turn = self.turn, (self.turn + 1) % workers
            if self.pipeline.in_order or len(self.tasks[worker]) < self.pipeline.prefetch:
                break
        self.tasks[worker].append(self.asked)
        self.asked += 1
        self._work(worker)

    def _work(self, worker: int) -> None:
        if worker in self.started and worker not in self.at_work and self.tasks[worker]:
            self._begin_load(worker, self.tasks[worker][0])

    def _begin_load(self, worker: int, batch: int) -> None:
        while len(self.load_s) <= batch:
            self.load_s.append(next(self.load_draws))
        load = Load(worker, batch, self.clock.now)
        self.loads.append(load)
        self.at_work[worker] = load
        self.clock.begin("load", worker, self.load_s[batch], self.pipeline.load_cores)

    def _load_here(self) -> None:
        if self.asked < self.batches:
            self._begin_load(0, self.asked)
            self.asked += 1

    def _start_ended(self, worker: int) -> None:
        self.started.add(worker)
        self._work(worker)

    def _load_ended(self, worker: int) -> None:
        load = self.at_work.pop(worker)
        load.end_s = self.clock.now
        if self.pipeline.workers:
            self.tasks[worker].popleft()
            self._work(worker)
        self.unpinned.append(load.batch)
        if len(self.unpinned) == 1:
            self._pin()

    def _pin(self) -> None:
        self.clock.begin("pin", self.unpinned[0], next(self.pin_draws), 0)

    def _pin_ended(self, batch: int) -> None:
        self.unpinned.popleft()
        if self.unpinned:
            self._pin()
        self.ready_s[batch] = self.clock.now
        self.ready.append((self.clock.now, batch))
        self._take()

    def _take(self) -> None:
        """The next batch, if training is free and has it."""
        batch = len(self.steps) if self.pipeline.in_order else next(iter(self.ready_s), -1)
        if self.training or batch not in self.ready_s:
            return
        now = self.clock.now
        self.steps.append(Step(batch, self.ready_s.pop(batch), now, now - self.free_s))
        self.training = True
        if self.pipeline.workers:
            self._ask()
        self.clock.begin("copy", batch, next(self.copy_draws), 0)

    def _copy_ended(self, batch: int) -> None:
        self.steps[-1].begin_s = self.clock.now
        seconds = next(self.step_draws)
        self.step_work_s += seconds
        self.clock.begin("step", batch, seconds, self.pipeline.step_cores)

    def _step_ended(self, _: int) -> None:
        self.steps[-1].end_s = self.free_s = self.clock.now
        self.training = False
        self.done += 1
        self._take()
        if self.pipeline.workers == 0:
            self._load_here()


def sweep(pipeline: Pipeline, workers: Iterable[int], *, batches: int = 200, seed: int = 0) -> dict[int, Timeline]:
    """The same with other numbers of workers, on the same draws."""
    return {number: simulate(replace(pipeline, workers=number), batches=batches, seed=seed) for number in workers}


def fewest_workers(timelines: dict[int, Timeline], within: float = 0.05) -> int:
    """The smallest number of workers that is within that share of the fastest."""
    rates = {number: timeline.batches_per_s(lead=max(1, number)) for number, timeline in timelines.items()}
    fastest = max(rates.values())
    return min(number for number, rate in rates.items() if rate >= (1 - within) * fastest)
