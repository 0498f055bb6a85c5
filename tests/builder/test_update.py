"""Updates: the same samples as a build from scratch, and only the work for the changes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import runpy
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import presize.builder.fingerprint
import presize.codecs.transcode
import presize.system.files
from builds import (
    BROKEN_PNG,
    EPOCH_NS,
    OVERWRITE,
    REPORTED,
    SERIAL,
    SMALL,
    UPDATE,
    Builder,
    Stopped,
    put,
    stop,
    write_photos,
)
from effort import examples
from foreign import tar_bytes, tar_samples
from presize.builder.derive import derive_dataset
from presize.builder.like import options_of
from presize.builder.reuse import Changes, Update, agree, make_update, match
from presize.builder.run import build_part
from presize.builder.shard_table import ShardDone
from presize.errors import BuildError, DatasetError, ImageError, OptionError
from presize.options import (
    BuildOptions,
    BuildPart,
    ColumnType,
    ErrorBudget,
    ImageOptions,
    RunOptions,
    Size,
    SourceOptions,
)
from presize.store.dataset import Dataset
from presize.store.dealing import assign_shards, shard_count
from presize.store.shard_reader import ShardReader
from presize.store.verify import VerifyResult, verify_dataset
from tampering import change_manifest, change_offset, read_table, with_value, write_table

pytestmark = pytest.mark.filterwarnings("ignore:--update renumbers")
"""Most changes below add a class that sorts first; the warning has tests of its own."""

FOURS = replace(SMALL, shard_samples=4)
TWO_SIZES = replace(FOURS, image=ImageOptions(sizes=(Size(64, 64), Size(32, 32))))
CHECKSUM = replace(FOURS, checksum=True)


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    """Return builds of 16 images in two classes, and a broken one, in five shards of three or four files."""
    photos = write_photos(tmp_path / "photos", 16)
    (photos / "cats" / "broken.png").write_bytes(BROKEN_PNG)
    return Builder(photos, FOURS)


def change_much(photos: Path) -> None:
    """Add, change, remove, rename and touch files; a new class sorts first and shifts the labels."""
    put(photos / "ants" / "new.png", seed=90)
    put(photos / "dogs" / "00.png", seed=91)
    (photos / "cats" / "03.png").unlink()
    (photos / "cats" / "05.png").rename(photos / "dogs" / "renamed.png")
    os.utime(photos / "dogs" / "04.png", ns=(EPOCH_NS, EPOCH_NS))
    (photos / "dogs" / "notes.txt").write_text("no image")


def content(out: Path) -> tuple[object, ...]:
    """Return everything that a dataset contains, except the offsets of its records."""
    data = Dataset(out)
    index = pa.Table.from_batches([data.index]).drop_columns(["shard", "row"])
    rejects = (out / data.manifest.rejects.file).read_bytes()
    told = (data.manifest.classes, data.manifest.left_out, data.manifest.digest, data.manifest.identity)
    return index, [data.value(i) for i in range(len(data))], rejects, told


def assert_like_new(build: Builder) -> None:
    """Assert that OUT equals a build from scratch and verifies."""
    shutil.rmtree(build.out.with_name("fresh"), ignore_errors=True)
    build("fresh")
    sizes = build.options.image.sizes
    for size in [""] if len(sizes) == 1 else map(str, sizes):
        assert content(build.out / size) == content(build.out.with_name("fresh") / size)
        assert verify_dataset(build.out / size).problems == ()
    assert not list(build.out.rglob(".presize*"))


def shards(build: Builder) -> dict[str, tuple[int, int]]:
    """Return the shards of the manifest, with their inodes and modification times."""
    paths = [build.out / file.file for file in build.manifest().shards]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


@contextmanager
def decoding() -> Iterator[list[int]]:
    """Yield the sizes in bytes of images that are decoded in this process."""
    decoded: list[int] = []
    presize_image = presize.codecs.transcode.transcode

    def count(data: bytes, options: ImageOptions) -> presize.codecs.transcode.Transcoded:
        decoded.append(len(data))
        return presize_image(data, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presize.codecs.transcode, "transcode", count)
        yield decoded


# Kept, copied and built samples: the pure part

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
    """Return the old table of an update, with `samples` as a build would have stored them, and the length of each
    shard."""
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

    assert update.kept.tolist() == stays, "it contains exactly its unchanged samples"
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


def test_new_samples_are_spread_over_the_new_shards_which_copy_from_few_old_ones() -> None:
    before = {f"a/{i:04d}": (1, 1) for i in range(400)}
    old, lengths = old_table(before, 20, set())
    left = {path: facts for i, (path, facts) in enumerate(before.items()) if i % 20}
    update = make(old, lengths, sample_table(left | {f"b/{i:03d}": (1, 1) for i in range(100)}), None)
    new = [int((update.origin[shard] < 0).sum()) for shard in update.shards]
    assert max(new) - min(new) <= 1 < sum(new) == 100
    copied = (update.origin[shard][update.origin[shard] >= 0] for shard in update.shards)
    assert max(len(np.unique(old["shard"].to_numpy()[rows])) for rows in copied) <= 3


# Published files


@pytest.mark.parametrize("options", [SMALL, TWO_SIZES, CHECKSUM], ids=["shards by number", "two sizes", "checksums"])
def test_an_update_equals_a_build_from_scratch(options: BuildOptions, build: Builder) -> None:
    build.options = options
    build()
    change_much(build.source)
    result = build(run=UPDATE)
    touched = options.checksum  # the content is the same; rejects have no checksum, and are tried again
    assert (result.changes.built, result.changes.removed) == (5, 2)
    assert result.changes.kept + result.changes.copied == 12 + touched
    assert_like_new(build)
    if options.checksum:
        data = build.data()
        source = [(build.source / data.path(i)).read_bytes() for i in range(len(data))]
        assert data.numbers("source_crc32").tolist() == list(map(zlib.crc32, source))
    before = build.files()
    for run in [SERIAL] if options.checksum else [SERIAL, UPDATE]:
        result = build(run=run)
        assert build.files() == before, "nothing remains to be done"
        assert result.changes.kept == result.stored


CHANGES: dict[str, Callable[[Path, int], object]] = {
    "add": lambda path, seed: put(path.with_stem(f"{path.stem}-{seed}"), seed),
    "change": lambda path, seed: put(path, seed),
    "remove": lambda path, _: path.unlink(),
    "rename": lambda path, seed: path.rename(path.with_stem(f"{seed}-{path.stem}")),
    "move": lambda path, seed: path.rename(path.parent.parent / "dogs" / f"moved-{seed}.png"),
    "touch": lambda path, seed: os.utime(path, ns=(EPOCH_NS + seed, EPOCH_NS + seed)),
    "break": lambda path, seed: path.write_bytes(BROKEN_PNG + bytes(seed)),
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
    build, seed = Builder(write_photos(place / "photos", 10), FOURS), 100
    put(build.source / "owls" / "stays.png", seed=50)
    build()
    for steps in rounds:
        for change, number in steps:
            seed += 1
            paths = [path for path in sorted(build.source.rglob("*.png")) if path.stem != "stays"]
            if paths:
                CHANGES[change](paths[number % len(paths)], seed)
        build(run=UPDATE)
    assert_like_new(build)
    shutil.rmtree(place)


def test_a_shard_without_changes_is_not_touched(build: Builder) -> None:
    build()
    before = shards(build)
    (build.source / "cats" / "03.png").unlink()
    changes = build(run=UPDATE).changes
    after, rows = shards(build), [file.rows for file in build.manifest().shards]
    assert (len(before.items() & after.items()), len(after)) == (4, 5)
    assert (changes.kept, changes.copied) == (sum(rows[:4]), rows[4])
    assert sorted(path.name for path in (build.out / "shards").iterdir()) == sorted(after)


def test_only_changed_images_are_decoded_and_read(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    kept = {build.out / file.file for file in build.manifest().shards}
    put(build.source / "cats" / "03.png", seed=77)
    put(build.source / "dogs" / "new.png", seed=78)
    opened: list[ShardReader] = []
    hashed: list[Path] = []
    open_record, file_digest = ShardReader.__enter__, presize.system.files.file_digest
    monkeypatch.setattr(ShardReader, "__enter__", lambda reader: (opened.append(reader), open_record(reader))[1])
    for module in ("system.files", "store.data_files", "store.verify", "store.shard"):
        monkeypatch.setattr(f"presize.{module}.file_digest", lambda path: (hashed.append(path), file_digest(path))[1])
    with decoding() as decoded:
        changes = build(run=UPDATE).changes
    assert sorted(decoded) == sorted((build.source / name).stat().st_size for name in ("cats/03.png", "dogs/new.png"))
    assert len(opened) == changes.copied > 0, "a copied record is read once"
    assert hashed and not kept & set(hashed)


def test_new_classes_shift_the_labels_without_rewriting_shards(build: Builder) -> None:
    build()
    before = shards(build)
    put(build.source / "ants" / "new.png", seed=90)
    build(run=UPDATE)
    assert build.manifest().classes == ("ants", "cats", "dogs")
    assert build.data().numbers("label").tolist() == [0] + [1] * 8 + [2] * 8
    assert before.items() < shards(build).items()
    build.samples = SourceOptions(classes=["dogs", "ants", "cats"])
    build(run=UPDATE)
    assert build.data().numbers("label").tolist() == [1] + [2] * 8 + [0] * 8
    assert_like_new(build)


def test_a_label_table_may_change_its_columns_and_its_order(build: Builder, tmp_path: Path) -> None:
    paths = sorted(path.relative_to(build.source).as_posix() for path in build.source.rglob("??.png"))
    build.samples = SourceOptions(labels=tmp_path / "labels.jsonl")

    def write(rows: list[dict[str, object]]) -> None:
        (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write([{"path": path, "label": path[:4]} for path in paths])
    build()
    before = shards(build)
    write([{"path": path, "label": path[-5:], "score": i / 2} for i, path in enumerate(reversed(paths))])
    with decoding() as decoded:
        result = build(run=UPDATE)
    assert (decoded, result.changes) == ([], Changes(16, 0, 0, 0))
    assert shards(build) == before
    assert_like_new(build)


def test_splits_are_updated_without_decoding_and_keep_their_samples(build: Builder) -> None:
    def splits() -> dict[str, str]:
        index = build.data().index
        return dict(zip(index["path"].to_pylist(), index["split"].to_pylist(), strict=True))

    build()
    before = shards(build)
    build.samples = SourceOptions(split="train=0.6,val=0.4")
    with decoding() as decoded:
        build(run=UPDATE)
    assert decoded == [] and shards(build) == before
    drawn = splits()
    change_much(build.source)
    build(run=UPDATE)
    assert set(drawn.values()) == {"train", "val"} and len(splits()) == 16
    assert drawn.items() & splits().items() == {(path, drawn[path]) for path in drawn.keys() & splits().keys()}


def test_an_update_can_be_overwritten_while_readers_continue_with_their_open_files(build: Builder) -> None:
    build()
    data = build.data()
    before = [data.value(i) for i in range(len(data))]
    change_much(build.source)
    build(run=UPDATE)
    assert [data.value(i) for i in range(len(data))] == before
    build(run=OVERWRITE)
    assert all(file.file.endswith("-2.lmdb") for file in build.manifest().shards)
    assert len(list((build.out / "shards").iterdir())) == len(build.manifest().shards)
    assert_like_new(build)


# Rejected files


def test_rejects_are_reported_once_and_not_tried_again_until_they_change(build: Builder) -> None:
    (build.source / "dogs" / "notes.txt").write_text("no image")
    build()
    rejects = (build.out / "rejects.jsonl").read_bytes()
    put(build.source / "dogs" / "new.png", seed=78)
    reported: list[ShardDone] = []
    with decoding() as decoded:
        result = build(run=UPDATE, on_shard=reported.append)
    assert len(decoded) == 1
    assert (result.rejected, result.skipped, result.changes.built) == (1, 1, 1)
    assert (build.out / "rejects-1.jsonl").read_bytes() == rejects
    assert sum(done.stored + done.rejected + done.skipped for done in reported) == result.files
    without_shard = [done for done in reported if done.number is None]
    assert without_shard == [ShardDone(None, 0, 1, 1, 0, earlier=True)]
    put(build.source / "cats" / "broken.png", seed=79)
    assert build(run=UPDATE).rejected == 0
    assert_like_new(build)


def test_files_that_are_only_listed_as_left_out_are_updated(build: Builder) -> None:
    build()
    link = build.source / "cats" / "link.png"
    changes = {
        "a reject of the listing": lambda: link.symlink_to(__file__),
        "a hidden file": (build.source / ".hidden").touch,
        "a file outside the classes": (build.source / "notes.txt").touch,
        "a reject that is gone": link.unlink,
    }
    for change, make in changes.items():
        make()
        before = shards(build)
        build(run=UPDATE)
        assert_like_new(build)
        assert shards(build) == before, change
        generation = build.manifest().generation
        build(run=UPDATE)
        assert build.manifest().generation == generation, f"{change}: nothing remains to be done"


def test_rejects_without_the_state_of_their_files_are_tried_again(build: Builder) -> None:
    build()
    lines = '{"path": "cats/broken.png", "error": "ImageError", "reason": "old"}\n'
    (build.out / "rejects.jsonl").write_text(lines)
    facts = {"bytes": len(lines), "sha256": hashlib.sha256(lines.encode()).hexdigest()}
    change_manifest(build.out, lambda values: values["rejects"].update(facts))
    assert build(run=UPDATE).changes == Changes(16, 0, 1, 0)
    assert_like_new(build)


def test_shards_whose_files_are_all_rejected_are_removed_for_good(build: Builder) -> None:
    build()
    (build.source / "dogs" / "bad.png").write_bytes(BROKEN_PNG)
    build(run=UPDATE)
    put(build.source / "dogs" / "new.png", seed=78)
    build(run=UPDATE)
    assert all(file.rows for file in build.manifest().shards[-2:])
    assert_like_new(build)


def test_the_error_budget_counts_earlier_rejects(build: Builder) -> None:
    build()
    put(build.source / "dogs" / "new.png", seed=78)
    with pytest.raises(BuildError, match="--max-errors 0"):
        build(run=replace(UPDATE, max_errors=ErrorBudget(count=0)))
    with pytest.raises(ImageError, match="1 image was rejected or unreadable before this run"):
        build(run=replace(UPDATE, on_error="fail"))
    assert len(build.data()) == 16, "the old one"


# Checksums


def break_silently(path: Path) -> None:
    """Change a byte near the end of the pixels, but not the size or the modification time."""
    status = path.stat()
    changed = bytearray(path.read_bytes())
    changed[-20] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def test_with_checksums_new_content_is_detected_under_an_old_time(build: Builder) -> None:
    build.options = CHECKSUM
    build()
    break_silently(build.source / "cats" / "03.png")
    build.stopped(1, run=UPDATE)
    for name in ("dogs/04.png", "dogs/10.png", "cats/13.png"):  # changes not shown by the unfinished identity
        break_silently(build.source / name)
    assert build(run=UPDATE).rejected == 5
    assert_like_new(build)


# Interrupted updates


@pytest.mark.parametrize("options", [FOURS, TWO_SIZES], ids=["one size", "two sizes"])
@pytest.mark.parametrize("run", [SERIAL, RunOptions(jobs=2, update=True, report=False)], ids=["build", "update"])
def test_an_interrupted_update_is_resumed(run: RunOptions, options: BuildOptions, build: Builder) -> None:
    build.options = options
    for out in ("out", "whole"):
        build(out)
    roots = [build.out] if options is FOURS else [build.out / "64", build.out / "32"]
    before = [content(root) for root in roots]
    change_much(build.source)
    build.stopped(1, run=UPDATE)
    assert [content(root) for root in roots] == before
    assert all(verify_dataset(root).problems == () for root in roots)
    with decoding() as decoded:
        build(run=run)
    build("whole", run=UPDATE)
    assert len(decoded) < 5
    assert build.files() == build.files("whole")


@pytest.mark.parametrize("step", ["publish.write_index", "output_dir.rename"])
def test_an_interrupted_update_may_be_followed_by_another(step: str, build: Builder) -> None:
    build.options = TWO_SIZES
    build()
    change_much(build.source)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(f"presize.builder.{step}", stop)
        build(run=UPDATE)
    put(build.source / "cats" / "later.png", seed=95)
    (build.source / "dogs" / "02.png").unlink()
    build(run=UPDATE)
    assert_like_new(build)


BY_OVERWRITE, BY_EITHER = "choose another OUT, or use --overwrite", "use --update to bring it up to date, or --over"


def lose_the_base(build: Builder) -> None:
    (build.out / "manifest.json").unlink()


ENDS: dict[str, tuple[Callable[[Builder], object], RunOptions, str]] = {
    "changed again": (lambda build: put(build.source / "cats" / "later.png", seed=95), OVERWRITE, BY_EITHER),
    "as it was": (lambda _: None, OVERWRITE, ""),
    "its base has gone": (lose_the_base, OVERWRITE, BY_OVERWRITE),
    "its base has gone, an update": (lose_the_base, UPDATE, ""),
}


@pytest.mark.parametrize("then", ENDS)
def test_an_interrupted_update_can_be_restarted_from_scratch(then: str, build: Builder) -> None:
    change, run, refusal = ENDS[then]
    build()
    change_much(build.source)
    build.stopped(1, run=UPDATE)
    change(build)
    if refusal:
        with pytest.raises(BuildError, match=rf"an unfinished build that differs \(.*; {refusal}"):
            build()
    with decoding() as decoded:
        build(run=run)
    assert len(decoded) > 15, "all of them"
    assert_like_new(build)


QUALITY = replace(FOURS, image=replace(FOURS.image, quality=80))
REFUSED: dict[str, tuple[BuildOptions, RunOptions, bool, str]] = {
    "a changed source": (FOURS, SERIAL, True, BY_EITHER),
    "other options": (QUALITY, UPDATE, True, r"\(quality was 90, is 80\), which --update cannot change; leave out"),
    "no checksums": (CHECKSUM, UPDATE, False, "checksum was False, is True.*--overwrite"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_unsupported_changes_are_refused_with_the_differences(why: str, build: Builder) -> None:
    options, run, changed, message = REFUSED[why]
    build()
    if changed:
        change_much(build.source)
    before = build.files()
    with pytest.raises(BuildError, match=message):
        build(options=options, run=run)
    assert build.files() == before


def test_an_update_refuses_folders_and_does_not_overwrite(build: Builder) -> None:
    with pytest.raises(OptionError, match=r"^update: the files of a folder"):
        build(options=replace(SMALL, layout="folder"), run=UPDATE)
    with pytest.raises(OptionError, match=r"^update: .* --overwrite, .*; choose one"):
        RunOptions(update=True, overwrite=True)


def upgrade(patch: pytest.MonkeyPatch, **libraries: str) -> None:
    """Pretend other versions of some libraries."""
    versions = presize.builder.fingerprint.codec_versions() | libraries
    patch.setattr(presize.builder.fingerprint, "codec_versions", lambda: versions)


def test_an_upgrade_stops_an_update_if_it_changes_bytes(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    upgrade(monkeypatch, simplejpeg="99")
    assert build().resumed == 17, "there is nothing to do"
    change_much(build.source)
    with monkeypatch.context() as patch:
        patch.setattr(presize.builder.fingerprint, "codecs_digest", lambda _: "of other pixels")
        said = r"build used simplejpeg [\d.]+, this machine has simplejpeg 99, which gives different bytes.*--overwrite"
        with pytest.raises(BuildError, match=said):
            build(run=UPDATE)
    build(run=UPDATE)
    assert build.manifest().versions["simplejpeg"] == "99"
    assert_like_new(build)


def test_a_file_that_needs_a_plug_in_may_be_added_and_removed(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    version_of = importlib.metadata.version

    def install(heif: str) -> None:
        versions = {"pillow-heif": heif}
        monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or version_of(name))

    install("1.0")
    build()
    (phone := build.source / "cats" / "phone.heic").write_bytes(BROKEN_PNG)
    with pytest.raises(BuildError, match=r"\(the source has changed \(17 files then, 18 now\)\); use --update"):
        build()
    assert build(run=UPDATE).changes == Changes(16, 0, 1, 0)
    assert build.manifest().versions["pillow-heif"] == "1.0"
    assert_like_new(build)
    install("2.0")
    with pytest.raises(BuildError, match=r"used pillow-heif 1\.0, this machine has pillow-heif 2\.0, which gives diff"):
        build(run=UPDATE)
    phone.unlink()
    assert build(run=UPDATE).changes.built == 0
    assert "pillow-heif" not in build.manifest().versions
    assert_like_new(build)


def test_a_dataset_of_format_1_can_be_updated(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    shutil.copytree(tests / "fixtures" / "format-1", tmp_path / "out")
    runpy.run_path(str(tests.parent / "tools" / "make_fixture.py"))["make_source"](tmp_path / "source")
    image = ImageOptions(sizes=(Size(24, 24),), quality=50, subsampling="444")
    build = Builder(tmp_path / "source", BuildOptions(image, shard_samples=4))
    build("new")
    codecs = build.manifest("new").identity["codecs"]  # of the installed libraries

    change_manifest(build.out, lambda values: values["identity"].update(codecs=codecs))
    assert build().resumed == 7, "there is nothing to do"
    put(build.source / "bee" / "new.png", seed=3)
    with pytest.raises(BuildError, match=r"the source has changed.*; use --update to bring it up to date"):
        build()
    build(run=UPDATE)
    data = build.data()
    assert [data.path(i) for i in range(len(data))] == [
        "ant/10.png", "ant/9.png", "ant/sub/0.png", "bee/1.png", "bee/new.png", "cow/été.png", "cow/ü/2.png",
    ]  # fmt: skip
    assert verify_dataset(build.out, jobs=1) == VerifyResult(7)


def test_a_damaged_record_is_rebuilt(build: Builder) -> None:
    build.options = SMALL
    build()
    data = build.data()
    path = build.out / build.manifest().shards[0].file
    victim, neighbour = np.flatnonzero(data.numbers("shard") == 0)[:2].tolist()
    shard, value = path.read_bytes(), data.value(victim)
    assert shard.count(value) == 1
    (build.source / data.path(neighbour)).unlink()
    path.write_bytes(shard.replace(value, bytes(len(value))))
    result = build(run=UPDATE)
    assert verify_dataset(build.out) == VerifyResult(result.stored)


# Damage


@pytest.mark.parametrize("damage", ["cut", "no shard"])
def test_a_missing_shard_is_rebuilt(damage: str, build: Builder) -> None:
    """Changes inside a kept shard are left to verify: updates do not read it."""
    build()
    path = build.out / "shards" / "00001.lmdb"
    content = path.read_bytes()
    path.write_bytes(content[:-1] if damage == "cut" else bytes(len(content)))
    put(build.source / "dogs" / "new.png", seed=78)
    data = build.data()
    for sample in {0, int(np.flatnonzero(data.numbers("shard") == 1)[0])}:
        (build.source / data.path(sample)).unlink()
    result = build(run=UPDATE)
    assert verify_dataset(build.out) == VerifyResult(result.stored)


def test_a_dataset_without_its_report_can_be_updated(build: Builder) -> None:
    build(run=REPORTED)
    (build.out / "report.html").unlink()
    put(build.source / "dogs" / "new.png", seed=78)
    result = build(run=replace(REPORTED, update=True))
    assert result.changes.built == 1 and verify_dataset(build.out) == VerifyResult(result.stored)


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
        "has no shards that this version of presize reads",
    ),
}
DAMAGES |= {
    f"{file} {how}": (partial(change, file), "build or derive OUT again with --overwrite .*; in a copy from a")
    for file in ("index.arrow", "rejects.jsonl")
    for how, change in HOW.items()
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_dataset_cannot_be_updated(damage: Callable[[Path], object], message: str, build: Builder) -> None:
    build()
    put(build.source / "dogs" / "new.png", seed=78)
    damage(build.out)
    with pytest.raises(DatasetError, match=message):
        build(run=UPDATE)


def test_separately_built_sizes_cannot_be_updated_together(build: Builder) -> None:
    build.options = TWO_SIZES
    build()
    shutil.copytree(build.out / "32", build.out.with_name("old"))
    change_much(build.source)
    build(run=UPDATE)
    shutil.rmtree(build.out / "32")
    build.out.with_name("old").rename(build.out / "32")
    with pytest.raises(DatasetError, match="are from different builds"):
        build(run=UPDATE)


def test_an_update_without_the_recorded_column_types_is_refused(build: Builder) -> None:
    paths = sorted(path.relative_to(build.source).as_posix() for path in build.source.rglob("??.png"))[:12]
    table = build.out.with_name("t.csv")
    table.write_text("path,label\n" + "".join(f"{path},{n}\n" for n, path in enumerate(paths)))
    build.samples = SourceOptions(labels=table)
    typed = replace(SMALL, column_types=(ColumnType("label", "class"),))
    build(options=typed)
    classes = build.manifest().classes
    assert classes is not None and classes[-2:] == ("10", "11")
    with pytest.raises(BuildError, match="column_types was label:class, is the default"):
        build(options=SMALL, run=UPDATE)
    assert build(options=typed, run=UPDATE).changes.built == 0
    assert options_of(build.out).options == typed


# Options of the source that are not given again

TABLED = "path,label,caption\ndogs/00.png,pug,one\ncats/01.png,tabby,two\ndogs/02.png,pug,three\n"


def first_with(build: Builder, **options: Any) -> None:
    """Build with these options of the source."""
    if options.get("labels") == "table.csv":
        options["labels"] = build.source.parent / "table.csv"
        options["labels"].write_text(TABLED)
    build(samples=SourceOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "then", "error"),
    [
        (
            {"labels": "table.csv"},
            {},
            r"the samples of a label table, and --update would replace them with all images; give --labels as for its",
        ),
        (
            {"labels": "none"},
            {},
            r"no labels, and --update would add the names of folders; give --labels none as for its",
        ),
        ({"split": "train=0.5,val=0.5"}, {}, r"columns that --update would remove \(split\); give --labels or --spl"),
        ({}, {"labels": "none"}, r"columns that --update would remove \(label\); give --labels, --split, --keys and"),
        (
            {"classes": ["dogs", "cats"]},
            {},
            r"a class list that --update would change; give --classes as for its first",
        ),
        ({"classes": ["ants", "cats", "dogs"]}, {}, r"a class list that --update would change; give --classes as"),
    ],
    ids=["table", "no labels", "shares", "labels", "order of classes", "class without images"],
)
def test_an_update_without_an_option_of_the_source_is_refused_and_changes_nothing(
    first: dict[str, object], then: dict[str, object], error: str, build: Builder
) -> None:
    first_with(build, **first)
    before = build.files()
    put(build.source / "cats" / "new.png", seed=90)
    for run in (UPDATE, replace(UPDATE, verify=True)):
        with pytest.raises(BuildError, match=rf"OUT {build.out} has {error}.*, or use --overwrite to replace it$"):
            build(run=run, samples=SourceOptions(**then))  # type: ignore[arg-type]
    assert build.files() == before


@pytest.mark.parametrize("labels", ["text", "numbers"])
def test_labels_of_a_table_are_not_replaced_by_the_names_of_folders(labels: str, build: Builder) -> None:
    names = {"text": ("cats", "dogs"), "numbers": ("7", "9")}[labels]
    table = build.source.parent / "labels.csv"
    table.write_text(f"path,label\ndogs/00.png,{names[0]}\ncats/01.png,{names[1]}\ndogs/02.png,{names[1]}\n")
    build(samples=SourceOptions(labels=table))
    before = build.files()
    with pytest.raises(BuildError, match=r"has the samples of a label table, .*; give --labels as for its first"):
        build(run=UPDATE)
    assert build.files() == before
    table.write_text(table.read_text().replace(f"02.png,{names[1]}", f"02.png,{names[0]}"))
    build(run=UPDATE, samples=SourceOptions(labels=table))
    assert len(set(build.data().numbers("label")[[0, 2]].tolist())) == 1, "another table may change labels"


def test_a_list_of_classes_may_grow_and_lose_classes_whose_images_are_gone(build: Builder) -> None:
    build()
    put(build.source / "bees" / "new.png", seed=90)
    assert build(run=UPDATE).classes == 3
    shutil.rmtree(build.source / "bees")
    assert build(run=UPDATE).classes == 2


def test_renumbered_classes_give_a_warning_unless_a_class_list_keeps_their_numbers(build: Builder) -> None:
    build()
    put(build.source / "ants" / "new.png", seed=90)
    put(build.source / "eels" / "new.png", seed=91)
    with pytest.warns(match=r"^--update renumbers 2 classes, such as cats from 0 to 1; .* --classes a list"):
        build(run=UPDATE)
    shutil.rmtree(build.source / "ants")
    with pytest.warns(match=r"^--update renumbers 3 classes, such as cats from 1 to 0; "):
        build(run=UPDATE)
    put(build.source / "bees" / "new.png", seed=92)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(run=UPDATE, samples=SourceOptions(classes=["cats", "dogs", "eels", "bees"]))


def test_images_that_change_their_split_give_a_warning(build: Builder) -> None:
    shares = SourceOptions(split="train=0.5,val=0.5", split_seed=3)
    build(samples=shares)
    with pytest.warns(
        match=r"--update moves [0-9]+ images, such as .*, to another split; .*--split-seed of the first build"
    ):
        build(run=UPDATE, samples=replace(shares, split_seed=0))
    put(build.source / "cats" / "new.png", seed=90)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(run=UPDATE, samples=replace(shares, split_seed=0))


def test_columns_that_a_table_no_longer_has_are_removed_with_a_warning(build: Builder) -> None:
    table = build.source.parent / "table.csv"
    table.write_text(TABLED)
    build(samples=SourceOptions(labels=table))
    table.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in TABLED.splitlines()))
    with pytest.warns(match=r"^--update removes columns that the source no longer has: caption$"):
        build(run=UPDATE, samples=SourceOptions(labels=table))
    assert "caption" not in build.data().index.schema.names


def test_lists_of_a_table_are_not_replaced_by_single_values(build: Builder) -> None:
    table = build.source.parent / "table.csv"
    table.write_text(TABLED + "dogs/02.png,pug,four\n")
    merged = SourceOptions(labels=table, repeated="list")
    build(samples=merged)
    table.write_text(TABLED)
    with pytest.raises(
        BuildError, match=r"has lists in columns .* \(label, caption\); give --repeated list as for its first"
    ):
        build(run=UPDATE, samples=replace(merged, repeated="refuse"))
    build(run=UPDATE, samples=merged)


def test_damaged_texts_of_splits_are_an_error(build: Builder) -> None:
    shares = SourceOptions(split="train=0.5,val=0.5")
    build(samples=shares)
    change_offset(build.out, "split", 1, 1 << 44)
    with pytest.raises(DatasetError, match=r"^column 'split' of .* is damaged: "):
        build(run=UPDATE, samples=shares)


def test_splits_that_are_lists_are_not_compared(build: Builder) -> None:
    table = build.source.parent / "table.jsonl"
    table.write_text(
        '{"path": "dogs/00.png", "split": ["a", "b"], "tags": ["x"]}\n'
        '{"path": "cats/01.png", "split": ["a"], "tags": []}\n'
    )
    build(samples=SourceOptions(labels=table))
    table.write_text('{"path": "dogs/00.png", "split": ["b"]}\n{"path": "cats/01.png", "split": ["a"]}\n')
    with pytest.warns(match=r"^--update removes columns that the source no longer has: tags$"):
        assert build(run=UPDATE, samples=SourceOptions(labels=table)).changes.kept == 2


def test_the_class_of_rejected_images_may_disappear(build: Builder) -> None:
    bad = build.source / "bad" / "x.png"
    bad.parent.mkdir()
    bad.write_bytes(BROKEN_PNG)
    assert build().classes == 3
    shutil.rmtree(bad.parent)
    assert build(run=UPDATE).classes == 2


def test_a_class_list_that_is_given_again_may_have_another_order(build: Builder) -> None:
    build(samples=SourceOptions(classes=["dogs", "cats"]))
    build(run=UPDATE, samples=SourceOptions(classes=["cats", "dogs"]))
    assert build.manifest().classes == ("cats", "dogs")


def test_a_table_of_splits_is_not_replaced_by_the_names_of_folders(build: Builder) -> None:
    table = build.source.parent / "table.csv"
    table.write_text("path,label,split\ndogs/00.png,pug,train\ncats/01.png,tabby,val\n")
    build(samples=SourceOptions(labels=table))
    with pytest.raises(BuildError, match=r"has the samples of a label table, .*; give --labels as for its first build"):
        build(run=UPDATE)


@pytest.mark.parametrize("parts", [False, True])
def test_a_list_of_some_images_does_not_become_all_images(parts: bool, build: Builder) -> None:
    some = build.source.parent / "some.txt"
    some.write_text("dogs/00.png\ncats/01.png\n")
    listed = SourceOptions(labels=some)
    if parts:
        build_part(build.source, build.out, BuildPart(1, 1), build.options, SERIAL, listed)
    build(samples=listed)
    with pytest.raises(
        BuildError, match=r"has the samples of a label table, .* all images; give --labels as for its first"
    ):
        build(run=UPDATE)
    derive_dataset([build.out], build.out.with_name("copy"))
    with pytest.raises(BuildError, match="has the samples of a label table"):
        build("copy", run=UPDATE)
    some.write_text("dogs/00.png\ncats/01.png\ndogs/02.png\n")
    assert build(run=UPDATE, samples=listed).changes == Changes(2, 0, 1, 0)


def test_the_class_list_of_numbers_in_a_tar_is_not_removed(tmp_path: Path) -> None:
    source = tmp_path / "tars"
    source.mkdir()
    (source / "a.tar").write_bytes(tar_bytes(tar_samples(6)))
    build = Builder(source, FOURS, SourceOptions(classes=["a", "b", "c"]))
    build()
    with pytest.raises(
        BuildError, match=r"has a class list that --update would remove; give --classes as for its first"
    ):
        build(run=UPDATE, samples=SourceOptions())
    assert build(run=UPDATE).changes.kept == 6
