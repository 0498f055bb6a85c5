"""Several connections to a store at a time: one does not fill a fast network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

_CONNECTIONS = 8


class _StoppedError(Exception):
    """Another file could not be moved."""


class Connections:
    """Moves files, several at a time.

    Args:
        on_bytes: called, in any thread, with the number of bytes that have passed since the last call.

    Attributes:
        bytes: that have passed.
    """

    def __init__(self, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        self._on_bytes = on_bytes
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self.bytes = 0

    def all_of(self, move: Callable[[T], None], files: Iterable[T]) -> None:
        """Call `move` with each of `files`, which are drawn as connections become free. An error ends all."""
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(_CONNECTIONS, "presize-move") as pool:
            try:
                for file in files:
                    running.add(pool.submit(move, file))
                    if len(running) == _CONNECTIONS:
                        running = _after_one(running)
                while running:
                    running = _after_one(running)
            except BaseException:
                self.stop()
                raise

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


def _after_one(running: set[Future[None]]) -> set[Future[None]]:
    """Those that run on when at least one has ended. Raises its error."""
    ended, others = wait(running, return_when=FIRST_COMPLETED)
    for one in ended:
        one.result()
    return others
