"""Tampered datasets: copies with changes in the manifest, the index or the records. The sizes in the manifest follow,
so that only the intended fault remains."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa

from presize.store.manifest import digest_of, sealed
from presize.store.shard import ShardWriter
from presize.system.files import file_digest


def manifest_values(root: Path) -> dict[str, Any]:
    return json.loads((root / "manifest.json").read_bytes())


def write_manifest(root: Path, values: dict[str, Any]) -> None:
    """Write a manifest with these values and correct hashes."""
    identity = values.get("identity")
    if isinstance(identity, dict):
        if "classes" in values:
            identity["classes"] = hashlib.sha256(json.dumps(values["classes"]).encode()).hexdigest()
        if "digest" in values:
            values["digest"] = digest_of(identity)
    values.pop("sha256", None)
    (root / "manifest.json").write_bytes(sealed(values))


def change_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply `change` to the values of the manifest."""
    values = manifest_values(root)
    change(values)
    write_manifest(root, values)


def read_table(root: Path) -> pa.Table:
    return pa.ipc.open_file((root / "index.arrow").read_bytes()).read_all()


def write_table(root: Path, table: pa.Table, rows_per_batch: int | None = None) -> None:
    """Replace the index by `table`."""
    with pa.OSFile(str(root / "index.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, rows_per_batch)
    index_has_changed(root)


def reseal(root: Path) -> None:
    """Correct all sizes and hashes in the manifest, like someone who hides a change."""

    def change(values: dict[str, Any]) -> None:
        companions = [file for companion in values.get("companions", ()) for file in companion["shards"]]
        files = [values["index"], values["rejects"], values["report"], *values["shards"], *companions]
        for file in filter(None, files):
            file["bytes"], file["sha256"] = file_digest(root / file["file"])

    change_manifest(root, change)


def index_has_changed(root: Path) -> None:
    nbytes, sha256 = file_digest(root / "index.arrow")
    change_manifest(root, lambda values: values["index"].update(bytes=nbytes, sha256=sha256))


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Replace the `values` of an existing column of `table`."""
    return table.set_column(table.column_names.index(name), name, values)


def with_value(table: pa.Table, name: str, row: int, value: object) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    return with_column(table, name, pa.array(values, table.schema.field(name).type))


def change_offset(root: Path, name: str, row: int, offset: int) -> None:
    """Move the start of the text of `row` in a text column, which no Arrow writer does."""
    column = read_table(root).column(name).combine_chunks()
    offsets = np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]
    content = (root / "index.arrow").read_bytes()
    assert content.count(offsets.tobytes()) == 1
    changed = offsets.copy()
    changed[row] = offset
    (root / "index.arrow").write_bytes(content.replace(offsets.tobytes(), changed.tobytes()))
    index_has_changed(root)


def rewrite_shards(root: Path, records: Callable[[int, list[bytes]], list[bytes]]) -> list[int]:
    """Write each shard again with the result of `records(shard, its records)`. Return the number of records that each
    had."""
    manifest, rows = manifest_values(root), []
    for number, shard in enumerate(manifest["shards"]):
        path = root / shard["file"]
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            values = [value for _, value in txn.cursor()]
        with ShardWriter(path, 1 << 28, 1000) as writer:
            for value in records(number, values):
                writer.append(value)
            shard["bytes"], shard["sha256"] = writer.publish()
        rows.append(len(values))
        shard["rows"] = writer.rows
    write_manifest(root, manifest)
    return rows


def change_records(root: Path, change: Callable[[int, int, bytes], bytes], *, crc32: bool = True) -> None:
    """Write each shard again with the records that `change(shard, row, value)` returns. The index keeps their old
    lengths; with `crc32` it gets their new CRC-32, so that readers accept them."""
    sums: dict[tuple[int, int], int] = {}

    def changed(shard: int, values: list[bytes]) -> list[bytes]:
        values = [change(shard, row, value) for row, value in enumerate(values)]
        sums.update({(shard, row): zlib.crc32(value) for row, value in enumerate(values)})
        return values

    rewrite_shards(root, changed)
    if crc32:
        table = read_table(root)
        places = zip(table["shard"].to_pylist(), table["row"].to_pylist(), strict=True)
        write_table(root, with_column(table, "crc32", pa.array([sums[place] for place in places], pa.uint32())))


def _change_record(root: Path, sample: int, change: Callable[[bytes], bytes], crc32: bool) -> None:
    table = read_table(root)
    place = table.column("shard")[sample].as_py(), table.column("row")[sample].as_py()
    change_records(root, lambda *at: change(at[2]) if at[:2] == place else at[2], crc32=crc32)


def overwrite_value(root: Path, sample: int) -> None:
    """Overwrite a stored image with as many zero bytes."""
    _change_record(root, sample, lambda value: bytes(len(value)), True)


def flip_record(root: Path, sample: int) -> None:
    """Flip one bit near the end of a stored image, like a failing disk: the index keeps its CRC-32."""
    _change_record(root, sample, lambda value: value[:-20] + bytes([value[-20] ^ 4]) + value[-19:], False)


def repeat_samples(root: Path, times: int) -> None:
    """Repeat the records of each shard, and the index, `times` times."""
    table = read_table(root)
    rows = np.array(rewrite_shards(root, lambda _, values: values * times))[table["shard"].to_numpy()]
    kind = table.schema.field("row").type
    repeated = [
        with_column(table, "row", pa.array(table["row"].to_numpy() + time * rows, kind)) for time in range(times)
    ]
    write_table(root, pa.concat_tables(repeated).combine_chunks())
    count = times * len(table)
    change_manifest(root, lambda values: (values.update(samples=count), values["index"].update(rows=count)))
