"""Tables of shards, whether built, copied or kept, and their sidecars on disk."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from presize.builder.shard_table import ShardDone, ShardTable
from presize.options import Size, Stream
from presize.sources.source_files import Container
from presize.store.data_files import DataFile
from presize.store.rejects import NOT_AN_IMAGE, UNREADABLE
from presize.system.file_version import FileVersion

IMAGE, MASK = Stream("", Size(24, 24)), Stream("mask", Size(24, 32))


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


TABLE = ShardTable(
    number=3,
    samples=numbers(4, 9),
    columns={
        IMAGE: {"nbytes": numbers(100, 200), "crc32": numbers(7, 2**32 - 1)},
        MASK: {"nbytes": numbers(10, 20)},
    },
    files={IMAGE: DataFile("shards/3.lmdb", 8192, "ab", 2), MASK: DataFile("shards/mask-3.lmdb", 4096, "cd", 2)},
    rejects=[(5, "ImageError", "broken"), (6, NOT_AN_IMAGE, "é"), (7, UNREADABLE, "no disk")],
    containers=(Container("a.tar", FileVersion(*range(len(FileVersion._fields)))),),
)
NOTHING = ShardTable(3, numbers(), {}, {}, [])


def assert_same(one: ShardTable, other: ShardTable) -> None:
    assert one.samples.tolist() == other.samples.tolist()
    assert one.columns.keys() == other.columns.keys()
    for stream, columns in one.columns.items():
        assert columns.keys() == other.columns[stream].keys()
        assert all(np.array_equal(columns[name], other.columns[stream][name]) for name in columns), stream
    assert one.files == other.files


@pytest.mark.parametrize("table", [TABLE, NOTHING], ids=["some samples", "none"])
def test_a_table_reads_back_and_always_has_the_same_bytes(table: ShardTable, tmp_path: Path) -> None:
    for name in ("one", "two"):
        table.write(tmp_path / name, "digest")
    read = ShardTable.read(tmp_path / "one", 3, "digest")
    assert read is not None
    assert_same(read, table)
    assert (read.number, read.rejects, read.containers) == (3, table.rejects, table.containers)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert ShardTable.read(tmp_path / "one", 3, "another digest") is None
    assert ShardTable.read(tmp_path / "missing", 3, "digest") is None
    assert TABLE.done == ShardDone(3, 2, 1, 1, 330, unreadable=1) and TABLE.done.samples == 5


def test_a_truncated_sidecar_is_ignored(tmp_path: Path) -> None:
    TABLE.write(tmp_path / "whole", "digest")
    whole = (tmp_path / "whole").read_bytes()
    for end in range(0, len(whole), 7):
        (tmp_path / "cut").write_bytes(whole[:end])
        assert ShardTable.read(tmp_path / "cut", 3, "digest") is None, end


FACTS = {"digest": "digest", "streams": [["", "24", ["nbytes"]]], "files": [], "rejects": [], "containers": []}
ARRAY = np.array([[1, 2], [10, 20]], np.int64)


def sidecar(facts: object, array: Any = ARRAY, name: str = "numbers") -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **{name: array})
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PK\x03\x04 damaged", sidecar([]), sidecar({}), sidecar(FACTS, ARRAY.astype(float)),
        sidecar(FACTS, ARRAY[0]), sidecar(FACTS, ARRAY[:1]), sidecar(FACTS, np.vstack([ARRAY, ARRAY])),
        sidecar(FACTS, name="other"), sidecar(FACTS | {"streams": [["", "24"]]}), sidecar(FACTS | {"streams": None}),
        sidecar(FACTS | {"streams": [["", "24px", ["nbytes"]]]}),
        sidecar(FACTS | {"streams": [["", 24, ["nbytes"]]]}),
        sidecar(FACTS | {"files": [["", "24", "0.lmdb", "many", "ab", 2]]}),
        sidecar(FACTS | {"rejects": [[1, "ImageError"]]}), sidecar(FACTS | {"containers": [["a.tar"]]}),
    ],
    ids=range(16),
)  # fmt: skip
def test_a_file_that_is_not_a_sidecar_is_ignored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(sidecar(FACTS))
    assert ShardTable.read(tmp_path / "whole", 3, "digest") is not None
    (tmp_path / "it").write_bytes(content)
    assert ShardTable.read(tmp_path / "it", 3, "digest") is None
