"""CPU time, storage reads and memory of processes, from Linux, and the utilization of a GPU. None where unknown."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from presize.system.storage import read_fields

_SAMPLE_EVERY_S = 0.1


@dataclass(frozen=True)
class Usage:
    """What one or several processes have used since they started.

    Attributes:
        cpu_s: CPU time, user and system.
        read_bytes: bytes read from storage, without those that were in the page cache.
    """

    cpu_s: float
    read_bytes: int | None

    def __sub__(self, before: Usage) -> Usage:
        known = self.read_bytes is not None and before.read_bytes is not None
        return Usage(
            self.cpu_s - before.cpu_s,
            (self.read_bytes or 0) - (before.read_bytes or 0) if known else None,
        )


def usage(pids: Iterable[int] = ()) -> Usage:
    """The usage of this process and of `pids`, its running children. Children that have ended count as zero."""
    cpu_s, read = time.process_time(), [_read_bytes("self")]
    for pid in pids:
        with suppress(OSError):
            cpu_s += time.clock_gettime(~pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), in nanoseconds
        read.append(_read_bytes(str(pid)))
    known = [nbytes for nbytes in read if nbytes is not None]
    return Usage(cpu_s, sum(known) if len(known) == len(read) else None)


def _read_bytes(pid: str) -> int | None:
    return _field(Path("/proc", pid, "io"), "read_bytes")


def pss_bytes(pid: int) -> int | None:
    """The proportional set size of a process: a page that n processes share counts 1/n. (RSS would count the pages
    of a shard once for each worker that has mapped it.)"""
    kilobytes = _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss")
    return None if kilobytes is None else kilobytes << 10


def _field(path: Path, name: str) -> int | None:
    value = read_fields(path).get(name)
    return None if value is None else int(value.split()[0])


@dataclass(frozen=True)
class GpuUse:
    """The utilization of a GPU.

    Attributes:
        busy: the mean share of time in which any kernel ran, from 0 to 1, as nvidia-smi shows it. A high share does not
            prove that the GPU was used well.
        memory_bytes: the peak of memory in use, by all processes.
    """

    busy: float
    memory_bytes: int


class GpuWatch:
    """Samples the utilization of a GPU with NVML while the context is open.

    `use` is None where pynvml is not installed or does not find the GPU.

    Args:
        uuid: the GPU's, as NVML writes it (``GPU-...``); None samples nothing.
    """

    def __init__(self, uuid: str | None) -> None:
        self._uuid = uuid
        self._seen: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        with suppress(ImportError):
            nvml: Any = importlib.import_module("pynvml")
            with suppress(nvml.NVMLError):
                if self._uuid is not None:
                    nvml.nvmlInit()
                    handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
                    self._thread = threading.Thread(target=self._watch, args=(nvml, handle), daemon=True)
                    self._thread.start()
        return self

    def _watch(self, nvml: Any, handle: Any) -> None:
        with suppress(nvml.NVMLError):
            while True:
                busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                self._seen.append((busy, nvml.nvmlDeviceGetMemoryInfo(handle).used))
                if self._ended.wait(_SAMPLE_EVERY_S):
                    return

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def use(self) -> GpuUse | None:
        """The utilization up to now."""
        seen = list(self._seen)
        return GpuUse(fmean(busy for busy, _ in seen), max(used for _, used in seen)) if seen else None
