"""Builds: what they publish, that they resume, and that they never leave half a dataset."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import presize.builder.executors.executor
import presize.builder.run
import presize.builder.tasks.staging
import presize.builder.tasks.task
import presize.sources.source_reader
import presize.store.shard
from builds import REPORTED, SERIAL, SMALL, files
from pictures import smooth_image
from presize.builder.fingerprint import codec_versions
from presize.builder.plan import Plan
from presize.builder.run import build_dataset
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task
from presize.errors import BuildError, DatasetError, ImageError, PresizeWarning, SourceError
from presize.options import BuildOptions, ErrorBudget, ImageOptions, RunOptions, Size, SourceOptions
from presize.sources.source_reader import SourceReader
from presize.store.dataset import Dataset
from presize.store.index import read_index
from presize.store.manifest import read_manifest
from presize.store.verify import VerifyResult, verify_dataset

TO_FOLDER = replace(SMALL, layout="folder")
TWO_SIZES = BuildOptions(ImageOptions(sizes=(Size(64, 64), Size(32, 32))))
OVERWRITE = replace(REPORTED, overwrite=True)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """12 images in two classes, to be changed at will."""
    folder = tmp_path / "photos"
    for i in range(12):
        path = folder / ("cats" if i % 2 else "dogs") / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(40 + i, 50, seed=i)).save(path)
    return folder


class Stopped(Exception):
    """Stands for whatever ends a build in the middle."""


def stop_after(shards: int) -> Callable[[ShardDone], None]:
    """An on_shard that ends the build once so many shards are finished."""
    seen: list[ShardDone] = []

    def on_shard(done: ShardDone) -> None:
        seen.append(done)
        if len(seen) == shards:
            raise Stopped

    return on_shard


def interrupt(source: Path, out: Path, options: BuildOptions = SMALL, run: RunOptions = REPORTED) -> None:
    """Build in part: two shards are finished, the rest is not."""
    with pytest.raises(Stopped):
        build_dataset(source, out, options, run, on_shard=stop_after(2))


# What a build publishes


def test_the_index_holds_every_image_in_the_order_of_imagefolder(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    data = Dataset(tmp_path / "out")
    expected = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    assert [data.path(i) for i in range(len(data))] == expected
    assert data.numbers("label").tolist() == [0] * 6 + [1] * 6
    assert data.manifest.classes == ("cats", "dogs")


def test_the_index_tells_sizes_before_and_after(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", BuildOptions(ImageOptions(sizes=(Size(30, 30),))), REPORTED)
    row = Dataset(tmp_path / "out").index.slice(0, 1).to_pylist()[0]
    source = photos / row["path"]
    assert (row["source_height"], row["source_width"]) == (41, 50)
    assert (row["height"], row["width"]) == (30, 36)
    assert row["source_nbytes"] == source.stat().st_size
    assert row["source_mtime_ns"] == source.stat().st_mtime_ns


def test_a_rejected_image_leaves_no_hole(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "03.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    result = build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    data = Dataset(tmp_path / "out")
    assert (result.stored, result.rejected) == (11, 1)
    assert [data.path(i) for i in range(3)] == ["cats/01.png", "cats/05.png", "cats/07.png"]
    assert len(list(data.pixels(range(11)))) == 11


def test_rejects_are_told_with_path_error_and_reason(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "03.png").write_bytes(b"")
    (photos / "dogs" / "notes.txt").write_text("no image and not named like one")
    result = build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    status = (photos / "dogs" / "notes.txt").stat()
    assert (lines[1].pop("source_nbytes"), lines[1].pop("source_mtime_ns")) == (status.st_size, status.st_mtime_ns)
    assert [{name: line[name] for name in ("path", "error", "reason")} for line in lines] == [
        {"path": "cats/03.png", "error": "ImageError", "reason": "the file is empty"},
        {
            "path": "dogs/notes.txt",
            "error": "NotAnImageError",
            "reason": "not an image format that presize reads",
        },
    ]
    assert (result.rejected, result.skipped) == (1, 1)


def test_a_flat_folder_has_no_labels(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos / "cats", tmp_path / "out", SMALL, REPORTED)
    assert Dataset(tmp_path / "out").manifest.classes is None
    assert "label" not in Dataset(tmp_path / "out").index.schema.names


def test_the_columns_of_a_label_table_are_carried_to_the_index(photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.jsonl"
    rows = [
        {"path": "dogs/00.png", "label": "husky", "score": 0.5, "boxes": [[1, 2], [3]], "note": None},
        {"path": "cats/01.png", "label": "abyssinian", "score": 2, "boxes": [], "note": "ü"},
    ]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED, samples=SourceOptions(labels=table))
    data = Dataset(tmp_path / "out")
    kept = [{name: row[name] for name in rows[0]} for row in data.index.to_pylist()]
    assert kept == [{**rows[0], "label": 1}, {**rows[1], "label": 0}], "in the table's order"
    assert data.manifest.classes == ("abyssinian", "husky")


def test_without_labels_images_of_any_depth_are_stored(photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "cats" / "01.png", photos / "beside.png")
    (photos / "dogs" / "old" / "older").mkdir(parents=True)
    (photos / "dogs" / "00.png").rename(photos / "dogs" / "old" / "older" / "00.png")
    result = build_dataset(photos, tmp_path / "out", SMALL, SERIAL, SourceOptions(labels="none"))
    data = Dataset(tmp_path / "out")
    assert (result.stored, result.outside, data.manifest.classes) == (13, 0, None)
    assert "label" not in data.index.schema.names
    assert [data.path(0), data.path(12)] == ["beside.png", "dogs/old/older/00.png"]


def test_splits_by_folder_are_one_dataset_with_one_class_list(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "raw" / "val")
    photos.rename(tmp_path / "raw" / "train")
    for options in (SMALL, TO_FOLDER):
        out = tmp_path / options.layout
        build_dataset(tmp_path / "raw", out, options, SERIAL, SourceOptions(split="folders"))
        assert read_manifest(out).classes == ("cats", "dogs")
        index = read_index(out, read_manifest(out))
        assert index["split"].to_pylist() == ["train"] * 12 + ["val"] * 12
        assert index["label"].to_pylist() == ([0] * 6 + [1] * 6) * 2
    assert sorted(path.name for path in (tmp_path / "folder").iterdir() if path.is_dir()) == ["train", "val"]


def test_splits_and_repeated_rows_are_the_same_bytes_for_any_number_of_jobs(photos: Path, tmp_path: Path) -> None:
    rows = [
        {"path": path.relative_to(photos).as_posix(), "caption": path.name} for path in sorted(photos.rglob("*.png"))
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[::-1]]))
    samples = SourceOptions(tmp_path / "t.jsonl", repeated="list", split="train=0.5,val=0.5")
    for name, run in (("serial", SERIAL), ("parallel", RunOptions(jobs=2, report=False))):
        build_dataset(photos, tmp_path / name, SMALL, run, samples)
    assert files(tmp_path / "serial") == files(tmp_path / "parallel")
    assert Dataset(tmp_path / "serial").index["caption"].to_pylist()[0] == [rows[0]["caption"]] * 2


def test_several_sizes_make_a_dataset_each(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TWO_SIZES, REPORTED)
    assert sorted(os.listdir(tmp_path / "out")) == ["32", "64"]
    assert [pixels.shape[0] for _, pixels in Dataset(tmp_path / "out" / "32").pixels([0, 1])] == [32, 32]
    assert verify_dataset(tmp_path / "out" / "64") == VerifyResult(12)


def test_one_of_several_sizes_has_the_records_it_would_have_alone(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "both", TWO_SIZES, REPORTED)
    build_dataset(photos, tmp_path / "alone", SMALL, REPORTED)
    both, alone = Dataset(tmp_path / "both" / "64"), Dataset(tmp_path / "alone")
    assert [both.value(i) for i in range(12)] == [alone.value(i) for i in range(12)]


def test_to_folder_writes_ordinary_files(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    images = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.jpg"))
    assert images == sorted(f"{path.parent.name}/{path.stem}.jpg" for path in photos.rglob("*.png"))
    with Image.open(tmp_path / "out" / images[0]) as image:
        assert image.size == (50, 41)


def test_to_folder_leaves_no_folder_but_the_classes(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    ours = ["index.arrow", "manifest.json", "rejects.jsonl", "report.html"]
    assert sorted(os.listdir(tmp_path / "out")) == ["cats", "dogs", *ours]


def test_to_folder_keeps_the_place_of_an_empty_class(photos: Path, tmp_path: Path) -> None:
    (photos / "birds").mkdir()
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    assert (tmp_path / "out" / "birds").is_dir()
    assert read_manifest(tmp_path / "out").classes == ("birds", "cats", "dogs")


def test_to_folder_makes_no_folder_of_a_label(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\ndogs/00.png,../../evil\ncats/01.png,b\n")
    build_dataset(
        photos, tmp_path / "deep" / "out", TO_FOLDER, REPORTED, samples=SourceOptions(labels=tmp_path / "labels.csv")
    )
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir() if path.is_dir()) == ["cats", "dogs"]
    assert not (tmp_path / "evil").exists()


def test_a_class_that_is_empty_now_keeps_its_folder_when_overwritten(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    for image in (photos / "cats").iterdir():
        image.unlink()
    build_dataset(photos, tmp_path / "out", TO_FOLDER, OVERWRITE)
    assert (tmp_path / "out" / "cats").is_dir()


def test_a_class_called_shards_keeps_its_folder(photos: Path, tmp_path: Path) -> None:
    (photos / "shards").mkdir()
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    interrupt(photos, tmp_path / "out", SMALL, OVERWRITE)
    (tmp_path / "out" / "shards" / "00000-1.lmdb").unlink(missing_ok=True)
    assert (tmp_path / "out" / "shards").is_dir()


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow", "rejects-1.jsonl", "report.html"])
def test_a_class_called_like_a_file_of_ours_is_refused_as_a_folder(name: str, photos: Path, tmp_path: Path) -> None:
    (photos / "cats").rename(photos / name)
    with pytest.raises(SourceError, match="reserves that name for presize's own files"):
        build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    assert build_dataset(photos, tmp_path / "lmdb", SMALL, REPORTED).stored == 12


def test_files_and_shards_hold_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "folder", TO_FOLDER, REPORTED)
    build_dataset(photos, tmp_path / "lmdb", SMALL, REPORTED)
    data = Dataset(tmp_path / "lmdb")
    for i in range(len(data)):
        assert (tmp_path / "folder" / data.path(i)).with_suffix(".jpg").read_bytes() == data.value(i)


@pytest.mark.parametrize(
    "options",
    [SMALL, pytest.param(TWO_SIZES, marks=pytest.mark.slow), pytest.param(TO_FOLDER, marks=pytest.mark.slow)],
    ids=["lmdb", "two sizes", "folder"],
)
def test_any_number_of_jobs_gives_the_same_bytes(options: BuildOptions, raw: Path, tmp_path: Path) -> None:
    for jobs in (1, 2, 4):
        build_dataset(raw, tmp_path / str(jobs), options, RunOptions(jobs=jobs))
    assert files(tmp_path / "1") == files(tmp_path / "2") == files(tmp_path / "4")


def test_a_source_that_is_read_ahead_gives_the_same_bytes(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dataset(raw, tmp_path / "in turn", SMALL, REPORTED)
    monkeypatch.setattr(presize.sources.source_reader, "SLOW_S", -1.0)  # every file counts as slow
    readers = set()
    read = SourceReader.read

    def noted(reader: SourceReader, file: Any) -> bytes:
        readers.add(threading.current_thread().name)
        return read(reader, file)

    monkeypatch.setattr(SourceReader, "read", noted)
    build_dataset(raw, tmp_path / "ahead", SMALL, REPORTED)
    assert any(name.startswith("presize-read") for name in readers)
    assert files(tmp_path / "ahead") == files(tmp_path / "in turn")


def test_nothing_in_a_dataset_tells_where_or_when_it_was_made(raw: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "photos"
    shutil.copytree(raw, copy)  # keeps modification times
    build_dataset(raw, tmp_path / "a", SMALL, REPORTED)
    build_dataset(copy, tmp_path / "deeper" / "b", SMALL, REPORTED)
    assert files(tmp_path / "a") == files(tmp_path / "deeper" / "b")


def test_a_shard_that_outgrows_its_map_is_begun_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dataset(photos, tmp_path / "roomy", SMALL, REPORTED)
    monkeypatch.setattr(presize.store.shard, "map_bytes", lambda records, record_bytes: 16 << 10)  # noqa: ARG005
    build_dataset(photos, tmp_path / "tight", SMALL, REPORTED)
    tight, roomy = Dataset(tmp_path / "tight"), Dataset(tmp_path / "roomy")
    assert [tight.value(i) for i in range(12)] == [roomy.value(i) for i in range(12)]
    assert not list((tmp_path / "tight").rglob("*.tmp"))


# Running it again


@pytest.mark.parametrize("options", [SMALL, TWO_SIZES, TO_FOLDER], ids=["lmdb", "two sizes", "folder"])
def test_an_interrupted_build_publishes_nothing(options: BuildOptions, raw: Path, tmp_path: Path) -> None:
    interrupt(raw, tmp_path / "out", options)
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert not list((tmp_path / "out").rglob("*.jpg"))


@pytest.mark.parametrize(
    "options",
    [SMALL, pytest.param(TWO_SIZES, marks=pytest.mark.slow), TO_FOLDER],
    ids=["lmdb", "two sizes", "folder"],
)
def test_a_resumed_build_gives_the_same_bytes(options: BuildOptions, raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "whole", options, REPORTED)
    interrupt(raw, tmp_path / "resumed", options)
    build_dataset(raw, tmp_path / "resumed", options, RunOptions(jobs=2))
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")


@pytest.mark.parametrize("options", [SMALL, TWO_SIZES, TO_FOLDER], ids=["lmdb", "two sizes", "folder"])
def test_only_unfinished_shards_are_built_again(
    options: BuildOptions, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(raw, tmp_path / "out", options)
    built: list[int] = []

    def count(task: Task) -> ShardDone:
        built.append(task.number)
        return presize.builder.tasks.task.write_shard(task)

    monkeypatch.setattr(presize.builder.executors.executor, "write_shard", count)
    result = build_dataset(raw, tmp_path / "out", options, REPORTED)
    assert len(built) == 6, "two of eight were finished"
    assert result.resumed == 15


def test_a_finished_shard_that_was_truncated_meanwhile_is_built_again(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "whole", SMALL, REPORTED)
    interrupt(raw, tmp_path / "out")
    shard = next((tmp_path / "out" / "shards").iterdir())
    os.truncate(shard, 4096)
    build_dataset(raw, tmp_path / "out", SMALL, REPORTED)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_damaged_side_car_only_costs_its_shard(raw: Path, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "whole", SMALL, REPORTED)
    interrupt(raw, tmp_path / "out")
    (tmp_path / "out" / ".presize-00000.npz").write_bytes(b"PK\x03\x04 damaged")
    build_dataset(raw, tmp_path / "out", SMALL, REPORTED)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_finished_build_is_not_repeated(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    before = files(tmp_path / "out")
    monkeypatch.setattr(presize.builder.executors.executor, "write_shard", None)
    again = build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    assert files(tmp_path / "out") == before
    assert (again.stored, again.bytes, again.images_per_s) == (first.stored, first.bytes, 0)


@pytest.mark.parametrize("unfinished", [True, False])
def test_other_options_are_refused_with_what_differs(unfinished: bool, photos: Path, tmp_path: Path) -> None:
    if unfinished:
        interrupt(photos, tmp_path / "out")
    else:
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    before = files(tmp_path / "out")
    other = BuildOptions(ImageOptions(sizes=(Size(32, 32),), quality=80))
    with pytest.raises(BuildError, match=r"sizes was 64, is 32; quality was 90, is 80.*--overwrite"):
        build_dataset(photos, tmp_path / "out", other, REPORTED)
    assert files(tmp_path / "out") == before


def test_a_source_that_has_changed_is_refused(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    (photos / "cats" / "01.png").unlink()
    with pytest.raises(BuildError, match=r"the source has changed \(12 files then, 11 now\)"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)


@pytest.mark.parametrize("damage", ["gone", "cut", "its folder gone"])
def test_a_shard_that_is_missing_or_cut_is_something_to_do(damage: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_dataset(photos, out, SMALL, REPORTED)
    shard = sorted((out / "shards").iterdir())[0]
    if damage == "gone":
        shard.unlink()
    elif damage == "cut":
        os.truncate(shard, 100)
    else:
        shutil.rmtree(shard.parent)
    with pytest.raises(BuildError, match=r"OUT .* is damaged: .*00000\.lmdb.*; --update makes it again"):
        build_dataset(photos, out, SMALL, REPORTED)
    build_dataset(photos, out, SMALL, replace(REPORTED, update=True))
    assert verify_dataset(out) == VerifyResult(12)
    assert build_dataset(photos, out, SMALL, REPORTED).resumed == 12


def test_an_index_that_is_missing_is_built_anew_when_asked(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    (tmp_path / "out" / "index.arrow").unlink()
    with pytest.raises(BuildError, match=r"is damaged: .*index\.arrow.*; --overwrite builds the dataset anew"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)


def test_a_report_that_was_removed_is_not_named(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    (tmp_path / "out" / "report.html").unlink()
    assert build_dataset(photos, tmp_path / "out", SMALL, REPORTED).reports == ()


def test_labels_that_have_changed_are_said_where_the_files_are_as_many(photos: Path, tmp_path: Path) -> None:
    split = SourceOptions(split="train=0.8,val=0.2")
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED, split)
    with pytest.raises(BuildError, match=r"\(12 files then, 12 now; labels and splits count, too\)"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED, replace(split, split_seed=5))


def test_a_damaged_manifest_is_not_replaced_and_the_line_says_what_to_do(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(DatasetError, match="choose another OUT, or remove that"):
        build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, overwrite=True))


# Overwriting


@pytest.mark.parametrize("before", [SMALL, TO_FOLDER], ids=["lmdb", "folder"])
@pytest.mark.parametrize("after", [SMALL, TO_FOLDER], ids=["to lmdb", "to folder"])
def test_overwrite_leaves_nothing_of_the_old_dataset(
    before: BuildOptions, after: BuildOptions, photos: Path, tmp_path: Path
) -> None:
    build_dataset(photos, tmp_path / "out", before, REPORTED)
    (photos / "cats" / "01.png").unlink()
    build_dataset(photos, tmp_path / "out", after, OVERWRITE)
    manifest = read_manifest(tmp_path / "out")
    named = {file.file for file in manifest.files()} | {"manifest.json", "report.html"}
    found = {name for name in files(tmp_path / "out") if not name.endswith(".jpg")}
    assert found == named
    assert len(list((tmp_path / "out").rglob("*.jpg"))) == (11 if after is TO_FOLDER else 0)
    assert verify_dataset(tmp_path / "out") == VerifyResult(11)


def test_an_interrupted_overwrite_is_resumed(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    smaller = BuildOptions(ImageOptions(sizes=(Size(32, 32),)))
    interrupt(photos, tmp_path / "out", smaller, OVERWRITE)
    assert build_dataset(photos, tmp_path / "out", smaller, OVERWRITE).resumed > 0


def test_overwrite_of_the_same_builds_it_anew(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    shard = next((tmp_path / "out" / "shards").iterdir())
    shard.write_bytes(b"damaged")
    build_dataset(photos, tmp_path / "out", SMALL, OVERWRITE)
    assert verify_dataset(tmp_path / "out") == VerifyResult(12)


def test_files_that_are_not_ours_survive_an_overwrite(photos: Path, tmp_path: Path) -> None:
    for options in (SMALL, TO_FOLDER):
        build_dataset(photos, tmp_path / "out", options, OVERWRITE)
        (tmp_path / "out" / "notes.txt").write_text("mine")
        (tmp_path / "out" / "shards").mkdir(exist_ok=True)
        (tmp_path / "out" / "shards" / "mine.lmdb").write_text("mine")
    build_dataset(photos, tmp_path / "out", SMALL, OVERWRITE)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "out" / "shards" / "mine.lmdb").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_that_is_no_dataset_is_never_touched(overwrite: bool, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(BuildError, match=r"'thesis.tex' and is not a presize dataset"):
        build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, overwrite=overwrite))
    assert os.listdir(tmp_path / "out") == ["thesis.tex"]


def test_the_manifest_of_another_program_is_not_replaced(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text('{"name": "my web page"}')
    with pytest.raises(DatasetError, match="not a presize manifest"):
        build_dataset(photos, tmp_path / "out", SMALL, OVERWRITE)
    assert os.listdir(tmp_path / "out") == ["manifest.json"]


def test_several_sizes_do_not_go_into_a_dataset_of_one(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    with pytest.raises(BuildError, match="choose another OUT"):
        build_dataset(photos, tmp_path / "out", TWO_SIZES, OVERWRITE)


def interrupt_publishing(photos: Path, out: Path, options: BuildOptions, run: RunOptions = REPORTED) -> None:
    """Build until some staged files have their names and others do not."""
    unstage = presize.builder.tasks.staging.unstage
    names: list[str] = []

    def stop(root: Path, file: str, sample: int) -> None:
        if len(names) == 5:
            raise Stopped
        names.append(file)
        unstage(root, file, sample)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(presize.builder.tasks.staging, "unstage", stop)
        build_dataset(photos, out, options, run)


def images_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))


def test_a_staged_file_that_was_lost_costs_its_shard_alone(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "whole", TO_FOLDER, REPORTED)
    interrupt_publishing(photos, tmp_path / "out", TO_FOLDER)
    next((tmp_path / "out").rglob(".0*.tmp")).unlink()
    result = build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    assert 0 < result.files - result.resumed < 6
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_third_build_over_an_interrupted_one_leaves_no_image_of_the_others(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    for image in (photos / "cats").iterdir():
        image.rename(image.with_stem(f"b-{image.stem}"))
    interrupt_publishing(photos, tmp_path / "out", TO_FOLDER, OVERWRITE)
    for image in (photos / "cats").iterdir():
        image.rename(image.with_stem(f"c-{image.stem}"))
    build_dataset(photos, tmp_path / "out", TO_FOLDER, OVERWRITE)
    assert len(images_in(tmp_path / "out")) == 12
    assert verify_dataset(tmp_path / "out") == VerifyResult(12)
    assert len(list((tmp_path / "out").glob("index*.arrow"))) == 1


@pytest.mark.parametrize("first", [SMALL, TWO_SIZES, TO_FOLDER], ids=["lmdb", "two sizes", "folder"])
@pytest.mark.parametrize("second", [SMALL, TWO_SIZES, TO_FOLDER], ids=["to lmdb", "to two sizes", "to folder"])
def test_an_abandoned_build_leaves_nothing_behind(
    first: BuildOptions, second: BuildOptions, photos: Path, tmp_path: Path
) -> None:
    interrupt(photos, tmp_path / "out", replace(first, shard_samples=3))
    build_dataset(photos, tmp_path / "out", second, OVERWRITE)
    build_dataset(photos, tmp_path / "fresh", second, REPORTED)
    assert files(tmp_path / "out") == files(tmp_path / "fresh")
    folders = [sorted(path.name for path in (tmp_path / out).iterdir() if path.is_dir()) for out in ("out", "fresh")]
    assert folders[0] == folders[1]


def test_an_abandoned_folder_build_leaves_nothing_under_an_lmdb_dataset(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    interrupt(photos, tmp_path / "out", TO_FOLDER, OVERWRITE)
    build_dataset(photos, tmp_path / "out", SMALL, OVERWRITE)
    ours = ["index-1.arrow", "manifest.json", "rejects-1.jsonl", "report-1.html", "report.html"]
    assert sorted(os.listdir(tmp_path / "out")) == [*ours, "shards"]


@pytest.mark.parametrize("options", [SMALL, TWO_SIZES], ids=["one size", "two sizes"])
def test_the_page_keeps_its_name(options: BuildOptions, photos: Path, tmp_path: Path) -> None:
    first = build_dataset(photos, tmp_path / "out", options, REPORTED).reports
    before = [path.read_bytes() for path in first]
    (photos / "cats" / "new.png").write_bytes((photos / "cats" / "01.png").read_bytes())
    for generation, how in enumerate((replace(REPORTED, update=True), OVERWRITE), start=1):
        built = build_dataset(photos, tmp_path / "out", options, how)
        assert built.reports == first
        for path in first:
            assert path.read_bytes() == path.with_name(f"report-{generation}.html").read_bytes()
    assert [path.read_bytes() for path in first] != before


def test_a_page_that_is_no_more_goes(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    build_dataset(photos, tmp_path / "out", SMALL, OVERWRITE)
    build_dataset(photos, tmp_path / "out", SMALL, replace(OVERWRITE, report=False))
    assert not list((tmp_path / "out").glob("report*"))


def test_a_class_that_is_no_more_goes_with_its_dataset(photos: Path, tmp_path: Path) -> None:
    (photos / "birds").mkdir()
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    (photos / "birds").rmdir()
    build_dataset(photos, tmp_path / "out", TO_FOLDER, OVERWRITE)
    assert not (tmp_path / "out" / "birds").exists()


def test_overwrite_makes_good_a_damaged_index(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    (tmp_path / "out" / "index.arrow").write_bytes(b"damaged")
    with pytest.warns(PresizeWarning, match="is damaged: the images of the replaced dataset are unknown"):
        build_dataset(photos, tmp_path / "out", TO_FOLDER, OVERWRITE)
    assert verify_dataset(tmp_path / "out") == VerifyResult(12)


def test_a_class_called_shards_can_be_a_folder(photos: Path, tmp_path: Path) -> None:
    (photos / "cats").rename(photos / "shards")
    build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    assert verify_dataset(tmp_path / "out") == VerifyResult(12)


def test_two_builds_of_the_same_at_once_may_both_succeed(photos: Path, tmp_path: Path) -> None:
    def build_first(_: Plan) -> None:
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)

    assert build_dataset(photos, tmp_path / "out", SMALL, REPORTED, on_plan=build_first).resumed == 12


def test_files_of_others_that_end_like_ours_stay(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    (tmp_path / "out" / ".mine.tmp").touch()
    build_dataset(photos, tmp_path / "out", SMALL, OVERWRITE)
    assert (tmp_path / "out" / ".mine.tmp").exists()


def test_a_relative_out_survives_a_change_of_directory(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, size in (("a", 64), ("b", 32)):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        build_dataset(photos, "out", BuildOptions(ImageOptions(sizes=(Size(size, size),))), RunOptions(jobs=2))
    assert verify_dataset(tmp_path / "a" / "out") == VerifyResult(12)
    assert verify_dataset(tmp_path / "b" / "out") == VerifyResult(12)


# What stops a build


@pytest.mark.parametrize("inner", ["cats", "."])
def test_a_source_inside_out_is_refused(inner: str, photos: Path) -> None:
    with pytest.raises(SourceError, match="lies inside"):
        build_dataset(photos / inner, photos, SMALL, OVERWRITE)
    assert len(list(photos.rglob("*.png"))) == 12


def test_a_refused_file_name_leaves_no_unfinished_build(photos: Path, tmp_path: Path) -> None:
    (photos / "cats").rename(photos / "manifest.json")
    with pytest.raises(SourceError):
        build_dataset(photos, tmp_path / "out", TO_FOLDER, REPORTED)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_build_without_a_finished_shard_may_be_replaced(photos: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BuildError):
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))  # type: ignore[attr-defined]
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    smaller = BuildOptions(ImageOptions(sizes=(Size(32, 32),)))
    assert build_dataset(photos, tmp_path / "out", smaller, REPORTED).stored == 12


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "resumed"])
def test_the_error_budget_holds_for_what_was_done_before(finished: bool, photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "01.png").write_bytes(b"broken")
    if finished:
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    else:
        with pytest.raises(Stopped):
            build_dataset(photos, tmp_path / "out", SMALL, REPORTED, on_shard=stop_after(4))
    with pytest.raises(BuildError, match="--max-errors 0"):
        build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, max_errors=ErrorBudget(count=0)))
    with pytest.raises(ImageError, match="1 image was rejected before this run"):
        build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, on_error="fail"))


def test_on_error_fail_minds_links_out_of_the_source(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "link.png").symlink_to("/etc/hostname")
    with pytest.raises(ImageError, match=r"^cats/link.png: a link out of the source"):
        build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, on_error="fail"))


def test_a_huge_file_that_is_no_image_is_not_read(photos: Path, tmp_path: Path) -> None:
    with (photos / "cats" / "movie.mp4").open("wb") as file:
        file.truncate(1 << 40)  # without a block on the disk
    result = build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    assert (result.stored, result.skipped) == (12, 1)


def test_a_huge_file_that_begins_like_an_image_is_rejected(photos: Path, tmp_path: Path) -> None:
    with (photos / "cats" / "huge.png").open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.truncate(1 << 40)
    assert build_dataset(photos, tmp_path / "out", SMALL, REPORTED).rejected == 1


def test_an_out_that_is_not_utf8_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is not UTF-8"):
        build_dataset(photos, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), SMALL, REPORTED)


@pytest.mark.parametrize(
    ("allowed", "publishes"), [("3", True), ("2", False), ("25%", True), ("24%", False), ("0", False)]
)
def test_the_error_budget_decides_whether_it_is_published(
    allowed: str, publishes: bool, photos: Path, tmp_path: Path
) -> None:
    for i in (1, 3, 5):
        (photos / "cats" / f"{i:02d}.png").write_bytes(b"broken")
    run = replace(REPORTED, max_errors=ErrorBudget.parse(allowed))
    if publishes:
        assert build_dataset(photos, tmp_path / "out", SMALL, run).rejected == 3
    else:
        with pytest.raises(BuildError, match=f"--max-errors {allowed}"):
            build_dataset(photos, tmp_path / "out", SMALL, run)
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_larger_budget_goes_on_from_there(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "01.png").write_bytes(b"broken")
    with pytest.raises(BuildError):
        build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, max_errors=ErrorBudget(count=0)))
    assert build_dataset(photos, tmp_path / "out", SMALL, REPORTED).resumed > 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_on_error_fail_stops_at_the_image_and_names_it(jobs: int, photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "01.png").write_bytes(b"broken")
    run = RunOptions(jobs=jobs, on_error="fail")
    with pytest.raises(ImageError, match=r"^cats/01.png: not an image"):
        build_dataset(photos, tmp_path / "out", SMALL, run)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_on_error_fail_does_not_mind_files_that_are_no_images(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "notes.txt").write_text("not named like an image")
    assert build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, on_error="fail")).skipped == 1


def test_a_source_without_one_good_image_publishes_nothing(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"<html>404</html>")
    with pytest.raises(BuildError, match=r"of 1 file in .* none could be stored; the first: a\.jpg: an HTML page"):
        build_dataset(tmp_path / "photos", tmp_path / "out", SMALL, REPORTED)


def test_the_first_reason_of_a_build_that_stored_nothing_is_that_of_a_file_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").symlink_to("/dev/null")
    (tmp_path / "photos" / "b.jpg").write_bytes(b"<html>404</html>")
    with pytest.raises(BuildError, match=r"of 1 file in .* none could be stored; the first: b\.jpg: an HTML page"):
        build_dataset(tmp_path / "photos", tmp_path / "out", SMALL, REPORTED)


@pytest.mark.parametrize("options", [SMALL, TWO_SIZES, TO_FOLDER], ids=["lmdb", "two sizes", "folder"])
def test_a_build_that_stored_nothing_refuses_no_later_one(options: BuildOptions, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"<html>404</html>")
    with pytest.raises(BuildError, match=r"of 1 file in .* none could be stored"):
        build_dataset(tmp_path / "photos", tmp_path / "out", options, REPORTED)
    assert not (tmp_path / "out").exists()
    Image.fromarray(smooth_image(40, 40)).save(tmp_path / "photos" / "b.png")
    other = replace(options, image=replace(options.image, quality=70))
    assert build_dataset(tmp_path / "photos", tmp_path / "out", other, REPORTED).stored == 1


def test_a_file_that_changes_during_the_build_is_not_stored(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(task: Task) -> ShardDone:
        with (photos / "cats" / "01.png").open("ab") as file:
            file.write(b"more")
        return presize.builder.tasks.task.write_shard(task)

    monkeypatch.setattr(presize.builder.executors.executor, "write_shard", change)
    with pytest.warns(PresizeWarning, match=r"1 file could not be read, the first: cats/01\.png: it changed during"):
        assert build_dataset(photos, tmp_path / "out", SMALL, REPORTED).unreadable == 1
    assert "it changed during the build" in (tmp_path / "out" / "rejects.jsonl").read_text()


def test_a_source_that_goes_away_stops_the_build(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmount(task: Task) -> ShardDone:
        if photos.exists():
            photos.rename(tmp_path / "gone")
        return presize.builder.tasks.task.write_shard(task)

    monkeypatch.setattr(presize.builder.executors.executor, "write_shard", unmount)
    with pytest.raises(BuildError, match=r"cannot read .*run again to resume"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)


def test_out_inside_the_source_is_refused(photos: Path) -> None:
    with pytest.raises(SourceError, match="lies inside the source"):
        build_dataset(photos, photos / "out", SMALL, REPORTED)
    assert not (photos / "out").exists()


def test_out_that_is_a_file_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(BuildError, match="is a file"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)


def test_out_below_a_file_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(BuildError, match="cannot write to OUT"):
        build_dataset(photos, tmp_path / "file" / "out", SMALL, REPORTED)


def test_too_little_space_is_told_before_anything_is_written(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BuildError, match=r"has 1 kB free and needs about .* kB"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    assert not list((tmp_path / "out").rglob("*.lmdb"))


def test_a_second_build_of_the_same_out_is_refused(photos: Path, tmp_path: Path) -> None:
    def build_again(_: ShardDone) -> None:
        with pytest.raises(BuildError, match="another build is writing"):
            build_dataset(photos, tmp_path / "out", SMALL, REPORTED)

    build_dataset(photos, tmp_path / "out", SMALL, REPORTED, on_shard=build_again)
    assert verify_dataset(tmp_path / "out") == VerifyResult(12)


def test_a_lock_that_a_killed_build_left_behind_does_not_matter(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".presize.lock").touch()
    assert build_dataset(photos, tmp_path / "out", SMALL, REPORTED).stored == 12


# Formats


@pytest.mark.parametrize(
    ("format", "color"),
    [(f, c) for f in ("jpeg", "png", "webp", "raw") for c in ("rgb", "gray", "keep") if (f, c) != ("webp", "keep")],
)
def test_every_format_and_colour_is_delivered_as_built(format: str, color: str, photos: Path, tmp_path: Path) -> None:
    grey = io.BytesIO()
    Image.fromarray(smooth_image(40, 40)[:, :, 0]).save(grey, "PNG")
    (photos / "cats" / "00.png").write_bytes(grey.getvalue())
    image = ImageOptions(sizes=(Size(24, 24),), format=format, color=color)  # type: ignore[arg-type]
    build_dataset(photos, tmp_path / "out", BuildOptions(image), REPORTED)
    shapes = {i: pixels.shape for i, pixels in Dataset(tmp_path / "out").pixels([0, 1])}
    assert shapes[0] == ((24, 24, 3) if color == "rgb" else (24, 24))
    assert shapes[1] == ((24, 29) if color == "gray" else (24, 29, 3))
    assert verify_dataset(tmp_path / "out").problems == ()


def test_names_with_newlines_and_emoji_are_kept(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "01.png").rename(photos / "cats" / "a\nb 🐈.png")
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    data = Dataset(tmp_path / "out")
    assert "cats/a\nb 🐈.png" in [data.path(i) for i in range(len(data))]


def test_a_name_that_is_not_utf8_is_rejected_and_told(photos: Path, tmp_path: Path) -> None:
    os.rename(photos / "cats" / "01.png", os.fsencode(photos / "cats") + b"/\xff.png")
    result = build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    assert (result.stored, result.rejected) == (11, 1)
    assert json.loads((tmp_path / "out" / "rejects.jsonl").read_text())["path"] == "cats/\\xff.png"


def test_pixels_are_those_of_the_source_resized(photos: Path, tmp_path: Path) -> None:
    options = BuildOptions(ImageOptions(sizes=(Size(24, 24),), format="png"))
    build_dataset(photos, tmp_path / "out", options, REPORTED)
    data = Dataset(tmp_path / "out")
    for i, pixels in data.pixels(range(12)):
        with Image.open(photos / data.path(i)) as image:
            expected = image.resize((pixels.shape[1], 24), Image.Resampling.BICUBIC)
        assert np.abs(pixels.astype(int) - np.asarray(expected)).max() <= 1


def test_pillow_simd_in_pillows_place_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codec_versions()["pillow"] == importlib.metadata.version("pillow")
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    assert codec_versions()["pillow"] == "12.1.1.post0"


def test_a_url_is_no_out(photos: Path) -> None:
    with pytest.raises(BuildError, match=r"^OUT s3://data/64: a URL is for presize.build_to_url; give a folder"):
        build_dataset(photos, "s3://data/64")
