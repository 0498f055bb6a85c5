"""Functions that child processes run."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from presize.errors import ImageError
from presize.system.locks import RWLock


def end(code: int) -> None:
    os._exit(code)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def complain() -> None:
    raise ImageError("it is broken")


def sleep() -> None:
    time.sleep(600)


def visit(file: int, log: Path, name: str, seconds: float, alone: bool) -> None:
    """Hold a lock and log it: a line "name in", later a line "name out"."""
    lock = RWLock(file)
    with lock.alone() if alone else lock.shared():
        note(log, f"{name} in")
        time.sleep(seconds)
        note(log, f"{name} out")


def note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


def threads_with_numpy() -> list[str]:
    """Return the threads of this process that the kernel lists."""
    import numpy  # noqa: F401

    return os.listdir("/proc/self/task")


def are_imported(modules: Sequence[str]) -> bool:
    return all(module in sys.modules for module in modules)


def pages_taken(records: int, nbytes: int, times: int) -> int:
    """Return the number of pages that the kernel gives this process for the memory of some records, freed each time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        [bytearray(nbytes) for _ in range(records)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
