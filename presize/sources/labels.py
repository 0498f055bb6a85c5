"""Class lists, labels as class numbers, and splits: by folder, by container, or by a hash of the path."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError, warn
from presize.formatting import plural
from presize.options import SourceOptions, parse_shares
from presize.sources.columns import NO_TEXT, no_text, python_values
from presize.sources.contents import Source
from presize.store.manifest import read_manifest

SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
"""Names of folders and files that are probably splits."""

READABLE = "expected a readable file: an absolute path, or one relative to the current folder"
_WHOLE = re.compile(r"-?[0-9]{1,18}")


@contextmanager
def naming(what: str) -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{what}: {error}") from None


def class_labels(
    labels: pa.ChunkedArray, classes: Sequence[str] | None, by_value: bool = False
) -> tuple[pa.ChunkedArray, tuple[str, ...]]:
    """Return labels as int32 positions in a class list, and the list: `classes`, or the sorted labels. With `by_value`,
    labels are sorted by value if all are whole numbers: 2 before 10."""
    names = labels.unique()
    known = tuple(classes) if classes is not None else tuple(sorted(names.to_pylist()))
    strange = names.filter(pc.match_substring_regex(names, NO_TEXT))
    if classes is None and len(strange):
        raise no_text(strange[0].as_py().encode())
    if classes is None and by_value and all(map(_WHOLE.fullmatch, known)):
        known = tuple(sorted(known, key=lambda name: (int(name), name)))
    number_of = class_numbers(names.to_pylist(), known)
    unknown = [name for name in names.to_pylist() if name not in number_of]
    if unknown:
        raise SourceError(
            f"the label {unknown[0]!r} is not in the class list of {plural(len(known), 'name')}, such as {known[0]!r}; "
            "a class list has one name per line, and nothing else"
        )
    numbers = pa.array([number_of[name] for name in names.to_pylist()], pa.int32())
    return pa.chunked_array([numbers.take(pc.index_in(labels, names).combine_chunks())]), known


def class_numbers(names: Iterable[str], classes: Sequence[str]) -> dict[str, int]:
    """Return the positions in `classes` of the `names` that it contains, in any Unicode normalization."""
    alike = {normalize("NFC", name): number for number, name in enumerate(classes)}
    number_of = {name: number for number, name in enumerate(classes)}
    found = ((name, number_of.get(name, alike.get(normalize("NFC", name)))) for name in names)
    return {name: number for name, number in found if number is not None}


def check_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return a class list as a tuple. Raises SourceError if it is empty, or has an empty or repeated name."""
    if isinstance(names, str):
        raise SourceError(f"expected a list of names, got the string {names!r}; read_classes reads a file")
    for name in names:
        if not isinstance(name, str) or not name:
            raise SourceError(f"{name!r} is not the name of a class")
    if not names:
        raise SourceError("expected at least one name, got none")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise SourceError(f"expected each name once, got {name!r} {times} times")
    return tuple(names)


def read_classes(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the class list of a text file, with one name per line, or of another dataset."""
    path = Path(path)
    with naming(f"classes {str(path)!r}"):
        try:
            if not path.is_dir():
                lines = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
                return check_classes([line for line in lines if line])
            classes = read_manifest(path).classes
        except UnicodeDecodeError:
            raise SourceError("it is not UTF-8 text; expected one name per line") from None
        except OSError as error:
            raise SourceError(f"{error.strerror}; {READABLE}") from None
        if classes is None:
            raise SourceError("the dataset has no classes")
        return classes


def with_splits(source: Source, options: SourceOptions, images: str = "") -> Source:
    table, paths, split = source.table, source.table.column("path"), options.split
    if split is None:
        return source
    if "split" in table.column_names:
        raise SourceError("the samples already have a column 'split'; leave out --split to use it, or rename it")
    if split == "folders" and source.containers:
        splits = of_containers(table, _container_splits([container.path for container in source.containers]))
    elif split == "folders":
        splits = folder_at(paths, 1 if images else 0)
        if splits.null_count:
            first = paths.filter(splits.is_null())[0].as_py()
            raise SourceError(
                f"--split folders: {splits.null_count} of {len(paths)} paths are not in a folder of the source; the "
                f"first is {first!r}"
            )
    else:
        shares = parse_shares(split)
        splits = draw_splits(paths, shares, options.split_seed)
        if empty := shares.keys() - set(splits.unique().to_pylist()):
            warn(
                f"--split {split}: no samples for {' and '.join(sorted(empty))}; the source has "
                f"{plural(len(paths), 'sample')}"
            )
    return replace(source, table=table.append_column("split", splits))


def _container_splits(paths: list[str]) -> list[str]:
    """Return the splits that begin all names, as in ``train-0.parquet``; otherwise the first folders of the paths."""
    splits = [re.split(r"[^A-Za-z]", os.path.basename(path))[0] for path in paths]
    if SPLITS.issuperset(splits):
        return splits
    beside = [path for path in paths if "/" not in path]
    if beside:
        raise SourceError(f"--split folders: {beside[0]!r} is not in a folder of the source")
    return [path.partition("/")[0] for path in paths]


def of_containers(table: pa.Table, texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string()).take(table.column("container").combine_chunks())


def folder_at(paths: pa.ChunkedArray, depth: int) -> pa.ChunkedArray:
    """Return the name of each path's folder at `depth`, 0 for the first; null if there is none."""
    matches = pc.extract_regex(paths, rf"(?s)^(?:[^/]*/){{{depth}}}(?P<name>[^/]*)/")
    return pc.struct_field(matches, "name")


def draw_splits(paths: pa.ChunkedArray, shares: dict[str, Fraction], seed: int) -> pa.ChunkedArray:
    """Return the split of each path, decided only by a hash of (seed, path). The shares add up to 1."""
    names = pa.array(list(shares), pa.large_string())
    bounds = np.array([int(share * 2**64) for share in accumulate(shares.values())][:-1], np.uint64)
    hash_of = partial(hashlib.blake2b, digest_size=8, key=seed.to_bytes(8, "little"))
    digests = (hash_of(path.encode()).digest() for path in python_values(paths))
    hashes = np.fromiter((int.from_bytes(digest, "little") for digest in digests), np.uint64, len(paths))
    return pa.chunked_array([names.take(pa.array(np.searchsorted(bounds, hashes, "right")))])
