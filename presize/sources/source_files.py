"""Reads source files in order, reads ahead where storage is slow, and checks them against what was listed.

From the page cache a photograph takes 50 microseconds, and passing it between threads as much again. From a
disk or over a network it takes milliseconds, during which the codecs would be idle.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from presize.codecs.sniff import sniff
from presize.errors import BuildError, ImageError
from presize.sources.store_source import Url, read_object
from presize.store.rejects import claims_to_be_an_image
from presize.system.files import open_at_once

T = TypeVar("T")


class Container(NamedTuple):
    """A file that holds many samples: an LMDB, a tar, or a Parquet file.

    Attributes:
        path: from the source, POSIX.
        column: the column of the images in a Parquet file; empty for the others.
    """

    path: str
    column: str = ""


class SourceFile(NamedTuple):
    """Where the bytes of a sample are: in a file of their own, or at a place in a container.

    Attributes:
        path: from the source, or the name of the sample in its container.
        nbytes: the size when it was listed; in a Parquet file a mean.
        container: None for a file of its own.
        offset: of the first byte in the container; in a Parquet file, row_place() of the row.
    """

    path: str
    nbytes: int
    container: Container | None = None
    offset: int = 0

    @property
    def claims_to_be_an_image(self) -> bool:
        """Whether it is rejected, and not skipped, when it is no image. Containers list nothing but images."""
        return self.container is not None or claims_to_be_an_image(self.path)


class Places(NamedTuple):
    """Where samples lie in containers.

    Attributes:
        containers: those that the samples lie in.
        container: of each sample, its position in `containers`.
        offset: of each sample, as in SourceFile.
    """

    containers: tuple[Container, ...]
    container: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]

    @property
    def in_rows(self) -> bool:
        """Whether they are rows of Parquet files, which are read one after the other."""
        return any(container.column for container in self.containers)


def source_files(paths: list[str], nbytes: list[int], places: Places | None) -> list[SourceFile]:
    """The files of samples; `places` for those of containers."""
    if places is None:
        return list(map(SourceFile, paths, nbytes))
    containers = (places.containers[number] for number in places.container.tolist())
    return list(map(SourceFile, paths, nbytes, containers, places.offset.tolist()))


_ROW_BITS = 32


def row_place(group: npt.NDArray[np.int64], row: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One number for a row group of a Parquet file and a row in it."""
    return group << _ROW_BITS | row


THREADS = 4
"""In each worker process: disks and networks serve concurrent requests faster than one at a time."""

SLOW_S = 0.0005
"""A file that takes longer is slow: ten times the time of the page cache, a quarter of the time of the codecs."""

_SLOW_FILES = 4  # more than fast ones
_FILES_AHEAD = 4  # for each thread
_BYTES_AHEAD = 64 << 20


def read_in_order(
    read: Callable[[T], bytes], files: Iterable[tuple[T, int]], threads: int = THREADS
) -> Generator[Callable[[], bytes], None, None]:
    """Read files in order; ahead of time once several of them were slow.

    Reading ahead takes up to four files a thread, or 64 MiB. Closing the generator waits for the reads in progress.

    Args:
        read: reads one file.
        files: (file, size in bytes) of each.
        threads: how many read ahead.

    Yields:
        For each file a function that returns what ``read(file)`` returns, or raises what it raises. Call it once,
        before the next one is asked for.
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
    yield from _read_ahead(read, others, threads)


def _read_ahead(
    read: Callable[[T], bytes], files: Iterator[tuple[T, int]], count: int
) -> Iterator[Callable[[], bytes]]:
    with ThreadPoolExecutor(count, "presize-read") as threads:
        ahead: deque[tuple[Future[bytes], int]] = deque()
        bytes_ahead = 0
        try:
            for file, nbytes in files:
                while ahead and (len(ahead) == _FILES_AHEAD * count or bytes_ahead + nbytes > _BYTES_AHEAD):
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


_MAX_BYTES = 1 << 31


def read_source(
    source: Path | Url, path: str, nbytes: int, container: Container | None = None, offset: int = 0
) -> bytes:
    """The content of a source file (see SourceFile); of a large one that does not start like an image, the start alone.

    Raises:
        ImageError: this file cannot be read, has changed, or is too large for any decoder.
        BuildError: reading failed for a reason that is not about this file.
    """
    file = SourceFile(path, nbytes, container, offset)
    try:
        return _read(source, file)
    except OSError as error:
        if _is_about(file, error) and Path(source).is_dir():
            raise ImageError(f"cannot be read: {error.strerror}") from None
        raise _unreadable(source, file, f"{error.strerror}; run again to resume") from None


def _is_about(file: SourceFile, error: OSError) -> bool:
    """Whether an error is about one sample, and not about all others of its container, too."""
    return error.errno in (_ABOUT_THE_FILE if file.container is None else {errno.EIO})


def _unreadable(source: Path | Url, file: SourceFile, reason: str) -> BuildError:
    path = file.path if file.container is None else file.container.path
    return BuildError(f"cannot read {path!r} in {source}: {reason}")


def read_again(source: Path | Url, file: SourceFile) -> bytes:
    """read_source() of a file that has been read before, for report.html, whose bytes must not depend on luck.

    A failing disk may fail at one read and not at the next: the read is repeated once, then the build stops.

    Raises:
        ImageError: the file has changed or has gone.
        BuildError: reading failed for any other reason.
    """
    with suppress(OSError):
        return _read(source, file)
    try:
        return _read(source, file)
    except OSError as error:
        if _is_about(file, error) and error.errno != errno.EIO and Path(source).is_dir():
            raise ImageError(f"cannot be read: {error.strerror}") from None
        again = f"again for report.html: {error.strerror}; run again to resume, with --no-report if it fails again"
        raise _unreadable(source, file, again) from None


def _read(source: Path | Url, wanted: SourceFile) -> bytes:
    path, nbytes, container, offset = wanted
    if isinstance(source, Url):
        return read_object(source, path, nbytes)
    if container is not None and container.column:
        from presize.sources.containers.parquet_rows import read_row  # pyarrow, which other sources do not need

        group, row = divmod(offset, 1 << _ROW_BITS)
        return read_row(os.path.join(source, container.path), container.column, group, row)
    place = os.path.join(source, path if container is None else container.path)
    file = open_at_once(place, os.O_RDONLY | os.O_CLOEXEC)  # a file object would cost as much as reading it does
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ImageError("it changed during the build: it is no regular file any more")
        if nbytes > _LARGE_BYTES and sniff(head := os.pread(file, 4096, offset)) is None:
            return head
        if nbytes > _MAX_BYTES:
            raise ImageError(f"it has {nbytes} bytes, more than decoders accept ({_MAX_BYTES})")
        data = _read_at_most(file, nbytes + (container is None), offset)  # one byte more tells a file that has grown
    finally:
        os.close(file)
    if len(data) != nbytes:
        found = f"{len(data)}" if len(data) < nbytes else "more"
        raise ImageError(f"it changed during the build: {nbytes} bytes when listed, {found} when read")
    return data


def starts_like_an_image(source: Path, path: str) -> bool:
    """Whether a build would decode this file, by its first bytes. False for what cannot be read."""
    try:
        with open(os.path.join(source, path), "rb", buffering=0, opener=open_at_once) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and sniff(file.read(4096)) is not None
    except OSError:
        return False


_BLOCK_BYTES = 1 << 20


def crc32_of(root: Path | Url, source: SourceFile) -> int | None:
    """The CRC-32 of a source file; None when it cannot be read."""
    crc32 = 0
    try:
        if source.container is not None or isinstance(root, Url):
            return zlib.crc32(read_source(root, *source))
        with open(os.path.join(root, source.path), "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                crc32 = zlib.crc32(block, crc32)
    except (OSError, ImageError):
        return None
    return crc32


def _read_at_most(file: int, nbytes: int, offset: int) -> bytes:
    data = os.pread(file, nbytes, offset)
    while len(data) < nbytes and (more := os.pread(file, nbytes - len(data), offset + len(data))):
        data += more
    return data
