"""Several connections to a store at a time: one does not fill a fast network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from presize.system.background import in_background

T = TypeVar("T")

_CHECK_S = 0.2
_ENDS_WITHIN_S = 2
"""How long those that are stopped are waited for. One that gets no answer is left behind, and ends with the process."""


class _StoppedError(Exception):
    """Another file could not be moved."""


class Connections:
    """Moves files, several at a time.

    Args:
        on_bytes: called, in any thread, with the number of bytes that have passed since the last call.
        count: how many at a time.

    Attributes:
        bytes: that have passed.
    """

    def __init__(self, on_bytes: Callable[[int], None] = lambda _: None, count: int = 8) -> None:
        self._on_bytes, self._count = on_bytes, count
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self.bytes = 0

    def all_of(self, move: Callable[[T], None], files: Iterable[T]) -> None:
        """Call `move` with each of `files`, which are drawn as connections become free. An error ends all."""
        running: set[Future[None]] = set()
        try:
            for file in files:
                running.add(in_background(move, file))
                if len(running) == self._count:
                    running = self._after_one(running)
            while running:
                running = self._after_one(running)
        except BaseException:
            self.stop()
            wait(running, _ENDS_WITHIN_S)
            raise

    def _after_one(self, running: set[Future[None]]) -> set[Future[None]]:
        """Those that run on when at least one has ended. Raises its error."""
        ended: set[Future[None]] = set()
        while not ended:
            if self._stopped.is_set():
                raise _StoppedError
            ended, others = wait(running, _CHECK_S, FIRST_COMPLETED)
        for one in ended:
            one.result()
        return others

    def stop(self) -> None:
        """End what is under way as soon as it goes on, and begin nothing more."""
        self._stopped.set()

    def passed(self, nbytes: int) -> None:
        """Count bytes that have passed. Raises, to end this one, when another one has failed."""
        if self._stopped.is_set():
            raise _StoppedError
        with self._lock:
            self.bytes += nbytes
            self._on_bytes(nbytes)
