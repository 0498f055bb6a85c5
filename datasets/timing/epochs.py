"""Time an epoch of any loader, with or without a model, and the same step without a loader. The device is waited for
only at the edges of what is timed."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from presize.datasets.reading.transfer import to_device
from presize.datasets.timing.loops import Budget, Clock, clock_of, repeat
from presize.errors import OptionError
from presize.options import check_range
from presize.system.resources import cpu_seconds

STEP_BUDGET = Budget(100, 1.0)
"""How often, and for how many seconds, a step without a loader is repeated."""


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
        self.clock = clock_of(device)

    def place(self, batch: Any) -> Any:
        return to_device(batch, self.device)

    def __call__(self, placed: Any) -> None:
        pass


@dataclass(frozen=True)
class Epoch:
    """One epoch.

    Attributes:
        seconds: from the start of the loader to the end of the last step.
        first_batch_s: from the start of the loader to its first batch; in a first epoch this includes starting the
            workers.
        batches, images: how many came.
        window_s, window_images: of the steps that count, those after the warm-up steps.
        cpu_s: CPU time of this process and its workers.
    """

    seconds: float
    first_batch_s: float
    batches: int
    images: int
    window_s: float
    window_images: int
    cpu_s: float

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
    return Epoch(
        seconds=end_s - begin_s,
        first_batch_s=first_s - begin_s,
        batches=len(images),
        images=sum(images),
        window_s=end_s - edge_s,
        window_images=sum(images[warmup_steps:]),
        cpu_s=_cpu_seconds() - cpu_s,
    )


def _cpu_seconds() -> float:
    return cpu_seconds(child.pid for child in multiprocessing.active_children() if child.pid is not None)


def count_images(batch: Any) -> int:
    """How many images a batch has: the length of its first part if that has one (as in images, labels), or its own. Of
    several views of each image, only the first is counted.

    Raises:
        TypeError: neither has a length.
        IndexError: there are no parts.
    """
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(parts, (list, tuple)) or not hasattr(parts[0], "__len__"):
        return len(parts)
    first = parts[0]
    if isinstance(first, (list, tuple)) and first and getattr(first[0], "ndim", 0) == 4:
        return len(first[0])
    return len(first)


def resident_s(step: Step, batch: Any) -> float:
    """T_resident: mean seconds of a step on a `batch` that is already on the device."""
    placed = step.place(batch)
    return repeat(step.clock, lambda: step(placed), STEP_BUDGET).mean_s


def copied_s(step: Step, batch: Any) -> float:
    """T_h2d: mean seconds of a step that copies `batch`, which should be in pinned memory, to the device each time."""
    return repeat(step.clock, lambda: step(step.place(batch)), STEP_BUDGET).mean_s
