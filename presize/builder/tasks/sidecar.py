"""What finished shards give to a dataset. Each has a side-car, written last: the proof that the shard is whole."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from presize.sources.source_files import Container
from presize.store.rejects import NOT_AN_IMAGE, UNREADABLE
from presize.system.files import temporary_name, writing

if TYPE_CHECKING:  # it needs pyarrow, and workers do not
    from presize.store.rejects_file import Rejects

SIZE_COLUMNS = ("height", "width", "nbytes", "crc32")
"""The columns of the index that each size has of its own."""


def prefixes(companions: Iterable[str]) -> tuple[str, ...]:
    """What the names of columns begin with: nothing for those of images, then ``mask_`` for a companion called mask.

    The order is that in which a sample's records are written, each in all sizes.
    """
    return ("", *(f"{companion}_" for companion in companions))


def size_columns(companions: Iterable[str]) -> list[str]:
    """SIZE_COLUMNS, and those of companions."""
    return [f"{prefix}{name}" for prefix in prefixes(companions) for name in SIZE_COLUMNS]


_STORED_BYTES = re.compile(r"(^|_)nbytes_\d+$")

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
class Sidecar:
    """A finished shard's part of the index.

    Attributes:
        number: the shard's.
        columns: arrays of equal length, one row a stored record, in shard order: ``sample``,
            ``source_height``, ``source_width``, ``source_facts``, with checksums ``source_crc32``, and for the size
            number k ``height_k``, ``width_k``, ``nbytes_k``, ``crc32_k``. Those of companions begin with their names:
            ``mask_source_facts``, ``mask_nbytes_0``.
        shards: for each size the shard's size in bytes and its SHA-256, then for each size of each companion; empty for
            folders.
        rejects: the samples that were not stored.
        containers: the files that hold the samples, as they were listed; empty where each sample is a file.
    """

    number: int
    columns: dict[str, npt.NDArray[Any]]
    shards: list[tuple[int, str]]
    rejects: list[Rejected]
    containers: tuple[Container, ...] = ()

    @property
    def samples(self) -> npt.NDArray[np.int64]:
        """The row in the source table of each record."""
        return self.columns["sample"]

    @property
    def done(self) -> ShardDone:
        stored_bytes = sum(int(c.sum()) for name, c in self.columns.items() if _STORED_BYTES.search(name))
        errors = [error for _, error, _ in self.rejects]
        skipped, unreadable = errors.count(NOT_AN_IMAGE), errors.count(UNREADABLE)
        rejected = len(errors) - skipped - unreadable
        return ShardDone(self.number, len(self.samples), rejected, skipped, stored_bytes, unreadable)


class FinishedShard(NamedTuple):
    """A shard that is whole.

    Attributes:
        name: its file, from the folder of each size; without meaning for folder datasets.
        read: gives its part of the index, which is not kept: those of ten million samples are a gigabyte. Raises
            BuildError when it has gone.
    """

    name: str
    read: Callable[[], Sidecar]


@dataclass(frozen=True)
class Finished:
    """What a dataset is made of.

    Attributes:
        shards: in the order in which the index numbers them.
        still_rejected: files that an update does not try again, since they are as they were; None where there are none.
    """

    shards: tuple[FinishedShard, ...] = ()
    still_rejected: Rejects | None = None

    def done(self) -> Iterator[ShardDone]:
        """What became of all of its samples."""
        yield from (shard.read().done for shard in self.shards)
        if self.still_rejected is not None:
            skipped = self.still_rejected.skipped
            yield ShardDone(None, 0, len(self.still_rejected) - skipped, skipped, 0)


def write_sidecar(path: Path, sidecar: Sidecar, digest: str) -> None:
    """Publish a side-car under the digest of its plan. It is not synced: after a power failure, one that is damaged or
    has lost its shard counts as absent.

    Raises:
        BuildError: it cannot be written.
    """
    temporary = temporary_name(path)
    with writing(path):
        temporary.write_bytes(_to_npz(sidecar, digest))
        os.replace(temporary, path)


def _to_npz(sidecar: Sidecar, digest: str) -> bytes:
    facts = {
        "digest": digest,
        "shards": sidecar.shards,
        "rejects": sidecar.rejects,
        "columns": [*sidecar.columns],
        "containers": sidecar.containers,
    }
    buffer = io.BytesIO()
    # One array for all columns: each has a header, which takes longer to write and to parse than the numbers behind it.
    columns = np.array([*sidecar.columns.values()], np.int64)
    np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), columns=columns)
    return buffer.getvalue()


def read_sidecar(path: Path, number: int, digest: str) -> Sidecar | None:
    """The side-car of a shard; None when it is absent, damaged, or of another plan."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            facts, columns = json.loads(arrays["facts"].tobytes()), arrays["columns"]
        if facts["digest"] != digest:
            return None
        columns = {str(name): column for name, column in zip(facts["columns"], columns, strict=True)}
        shards = [(int(size), str(sha256)) for size, sha256 in facts["shards"]]
        rejects = [(int(sample), str(error), str(reason)) for sample, error, reason in facts["rejects"]]
        containers = tuple(Container.of_json(*each) for each in facts.get("containers", ()))
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
    return Sidecar(number, columns, shards, rejects, containers)
