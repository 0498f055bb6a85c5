"""The bytes of source files: checked against what was listed, in order, and read ahead where reading is slow.

From the page cache a photograph takes 50 microseconds, and handing it from thread to thread as much again. From
a disk or over a network it takes milliseconds, in which the codecs would stand still.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from presize.codecs.sniff import sniff
from presize.errors import BuildError, ImageError

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


_ABOUT_THE_FILE = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP,
    errno.ENAMETOOLONG,
}  # fmt: skip


_LARGE_BYTES = 64 << 20


_MOST_BYTES = 1 << 31


def read_source(source: Path, path: str, nbytes: int) -> bytes:
    """A source file of `nbytes`; of a large one that begins like no image, the beginning alone.

    Raises ImageError when it cannot be read, has changed or is larger than any decoder takes, and
    BuildError when that is not about this file.
    """
    try:
        with open(os.path.join(source, path), "rb", buffering=0) as file:
            if nbytes > _LARGE_BYTES and sniff(head := file.read(4096)) is None:
                return head
            if nbytes > _MOST_BYTES:
                raise ImageError(f"{nbytes} bytes, more than decoders take ({_MOST_BYTES})")
            if nbytes > _LARGE_BYTES:
                file.seek(0)
            data = file.read()
    except OSError as error:
        if error.errno in _ABOUT_THE_FILE and source.is_dir():
            raise ImageError(f"cannot be read: {error.strerror}") from None
        raise BuildError(f"cannot read {path!r} in {source}: {error.strerror}; run again to resume") from None
    if len(data) != nbytes:
        raise ImageError(f"it changed during the build: {nbytes} bytes when listed, {len(data)} when read")
    return data
