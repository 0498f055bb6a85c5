"""index.arrow: one row per sample, in dataset order; written once, mapped by readers."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from presize.errors import DatasetError
from presize.options import Layout
from presize.store.data_files import CannotOpenError, DataFile, raise_limit, require
from presize.store.manifest import Manifest, read_manifest, replaced
from presize.system.files import check_file, new_files, writing

INDEX_COLUMNS = {
    "path": pa.large_string(),
    "shard": pa.int32(),
    "row": pa.int32(),
    "file": pa.large_string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "source_width": pa.int32(),
    "source_height": pa.int32(),
    "nbytes": pa.int64(),
    "crc32": pa.uint32(),
    "source_nbytes": pa.int64(),
    "source_mtime_ns": pa.int64(),
    "source_facts": pa.uint32(),
    "source_crc32": pa.uint32(),
}
"""LMDB datasets have shard and row, folders have file, builds with checksums source_crc32. Label columns follow."""

COMPANION_COLUMNS = (
    "width", "height", "nbytes", "crc32", "source_nbytes", "source_mtime_ns", "source_facts", "source_crc32",
)  # fmt: skip
"""Columns of each companion, such as ``mask_width``. Its shards have its records in the same rows as the images."""


def record_columns(companion: str = "", checksum: bool = False) -> dict[str, pa.DataType]:
    """Return the columns that describe the records of images or of a companion, without its prefix."""
    planned = {"path", "shard", "row", "file", "source_nbytes", "source_mtime_ns"}
    names = COMPANION_COLUMNS if companion else tuple(INDEX_COLUMNS)
    return {name: INDEX_COLUMNS[name] for name in names if name not in planned and (checksum or name != "source_crc32")}


ARROW_OPTIONS = pa.ipc.IpcWriteOptions(
    metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False, compression=None
)
"""Explicit, since environment variables can change the defaults."""


def index_columns(layout: Layout, checksum: bool = False, companions: Sequence[str] = ()) -> dict[str, pa.DataType]:
    """Return the index columns of a dataset, in order, without labels."""
    absent = {"file"} if layout == "lmdb" else {"shard", "row"}
    if not checksum:
        absent.add("source_crc32")
    columns = {name: kind for name, kind in INDEX_COLUMNS.items() if name not in absent}
    of_each = [name for name in COMPANION_COLUMNS if name not in absent]
    return columns | {f"{companion}_{name}": columns[name] for companion in companions for name in of_each}


def source_columns(names: Sequence[str], companions: Sequence[str]) -> tuple[str, ...]:
    """Return the column names that come from the source or its label table, such as label and split."""
    made = {*INDEX_COLUMNS, *(f"{companion}_{name}" for companion in companions for name in COMPANION_COLUMNS)}
    return tuple(name for name in names if name not in made)


def companion_index(index: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the index of a companion, with the column names that images have."""
    names = index.schema.names
    columns = [f"{name}_{column}" if column in COMPANION_COLUMNS else column for column in names]
    return pa.RecordBatch.from_arrays([index.column(column) for column in columns], names)


def write_index(root: Path, name: str, table: pa.Table) -> DataFile:
    write_arrow(root / name, table)
    return DataFile.of(root, name, len(table))


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write a table as one uncompressed Arrow IPC record batch, atomically, so that readers can map it."""
    with (
        writing(path),
        new_files(path.parent) as new_file,
        pa.OSFile(str(new_file(path.name)), "wb") as file,
        pa.ipc.new_file(file, table.schema, options=ARROW_OPTIONS) as writer,
    ):
        writer.write_table(table.combine_chunks())


HASHED_BYTES = 256_000_000
"""Size of the largest index that is hashed on opening: about 2.7 million samples, up to a second."""


def read_index(root: str | os.PathLike[str], manifest: Manifest, check: bool = True) -> pa.RecordBatch:
    """Return the memory-mapped index, shared by all processes. Columns have the types of INDEX_COLUMNS and no nulls;
    with classes there is an int32 ``label``. Values are checked where they are used. `check` verifies the SHA-256 of an
    index of up to 256 MB. Raises DatasetError if the file is missing, damaged, or does not match the manifest."""
    path = Path(root) / manifest.index.file
    check_file(path, manifest.index.bytes)
    try:
        mapped = pa.memory_map(os.fsencode(path))
        content = memoryview(mapped.read_buffer())
        if check and len(content) <= HASHED_BYTES:
            digest = hashlib.sha256(content).hexdigest()
            require(digest == manifest.index.sha256, "its SHA-256 differs from the manifest")
        require(_is_plain(content), "it is compressed or has dictionaries")
        reader = pa.ipc.open_file(mapped)
        require(reader.num_record_batches == 1, f"it has {reader.num_record_batches} record batches, not 1")
        batch = reader.get_batch(0)
        batch.validate()
        _check_columns(batch, manifest)
        return batch
    except PermissionError as error:
        raise CannotOpenError(f"{path} cannot be read: {error.strerror}; get read access") from None
    except struct.error:
        reason = "it does not end like an Arrow file"
    except UnicodeDecodeError:
        reason = "the name of a column is not UTF-8"
    except (OSError, ValueError, pa.ArrowException) as error:
        raise_limit(path, error)
        reason = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
    raise DatasetError(f"{path} is damaged: {reason}; copy or build the dataset again")


def _check_columns(batch: pa.RecordBatch, manifest: Manifest) -> None:
    labels = {} if manifest.classes is None else {"label": pa.int32()}
    companions = [companion.name for companion in manifest.companions]
    names = batch.schema.names
    for name, kind in (index_columns(manifest.layout, manifest.checksum, companions) | labels).items():
        column = batch.column(names.index(name)) if names.count(name) == 1 else None
        fits = column is not None and column.type == kind and not column.null_count
        require(fits, f"expected one column {name} of type {kind} without nulls")
    rows = f"it has {batch.num_rows} rows where the manifest says {manifest.samples}"
    require(batch.num_rows == manifest.samples, rows)


def validate_column(column: pa.Array | pa.ChunkedArray, name: str, place: object) -> None:
    """Raise DatasetError, naming `place`, unless a column has valid offsets and UTF-8 text. Reads the whole column."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        what = str(error).partition("\n")[0]
        raise DatasetError(f"column {name!r} of {place} is damaged: {what}") from None


T = TypeVar("T")


def open_settled(root: str | os.PathLike[str], read: Callable[[Manifest], T]) -> T:
    """Return the result of `read` for the manifest in `root`; call it again if the dataset was replaced meanwhile."""
    while True:
        manifest = read_manifest(root)
        try:
            return read(manifest)
        except DatasetError:
            if not replaced(root, manifest):
                raise


def _number(layout: str, data: memoryview, place: int) -> int:
    if not 0 <= place < len(data):
        raise struct.error("an offset outside of the file")
    return int(struct.unpack_from(layout, data, place)[0])


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Return the offset of a field of a flatbuffer table (flatbuffers.dev, internals); None if it is absent."""
    fields, at = table - _number("<i", data, table), 4 + 2 * number
    offset = _number("<H", data, fields + at) if at < _number("<H", data, fields) else 0
    return table + offset if offset else None


def _below(data: memoryview, place: int | None) -> int:
    """Return the offset of the table or vector that a field refers to."""
    if place is None:
        raise struct.error("a missing field")
    return place + _number("<I", data, place)


def _is_plain(file: memoryview) -> bool:
    """Return whether reading an Arrow file allocates nothing: no batch is compressed, and there are no dictionaries.
    Otherwise, a few kB can become GB while Arrow reads; only the metadata (Footer, Message and RecordBatch) shows it.
    Raises struct.error for what is not an Arrow file."""
    end = len(file) - 10  # the footer's length and "ARROW1"
    begin = end - _number("<i", file, end)
    footer = _below(file, begin)
    dictionaries, batches = _field(file, footer, 2), _field(file, footer, 3)
    if dictionaries is not None and _number("<I", file, _below(file, dictionaries)):
        return False
    if batches is None:  # read_index rejects all counts but 1
        return True
    at = _number("<q", file, _below(file, batches) + 4)
    at += 8 if _number("<I", file, at) == 0xFFFFFFFF else 4
    batch = _below(file, _field(file, _below(file, at), 2))
    return _field(file, batch, 3) is None
