"""Builds by parts: each makes its own shards, together they are the dataset, and only the plain command publishes."""

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
from PIL import Image

import presize.builder.run
from builds import REPORTED, SERIAL, SMALL, files
from commands import Ran
from foreign import tar_samples, write_tar
from paired import make_pairs
from pictures import smooth_image
from presize.builder.output_dir import LISTING
from presize.builder.parts import PartResult, build_part
from presize.builder.parts_listing import SharedListing, parts_text, read_listing, write_listing
from presize.builder.run import build_dataset
from presize.builder.shard_table import ShardDone
from presize.errors import BuildError, ImageError, OptionError
from presize.options import (
    BuildOptions,
    BuildPart,
    Companion,
    ErrorBudget,
    ImageOptions,
    Size,
    SourceOptions,
)
from presize.sources.scan import scan
from presize.store.dataset import Dataset
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects
from presize.store.verify import VerifyResult, verify_dataset

FIVES = replace(SMALL, shard_samples=5)
"""12 images in three shards."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def write_photos(folder: Path, count: int = 12) -> Path:
    for i in range(count):
        path = folder / ("cats" if i % 2 else "dogs") / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(40 + i, 50, seed=i)).save(path)
    return folder


def write_tars(folder: Path) -> Path:
    folder.mkdir()
    write_tar(folder / "0.tar", tar_samples(7))
    write_tar(folder / "1.tar", tar_samples(6, first=7))
    return folder


def build_parts(
    source: Path, out: Path, parts: int, options: BuildOptions = FIVES, samples: SourceOptions = SourceOptions()
) -> list[PartResult]:
    return [build_part(source, out, BuildPart(i + 1, parts), options, SERIAL, samples) for i in range(parts)]


# The bytes


SOURCES: dict[str, tuple[Callable[[Path], Path], BuildOptions, SourceOptions]] = {
    "class folders": (write_photos, FIVES, SourceOptions()),
    "no labels": (write_photos, FIVES, SourceOptions(labels="none")),
    "splits": (write_photos, FIVES, SourceOptions(split="train=0.7,val=0.3", split_seed=3)),
    "two sizes": (
        write_photos,
        BuildOptions(ImageOptions(sizes=(Size(64, 64), Size(32, 32))), shard_samples=5),
        SourceOptions(),
    ),
    "a folder": (write_photos, replace(FIVES, layout="folder"), SourceOptions()),
    "tars": (write_tars, FIVES, SourceOptions()),
    "masks": (
        make_pairs,
        replace(FIVES, companions=(Companion("mask", "masks/{stem}.png"),)),
        SourceOptions(labels="none"),
    ),
}


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("kind", SOURCES)
def test_parts_make_the_bytes_of_one_build(kind: str, parts: int, tmp_path: Path) -> None:
    write, options, samples = SOURCES[kind]
    source = write(tmp_path / "source")
    run = REPORTED if kind == "class folders" else SERIAL
    build_dataset(source, tmp_path / "whole", options, run, samples)
    build_parts(source, tmp_path / "out", parts, options, samples)
    build_dataset(source, tmp_path / "out", options, run, samples)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_parts_that_run_at_the_same_time_make_the_bytes_of_one_build(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "whole", FIVES, SERIAL)
    with ThreadPoolExecutor(4) as pool:
        built = list(
            pool.map(lambda i: build_part(photos, tmp_path / "out", BuildPart(i, 4), FIVES, SERIAL), range(1, 5))
        )
    build_dataset(photos, tmp_path / "out", FIVES, SERIAL)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert sum(part.stored for part in built) == 12


def test_the_source_is_listed_once(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)
    Image.fromarray(smooth_image(40, 50)).save(photos / "cats" / "99.png")
    monkeypatch.setattr(presize.builder.run, "scan", None)
    build_part(photos, tmp_path / "out", BuildPart(2, 2), FIVES, SERIAL)
    assert build_dataset(photos, tmp_path / "out", FIVES, SERIAL).stored == 12
    assert verify_dataset(tmp_path / "out") == VerifyResult(12)


def test_an_update_takes_what_was_added_while_parts_were_running(photos: Path, tmp_path: Path) -> None:
    build_part(photos, tmp_path / "out", BuildPart(1, 1), FIVES, SERIAL)
    Image.fromarray(smooth_image(40, 50)).save(photos / "cats" / "99.png")
    build_dataset(photos, tmp_path / "out", FIVES, SERIAL)
    assert build_dataset(photos, tmp_path / "out", FIVES, replace(SERIAL, update=True)).stored == 13


# What a part does


def test_a_part_makes_its_own_shards_and_publishes_nothing(photos: Path, tmp_path: Path) -> None:
    built = build_part(photos, tmp_path / "out", BuildPart(2, 3), FIVES, SERIAL)
    assert [path.name for path in (tmp_path / "out" / "shards").iterdir()] == ["00001.lmdb"]
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert (built.shards, built.stored, built.unfinished) == (1, 4, (1, 3))


def test_there_may_be_more_parts_than_shards(photos: Path, tmp_path: Path) -> None:
    built = build_parts(photos, tmp_path / "out", 7)
    assert [part.shards for part in built] == [1, 1, 1, 0, 0, 0, 0]
    assert build_dataset(photos, tmp_path / "out", FIVES, SERIAL).stored == 12


@pytest.mark.parametrize("parts", [0, 2], ids=["a plain build", "a part"])
def test_a_part_finishes_what_an_earlier_run_began(parts: int, photos: Path, tmp_path: Path) -> None:
    def stop(_: ShardDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        if parts:
            build_part(photos, tmp_path / "out", BuildPart(1, parts), FIVES, SERIAL, on_shard=stop)
        else:
            build_dataset(photos, tmp_path / "out", FIVES, SERIAL, on_shard=stop)
    assert build_part(photos, tmp_path / "out", BuildPart(1, parts or 1), FIVES, SERIAL).resumed == 4


def test_temporary_files_of_other_parts_stay(photos: Path, tmp_path: Path) -> None:
    build_part(photos, tmp_path / "out", BuildPart(1, 3), FIVES, SERIAL)
    own, others = (tmp_path / "out" / "shards" / f".0000{i}.lmdb.{'a' * 32}.tmp" for i in (1, 2))
    own.touch()
    others.touch()
    build_part(photos, tmp_path / "out", BuildPart(2, 3), FIVES, SERIAL)
    assert (own.exists(), others.exists()) == (False, True)


def test_a_published_dataset_is_nothing_to_do_for_a_part(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", FIVES, SERIAL)
    before = files(tmp_path / "out")
    assert build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL).published
    assert files(tmp_path / "out") == before


def test_rejects_of_all_parts_are_listed(photos: Path, tmp_path: Path) -> None:
    for i in (0, 5, 9):
        next(photos.glob(f"*/{i:02d}.png")).write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    built = build_parts(photos, tmp_path / "out", 3)
    assert sum(part.rejected for part in built) == 3
    assert build_dataset(photos, tmp_path / "out", FIVES, SERIAL).rejected == 3


# What is refused


def test_publishing_names_the_parts_that_are_not_finished(photos: Path, tmp_path: Path) -> None:
    build_part(photos, tmp_path / "out", BuildPart(2, 3), FIVES, SERIAL)
    with pytest.raises(BuildError, match=re.escape("lacks parts 1 and 3 of 3, 2 shards; run with --part 1/3")):
        build_dataset(photos, tmp_path / "out", FIVES, SERIAL)


def test_a_shard_that_has_gone_is_of_a_part_that_is_not_finished(photos: Path, tmp_path: Path) -> None:
    build_parts(photos, tmp_path / "out", 3)
    (tmp_path / "out" / "shards" / "00001.lmdb").unlink()
    with pytest.raises(BuildError, match="lacks part 2 of 3, 1 shard; run with --part 2/3, then this again"):
        build_dataset(photos, tmp_path / "out", FIVES, SERIAL)


Options = dict[str, object]
REFUSED: list[tuple[Options, str]] = [
    ({"options": replace(FIVES, image=ImageOptions(sizes=(Size(64, 64),), quality=80))}, "quality was 90, is 80"),
    ({"options": replace(FIVES, shard_samples=6)}, "begun otherwise.*shard_samples was 5, is 6.*give all of them the"),
    ({"source": "other"}, r"another SRC .*photos', here '.*other'"),
    ({"samples": SourceOptions(labels="none")}, r"another --labels \(None, here 'none'\)"),
    ({"part": BuildPart(1, 3)}, "is being built in 2 parts, not 3"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[name for changed, _ in REFUSED for name in changed])
def test_a_part_that_the_others_do_not_agree_with_is_refused(
    changed: Options, message: str, photos: Path, tmp_path: Path
) -> None:
    write_photos(tmp_path / "other")
    build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)
    before = files(tmp_path / "out")
    asked: dict[str, Any] = {"source": "photos", "part": BuildPart(2, 2), "options": FIVES} | changed
    source = tmp_path / asked.pop("source")
    with pytest.raises(BuildError, match=message):
        build_part(source, tmp_path / "out", run=SERIAL, **asked)
    if "samples" in asked:
        with pytest.raises(BuildError, match=message):
            build_dataset(source, tmp_path / "out", FIVES, SERIAL, asked["samples"])
    assert files(tmp_path / "out") == before


def test_the_same_part_and_a_plain_build_are_refused_while_a_part_runs(photos: Path, tmp_path: Path) -> None:
    refused = []

    def others(_: ShardDone) -> None:
        with pytest.raises(BuildError, match=r"part 1/2 .* is running already"):
            build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)
        with pytest.raises(BuildError, match="parts of a build are writing"):
            build_dataset(photos, tmp_path / "out", FIVES, SERIAL)
        refused.append(build_part(photos, tmp_path / "out", BuildPart(2, 2), FIVES, SERIAL).stored)

    build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL, on_shard=others)
    assert refused == [4, 4]


def test_a_part_is_refused_while_a_plain_build_runs(photos: Path, tmp_path: Path) -> None:
    def part(_: ShardDone) -> None:
        with pytest.raises(BuildError, match="another build is writing"):
            build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)

    build_dataset(photos, tmp_path / "out", FIVES, SERIAL, on_shard=part)
    assert verify_dataset(tmp_path / "out") == VerifyResult(12)


def test_parts_wait_while_the_first_of_them_lists_the_source(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned, scan = [], presize.builder.run.scan

    def slow_scan(*arguments: object) -> object:
        scanned.append(arguments)
        time.sleep(0.3)
        return scan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(presize.builder.run, "scan", slow_scan)
    with ThreadPoolExecutor(3) as pool:
        parts = pool.map(lambda i: build_part(photos, tmp_path / "out", BuildPart(i, 3), FIVES, SERIAL), (1, 2, 3))
        assert sum(part.stored for part in parts) == 12
    assert len(scanned) == 1


@pytest.mark.parametrize("flag", ["update", "overwrite"])
def test_a_part_neither_updates_nor_overwrites(flag: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"cannot be combined with --{flag}"):
        build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, replace(SERIAL, **{flag: True}))  # type: ignore[arg-type]


def test_another_dataset_is_not_replaced_by_parts(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", replace(FIVES, shard_samples=6), SERIAL)
    before = files(tmp_path / "out")
    with pytest.raises(BuildError, match="holds a dataset that differs"):
        build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)
    assert {name: before[name] for name in before} == files(tmp_path / "out")


def test_overwriting_ends_what_parts_have_begun(photos: Path, tmp_path: Path) -> None:
    build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)
    options = replace(FIVES, shard_samples=6)
    build_dataset(photos, tmp_path / "out", options, replace(SERIAL, overwrite=True))
    assert list((tmp_path / "out").glob(".*")) == []
    assert len(Dataset(tmp_path / "out")) == 12


@pytest.mark.parametrize("on_error", ["fail", "budget"])
def test_a_part_stops_for_too_many_rejects(on_error: str, photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "01.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    run = replace(SERIAL, on_error="fail") if on_error == "fail" else replace(SERIAL, max_errors=ErrorBudget(0))
    with pytest.raises(ImageError if on_error == "fail" else BuildError, match=r"01\.png|--max-errors 0"):
        build_part(photos, tmp_path / "out", BuildPart(1, 1), FIVES, run)


@pytest.mark.parametrize(
    "rejects",
    [
        [],
        [Reject("a", "SourceError", "a link")],
        [Reject('é\n"], [🐈', "SourceError", "[, "), Reject("b", "ImageError", "empty", 1, -(2**63))],
    ],
)
def test_a_listing_holds_rejects(rejects: list[Reject], photos: Path, tmp_path: Path) -> None:
    source = replace(scan(photos), rejects=Rejects.of(rejects))
    write_listing(tmp_path, SharedListing.of(source, photos, SourceOptions(), 2))
    read = read_listing(tmp_path)
    assert read is not None
    assert list(read.source.rejects) == rejects


def test_a_damaged_listing_is_one_line(photos: Path, tmp_path: Path) -> None:
    build_part(photos, tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)
    (tmp_path / "out" / ".presize-listing.arrow").write_bytes(b"ARROW1\0\0 and no more")
    with pytest.raises(BuildError, match=r"listing\.arrow is damaged; remove it, and run the parts again"):
        build_part(photos, tmp_path / "out", BuildPart(2, 2), FIVES, SERIAL)
    (tmp_path / "out" / ".presize-listing.arrow").unlink()
    assert build_part(photos, tmp_path / "out", BuildPart(2, 2), FIVES, SERIAL).stored == 4


def test_a_source_without_files_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Exception, match="holds no files"):
        build_part(tmp_path / "empty", tmp_path / "out", BuildPart(1, 2), FIVES, SERIAL)
    assert not (tmp_path / "out").exists()


# The command


def test_the_command_says_what_is_missing_and_then_what_publishes(
    presize: Callable[..., Ran], photos: Path, tmp_path: Path
) -> None:
    command = ["build", photos, tmp_path / "out", "--size", "64", "--shard-samples", "5", "--backend", "sequential"]
    assert "unfinished parts: 2\n" in presize(*command, "--part", "1/2").out
    assert "the same command without --part publishes" in presize(*command, "--part", "2/2").out
    found = json.loads(presize(*command, "--part", "2/2", "--json").out)
    assert (found["part"], found["parts"], found["stored"], found["unfinished"]) == (2, 2, 4, [])
    assert "12 images" in presize(*command).out
    assert "published already" in presize(*command, "--part", "1/2").out


@pytest.mark.parametrize("text", ["5/4", "0/4", "4", "1/0", "a/b", "1/1000000", "-1/3"])
def test_a_part_that_there_is_not_is_one_line(text: str) -> None:
    with pytest.raises(OptionError, match=f"part: expected I/N, part I of N, from 1/N to N/N, got '{text}'"):
        BuildPart.parse(text)


def test_a_dry_run_of_a_part_is_refused(presize: Callable[..., Ran], photos: Path, tmp_path: Path) -> None:
    found = presize("build", photos, tmp_path / "out", "--part", "1/2", "--dry-run")
    assert (found.code, "leave one of --part and --dry-run out" in found.err) == (2, True)


@pytest.mark.parametrize(
    ("parts", "text"), [([3], "3"), ([2, 1], "1 and 2"), ([1, 2, 4], "1, 2 and 4"), (range(1, 21), "8 more")]
)
def test_parts_are_listed_as_people_do(parts: list[int], text: str) -> None:
    assert parts_text(parts).endswith(text)


def test_a_part_is_checked_where_it_is_made() -> None:
    assert str(BuildPart.parse(" 3/8 ")) == "3/8"
    for number in (3, 0):
        with pytest.raises(OptionError, match="part: expected"):
            BuildPart(number, 2)


def test_a_listing_that_publishing_has_left_is_no_build_by_parts(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_parts(photos, out, 2)
    listing = (out / LISTING).read_bytes()
    build_dataset(photos, out, FIVES, SERIAL)
    (out / LISTING).write_bytes(listing)  # as where it was killed before it could remove that
    Image.fromarray(smooth_image(40, 50, seed=99)).save(photos / "cats" / "new.png")
    with pytest.raises(BuildError, match=r"the source has changed \(12 files then, 13 now\)"):
        build_dataset(photos, out, FIVES, SERIAL)
    moved = photos.rename(tmp_path / "moved")
    (moved / "cats" / "new.png").unlink()
    assert build_dataset(moved, out, FIVES, SERIAL).stored == 12
