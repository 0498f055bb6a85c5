"""How loaders and steps are timed: taking batches until a budget is spent, repeating a step on one batch, and an epoch
of any loader. The device is waited for only at the edges of what is timed."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import torch

from presize.datasets.reading.transfer import to_device
from presize.errors import DiagnosisError, OptionError, PresizeError
from presize.formatting import plural
from presize.measure.simulation import Times
from presize.options import check_range
from presize.system.resources import cpu_seconds

LEAST = 3  # batches or steps that have to be counted for a figure
SHORTEST_S = 1e-9  # work may take less than a clock can resolve
_WARM_UP_STEPS = 2


class Clock:
    """Marks moments in the work of `device`, in order, without waiting for it, which would keep it from working ahead.
    None is for work that is done when it returns, as on the CPU."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = None if device is None or device.type == "cpu" else device

    def mark(self) -> Any:
        if self.device is None:
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    def wait(self) -> None:
        """Wait until all work queued on the device is done."""
        if self.device is not None:
            torch.accelerator.synchronize(self.device)

    def between(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds from each mark to the next, after a wait()."""
        if self.device is None:
            return [after - before for before, after in pairwise(marks)]
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]


class Step(Protocol):
    """What to do with each batch: place() copies it to the device, and the call trains on it there.

    Both may return before the device is done; `clock` times the device.
    """

    @property
    def clock(self) -> Clock: ...

    def place(self, batch: Any) -> Any: ...

    def __call__(self, placed: Any) -> None: ...


class NoModel:
    """Copies batches to `device` and does nothing with them: the loader alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clock = Clock(device)

    def place(self, batch: Any) -> Any:
        return to_device(batch, self.device)

    def __call__(self, placed: Any) -> None:
        pass


class Budget(NamedTuple):
    """When to stop: after so many batches, or so many seconds from the first one, whichever is earlier."""

    batches: float
    seconds: float

    def is_spent(self, batches: int, least: int, first_s: float) -> bool:
        """Whether to stop after `batches`, the first of which came at `first_s`; never with fewer than `least`."""
        return batches >= least and (batches >= self.batches or time.perf_counter() - first_s >= self.seconds)


STEP_BUDGET = Budget(100, 1.0)  # of a step that a benchmark repeats
ENDLESS = Budget(math.inf, math.inf)


def taken(
    batches: Iterator[Any], budget: Budget = ENDLESS, least: int = 1, take: Callable[[Iterator[Any]], Any] = next
) -> Generator[Any, None, None]:
    """Yield batches, at least `least`, until `budget` is spent or they end. `take` gets the next one. Generators, whose
    workers end with them, are closed with this one.

    Raises:
        DiagnosisError: the iterator fails; its error is the cause.
    """
    count, first_s = 0, 0.0
    try:
        while not budget.is_spent(count, least, first_s):
            try:
                batch = take(batches)
            except StopIteration:
                return
            except Exception as error:
                raise failed("loader", count, "batches", error) from error
            if count == 0:
                first_s = time.perf_counter()
            count += 1
            yield batch
            del batch  # its memory may be wanted for the next one
    finally:
        if isinstance(batches, Generator):
            batches.close()


def an_epoch(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of an epoch. Closing it closes no iterator that was given as `loader`: it can be read on."""
    for batch in loader:
        yield batch
        del batch


def failed(what: str, count: int, of: str, error: Exception) -> DiagnosisError:
    """Return a one-line error for a failure of the user's own loader or step."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):  # in a DataLoader's worker: its traceback comes before its message
        said = next((line for line in lines[2:] if not line.startswith(" ")), lines[0])
    else:
        said = lines[0] if isinstance(error, PresizeError) else f"{type(error).__name__}: {lines[0]}"
    done = plural(count, of.replace("batches", "batch").replace("steps", "step"), of)
    return DiagnosisError(f"{what}: failed after {done}: {said}")


class Repeated(NamedTuple):
    """The seconds of each repetition of a step, and the cores that this process kept busy."""

    samples_s: list[float]
    cores: float

    @property
    def mean_s(self) -> float:
        return fmean(self.samples_s)

    @property
    def step(self) -> Times:
        return Times.measured(self.samples_s)


def together(several: Sequence[Repeated]) -> Repeated:
    """All repetitions as one."""
    return Repeated([seconds for one in several for seconds in one.samples_s], fmean(one.cores for one in several))


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
    samples_s = [max(seconds, SHORTEST_S) for seconds in clock.between(marks)]
    return Repeated(samples_s, cpu_s / max(queued_s, SHORTEST_S))


def resident_s(step: Step, batch: Any) -> float:
    """T_resident: mean seconds of a step on a `batch` that is already on the device."""
    placed = step.place(batch)
    return repeat(step.clock, lambda: step(placed), STEP_BUDGET).mean_s


def copied_s(step: Step, batch: Any) -> float:
    """T_h2d: mean seconds of a step that copies `batch`, which should be in pinned memory, to the device each time."""
    return repeat(step.clock, lambda: step(step.place(batch)), STEP_BUDGET).mean_s


@dataclass(frozen=True)
class Epoch:
    """One epoch."""

    seconds: float  # from the start of the loader to the end of the last step
    first_batch_s: float  # from there to its first batch; in a first epoch this includes starting the workers
    batches: int
    images: int
    window_s: float  # of the steps that count, those after the warm-up steps
    window_images: int
    cpu_s: float  # CPU time of this process and its workers

    @property
    def images_per_s(self) -> float:
        """Of the steps that count."""
        return self.window_images / self.window_s


def time_epoch(loader: Iterable[Any], step: Step, *, warmup_steps: int = 1) -> Epoch:
    """Read an epoch of `loader` and do `step` with each batch. Child processes of this one count as its workers.

    Args:
        loader: any iterable of batches (images, ...) or images.
        step: what to do with each.
        warmup_steps: steps not to count, from 1. MLPerf Storage leaves out one. Where n workers start together, their
            first n batches also come together, so that n must be left out to see the pace of a long epoch. An epoch
            with no more steps than that is counted whole.

    Raises:
        OptionError: there is no batch.
        DiagnosisError: a batch has no length.
    """
    check_range("warmup_steps", warmup_steps, 1, 2**31)
    cpu_s, images = _cpu_seconds(), list[int]()
    begin_s = first_s = edge_s = time.perf_counter()
    for batch in loader:
        if not images:
            first_s = time.perf_counter()
        images.append(count_images(batch))
        step(step.place(batch))
        del batch  # its memory may be wanted for the next one
        if len(images) == warmup_steps:
            step.clock.wait()
            edge_s = time.perf_counter()
    step.clock.wait()
    end_s = time.perf_counter()
    if not images:
        raise OptionError("loader: expected at least one batch, got none")
    if len(images) <= warmup_steps:
        warmup_steps, edge_s = 0, begin_s
    window_s, window_images = end_s - edge_s, sum(images[warmup_steps:])
    spent_s = _cpu_seconds() - cpu_s
    return Epoch(end_s - begin_s, first_s - begin_s, len(images), sum(images), window_s, window_images, spent_s)


def _cpu_seconds() -> float:
    return cpu_seconds(child.pid for child in multiprocessing.active_children() if child.pid is not None)


def count_images(batch: Any) -> int:
    """How many images a batch has: the length of its first part if that has one (as in images, labels), or its own. Of
    several views of each image, only the first is counted. Raises DiagnosisError where nothing has a length."""
    try:
        parts = list(batch.values()) if isinstance(batch, Mapping) else batch
        if not isinstance(parts, (list, tuple)) or not hasattr(parts[0], "__len__"):
            return len(parts)
        first = parts[0]
        if isinstance(first, (list, tuple)) and first and getattr(first[0], "ndim", 0) == 4:
            return len(first[0])
        return len(first)
    except (TypeError, IndexError):
        raise DiagnosisError(
            "loader: expected batches that have a length, or whose first part has one, got "
            f"{type(batch).__name__}; give batches as (images, ...)"
        ) from None
