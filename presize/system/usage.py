"""CPU time of processes, from Linux."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress


def cpu_seconds(pids: Iterable[int] = ()) -> float:
    """Return the CPU time, user and system, of this process and `pids`, its running children, since they started."""
    seconds = time.process_time()
    for pid in pids:
        with suppress(OSError):
            seconds += time.clock_gettime(~pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), in nanoseconds
    return seconds
