"""Lets one process have the machine to itself for a moment, among processes that share it."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

_GATE, _ROOM = 0, 1


class Turnstile:
    """A lock that many processes hold at once, or one alone.

    Whoever wants to be alone is not kept waiting for ever by those who come and go: it closes the gate first. A
    process that dies gives back what it holds. Threads of a process count as one.

    Args:
        file: an open file that all of them have inherited. Its one byte is set while somebody is alone or waits to be.
    """

    def __init__(self, file: int) -> None:
        os.ftruncate(file, 1)
        self._file, self._wanted, self._inside = file, mmap.mmap(file, 1), False

    def enter(self) -> None:
        """Hold it with others, until leave(), once nobody is alone or waits to be.

        Whoever holds it calls this now and then, so that others may be alone: it costs next to nothing while nobody
        wants to be.
        """
        if self._inside:
            if not self._wanted[0]:
                return
            self.leave()
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _GATE)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _GATE)
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _ROOM)
        self._inside = True

    def leave(self) -> None:
        """Give back what enter() has taken."""
        self._inside = False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _ROOM)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """enter() and leave()."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Once all others have left."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _GATE)
        try:
            self._wanted[0] = 1  # by one process at a time, which holds the gate
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _ROOM)
            yield
        finally:
            self._wanted[0] = 0
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _ROOM)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _GATE)
