"""Time an epoch of any loader, with or without a model; and the same step without a loader.

Clocks are read without waiting for the device, which would keep it from working ahead: it is waited for at the
edges of a window alone.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from presize.datasets.reading.transfer import to_device
from presize.errors import OptionError
from presize.measure.stages import Quantiles
from presize.options import check_range
from presize.system.usage import pss_bytes, usage

_WARM_UP_STEPS = 2
_LEAST_STEPS, _MOST_STEPS = 3, 100
_STEPS_FOR_S = 1.0
"""Steps without a loader are repeated for about so long."""


class Clock(Protocol):
    """Marks moments in the work of a device, in order."""

    def mark(self) -> Any: ...

    def wait(self) -> None:
        """Until all that was asked of the device is done."""
        ...

    def between(self, marks: Sequence[Any]) -> list[float]:
        """The seconds from each mark to the next, after a wait()."""
        ...


class HostClock:
    """Of work that is done when it returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def wait(self) -> None:
        pass

    def between(self, marks: Sequence[float]) -> list[float]:
        return [after - before for before, after in pairwise(marks)]


class CudaClock:
    """Marks are events on the current stream, which the GPU dates itself."""

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
    """The one that tells the time of work on `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


class Step(Protocol):
    """What is done with each batch: place() brings it to the device, and the call trains on it there. Neither
    need have finished when it returns; `clock` tells when it has."""

    @property
    def clock(self) -> Clock: ...

    def place(self, batch: Any) -> Any: ...

    def __call__(self, placed: Any) -> None: ...


class NoModel:
    """Brings batches to `device` and does nothing with them: the loader alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clock = clock_of(device)

    def place(self, batch: Any) -> Any:
        return to_device(batch, self.device)

    def __call__(self, placed: Any) -> None:
        pass


@dataclass(frozen=True)
class Epoch:
    """One epoch, in seconds.

    seconds: from the moment when the loader was asked to begin until the last step had ended.
    first_batch_s: until the first batch was there; in a first epoch with the start of the workers.
    window_s, window_images: of the steps that count: those after the first `warmup_steps`, which find what workers
        have read at the same time as the very first.
    steps: from the end of each of these to the end of the next.
    cpu_s: of this process and of its workers. read_bytes: from storage, None where that cannot be known.
    worker_pss_bytes: of the worker that has most (PSS), at the end; None without workers.
    """

    seconds: float
    first_batch_s: float
    batches: int
    images: int
    window_s: float
    window_images: int
    steps: Quantiles
    cpu_s: float
    read_bytes: int | None
    worker_pss_bytes: int | None

    @property
    def images_per_s(self) -> float:
        """In the window."""
        return self.window_images / self.window_s


def time_epoch(loader: Iterable[Any], step: Step, *, warmup_steps: int = 1) -> Epoch:
    """Read an epoch of `loader`, any iterable of batches (images, ...) or images, and do `step` with each batch.

    warmup_steps: how many steps to leave out, from 1. MLPerf Storage leaves out one. Where n workers begin together,
        their first n batches come together, too, so n have to go for what is left to be what a long epoch is like.
        An epoch that has no more steps than that is counted whole.

    The workers are the child processes of this one. Raises OptionError when there is no batch.
    """
    check_range("warmup_steps", warmup_steps, 1, 2**31)
    clock, children = step.clock, [child.pid for child in multiprocessing.active_children()]
    before = usage(pid for pid in children if pid is not None)
    images: list[int] = []
    begin = edge = time.perf_counter()
    first_s = 0.0
    marks = [clock.mark()]
    for batch in loader:
        if not images:
            first_s = time.perf_counter() - begin
        images.append(count_images(batch))
        step(step.place(batch))
        del batch  # its memory may be wanted for the next one
        marks.append(clock.mark())
        if len(images) == warmup_steps:
            clock.wait()
            edge = time.perf_counter()
    clock.wait()
    end = time.perf_counter()
    if not images:
        raise OptionError("loader: expected at least one batch, got none")
    if len(images) <= warmup_steps:
        warmup_steps, edge = 0, begin
    workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    used = usage(workers) - before
    sizes = [size for size in map(pss_bytes, workers) if size is not None]
    return Epoch(
        seconds=end - begin,
        first_batch_s=first_s,
        batches=len(images),
        images=sum(images),
        window_s=end - edge,
        window_images=sum(images[warmup_steps:]),
        steps=Quantiles.of(clock.between(marks[warmup_steps:])),
        cpu_s=used.cpu_s,
        read_bytes=used.read_bytes,
        worker_pss_bytes=max(sizes, default=None),
    )


def count_images(batch: Any) -> int:
    """How many images there are in a batch: of the first of its parts where it has parts with a length (images and
    labels, say), or of the batch itself. Raises TypeError where neither has one, and IndexError for no parts."""
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, (list, tuple)) and hasattr(parts[0], "__len__"):
        return len(parts[0])
    return len(parts)


def resident_s(step: Step, batch: Any) -> float:
    """T_resident: seconds that a step takes with `batch` on the device already."""
    placed = step.place(batch)
    return _repeated_s(step.clock, lambda: step(placed))


def copied_s(step: Step, batch: Any) -> float:
    """T_h2d: seconds that a step takes when `batch`, which should be in page-locked memory, is copied each time."""
    return _repeated_s(step.clock, lambda: step(step.place(batch)))


def _repeated_s(clock: Clock, work: Callable[[], None]) -> float:
    """A mean over about _STEPS_FOR_S."""
    for _ in range(_WARM_UP_STEPS):
        work()
    clock.wait()
    begin = time.perf_counter()
    work()
    clock.wait()
    one_s = max(time.perf_counter() - begin, 1e-9)
    steps = min(max(math.ceil(_STEPS_FOR_S / one_s), _LEAST_STEPS), _MOST_STEPS)
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    clock.wait()
    return (time.perf_counter() - begin) / steps
