"""Verifies a dataset: reads every byte and lists all problems. Changes nothing."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.codecs.stored_value import DAMAGE, decode_value
from presize.errors import DatasetError
from presize.formatting import plural
from presize.options import MAX_SIDE
from presize.store.data_files import CannotOpenError, DataFile, raise_limit
from presize.store.filenames import is_safe
from presize.store.index import companion_index, read_index
from presize.store.manifest import Manifest, read_manifest, replaced
from presize.store.shard import check_structure
from presize.store.shard_reader import ShardReader
from presize.system.files import expanded, file_digest
from presize.system.resources import usable_cores


class Problem(NamedTuple):
    """Problem of a file, given by its path relative to the dataset's folder."""

    file: str
    what: str


@dataclass(frozen=True)
class VerifyResult:
    """Number of samples of a dataset, and all problems of its files."""

    samples: int
    problems: tuple[Problem, ...] = ()


def verify_dataset(
    root: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    on_images: Callable[[int], None] = lambda _: None,
) -> VerifyResult:
    """Read every byte of a dataset and list all problems.

    Checks the size and SHA-256 of each file in the manifest; the structure of shards, with a parser that hostile files
    cannot crash; that index and shards agree; the CRC-32 of each value; and that each image decodes to its size.

    Args:
        root: the dataset's folder.
        jobs: number of threads; one per usable core by default.
        on_images: called with the number of images and companions checked since the last call.

    Raises:
        DatasetError: the dataset is missing, is updated or replaced meanwhile, or a limit such as memory is reached.
    """
    root = Path(expanded(root))
    manifest = read_manifest(root)
    problems = tuple(_problems(root, manifest, jobs, on_images))
    if problems and (error := replaced(root, manifest)):
        raise error
    return VerifyResult(manifest.samples, problems)


def _problems(root: Path, manifest: Manifest, jobs: int | None, on_images: Callable[[int], None]) -> Iterator[Problem]:
    broken = set()
    for file in manifest.files():
        for what in check_data_file(root, file):
            broken.add(file.file)
            yield Problem(file.file, what)
    if manifest.index.file in broken:
        return
    try:
        index = read_index(root, manifest, check=False)  # its SHA-256 was compared above
        index.validate(full=True)
    except CannotOpenError:
        raise
    except (DatasetError, pa.ArrowInvalid) as error:
        yield Problem(manifest.index.file, str(error))
        return
    for what in _check_index(manifest, index):
        yield Problem(manifest.index.file, what)
    parts = _parts(root, manifest, index, broken)
    for name in (companion.name for companion in manifest.companions):
        parts += _parts(root, manifest.companion(name), companion_index(index, name), broken)
    with ThreadPoolExecutor(jobs or usable_cores()) as pool:  # decoders release the GIL
        for (rows, _), found in zip(parts, pool.map(lambda part: list(part[1](part[0])), parts), strict=True):
            yield from found
            on_images(rows.num_rows)


def check_data_file(root: Path, expected: DataFile) -> Iterator[str]:
    """Yield the problems of a file's type, size and SHA-256."""
    try:
        if not stat.S_ISREG((root / expected.file).stat().st_mode):  # a named pipe would never end
            yield "is not a regular file"
            return
        nbytes, sha256 = file_digest(root / expected.file)
    except OSError as error:
        raise_limit(root / expected.file, error)
        yield f"cannot be read: {error.strerror}"
        return
    if nbytes != expected.bytes:
        yield f"has {nbytes} bytes where the manifest says {expected.bytes}"
    elif sha256 != expected.sha256:
        yield "its SHA-256 differs from the manifest"


def damaged_records(root: Path, file: DataFile, records: pa.RecordBatch) -> tuple[str, npt.NDArray[np.bool_]]:
    """Check a whole shard and `records` of it (columns ``row``, ``nbytes``, ``crc32``). Return the first problem of the
    file, or "", and a mask of the damaged records: all of them if the structure of the shard is damaged."""
    what = next(check_data_file(root, file), "")
    damaged = np.ones(len(records), np.bool_)
    try:
        if not check_structure(root / file.file):
            with ShardReader(root / file.file, file.bytes) as get:
                for i, (row, nbytes, crc32) in enumerate(zip(*(c.to_pylist() for c in records.columns), strict=True)):
                    with suppress(DatasetError):
                        value = get(row)
                        damaged[i] = len(value) != nbytes or zlib.crc32(value) != crc32
    except CannotOpenError:
        raise
    except DatasetError:
        pass
    return what or ("its records differ from the index" if damaged.any() else ""), damaged


def _check_index(manifest: Manifest, index: pa.RecordBatch) -> Iterator[str]:
    paths = index["path"].to_pylist()
    unsafe = [path for path in paths if not is_safe(path)]
    if unsafe:
        yield f"{plural(len(unsafe), 'path leads', 'paths lead')} out of the source; the first is {unsafe[0]!r}"
    if len(set(paths)) < len(paths):
        yield "a path is listed twice"
    if manifest.classes is not None:
        labels = index["label"].to_numpy()
        if labels.min() < 0 or labels.max() >= len(manifest.classes):
            yield f"a label is out of range for {plural(len(manifest.classes), 'class', 'classes')}"
    if manifest.layout == "lmdb":
        for shard, file in enumerate(manifest.shards):
            rows = np.sort(index["row"].to_numpy()[index["shard"].to_numpy() == shard])
            if not np.array_equal(rows, np.arange(file.rows)):
                yield f"it does not list each of the {file.rows} rows of {file.file} once"


_Part = tuple[pa.RecordBatch, Callable[[pa.RecordBatch], Iterator[Problem]]]
"""Index rows of a shard, or of some files of a folder, and the function that checks them."""


def _parts(root: Path, manifest: Manifest, index: pa.RecordBatch, broken: set[str]) -> list[_Part]:
    if manifest.layout == "folder":
        check = partial(_check_images, root, manifest)
        return [(index.slice(start, 1000), check) for start in range(0, len(index), 1000)]
    shards = index["shard"].to_numpy()
    return [
        (index.take(pa.array(np.flatnonzero(shards == number))), partial(_check_shard, root, manifest, file))
        for number, file in enumerate(manifest.shards)
        if file.file not in broken
    ]


def _check_shard(root: Path, manifest: Manifest, file: DataFile, rows: pa.RecordBatch) -> Iterator[Problem]:
    structure = check_structure(root / file.file)
    yield from (Problem(file.file, what) for what in structure)
    if structure:
        return
    reader = ShardReader(root / file.file, file.bytes)
    try:
        if (entries := reader.entries()) != file.rows:
            yield Problem(file.file, f"it has {entries} records where the manifest says {file.rows}")
        with reader as get:
            for row in rows.select(["row", "path", *_CHECKED]).to_pylist():
                try:
                    value = get(row["row"])
                except DatasetError:
                    what = "is missing"
                else:
                    what = _check_value(value, manifest, row)
                if what:
                    yield Problem(file.file, f"row {row['row']} ({row['path']}) {what}")
    except CannotOpenError:
        raise
    except DatasetError as error:
        yield Problem(file.file, str(error))


def _check_images(root: Path, manifest: Manifest, rows: pa.RecordBatch) -> Iterator[Problem]:
    for row in rows.select(["file", *_CHECKED]).to_pylist():
        if not is_safe(row["file"]):
            yield Problem(manifest.index.file, f"{row['file']!r} leads out of the dataset")
            continue
        path, value = root / row["file"], b""
        try:
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size == row["nbytes"]:  # a named pipe would never end
                value = path.read_bytes()
        except OSError as error:
            yield Problem(row["file"], f"cannot be read: {error.strerror}")
            continue
        if what := _check_value(memoryview(value), manifest, row):
            yield Problem(row["file"], what)


_CHECKED = ("nbytes", "crc32", "height", "width")


def _check_value(value: memoryview, manifest: Manifest, row: dict[str, Any]) -> str:
    """Return the problem of a stored value as a predicate, such as "cannot be decoded: ..."; "" if there is none."""
    if len(value) != row["nbytes"] or zlib.crc32(value) != row["crc32"]:
        return "is damaged: its length or CRC-32 differs from the index"
    shape = (row["height"], row["width"])
    if MAX_SIDE**2 < shape[0] * shape[1] <= _most_pixels(manifest):
        return ""  # its bytes are intact, and decoding it could take all memory
    try:
        decode_value(value, manifest.format, manifest.color, shape, MAX_SIDE**2, manifest.depth)
    except DAMAGE as error:
        raise_limit(f"an image of {shape[0]} x {shape[1]} pixels", error)
        return f"cannot be decoded: {error}"
    return ""


def _most_pixels(manifest: Manifest) -> int:
    """Return the limit on pixels with which the dataset was built."""
    recorded = manifest.identity["options"]["image"].get("max_pixels")
    return recorded if type(recorded) is int else 0
