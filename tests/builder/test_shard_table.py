"""What shards give to their dataset: one table, whether they were built, copied or kept, and its side-car on disk."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builds import SERIAL
from paired import WITH_MASKS, make_pairs
from presize.builder.output_dir import OutputDir
from presize.builder.reuse import find_reuse
from presize.builder.run import build_dataset, plan_build
from presize.builder.shard_table import ShardTable
from presize.options import ImageOptions, Size, Stream
from presize.sources.source_files import Container
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
    files={IMAGE: (8192, "ab"), MASK: (4096, "cd")},
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
def test_a_table_is_read_as_it_was_written_and_always_the_same_bytes(table: ShardTable, tmp_path: Path) -> None:
    for name in ("one", "two"):
        table.write(tmp_path / name, "digest")
    read = ShardTable.read(tmp_path / "one", 3, "digest")
    assert read is not None
    assert_same(read, table)
    assert (read.number, read.rejects, read.containers) == (3, table.rejects, table.containers)
    assert read.done == table.done
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert ShardTable.read(tmp_path / "one", 3, "another digest") is None
    assert ShardTable.read(tmp_path / "missing", 3, "digest") is None


def test_the_sums_of_a_table_count_all_streams() -> None:
    assert TABLE.done == (3, 2, 1, 1, 330, 1)
    assert TABLE.done.samples == 5


def test_a_side_car_that_was_cut_short_is_none(tmp_path: Path) -> None:
    TABLE.write(tmp_path / "whole", "digest")
    whole = (tmp_path / "whole").read_bytes()
    for end in range(0, len(whole), 7):
        (tmp_path / "cut").write_bytes(whole[:end])
        assert ShardTable.read(tmp_path / "cut", 3, "digest") is None, end


FACTS = {"digest": "digest", "streams": [["", "24", ["nbytes"]]], "files": [], "rejects": [], "containers": []}
ARRAY = np.array([[1, 2], [10, 20]], np.int64)


def side_car(facts: object, array: Any = ARRAY, name: str = "numbers") -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **{name: array})
    return buffer.getvalue()


def test_a_side_car_of_these_parts_is_whole(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(side_car(FACTS))
    assert ShardTable.read(tmp_path / "it", 3, "digest") is not None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PK\x03\x04 damaged", side_car([]), side_car({}), side_car(FACTS, ARRAY.astype(float)),
        side_car(FACTS, ARRAY[0]), side_car(FACTS, ARRAY[:1]), side_car(FACTS, np.vstack([ARRAY, ARRAY])),
        side_car(FACTS, name="other"), side_car(FACTS | {"streams": [["", "24"]]}), side_car(FACTS | {"streams": None}),
        side_car(FACTS | {"streams": [["", "24px", ["nbytes"]]]}),
        side_car(FACTS | {"streams": [["", 24, ["nbytes"]]]}),
        side_car(FACTS | {"files": [["", "24", "many", "ab"]]}), side_car(FACTS | {"rejects": [[1, "ImageError"]]}),
        side_car(FACTS | {"containers": [["a.tar"]]}),
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_side_car_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(content)
    assert ShardTable.read(tmp_path / "it", 3, "digest") is None


@pytest.mark.parametrize("checksum", [False, True])
def test_a_shard_that_is_kept_gives_the_table_that_it_was_built_with(checksum: bool, tmp_path: Path) -> None:
    source = make_pairs(tmp_path / "raw")
    options = replace(WITH_MASKS, image=ImageOptions(sizes=(Size(24, 24), Size(16, 16))), checksum=checksum)
    output, side_cars = OutputDir.of(tmp_path / "out", options.image.sizes), tmp_path / "side-cars"

    def copy(_: object) -> None:
        shutil.copytree(output.path, side_cars, dirs_exist_ok=True)

    build_dataset(source, output.path, options, SERIAL, on_shard=copy)
    plan = plan_build(source, options)
    records, _ = find_reuse(plan, output, SERIAL)
    kept = records.kept.shards
    assert len(kept) == len(plan.shards)
    for number, shard in enumerate(kept):
        built = ShardTable.read(side_cars / output.sidecar(number).name, number, plan.shard_digest(number))
        assert built is not None
        assert set(built.columns) == set(options.streams)
        assert_same(shard.read(), built)
