"""Table of a finished shard, and its sidecar file. The sidecar is renamed into place last, so it proves that the shard
is complete. This module does without pyarrow, which worker processes do not import."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from presize.options import Size, Stream
from presize.sources.source_files import Container
from presize.store.data_files import DataFile
from presize.store.rejects import NOT_AN_IMAGE, UNREADABLE
from presize.system.files import temporary_name, writing

Columns = Mapping[str, npt.NDArray[np.int64]]
"""Index columns of a stream, of equal length, by name without the companion: ``nbytes``, not ``mask_nbytes``."""

Rejected = tuple[int, str, str]
"""A sample that was not stored: its row in the source table, the name of the error's class, and the reason."""


class ShardDone(NamedTuple):
    """Numbers of samples of a shard that were stored, rejected, skipped (not images by content and name) or unreadable,
    and the bytes stored in all sizes. `number` is None for files that an update does not try again. `earlier` is True
    for what an earlier run finished, or an update keeps."""

    number: int | None
    stored: int
    rejected: int
    skipped: int
    bytes: int
    unreadable: int = 0
    earlier: bool = False

    @property
    def samples(self) -> int:
        return self.stored + self.rejected + self.skipped + self.unreadable


@dataclass(frozen=True)
class ShardTable:
    """Table of a shard's records, whether built, copied or kept: rows of the stored samples in the source table; index
    columns and file of each stream (no files in a folder dataset); rejects; containers as they were listed."""

    number: int
    samples: npt.NDArray[np.int64]
    columns: Mapping[Stream, Columns]
    files: Mapping[Stream, DataFile]
    rejects: list[Rejected]
    containers: tuple[Container, ...] = ()

    @property
    def done(self) -> ShardDone:
        stored_bytes = sum(int(columns["nbytes"].sum()) for columns in self.columns.values())
        errors = [error for _, error, _ in self.rejects]
        skipped, unreadable = errors.count(NOT_AN_IMAGE), errors.count(UNREADABLE)
        rejected = len(errors) - skipped - unreadable
        return ShardDone(self.number, len(self.samples), rejected, skipped, stored_bytes, unreadable)

    def write(self, path: Path, digest: str) -> None:
        """Write the sidecar without syncing it: a damaged one, or one without its shard, counts as missing."""
        facts = {
            "digest": digest,
            "streams": [(name, str(size), sorted(columns)) for (name, size), columns in self.columns.items()],
            "files": [(name, str(size), *astuple(file)) for (name, size), file in self.files.items()],
            "rejects": self.rejects,
            "containers": self.containers,
        }
        # One array for all columns, because writing and parsing the header of an array takes longer than its numbers.
        numbers = [self.samples, *(columns[name] for columns in self.columns.values() for name in sorted(columns))]
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), numbers=np.array(numbers, np.int64))
        temporary = temporary_name(path)
        with writing(path):
            temporary.write_bytes(buffer.getvalue())
            os.replace(temporary, path)

    @classmethod
    def read(cls, path: Path, number: int, digest: str) -> ShardTable | None:
        """Read the sidecar of a shard. Returns None if it is missing, damaged, or belongs to another task."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                facts, numbers = json.loads(arrays["facts"].tobytes()), arrays["numbers"]
            if facts["digest"] != digest:
                return None
            if numbers.dtype != np.int64 or numbers.ndim != 2:
                return None
            samples, *values = numbers
            rest = iter(values)
            columns = {
                _stream(name, size): dict(zip(map(str, names), islice(rest, len(names)), strict=True))
                for name, size, names in facts["streams"]
            }
            if list(rest):
                return None
            files = {
                _stream(name, size): DataFile(str(file), int(nbytes), str(sha256), int(rows))
                for name, size, file, nbytes, sha256, rows in facts["files"]
            }
            rejects = [(int(sample), str(error), str(reason)) for sample, error, reason in facts["rejects"]]
            containers = tuple(Container.of_json(*each) for each in facts["containers"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
            return None
        return cls(number, samples, columns, files, rejects, containers)


def _stream(name: str, size: str) -> Stream:
    return Stream(str(name), Size.parse(size))
