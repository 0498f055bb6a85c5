"""The loops that loaders and steps are timed in: take batches, or repeat a step, until a budget is spent.

Clocks time the work of a device without waiting for it, which would keep it from working ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Protocol

import torch

from presize.errors import DiagnosisError, PresizeError
from presize.formatting import plural
from presize.measure.simulation import Times


class Clock(Protocol):
    """Marks moments in the work of a device, in order."""

    def mark(self) -> Any: ...

    def wait(self) -> None:
        """Wait until all work queued on the device is done."""
        ...

    def between(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds from each mark to the next, after a wait()."""
        ...


class HostClock:
    """A clock for work that is done when it returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def wait(self) -> None:
        pass

    def between(self, marks: Sequence[float]) -> list[float]:
        return [after - before for before, after in pairwise(marks)]


class CudaClock:
    """Marks are events on the current stream, which the GPU timestamps."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def between(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]


def clock_of(device: torch.device) -> Clock:
    """Return the clock for work on `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


LEAST = 3
"""Batches or steps that have to be counted for a figure."""

_WARM_UP_STEPS = 2
_SHORTEST_S = 1e-9


@dataclass(frozen=True)
class Budget:
    """When to stop: after so many batches, or so many seconds from the first one, whichever is earlier."""

    batches: int
    seconds: float

    def is_spent(self, batches: int, least: int, first_s: float) -> bool:
        """Whether to stop after `batches`, the first of which came at `first_s`; never with fewer than `least`."""
        return batches >= least and (batches >= self.batches or time.perf_counter() - first_s >= self.seconds)


class TimedIterator:
    """The batches of an iterator, at least `least` of them, until `budget` is spent or it ends, which `ended` tells.
    `take` gets the next one; it is called as next().

    Raises:
        DiagnosisError: while iterating, when the iterator fails; its error is the cause.
    """

    def __init__(
        self, batches: Iterator[Any], budget: Budget, least: int, take: Callable[[Iterator[Any]], Any] = next
    ) -> None:
        self.batches = batches
        self.budget = budget
        self.least = max(least, 1)
        self.take = take
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        count, first_s = 0, 0.0
        while not self.budget.is_spent(count, self.least, first_s):
            try:
                batch = self.take(self.batches)
            except StopIteration:
                self.ended = True
                return
            except Exception as error:
                raise failed("loader", count, "batches", error) from error
            if count == 0:
                first_s = time.perf_counter()
            count += 1
            yield batch
            del batch  # its memory may be wanted for the next one


@contextmanager
def closed(batches: Iterator[Any]) -> Generator[None, None, None]:
    """End the workers of an iterator from presize.datasets.timing.loading with the block, however that ends."""
    try:
        yield
    finally:
        if isinstance(batches, Generator):
            batches.close()


def failed(what: str, count: int, of: str, error: Exception) -> DiagnosisError:
    """Return a one-line error for a failure of the user's own loader or step."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):  # in a DataLoader's worker: its traceback comes before its message
        said = next((line for line in lines[2:] if not line.startswith(" ")), lines[0])
    else:
        said = lines[0] if isinstance(error, PresizeError) else f"{type(error).__name__}: {lines[0]}"
    done = plural(count, of.replace("batches", "batch").replace("steps", "step"), of)
    return DiagnosisError(f"{what}: failed after {done}: {said}")


@dataclass(frozen=True)
class Repeated:
    """The seconds of each repetition of a step, and the cores that this process kept busy."""

    samples_s: list[float]
    cores: float

    @property
    def mean_s(self) -> float:
        return fmean(self.samples_s)

    def __add__(self, more: Repeated) -> Repeated:
        return Repeated(self.samples_s + more.samples_s, (self.cores + more.cores) / 2)

    @property
    def step(self) -> Times:
        return Times.measured(self.samples_s)


def repeat(clock: Clock, step: Callable[[], Any], budget: Budget) -> Repeated:
    """Time `step`, at least LEAST times after a warm-up, until `budget` is spent."""
    for _ in range(_WARM_UP_STEPS):
        step()
    clock.wait()
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    marks = [clock.mark()]
    while not budget.is_spent(len(marks) - 1, LEAST, begin_s):
        step()
        marks.append(clock.mark())
    cpu_s = time.process_time() - cpu_s  # before waiting, which may keep a core busy for nothing
    queued_s = time.perf_counter() - begin_s
    clock.wait()
    # A step that does nothing may take less than a clock can resolve.
    samples_s = [max(seconds, _SHORTEST_S) for seconds in clock.between(marks)]
    return Repeated(samples_s, cpu_s / max(queued_s, _SHORTEST_S))
