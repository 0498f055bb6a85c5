"""Clocks that time the work of a device without waiting for it, which would keep it from working ahead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments in the work of a device, in order."""

    def mark(self) -> Any: ...

    def wait(self) -> None:
        """Wait until all work queued on the device is done."""
        ...

    def between(self, marks: Sequence[Any]) -> list[float]:
        """The seconds from each mark to the next, after a wait()."""
        ...


class HostClock:
    """For work that is done when it returns."""

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
    """The clock for work on `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
