"""Locations of samples' bytes in files and containers, and their reader. Files must not change after they are listed.

Reading a photograph from the page cache takes 50 microseconds, and passing it between threads as much again. Reading it
from a disk or over a network takes milliseconds, during which the codecs would be idle.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from presize.codecs.sniff import is_known, sniff
from presize.errors import BuildError, ImageError, RemoteError, UnreadableError
from presize.remote.bucket import SCHEMES, Bucket, DamagedError
from presize.store.rejects import claims_to_be_an_image
from presize.system.file_version import FileVersion
from presize.system.files import is_url, open_at_once
from presize.system.pagecache import drop_pages

if TYPE_CHECKING:
    from presize.sources.parquet_rows import RowReader

T = TypeVar("T")

THREADS = 4
"""Reading threads per worker process. Disks and networks serve concurrent requests faster than one at a time."""
BUCKET_THREADS = 16
"""The same for a bucket, where a request takes tens of milliseconds, as long as decoding ten images."""
GROUP_ROWS = 1 << 32
"""The offset of a row in a Parquet file is row group * GROUP_ROWS + row."""
SLOW_S = 0.0005
"""A read that takes longer is slow: ten times the time of the page cache, a quarter of the time of the codecs. The time
to copy the file from the page cache is added, which matters for large files."""
_CACHED_BYTES_PER_S = 1e9
_SLOW_FILES = 4  # excess over fast files that starts reading ahead
_FILES_AHEAD = 4  # per thread
_BYTES_AHEAD = 64 << 20


class Url(str):
    """The URL of images in a store: s3://BUCKET/PATH, http(s)://HOST/PATH, gs:// or az://."""

    __slots__ = ()

    @classmethod
    def of(cls, source: str | os.PathLike[str]) -> Url | None:
        """Return `source` as a Url, or None if it is not a URL, or exists as a folder or file."""
        name = os.fspath(source)
        is_known = is_url(name) and name.partition("://")[0] in SCHEMES
        return cls(name.rstrip("/")) if is_known and not os.path.lexists(name) else None


class Container(NamedTuple):
    """A file with many samples. Offsets are valid only in this `version`. `column` has the images, in Parquet files."""

    path: str
    version: FileVersion
    column: str = ""

    @classmethod
    def of_json(cls, path: str, version: Iterable[Any], column: str) -> Container:
        return cls(path, FileVersion(*version), column)


class SourceFile(NamedTuple):
    """Location of a sample: its own file, or an offset in a container. In Parquet files, the offset is a row (see
    GROUP_ROWS), and `nbytes` is a mean."""

    path: str
    nbytes: int
    container: Container | None = None
    offset: int = 0

    @property
    def claims_to_be_an_image(self) -> bool:
        """Return whether a file that is not an image is rejected, not skipped. Containers list only images."""
        return self.container is not None or claims_to_be_an_image(self.path)


class Places(NamedTuple):
    """Locations of samples in containers: for each sample, its container's position in `containers`, and its offset."""

    containers: tuple[Container, ...]
    container: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]

    @property
    def in_rows(self) -> bool:
        """Return whether the samples are rows of Parquet files, which are read in order."""
        return any(container.column for container in self.containers)


def files_at(paths: list[str], nbytes: list[int], places: Places | None) -> list[SourceFile]:
    if places is None:
        return list(map(SourceFile, paths, nbytes))
    containers = (places.containers[number] for number in places.container.tolist())
    return list(map(SourceFile, paths, nbytes, containers, places.offset.tolist()))


def in_any_form(path: str, use: Callable[[str], T]) -> T:
    """Call `use` with a path and, if the file does not exist, with its other Unicode normalizations: a companion's path
    is derived from its image's, and the two files may come from different systems."""
    try:
        return use(path)
    except FileNotFoundError:
        for form in () if path.isascii() else ("NFC", "NFD"):
            with suppress(FileNotFoundError):
                return use(normalize(form, path))
        raise


_RUN_AGAIN = "run again; if that is refused because the samples differ, add --overwrite"


def open_container(source: str | os.PathLike[str], container: Container, fix: str = _RUN_AGAIN) -> int:
    """Return a file descriptor. Raises BuildError, ending with `fix`, if the file has changed since it was listed."""
    file = open_at_once(os.path.join(source, container.path), os.O_RDONLY | os.O_CLOEXEC)
    if FileVersion.of(os.fstat(file)).same_as(container.version):
        return file
    os.close(file)
    raise BuildError(
        f"{container.path!r} in {source} changed during the build: its size, times or inode number differ from the "
        f"listing; {fix}"
    )


def check_containers(source: str | os.PathLike[str], containers: Iterable[Container], fix: str = _RUN_AGAIN) -> None:
    for container in containers:
        try:
            os.close(open_container(source, container, fix))
        except OSError as error:
            raise unreadable(source, container.path, f"{error.strerror}; run again to resume") from None


def unreadable(source: str | os.PathLike[str], path: str, reason: str, purpose: str = "") -> BuildError:
    return BuildError(f"cannot read {path!r} in {source}{purpose}: {reason}")


def starts_like_an_image(source: Path, path: str) -> bool:
    """Return whether a build would decode this file, judging by its first bytes. Return False if it cannot be read."""
    try:
        with open(os.path.join(source, path), "rb", buffering=0, opener=open_at_once) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and sniff(file.read(4096)) is not None
    except OSError:
        return False


def read_in_order(
    read: Callable[[T], bytes], files: Iterable[tuple[T, int]], threads: int = THREADS
) -> Generator[Callable[[], bytes], None, None]:
    """Yield for each file, given with its size in bytes, a function that returns ``read(file)``. Call it once, before
    you take the next one.

    After several slow files, files are read ahead: at most four per thread, and 64 MiB. Closing the generator waits for
    the reads in progress.
    """
    slow = 0

    def timed(file: T, nbytes: int) -> bytes:
        nonlocal slow
        start = time.perf_counter()
        try:
            return read(file)
        finally:
            is_slow = time.perf_counter() - start > SLOW_S + nbytes / _CACHED_BYTES_PER_S
            slow = slow + 1 if is_slow else max(0, slow - 1)

    others = iter(files)
    for file, nbytes in others:
        yield partial(timed, file, nbytes)
        if slow >= _SLOW_FILES:
            break
    ahead: deque[tuple[Future[bytes], int]] = deque()
    pool = ThreadPoolExecutor(threads, "presize-read")
    try:
        for file, nbytes in others:
            most_bytes = _BYTES_AHEAD - nbytes
            while len(ahead) == _FILES_AHEAD * threads or (ahead and sum(each for _, each in ahead) > most_bytes):
                yield ahead.popleft()[0].result
            ahead.append((pool.submit(read, file), nbytes))
        while ahead:
            yield ahead.popleft()[0].result
    finally:
        pool.shutdown(cancel_futures=True)


LARGE_BYTES = 64 << 20
"""The start of a larger file is examined before the rest is read."""

_SNIFFED_BYTES = 4096
_MAX_BYTES = 1 << 31
_CHANGED = "it changed during the build: "
_BAD_SECTOR = {errno.EIO, errno.EBADMSG, errno.ENODATA, getattr(errno, "EUCLEAN", errno.EIO)}
"""Errors with which file systems report unreadable parts of files, or wrong checksums."""
_ABOUT_THE_FILE = _BAD_SECTOR | {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
}  # fmt: skip


class SourceReader:
    """Reader of the files of one source. Thread-safe.

    Each thread keeps its last container open: opening it takes longer than reading a sample. Reading raises BuildError
    if a container changed before it was opened; check_containers() notices later changes.
    """

    def __init__(self, root: Path | Url) -> None:
        self.root = root
        self._folder = os.path.join(root, "")  # once: os.path.join for each file takes longer than +
        self._here = threading.local()

    def read(self, file: SourceFile, for_report: bool = False) -> bytes:
        """Return the content of a file, or only the start of a large file that does not start like an image.

        With `for_report`, a file that the disk cannot read is tried once more, and then BuildError stops the build:
        the bytes of report.html must not depend on whether a read fails.

        Raises:
            UnreadableError: this file cannot be read, or has changed.
            ImageError: the file is too large for any decoder.
            BuildError: reading failed for a reason that does not concern only this file.
        """
        if for_report:
            with suppress(OSError):
                return self._content(file)
        try:
            return self._content(file)
        except OSError as error:
            about_one = _BAD_SECTOR if file.container else _ABOUT_THE_FILE
            about_one = about_one - _BAD_SECTOR if for_report else about_one
            if error.errno in about_one and Path(self.root).is_dir():
                raise UnreadableError(f"cannot be read: {error.strerror}") from None
            reason = f"{error.strerror}; run again to resume"
            path = file.container.path if file.container else file.path
            if for_report:
                reason += "; if it fails again, add --no-report"
            raise unreadable(self.root, path, reason, " again for report.html" if for_report else "") from None

    def can_read(self, file: SourceFile) -> bool:
        """Return whether the disk can read a file now. Drops its cached pages first: they may outlive the disk."""
        path = file.path if file.container is None else file.container.path
        with suppress(OSError, UnreadableError):  # such as for a URL
            descriptor = self._open(path)
            try:
                drop_pages(descriptor)
            finally:
                os.close(descriptor)
        try:
            self.read(file)
        except ImageError as error:
            return not isinstance(error, UnreadableError)
        return True

    def crc32(self, file: SourceFile) -> int | None:
        try:
            return zlib_ng.crc32(self.read(file))
        except ImageError:
            return None

    def _content(self, wanted: SourceFile) -> bytes:
        path, nbytes, container, offset = wanted
        if isinstance(self.root, Url):
            try:
                if nbytes > LARGE_BYTES and not is_known(head := self._bucket.get_range(path, _SNIFFED_BYTES)):
                    return head
                data = self._bucket.get(path, nbytes)
            except DamagedError as error:
                raise UnreadableError(error.reason) from None
            except RemoteError as error:
                raise BuildError(f"{error}; run again to resume") from None
            if data is None:
                raise UnreadableError(
                    f"{_CHANGED}it had {nbytes} bytes when listed; now its size differs, or it no longer exists"
                )
            return data
        if container is None:
            file = self._open(path)
            try:
                return _read(file, nbytes, 0, nbytes + 1)  # the extra byte reveals growth
            finally:
                os.close(file)
        return self._value(container, nbytes, offset)

    def _open(self, path: str) -> int:
        """Return a descriptor, because making a file object takes as long as reading a photograph."""
        file = in_any_form(path, lambda path: open_at_once(self._folder + path, os.O_RDONLY | os.O_CLOEXEC))
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise UnreadableError(f"{_CHANGED}it is no longer a regular file")
        return file

    def _value(self, container: Container, nbytes: int, offset: int) -> bytes:
        opened: _OpenContainer | None = getattr(self._here, "opened", None)
        is_new = opened is None or opened.container != container
        if opened is None or is_new:
            self._here.opened = None
            self._here.opened = opened = _OpenContainer(container, open_container(self.root, container))
        try:
            if not container.column:
                return _read(opened.descriptor, nbytes, offset, nbytes)
            if opened.rows is None:
                from presize.sources.parquet_rows import RowReader  # imports pyarrow, which other sources do not need

                opened.rows = RowReader(self._folder + container.path, container.column)
            value = opened.rows.read(*divmod(offset, GROUP_ROWS))
            if is_new:  # pyarrow opened its path, not our descriptor
                check_containers(self.root, [container])
            return value
        except (OSError, ImageError) as error:
            self._here.opened = None
            if isinstance(error, ImageError):
                check_containers(self.root, [container])  # a changed container may be the cause
            raise

    @cached_property
    def _bucket(self) -> Bucket:
        """The bucket, with the credentials that the environment has at first use."""
        return Bucket(str(self.root))


@dataclass
class _OpenContainer:
    """A container that stays open as long as this object lives."""

    container: Container
    descriptor: int
    rows: RowReader | None = None

    def __del__(self) -> None:
        os.close(self.descriptor)


def _read(file: int, nbytes: int, offset: int, max_bytes: int) -> bytes:
    if nbytes > LARGE_BYTES and not is_known(head := os.pread(file, _SNIFFED_BYTES, offset)):
        return head
    if nbytes > _MAX_BYTES:
        raise ImageError(f"it has {nbytes} bytes, more than decoders accept ({_MAX_BYTES})")
    data = os.pread(file, max_bytes, offset)
    while len(data) < max_bytes and (more := os.pread(file, max_bytes - len(data), offset + len(data))):
        data += more
    if len(data) != nbytes:
        actual = f"{len(data)}" if len(data) < nbytes else "more"
        raise UnreadableError(f"{_CHANGED}{nbytes} bytes when listed, {actual} when read")
    return data
