"""Builds from containers: the same samples as from files, updated and repaired like any others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builds import REPORTED, UPDATE, Builder
from commands import Ran
from foreign import image_column, picture, tar_samples, text_recognition, write_lmdb, write_parquet, write_tar
from presize import BuildOptions, Dataset, ImageOptions, Size, repair_dataset
from presize.errors import PresizeWarning, SourceError
from presize.options import SourceOptions
from presize.sources.source_files import SourceFile, SourceReader
from presize.store.rejects_file import read_rejects
from presize.store.verify import VerifyResult, verify_dataset

COUNT = 30
OPTIONS = BuildOptions(ImageOptions(sizes=(Size(16, 16),)))


def as_tars(folder: Path, begin: int = 0) -> SourceOptions:
    for first in range(0, COUNT, 10):
        write_tar(folder / f"shard-{first:06d}.tar", tar_samples(10, begin + first))
    return SourceOptions()


def as_lmdb(folder: Path, begin: int = 0) -> SourceOptions:
    images = {f"image-{n:09d}": picture(begin + n) for n in range(COUNT)}
    write_lmdb(folder, images | {f"label-{n:09d}": b"%d" % (n % 3) for n in range(COUNT)})
    return SourceOptions(keys="image-{:09d}", label_keys="label-{:09d}")


def as_parquet(folder: Path, begin: int = 0) -> SourceOptions:
    for first in (0, 15):
        numbers = range(begin + first, begin + first + 15)
        names = [f"{n:06d}.png" for n in numbers]
        columns = {"image": image_column([picture(n) for n in numbers], names), "label": [n % 3 for n in numbers]}
        write_parquet(folder / f"train-{first:05d}.parquet", columns, group_rows=4)
    return SourceOptions()


KINDS = {"tar": as_tars, "lmdb": as_lmdb, "parquet": as_parquet}


def builder(tmp_path: Path, kind: str) -> Builder:
    return Builder(tmp_path / "source", OPTIONS, KINDS[kind](tmp_path / "source"))


@pytest.fixture(params=KINDS)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Builder:
    return builder(tmp_path, request.param)


def samples(build: Builder, out: str = "out") -> list[tuple[bytes, object]]:
    """Return the stored images and labels, in order."""
    dataset = build.data(out)
    labels = dataset.index.column("label").to_pylist()
    return [(dataset.value(number), labels[number]) for number in range(len(dataset))]


def test_samples_depend_on_the_files_and_not_on_their_offsets(build: Builder, tmp_path: Path) -> None:
    for number in range(COUNT):
        path = tmp_path / "raw" / f"{number % 3}" / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    build(run=REPORTED)
    Builder(tmp_path / "raw", OPTIONS)("expected")
    by_class = samples(build, "expected")
    assert samples(build) == [by_class[n % 3 * 10 + n // 3] for n in range(COUNT)]
    assert not {"container", "offset", "run"} & set(build.data().index.schema.names)
    assert verify_dataset(build.out) == VerifyResult(COUNT)
    assert build.manifest().report.rows > 0, "compared with the contents of the containers"  # type: ignore[union-attr]


def test_samples_are_read_in_the_order_of_their_offsets(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    read, places = SourceReader.read, list[tuple[str, int]]()

    def noted(reader: SourceReader, file: SourceFile) -> bytes:
        places.append((file.container.path, file.offset >> 12))  # type: ignore[union-attr]
        return read(reader, file)

    monkeypatch.setattr(SourceReader, "read", noted)
    build(options=replace(OPTIONS, shard_samples=COUNT))
    assert places == sorted(places)
    assert len(places) == COUNT


def test_an_update_keeps_unchanged_samples(tmp_path: Path) -> None:
    build = builder(tmp_path, "tar")
    build()
    write_tar(build.source / "shard-000030.tar", tar_samples(10, 30))
    changes = build(run=UPDATE).changes
    assert (changes.kept, changes.built) == (30, 10)
    build("anew")
    assert samples(build) == samples(build, "anew")


def test_a_shard_is_repaired_from_containers_with_their_keys(build: Builder) -> None:
    build()
    whole = build.files()
    (build.out / "shards" / "00001.lmdb").unlink()
    keys = SourceOptions(keys=build.samples.keys)
    if keys.keys:
        with pytest.raises(SourceError, match="an LMDB needs --keys"):
            repair_dataset(build.source, build.out)
    assert repair_dataset(build.source, build.out, samples=keys).problems == ()
    assert build.files() == whole


def test_a_repair_names_what_is_missing_from_its_container(tmp_path: Path) -> None:
    build = builder(tmp_path, "tar")
    build()
    (build.source / "shard-000020.tar").unlink()
    shard = build.data().index.column("shard")[20].as_py()
    (build.out / "shards" / f"{shard:05d}.lmdb").unlink()
    (problem,) = repair_dataset(build.source, build.out).problems
    assert ".png: it has changed or is missing" in problem.what


def test_a_value_that_is_not_an_image_is_rejected_and_not_skipped(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "source", {"0": picture(0), "1": b"<html>", "2": picture(2)[:300], "3": b""})
    build = Builder(tmp_path / "source", OPTIONS, SourceOptions(keys="{}"))
    result = build()
    assert (result.stored, result.rejected, result.skipped) == (1, 3, 0)
    assert [reject.path for reject in read_rejects(build.out / "rejects.jsonl")] == ["1", "2", "3"]


def test_rejects_of_the_scan_are_among_the_rejects(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [*tar_samples(3), ("x.png", picture(9)), ("x.cls", b"cat")])
    result = Builder(tmp_path / "a.tar", OPTIONS)()
    assert (result.stored, result.rejected) == (3, 1)
    (reject,) = read_rejects(tmp_path / "out" / "rejects.jsonl")
    assert (reject.path, reject.reason[:27]) == ("a.tar/x.png", "its .cls cannot be read: ex")


def test_the_command_takes_keys(presize: Callable[..., Ran], tmp_path: Path) -> None:
    text_recognition(tmp_path / "source", ["a", "b", "c"])
    ran = presize("build", tmp_path / "source", tmp_path / "out", "--size", "16", "--json")
    assert (ran.code, ran.out) == (1, "")
    assert "an LMDB needs --keys; its first keys are 'image-000000001'" in ran.err
    command = ["build", tmp_path / "source", tmp_path / "out", "--size", 16, "--keys", "text-recognition", "--json"]
    assert json.loads(presize(*command, "--dry-run").out)["samples"] == 3
    assert json.loads(presize(*command, "--no-report").out)["stored"] == 3
    assert Dataset(tmp_path / "out").index.column("text").to_pylist() == ["a", "b", "c"]
    (tmp_path / "out" / "shards" / "00000.lmdb").unlink()
    ran = presize("repair", tmp_path / "source", tmp_path / "out", "--keys", "text-recognition", "--json")
    assert json.loads(ran.out)["repaired"] == ["shards/00000.lmdb"]


def test_containers_with_the_same_stem_have_samples_of_different_paths(tmp_path: Path) -> None:
    for number, name in enumerate(("set.1", "set.2")):
        write_lmdb(tmp_path / "sets" / name, {f"image-{n:09d}": picture(10 * number + n) for n in range(2)})
    build = Builder(tmp_path / "sets", OPTIONS, SourceOptions(keys="image-{:09d}"))
    build()
    assert verify_dataset(build.out) == VerifyResult(4)
    build("files", replace(OPTIONS, layout="folder"))
    assert len(list((tmp_path / "files").rglob("*.jpg"))) == 4


def test_tars_whose_names_differ_only_in_case_have_samples_of_different_paths(tmp_path: Path) -> None:
    for name in ("a.tar", "a.TAR"):  # with the same sample names
        write_tar(tmp_path / "tars" / name, tar_samples(3))
    build = Builder(tmp_path / "tars", OPTIONS)
    build()
    assert verify_dataset(build.out) == VerifyResult(6)


def test_a_field_whose_name_is_not_text_is_skipped(tmp_path: Path) -> None:
    write_tar(tmp_path / "tars" / "0.tar", [("a.png", picture(0)), ("a.json", b'{"\\ud800": 3, "b": 4}')])
    build = Builder(tmp_path / "tars", OPTIONS)
    with pytest.warns(PresizeWarning):
        build()
    assert build.data().column("b").to_pylist() == [4]
