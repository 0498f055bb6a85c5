"""The format of one shard: a single-file LMDB environment. The only module that knows lmdb.

Key: the row number as 8 bytes, big-endian, from 0. Value: the record, bytes as they came.
A shard is immutable once it has its name, so readers need no lock file.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb
import lmdb.verify

from presize.errors import BuildError, DatasetError
from presize.system.files import check_file, file_digest, temporary_name

ENGINE = "0.9"
"""LMDB's file format, named in the manifest. Files of the other one, 1.0, are unreadable to it."""

_ENGINE_MAJOR = 0
_OVERHEAD_BYTES = 4096 + 64
"""What LMDB may add to a record: the unused end of its last page, a page header, its key and node."""
_COMMIT_BYTES = 64 << 20


class MapFull(Exception):
    """The records did not fit into the map: begin the shard again with twice the size."""


def key(row: int) -> bytes:
    return row.to_bytes(8, "big")


def map_bytes(records: int, record_bytes: int) -> int:
    """The map for `records` of at most about `record_bytes` each: a pure function, since a shard's
    bytes depend on it. It is address space while writing, not room on disk. A multiple of 1 MiB."""
    needed = (records + 64) * (record_bytes + _OVERHEAD_BYTES)
    return -(-needed // (1 << 20)) << 20


def commit_records(record_bytes: int) -> int:
    """Records a transaction, when each has at most about `record_bytes`: it keeps its pages in memory
    until it commits."""
    return max(1, _COMMIT_BYTES // (record_bytes + _OVERHEAD_BYTES))


class ShardWriter:
    """Writes one shard under a temporary name; publish() gives it its own.

    A context manager: leaving it without publish() removes what was written. For one thread.
    Same records, map size and commit count give the same bytes. Records that are larger than
    expected are committed sooner, since a transaction keeps its pages in memory.

    Raises BuildError, from whichever call, when the disk is full or the folder cannot be written to.
    """

    def __init__(self, path: Path, map_bytes: int, commit_records: int) -> None:
        self.path = path
        self.rows = 0
        self._commit_records = commit_records
        self._waiting_records = self._waiting_bytes = 0
        self._temporary = temporary_name(path)
        try:
            self._env = lmdb.open(
                os.fsencode(self._temporary),
                map_size=map_bytes,
                subdir=False,
                lock=False,  # nobody else knows the name
                sync=False,  # once, in publish()
                meminit=True,  # or unused bytes would differ from run to run
                lib_version=_ENGINE_MAJOR,
            )
        except lmdb.Error as error:
            failure = self._failure(error)
            self._temporary.unlink(missing_ok=True)
            raise failure from None
        self._txn: lmdb.Transaction | None = None

    def append(self, value: bytes) -> int:
        """Store `value` and return its row. Raises MapFull, after which there is nothing to be done
        but to leave, and BuildError."""
        try:
            if self._txn is None:
                self._txn = self._env.begin(write=True)
            self._txn.put(key(self.rows), value, append=True)
            self.rows += 1
            self._waiting_records += 1
            self._waiting_bytes += len(value)
            if self._waiting_records == self._commit_records or self._waiting_bytes >= _COMMIT_BYTES:
                self._commit()
        except lmdb.MapFullError:
            raise MapFull from None
        except lmdb.Error as error:
            raise self._failure(error) from None
        return self.rows - 1

    def _commit(self) -> None:
        txn, self._txn = self._txn, None  # a commit that fails ends the transaction, too
        self._waiting_records = self._waiting_bytes = 0
        if txn is not None:
            txn.commit()

    def publish(self) -> tuple[int, str]:
        """Make its bytes durable and give it its own name, which is durable once its folder is synced.
        Returns its size in bytes and its SHA-256.
        Raises MapFull and BuildError."""
        try:
            self._commit()
            with ThreadPoolExecutor(1) as disk:  # which takes as long as the hash takes the processor
                durable = disk.submit(self._env.sync, True)
                size, digest = file_digest(self._temporary)
                durable.result()
            self._env.close()
            os.replace(self._temporary, self.path)
        except lmdb.MapFullError:
            raise MapFull from None
        except (lmdb.Error, OSError) as error:
            raise self._failure(error) from None
        return size, digest

    def _failure(self, error: lmdb.Error | OSError) -> BuildError:
        try:
            # LMDB calls a full disk an input/output error. Writing on tells what it is.
            with self._temporary.open("ab") as file:
                file.write(bytes(1 << 20))
        except OSError as reason:
            error = reason
        return BuildError(f"cannot write {self.path}: {_reason(error)}; what is finished is kept, run again to resume")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
        self._env.close()
        self._temporary.unlink(missing_ok=True)


def _reason(error: lmdb.Error | OSError) -> str:
    """What went wrong, without the names that py-lmdb puts before it."""
    return str(error.strerror) if isinstance(error, OSError) else str(error).rpartition(": ")[2]


class ShardReader:
    """Reads one shard: ``with reader as get: value = get(row)``.

    `get` returns a memoryview of the map: valid inside the ``with`` only, and to be decoded there.
    Threads may share a reader; forked children may go on using it. The environment behind it belongs
    to the process and is shared by all readers of one file, however they spell its path, because
    LMDB refuses to open a file twice. It is opened on first use and, when many are open, closed
    again while nobody reads from it. Pickling is by path, size and readahead.

    readahead: whether the kernel reads more than the page that is asked for; readahead_pays() tells when to.
        Of several readers of a file, the one that opens it decides.
    """

    def __init__(self, path: str | os.PathLike[str], nbytes: int, readahead: bool = True) -> None:
        self.path = os.fspath(path)
        self.nbytes = nbytes
        self.readahead = readahead
        self._shard: _OpenShard | None = None

    def __enter__(self) -> Callable[[int], memoryview]:
        """Raises DatasetError when the file is missing, no shard, or not of the size it should have."""
        with _lock:
            shard = self._shard
            if shard is None or shard.closed:
                shard = self._shard = _open(self.path, self.nbytes, self.readahead)
            _open_shards.move_to_end(shard.inode)
            shard.readers += 1
        return shard.get

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            if self._shard is not None:  # the one that was entered: it is not closed while read from
                self._shard.readers -= 1

    def entries(self) -> int:
        """How many records the shard holds."""
        with self:
            return 0 if self._shard is None else int(self._shard.env.stat()["entries"])

    def close(self) -> None:
        """Close the file, if nobody is reading from it and no parent process opened it: then others than
        presize may open it in this process, too. The next use opens it again."""
        with _lock:
            shard = self._shard
            if shard is not None and not shard.closed and shard.readers == 0 and shard.pid == os.getpid():
                _close(shard)

    def __reduce__(self) -> tuple[type[ShardReader], tuple[str, int, bool]]:
        return ShardReader, (self.path, self.nbytes, self.readahead)


_WINDOW_RECORDS = 12
"""A record of a twelfth of the window takes about as long in pages of 4 KiB, one after the other, as with the
window around it, where a request costs as much time as 50 kB: 50 µs and 1 GB/s. In
benchmarks/storage/results/storage.csv (2026-11-21) the turn lies between 10 and 30 kB for 128 KiB.
Disks further away break even sooner."""


def readahead_pays(record_bytes: float, dataset_bytes: int, memory_bytes: int, window_bytes: int) -> bool:
    """True when records of about `record_bytes`, read in random order from a cold cache, come faster with
    the kernel reading a window of `window_bytes` around each page that is missing.

    They do when the dataset fits into memory, for then what was read around will be wanted later in the epoch,
    and beyond that when they are large: LMDB touches a record page by page, and without readahead the disk is
    asked for each alone. Small records of a dataset larger than memory come faster without: most of a
    window would be gone before it is wanted. In a warm cache it makes no difference.
    """
    return dataset_bytes <= memory_bytes or record_bytes * _WINDOW_RECORDS >= window_bytes


def check_structure(path: Path) -> list[str]:
    """What is wrong with the structure of a shard. Walks the file without LMDB, so that a hostile one
    can do no harm."""
    try:
        return [str(finding) for finding in lmdb.verify.verify(str(path), subdir=False)]  # type: ignore[no-untyped-call]
    except (OSError, lmdb.verify.VerifyError) as error:
        return [str(error)]


class _OpenShard:
    """One LMDB environment of this process. Counted and closed under _lock; `get` needs no lock."""

    def __init__(self, path: str, inode: tuple[int, int], env: lmdb.Environment) -> None:
        self.path = path
        self.inode = inode
        self.env = env
        self.pid = os.getpid()
        self.readers = 0
        self.closed = False
        self._idle: list[Callable[[bytes], memoryview | None]] = []

    def get(self, row: int) -> memoryview:
        """The record, as a view of the map. Raises DatasetError when there is no such row.

        A transaction serves one thread at a time, and then any: in a shard that never changes it can
        stay open at no cost. (One for each call would leak in forked children, where lmdb frees none.)
        """
        try:
            try:
                lookup = self._idle.pop()
            except IndexError:
                lookup = self.env.begin(buffers=True).get
            value = lookup(key(row)) if row >= 0 else None
        except lmdb.Error as error:
            raise DatasetError(f"{self.path} is damaged: {_reason(error)}; copy or build it again") from None
        self._idle.append(lookup)
        if value is None:
            raise DatasetError(f"{self.path} has no row {row}: its index belongs to another dataset")
        return value


_open_shards: OrderedDict[tuple[int, int], _OpenShard] = OrderedDict()
"""All environments of this process by device and inode, least recently used first."""

# Reentrant, for the garbage collector may end a reader while this very thread opens a shard.
_lock = threading.RLock()
# A child must find the table whole. It goes on using what its parent opened: LMDB would refuse to
# open those files again, and closing them can hang while the parent's threads read.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _open(path: str, nbytes: int, readahead: bool) -> _OpenShard:
    status = check_file(path, nbytes)
    inode = (status.st_dev, status.st_ino)
    if inode not in _open_shards:
        _close_idle(room_for=1)
        _open_shards[inode] = _OpenShard(path, inode, _open_environment(path, nbytes, readahead))
    return _open_shards[inode]


def _open_environment(path: str, nbytes: int, readahead: bool) -> lmdb.Environment:
    try:
        env = lmdb.open(
            os.fsencode(path),
            subdir=False,
            readonly=True,
            create=False,
            lock=False,  # shards never change; and it works on read-only media
            readahead=readahead,
            lib_version=_ENGINE_MAJOR,
        )
    except lmdb.Error as error:
        reason = _reason(error)
        hint = "; allow more with ulimit -n" if reason == os.strerror(errno.EMFILE) else ""
        raise DatasetError(f"{path} cannot be opened as a shard: {reason}{hint}") from None
    used_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if used_bytes > nbytes:
        env.close()
        raise DatasetError(f"{path} is damaged: {nbytes} of {used_bytes} bytes; copy or build the dataset again")
    return env


def max_open_shards() -> int:
    """Half of the files this process may open (``ulimit -n``), at least 8. At most 30,000, which is
    half of the maps that Linux gives a process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 30_000 if soft == resource.RLIM_INFINITY else min(max(8, soft // 2), 30_000)


def _close_idle(room_for: int) -> None:
    """Close the environments that were idle longest, but none that a parent process opened."""
    surplus = len(_open_shards) + room_for - max_open_shards()
    idle = [s for s in _open_shards.values() if s.readers == 0 and s.pid == os.getpid()] if surplus > 0 else []
    for shard in idle[:surplus]:
        _close(shard)


def _close(shard: _OpenShard) -> None:
    del _open_shards[shard.inode]
    shard.closed = True
    shard.env.close()
