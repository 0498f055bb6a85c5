"""The specimen: what LMDB and Arrow write is noticed when it changes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from presize.errors import BuildError
from presize.options import Layout
from presize.store import index, shard, specimen


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    specimen.container_digest.cache_clear()
    yield
    specimen.container_digest.cache_clear()


@pytest.mark.parametrize("layout", ["lmdb", "folder"])
def test_it_is_always_the_same(layout: Layout) -> None:
    before = specimen.container_digest(layout)
    specimen.container_digest.cache_clear()
    assert specimen.container_digest(layout) == before


def test_another_way_to_write_shards_is_noticed_where_there_are_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [specimen.container_digest("lmdb"), specimen.container_digest("folder")]
    specimen.container_digest.cache_clear()
    monkeypatch.setattr(shard, "key", lambda row: (row + 1).to_bytes(8, "big"))
    after = [specimen.container_digest("lmdb"), specimen.container_digest("folder")]
    assert after[0] != before[0] and after[1] == before[1]


def test_another_way_to_write_an_index_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = specimen.container_digest("folder")
    specimen.container_digest.cache_clear()
    monkeypatch.setattr(index, "ARROW_OPTIONS", pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4))
    assert specimen.container_digest("folder") != before


def test_without_a_temporary_folder_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(BuildError, match="cannot write to a temporary folder: No such file or directory; set TMPDIR"):
        specimen.container_digest("lmdb")


def test_nothing_of_it_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    specimen.container_digest("lmdb")
    assert list(tmp_path.iterdir()) == []
