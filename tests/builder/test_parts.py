"""Builds by parts: each builds its own shards, and only the plain command publishes; test_same_bytes compares bytes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import presize.builder.run
from builds import BROKEN_PNG, OVERWRITE, SERIAL, SMALL, UPDATE, Builder, Stopped, put, stop, write_photos
from commands import Ran
from presize.builder.output_dir import LISTING
from presize.builder.parts import SharedListing, parts_text, read_listing, write_listing
from presize.builder.run import PartResult, build_part
from presize.builder.shard_table import ShardDone
from presize.errors import BuildError, ImageError, OptionError
from presize.options import BuildPart, ErrorBudget, ImageOptions, RunOptions, Size, SourceOptions
from presize.sources.scan import scan
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects
from presize.store.verify import VerifyResult, verify_dataset

FIVES = replace(SMALL, shard_samples=5)


@pytest.fixture
def build(build: Builder) -> Builder:
    """Return builds of 12 images in three shards."""
    build.options = FIVES
    return build


def part(build: Builder, number: int, of: int, run: RunOptions = SERIAL, **calls: Any) -> PartResult:
    return build_part(build.source, build.out, BuildPart(number, of), build.options, run, build.samples, **calls)


def parts(build: Builder, of: int) -> list[PartResult]:
    return [part(build, number + 1, of) for number in range(of)]


# Work of a part


def test_the_source_is_listed_once_and_an_update_adds_later_files(
    build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    part(build, 1, 2)
    put(build.source / "cats" / "99.png", seed=99)
    with monkeypatch.context() as patch:
        patch.setattr(presize.builder.run, "scan", None)
        part(build, 2, 2)
        assert build().stored == 12
    assert verify_dataset(build.out) == VerifyResult(12)
    assert build(run=UPDATE).stored == 13


def test_a_part_builds_its_own_shards_and_publishes_nothing(build: Builder) -> None:
    own, others = (build.out / "shards" / f".0000{i}.lmdb.{'a' * 32}.tmp" for i in (1, 2))
    built = part(build, 2, 3)
    assert [path.name for path in (build.out / "shards").iterdir()] == ["00001.lmdb"]
    assert not (build.out / "manifest.json").exists()
    assert (built.shards, built.stored, built.unfinished) == (1, 4, (1, 3))
    (build.out / "shards" / "00001.lmdb").unlink()
    own.touch()
    others.touch()
    assert part(build, 2, 3).stored == 4
    assert (own.exists(), others.exists()) == (False, True), "temporary files of other parts stay"


def test_there_may_be_more_parts_than_shards_and_rejects_of_all_are_listed(build: Builder) -> None:
    for i in (0, 5, 9):
        next(build.source.glob(f"*/{i:02d}.png")).write_bytes(BROKEN_PNG)
    built = parts(build, 7)
    assert [done.shards for done in built] == [1, 1, 1, 0, 0, 0, 0]
    assert sum(done.rejected for done in built) == build().rejected == 3


@pytest.mark.parametrize("by_part", [False, True], ids=["a plain build", "a part"])
def test_a_part_finishes_the_shards_of_an_earlier_run(by_part: bool, build: Builder) -> None:
    with pytest.raises(Stopped):
        part(build, 1, 2, on_shard=stop) if by_part else build(on_shard=stop)
    assert part(build, 1, 2 if by_part else 1).resumed == 4


def test_a_part_has_nothing_to_do_for_a_published_dataset(build: Builder) -> None:
    build()
    before = build.files()
    found = part(build, 1, 2)
    assert found.published and found.images_per_s == 0
    assert build.files() == before


# Refusals


@pytest.mark.parametrize(
    ("made", "gone", "message"),
    [
        ([2], None, "lacks parts 1 and 3 of 3 (2 shards); run with --part 1/3"),
        ([1, 2, 3], "00001.lmdb", "lacks part 2 of 3 (1 shard); run with --part 2/3, then run this command again"),
    ],
    ids=["two were not run", "a shard has gone"],
)
def test_publishing_names_the_unfinished_parts(made: list[int], gone: str | None, message: str, build: Builder) -> None:
    for number in made:
        part(build, number, 3)
    if gone:
        (build.out / "shards" / gone).unlink()
    with pytest.raises(BuildError, match=re.escape(message)):
        build()


Options = dict[str, object]
REFUSED: list[tuple[Options, str]] = [
    ({"options": replace(FIVES, image=ImageOptions(sizes=(Size(64, 64),), quality=80))}, "quality was 90, is 80"),
    (
        {"options": replace(FIVES, shard_samples=6)},
        "with different options.*shard_samples was 5, is 6.*give all of them the",
    ),
    ({"source": "other"}, r"a different SRC .*photos', not '.*other'"),
    ({"samples": SourceOptions(labels="none")}, r"a different --labels \(None, not 'none'\)"),
    ({"part": BuildPart(1, 3)}, "is being built in 2 parts, not 3"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[name for changed, _ in REFUSED for name in changed])
def test_a_part_that_disagrees_with_the_others_is_refused(
    changed: Options, message: str, build: Builder, tmp_path: Path
) -> None:
    write_photos(tmp_path / "other")
    part(build, 1, 2)
    before = build.files()
    asked: dict[str, Any] = {"source": "photos", "part": BuildPart(2, 2), "options": FIVES} | changed
    source = tmp_path / asked.pop("source")
    with pytest.raises(BuildError, match=message):
        build_part(source, build.out, run=SERIAL, **asked)
    if "samples" in asked:
        with pytest.raises(BuildError, match=message):
            build(samples=asked["samples"])
    assert build.files() == before


def test_the_same_part_and_a_plain_build_are_refused_while_a_part_runs(build: Builder) -> None:
    stored = []

    def others(_: ShardDone) -> None:
        with pytest.raises(BuildError, match=r"part 1/2 .* is running already"):
            part(build, 1, 2)
        with pytest.raises(BuildError, match="parts of a build are writing"):
            build()
        stored.append(part(build, 2, 2).stored)

    part(build, 1, 2, on_shard=others)
    assert stored == [4, 4]


@pytest.mark.slow
def test_a_part_is_refused_while_a_plain_build_runs(build: Builder) -> None:
    refused = list[BuildError]()

    def begin_a_part(_: ShardDone) -> None:
        if not refused:
            with pytest.raises(BuildError, match="another build is writing") as caught:
                part(build, 1, 2)
            refused.append(caught.value)

    build(on_shard=begin_a_part)
    assert refused and verify_dataset(build.out) == VerifyResult(12)


def test_parts_wait_while_the_first_one_lists_the_source(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned, scan = [], presize.builder.run.scan

    def slow_scan(*arguments: Any) -> object:
        scanned.append(arguments)
        time.sleep(0.3)
        return scan(*arguments)

    monkeypatch.setattr(presize.builder.run, "scan", slow_scan)
    with ThreadPoolExecutor(3) as pool:
        assert sum(done.stored for done in pool.map(lambda number: part(build, number, 3), (1, 2, 3))) == 12
    assert len(scanned) == 1


@pytest.mark.parametrize("run", [UPDATE, OVERWRITE], ids=["update", "overwrite"])
def test_a_part_neither_updates_nor_overwrites(run: RunOptions, build: Builder) -> None:
    with pytest.raises(OptionError, match=f"cannot be combined with --{'update' if run.update else 'overwrite'}"):
        part(build, 1, 2, run)


def test_another_dataset_is_not_replaced_by_parts(build: Builder) -> None:
    build(options=replace(FIVES, shard_samples=6))
    before = build.files()
    with pytest.raises(BuildError, match="holds a dataset that differs"):
        part(build, 1, 2)
    assert build.files() == before


def test_overwriting_discards_the_work_of_parts(build: Builder) -> None:
    part(build, 1, 2)
    build(options=replace(FIVES, shard_samples=6), run=OVERWRITE)
    assert list(build.out.glob(".*")) == []
    assert len(build.data()) == 12


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (replace(SERIAL, on_error="fail"), ImageError, r"01\.png"),
        (replace(SERIAL, max_errors=ErrorBudget(0)), BuildError, "--max-errors 0"),
    ],
    ids=["the first", "the budget"],
)
def test_a_part_stops_for_rejects(run: RunOptions, error: type[Exception], message: str, build: Builder) -> None:
    (build.source / "cats" / "01.png").write_bytes(BROKEN_PNG)
    with pytest.raises(error, match=message):
        part(build, 1, 1, run)


# The listing


def test_a_listing_holds_rejects(build: Builder, tmp_path: Path) -> None:
    rejects = [Reject('é\n"], [🐈', "SourceError", "[, "), Reject("b", "ImageError", "empty", 1, -(2**63))]
    for some in (rejects, []):
        source = replace(scan(build.source), rejects=Rejects.of(some))
        write_listing(tmp_path, SharedListing(source, {}, 2))
        read = read_listing(tmp_path)
        assert read is not None and list(read.source.rejects) == some


def test_a_damaged_listing_is_a_one_line_error(build: Builder) -> None:
    part(build, 1, 2)
    (build.out / LISTING).write_bytes(b"ARROW1\0\0 and no more")
    with pytest.raises(BuildError, match=r"listing\.arrow is damaged; remove it, and run the parts again"):
        part(build, 2, 2)
    (build.out / LISTING).unlink()
    assert part(build, 2, 2).stored == 4


def test_a_listing_left_by_publishing_is_not_a_build_by_parts(build: Builder, tmp_path: Path) -> None:
    parts(build, 2)
    listing = (build.out / LISTING).read_bytes()
    build()
    (build.out / LISTING).write_bytes(listing)  # as after a kill before its removal
    put(build.source / "cats" / "new.png", seed=99)
    with pytest.raises(BuildError, match=r"the source has changed \(12 files then, 13 now\)"):
        build()
    (build.source / "cats" / "new.png").unlink()
    build.source = build.source.rename(tmp_path / "moved")
    assert build().stored == 12


# The command


def test_the_command_names_missing_parts_and_the_publishing_command(
    presize: Callable[..., Ran], build: Builder
) -> None:
    command = ["build", build.source, build.out, "--size", "64", "--shard-samples", "5", "--backend", "sequential"]
    assert "unfinished parts: 2\n" in presize(*command, "--part", "1/2").out
    assert "run again without --part to publish" in presize(*command, "--part", "2/2").out
    found = json.loads(presize(*command, "--part", "2/2", "--json").out)
    assert (found["part"], found["parts"], found["stored"], found["unfinished"]) == (2, 2, 4, [])
    assert "12 images" in presize(*command).out
    assert "already published" in presize(*command, "--part", "1/2").out
    dry = presize(*command, "--part", "1/2", "--dry-run")
    assert (dry.code, "leave out --part or --dry-run" in dry.err) == (2, True)


@pytest.mark.parametrize("text", ["5/4", "0/4", "4", "1/0", "a/b", "1/1000000", "-1/3"])
def test_an_invalid_part_is_a_one_line_error(text: str) -> None:
    assert str(BuildPart.parse(" 3/8 ")) == "3/8"
    with pytest.raises(OptionError, match=f"part: expected I/N, part I of N, from 1/N to N/N, got '{text}'"):
        BuildPart.parse(text)
    with pytest.raises(OptionError, match="part: expected"):
        BuildPart(3, 2)


@pytest.mark.parametrize(
    ("parts", "text"), [([3], "3"), ([2, 1], "1 and 2"), ([1, 2, 4], "1, 2 and 4"), (range(1, 21), "8 more")]
)
def test_parts_are_listed_as_ranges(parts: list[int], text: str) -> None:
    assert parts_text(parts).endswith(text)
