"""verify reads every byte of every image, once. test_tampering.py tests its findings."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from builds import SERIAL
from presize.builder.repair import repair_dataset
from presize.builder.run import build_dataset
from presize.errors import DatasetError
from presize.options import BuildOptions, Layout
from presize.store.manifest import read_manifest
from presize.store.verify import VerifyResult, verify_dataset
from tampering import change_manifest, read_table, with_column, write_table


def problems(out: Path) -> list[str]:
    return [f"{problem.file}: {problem.what}" for problem in verify_dataset(out).problems]


@pytest.mark.parametrize(("of", "samples", "images"), [("lmdb", 6, 6), ("folder", 6, 6), ("masks", 12, 24)])
def test_progress_counts_every_image_and_companion(of: str, samples: int, images: int, small: Path) -> None:
    counts: list[int] = []
    assert verify_dataset(small / of, on_images=counts.append) == VerifyResult(samples)
    assert sum(counts) == images


def test_a_large_folder_is_checked_once_by_the_given_number_of_threads(small: Path, tmp_path: Path) -> None:
    out = shutil.copytree(small / "folder", tmp_path / "out")
    rows = pa.concat_tables([read_table(out).slice(0, 1)] * 1001).combine_chunks()
    write_table(out, with_column(rows, "path", pa.array([str(i) for i in range(1001)], pa.large_string())))
    change_manifest(out, lambda values: values.update(samples=1001))
    before, running, checked = set(threading.enumerate()), set[threading.Thread](), list[int]()

    def checking(images: int) -> None:
        checked.append(images)
        running.update(threading.enumerate())

    assert verify_dataset(out, jobs=1, on_images=checking) == VerifyResult(1001)
    assert len(running - before) == 1
    assert sum(checked) == 1001 and len(checked) > 1


def test_a_damaged_shard_does_not_prevent_the_check_of_others(small: Path, tmp_path: Path) -> None:
    out = shutil.copytree(small / "lmdb", tmp_path / "out")
    (out / "shards" / "00000.lmdb").unlink()
    write_table(out, with_column(read_table(out), "crc32", pa.array([0] * 6, pa.uint32())))
    assert len(problems(out)) == 1 + 3


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow", "rejects.jsonl", "shards/00000.lmdb"])
def test_a_named_pipe_instead_of_a_file_does_not_block(name: str, small: Path, tmp_path: Path) -> None:
    out = shutil.copytree(small / "lmdb", tmp_path / "out")
    (out / name).unlink()
    os.mkfifo(out / name)
    if name == "manifest.json":
        with pytest.raises(DatasetError, match="is not a regular file"):
            verify_dataset(out)
    else:
        assert f"{name}: is not a regular file" in problems(out)


@pytest.mark.parametrize("device", ["", "/dev/zero"])
def test_an_endless_device_instead_of_an_image_is_a_problem(device: str, small: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(small / "folder", tmp_path / "out"), "class-0", "2.jpg")
    path.unlink()
    if device:
        path.symlink_to(device)
    else:
        os.mkfifo(path)
    found = problems(tmp_path / "out")
    assert found == ["class-0/2.jpg: is damaged: its length or CRC-32 differs from the index"]


@pytest.mark.parametrize("call", ["lmdb.open", "lmdb.verify.verify", "presize.store.verify.decode_value"])
def test_a_limit_that_prevents_reading_a_record_is_not_damage(
    call: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(small / "lmdb", tmp_path / "out")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) if "lmdb" in call else MemoryError

    monkeypatch.setattr(call, fail)
    with pytest.raises(DatasetError, match=r"(Cannot allocate|no more) memory$"):
        verify_dataset(out)
    if "lmdb" in call:
        with pytest.raises(DatasetError, match=r"(Cannot allocate|no more) memory$"):
            repair_dataset(small / "raw", out)


@pytest.mark.parametrize("layout", ["lmdb", "folder"])
def test_a_dataset_replaced_while_it_is_read_is_not_called_damaged(layout: Layout, small: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(small / layout, tmp_path / "out"))

    def replace_it(_: int) -> None:
        build_dataset(small / "raw", out, BuildOptions(layout=layout), replace(SERIAL, overwrite=True))

    (out / read_manifest(out).rejects.file).write_bytes(b"?")
    assert verify_dataset(out).problems
    with pytest.raises(DatasetError, match="out was updated, replaced or removed since it was opened"):
        verify_dataset(out, jobs=1, on_images=replace_it)
    assert verify_dataset(out) == VerifyResult(6)
