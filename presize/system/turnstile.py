"""Lets one process have the machine to itself for a moment, among processes that share it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

_GATE, _ROOM = 0, 1


class Turnstile:
    """A lock that many processes hold at once, or one alone.

    Whoever wants to be alone is not kept waiting for ever by those who come and go: it closes the gate first. A
    process that dies gives back what it holds. Threads of a process count as one.

    Args:
        file: an open file that all of them have inherited; its content does not matter.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    def enter(self) -> None:
        """Hold it with others, until leave(), once nobody is alone or waits to be."""
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _GATE)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _GATE)
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _ROOM)

    def leave(self) -> None:
        """Give back what enter() has taken."""
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
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _ROOM)
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _ROOM)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _GATE)
