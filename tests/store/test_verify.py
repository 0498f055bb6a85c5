"""verify finds every kind of damage, and nothing in a sound dataset."""

from __future__ import annotations

import os
import shutil
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest
from PIL import Image

from builds import REPORTED, SERIAL
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.errors import DatasetError
from presize.options import BuildOptions, ImageOptions, Layout, Size
from presize.store.manifest import read_manifest
from presize.store.verify import VerifyResult, verify_dataset
from presize.system.files import file_digest
from tampering import (
    change_manifest,
    read_table,
    with_column,
    write_table,
)


def built(tmp_path: Path, layout: Layout = "lmdb") -> Path:
    """A dataset of 6 images in 2 classes and, as LMDB, 2 shards."""
    for i in range(6):
        path = tmp_path / "raw" / f"class-{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(40, 50, seed=i)).save(path)
    options = BuildOptions(ImageOptions(sizes=(Size(24, 24),)), layout, shard_samples=3)
    build_dataset(tmp_path / "raw", tmp_path / "out", options, REPORTED)
    return tmp_path / "out"


def reseal(out: Path) -> None:
    """Make sizes and checksums in the manifest right again, as somebody would who hides what was done."""

    def change(manifest: dict[str, Any]) -> None:
        for file in [manifest["index"], manifest["rejects"], *manifest["shards"], manifest["report"]]:
            file["bytes"], file["sha256"] = file_digest(out / file["file"])

    change_manifest(out, change)


def edit_index(out: Path, name: str, values: list[Any]) -> None:
    table = read_table(out)
    write_table(out, with_column(table, name, pa.array(values, table.schema.field(name).type)))


def edit_record(out: Path, row: int, value: bytes | None) -> None:
    """Put other bytes, or none, in the place of a record of the first shard."""
    with (
        lmdb.open(str(out / "shards" / "00000.lmdb"), subdir=False, lock=False, lib_version=0) as env,
        env.begin(write=True) as txn,
    ):
        if value is None:
            txn.delete(row.to_bytes(8, "big"))
        else:
            txn.put(row.to_bytes(8, "big"), value)


def problems(out: Path) -> list[str]:
    return [f"{problem.file}: {problem.what}" for problem in verify_dataset(out).problems]


@pytest.mark.parametrize("layout", ["lmdb", "folder"])
def test_a_sound_dataset_has_no_problems(layout: Layout, tmp_path: Path) -> None:
    assert verify_dataset(built(tmp_path, layout)) == VerifyResult(6)


def test_progress_counts_every_image(tmp_path: Path) -> None:
    counts: list[int] = []
    verify_dataset(built(tmp_path), on_images=counts.append)
    assert sum(counts) == 6


def large_folder(tmp_path: Path) -> Path:
    """A folder dataset of 1001 samples, all of them in one file."""
    out = built(tmp_path, "folder")
    rows = pa.concat_tables([read_table(out).slice(0, 1)] * 1001).combine_chunks()
    write_table(out, with_column(rows, "path", pa.array([str(i) for i in range(1001)], pa.large_string())))
    change_manifest(out, lambda values: values.update(samples=1001))
    return out


def test_jobs_is_the_number_of_threads(tmp_path: Path) -> None:
    out = large_folder(tmp_path)
    before, running = set(threading.enumerate()), set[threading.Thread]()
    verify_dataset(out, jobs=1, on_images=lambda _: running.update(threading.enumerate()))
    assert len(running - before) == 1


def test_each_sample_of_a_large_folder_is_checked_once(tmp_path: Path) -> None:
    checked: list[int] = []
    assert verify_dataset(large_folder(tmp_path), on_images=checked.append) == VerifyResult(1001)
    assert sum(checked) == 1001


def test_a_large_image_is_decoded_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    Image.fromarray(smooth_image(600, 500)).save(tmp_path / "raw" / "a.png")
    build_dataset(tmp_path / "raw", tmp_path / "out", BuildOptions(ImageOptions(sizes=(Size(600, 500),))), SERIAL)
    assert verify_dataset(tmp_path / "out") == VerifyResult(1)


def test_a_class_may_have_no_images(tmp_path: Path) -> None:
    out = built(tmp_path)
    edit_index(out, "label", [1] * 6)
    assert problems(out) == []


@pytest.mark.parametrize("file", ["shards/00001.lmdb", "index.arrow", "rejects.jsonl"])
def test_a_file_that_is_missing_or_truncated_is_found_before_it_is_mapped(file: str, tmp_path: Path) -> None:
    out = built(tmp_path)
    size = (out / file).stat().st_size
    if size:
        os.truncate(out / file, size - 1)
        assert problems(out) == [f"{file}: has {size - 1} bytes where the manifest says {size}"]
    (out / file).unlink()
    assert problems(out) == [f"{file}: cannot be read: No such file or directory"]


def test_one_changed_bit_is_found_anywhere(tmp_path: Path) -> None:
    out = built(tmp_path)
    for file in ("shards/00000.lmdb", "index.arrow"):
        content = (out / file).read_bytes()
        for place in range(0, len(content), len(content) // 20):
            changed = bytearray(content)
            changed[place] ^= 1
            (out / file).write_bytes(changed)
            assert problems(out) == [f"{file}: its SHA-256 differs from the manifest"], place
        (out / file).write_bytes(content)


def test_a_damaged_shard_does_not_keep_the_others_from_being_checked(tmp_path: Path) -> None:
    out = built(tmp_path)
    (out / "shards" / "00000.lmdb").unlink()
    edit_index(out, "crc32", [0] * 6)
    assert len(problems(out)) == 1 + 3


def a_broken_structure(out: Path) -> None:
    shard = bytearray((out / "shards" / "00000.lmdb").read_bytes())
    shard[2 * 4096 : 2 * 4096 + 16] = b"\xff" * 16
    (out / "shards" / "00000.lmdb").write_bytes(shard)


def a_record_that_no_decoder_takes(out: Path) -> None:
    value = b"\xff\xd8\xff not a picture"
    edit_record(out, 0, value)
    index = read_table(out).to_pydict()
    place = next(i for i in range(6) if (index["shard"][i], index["row"][i]) == (0, 0))
    for name, number in (("nbytes", len(value)), ("crc32", zlib.crc32(value))):
        index[name][place] = number
        edit_index(out, name, index[name])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (a_broken_structure, []),
        (lambda out: edit_record(out, 1, b"something else"), ["row 1 (class-", "length or CRC-32 differs from"]),
        (lambda out: edit_record(out, 2, None), ["it has 2 records where the manifest says 3", "row 2 ", "is missing"]),
        (a_record_that_no_decoder_takes, ["row 0 ", "cannot be decoded"]),
    ],
    ids=["a broken structure", "another record", "a missing record", "no image"],
)
def test_a_shard_that_agrees_with_the_manifest_alone_is_found(
    damage: Callable[[Path], None], words: list[str], tmp_path: Path
) -> None:
    out = built(tmp_path)
    damage(out)
    reseal(out)
    found = problems(out)
    assert found
    assert all(problem.startswith("shards/00000.lmdb: ") for problem in found)
    assert [word for word in words if word not in " ".join(found)] == []


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("width", [7] * 6, "and the index says 24 and 7"),
        ("crc32", [7] * 6, "its length or CRC-32 differs from the index"),
        ("label", [0, 1, 2, 0, 1, 0], "a label is out of range for 2 classes"),
        ("label", [0, 1, -1, 0, 1, 0], "a label is out of range for 2 classes"),
        ("row", [0] * 6, "it does not list each of the 3 rows of shards/00000.lmdb once"),
        ("shard", [9] * 6, "it does not list each of the 3 rows of shards/00000.lmdb once"),
        ("path", ["a"] * 6, "a path is listed twice"),
        ("path", ["../a", "b", "c", "d", "e", "f"], "1 path leads out of the source, the first is '../a'"),
        ("path", ["a", "b", "../c", "..", "e", "f"], "2 paths lead out of the source, the first is '../c'"),
    ],
)
def test_an_index_that_does_not_agree_is_found(column: str, values: list[Any], words: str, tmp_path: Path) -> None:
    out = built(tmp_path)
    edit_index(out, column, values)
    assert any(words in problem for problem in problems(out))


def test_a_path_that_is_no_text_is_found(tmp_path: Path) -> None:
    out = built(tmp_path)
    content = (out / "index.arrow").read_bytes()
    (out / "index.arrow").write_bytes(content.replace(b"class-0/4.png", b"class-0/\xff.png"))
    reseal(out)
    assert problems(out) == ["index.arrow: In column 0: Invalid: Invalid UTF8 sequence at string index 2"]


def test_a_file_that_was_exchanged_is_found(tmp_path: Path) -> None:
    out = built(tmp_path, "folder")
    shutil.copy(out / "class-0" / "0.jpg", out / "class-1" / "1.jpg")
    (out / "class-0" / "2.jpg").unlink()
    assert problems(out) == [
        "class-0/2.jpg: cannot be read: No such file or directory",
        "class-1/1.jpg: is not what was stored: its length or CRC-32 differs from the index",
    ]


def test_a_folder_index_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    out = built(tmp_path, "folder")
    edit_index(out, "file", ["/etc/passwd", "../raw/class-0/0.png", "", "a\0b", "class-0/../..", "."])
    assert len([problem for problem in problems(out) if "leads out of the dataset" in problem]) == 6


def test_what_is_no_dataset_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is not a presize dataset"):
        verify_dataset(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow", "rejects.jsonl", "shards/00000.lmdb"])
def test_a_named_pipe_in_the_place_of_a_file_hangs_nobody(name: str, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(dataset, out)
    (out / name).unlink()
    os.mkfifo(out / name)
    if name == "manifest.json":
        with pytest.raises(DatasetError, match="is not a regular file"):
            verify_dataset(out)
    else:
        assert f"{name}: is not a regular file" in problems(out)


@pytest.mark.parametrize("layout", ["lmdb", "folder"])
def test_columns_that_python_cannot_read_are_no_problem(layout: Layout, tmp_path: Path) -> None:
    out = built(tmp_path, layout)
    write_table(out, read_table(out).append_column("when", pa.array(range(1, 7), pa.timestamp("ns"))))
    assert verify_dataset(out) == VerifyResult(6)


@pytest.mark.parametrize("what", ["a named pipe", "a device"])
def test_what_never_ends_in_place_of_a_file_is_a_problem(what: str, tmp_path: Path) -> None:
    out = built(tmp_path, "folder")
    path = out / "class-0" / "2.jpg"
    path.unlink()
    if what == "a named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert problems(out) == ["class-0/2.jpg: is not what was stored: its length or CRC-32 differs from the index"]


@pytest.mark.parametrize("layout", ["lmdb", "folder"])
def test_a_dataset_that_is_replaced_while_it_is_read_is_not_damaged(layout: Layout, tmp_path: Path) -> None:
    out = built(tmp_path, layout)

    def replace_it(_: int) -> None:
        build_dataset(tmp_path / "raw", out, BuildOptions(layout=layout), replace(SERIAL, overwrite=True))

    manifest = read_manifest(out)
    (out / manifest.rejects.file).write_bytes(b"?")
    assert verify_dataset(out).problems
    with pytest.raises(DatasetError, match="out was updated, replaced or removed since it was opened"):
        verify_dataset(out, jobs=1, on_images=replace_it)
    assert verify_dataset(out) == VerifyResult(6)
