"""Builds from containers: the same samples as from the files in them, resumed, updated and repaired like any other."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builds import REPORTED, SERIAL, SMALL, files
from commands import Ran
from foreign import FIXTURES, image_column, picture, tar_samples, text_recognition, write_lmdb, write_parquet, write_tar
from presize import BuildOptions, Dataset, ImageOptions, RunOptions, Size, build_dataset, repair_dataset
from presize.builder.run import plan_build
from presize.errors import BuildError, PresizeWarning, SourceError
from presize.options import SourceOptions
from presize.sources.source_files import SourceFile
from presize.sources.source_reader import SourceReader
from presize.store.rejects_file import read_rejects
from presize.store.verify import VerifyResult, verify_dataset

COUNT = 30
OPTIONS = BuildOptions(ImageOptions(sizes=(Size(16, 16),)))
PROCESSES = RunOptions(jobs=2, report=False)


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


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, SourceOptions]:
    return tmp_path / "source", KINDS[request.param](tmp_path / "source")


def samples(root: Path) -> list[tuple[bytes, object]]:
    """The stored images and labels, in order."""
    dataset = Dataset(root)
    labels = dataset.index.column("label").to_pylist()
    return [(dataset.value(number), labels[number]) for number in range(len(dataset))]


def test_samples_are_those_of_the_files_in_them(source: tuple[Path, SourceOptions], tmp_path: Path) -> None:
    root, options = source
    for number in range(COUNT):
        path = tmp_path / "raw" / f"{number % 3}" / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    build_dataset(root, tmp_path / "out", OPTIONS, SERIAL, options)
    build_dataset(tmp_path / "raw", tmp_path / "expected", OPTIONS, SERIAL)
    by_class = samples(tmp_path / "expected")
    assert samples(tmp_path / "out") == [by_class[n % 3 * 10 + n // 3] for n in range(COUNT)]
    assert verify_dataset(tmp_path / "out") == VerifyResult(COUNT)


def test_the_bytes_do_not_depend_on_processes_and_interruptions(
    source: tuple[Path, SourceOptions], tmp_path: Path
) -> None:
    root, options = source
    build_dataset(root, tmp_path / "one", OPTIONS, SERIAL, options)

    class Stop(Exception):
        pass

    done: list[object] = []

    def stop(shard: object) -> None:
        done.append(shard)
        if len(done) == 2:
            raise Stop

    with pytest.raises(Stop):
        build_dataset(root, tmp_path / "two", OPTIONS, SERIAL, options, on_shard=stop)
    result = build_dataset(root, tmp_path / "two", OPTIONS, PROCESSES, options)
    assert 0 < result.resumed < COUNT
    assert files(tmp_path / "two") == files(tmp_path / "one")


@pytest.mark.parametrize("kind", KINDS)
def test_containers_that_were_replaced_are_read_anew_by_the_next_build_of_the_process(
    kind: str, tmp_path: Path
) -> None:
    options = KINDS[kind](tmp_path / "source")
    KINDS[kind](tmp_path / "other", COUNT)
    build_dataset(tmp_path / "source", tmp_path / "before", OPTIONS, SERIAL, options)
    build_dataset(tmp_path / "other", tmp_path / "expected", OPTIONS, SERIAL, options)
    shutil.rmtree(tmp_path / "source")
    (tmp_path / "other").rename(tmp_path / "source")
    build_dataset(tmp_path / "source", tmp_path / "after", OPTIONS, SERIAL, options)
    assert files(tmp_path / "after") == files(tmp_path / "expected")


def test_the_index_has_fields_and_not_where_they_lay(source: tuple[Path, SourceOptions], tmp_path: Path) -> None:
    root, options = source
    build_dataset(root, tmp_path / "out", OPTIONS, SERIAL, options)
    names = Dataset(tmp_path / "out").index.schema.names
    assert "label" in names
    assert not {"container", "offset", "run"} & set(names)


def test_a_report_compares_with_what_the_containers_hold(source: tuple[Path, SourceOptions], tmp_path: Path) -> None:
    root, options = source
    build_dataset(root, tmp_path / "out", OPTIONS, REPORTED, options)
    assert Dataset(tmp_path / "out").manifest.report.rows > 0  # type: ignore[union-attr]


def test_samples_are_read_in_the_order_in_which_they_lie(
    source: tuple[Path, SourceOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, options = source
    read = SourceReader.read
    places: list[tuple[str, int]] = []

    def noted(reader: SourceReader, file: SourceFile) -> bytes:
        places.append((file.container.path, file.offset >> 12))  # type: ignore[union-attr]
        return read(reader, file)

    monkeypatch.setattr(SourceReader, "read", noted)
    one_shard = replace(OPTIONS, shard_samples=COUNT)
    build_dataset(root, tmp_path / "out", one_shard, SERIAL, options)
    assert places == sorted(places)
    assert len(places) == COUNT


def test_an_update_takes_over_what_has_not_changed(tmp_path: Path) -> None:
    as_tars(tmp_path / "source")
    build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, SERIAL)
    write_tar(tmp_path / "source" / "shard-000030.tar", tar_samples(10, 30))
    update = replace(SERIAL, update=True)
    result = build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, update)
    assert (result.changes.kept, result.changes.built) == (30, 10)
    build_dataset(tmp_path / "source", tmp_path / "anew", OPTIONS, SERIAL)
    assert samples(tmp_path / "out") == samples(tmp_path / "anew")


def test_an_update_by_checksum_reads_the_values(source: tuple[Path, SourceOptions], tmp_path: Path) -> None:
    root, options = source
    checked = replace(OPTIONS, checksum=True)
    build_dataset(root, tmp_path / "out", checked, SERIAL, options)
    for path in root.rglob("*"):
        os.utime(path, ns=(1, 1))
    result = build_dataset(root, tmp_path / "out", checked, replace(SERIAL, update=True), options)
    assert (result.changes.kept + result.changes.copied, result.changes.built) == (COUNT, 0)


def test_a_shard_is_repaired_from_containers(source: tuple[Path, SourceOptions], tmp_path: Path) -> None:
    root, options = source
    build_dataset(root, tmp_path / "out", OPTIONS, SERIAL, options)
    whole = files(tmp_path / "out")
    (tmp_path / "out" / "shards" / "00001.lmdb").unlink()
    keys = SourceOptions(keys=options.keys)
    assert repair_dataset(root, tmp_path / "out", samples=keys).problems == ()
    assert files(tmp_path / "out") == whole


def test_a_repair_says_what_has_gone_from_its_container(tmp_path: Path) -> None:
    as_tars(tmp_path / "source")
    build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, SERIAL)
    (tmp_path / "source" / "shard-000020.tar").unlink()
    shard = Dataset(tmp_path / "out").index.column("shard")[20].as_py()
    (tmp_path / "out" / "shards" / f"{shard:05d}.lmdb").unlink()
    (problem,) = repair_dataset(tmp_path / "source", tmp_path / "out").problems
    assert ".png: it has changed or gone" in problem.what


def test_a_repair_needs_the_keys(tmp_path: Path) -> None:
    options = as_lmdb(tmp_path / "source")
    build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, SERIAL, options)
    with pytest.raises(SourceError, match="an LMDB needs --keys"):
        repair_dataset(tmp_path / "source", tmp_path / "out")


def test_a_value_that_is_no_image_is_rejected_and_not_skipped(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "source", {"0": picture(0), "1": b"<html>", "2": picture(2)[:300], "3": b""})
    result = build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, SERIAL, SourceOptions(keys="{}"))
    assert (result.stored, result.rejected, result.skipped) == (1, 3, 0)
    rejects = read_rejects(tmp_path / "out" / "rejects.jsonl")
    assert [reject.path for reject in rejects] == ["1", "2", "3"]


def test_what_a_scan_rejects_is_among_the_rejects(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [*tar_samples(3), ("x.png", picture(9)), ("x.cls", b"cat")])
    result = build_dataset(tmp_path / "a.tar", tmp_path / "out", OPTIONS, SERIAL)
    assert (result.stored, result.rejected) == (3, 1)
    (reject,) = read_rejects(tmp_path / "out" / "rejects.jsonl")
    assert (reject.path, reject.reason[:27]) == ("a.tar/x.png", "its .cls cannot be read: ex")


def test_a_container_that_goes_away_stops_the_build_and_loses_nothing(tmp_path: Path) -> None:
    as_tars(tmp_path / "source")
    tar = tmp_path / "source" / "shard-000010.tar"
    content = tar.read_bytes()
    with pytest.raises(
        BuildError, match=r"cannot read 'shard-000010\.tar' in .*: No such file .*; run again to resume"
    ):
        build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, SERIAL, on_plan=lambda _: tar.unlink())
    tar.write_bytes(content)
    os.utime(tar, ns=(5, 5))
    assert (
        build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, replace(SERIAL, overwrite=True)).stored == COUNT
    )


def test_parquet_has_at_most_a_shard_for_each_row_group(tmp_path: Path) -> None:
    columns = {"image": image_column([picture(n) for n in range(COUNT)])}
    write_parquet(tmp_path / "a.parquet", columns, group_rows=10)
    shards = plan_build(tmp_path / "a.parquet", OPTIONS).shards
    assert sorted(shard.tolist() for shard in shards) == [list(range(n, n + 10)) for n in (0, 10, 20)]
    by_five = plan_build(tmp_path / "a.parquet", replace(OPTIONS, shard_samples=5)).shards
    assert len(by_five) == 6


def test_fixtures_become_datasets_with_classes(tmp_path: Path) -> None:
    build_dataset(FIXTURES / "datasets", tmp_path / "out", OPTIONS, SERIAL, SourceOptions(split="folders"))
    dataset = Dataset(tmp_path / "out")
    assert dataset.manifest.classes == ("ant", "bee", "cow")
    assert dataset.index.column("split").to_pylist() == ["test"] * 2 + ["train"] * 7
    build_dataset(FIXTURES / "webdataset", tmp_path / "tars", OPTIONS, SERIAL, SourceOptions(classes=["a", "b", "c"]))
    assert Dataset(tmp_path / "tars").index.column("label").to_pylist() == [n % 3 for n in range(9)]


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


def test_images_of_containers_become_files(tmp_path: Path) -> None:
    options = as_lmdb(tmp_path / "source")
    build_dataset(tmp_path / "source", tmp_path / "out", replace(SMALL, layout="folder"), SERIAL, options)
    assert (tmp_path / "out" / "image-000000000.jpg").read_bytes().startswith(b"\xff\xd8")


def test_an_update_of_parquet_keeps_rows_of_a_group_together(tmp_path: Path) -> None:
    columns = {"image": image_column([picture(n) for n in range(COUNT)])}
    write_parquet(tmp_path / "source" / "a.parquet", columns, group_rows=10)
    build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, SERIAL)
    columns = {"image": image_column([picture(n) for n in range(30, 70)])}
    write_parquet(tmp_path / "source" / "b.parquet", columns, group_rows=10)
    build_dataset(tmp_path / "source", tmp_path / "out", OPTIONS, replace(SERIAL, update=True))
    index = Dataset(tmp_path / "out").index
    groups = (np.arange(70) // 10).tolist()
    of_shard: dict[int, set[int]] = {}
    for shard, group in zip(index.column("shard").to_pylist(), groups, strict=True):
        of_shard.setdefault(shard, set()).add(group)
    assert all(len(found) <= 2 for found in of_shard.values())


def test_containers_of_one_stem_have_samples_of_different_paths(tmp_path: Path) -> None:
    for number, name in enumerate(("set.1", "set.2")):
        write_lmdb(tmp_path / "sets" / name, {f"image-{n:09d}": picture(10 * number + n) for n in range(2)})
    options = SourceOptions(keys="image-{:09d}")
    build_dataset(tmp_path / "sets", tmp_path / "out", OPTIONS, SERIAL, options)
    assert verify_dataset(tmp_path / "out") == VerifyResult(4)
    build_dataset(tmp_path / "sets", tmp_path / "files", replace(OPTIONS, layout="folder"), SERIAL, options)
    assert len(list((tmp_path / "files").rglob("*.jpg"))) == 4


def test_tars_whose_names_differ_in_case_alone_have_samples_of_different_paths(tmp_path: Path) -> None:
    for number, name in enumerate(("a.tar", "a.TAR")):
        write_tar(tmp_path / "tars" / name, tar_samples(3, 10 * number))
    for name in ("a.tar", "a.TAR"):  # with the same names of samples
        write_tar(tmp_path / "tars" / name, tar_samples(3))
    build_dataset(tmp_path / "tars", tmp_path / "out", OPTIONS, SERIAL)
    assert verify_dataset(tmp_path / "out") == VerifyResult(6)


def test_a_field_whose_name_is_no_text_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "0.tar", "w") as tar:
        for name, content in (("a.png", picture(0)), ("a.json", b'{"\\ud800": 3, "b": 4}')):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.warns(PresizeWarning):
        build_dataset(tmp_path / "tars", tmp_path / "out", OPTIONS, SERIAL)
    assert Dataset(tmp_path / "out").column("b").to_pylist() == [4]
