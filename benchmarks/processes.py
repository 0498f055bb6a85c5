"""Run a command and watch it: wall time, private memory of its worker processes, and what else the
machine was doing meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import TypeVar

_SAMPLE_EVERY_S = 0.3

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Finished:
    """output: what the command printed. seconds: from before it was started until it had ended.

    worker_private_mb, driver_private_mb: the most private memory (USS) that any child process, and the
        command itself, was seen with; it is sampled, so a short peak can be missed. Without children, the
        command is the worker.
    cpu_seconds: of the command and its children, in the program and in the kernel.
    other_cpu: the share of all cores' time that went into processes that are not the command's. Above
        some hundredths, the machine was not quiet.
    """

    output: str
    seconds: float
    worker_private_mb: float
    driver_private_mb: float
    cpu_seconds: float
    other_cpu: float


def run(command: list[str]) -> Finished:
    """Raises SystemExit with its last words when the command fails."""
    meter = Meter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended = threading.Event()
    peaks = {"worker": 0, "driver": 0}
    watcher = threading.Thread(target=_watch, args=(process.pid, peaks, ended))
    watcher.start()
    output, errors = process.communicate()
    seconds = meter.seconds()
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}:\n{errors}")
    return Finished(
        output,
        seconds,
        (peaks["worker"] or peaks["driver"]) / 1e6,
        peaks["driver"] / 1e6,
        meter.cpu_seconds(),
        meter.other_cpu(),
    )


def apart(function: Callable[..., _Result], *arguments: object) -> _Result:
    """What `function` returns, called in a new process, which may have workers of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), _fork_workers) as executor:
        return executor.submit(function, *arguments).result()


def _fork_workers() -> None:
    """As where nothing else is said: a process that was spawned would spawn its own, too."""
    set_start_method("fork", force=True)


class Meter:
    """Counts from the moment when it is made."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def cpu_seconds(self) -> float:
        """Of this process, and of those it started that have ended."""
        return _own_seconds() - self._own

    def other_cpu(self) -> float:
        """As in Finished."""
        other = _busy_seconds() - self._busy - self.cpu_seconds()
        return max(0.0, other / self.seconds() / (os.cpu_count() or 1))


def _watch(driver: int, peaks: dict[str, int], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_EVERY_S):
        peaks["driver"] = max(peaks["driver"], private_bytes(driver))
        for pid in _children(driver):
            peaks["worker"] = max(peaks["worker"], private_bytes(pid))


def private_bytes(pid: int) -> int:
    """Memory that only this process holds; 0 when it has ended."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")):
                total += int(line.split()[1]) << 10
    return total


def _children(pid: int) -> Iterator[int]:
    """The processes below `pid`, grandchildren and all."""
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _children(child)


def _busy_seconds() -> float:
    """CPU time of the whole machine since it started, waiting and idling apart."""
    user, nice, system, _idle, _wait, irq, soft_irq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """CPU time of this process and of those it started that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
