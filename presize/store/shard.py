"""The format of a shard: a single-file LMDB environment whose keys are row numbers from 0 (8 bytes, big-endian) and
whose values are the bytes of records. A published shard is immutable, so readers need no lock file."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import lmdb
import lmdb.verify

from presize.errors import BuildError
from presize.store.data_files import raise_limit
from presize.system.files import RESUME, file_digest, temporary_name

ENGINE = "0.9"
"""Version of LMDB's file format, recorded in the manifest. LMDB 0.9 cannot read files of version 1.0."""

ENGINE_MAJOR = 0
_OVERHEAD_BYTES = 4096 + 64
"""Bytes that LMDB may add to a record: the unused end of its last page, a page header, its key and node."""
_COMMIT_BYTES = 64 << 20


class MapFull(Exception):
    """Error for records that do not fit into the map: write the shard again, with a map twice as large."""


def key(row: int) -> bytes:
    return row.to_bytes(8, "big")


def map_bytes(records: int, record_bytes: int) -> int:
    """Return a map size, a multiple of 1 MiB, for records of about `record_bytes`. A shard's bytes depend on it."""
    needed = (records + 64) * (record_bytes + _OVERHEAD_BYTES)
    return -(-needed // (1 << 20)) << 20


def map_bytes_in_any_order(records: int, value_bytes: int) -> int:
    """Return a map size for `records` with keys of any length in any order, and `value_bytes` of values in total."""
    # Pages split in half, so a record takes at most 4/3 pages of the tree, with the longest keys. Each transaction
    # copies the pages that it changes, and the copies of the last two cannot be reused yet: 4 pages in total. A value
    # on overflow pages leaves less than its own size unused.
    needed = 2 * value_bytes + 4 * 4096 * records + (64 << 20)
    return -(-needed // (1 << 20)) << 20


def commit_records(record_bytes: int) -> int:
    """Return the number of records per transaction. A transaction holds its pages in memory until it commits."""
    return max(1, _COMMIT_BYTES // (record_bytes + _OVERHEAD_BYTES))


class ShardWriter:
    """Writer of one shard, or of an LMDB with other keys, under a temporary name. publish() renames the file; leaving
    the context without it removes the file. Not thread-safe. The same records, map size and commit count give the same
    bytes. Any method raises BuildError if the disk is full or cannot be written to."""

    def __init__(
        self,
        path: Path,
        map_bytes: int,
        commit_records: int,
        advice: str = RESUME,
    ) -> None:
        self.path = path
        self._advice = advice
        self.rows = 0
        self._commit_records = commit_records
        self._waiting_records = self._waiting_bytes = 0
        self._temporary = temporary_name(path)
        try:
            self._env = lmdb.open(
                os.fsencode(self._temporary),
                map_size=map_bytes,
                mode=0o666,  # minus the umask, as for any file
                subdir=False,
                lock=False,  # nobody else knows the name
                sync=False,  # once, in publish()
                meminit=True,  # otherwise unused bytes would differ between runs
                lib_version=ENGINE_MAJOR,
            )
        except lmdb.Error as error:
            failure = self._failure(error)
            self._temporary.unlink(missing_ok=True)
            raise failure from None
        self._txn: lmdb.Transaction | None = None

    def append(self, value: bytes) -> int:
        """Store `value` and return its row. After MapFull or BuildError the writer can only be closed."""
        self.put(key(self.rows), value, append=True)
        self.rows += 1
        return self.rows - 1

    def put(self, name: bytes, value: bytes, append: bool = False) -> None:
        """Store `value` under the key `name`; with `append`, it must sort after all other keys."""
        try:
            if self._txn is None:
                self._txn = self._env.begin(write=True)
            self._txn.put(name, value, append=append)
            self._waiting_records += 1
            self._waiting_bytes += len(value)
            if self._waiting_records == self._commit_records or self._waiting_bytes >= _COMMIT_BYTES:
                self._commit()
        except lmdb.MapFullError:
            raise MapFull from None
        except lmdb.Error as error:
            raise self._failure(error) from None

    def _commit(self) -> None:
        txn, self._txn = self._txn, None  # even a failed commit ends the transaction
        self._waiting_records = self._waiting_bytes = 0
        if txn is not None:
            txn.commit()

    def publish(self) -> tuple[int, str]:
        """Sync the shard, rename it, and return its size and SHA-256. The name is durable once its folder is synced.
        Raises MapFull if the records do not fit."""
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
            # LMDB reports a full disk as an input/output error. Writing more reveals the reason.
            with self._temporary.open("ab") as file:
                file.write(bytes(1 << 20))
        except OSError as reason:
            error = reason
        return BuildError(f"cannot write {self.path}: {reason_of(error)}; {self._advice}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
        self._env.close()
        self._temporary.unlink(missing_ok=True)


def reason_of(error: lmdb.Error | OSError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else str(error).rpartition(": ")[2]


def check_structure(path: Path) -> list[str]:
    """Return structural problems of a shard, parsed without LMDB, so hostile files are safe. Raises CannotOpenError."""
    try:
        return [str(finding) for finding in lmdb.verify.verify(str(path), subdir=False)]  # type: ignore[no-untyped-call]
    except (OSError, MemoryError, lmdb.verify.VerifyError) as error:
        raise_limit(path, error)
        return [str(error)]
