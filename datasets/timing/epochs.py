"""Timing of loaders and steps: batches until a budget is spent, a step repeated on one batch, and an epoch of any
loader. Except for Clock on MPS, the device is synchronized only at both ends of a measurement."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import torch

from presize.datasets.reading.transfer import map_tensors, to_device
from presize.errors import DiagnosisError, OptionError, PresizeError
from presize.formatting import plural
from presize.measure.simulation import Times
from presize.measure.watch import images_in
from presize.options import check_range
from presize.system.resources import cpu_seconds, is_asynchronous

LEAST = 3  # batches or steps behind each figure, at least
SHORTEST_S = 1e-9  # lower limit of times: work may take less than a clock can resolve
_WARM_UP_STEPS = 2


class Clock:
    """Marks of moments in the work of `device`, in order: events, because synchronizing would stall its queue; on MPS,
    whose events may hang (pytorch #196395), it synchronizes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._has_events = is_asynchronous(device.type)

    def mark(self) -> Any:
        if not self._has_events:
            self.wait()
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    def wait(self) -> None:
        """Wait until all work queued on the device is done."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def between(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds from each mark to the next, after a wait()."""
        if self._has_events:
            return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]
        return [after - before for before, after in pairwise(marks)]


class NoModel:
    """Step that copies batches to `device` and does nothing with them, to time the loader by itself.

    A training step is a subclass that overrides the call. place() and the call may return before the device is done;
    `clock` times the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clock = Clock(device)

    def place(self, batch: Any) -> Any:
        return to_device(batch, self.device)

    def __call__(self, placed: Any) -> None:
        pass


class Budget(NamedTuple):
    """Limit of a measurement: batches, or seconds from the first batch, whichever is reached first."""

    batches: float
    seconds: float

    def is_spent(self, batches: int, least: int, first_s: float) -> bool:
        """Return whether to stop after `batches`, if the first came at `first_s`; never with fewer than `least`."""
        return batches >= least and (batches >= self.batches or time.perf_counter() - first_s >= self.seconds)


STEP_BUDGET = Budget(100, 1.0)  # for a repeated step of a benchmark
ENDLESS = Budget(math.inf, math.inf)


def taken(
    batches: Iterator[Any], budget: Budget = ENDLESS, least: int = 1, take: Callable[[Iterator[Any]], Any] = next
) -> Generator[Any, None, None]:
    """Yield batches, at least `least`, until `budget` is spent or they end. `take` gets the next one. Closing this
    generator closes `batches` if that is a generator, which ends its workers. Raises DiagnosisError if `take` fails."""
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
            del batch  # frees its memory for the next one
    finally:
        if isinstance(batches, Generator):
            batches.close()


def an_epoch(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of an epoch. If `loader` is an iterator, it is not closed with this generator."""
    for batch in loader:
        yield batch
        del batch


def failed(what: str, count: int, of: str, error: Exception) -> DiagnosisError:
    """Return a one-line error for a failure of the user's own loader or step."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):  # in a DataLoader's worker: the traceback precedes the message
        said = next((line for line in lines[2:] if not line.startswith(" ")), lines[0])
    else:
        said = lines[0] if isinstance(error, PresizeError) else f"{type(error).__name__}: {lines[0]}"
    done = plural(count, of.replace("batches", "batch").replace("steps", "step"), of)
    return DiagnosisError(f"{what}: failed after {done}: {said}")


class Repeated(NamedTuple):
    """Seconds of each repetition of a step, and the cores that this process kept busy."""

    samples_s: list[float]
    cores: float

    @property
    def mean_s(self) -> float:
        return fmean(self.samples_s)

    @property
    def step(self) -> Times:
        return Times.measured(self.samples_s)


def together(several: Sequence[Repeated]) -> Repeated:
    """Merge several series of repetitions."""
    return Repeated([seconds for one in several for seconds in one.samples_s], fmean(one.cores for one in several))


def repeat(
    clock: Clock, step: Callable[[Any], Any], batch: Any, budget: Budget, place: Callable[[Any], Any] | None = None
) -> Repeated:
    """Time `step` on `batch`, after `place` and a warm-up, at least LEAST times and until `budget` is spent. Raises
    DiagnosisError if it fails."""
    done = 0

    def once() -> None:
        nonlocal done
        step(batch)
        done += 1

    try:
        batch = batch if place is None else place(batch)
        for _ in range(_WARM_UP_STEPS):
            once()
        clock.wait()
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        marks = [clock.mark()]
        while not budget.is_spent(len(marks) - 1, LEAST, begin_s):
            once()
            marks.append(clock.mark())
        cpu_s = time.process_time() - cpu_s  # before wait(), which may spin on a core
        queued_s = time.perf_counter() - begin_s
        clock.wait()
        samples_s = [max(seconds, SHORTEST_S) for seconds in clock.between(marks)]
    except Exception as error:
        raise failed("step", done, "steps on one batch", error) from error
    return Repeated(samples_s, cpu_s / max(queued_s, SHORTEST_S))


def resident_s(step: NoModel, batch: Any) -> float:
    """Return T_resident: mean seconds of a step on a `batch` that is already on the device."""
    return repeat(step.clock, step, batch, STEP_BUDGET, step.place).mean_s


def copied_s(step: NoModel, batch: Any) -> float:
    """Return T_h2d: mean seconds of a step that copies `batch`, made by on_host(), to the device each time."""
    return repeat(step.clock, lambda batch: step(step.place(batch)), batch, STEP_BUDGET).mean_s


def on_host(batch: Any, device: torch.device) -> Any:
    """Return the batch in CPU memory; pinned if `device` can copy from that asynchronously."""
    pins = is_asynchronous(device.type)
    return map_tensors(lambda tensor: tensor.cpu().pin_memory() if pins else tensor.cpu(), batch)


@dataclass(frozen=True)
class Epoch:
    """Times of one epoch."""

    seconds: float  # from the start of the loader to the end of the last step
    first_batch_s: float  # from the start of the loader to its first batch; the first epoch also starts the workers
    batches: int
    images: int
    window_s: float  # of the steps after the warm-up steps
    window_images: int
    cpu_s: float  # CPU time of this process and its workers

    @property
    def images_per_s(self) -> float:
        """Images per second after the warm-up steps."""
        return self.window_images / self.window_s


def time_epoch(loader: Iterable[Any], step: NoModel, *, warmup_steps: int = 1) -> Epoch:
    """Read an epoch of `loader` and run `step` on each batch. All child processes of this process count as the
    loader's workers.

    Args:
        loader: Iterable of batches (images, ...) or images.
        step: Step to run on each batch.
        warmup_steps: Number of steps to leave out, from 1. MLPerf Storage leaves out one. n workers that start together
            deliver their first n batches together: leave out n to see the rate of a long epoch. An epoch with no
            further steps is counted in full.

    Raises:
        OptionError: There is no batch, or `warmup_steps` is out of range.
        DiagnosisError: A batch has no length.
    """
    check_range("warmup_steps", warmup_steps, 1, 2**31)
    cpu_s, images = _cpu_seconds(), list[int]()
    begin_s = first_s = edge_s = time.perf_counter()
    for batch in loader:
        if not images:
            first_s = time.perf_counter()
        images.append(count_images(batch))
        step(step.place(batch))
        del batch  # frees its memory for the next one
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
    """Return the number of images in a batch: as images_in() counts them, or else the length of its first part if that
    has one, or its own. Counts only the first of several views. Raises DiagnosisError if nothing has a length."""
    if images := images_in(batch):
        return images
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
            "loader: expected batches with a length, or with a first part that has one, got "
            f"{type(batch).__name__}; give batches as (images, ...)"
        ) from None
