"""What a finished shard gives to its dataset, and how that is kept on disk until the dataset is published.

The side-car of a shard is renamed into place last: it proves that the shard is whole. Nothing here needs pyarrow, which
worker processes do not import.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from presize.options import Size, Stream
from presize.sources.source_files import Container
from presize.store.rejects import NOT_AN_IMAGE, UNREADABLE
from presize.system.files import temporary_name, writing

Columns = Mapping[str, npt.NDArray[np.int64]]
"""Columns of the index by their names, ``nbytes`` of a companion's records, too: arrays of equal length."""

Rejected = tuple[int, str, str]
"""A sample that was not stored: its row in the source table, the class of the error, and the reason."""


class ShardDone(NamedTuple):
    """What became of a shard's samples.

    Attributes:
        number: the shard's; None for the files that an update leaves rejected, which lie in no shard.
        stored: images.
        rejected: files that claim to be images and could not be stored.
        skipped: files that are not images, by content and by name.
        bytes: of the stored images, all sizes together.
        unreadable: files that could not be read.
    """

    number: int | None
    stored: int
    rejected: int
    skipped: int
    bytes: int
    unreadable: int = 0

    @property
    def samples(self) -> int:
        return self.stored + self.rejected + self.skipped + self.unreadable


@dataclass(frozen=True)
class ShardTable:
    """What is known of the records of a shard, whether they were built, copied or kept.

    Attributes:
        number: the shard's.
        samples: the row in the source table of each sample that is stored, in the order of the shard.
        columns: for each stream what the index says of its records, a value a sample; empty where none is stored.
        files: for each stream the size of its shard in bytes, and its SHA-256; empty for folders.
        rejects: the samples that are not stored.
        containers: the files that hold the samples, as they were listed; empty where each sample is a file.
    """

    number: int
    samples: npt.NDArray[np.int64]
    columns: Mapping[Stream, Columns]
    files: Mapping[Stream, tuple[int, str]]
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
        """Write the side-car of a shard, the same bytes for the same table, under the digest of its task. It is not
        synced: after a power failure, one that is damaged or has lost its shard counts as absent."""
        facts = {
            "digest": digest,
            "streams": [(name, str(size), sorted(columns)) for (name, size), columns in self.columns.items()],
            "files": [(name, str(size), *file) for (name, size), file in self.files.items()],
            "rejects": self.rejects,
            "containers": self.containers,
        }
        # One array for all columns: each has a header, which takes longer to write and to parse than its numbers.
        numbers = [self.samples, *(columns[name] for columns in self.columns.values() for name in sorted(columns))]
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), numbers=np.array(numbers, np.int64))
        temporary = temporary_name(path)
        with writing(path):
            temporary.write_bytes(buffer.getvalue())
            os.replace(temporary, path)

    @classmethod
    def read(cls, path: Path, number: int, digest: str) -> ShardTable | None:
        """Read the side-car of a shard; None when it is absent, damaged, or of another task."""
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
            files = {_stream(name, size): (int(nbytes), str(sha256)) for name, size, nbytes, sha256 in facts["files"]}
            rejects = [(int(sample), str(error), str(reason)) for sample, error, reason in facts["rejects"]]
            containers = tuple(Container.of_json(*each) for each in facts["containers"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
            return None
        return cls(number, samples, columns, files, rejects, containers)


def _stream(name: str, size: str) -> Stream:
    return Stream(str(name), Size.parse(size))
