"""Repairing a dataset: damaged shards are restored byte for byte, or not at all."""

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

from builds import REPORTED, SERIAL, UPDATE, Builder, Stopped, stop
from commands import Ran
from pictures import smooth_image
from presize import BuildOptions, DeriveOptions, ImageOptions, Repair, Size, derive_dataset, repair_dataset
from presize.builder.output_dir import OutputDir
from presize.errors import BuildError, DatasetError, SourceError
from presize.options import Companion
from presize.store.verify import VerifyResult, verify_dataset
from tampering import change_records, flip_record, read_table, with_value, write_table

OPTIONS = BuildOptions(ImageOptions(sizes=(Size(16, 16),)), shard_samples=4)


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    for number in range(10):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(20, 30, seed=number)).save(path, "JPEG")
    (tmp_path / "raw" / "a" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return Builder(tmp_path / "raw", OPTIONS)


def repair(build: Builder, out: str = ".", jobs: int | None = 1) -> Repair:
    return repair_dataset(build.source, build.out / out, jobs=jobs)


def remove_shards(build: Builder, *numbers: int) -> None:
    for number in numbers:
        (build.out / "shards" / f"{number:05d}.lmdb").unlink()


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
def test_damaged_shards_are_restored(damage: str, build: Builder) -> None:
    build()
    whole = build.files()
    DAMAGE[damage](build.out / "shards" / "00001.lmdb")
    result = repair(build)
    names = tuple(f"shards/0000{number}.lmdb" for number in range(3) if number == 1 or damage == "all gone")
    assert (result.shards, result.repaired, result.problems) == (3, names, ())
    assert build.files() == whole


TWO_SIZES = replace(OPTIONS, image=replace(OPTIONS.image, sizes=(Size(16, 16), Size(12, 12))))
KINDS = {
    "two sizes": TWO_SIZES,
    "raw pixels": replace(OPTIONS, image=replace(OPTIONS.image, format="raw", color="gray")),
    "WebP": replace(OPTIONS, image=replace(OPTIONS.image, format="webp", fit="crop"), checksum=True),
    "pairs": replace(TWO_SIZES, companions=(Companion("mask", "masks/{stem}.png"),)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moves", [False, True], ids=["same bytes", "other bytes"])
def test_every_kind_of_shard_is_restored(kind: str, moves: bool, build: Builder) -> None:
    if kind == "pairs":
        (build.source / "masks").mkdir()
        for path in build.source.rglob("*.jpg"):
            Image.fromarray(smooth_image(20, 30, seed=1)[..., 0]).save(build.source / "masks" / f"{path.stem}.png")
    build.options = KINDS[kind]
    build(run=REPORTED)
    roots = [path.parent for path in build.out.rglob("manifest.json")]
    if moves:  # as if LMDB had written the first shards of images with another map size
        for root in roots:
            change_records(root, lambda _shard, _row, value: value)
    whole = build.files()
    shards = sorted(build.out.rglob("*00001.lmdb"))
    for shard in shards:
        shard.unlink()
    result = repair(build)
    assert result.problems == () and len(result.repaired) == len(shards)
    assert [verify_dataset(root).problems for root in roots] == [() for _ in roots]
    now = build.files()
    changed = {Path(name).name for name in now.keys() | whole.keys() if now.get(name) != whole.get(name)}
    prefixes = ("", "mask-") if kind == "pairs" else ("",)
    renamed = {f"{prefix}00001{generation}.lmdb" for prefix in prefixes for generation in ("", "-1")}
    assert changed == ({"manifest.json", *renamed} if moves else set())
    assert build(run=UPDATE).changes.copied == 0  # all shards stay, and the next update keeps them


def test_shards_of_an_update_are_restored(build: Builder) -> None:
    build()
    (build.source / "a" / "0.jpg").unlink()
    shutil.copy(build.source / "a" / "2.jpg", build.source / "b" / "new.jpg")
    build(run=UPDATE)
    whole = build.files()
    for shard in (build.out / "shards").iterdir():
        shard.unlink()
    assert repair(build).problems == ()
    assert build.files() == whole


@pytest.mark.parametrize("place", ["out", "alone"])
def test_a_repair_killed_while_publishing_is_finished_without_the_other_sizes(
    place: str, build: Builder, tmp_path: Path
) -> None:
    build.options = TWO_SIZES
    build()
    shutil.rmtree(build.out / "12")
    root = build.out / "16"
    if place == "alone":
        root = root.rename(tmp_path / "alone")
    change_records(root, lambda _shard, _row, value: value)  # the rebuilt shard gets another SHA-256 and name
    (root / "shards" / "00001.lmdb").unlink()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("presize.builder.output_dir.rename", stop)
        repair_dataset(build.source, tmp_path / place, jobs=1)
    assert repair_dataset(build.source, tmp_path / place, jobs=1).problems == ()
    assert verify_dataset(root).problems == ()
    assert (root / "shards" / "00001-1.lmdb").exists()
    assert not list((tmp_path / place).glob(".presize*"))


def test_intact_records_need_no_source(build: Builder) -> None:
    build()
    index = build.files()["index.arrow"]
    flip_record(build.out, 7)
    lost = build.data().path(7)
    for path in build.source.rglob("*.jpg"):
        if path != build.source / lost:
            path.unlink()
    assert len(repair(build).repaired) == 1
    assert verify_dataset(build.out).problems == ()
    assert build.files()["index.arrow"] == index


@pytest.mark.parametrize("change", ["other content", "gone", "other size"])
def test_a_changed_source_leaves_the_shard_and_names_update(change: str, build: Builder) -> None:
    build()
    data = build.data()
    path = data.path(int(np.flatnonzero(data.numbers("shard") == 1)[0]))
    del data
    remove_shards(build, 0, 1)
    damaged = build.files()
    if change == "gone":
        (build.source / path).unlink()
    elif change == "other size":
        (build.source / path).write_bytes(b"\xff")
    else:
        nbytes = (build.source / path).stat().st_size
        Image.fromarray(smooth_image(20, 30, seed=99)).save(build.source / path, "JPEG")
        os.truncate(build.source / path, nbytes)
    result = repair(build)
    assert result.repaired == ("shards/00000.lmdb",)
    (problem,) = result.problems
    assert problem.file == "shards/00001.lmdb" and path in problem.what and "--update" in problem.what
    now = build.files()
    assert now.pop("shards/00000.lmdb") and now == damaged
    if change != "other content":
        updated = build(run=UPDATE)
        assert verify_dataset(build.out) == VerifyResult(updated.stored)


# Refusals


def with_a_path_out_of_the_source(build: Builder) -> None:
    write_table(build.out, with_value(read_table(build.out), "path", 3, "../secret.jpg"))
    remove_shards(build, 1)


def with_a_folder_in_the_way(build: Builder) -> None:
    remove_shards(build, 1)
    (build.out / "shards" / "00001.lmdb").mkdir()


def with_a_dataset_of_another_build(build: Builder) -> None:
    shutil.rmtree(build.out)
    build(options=TWO_SIZES)
    derive_dataset([build.out / "16"], build.out / "10", DeriveOptions(size=Size(10, 10)), SERIAL)
    shutil.rmtree(build.out / "16" / "shards")


REFUSED: dict[str, tuple[Callable[[Builder], object], type[Exception], str]] = {
    "a folder": (
        lambda build: build(options=replace(OPTIONS, layout="folder"), run=replace(REPORTED, overwrite=True)),
        DatasetError,
        "holds image files, not shards",
    ),
    "no dataset": (lambda build: shutil.rmtree(build.out), DatasetError, "does not exist"),
    "no source": (
        lambda build: setattr(build, "source", build.source / "nowhere"),
        SourceError,
        r"^the source .*nowhere is not a folder; give the one that .*out was built",
    ),
    "a shard that cannot be replaced": (with_a_folder_in_the_way, BuildError, r"00001.lmdb: Is a directory"),
    "a path out of the source": (
        with_a_path_out_of_the_source,
        DatasetError,
        r"the index of .* is damaged: a path leads out of the source",
    ),
    "a dataset of another build": (
        with_a_dataset_of_another_build,
        DatasetError,
        r"out holds datasets of several builds \(10, 12, 16\); repair each, such as .*/10$",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_unrepairable_datasets_are_refused(why: str, build: Builder) -> None:
    change, error, said = REFUSED[why]
    build()
    change(build)
    with pytest.raises(error, match=said):
        repair(build)


def test_a_file_that_is_not_a_shard_is_not_repaired(build: Builder) -> None:
    build()
    flip(build.out / "rejects.jsonl", 0)
    (problem,) = repair(build).problems
    assert problem.file == "rejects.jsonl" and "only shards can be rebuilt" in problem.what


def test_the_command_reports_its_repairs_by_text_and_exit_code(presize: Callable[..., Ran], build: Builder) -> None:
    build()
    remove_shards(build, 2)
    done = presize("repair", build.source, build.out)
    assert done.code == 0, done.err
    assert "shards/00002.lmdb: rebuilt" in done.out
    flip(build.out / "index.arrow", 300)
    failed = presize("repair", build.source, build.out)
    assert failed.code == 1
    assert "index.arrow: its SHA-256 differs from the manifest; only shards" in failed.out


def test_a_size_is_not_repaired_while_all_sizes_are_built(build: Builder) -> None:
    build.options = TWO_SIZES
    build()
    (build.source / "a" / "new.jpg").write_bytes((build.source / "a" / "0.jpg").read_bytes())

    def meanwhile(_: object) -> None:
        for place in (".", "16"):
            with pytest.raises(BuildError, match="another build is writing"):
                repair(build, place)

    build(run=UPDATE, on_shard=meanwhile)
    assert repair(build, "16").problems == ()


def test_a_repair_looks_at_a_dataset_published_while_it_starts(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    lock = OutputDir.lock

    def late(output: OutputDir) -> Any:
        (build.source / "a" / "new.jpg").write_bytes((build.source / "a" / "0.jpg").read_bytes())
        monkeypatch.undo()
        build(run=UPDATE)
        return lock(output)

    monkeypatch.setattr(OutputDir, "lock", late)
    assert repair(build).problems == ()
