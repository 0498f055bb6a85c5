"""Assigns samples to splits, by their folder or container, or by a hash of their path: the column ``split``."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError, warn
from presize.options import SourceOptions, parse_shares
from presize.sources.columns import python_values
from presize.sources.contents import Source

SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
"""Names of folders and files that are probably splits."""


def with_splits(source: Source, options: SourceOptions, images: str = "") -> Source:
    """Return a source, with the column ``split`` if `options` ask for one; `images` is the folder of all images.

    Raises:
        SourceError: there is such a column already, or a sample lies in no folder.

    Warns:
        PresizeWarning: a split has no samples.
    """
    table = source.table
    if options.split is None:
        return source
    if "split" in table.column_names:
        raise SourceError("the samples have a column 'split' already; leave out --split to use that, or rename it")
    paths = table.column("path")
    if options.split == "folders" and source.containers:
        splits = of_containers(table, _container_splits([container.path for container in source.containers]))
    elif options.split == "folders":
        splits = folder_at(paths, 1 if images else 0)
        if splits.null_count:
            first = paths.filter(splits.is_null())[0].as_py()
            raise SourceError(
                f"--split folders: {splits.null_count} of {len(paths)} paths lie in no folder of the source, the first "
                f"is {first!r}"
            )
    else:
        splits = draw_splits(paths, parse_shares(options.split), options.split_seed)
        empty = parse_shares(options.split).keys() - set(splits.unique().to_pylist())
        if empty:
            warn(f"--split {options.split}: no sample is in {' and '.join(sorted(empty))}, of {len(paths):,} in all")
    return replace(source, table=table.append_column("split", splits))


def _container_splits(paths: list[str]) -> list[str]:
    """Return the first word of the names of containers, if that is a split's in each, as in
    ``train-00000-of-00002.parquet``; otherwise the first folder of their paths."""
    splits = [re.split(r"[^A-Za-z]", os.path.basename(path))[0] for path in paths]
    if SPLITS.issuperset(splits):
        return splits
    beside = [path for path in paths if "/" not in path]
    if beside:
        raise SourceError(f"--split folders: {beside[0]!r} lies in no folder of the source")
    return [path.partition("/")[0] for path in paths]


def of_containers(table: pa.Table, texts: list[str]) -> pa.Array:
    """Return for each sample the text of its container."""
    return pa.array(texts, pa.large_string()).take(table.column("container").combine_chunks())


def folder_at(paths: pa.ChunkedArray, depth: int) -> pa.ChunkedArray:
    """For each path the name of a folder in it: the first at depth 0, the one inside that at depth 1. Null where there
    is none."""
    matches = pc.extract_regex(paths, rf"(?s)^(?:[^/]*/){{{depth}}}(?P<name>[^/]*)/")
    return pc.struct_field(matches, "name")


def with_folder_labels(table: pa.Table, samples: SourceOptions) -> pa.Table:
    """A table whose labels are the class folders in the paths, if all of them have one."""
    names = folder_at(table.column("path"), 1 if samples.split == "folders" else 0)
    return table if names.null_count else table.append_column("label", names)


def draw_splits(paths: pa.ChunkedArray, shares: dict[str, Fraction], seed: int) -> pa.ChunkedArray:
    """Return the split of each path, decided by a hash of (seed, path) alone, so that other paths have no say. The
    shares add up to 1."""
    names = pa.array(list(shares), pa.large_string())
    bounds = np.array([int(share * 2**64) for share in accumulate(shares.values())][:-1], np.uint64)
    hash_of = partial(hashlib.blake2b, digest_size=8, key=seed.to_bytes(8, "little"))
    digests = (hash_of(path.encode()).digest() for path in python_values(paths))
    hashes = np.fromiter((int.from_bytes(digest, "little") for digest in digests), np.uint64, len(paths))
    return pa.chunked_array([names.take(pa.array(np.searchsorted(bounds, hashes, "right")))])
