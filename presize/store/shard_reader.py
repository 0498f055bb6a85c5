"""Reads shards. A process opens each shard only once at a time, and closes idle ones when too many are open."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import lmdb

from presize.errors import DatasetError
from presize.store.data_files import CannotOpenError
from presize.store.shard import ENGINE_MAJOR, key, reason_of
from presize.store.shard_pages import check_pages
from presize.system.files import check_file, is_file_of, is_same_file
from presize.system.resources import max_open_shards


class ShardReader:
    """A reader of one shard: ``with reader as get: value = get(row)``, a memoryview valid inside the ``with`` block.

    Thread-safe, and usable in forked children. All readers of a file in a process share one LMDB environment, as LMDB
    refuses to open a file twice. It is opened on first use and, if many are open, closed while idle. The first reader
    to open a file decides on its readahead. `fetch` is called, in any thread, to fetch a missing file of a cache."""

    def __init__(
        self, path: str | os.PathLike[str], nbytes: int, readahead: bool = True, fetch: Callable[[], None] | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.nbytes = nbytes
        self.readahead = readahead
        self._fetch = fetch
        self._shard: _OpenShard | None = None

    def __enter__(self) -> Callable[[int], memoryview]:
        """Open the shard. Raises DatasetError if the file is missing, is not a shard, or has the wrong size."""
        while (shard := self._entered()) is None:
            if self._fetch is not None:
                self._fetch()  # without the lock; repeated if the file is removed meanwhile
        return shard.get

    def _entered(self) -> _OpenShard | None:
        """Return the open shard, or None if the file must be fetched first."""
        with _lock:
            try:
                if self._shard is None or self._shard.closed:
                    self._shard = _open(self.path, self.nbytes, self.readahead, self._fetch is not None)
            except DatasetError:
                if self._fetch is None or is_file_of(self.path, self.nbytes):
                    raise
                return None
            open_shards.move_to_end(self._shard.inode)
            self._shard.readers += 1
            return self._shard

    @property
    def is_open(self) -> bool:
        """Return whether the shard is open, and can be read even if its file is removed."""
        return self._shard is not None and not self._shard.closed

    def __exit__(self, *_: object) -> None:
        with _lock:
            if self._shard is not None:  # the one that __enter__ opened: it stays open while it has readers
                self._shard.readers -= 1

    def remove(self) -> None:
        """Remove the file, unless it was replaced since this reader opened it."""
        with _lock, suppress(FileNotFoundError):
            if self._shard is None or is_same_file(self.path, self._shard.inode):
                os.unlink(self.path)

    def entries(self) -> int:
        with self:
            return 0 if self._shard is None else int(self._shard.env.stat()["entries"])

    def close(self) -> None:
        """Close the file so that other code can open it, unless it has readers or a parent process opened it."""
        with _lock:
            shard = self._shard
            if shard is not None and not shard.closed and shard.readers == 0 and shard.pid == os.getpid():
                _close(shard)

    def __reduce__(self) -> tuple[type[ShardReader], tuple[Any, ...]]:
        return ShardReader, (self.path, self.nbytes, self.readahead, self._fetch)


@dataclass(eq=False)
class _OpenShard:
    """An LMDB environment of this process. _lock guards counting and closing; `get` needs no lock."""

    path: str
    inode: tuple[int, int]
    env: lmdb.Environment
    is_cached: bool
    pid: int = field(default_factory=os.getpid)
    readers: int = 0
    closed: bool = False
    _idle: list[Callable[[bytes], memoryview | None]] = field(default_factory=list)

    def get(self, row: int) -> memoryview:
        """Return a view of a record. A transaction serves one thread at a time. It stays open for reuse, since shards
        never change: a new one per call would leak in forked children, where lmdb frees none."""
        try:
            try:
                lookup = self._idle.pop()
            except IndexError:
                lookup = self.env.begin(buffers=True).get
            value = lookup(key(row)) if row >= 0 else None
        except lmdb.Error as error:
            raise DatasetError(f"{self.path} is damaged: {reason_of(error)}; copy or build the dataset again") from None
        self._idle.append(lookup)
        if value is None:
            raise DatasetError(f"{self.path} has no row {row}: the index belongs to another dataset")
        return value


open_shards: OrderedDict[tuple[int, int], _OpenShard] = OrderedDict()
"""All environments of this process, by (device, inode), least recently used first."""

# Reentrant, since the garbage collector may finalize a reader while this thread opens a shard.
_lock = threading.RLock()
# A forked child must find the table consistent. It keeps using the shards that its parent opened: LMDB would refuse to
# open those files again, and closing them can hang while threads of the parent read.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _open(path: str, nbytes: int, readahead: bool, is_cached: bool) -> _OpenShard:
    status = check_file(path, nbytes)
    inode = (status.st_dev, status.st_ino)
    if inode not in open_shards:
        for shard in _idle()[: max(0, len(open_shards) + 1 - max_open_shards())]:  # makes room for one more
            _close(shard)
        if is_cached:
            _close_removed()
            with suppress(FileNotFoundError):  # removed meanwhile: opening it fails below
                os.utime(path, ns=(time.time_ns(),) * 2)  # the cache removes the least recently used files first
        open_shards[inode] = _OpenShard(path, inode, _open_environment(path, readahead), is_cached)
    return open_shards[inode]


def _open_environment(path: str, readahead: bool) -> lmdb.Environment:
    try:
        check_pages(path, readahead)
        return lmdb.open(
            os.fsencode(path),
            subdir=False,
            readonly=True,
            create=False,
            lock=False,  # shards never change; also works on read-only media
            readahead=readahead,
            lib_version=ENGINE_MAJOR,
        )
    except (lmdb.Error, OSError) as error:
        reason = reason_of(error)
        hint = "; allow more with ulimit -n" if reason == os.strerror(errno.EMFILE) else ""
        raise CannotOpenError(f"{path} cannot be opened as a shard: {reason}{hint}") from None


def _idle() -> list[_OpenShard]:
    """Return the shards that this process opened and that have no readers, least recently used first."""
    return [shard for shard in open_shards.values() if shard.readers == 0 and shard.pid == os.getpid()]


_opened_from_caches = 0


def _close_removed() -> None:
    """Close files that a cache has removed, to free their disk space; only on every fifth call."""
    global _opened_from_caches
    _opened_from_caches += 1
    if _opened_from_caches % 5 == 0:
        for shard in _idle():
            if shard.is_cached and not is_same_file(shard.path, shard.inode):
                _close(shard)


def _close(shard: _OpenShard) -> None:
    del open_shards[shard.inode]
    shard.closed = True
    shard.env.close()
