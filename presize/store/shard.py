"""The format of one shard: a single-file LMDB environment. The only module that knows lmdb.

Key: the row number from 0, as 8 bytes, big-endian. Value: the bytes of the record, unchanged.
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
from presize.store.shard_pages import check_pages
from presize.system.files import check_file, file_digest, temporary_name

ENGINE = "0.9"
"""The version of LMDB's file format, recorded in the manifest. LMDB 0.9 cannot read files of version 1.0."""

_ENGINE_MAJOR = 0
_OVERHEAD_BYTES = 4096 + 64
"""What LMDB may add to a record: the unused end of its last page, a page header, its key and node."""
_COMMIT_BYTES = 64 << 20


class MapFull(Exception):
    """The records did not fit into the map: write the shard again, with a map of twice the size."""


def key(row: int) -> bytes:
    return row.to_bytes(8, "big")


def map_bytes(records: int, record_bytes: int) -> int:
    """The map size for `records` of at most about `record_bytes` each, a multiple of 1 MiB. A pure function, since
    the bytes of a shard depend on it. It is address space while writing, not disk space."""
    needed = (records + 64) * (record_bytes + _OVERHEAD_BYTES)
    return -(-needed // (1 << 20)) << 20


def commit_records(record_bytes: int) -> int:
    """Records per transaction, when each has at most about `record_bytes`. A transaction holds its pages in memory
    until it commits."""
    return max(1, _COMMIT_BYTES // (record_bytes + _OVERHEAD_BYTES))


class ShardWriter:
    """Writes one shard under a temporary name; publish() renames it.

    A context manager: leaving it without publish() removes what was written. For one thread. The same records, map
    size and commit count give the same bytes. Records that are larger than expected are committed sooner, since a
    transaction holds its pages in memory.

    Raises:
        BuildError: from any method, when the disk is full or the folder cannot be written to.
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
        """Store `value` and return its row. After MapFull or BuildError the writer can only be closed."""
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
        txn, self._txn = self._txn, None  # a failed commit ends the transaction, too
        self._waiting_records = self._waiting_bytes = 0
        if txn is not None:
            txn.commit()

    def publish(self) -> tuple[int, str]:
        """Make the bytes durable and rename the shard. The name is durable once its folder is synced.

        Returns:
            The size in bytes, and the SHA-256.

        Raises:
            MapFull: the records did not fit into the map.
            BuildError: the shard cannot be written.
        """
        try:
            self._commit()
            with ThreadPoolExecutor(1) as disk:  # syncing takes about as long as hashing
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
            # LMDB reports a full disk as an input/output error. Writing more gives the true reason.
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
    """The reason of an error, without the prefix of py-lmdb."""
    return str(error.strerror) if isinstance(error, OSError) else str(error).rpartition(": ")[2]


class ShardReader:
    """Reads one shard: ``with reader as get: value = get(row)``.

    `get` returns a memoryview of the map that is valid only inside the ``with`` block. Threads may share a reader,
    and forked children may keep using it. All readers of the same file in a process share an LMDB environment,
    since LMDB refuses to open a file twice. It is opened on first use and, when many are open, closed while it is
    idle. A pickled reader holds path, size and readahead.

    Args:
        path: the shard.
        nbytes: the size that it must have.
        readahead: whether the kernel reads more than the requested page; see readahead_pays(). Of several readers
            of a file, the one that opens it decides.
    """

    def __init__(self, path: str | os.PathLike[str], nbytes: int, readahead: bool = True) -> None:
        self.path = os.fspath(path)
        self.nbytes = nbytes
        self.readahead = readahead
        self._shard: _OpenShard | None = None

    def __enter__(self) -> Callable[[int], memoryview]:
        """Raises DatasetError when the file is missing, is not a shard, or does not have its size."""
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
        """Close the file, unless someone is reading from it or a parent process opened it. Then code other than
        presize can open it in this process. The next use opens it again."""
        with _lock:
            shard = self._shard
            if shard is not None and not shard.closed and shard.readers == 0 and shard.pid == os.getpid():
                _close(shard)

    def __reduce__(self) -> tuple[type[ShardReader], tuple[str, int, bool]]:
        return ShardReader, (self.path, self.nbytes, self.readahead)


_WINDOW_RECORDS = 12
"""Reading a record of a twelfth of the window page by page (4 KiB) takes about as long as reading the whole window,
where a request takes 50 µs and throughput is 1 GB/s. In benchmarks/storage/results/storage.csv (2026-11-21) a window of
128 KiB breaks even between 10 and 30 kB. Disks of higher latency break even sooner."""


def readahead_pays(record_bytes: float, dataset_bytes: int, memory_bytes: int, window_bytes: int) -> bool:
    """True when readahead makes random reads from a cold cache faster.

    It does when the dataset fits into memory, since what is read ahead is needed later in the epoch; and when records
    are large, since LMDB touches a record page by page, and without readahead each page is a request to the disk.
    Small records of a dataset larger than memory are faster without readahead: most of a window would be evicted
    before it is needed. In a warm cache it makes no difference.

    Args:
        record_bytes: the mean size of a record.
        dataset_bytes: the size of all shards.
        memory_bytes: the available memory.
        window_bytes: how far the kernel reads ahead.
    """
    return dataset_bytes <= memory_bytes or record_bytes * _WINDOW_RECORDS >= window_bytes


def check_structure(path: Path) -> list[str]:
    """What is wrong with the structure of a shard. Parses the file without LMDB, so that a hostile file is harmless."""
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

        A transaction serves one thread at a time. Since shards never change, it can stay open at no cost and be
        reused. (A new one for each call would leak in forked children, where lmdb frees none.)
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
            raise DatasetError(f"{self.path} has no row {row}: the index belongs to another dataset")
        return value


_open_shards: OrderedDict[tuple[int, int], _OpenShard] = OrderedDict()
"""All environments of this process by device and inode, least recently used first."""

# Reentrant, since the garbage collector may finalize a reader while this thread opens a shard.
_lock = threading.RLock()
# A forked child must find the table consistent. It keeps using what its parent opened: LMDB would refuse to open
# those files again, and closing them can hang while threads of the parent read.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _open(path: str, nbytes: int, readahead: bool) -> _OpenShard:
    status = check_file(path, nbytes)
    inode = (status.st_dev, status.st_ino)
    if inode not in _open_shards:
        _close_idle(room_for=1)
        _open_shards[inode] = _OpenShard(path, inode, _open_environment(path, readahead))
    return _open_shards[inode]


def _open_environment(path: str, readahead: bool) -> lmdb.Environment:
    try:
        check_pages(path)
        return lmdb.open(
            os.fsencode(path),
            subdir=False,
            readonly=True,
            create=False,
            lock=False,  # shards never change; and it works on read-only media
            readahead=readahead,
            lib_version=_ENGINE_MAJOR,
        )
    except (lmdb.Error, OSError) as error:
        reason = _reason(error)
        hint = "; allow more with ulimit -n" if reason == os.strerror(errno.EMFILE) else ""
        raise DatasetError(f"{path} cannot be opened as a shard: {reason}{hint}") from None


def max_open_shards() -> int:
    """Half of the files that this process may open (``ulimit -n``), at least 8 and at most 30,000, which is half of
    the memory maps that Linux allows a process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 30_000 if soft == resource.RLIM_INFINITY else min(max(8, soft // 2), 30_000)


def _close_idle(room_for: int) -> None:
    """Close the environments that have been idle longest, except those that a parent process opened."""
    surplus = len(_open_shards) + room_for - max_open_shards()
    idle = [s for s in _open_shards.values() if s.readers == 0 and s.pid == os.getpid()] if surplus > 0 else []
    for shard in idle[:surplus]:
        _close(shard)


def _close(shard: _OpenShard) -> None:
    del _open_shards[shard.inode]
    shard.closed = True
    shard.env.close()
