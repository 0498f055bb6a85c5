"""Signals that a terminal or a job scheduler sends to a whole process group: workers leave them to their parent."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

FOR_PARENTS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


@contextmanager
def starting_workers() -> Iterator[None]:
    """Hold back FOR_PARENTS: in this thread for the block, in a process that it starts until leave_to_parent()."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_PARENTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # those that came meanwhile are delivered here


def leave_to_parent(numbers: frozenset[signal.Signals] = FOR_PARENTS) -> None:
    """Ignore signals in this process, whose parent ends it. For the main thread."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
