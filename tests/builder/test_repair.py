"""Repairing a dataset: damaged shards come back as they were, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import REPORTED, SERIAL, files
from commands import Ran
from pictures import smooth_image
from presize import BuildOptions, ImageOptions, Size, build_dataset, repair_dataset
from presize.builder.output_dir import OutputDir
from presize.errors import BuildError, DatasetError, SourceError
from presize.options import Companion
from presize.store.dataset import Dataset
from presize.store.verify import VerifyResult, verify_dataset
from tampering import change_records, flip_record, read_table, with_value, write_table

OPTIONS = BuildOptions(ImageOptions(sizes=(Size(16, 16),)), shard_samples=4)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(10):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(20, 30, seed=number)).save(path, "JPEG")
    (tmp_path / "raw" / "a" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return tmp_path / "raw"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a record": lambda shard: flip(shard, shard.stat().st_size // 2),
    "its first page": lambda shard: flip(shard, 35),
    "cut": lambda shard: os.truncate(shard, 5000),
    "gone": Path.unlink,
    "all gone": lambda shard: shutil.rmtree(shard.parent),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_come_back_as_they_were(damage: str, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_dataset(raw, out, OPTIONS, SERIAL)
    whole = files(out)
    DAMAGE[damage](out / "shards" / "00001.lmdb")
    result = repair_dataset(raw, out, jobs=1)
    names = tuple(f"shards/0000{number}.lmdb" for number in range(3) if number == 1 or damage == "all gone")
    assert (result.shards, result.repaired, result.problems) == (3, names, ())
    assert files(out) == whole


KINDS = {
    "two sizes": replace(OPTIONS, image=replace(OPTIONS.image, sizes=(Size(16, 16), Size(12, 12)))),
    "raw pixels": replace(OPTIONS, image=replace(OPTIONS.image, format="raw", color="gray")),
    "WebP": replace(OPTIONS, image=replace(OPTIONS.image, format="webp", fit="crop"), checksum=True),
    "pairs": replace(OPTIONS, companions=(Companion("mask", "masks/{stem}.png"),)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moves", [False, True], ids=["same bytes", "other bytes"])
def test_every_kind_of_shard_comes_back(kind: str, moves: bool, raw: Path, tmp_path: Path) -> None:
    if kind == "pairs":
        (raw / "masks").mkdir()
        for path in raw.rglob("*.jpg"):
            Image.fromarray(smooth_image(20, 30, seed=1)[..., 0]).save(raw / "masks" / f"{path.stem}.png")
    out = tmp_path / "out"
    build_dataset(raw, out, KINDS[kind], REPORTED)
    roots = [path.parent for path in out.rglob("manifest.json")]
    if moves:  # as if LMDB had written the first shards of images with another size of their map
        for root in roots:
            change_records(root, lambda _shard, _row, value: value)
    whole, indexes = files(out), {root: (root / "index.arrow").read_bytes() for root in roots}
    shards = sorted(out.rglob("*00001.lmdb"))
    for shard in shards:
        shard.unlink()
    result = repair_dataset(raw, out, jobs=1)
    assert result.problems == () and len(result.repaired) == len(shards)
    assert [verify_dataset(root).problems for root in roots] == [() for _ in roots]
    now = files(out)
    assert (now == whole) != moves
    changed = {Path(name).name for name in now.keys() ^ whole.keys() | {n for n in now if now[n] != whole.get(n)}}
    prefixes = ("", "mask-") if kind == "pairs" else ("",)
    renamed = {f"{prefix}00001{generation}.lmdb" for prefix in prefixes for generation in ("", "-1")}
    assert changed == ({"manifest.json", *renamed} if moves else set())
    assert {root: (root / "index.arrow").read_bytes() for root in roots} == indexes
    updated = build_dataset(raw, out, KINDS[kind], replace(SERIAL, update=True))
    assert updated.changes.copied == 0  # all shards stay, and the next update takes them for its own


def test_shards_of_an_update_come_back(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", OPTIONS, SERIAL)
    (raw / "a" / "0.jpg").unlink()
    shutil.copy(raw / "a" / "2.jpg", raw / "b" / "new.jpg")
    build_dataset(raw, tmp_path / "out", OPTIONS, replace(SERIAL, update=True))
    whole = files(tmp_path / "out")
    for shard in (tmp_path / "out" / "shards").iterdir():
        shard.unlink()
    assert repair_dataset(raw, tmp_path / "out", jobs=1).problems == ()
    assert files(tmp_path / "out") == whole


def test_whole_records_need_no_source(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_dataset(raw, out, OPTIONS, SERIAL)
    whole = files(out)
    flip_record(out, 7)
    lost = Dataset(out).path(7)
    for path in raw.rglob("*.jpg"):
        if path != raw / lost:
            path.unlink()
    assert len(repair_dataset(raw, out, jobs=1).repaired) == 1
    assert verify_dataset(out).problems == ()
    assert files(out)["index.arrow"] == whole["index.arrow"]


def test_one_of_several_sizes_is_repaired_where_it_is_alone(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", KINDS["two sizes"], SERIAL)
    whole = files(tmp_path / "out" / "12")
    (tmp_path / "out" / "12").rename(tmp_path / "12")
    for number in range(2):
        (tmp_path / "12" / "shards" / f"0000{number}.lmdb").unlink()
    assert len(repair_dataset(raw, tmp_path / "12", jobs=1).repaired) == 2
    assert files(tmp_path / "12") == whole


@pytest.mark.parametrize("change", ["other content", "gone", "other size"])
def test_a_source_that_has_changed_leaves_the_shard_and_names_update(change: str, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_dataset(raw, out, OPTIONS, SERIAL)
    data = Dataset(out)
    path = data.path(int(np.flatnonzero(data.numbers("shard") == 1)[0]))
    del data
    for number in range(2):
        (out / "shards" / f"0000{number}.lmdb").unlink()
    damaged = files(out)
    if change == "gone":
        (raw / path).unlink()
    elif change == "other size":
        (raw / path).write_bytes(b"\xff")
    else:
        nbytes = (raw / path).stat().st_size
        Image.fromarray(smooth_image(20, 30, seed=99)).save(raw / path, "JPEG")
        os.truncate(raw / path, nbytes)
    result = repair_dataset(raw, out, jobs=1)
    assert result.repaired == ("shards/00000.lmdb",)
    assert [problem.file for problem in result.problems] == ["shards/00001.lmdb"]
    assert f"{path}" in result.problems[0].what and "--update" in result.problems[0].what
    now = files(out)
    assert now.pop("shards/00000.lmdb") and now == damaged
    if change != "other content":
        updated = build_dataset(raw, out, OPTIONS, replace(SERIAL, update=True))
        assert verify_dataset(out) == VerifyResult(updated.stored)


def test_what_is_no_shard_is_not_repaired(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", OPTIONS, SERIAL)
    flip(tmp_path / "out" / "rejects.jsonl", 0)
    (problem,) = repair_dataset(raw, tmp_path / "out").problems
    assert problem.file == "rejects.jsonl" and "only shards can be made again" in problem.what


def test_a_folder_has_no_shards_to_repair(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", replace(OPTIONS, layout="folder"), SERIAL)
    with pytest.raises(DatasetError, match="holds files, no shards"):
        repair_dataset(raw, tmp_path / "out")


def test_what_is_no_dataset_is_not_repaired(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not exist"):
        repair_dataset(raw, tmp_path / "out")


def test_a_source_that_is_not_there_is_said_before_anything_is_read(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", OPTIONS, SERIAL)
    with pytest.raises(SourceError, match=r"^the source .*nowhere is not a folder; give the one that .*out was built"):
        repair_dataset(tmp_path / "nowhere", tmp_path / "out")


def test_a_shard_that_cannot_be_replaced_is_one_line(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", OPTIONS, SERIAL)
    (tmp_path / "out" / "shards" / "00001.lmdb").unlink()
    (tmp_path / "out" / "shards" / "00001.lmdb").mkdir()
    with pytest.raises(BuildError, match=r"00001.lmdb: Is a directory"):
        repair_dataset(raw, tmp_path / "out")


def test_a_dataset_that_is_being_built_is_not_repaired(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", OPTIONS, SERIAL)
    with OutputDir.of(tmp_path / "out").lock(), pytest.raises(BuildError, match="another build is writing"):
        repair_dataset(raw, tmp_path / "out")


def test_the_command_says_what_it_made_and_its_exit_code_tells(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    build_dataset(raw, tmp_path / "out", OPTIONS, SERIAL)
    (tmp_path / "out" / "shards" / "00002.lmdb").unlink()
    done = presize("repair", raw, tmp_path / "out")
    assert done.code == 0, done.err
    assert "shards/00002.lmdb: made again" in done.out
    flip(tmp_path / "out" / "index.arrow", 300)
    failed = presize("repair", raw, tmp_path / "out")
    assert failed.code == 1
    assert "index.arrow: its SHA-256 differs from the manifest; only shards" in failed.out


def test_a_path_out_of_the_source_is_damage(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", OPTIONS, SERIAL)
    write_table(tmp_path / "out", with_value(read_table(tmp_path / "out"), "path", 3, "../secret.jpg"))
    (tmp_path / "out" / "shards" / "00001.lmdb").unlink()
    with pytest.raises(DatasetError, match=r"the index of .* is damaged: a path leads out of the source"):
        repair_dataset(raw, tmp_path / "out")


def test_a_size_is_not_repaired_while_all_sizes_are_built(raw: Path, tmp_path: Path) -> None:
    both = replace(OPTIONS, image=ImageOptions(sizes=(Size(16, 16), Size(8, 8))))
    build_dataset(raw, tmp_path / "out", both, SERIAL)
    (raw / "a" / "new.jpg").write_bytes((raw / "a" / "0.jpg").read_bytes())

    def meanwhile(_: object) -> None:
        with pytest.raises(BuildError, match="another build is writing"):
            repair_dataset(raw, tmp_path / "out" / "16")

    build_dataset(raw, tmp_path / "out", both, replace(SERIAL, update=True), on_shard=meanwhile)
    assert repair_dataset(raw, tmp_path / "out" / "16").problems == ()


def test_what_is_published_while_a_repair_begins_is_what_it_looks_at(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build_dataset(raw, out, OPTIONS, SERIAL)
    lock = OutputDir.lock

    def late(output: OutputDir) -> Any:
        (raw / "a" / "new.jpg").write_bytes((raw / "a" / "0.jpg").read_bytes())
        monkeypatch.undo()
        build_dataset(raw, out, OPTIONS, replace(SERIAL, update=True))
        return lock(output)

    monkeypatch.setattr(OutputDir, "lock", late)
    assert repair_dataset(raw, out).problems == ()
