"""Run a command and measure wall time, CPU time, the private memory of its processes, and other processes' CPU time."""

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
    """Measurements of a finished command.

    Attributes:
        output: its standard output.
        seconds: wall time, from before its start until its end.
        worker_private_mb: peak private memory (USS) of any child process, or of the command itself if it has none. It
            is sampled, so short peaks can be missed.
        driver_private_mb: peak private memory of the command itself.
        cpu_seconds: user and system time of the command and its children.
        other_cpu: share of all cores' time that other processes took. Above some hundredths, the machine was not idle.
    """

    output: str
    seconds: float
    worker_private_mb: float
    driver_private_mb: float
    cpu_seconds: float
    other_cpu: float


def run(command: list[str]) -> Finished:
    """Run `command` and measure it. Raises SystemExit with its standard error if it fails."""
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
    """Call `function` in a new process that may start workers, and return its result."""
    with ProcessPoolExecutor(1, get_context("spawn"), _fork_workers) as executor:
        return executor.submit(function, *arguments).result()


def _fork_workers() -> None:
    """Fork workers: a spawned process would spawn them by default."""
    set_start_method("fork", force=True)


class Meter:
    """Wall time, CPU time and other processes' CPU time since its creation."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def cpu_seconds(self) -> float:
        """Return the CPU time of this process and of its children that have ended."""
        return _own_seconds() - self._own

    def other_cpu(self) -> float:
        """Return the share of all cores' time that other processes took."""
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
    """Return the USS of a process; 0 if it has ended."""
    with suppress(psutil.Error):
        return int(process.memory_full_info().uss)
    return 0


def _busy_seconds() -> float:
    """Return the busy CPU time of the whole machine since it booted. `user` includes guests."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _own_seconds() -> float:
    return float(sum(psutil.Process().cpu_times()[:4]))  # user, system, children's user, children's system
