"""What processes have used, as Linux counts it, and what a GPU is doing. What cannot be known is None."""

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

_SAMPLE_EVERY_S = 0.1


@dataclass(frozen=True)
class Usage:
    """Of one or several processes since they began: seconds of CPU, in the program and in the kernel, and bytes
    that had to be read from storage; those that the page cache had do not count."""

    cpu_s: float
    read_bytes: int | None

    def __sub__(self, before: Usage) -> Usage:
        known = self.read_bytes is not None and before.read_bytes is not None
        return Usage(
            self.cpu_s - before.cpu_s,
            (self.read_bytes or 0) - (before.read_bytes or 0) if known else None,
        )


def usage(pids: Iterable[int] = ()) -> Usage:
    """Of this process and of `pids`, children of it that are running. A child that has ended counts for nothing."""
    cpu_s, read = time.process_time(), [_read_bytes("self")]
    for pid in pids:
        with suppress(OSError):
            cpu_s += time.clock_gettime(~pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), in nanoseconds
        read.append(_read_bytes(str(pid)))
    known = [nbytes for nbytes in read if nbytes is not None]
    return Usage(cpu_s, sum(known) if len(known) == len(read) else None)


def _read_bytes(pid: str) -> int | None:
    return _field(Path("/proc", pid, "io"), "read_bytes:")


def pss_bytes(pid: int) -> int | None:
    """The memory of a process, where each page that n processes share counts for an n-th of it (PSS). RSS would
    count the pages of a shard once for each worker that has mapped it."""
    kilobytes = _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    return None if kilobytes is None else kilobytes << 10


def _field(path: Path, name: str) -> int | None:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None


@dataclass(frozen=True)
class GpuUse:
    """busy: the mean share of time in which any kernel ran, from 0 to 1, as nvidia-smi shows it. It is no proof
    that the GPU was well used. memory_bytes: the most that was seen in use, by all processes."""

    busy: float
    memory_bytes: int


class GpuWatch:
    """Watches a GPU by NVML while the context is open. `use` is None where pynvml is not installed or finds none."""

    def __init__(self, uuid: str | None) -> None:
        """uuid: the GPU's, as NVML has it (``GPU-...``); None watches nothing."""
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
        """What was seen until now."""
        seen = list(self._seen)
        return GpuUse(fmean(busy for busy, _ in seen), max(used for _, used in seen)) if seen else None
