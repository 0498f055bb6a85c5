"""Facts about a dataset: its content and how it was made, without reading its images."""

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
    """Content of a dataset, and how it was made.

    Attributes:
        bytes: of the stored images and their companions.
        classes: names of the classes; None without classes.
        splits: samples of each split; empty without a column of splits.
        shards: number of shards; 0 for a folder of files.
        layout: "lmdb" or "folder".
        size: the target size, as ``Size.parse`` reads it.
        options: the build's options as the manifest records them.
        companions: with their `name`, `bytes`, `format` and `filter`.
        left_out: files of the source that were not stored, by reason.
        versions: of the libraries that made it.
        digest: identifies source, options and codecs.
        derived: how the datasets that it was derived from differ from it.
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
    """Return what the dataset in `root` holds and how it was made. Raises DatasetError when it is none, or damaged."""
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
    """Return how many samples each split has, by name. Raises DatasetError as validate_column does."""
    names = samples.schema.names
    if names.count("split") != 1 or not pa.types.is_large_string(samples.schema.field("split").type):
        return {}
    column = samples.column("split")
    validate_column(column, "split", place)
    counts = {each["values"]: each["counts"] for each in column.value_counts().to_pylist()}
    return {name: counts[name] for name in sorted(counts.keys() - {None})}
