"""Updates: the same samples as a build from scratch, and no more work than what has changed."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import presize.builder.fingerprint
import presize.builder.run
import presize.codecs.transcode
import presize.system.files
from builds import REPORTED, SERIAL, SMALL, files
from effort import examples
from pictures import smooth_image
from presize.builder.like import options_of
from presize.builder.run import build_dataset
from presize.builder.shard_table import ShardDone
from presize.builder.update import Changes, Update, agree, make_update, match
from presize.errors import BuildError, DatasetError, ImageError, OptionError, PresizeWarning
from presize.options import BuildOptions, ColumnType, ErrorBudget, ImageOptions, RunOptions, Size, SourceOptions
from presize.store.dataset import Dataset
from presize.store.dealing import assign_shards, shard_count
from presize.store.manifest import read_manifest
from presize.store.shard_reader import ShardReader
from presize.store.verify import VerifyResult, verify_dataset
from presize.system.files import open_at_once
from tampering import change_manifest, read_table, with_value, write_table

UPDATE = replace(SERIAL, update=True)
OVERWRITE = replace(SERIAL, overwrite=True)
FOURS = replace(SMALL, shard_samples=4)
TWO_SIZES = replace(FOURS, image=ImageOptions(sizes=(Size(64, 64), Size(32, 32))))
CHECKSUM = replace(FOURS, checksum=True)
EPOCH_NS = 1_700_000_000_000_000_000


class Stopped(Exception):
    """Stands for whatever ends an update in the middle."""


def put(path: Path, seed: int) -> None:
    """A picture that `seed` decides, at `path`, with a modification time that the seed decides, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(smooth_image(40 + seed % 7, 50, seed=seed)).save(path)
    os.utime(path, ns=(EPOCH_NS + seed, EPOCH_NS + seed))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """16 images in two classes, and a broken one: they make five shards of four or three files."""
    folder = tmp_path / "photos"
    for i in range(16):
        put(folder / ("cats" if i % 2 else "dogs") / f"{i:02d}.png", seed=i)
    (folder / "cats" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    return folder


def change_much(photos: Path) -> None:
    """Add, change, remove, rename, touch; a new class comes first of all and shifts the labels."""
    put(photos / "ants" / "new.png", seed=90)
    put(photos / "dogs" / "00.png", seed=91)
    (photos / "cats" / "03.png").unlink()
    (photos / "cats" / "05.png").rename(photos / "dogs" / "renamed.png")
    os.utime(photos / "dogs" / "04.png", ns=(EPOCH_NS, EPOCH_NS))
    (photos / "dogs" / "notes.txt").write_text("no image")


def content(out: Path) -> tuple[object, ...]:
    """All that a dataset says and holds, but where its records lie."""
    data = Dataset(out)
    index = pa.Table.from_batches([data.index]).drop_columns(["shard", "row"])
    rejects = (out / data.manifest.rejects.file).read_bytes()
    told = (data.manifest.classes, data.manifest.left_out, data.manifest.digest, data.manifest.identity)
    return index, [data.value(i) for i in range(len(data))], rejects, told


def assert_like_new(photos: Path, out: Path, options: BuildOptions = FOURS, labels: Path | None = None) -> None:
    """`out` holds what a build from scratch holds, and is sound."""
    fresh = out.with_name("fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    build_dataset(photos, fresh, options, SERIAL, samples=SourceOptions(labels=labels))
    sizes = options.image.sizes
    for size in [""] if len(sizes) == 1 else map(str, sizes):
        assert content(out / size) == content(fresh / size)
        assert verify_dataset(out / size).problems == ()
    assert not list(out.rglob(".presize*"))


def shards(out: Path) -> dict[str, tuple[int, int]]:
    """The shards that the manifest names, with the inode and the modification time of each."""
    paths = [out / file.file for file in read_manifest(out).shards]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


@contextmanager
def decoding() -> Iterator[list[int]]:
    """Counts the images that are decoded meanwhile, in this process: the size of each in bytes."""
    decoded: list[int] = []
    presize_image = presize.codecs.transcode.transcode

    def count(data: bytes, options: ImageOptions) -> presize.codecs.transcode.Transcoded:
        decoded.append(len(data))
        return presize_image(data, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presize.codecs.transcode, "transcode", count)
        yield decoded


# What is kept, copied and built: the pure part

SAMPLES = st.dictionaries(
    st.sampled_from([f"{folder}/{name}" for folder in "abc" for name in range(9)]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
)


def sample_table(samples: dict[str, tuple[int, int]]) -> pa.Table:
    return pa.table(
        {
            "path": pa.array(samples, pa.large_string()),
            "source_nbytes": pa.array([nbytes for nbytes, _ in samples.values()], pa.int64()),
            "source_mtime_ns": pa.array([mtime for _, mtime in samples.values()], pa.int64()),
        }
    )


def old_table(samples: dict[str, tuple[int, int]], shards: int, rejected: set[str]) -> tuple[pa.Table, np.ndarray]:
    """`samples` as a build would have stored them: the old table of an update, and the length of each shard."""
    stored = [path for path in samples if path not in rejected]
    left_out = [path for path in samples if path in rejected]
    shard, row = np.full(len(samples), -1), np.full(len(samples), -1)
    dealt = assign_shards(len(stored), shards)
    for number, rows in enumerate(dealt):
        shard[rows], row[rows] = number, np.arange(len(rows))
    row[len(stored) :] = np.arange(len(left_out))
    table = sample_table({path: samples[path] for path in stored + left_out})
    return table.append_column("shard", pa.array(shard)).append_column("row", pa.array(row)), np.array(
        [len(rows) for rows in dealt]
    )


def make(old: pa.Table, lengths: np.ndarray, new: pa.Table, shard_samples: int | None) -> Update:
    matched = match(new, old)
    same = agree("source_nbytes", new, old, matched) & agree("source_mtime_ns", new, old, matched)
    return make_update(old, lengths, matched, same, shard_samples)


@given(
    before=SAMPLES.filter(bool),
    after=SAMPLES.filter(bool),
    rejected=st.sets(st.sampled_from([f"{folder}/{name}" for folder in "abc" for name in range(9)]), max_size=5),
    count=st.integers(1, 7),
    shard_samples=st.none() | st.integers(1, 9),
)
def test_any_change_keeps_copies_or_builds_each_sample_once(
    before: dict[str, tuple[int, int]],
    after: dict[str, tuple[int, int]],
    rejected: set[str],
    count: int,
    shard_samples: int | None,
) -> None:
    old, lengths = old_table(before, count, rejected)
    update = make(old, lengths, sample_table(after), shard_samples)
    new_paths, old_paths = list(after), old.column("path").to_pylist()
    unchanged = {path for path in after if before.get(path) == after[path]}
    stays = [
        number
        for number in range(count)
        if (paths := [path for path, shard in zip(old_paths, old["shard"].to_pylist(), strict=True) if shard == number])
        and unchanged.issuperset(paths)
    ]
    in_new_shards = np.concatenate([np.empty(0, int), *update.shards]).tolist()
    kept = [
        i
        for i, path in enumerate(new_paths)
        if path in unchanged and old["shard"][old_paths.index(path)].as_py() in stays
    ]

    assert update.kept.tolist() == stays, "all of its samples are unchanged, and none other is in it"
    assert [old_paths[row] if row >= 0 else None for row in update.origin] == [
        path if path in unchanged else None for path in new_paths
    ]
    assert sorted([*in_new_shards, *kept, *update.rejected.tolist()]) == list(range(len(after)))
    assert {new_paths[i] for i in update.rejected} == unchanged & rejected
    assert all((np.diff(shard) > 0).all() for shard in update.shards), "in dataset order"
    most = -(-len(after) // shard_count(len(after), shard_samples))
    assert max(map(len, update.shards), default=0) <= most
    assert len(update.shards) == -(-len(in_new_shards) // most)
    stored_before = before.keys() - rejected
    assert update.changes == Changes(
        kept=len(kept),
        copied=len(unchanged - rejected) - len(kept),
        built=len(after.keys() - unchanged),
        removed=len(stored_before - after.keys()),
    )


def test_new_samples_are_spread_over_the_new_shards() -> None:
    before = {f"a/{i:04d}": (1, 1) for i in range(400)}
    old, lengths = old_table(before, 20, set())
    after = {path: facts for i, (path, facts) in enumerate(before.items()) if i % 3} | {
        f"b/{i:03d}": (1, 1) for i in range(100)
    }
    update = make(old, lengths, sample_table(after), None)
    new = [int((update.origin[shard] < 0).sum()) for shard in update.shards]
    assert max(new) - min(new) <= 1


def test_a_new_shard_copies_from_few_old_ones() -> None:
    before = {f"a/{i:04d}": (1, 1) for i in range(400)}
    old, lengths = old_table(before, 20, set())
    after = {path: facts for i, (path, facts) in enumerate(before.items()) if i % 20}
    update = make(old, lengths, sample_table(after), None)
    shard = old["shard"].to_numpy()
    assert max(len(np.unique(shard[update.origin[new]])) for new in update.shards) <= 3


# What an update publishes


@pytest.mark.parametrize("options", [SMALL, FOURS, TWO_SIZES], ids=["shards by number", "shards of 4", "two sizes"])
def test_an_update_equals_a_build_from_scratch(options: BuildOptions, photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", options, SERIAL)
    change_much(photos)
    result = build_dataset(photos, tmp_path / "out", options, UPDATE)
    assert (result.changes.built, result.changes.removed) == (5, 2)
    assert result.changes.kept + result.changes.copied == 12
    assert_like_new(photos, tmp_path / "out", options)


CHANGES: dict[str, Callable[[Path, int], object]] = {
    "add": lambda path, seed: put(path.with_stem(f"{path.stem}-{seed}"), seed),
    "change": lambda path, seed: put(path, seed),
    "remove": lambda path, _: path.unlink(),
    "rename": lambda path, seed: path.rename(path.with_stem(f"{seed}-{path.stem}")),
    "move": lambda path, seed: path.rename(path.parent.parent / "dogs" / f"moved-{seed}.png"),
    "touch": lambda path, seed: os.utime(path, ns=(EPOCH_NS + seed, EPOCH_NS + seed)),
    "break": lambda path, seed: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(seed)),
}


@settings(max_examples=examples(6))
@given(
    rounds=st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 30)), max_size=4), min_size=1, max_size=3
    )
)
def test_any_history_of_updates_equals_a_build_from_scratch(
    rounds: list[list[tuple[str, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("history")
    for i in range(10):
        put(place / "photos" / ("cats" if i % 2 else "dogs") / f"{i}.png", seed=i)
    put(place / "photos" / "owls" / "stays.png", seed=50)
    build_dataset(place / "photos", place / "out", FOURS, SERIAL)
    seed = 100
    for steps in rounds:
        for change, number in steps:
            seed += 1
            paths = [path for path in sorted((place / "photos").rglob("*.png")) if path.stem != "stays"]
            if paths:
                CHANGES[change](paths[number % len(paths)], seed)
        build_dataset(place / "photos", place / "out", FOURS, UPDATE)
    assert_like_new(place / "photos", place / "out")
    shutil.rmtree(place)


def test_a_shard_without_changes_is_not_touched(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    before = shards(tmp_path / "out")
    (photos / "cats" / "03.png").unlink()
    result = build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    after = shards(tmp_path / "out")
    assert len(before.items() & after.items()) == 4
    assert len(after) == 5
    assert result.changes.kept == sum(file.rows for file in read_manifest(tmp_path / "out").shards[:4])
    assert result.changes.copied == read_manifest(tmp_path / "out").shards[4].rows
    assert sorted(path.name for path in (tmp_path / "out" / "shards").iterdir()) == sorted(after)


def test_what_has_not_changed_is_not_decoded(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    put(photos / "cats" / "03.png", seed=77)
    put(photos / "dogs" / "new.png", seed=78)
    with decoding() as decoded:
        build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert sorted(decoded) == sorted((photos / name).stat().st_size for name in ("cats/03.png", "dogs/new.png"))


def test_a_copied_record_is_read_once(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    (photos / "cats" / "03.png").unlink()
    put(photos / "dogs" / "new.png", seed=78)
    opened: list[ShardReader] = []
    open_record = ShardReader.__enter__

    def count(reader: ShardReader) -> object:
        opened.append(reader)
        return open_record(reader)

    monkeypatch.setattr(ShardReader, "__enter__", count)
    copied = build_dataset(photos, tmp_path / "out", FOURS, UPDATE).changes.copied
    assert len(opened) == copied > 0


def test_a_kept_shard_is_not_read(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    kept = {file.file for file in read_manifest(tmp_path / "out").shards}
    put(photos / "dogs" / "new.png", seed=78)
    hashed: list[Path] = []
    file_digest = presize.system.files.file_digest

    def count(path: Path) -> tuple[int, str]:
        hashed.append(path)
        return file_digest(path)

    for module in ("system.files", "store.data_files", "store.verify", "store.shard"):
        monkeypatch.setattr(f"presize.{module}.file_digest", count)
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert hashed
    assert not kept & {path.relative_to(tmp_path / "out").as_posix() for path in hashed}


def test_new_classes_shift_the_labels_and_touch_no_shard(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    before = shards(tmp_path / "out")
    put(photos / "ants" / "new.png", seed=90)
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    data = Dataset(tmp_path / "out")
    assert data.manifest.classes == ("ants", "cats", "dogs")
    assert data.numbers("label").tolist() == [0] + [1] * 8 + [2] * 8
    assert before.items() < shards(tmp_path / "out").items()


def test_a_class_list_is_respected(photos: Path, tmp_path: Path) -> None:
    names = ["dogs", "yaks", "cats"]
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL, samples=SourceOptions(classes=names))
    put(photos / "cats" / "new.png", seed=90)
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE, samples=SourceOptions(classes=names))
    assert Dataset(tmp_path / "out").numbers("label").tolist() == [2] * 9 + [0] * 8
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert_like_new(photos, tmp_path / "out")


def test_a_label_table_may_change_its_columns_and_its_order(photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.jsonl"
    paths = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("??.png"))
    table.write_text("".join(json.dumps({"path": path, "label": path[:4]}) + "\n" for path in paths))
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL, samples=SourceOptions(labels=table))
    before = shards(tmp_path / "out")
    rows = [{"path": path, "label": path[-5:], "score": i / 2} for i, path in enumerate(reversed(paths))]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with decoding() as decoded:
        result = build_dataset(photos, tmp_path / "out", FOURS, UPDATE, samples=SourceOptions(labels=table))
    assert decoded == []
    assert result.changes == Changes(16, 0, 0, 0)
    assert shards(tmp_path / "out") == before
    assert_like_new(photos, tmp_path / "out", labels=table)


def test_splits_are_brought_up_to_date_without_decoding_and_keep_their_samples(photos: Path, tmp_path: Path) -> None:
    options, shares = FOURS, SourceOptions(split="train=0.6,val=0.4")
    build_dataset(photos, tmp_path / "out", options, SERIAL)
    before = shards(tmp_path / "out")
    with decoding() as decoded:
        build_dataset(photos, tmp_path / "out", options, UPDATE, samples=shares)
    assert decoded == [] and shards(tmp_path / "out") == before
    index = Dataset(tmp_path / "out").index
    splits = dict(zip(index["path"].to_pylist(), index["split"].to_pylist(), strict=True))
    change_much(photos)
    build_dataset(photos, tmp_path / "out", options, UPDATE, samples=shares)
    index = Dataset(tmp_path / "out").index
    after = dict(zip(index["path"].to_pylist(), index["split"].to_pylist(), strict=True))
    assert set(splits.values()) == {"train", "val"} and len(after) == 16
    assert all(after[path] == split for path, split in splits.items() if path in after)


def test_any_number_of_jobs_updates_to_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "1", TWO_SIZES, SERIAL)
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    change_much(photos)
    for jobs in (1, 2):
        build_dataset(photos, tmp_path / str(jobs), TWO_SIZES, RunOptions(jobs=jobs, update=True))
    assert files(tmp_path / "1") == files(tmp_path / "2")


def test_where_nothing_is_yet_an_update_builds(photos: Path, tmp_path: Path) -> None:
    result = build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert result.changes == Changes(0, 0, 17, 0)
    build_dataset(photos, tmp_path / "fresh", FOURS, SERIAL)
    assert files(tmp_path / "out") == files(tmp_path / "fresh")


@pytest.mark.parametrize("run", [SERIAL, UPDATE], ids=["build", "update"])
def test_after_an_update_nothing_is_left_to_do(run: RunOptions, photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TWO_SIZES, SERIAL)
    change_much(photos)
    build_dataset(photos, tmp_path / "out", TWO_SIZES, UPDATE)
    before = files(tmp_path / "out")
    result = build_dataset(photos, tmp_path / "out", TWO_SIZES, run)
    assert files(tmp_path / "out") == before
    assert (result.changes, result.resumed) == (Changes(16, 0, 0, 0), result.files)


def test_an_update_can_be_overwritten(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    change_much(photos)
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    build_dataset(photos, tmp_path / "out", FOURS, OVERWRITE)
    assert all(file.file.endswith("-2.lmdb") for file in read_manifest(tmp_path / "out").shards)
    assert len(list((tmp_path / "out" / "shards").iterdir())) == len(read_manifest(tmp_path / "out").shards)
    assert_like_new(photos, tmp_path / "out")


def test_an_open_dataset_goes_on_reading_what_it_opened(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    data = Dataset(tmp_path / "out")
    before = [data.value(i) for i in range(len(data))]
    change_much(photos)
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert [data.value(i) for i in range(len(data))] == before


# Rejected files


def test_what_was_rejected_is_not_tried_again_until_it_changes(photos: Path, tmp_path: Path) -> None:
    (photos / "dogs" / "notes.txt").write_text("no image")
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    rejects = (tmp_path / "out" / "rejects.jsonl").read_bytes()
    put(photos / "dogs" / "new.png", seed=78)
    with decoding() as decoded:
        result = build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert len(decoded) == 1
    assert (result.rejected, result.skipped, result.changes.built) == (1, 1, 1)
    assert (tmp_path / "out" / "rejects-1.jsonl").read_bytes() == rejects
    put(photos / "cats" / "broken.png", seed=79)
    assert build_dataset(photos, tmp_path / "out", FOURS, UPDATE).rejected == 0
    assert_like_new(photos, tmp_path / "out")


def test_an_update_reports_every_file_once_and_those_that_stay_rejected_without_a_shard(
    photos: Path, tmp_path: Path
) -> None:
    (photos / "dogs" / "notes.txt").write_text("no image")
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    put(photos / "dogs" / "new.png", seed=78)
    reported: list[ShardDone] = []
    result = build_dataset(photos, tmp_path / "out", FOURS, UPDATE, on_shard=reported.append)
    assert sum(done.stored + done.rejected + done.skipped for done in reported) == result.files
    assert [done for done in reported if done.number is None] == [ShardDone(None, 0, 1, 1, 0)]


def test_a_file_that_could_not_be_read_is_tried_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("presize.sources.source_reader.open_at_once", fail_for("03.png"))
        with pytest.warns(PresizeWarning, match=r"1 file could not be read, the first: cats/03\.png: cannot be"):
            result = build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
        assert (result.rejected, result.unreadable) == (1, 1)
    assert build_dataset(photos, tmp_path / "out", FOURS, UPDATE).changes == Changes(15, 0, 1, 0)
    assert_like_new(photos, tmp_path / "out")


def fail_for(name: str) -> Callable[..., object]:
    """open_at_once, but for files of that name: root may read whatever a test forbids."""

    def open_others(path: str, flags: int) -> int:
        if path.endswith(name):
            raise PermissionError(13, "Permission denied")
        return open_at_once(path, flags)

    return open_others


def test_the_rejects_of_an_earlier_presize_are_tried_again(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    lines = '{"path": "cats/broken.png", "error": "ImageError", "reason": "old"}\n'
    (tmp_path / "out" / "rejects.jsonl").write_text(lines)
    facts = {"bytes": len(lines), "sha256": hashlib.sha256(lines.encode()).hexdigest()}
    change_manifest(tmp_path / "out", lambda values: values["rejects"].update(facts))
    assert build_dataset(photos, tmp_path / "out", FOURS, UPDATE).changes == Changes(16, 0, 1, 0)
    assert_like_new(photos, tmp_path / "out")


def test_files_that_are_all_rejected_now_leave_no_shard_for_ever(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    (photos / "dogs" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n bad")
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    put(photos / "dogs" / "new.png", seed=78)
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert all(file.rows for file in read_manifest(tmp_path / "out").shards[-2:])
    assert_like_new(photos, tmp_path / "out")


def test_the_error_budget_counts_what_was_rejected_before(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    put(photos / "dogs" / "new.png", seed=78)
    with pytest.raises(BuildError, match="--max-errors 0"):
        build_dataset(photos, tmp_path / "out", FOURS, replace(UPDATE, max_errors=ErrorBudget(count=0)))
    with pytest.raises(ImageError, match="1 image was rejected before this run"):
        build_dataset(photos, tmp_path / "out", FOURS, replace(UPDATE, on_error="fail"))
    assert len(Dataset(tmp_path / "out")) == 16, "the old one"


# Checksums


def test_with_checksums_a_touched_file_is_unchanged(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", CHECKSUM, SERIAL)
    before = shards(tmp_path / "out")
    for path in photos.rglob("??.png"):
        os.utime(path, ns=(EPOCH_NS + 999, EPOCH_NS + 999))
    result = build_dataset(photos, tmp_path / "out", CHECKSUM, UPDATE)
    assert result.changes == Changes(16, 0, 1, 0), "the broken one is tried"
    assert before.items() <= shards(tmp_path / "out").items()
    assert_like_new(photos, tmp_path / "out", CHECKSUM)


def test_with_checksums_new_content_is_seen_under_an_old_time(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", CHECKSUM, SERIAL)
    break_silently(photos / "cats" / "03.png")
    assert build_dataset(photos, tmp_path / "out", CHECKSUM, UPDATE).rejected == 2
    assert_like_new(photos, tmp_path / "out", CHECKSUM)


def break_silently(path: Path) -> None:
    """Change a byte near the end of the pixels, and neither the size nor the modification time."""
    status = path.stat()
    changed = bytearray(path.read_bytes())
    changed[-20] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def test_a_finished_shard_of_other_samples_is_not_taken_for_one_of_these(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", CHECKSUM, SERIAL)
    break_silently(photos / "cats" / "03.png")
    interrupt(photos, tmp_path / "out", CHECKSUM)
    for name in ("dogs/04.png", "dogs/10.png", "cats/13.png"):  # which the unfinished update's identity does not tell
        break_silently(photos / name)
    build_dataset(photos, tmp_path / "out", CHECKSUM, UPDATE)
    assert_like_new(photos, tmp_path / "out", CHECKSUM)


def test_checksums_are_those_of_the_source_files(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", CHECKSUM, SERIAL)
    change_much(photos)
    build_dataset(photos, tmp_path / "out", CHECKSUM, UPDATE)
    data = Dataset(tmp_path / "out")
    crc32 = data.numbers("source_crc32").tolist()
    assert crc32 == [zlib.crc32((photos / data.path(i)).read_bytes()) for i in range(len(data))]


def test_a_dataset_without_checksums_cannot_be_compared_by_them(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    with pytest.raises(BuildError, match=r"checksum was False, is True.*--overwrite"):
        build_dataset(photos, tmp_path / "out", CHECKSUM, UPDATE)


# What stops an update, and how it goes on


def interrupt(photos: Path, out: Path, options: BuildOptions = FOURS) -> None:
    """Update in part: one new shard is finished, another is not."""
    with pytest.raises(Stopped):
        build_dataset(photos, out, options, UPDATE, on_shard=stop_after_new_shards(1, out))


def stop_after_new_shards(count: int, out: Path) -> Callable[[ShardDone], None]:
    def on_shard(_: ShardDone) -> None:
        if len(list(out.glob(".presize-*.npz"))) == count:
            raise Stopped

    return on_shard


@pytest.mark.parametrize("options", [FOURS, TWO_SIZES], ids=["one size", "two sizes"])
@pytest.mark.parametrize("run", [SERIAL, UPDATE], ids=["by build", "by update"])
def test_an_interrupted_update_is_gone_on_with(
    run: RunOptions, options: BuildOptions, photos: Path, tmp_path: Path
) -> None:
    for out in ("out", "whole"):
        build_dataset(photos, tmp_path / out, options, SERIAL)
    roots = [tmp_path / "out"] if options is FOURS else [tmp_path / "out" / "64", tmp_path / "out" / "32"]
    before = [content(root) for root in roots]
    change_much(photos)
    interrupt(photos, tmp_path / "out", options)
    assert [content(root) for root in roots] == before
    assert all(verify_dataset(root).problems == () for root in roots)
    with decoding() as decoded:
        build_dataset(photos, tmp_path / "out", options, run)
    build_dataset(photos, tmp_path / "whole", options, UPDATE)
    assert len(decoded) < 5
    assert files(tmp_path / "out") == files(tmp_path / "whole")


STEPS = ["write_index", "publish_manifest", "rename", "_remove_unpublished"]


@pytest.mark.parametrize("step", ["publish.write_index", "output_dir.rename"])
def test_an_interrupted_update_may_be_followed_by_another(step: str, photos: Path, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise Stopped

    build_dataset(photos, tmp_path / "out", TWO_SIZES, SERIAL)
    change_much(photos)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(f"presize.builder.{step}", stop)
        build_dataset(photos, tmp_path / "out", TWO_SIZES, UPDATE)
    put(photos / "cats" / "later.png", seed=95)
    (photos / "dogs" / "02.png").unlink()
    build_dataset(photos, tmp_path / "out", TWO_SIZES, UPDATE)
    assert_like_new(photos, tmp_path / "out", TWO_SIZES)


@pytest.mark.parametrize("changes", [True, False], ids=["the source changed again", "it did not"])
def test_an_interrupted_update_can_be_overwritten(changes: bool, photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    change_much(photos)
    interrupt(photos, tmp_path / "out")
    if changes:
        put(photos / "cats" / "later.png", seed=95)
    with decoding() as decoded:
        build_dataset(photos, tmp_path / "out", FOURS, OVERWRITE)
    assert len(decoded) > 15, "all of them"
    assert_like_new(photos, tmp_path / "out")


@pytest.mark.parametrize("interrupted", [True, False], ids=["an unfinished update", "a dataset"])
def test_a_build_with_a_changed_source_says_that_it_can_be_updated(
    interrupted: bool, photos: Path, tmp_path: Path
) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    change_much(photos)
    if interrupted:
        interrupt(photos, tmp_path / "out")
        put(photos / "cats" / "later.png", seed=95)
    with pytest.raises(BuildError, match="--update brings it up to date, --overwrite replaces it"):
        build_dataset(photos, tmp_path / "out", FOURS, SERIAL)


@pytest.mark.parametrize("changed", [True, False], ids=["the source changed", "it did not"])
def test_other_options_are_refused_with_what_differs(changed: bool, photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    if changed:
        change_much(photos)
    before = files(tmp_path / "out")
    other = BuildOptions(ImageOptions(sizes=(Size(64, 64),), quality=80), shard_samples=4)
    with pytest.raises(BuildError) as refused:
        build_dataset(photos, tmp_path / "out", other, UPDATE)
    assert "(quality was 90, is 80), which --update cannot change; leave them out" in str(refused.value)
    assert files(tmp_path / "out") == before


def upgrade(patch: pytest.MonkeyPatch, **libraries: str) -> None:
    """Other versions of some libraries."""
    versions = presize.builder.fingerprint.codec_versions() | libraries
    patch.setattr(presize.builder.fingerprint, "codec_versions", lambda: versions)


def test_an_upgrade_that_makes_the_same_bytes_stops_no_update(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    upgrade(monkeypatch, simplejpeg="99")
    assert build_dataset(photos, tmp_path / "out", FOURS, SERIAL).resumed == 17, "there is nothing to do"
    change_much(photos)
    build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert read_manifest(tmp_path / "out").versions["simplejpeg"] == "99"
    assert_like_new(photos, tmp_path / "out")


def test_other_codecs_are_refused_by_name(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    change_much(photos)
    upgrade(monkeypatch, simplejpeg="99")
    monkeypatch.setattr(presize.builder.fingerprint, "codecs_digest", lambda _: "of other pixels")
    with pytest.raises(
        BuildError, match=r"made with simplejpeg [\d.]+, here is simplejpeg 99, which makes other bytes.*--overwrite"
    ):
        build_dataset(photos, tmp_path / "out", FOURS, UPDATE)


def test_a_dataset_of_format_1_can_be_updated(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    shutil.copytree(tests / "fixtures" / "format-1", tmp_path / "out")
    runpy.run_path(str(tests.parent / "tools" / "make_fixture.py"))["make_source"](tmp_path / "source")
    image = ImageOptions(sizes=(Size(24, 24),), quality=50, subsampling="444")
    options = BuildOptions(image, shard_samples=4)
    build_dataset(tmp_path / "source", tmp_path / "new", options, SERIAL)
    codecs = read_manifest(tmp_path / "new").identity["codecs"]  # of the libraries that are here
    change_manifest(tmp_path / "out", lambda values: values["identity"].update(codecs=codecs))
    assert build_dataset(tmp_path / "source", tmp_path / "out", options, SERIAL).resumed == 7, "there is nothing to do"
    put(tmp_path / "source" / "bee" / "new.png", seed=3)
    with pytest.raises(BuildError, match=r"the source has changed.*; --update brings it up to date"):
        build_dataset(tmp_path / "source", tmp_path / "out", options, SERIAL)
    build_dataset(tmp_path / "source", tmp_path / "out", options, UPDATE)
    data = Dataset(tmp_path / "out")
    assert [data.path(i) for i in range(len(data))] == [
        "ant/10.png", "ant/9.png", "ant/sub/0.png", "bee/1.png", "bee/new.png", "cow/été.png", "cow/ü/2.png",
    ]  # fmt: skip
    assert verify_dataset(tmp_path / "out", jobs=1) == VerifyResult(7)


@pytest.mark.parametrize("run", [SERIAL, UPDATE], ids=["by build", "by update"])
def test_an_interrupted_update_whose_base_has_gone_begins_from_nothing(
    run: RunOptions, photos: Path, tmp_path: Path
) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    change_much(photos)
    interrupt(photos, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    if run is SERIAL:
        with pytest.raises(
            BuildError, match=r"an unfinished build that differs \(not all sizes.*; choose another OUT, or --overwrite"
        ):
            build_dataset(photos, tmp_path / "out", FOURS, run)
        run = OVERWRITE
    build_dataset(photos, tmp_path / "out", FOURS, run)
    assert_like_new(photos, tmp_path / "out")


def test_an_unfinished_first_build_of_another_source_is_no_base(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        build_dataset(photos, tmp_path / "out", FOURS, SERIAL, on_shard=stop_after_new_shards(1, tmp_path / "out"))
    change_much(photos)
    with pytest.raises(BuildError, match=r"an unfinished build that differs \(the source has changed.*--overwrite"):
        build_dataset(photos, tmp_path / "out", FOURS, UPDATE)


def test_a_folder_cannot_be_updated(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^update: the files of a folder"):
        build_dataset(photos, tmp_path / "out", replace(SMALL, layout="folder"), UPDATE)


def test_update_and_overwrite_exclude_each_other() -> None:
    with pytest.raises(OptionError, match=r"^update: .* --overwrite .*; choose one"):
        RunOptions(update=True, overwrite=True)


def test_a_damaged_record_is_made_again(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, SERIAL)
    data = Dataset(tmp_path / "out")
    first = read_manifest(tmp_path / "out").shards[0].file
    victim, neighbour = [i for i in range(len(data)) if data.numbers("shard")[i] == 0][:2]
    shard = (tmp_path / "out" / first).read_bytes()
    value = data.value(victim)
    assert shard.count(value) == 1
    (photos / data.path(neighbour)).unlink()
    (tmp_path / "out" / first).write_bytes(shard.replace(value, bytes(len(value))))
    result = build_dataset(photos, tmp_path / "out", SMALL, UPDATE)
    assert verify_dataset(tmp_path / "out") == VerifyResult(result.stored)


@pytest.mark.parametrize("damage", ["cut", "gone", "no shard"])
def test_a_shard_that_is_no_more_is_made_again(damage: str, photos: Path, tmp_path: Path) -> None:
    """What is changed in a kept shard is for verify to find: it is not read."""
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    path = tmp_path / "out" / "shards" / "00001.lmdb"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "cut" else bytes(len(content)))
        put(photos / "dogs" / "new.png", seed=78)
        (photos / Dataset(tmp_path / "out").path(0)).unlink()
        for sample in np.flatnonzero(Dataset(tmp_path / "out").numbers("shard") == 1)[:1].tolist():
            (photos / Dataset(tmp_path / "out").path(sample)).unlink(missing_ok=True)
    result = build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert verify_dataset(tmp_path / "out") == VerifyResult(result.stored)


def test_a_dataset_without_its_report_can_be_updated(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, REPORTED)
    (tmp_path / "out" / "report.html").unlink()
    put(photos / "dogs" / "new.png", seed=78)
    result = build_dataset(photos, tmp_path / "out", FOURS, replace(REPORTED, update=True))
    assert result.changes.built == 1 and verify_dataset(tmp_path / "out") == VerifyResult(result.stored)


def name_a_row_twice(out: Path) -> None:
    table = read_table(out)
    shard = table.column("shard").to_pylist()
    first, other = (i for i, number in enumerate(shard) if number == 0 and table["row"][i].as_py() < 2)
    write_table(out, with_value(table, "row", other, table["row"][first].as_py()))


HOW: dict[str, Callable[[str, Path], object]] = {
    "changed": lambda file, out: (out / file).write_bytes((out / file).read_bytes()[::-1]),
    "cut": lambda file, out: os.truncate(out / file, (out / file).stat().st_size - 1),
    "gone": lambda file, out: (out / file).unlink(),
}
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a row twice": (name_a_row_twice, "does not list each row of its shards once"),
    "a folder": (
        lambda out: change_manifest(out, lambda values: values.update(layout="folder")),
        "is a folder of image files, without shards",
    ),
    "another engine": (
        lambda out: change_manifest(out, lambda values: values.update(engine="1.0")),
        "has no shards that this presize reads",
    ),
}
DAMAGES |= {
    f"{file} {how}": (partial(change, file), "--overwrite builds it anew")
    for file in ("index.arrow", "rejects.jsonl")
    for how, change in HOW.items()
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_dataset_is_no_base(
    damage: Callable[[Path], object], message: str, photos: Path, tmp_path: Path
) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    put(photos / "dogs" / "new.png", seed=78)
    damage(tmp_path / "out")
    with pytest.raises(DatasetError, match=message):
        build_dataset(photos, tmp_path / "out", FOURS, UPDATE)


def test_sizes_that_were_built_apart_are_no_base(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TWO_SIZES, SERIAL)
    shutil.copytree(tmp_path / "out" / "32", tmp_path / "old")
    change_much(photos)
    build_dataset(photos, tmp_path / "out", TWO_SIZES, UPDATE)
    shutil.rmtree(tmp_path / "out" / "32")
    (tmp_path / "old").rename(tmp_path / "out" / "32")
    with pytest.raises(DatasetError, match="are from different builds"):
        build_dataset(photos, tmp_path / "out", TWO_SIZES, UPDATE)


def test_too_little_space_is_told_and_the_old_dataset_stays(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dataset(photos, tmp_path / "out", FOURS, SERIAL)
    change_much(photos)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BuildError, match=r"has 1 kB free and needs about .* kB"):
        build_dataset(photos, tmp_path / "out", FOURS, UPDATE)
    assert verify_dataset(tmp_path / "out") == VerifyResult(16)


def test_an_update_without_the_types_of_columns_that_the_dataset_was_built_with_is_refused(
    raw: Path, tmp_path: Path
) -> None:
    paths = sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*.jpg"))[:12]
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"{path},{n}\n" for n, path in enumerate(paths)))
    samples = SourceOptions(labels=tmp_path / "t.csv")
    typed = replace(SMALL, column_types=(ColumnType("label", "class"),))
    build_dataset(raw, tmp_path / "out", typed, SERIAL, samples)
    classes = Dataset(tmp_path / "out").manifest.classes
    assert classes is not None and classes[-2:] == ("10", "11")
    update = replace(SERIAL, update=True)
    with pytest.raises(BuildError, match="column_types was label:class, is the default"):
        build_dataset(raw, tmp_path / "out", SMALL, update, samples)
    assert build_dataset(raw, tmp_path / "out", typed, update, samples).changes.built == 0
    assert options_of(tmp_path / "out").options == typed
