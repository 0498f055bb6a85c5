"""Run a command and watch it: wall time, private memory of its worker processes, and what else the machine was doing
meanwhile."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, set_start_method
from typing import TypeVar

import psutil

_SAMPLE_EVERY_S = 0.3

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Attributes:
        output: what it printed.
        seconds: of wall time, from before it was started until it had ended.
        worker_private_mb: the most private memory (USS) that any child process was seen with, or the command itself
            where it has no children. It is sampled, so a short peak can be missed.
        driver_private_mb: the same of the command itself.
        cpu_seconds: of the command and its children, user and system.
        other_cpu: the share of all cores' time that went into other processes. Above some hundredths, the machine
            was not idle.
    """

    output: str
    seconds: float
    worker_private_mb: float
    driver_private_mb: float
    cpu_seconds: float
    other_cpu: float


def run(command: list[str]) -> Finished:
    """Raises SystemExit with its standard error when the command fails."""
    meter = Meter()
    process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    """A process that was spawned would spawn its own, too."""
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
        return max(0.0, other / self.seconds() / psutil.cpu_count())


def _watch(pid: int, peaks: dict[str, int], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_EVERY_S):
        with suppress(psutil.NoSuchProcess):
            driver = psutil.Process(pid)
            peaks["driver"] = max(peaks["driver"], _private_bytes(driver))
            for child in driver.children(recursive=True):
                peaks["worker"] = max(peaks["worker"], _private_bytes(child))


def _private_bytes(process: psutil.Process) -> int:
    """Memory that only this process holds; 0 when it has ended."""
    with suppress(psutil.Error):
        return int(process.memory_full_info().uss)
    return 0


def _busy_seconds() -> float:
    """CPU time of the whole machine since it started, without waiting and idling. `user` includes guests."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _own_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    return float(sum(psutil.Process().cpu_times()[:4]))  # user, system, children's user, children's system
