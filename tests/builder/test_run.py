"""Builds: published files, resuming, and no incomplete datasets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import presize.builder.executors.executor
import presize.builder.tasks.staging
import presize.builder.tasks.task
import presize.store.shard
from builds import BROKEN_PNG, OVERWRITE, REPORTED, SERIAL, SMALL, UPDATE, Builder, Stopped, files, put
from presize.builder.run import build_dataset, build_part, plan_build
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task
from presize.builder.to_url import build_to_url
from presize.errors import BuildError, DatasetError, ImageError, OptionError, PresizeWarning, SourceError
from presize.options import BuildOptions, BuildPart, ErrorBudget, ImageOptions, RunOptions, Size, SourceOptions
from presize.store.index import read_index
from presize.store.verify import VerifyResult, verify_dataset

TO_FOLDER = replace(SMALL, layout="folder")
TWO_SIZES = BuildOptions(ImageOptions(sizes=(Size(64, 64), Size(32, 32))))
LAYOUTS = {"lmdb": SMALL, "two sizes": TWO_SIZES, "folder": TO_FOLDER}
OTHER = BuildOptions(ImageOptions(sizes=(Size(32, 32),), quality=80))


def every_task(monkeypatch: pytest.MonkeyPatch, before: Callable[[Task], object]) -> None:
    """Call `before` with each task before it runs, in this process."""

    def write(task: Task) -> ShardDone:
        before(task)
        return presize.builder.tasks.task.write_shard(task)

    monkeypatch.setattr(presize.builder.executors.executor, "write_shard", write)


# Published files


def test_the_index_describes_every_image_in_imagefolders_order(build: Builder) -> None:
    build(options=BuildOptions(ImageOptions(sizes=(Size(30, 30),))))
    data = build.data()
    expected = sorted(path.relative_to(build.source).as_posix() for path in build.source.rglob("*.png"))
    assert [data.path(i) for i in range(len(data))] == expected
    assert data.numbers("label").tolist() == [0] * 6 + [1] * 6
    assert data.manifest.classes == ("cats", "dogs")
    (row,) = data.index.slice(0, 1).to_pylist()
    status = (build.source / row["path"]).stat()
    assert (row["source_height"], row["source_width"], row["height"], row["width"]) == (41, 50, 30, 36)
    assert (row["source_nbytes"], row["source_mtime_ns"]) == (status.st_size, status.st_mtime_ns)


def test_rejects_leave_no_gap_and_are_listed_with_their_reason(build: Builder) -> None:
    (build.source / "cats" / "03.png").write_bytes(b"")
    (build.source / "dogs" / "notes.txt").write_text("no image and not named like one")
    os.rename(build.source / "cats" / "11.png", os.fsencode(build.source / "cats") + b"/\xff.png")
    with (build.source / "dogs" / "movie.mp4").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file, which must not be read
    with (build.source / "dogs" / "huge.png").open("wb") as file:
        file.write(BROKEN_PNG)
        file.truncate(1 << 40)
    result = build()
    assert (result.stored, result.rejected, result.skipped) == (10, 3, 2)
    told = build.rejects()
    assert [line["path"] for line in told] == [
        "cats/03.png", "cats/\\xff.png", "dogs/huge.png", "dogs/movie.mp4", "dogs/notes.txt",
    ]  # fmt: skip
    line = told[4]
    assert (told[0]["error"], told[0]["reason"]) == ("ImageError", "the file is empty")
    assert (line["error"], line["reason"]) == ("NotAnImageError", "not an image format that presize reads")
    status = (build.source / "dogs" / "notes.txt").stat()
    assert (line["source_nbytes"], line["source_mtime_ns"]) == (status.st_size, status.st_mtime_ns)
    data = build.data()
    assert [data.path(i) for i in range(3)] == ["cats/01.png", "cats/05.png", "cats/07.png"]
    assert len(list(data.pixels(range(10)))) == 10


@pytest.mark.parametrize("options", [SMALL, TO_FOLDER], ids=["lmdb", "folder"])
def test_splits_by_folder_are_one_dataset_with_one_class_list(options: BuildOptions, build: Builder) -> None:
    shutil.copytree(build.source, build.source.with_name("raw") / "val")
    build.source.rename(build.source.with_name("raw") / "train")
    build.source = build.source.with_name("raw")
    build(options=options, samples=SourceOptions(split="folders"))
    index = read_index(build.out, build.manifest())
    assert build.manifest().classes == ("cats", "dogs")
    assert index["split"].to_pylist() == ["train"] * 12 + ["val"] * 12
    assert index["label"].to_pylist() == ([0] * 6 + [1] * 6) * 2
    folders = sorted(path.name for path in build.out.iterdir() if path.is_dir())
    assert folders == (["train", "val"] if options is TO_FOLDER else ["shards"])


def test_each_of_several_sizes_equals_the_dataset_of_a_single_size(build: Builder) -> None:
    build("both", TWO_SIZES)
    assert sorted(os.listdir(build.out.with_name("both"))) == ["32", "64"]
    for size in TWO_SIZES.image.sizes:
        build(str(size), BuildOptions(ImageOptions(sizes=(size,))))
        both, alone = build.data(f"both/{size}"), build.data(str(size))
        assert [both.value(i) for i in range(12)] == [alone.value(i) for i in range(12)]
        assert verify_dataset(both.root) == VerifyResult(12)


def test_a_folder_holds_only_the_records_as_files_in_their_classes(build: Builder) -> None:
    (build.source / "birds").mkdir()
    (build.source / "cats" / "01.png").rename(build.source / "cats" / f"{'x' * 251}.png")  # the longest name
    build("lmdb")
    build(options=TO_FOLDER, run=REPORTED)
    data = build.data("lmdb")
    ours = ["index.arrow", "manifest.json", "rejects.jsonl", "report.html"]
    assert sorted(os.listdir(build.out)) == ["birds", "cats", "dogs", *ours]
    assert build.manifest().classes == ("birds", "cats", "dogs")
    images = {path.relative_to(build.out).as_posix(): path.read_bytes() for path in build.out.rglob("*.jpg")}
    assert images == {data.path(i).replace(".png", ".jpg"): data.value(i) for i in range(12)}


def test_to_folder_creates_no_folder_for_a_label(build: Builder, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\ndogs/00.png,../../evil\ncats/01.png,b\n")
    build("deep/out", TO_FOLDER, samples=SourceOptions(labels=tmp_path / "labels.csv"))
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir() if path.is_dir()) == ["cats", "dogs"]
    assert not (tmp_path / "evil").exists()


def test_class_folders_appear_and_disappear_with_their_classes(build: Builder) -> None:
    """Also empty ones, and a class with the name of the shard folder."""
    for name in ("birds", "shards"):
        (build.source / name).mkdir()
    build(options=TO_FOLDER)
    build.stopped(2, options=SMALL, run=OVERWRITE)
    assert (build.out / "shards").is_dir()
    (build.source / "birds").rmdir()
    for image in (build.source / "cats").iterdir():
        image.rename(build.source / "shards" / image.name)
    build(options=TO_FOLDER, run=OVERWRITE)
    assert sorted(path.name for path in build.out.iterdir() if path.is_dir()) == ["cats", "dogs", "shards"]
    assert verify_dataset(build.out) == VerifyResult(12)


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow", "rejects-1.jsonl", "report.html"])
def test_a_class_with_a_reserved_name_is_refused_for_folders(name: str, build: Builder) -> None:
    (build.source / "cats").rename(build.source / name)
    with pytest.raises(SourceError, match="reserves that name for presize's own files"):
        build(options=TO_FOLDER)
    assert not build.out.exists()
    assert build().stored == 12


def test_a_shard_that_outgrows_its_map_is_restarted(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    build("roomy")
    monkeypatch.setattr(presize.store.shard, "map_bytes", lambda records, record_bytes: 16 << 10)  # noqa: ARG005
    build("tight")
    tight, roomy = build.data("tight"), build.data("roomy")
    assert [tight.value(i) for i in range(12)] == [roomy.value(i) for i in range(12)]
    assert not [name for name in build.files("tight") if name.endswith(".tmp")]


# Running it again


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupted_build_publishes_nothing_and_only_unfinished_shards_are_built_again(
    layout: str, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.stopped(2, options=LAYOUTS[layout])
    assert not [name for name in build.files() if name.endswith(("manifest.json", ".jpg"))]
    tasks: list[Task] = []
    every_task(monkeypatch, tasks.append)
    result = build(options=LAYOUTS[layout])
    assert len(tasks) == 2, "two of four were finished"
    assert result.resumed == 6


FINISHED_SHARD = "shards/00000.lmdb"


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: os.truncate(out / FINISHED_SHARD, 4096),
        lambda out: (out / ".presize-00000.npz").write_bytes(b"PK\x03\x04 damaged"),
    ],
    ids=["shard", "sidecar"],
)
def test_damage_to_a_finished_shard_rebuilds_only_that_shard(damage: Callable[[Path], object], build: Builder) -> None:
    build("whole")
    build.stopped(2)
    damage(build.out)
    assert build().resumed == 3
    assert build.files() == build.files("whole")


def test_a_finished_build_is_not_repeated(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(run=REPORTED)
    (build.out / "report.html").unlink()
    before = build.files()
    monkeypatch.setattr(presize.builder.executors.executor, "write_shard", None)
    again = build(run=REPORTED)
    assert build.files() == before
    assert (again.stored, again.bytes, again.images_per_s) == (first.stored, first.bytes, 0)
    assert len(first.reports) == 1 and again.reports == (), "a removed report is not named"


@pytest.mark.parametrize("damage", ["gone", "cut", "its folder gone"])
def test_a_missing_or_truncated_shard_is_rebuilt(damage: str, build: Builder) -> None:
    build()
    shard = build.out / FINISHED_SHARD
    if damage == "gone":
        shard.unlink()
    elif damage == "cut":
        os.truncate(shard, 100)
    else:
        shutil.rmtree(shard.parent)
    with pytest.raises(BuildError, match=r"OUT .* is damaged: .*00000\.lmdb.*; --update rebuilds it"):
        build()
    build(run=UPDATE)
    assert verify_dataset(build.out) == VerifyResult(12)
    assert build().resumed == 12


# Overwriting

LOOK_STAGED = ["000000001.tmp", ".000000001.tmp.jpg", ".1.tmp", ".000000001.tmp\n", "a/.x000000001.tmp"]


@pytest.mark.parametrize("before", [SMALL, TO_FOLDER], ids=["lmdb", "folder"])
@pytest.mark.parametrize("after", [SMALL, TO_FOLDER], ids=["to lmdb", "to folder"])
def test_overwrite_removes_the_old_dataset_and_nothing_else(
    before: BuildOptions, after: BuildOptions, build: Builder
) -> None:
    for name in ("a/b", "a-b"):
        (build.source / "dogs" / name).mkdir(parents=True)
        shutil.copy(build.source / "cats" / "01.png", build.source / "dogs" / name)
    build(options=before, run=REPORTED)
    mine = ["notes.txt", ".mine.tmp", "shards/mine.lmdb", *LOOK_STAGED]
    for name in mine:
        (build.out / name).parent.mkdir(exist_ok=True)
        (build.out / name).write_text("mine")
    for name in ("cats", "dogs/a/b", "dogs/a-b"):
        (build.source / name / "01.png").unlink()
    build(options=after, run=replace(REPORTED, overwrite=True))
    named = {file.file for file in build.manifest().files()} | {"manifest.json", "report.html"}
    images = {name for name in build.files() if name.endswith(".jpg")} - {*mine}
    assert build.files().keys() - images == named | {*mine}
    assert len(images) == (11 if after is TO_FOLDER else 0)
    assert (build.out / "dogs").is_dir() == (after is TO_FOLDER) and not list(build.out.glob("dogs/a*"))
    assert verify_dataset(build.out) == VerifyResult(11)


def test_overwrite_replaces_a_damaged_dataset(build: Builder) -> None:
    build()
    (build.out / FINISHED_SHARD).write_bytes(b"damaged")
    build(run=OVERWRITE)
    assert verify_dataset(build.out) == VerifyResult(12)
    build(options=TO_FOLDER, run=OVERWRITE)
    next(build.out.glob("index*.arrow")).write_bytes(b"damaged")
    with pytest.warns(PresizeWarning, match="is damaged: the images of the replaced dataset are unknown"):
        build(options=TO_FOLDER, run=OVERWRITE)
    assert verify_dataset(build.out) == VerifyResult(12)


def interrupt_publishing(build: Builder, run: RunOptions = SERIAL) -> None:
    """Build a folder until only some staged files are renamed."""
    unstage, names = presize.builder.tasks.staging.unstage, list[str]()

    def stop(root: Path, file: str, sample: int) -> None:
        if len(names) == 5:
            raise Stopped
        names.append(file)
        unstage(root, file, sample)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(presize.builder.tasks.staging, "unstage", stop)
        build(options=TO_FOLDER, run=run)


def test_a_lost_staged_file_rebuilds_only_its_shard(build: Builder) -> None:
    build("whole", TO_FOLDER)
    interrupt_publishing(build)
    next(build.out.rglob(".0*.tmp")).unlink()
    result = build(options=TO_FOLDER)
    assert 0 < result.files - result.resumed < 6
    assert build.files() == build.files("whole")


IN_THE_WAY: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a folder": ("on_shard", lambda out: (out / "cats/01.jpg").mkdir(parents=True, exist_ok=True), "Is a directory"),
    "a file": ("on_plan", lambda out: (out.mkdir(), (out / "cats").touch()), "File exists"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_an_obstacle_at_the_path_of_an_image_is_named(what: str, build: Builder) -> None:
    moment, make, message = IN_THE_WAY[what]
    with pytest.raises(BuildError, match=rf"cannot write .*/cats/\d\d\.jpg: {message}"):
        build(options=TO_FOLDER, **{moment: lambda _: make(build.out)})


def test_a_folder_at_the_path_of_a_removed_image_is_named(build: Builder) -> None:
    build(options=TO_FOLDER)
    (build.out / "cats" / "01.jpg").unlink()
    (build.out / "cats" / "01.jpg").mkdir()
    (build.source / "cats" / "01.png").unlink()
    with pytest.raises(BuildError, match="Is a directory"):
        build(options=TO_FOLDER, run=OVERWRITE)


def test_a_third_build_over_an_interrupted_one_leaves_no_image_of_the_others(build: Builder) -> None:
    build(options=TO_FOLDER)
    for prefix in "bc":
        for image in (build.source / "cats").iterdir():
            image.rename(image.with_stem(f"{prefix}-{image.stem}"))
        if prefix == "b":
            interrupt_publishing(build, OVERWRITE)
    build(options=TO_FOLDER, run=OVERWRITE)
    assert len(list(build.out.rglob("*.jpg"))) == 12
    assert verify_dataset(build.out) == VerifyResult(12)
    assert len(list(build.out.glob("index*.arrow"))) == 1


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_an_abandoned_build_leaves_nothing_behind(first: str, second: str, build: Builder) -> None:
    build.stopped(2, options=replace(LAYOUTS[first], shard_samples=3))
    build(options=LAYOUTS[second], run=OVERWRITE)
    build("fresh", LAYOUTS[second])
    assert build.files() == build.files("fresh")
    folders = [sorted(path.name for path in (build.out.with_name(out)).iterdir()) for out in ("out", "fresh")]
    assert folders[0] == folders[1]


@pytest.mark.parametrize("options", [SMALL, TWO_SIZES], ids=["one size", "two sizes"])
def test_the_report_keeps_its_name_between_updates(options: BuildOptions, build: Builder) -> None:
    first = build(options=options, run=REPORTED).reports
    before = [path.read_bytes() for path in first]
    put(build.source / "cats" / "new.png", seed=20)
    for generation, how in enumerate(("update", "overwrite"), start=1):
        assert build(options=options, run=replace(REPORTED, **{how: True})).reports == first
        for path in first:
            assert path.read_bytes() == path.with_name(f"report-{generation}.html").read_bytes()
    assert [path.read_bytes() for path in first] != before
    build(options=options, run=OVERWRITE)
    assert not list(build.out.rglob("report*"))


def test_a_relative_out_survives_a_change_of_directory(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, run in (("a", RunOptions(jobs=2, report=False)), ("b", SERIAL)):
        build.out.with_name(place).mkdir()
        monkeypatch.chdir(build.out.with_name(place))
        presize.build_dataset(build.source, "out", SMALL, run)
    assert verify_dataset(build.out.with_name("a") / "out") == VerifyResult(12)
    assert verify_dataset(build.out.with_name("b") / "out") == VerifyResult(12)


# Refusals

HERE: dict[str, tuple[Callable[[Builder], object], type[Exception], str]] = {
    "other options": (lambda build: build(), BuildError, r"sizes was 64, is 32; quality was 90, is 80.*--overwrite"),
    "other options, unfinished": (lambda build: build.stopped(), BuildError, r"an unfinished .*sizes was 64, is 32;"),
    "a file": (lambda build: build.out.write_text("mine"), BuildError, "is a file"),
    "a folder of another kind": (
        lambda build: put(build.out / "thesis.png", 1), BuildError, "'thesis.png' and is not a presize dataset",
    ),
    "a manifest of another program": (
        lambda build: (build.out.mkdir(), (build.out / "manifest.json").write_text('{"name": "my web page"}')),
        DatasetError, "not a presize manifest.*choose another OUT, or remove this one",
    ),
    "a damaged manifest": (
        lambda build: (build(), (build.out / "manifest.json").write_text("{")), DatasetError, "or remove this one",
    ),
    "several sizes": (lambda build: build(options=TWO_SIZES), BuildError, "holds datasets of the sizes 32, 64"),
}  # fmt: skip


@pytest.mark.parametrize("there", HERE)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_out_that_is_not_a_dataset_of_these_options_stays(there: str, overwrite: bool, build: Builder) -> None:
    make, error, message = HERE[there]
    make(build)
    before = build.files()
    if overwrite and "options" in there:
        assert build(options=OTHER, run=OVERWRITE).stored == 12
        return
    with pytest.raises(error, match=message):
        build(options=OTHER, run=replace(SERIAL, overwrite=overwrite))
    assert build.files() == before
    if there == "other options":
        with pytest.raises(BuildError, match="choose another OUT for several"):
            build(options=TWO_SIZES)


CHANGED: dict[str, tuple[Callable[[Builder], object], str]] = {
    "a file less": (
        lambda build: (build.source / "cats" / "01.png").unlink(), r"the source has changed \(12 files then, 11 now\)",
    ),
    "other splits": (
        lambda build: setattr(build, "samples", SourceOptions(split="train=0.8,val=0.2", split_seed=5)),
        r"\(12 files then, 12 now; labels and splits also count\)",
    ),
    "no index": (
        lambda build: (build.out / "index.arrow").unlink(),
        r"is damaged: .*index\.arrow.*; --overwrite rebuilds the dataset",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGED)
def test_a_dataset_that_differs_from_the_command_is_reported(change: str, build: Builder) -> None:
    build.samples = SourceOptions(split="train=0.8,val=0.2")
    build()
    CHANGED[change][0](build)
    with pytest.raises(BuildError, match=CHANGED[change][1]):
        build()


PLACES: dict[str, tuple[str, type[Exception], str]] = {
    "inside the source": ("photos/out", SourceError, "lies inside the source"),
    "around the source": (".", SourceError, "the source .* lies inside OUT"),
    "the source": ("photos", SourceError, "are the same, .*; choose a new folder for OUT"),
    "below a file": ("photos/cats/01.png/out", SourceError, "lies inside the source"),
    "not UTF-8": (os.fsdecode(b"\xff"), BuildError, "is not UTF-8"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_impossible_out_is_refused(place: str, build: Builder, tmp_path: Path) -> None:
    out, error, message = PLACES[place]
    before = build.files("photos")
    with pytest.raises(error, match=message):
        build(tmp_path / out, run=OVERWRITE)
    assert build.files("photos") == before and os.listdir(tmp_path) == ["photos"]


def test_out_below_a_file_or_at_a_url_is_refused(build: Builder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(BuildError, match="cannot write to OUT"):
        build("file/out")
    with pytest.raises(BuildError, match=r"^OUT s3://data/64 is a URL; give a folder, or use presize.build_to_url"):
        presize.build_dataset(build.source, "s3://data/64")


def test_too_little_space_is_reported_before_writing_and_blocks_no_later_build(
    build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(build.source)._replace(free=1000)
    with monkeypatch.context() as patch, pytest.raises(BuildError, match=r"has 1 kB free and needs about .* kB"):
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        build()
    assert not list(build.out.rglob("*.lmdb"))
    assert build(options=OTHER).stored == 12


def test_a_concurrent_build_is_refused_unless_it_has_ended(build: Builder) -> None:
    def build_again(_: ShardDone) -> None:
        with pytest.raises(BuildError, match="another build is writing"):
            build()

    build(on_shard=build_again)
    assert verify_dataset(build.out) == VerifyResult(12)
    (build.out / ".presize.lock").touch()  # left by a killed build
    assert build().resumed == 12
    assert build("other", on_plan=lambda _: build("other")).resumed == 12


# Rejects


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "resumed"])
def test_the_error_budget_includes_earlier_runs(finished: bool, build: Builder) -> None:
    (build.source / "cats" / "01.png").write_bytes(BROKEN_PNG)
    if finished:
        build()
    else:
        build.stopped(4)
    with pytest.raises(BuildError, match="--max-errors 0"):
        build(run=replace(SERIAL, max_errors=ErrorBudget(count=0)))
    with pytest.raises(ImageError, match="1 image was rejected or unreadable before this run"):
        build(run=replace(SERIAL, on_error="fail"))


@pytest.mark.parametrize(("allowed", "publishes"), [("3", True), ("2", False), ("25%", True), ("24%", False)])
def test_the_error_budget_decides_about_publishing(allowed: str, publishes: bool, build: Builder) -> None:
    for i in (1, 3, 5):
        (build.source / "cats" / f"{i:02d}.png").write_bytes(BROKEN_PNG)
    run = replace(SERIAL, max_errors=ErrorBudget.parse(allowed))
    if publishes:
        assert build(run=run).rejected == 3
        return
    with pytest.raises(BuildError, match=f"--max-errors {allowed}"):
        build(run=run)
    assert not (build.out / "manifest.json").exists()
    assert build().resumed > 0, "a larger budget resumes the build"


@pytest.mark.parametrize("run", [SERIAL, RunOptions(jobs=2)], ids=["sequential", "processes"])
def test_on_error_fail_stops_at_the_image_and_names_it(run: RunOptions, build: Builder) -> None:
    (build.source / "cats" / "notes.txt").write_text("not named like an image")
    assert build("other", run=replace(run, on_error="fail")).skipped == 1
    (build.source / "cats" / "01.png").write_bytes(b"broken")
    with pytest.raises(ImageError, match=r"^cats/01.png: not an image"):
        build(run=replace(run, on_error="fail"))
    assert not (build.out / "manifest.json").exists()
    (build.source / "cats" / "link.png").symlink_to("/etc/hostname")
    with pytest.raises(ImageError, match=r"^cats/link.png: a link out of the source"):
        build(run=replace(run, on_error="fail"))


def mend(path: Path) -> None:
    put(path, 99)


@pytest.mark.parametrize("run", [SERIAL, UPDATE], ids=["plain", "--update"])
@pytest.mark.parametrize("repair", [mend, Path.unlink], ids=["mended", "removed"])
@pytest.mark.parametrize("strict", [{"on_error": "fail"}, {"max_errors": ErrorBudget(0)}], ids=["fail", "--max-errors"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_build_stopped_by_an_image_resumes_after_the_image_is_fixed_or_removed(
    layout: str, strict: dict[str, Any], repair: Callable[[Path], None], run: RunOptions, build: Builder, tmp_path: Path
) -> None:
    if layout == "folder" and run.update:
        pytest.skip("--update does not support folders")
    build.options = replace(LAYOUTS[layout], shard_samples=4)
    plan = plan_build(build.source, build.options)
    bad = build.source / plan.source.table.column("path")[int(plan.shards[-1][0])].as_py()
    bad.write_bytes(BROKEN_PNG)
    with pytest.raises((ImageError, BuildError), match=r"PNG|1 image was rejected"):
        build(run=replace(SERIAL, **strict))
    repair(bad)
    with pytest.warns(PresizeWarning, match=r"unfinished build of other files \(the source has changed .* are kept$"):
        result = build(run=replace(run, **strict))
    assert (result.resumed > 0) == (repair is mend), "the remaining samples are assigned to other shards"
    build_dataset(build.source, tmp_path / "fresh", build.options, SERIAL)
    assert files(build.out) == files(tmp_path / "fresh")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_source_without_a_valid_image_publishes_nothing_and_blocks_no_later_build(
    layout: str, tmp_path: Path
) -> None:
    build = Builder(tmp_path / "photos", LAYOUTS[layout])
    build.source.mkdir()
    (build.source / "a.jpg").symlink_to("/dev/null")
    (build.source / "a.txt").write_bytes(b"text")
    (build.source / "b.jpg").write_bytes(b"<html>404</html>")
    message = r"no image could be stored \(2 files in .*\); the first: b\.jpg: an HTML page"
    with pytest.raises(BuildError, match=message):  # the first image read
        build()
    assert not build.out.exists()
    put(build.source / "c.png", seed=1)
    assert build(options=replace(build.options, image=replace(build.options.image, quality=70))).stored == 1


def test_a_source_that_disappears_stops_the_build(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    every_task(monkeypatch, lambda _: build.source.exists() and build.source.rename(build.out.with_name("gone")))
    with pytest.raises(BuildError, match=r"cannot read .*run again to resume"):
        build()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"options": ImageOptions()}, "options: expected BuildOptions, got ImageOptions"),
        ({"run": SourceOptions()}, "run: expected RunOptions, got SourceOptions"),
        ({"samples": RunOptions()}, "samples: expected SourceOptions, got RunOptions"),
    ],
)
def test_options_of_another_kind_are_refused_by_name(wrong: dict[str, Any], said: str, build: Builder) -> None:
    given: dict[str, Any] = {"options": build.options, "run": SERIAL, "samples": SourceOptions()} | wrong
    url = partial(build_to_url, build.source, "s3://bucket/out")
    for call in (
        partial(build_dataset, build.source, build.out),
        partial(build_part, build.source, build.out, BuildPart(1, 2)),
        url,
    ):
        with pytest.raises(OptionError, match=f"^{said}$"):
            call(**given)
    given.pop("run")
    if "run" not in wrong:
        with pytest.raises(OptionError, match=f"^{said}$"):
            plan_build(build.source, **given)
