"""Read files in order, and ahead of their turn where reading is slow.

From the page cache a photograph takes 50 microseconds, and handing it from thread to thread as much again. From
a disk or over a network it takes milliseconds, in which the codecs would stand still.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")

THREADS = 4
"""In each worker process: disks and networks serve several requests at a time faster than one by one."""

SLOW_S = 0.0005
"""From how many seconds on a file is slow: ten times what the page cache takes, a quarter of what the codecs take."""

_SLOW_FILES = 4  # more than there were fast ones
_FILES_AHEAD = 16
_BYTES_AHEAD = 64 << 20


def read_in_order(
    read: Callable[[T], bytes], files: Iterable[tuple[T, int]]
) -> Generator[Callable[[], bytes], None, None]:
    """For each of `files`, which come with their sizes in bytes, a function that gives what ``read(file)`` returns, or
    raises what it raises; to be called once, before the next one is asked for.

    When several files were slow, THREADS threads read the others, up to 16 files or 64 MiB ahead. Closing the
    generator waits for those that they are at.
    """
    slow = 0

    def timed(file: T) -> bytes:
        nonlocal slow
        start = time.perf_counter()
        try:
            return read(file)
        finally:
            slow = slow + 1 if time.perf_counter() - start > SLOW_S else max(0, slow - 1)

    others = iter(files)
    for file, _ in others:
        yield partial(timed, file)
        if slow >= _SLOW_FILES:
            break
    yield from _read_ahead(read, others)


def _read_ahead(read: Callable[[T], bytes], files: Iterator[tuple[T, int]]) -> Iterator[Callable[[], bytes]]:
    with ThreadPoolExecutor(THREADS, "presize-read") as threads:
        ahead: deque[tuple[Future[bytes], int]] = deque()
        bytes_ahead = 0
        try:
            for file, nbytes in files:
                while ahead and (len(ahead) == _FILES_AHEAD or bytes_ahead + nbytes > _BYTES_AHEAD):
                    future, its_bytes = ahead.popleft()
                    bytes_ahead -= its_bytes
                    yield future.result
                ahead.append((threads.submit(read, file), nbytes))
                bytes_ahead += nbytes
            while ahead:
                yield ahead.popleft()[0].result
        finally:
            for future, _ in ahead:
                future.cancel()
