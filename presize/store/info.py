"""Summary of a dataset: its content and how it was built, without reading its images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from presize.store.data_files import CompanionFiles
from presize.store.index import read_index, validate_column
from presize.store.manifest import read_manifest
from presize.system.files import expanded


@dataclass(frozen=True)
class DatasetInfo:
    """Content of a dataset, and how it was built.

    Attributes:
        bytes: size of the stored images, without companions.
        classes: names of the classes; None without classes.
        splits: number of samples of each split; empty without a column of splits.
        shards: number of shards; 0 for a folder of files.
        layout: "lmdb" or "folder".
        size: the target size, as ``Size.parse`` reads it.
        options: the build's options as recorded in the manifest.
        companions: the companions, each with `name`, `bytes`, `format` and `filter`.
        left_out: number of source files that were not stored, by reason.
        versions: versions of the libraries that built it.
        digest: hash that identifies source, options and codecs.
        derived: differences from the datasets that it was derived from.
    """

    samples: int
    bytes: int
    classes: Sequence[str] | None
    splits: Mapping[str, int]
    shards: int
    layout: str
    size: str
    options: Mapping[str, Any]
    companions: tuple[CompanionFiles, ...]
    left_out: Mapping[str, int]
    versions: Mapping[str, str]
    digest: str
    derived: tuple[str, ...]


def info_dataset(root: str | os.PathLike[str]) -> DatasetInfo:
    """Return the content of the dataset in `root` and how it was built. Raises DatasetError if missing or damaged."""
    root = expanded(root)
    manifest = read_manifest(root)
    return DatasetInfo(
        samples=manifest.samples,
        bytes=manifest.bytes,
        classes=None if manifest.classes is None else list(manifest.classes),
        splits=split_counts(read_index(Path(root), manifest, check=False), root),
        shards=len(manifest.shards),
        layout=manifest.layout,
        size=manifest.size,
        options=manifest.identity["options"],
        companions=manifest.companions,
        left_out=manifest.left_out,
        versions=manifest.versions,
        digest=manifest.digest,
        derived=tuple(manifest.derived),
    )


def split_counts(samples: pa.RecordBatch | pa.Table, place: object) -> dict[str, int]:
    """Return the number of samples of each split, by name. Raises DatasetError as validate_column does."""
    names = samples.schema.names
    if names.count("split") != 1 or not pa.types.is_large_string(samples.schema.field("split").type):
        return {}
    column = samples.column("split")
    validate_column(column, "split", place)
    counts = {each["values"]: each["counts"] for each in column.value_counts().to_pylist()}
    return {name: counts[name] for name in sorted(counts.keys() - {None})}
