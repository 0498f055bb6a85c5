"""Every file of a dataset has the same bytes, however it is built."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import presize.sources.source_files
from builds import REPORTED, SERIAL, SMALL, Builder, write_photos
from foreign import image_column, picture, tar_samples, write_lmdb, write_parquet, write_tar
from paired import WITH_MASKS, make_pairs
from pictures import smooth_image
from presize.builder.run import PartResult, build_part
from presize.codecs.jpeg.decoder import is_available
from presize.options import KEEP, BuildPart, Coordinates, ImageOptions, RunOptions, Size, SourceOptions
from presize.sources.source_files import SourceReader

FIVES = replace(SMALL, shard_samples=5)
KEPT = replace(FIVES, image=ImageOptions(sizes=(KEEP, Size(16, 16)), tiles="all" if is_available() else "resized"))


def with_rows(source: Path, rows: list[dict[str, Any]], **options: Any) -> SourceOptions:
    table = source.with_name("table.jsonl")
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SourceOptions(table, **options)


def repeated(place: Path) -> Builder:
    """Return builds of a table that names each file twice."""
    source = write_photos(place / "source")
    paths = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.png"))
    rows = [{"path": path, "caption": f"{path} {n}"} for n in range(2) for path in paths]
    return Builder(source, FIVES, with_rows(source, rows, repeated="list", split="train=0.5,val=0.5"))


def boxed(place: Path) -> Builder:
    """Return builds of a table with boxes, one of which rejects its image."""
    source = write_photos(place / "source", 6)
    rows = [
        {"path": f"{'cats' if n % 2 else 'dogs'}/{n:02}.png", "bbox": [[n, 5, n + 40, 900 if n == 3 else 30]]}
        for n in range(6)
    ]
    options = replace(FIVES, shard_samples=1, boxes=(Coordinates("bbox", "xyxy"),), bad_boxes="reject")
    return Builder(source, options, with_rows(source, rows))


def as_tars(place: Path) -> Builder:
    for number in range(2):
        write_tar(place / "source" / f"{number}.tar", tar_samples(7, first=7 * number))
    return Builder(place / "source", FIVES)


def as_lmdb(place: Path) -> Builder:
    write_lmdb(place / "source", {f"image-{n:09d}": picture(n) for n in range(12)})
    return Builder(place / "source", FIVES, SourceOptions(keys="image-{:09d}"))


def as_parquet(place: Path) -> Builder:
    write_parquet(place / "source" / "a.parquet", {"image": image_column([picture(n) for n in range(12)])})
    return Builder(place / "source", FIVES)


def mixed(place: Path) -> Builder:
    """Return builds of JPEGs, whose bytes are kept, and PNGs."""
    (place / "source").mkdir()
    for i in range(12):
        name = f"{i}.png" if i % 4 == 0 else f"{i}.jpg"
        Image.fromarray(smooth_image(30 + i, 40, i)).save(place / "source" / name)
    return Builder(place / "source", KEPT)


def photos(options: Any = FIVES, run: RunOptions = SERIAL, **samples: Any) -> Callable[[Path], Builder]:
    return lambda place: Builder(write_photos(place / "source"), options, SourceOptions(**samples), run)


KINDS: dict[str, Callable[[Path], Builder]] = {
    "class folders": photos(run=REPORTED),
    "no labels": photos(labels="none"),
    "splits": photos(split="train=0.7,val=0.3", split_seed=3),
    "two sizes": photos(replace(FIVES, image=ImageOptions(sizes=(Size(64, 64), Size(32, 32))))),
    "a folder": photos(replace(FIVES, layout="folder")),
    "repeated rows": repeated,
    "boxes": boxed,
    "tars": as_tars,
    "an LMDB": as_lmdb,
    "Parquet": as_parquet,
    "masks": lambda place: Builder(make_pairs(place / "source"), replace(WITH_MASKS, shard_samples=5)),
    "as they are": mixed,
}


@pytest.fixture(scope="module")
def builder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Builder]:
    """Return the builds of a kind, with one build in a single process in ``whole``."""
    builders: dict[str, Builder] = {}

    def get(kind: str) -> Builder:
        if kind not in builders:
            builders[kind] = KINDS[kind](tmp_path_factory.mktemp("kind"))
            builders[kind]("whole")
        return builders[kind]

    return get


SLOW = {"two sizes", "a folder", "an LMDB"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS])
def test_worker_processes_that_continue_the_work_of_another_process_write_the_same_bytes(
    kind: str, builder_of: Callable[[str], Builder]
) -> None:
    build = builder_of(kind)
    build.stopped(1, "processes")
    result = build("processes", run=RunOptions(jobs=2, report=build.run.report))
    assert 0 < result.resumed < result.files
    assert build.files("processes") == build.files("whole")


@pytest.mark.parametrize(
    ("kind", "parts", "at_once"),
    [("class folders", 1, 1), ("class folders", 5, 1), ("class folders", 4, 4), *((kind, 2, 1) for kind in KINDS)],
)
def test_parts_write_the_same_bytes_even_if_they_outnumber_the_shards(
    kind: str, parts: int, at_once: int, builder_of: Callable[[str], Builder]
) -> None:
    build, out = builder_of(kind), f"{parts} parts, {at_once} at once"

    def part(number: int) -> PartResult:
        place, which = build.out.with_name(out), BuildPart(number, parts)
        return build_part(build.source, place, which, build.options, SERIAL, build.samples)

    with ThreadPoolExecutor(at_once) as pool:
        stored = sum(done.stored for done in pool.map(part, range(1, parts + 1)))
    assert build(out).stored == stored
    assert build.files(out) == build.files("whole")


def test_a_source_that_is_read_ahead_gives_the_same_bytes(
    builder_of: Callable[[str], Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, read, readers = builder_of("no labels"), SourceReader.read, set[str]()
    one_shard = replace(SMALL, shard_samples=12)
    build("in turn", one_shard)
    monkeypatch.setattr(presize.sources.source_files, "SLOW_S", -1.0)  # treat every file as slow

    def noted(reader: SourceReader, file: Any) -> bytes:
        readers.add(threading.current_thread().name)
        return read(reader, file)

    monkeypatch.setattr(SourceReader, "read", noted)
    build("ahead", one_shard)
    assert any(name.startswith("presize-read") for name in readers)
    assert build.files("ahead") == build.files("in turn")


def test_another_time_and_place_give_the_same_bytes(builder_of: Callable[[str], Builder], tmp_path: Path) -> None:
    build = builder_of("class folders")
    copy = shutil.copytree(build.source, tmp_path / "deeper" / "photos")  # keeps modification times
    Builder(copy, build.options, run=REPORTED)("out")
    assert Builder(copy).files() == build.files("whole")
