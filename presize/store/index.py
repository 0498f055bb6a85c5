"""index.arrow: one row per sample, in dataset order; written once, mapped by readers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa

from presize.errors import DatasetError
from presize.options import Layout
from presize.store.manifest import DataFile, Manifest
from presize.system.files import rename, temporary_name, writing

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
"""The columns of the index. LMDB datasets have shard and row, folders have file; datasets built with checksums have
source_crc32; label columns follow."""

LATER_COLUMNS = ("source_facts",)
"""Columns that a dataset may lack, since older versions did not write them."""

ARROW_OPTIONS = pa.ipc.IpcWriteOptions(
    metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False, compression=None
)
"""Explicit, since environment variables can change the defaults."""


def index_columns(layout: Layout, checksum: bool = False) -> dict[str, pa.DataType]:
    """The columns that the index of such a dataset has, in order, without labels."""
    absent = {"file"} if layout == "lmdb" else {"shard", "row"}
    if not checksum:
        absent.add("source_crc32")
    return {name: kind for name, kind in INDEX_COLUMNS.items() if name not in absent}


def write_index(root: Path, name: str, table: pa.Table) -> DataFile:
    """Write the index as one uncompressed Arrow IPC record batch, so that readers can map it.

    Raises:
        BuildError: it cannot be written.
    """
    temporary = temporary_name(root / name)
    with writing(root / name):
        try:
            with pa.OSFile(str(temporary), "wb") as file:
                with pa.ipc.new_file(file, table.schema, options=ARROW_OPTIONS) as writer:
                    writer.write_table(table.combine_chunks())
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            rename(temporary, root / name)
        finally:
            temporary.unlink(missing_ok=True)
    return DataFile.of(root, name, len(table))


def _first_line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).partition("\n")[0]


def read_index(root: str | os.PathLike[str], manifest: Manifest) -> pa.RecordBatch:
    """The index, mapped: all processes share its memory.

    Columns have the types of INDEX_COLUMNS and no nulls; a dataset with classes has an int32 ``label`` column. The
    values are not checked here but where they are used.

    Raises:
        DatasetError: the file is missing, damaged, or does not fit the manifest.
    """
    path = Path(root) / manifest.index.file
    again = "copy or build the dataset again"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != manifest.index.bytes:
            # Reading a truncated map would kill the process with SIGBUS.
            raise DatasetError(
                f"{path} has {status.st_size} bytes where the manifest says {manifest.index.bytes}: "
                f"truncated or replaced; {again}"
            )
        reader = pa.ipc.open_file(pa.memory_map(os.fsencode(path)))
        if reader.num_record_batches != 1:
            raise DatasetError(f"{path} is damaged: it has {reader.num_record_batches} record batches, not 1; {again}")
        batch = reader.get_batch(0)
        batch.validate()
    except OSError as error:
        raise DatasetError(f"{path}: {_first_line(error)}; {again}") from None
    except pa.ArrowException as error:
        raise DatasetError(f"{path} is damaged: {_first_line(error)}; {again}") from None
    labels = {} if manifest.classes is None else {"label": pa.int32()}
    expected = index_columns(manifest.layout, manifest.checksum) | labels
    for name, kind in expected.items():
        if name in LATER_COLUMNS and name not in batch.schema.names:
            continue
        i = batch.schema.get_field_index(name)  # -1 when there are two of them, too
        if i < 0 or batch.schema.field(i).type != kind or batch.column(i).null_count:
            raise DatasetError(f"{path} is damaged: expected one column {name} of type {kind} without nulls; {again}")
    if batch.num_rows != manifest.samples:
        raise DatasetError(f"{path} has {batch.num_rows} rows where the manifest says {manifest.samples}; {again}")
    return batch
