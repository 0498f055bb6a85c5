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
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

import numpy as np

from presize.errors import OptionError
from presize.measure.simulate.pipeline import Pipeline, Times
from presize.measure.simulate.timeline import Load, SimulatedStep, Timeline
from presize.options import check_above_0, check_range

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
