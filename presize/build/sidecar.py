"""A finished shard's part of the index: the side-car, written last, proves that the shard is whole."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from presize.store.rejects import NOT_AN_IMAGE
from presize.system.files import temporary_name, writing

SIZE_COLUMNS = ("height", "width", "nbytes", "crc32")
"""What the index says of each size's record."""


class ShardDone(NamedTuple):
    """What became of a shard's samples. skipped: files that are no images, by content and by name."""

    number: int
    stored: int
    rejected: int
    skipped: int
    bytes: int


@dataclass(frozen=True)
class Sidecar:
    """A finished shard's part of the index.

    columns: arrays of equal length, one row a stored record, in shard order: ``sample``,
        ``source_height``, ``source_width``, ``source_facts``, with checksums ``source_crc32``, and for the size
        number k ``height_k``, ``width_k``, ``nbytes_k``, ``crc32_k``.
    shards: for each size the shard's size in bytes and its SHA-256; nothing for folders.
    rejects: the row in the source table, the error and the reason of each sample not stored.
    """

    number: int
    columns: dict[str, npt.NDArray[Any]]
    shards: list[tuple[int, str]]
    rejects: list[tuple[int, str, str]]

    @property
    def done(self) -> ShardDone:
        skipped = sum(error == NOT_AN_IMAGE for _, error, _ in self.rejects)
        stored_bytes = sum(int(c.sum()) for name, c in self.columns.items() if name.startswith("nbytes_"))
        stored = len(self.columns["sample"])
        return ShardDone(self.number, stored, len(self.rejects) - skipped, skipped, stored_bytes)


def write_sidecar(path: Path, sidecar: Sidecar, digest: str) -> None:
    """Publish a side-car under the digest of its plan. Not synced: should the power fail, a side-car that is damaged
    or has lost its shard counts as absent. Raises BuildError when it cannot be written."""
    temporary = temporary_name(path)
    with writing(path):
        temporary.write_bytes(_to_npz(sidecar, digest))
        os.replace(temporary, path)


def _to_npz(sidecar: Sidecar, digest: str) -> bytes:
    facts = {"digest": digest, "shards": sidecar.shards, "rejects": sidecar.rejects}
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8), **sidecar.columns}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def read_sidecar(path: Path, number: int, digest: str) -> Sidecar | None:
    """The side-car of a shard; None when it is absent, damaged, or of another plan."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
        facts = json.loads(columns.pop("facts").tobytes())
        if facts["digest"] != digest:
            return None
        shards = [(int(size), str(sha256)) for size, sha256 in facts["shards"]]
        rejects = [(int(sample), str(error), str(reason)) for sample, error, reason in facts["rejects"]]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
    return Sidecar(number, columns, shards, rejects)
