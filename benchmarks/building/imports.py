"""Compare the speed of builds from tar shards, an LMDB, Parquet, and the same images as files.

    python benchmarks/building/imports.py PHOTOS --work /dev/shm

Shrinks the JPEGs below PHOTOS to about 30 kB each, and writes 25,000 images into a folder, tar shards, an LMDB and a
Parquet file. Each source links to these several times, so that sources and dataset fit into memory. `presize build
--size keep` copies each source into a dataset with one process, once per round, in random order. The limit is a loop
that does only what the format requires: it reads the records, computes the CRC-32 of each and the SHA-256 of all, and
writes them. Prints a table; asserts nothing.

A virtual machine may return free memory to its host after some seconds, and getting a page back takes longer than
writing it. So that the host is not measured, a file in --work holds memory, and shrinks while the dataset grows. Put
--work on a file system in memory, such as /dev/shm.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import lmdb
import pyarrow as pa
import pyarrow.parquet
from PIL import Image
from zlib_ng import zlib_ng

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, processes, rates
from shared.conditions import conditions, find_photos, machine

_LONG_SIDE = 400
_PHOTOS = 500
_SHARD_IMAGES = 5000
_WRITTEN = 25_000
_GROUP_ROWS = 100
_HELD_AT_ONCE = 1 << 24
_AHEAD_BYTES = 1 << 30
_GIVE_EVERY_S = 0.2
_STORED = 1.15
"""Maximal bytes of a shard per byte of its records."""
_KEYS = {"lmdb": ["--keys", "image-{:09d}"]}


def small(photo: Path) -> bytes:
    """Return a photograph as a JPEG of about 30 kB."""
    with Image.open(photo) as image:
        image.thumbnail((_LONG_SIDE, _LONG_SIDE))
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=85)
        return buffer.getvalue()


def write_folder(values: Iterator[bytes], place: Path) -> None:
    for number, value in enumerate(values):
        folder = place / f"{number // 1000:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:07d}.jpg").write_bytes(value)


def write_tars(values: Iterator[bytes], place: Path) -> None:
    place.mkdir()
    tar = None
    for number, value in enumerate(values):
        if number % _SHARD_IMAGES == 0:
            if tar is not None:
                tar.close()
            tar = tarfile.open(place / f"{number // _SHARD_IMAGES:06d}.tar", "w")
        for suffix, content in (("jpg", value), ("cls", b"%d" % (number % 10))):
            member = tarfile.TarInfo(f"{number:07d}.{suffix}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    if tar is not None:
        tar.close()


def write_lmdb(values: Iterator[bytes], place: Path) -> None:
    with lmdb.open(str(place), map_size=1 << 40, lib_version=0) as env, env.begin(write=True) as txn:
        for number, value in enumerate(values):
            txn.put(b"image-%09d" % number, value)


def write_parquet(values: Iterator[bytes], place: Path) -> None:
    place.mkdir()
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    writer = None
    rows: list[dict[str, object]] = []
    for number, value in enumerate(values):
        if writer is None:
            schema = pa.schema({"image": kind})
            writer = pa.parquet.ParquetWriter(place / "train-00000-of-00001.parquet", schema)
        rows.append({"bytes": value, "path": f"{number:07d}.jpg"})
        if len(rows) == _GROUP_ROWS:
            writer.write_table(pa.table({"image": pa.array(rows, kind)}), row_group_size=_GROUP_ROWS)
            rows = []
    if writer is not None:
        writer.close()


_WRITERS = {"folder": write_folder, "tar": write_tars, "lmdb": write_lmdb, "parquet": write_parquet}


def write_links(part: Path, place: Path, times: int) -> None:
    """Create `times` folders in `place`, each with links to the files of `part`."""
    for number in range(times):
        shutil.copytree(part, place / f"{number:02d}", copy_function=os.link)


@contextmanager
def memory_at_hand(work: Path, nbytes: int) -> Iterator[None]:
    """Hold `nbytes` in a file below `work`; free as many bytes as the run writes, and some in advance."""
    held = work / "held"
    with open(held, "wb", buffering=0) as file:
        for _ in range(nbytes // _HELD_AT_ONCE):
            file.write(bytes(_HELD_AT_ONCE))
    giver = get_context("spawn").Process(target=_give, args=(held, work, nbytes))
    giver.start()
    try:
        yield
    finally:
        giver.terminate()
        giver.join()
        held.unlink()


def _give(held: Path, work: Path, nbytes: int) -> None:
    before = _written(work)
    while True:
        os.truncate(held, max(0, nbytes - (_written(work) - before) - _AHEAD_BYTES))
        time.sleep(_GIVE_EVERY_S)


def _written(work: Path) -> int:
    """Return the bytes that the current run has written."""
    found = 0
    for out in (work / "out", work / "limit"):
        for path in (out, *out.rglob("*")):
            with suppress(FileNotFoundError):  # renamed meanwhile
                found += path.stat().st_size
    return found


def limit(tars: Path, out: Path, images: int) -> measuring.Columns:
    """Measure the limit: see the docstring of this script."""
    paths = sorted(tars.rglob("*.tar"))
    nbytes = sum(path.stat().st_size for path in paths) // images
    meter, begin_s, cpu_s = processes.Meter(), time.perf_counter(), time.process_time()
    digest = hashlib.sha256()
    with open(out, "wb", buffering=0) as writer:
        for path in paths:
            with open(path, "rb", buffering=0) as reader:
                while value := reader.read(nbytes):
                    zlib_ng.crc32(value)
                    digest.update(value)
                    writer.write(value)
        os.fsync(writer.fileno())
    seconds, cpu_seconds = time.perf_counter() - begin_s, time.process_time() - cpu_s
    other_cpu = round(meter.other_cpu(), 3)
    out.unlink()
    rate = round(images / seconds, 1)
    return {"images": images, "cpu_seconds": round(cpu_seconds, 3), "images_per_s": rate, "other_cpu": other_cpu}


def summary(rows: list[rates.Row]) -> str:
    lines = []
    limits = rates.column(rates.select(rows, variant="limit"), "cpu_seconds")
    for variant in (*_WRITERS, "limit"):
        found = rates.select(rows, variant=variant)
        cpu_seconds = rates.column(found, "cpu_seconds")
        lines.append(
            [
                variant,
                rates.spread(rates.column(found, "images_per_s"), ",.0f"),
                rates.spread([float(row["images"]) / float(row["cpu_seconds"]) for row in found], ",.0f"),
                rates.times(cpu_seconds, limits),
                *(
                    rates.spread(rates.column(found, column), ".0f") if found[0].get(column) else ""
                    for column in ("worker_private_mb", "driver_private_mb")
                ),
            ]
        )
    first = rows[0]
    heads = [
        "source", "records/s", "records per CPU second", "CPU time, times the limit", "memory of the worker, MB",
        "of the driver, MB",
    ]  # fmt: skip
    return "\n".join(
        [
            rates.table(heads, lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, 1 process, --size {first['target']}, {first['images']} images of "
            f"{first['image_kb']} kB.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    values = [small(photo) for photo in photos[:_PHOTOS]]
    root = options.work / f"imports-{options.images}"
    written = min(_WRITTEN, options.images)
    for name, write in _WRITERS.items():
        if not (root / name).exists():
            part = root / "parts" / name
            part.parent.mkdir(parents=True, exist_ok=True)
            write((values[number % len(values)] for number in range(written)), part)
            write_links(part, root / name, options.images // written)
    out = options.work / "out"

    image_kb = round(sum(map(len, values)) / len(values) / 1e3, 1)

    def run_columns(name: str) -> measuring.Columns:
        return {"variant": name, "target": options.target, "image_kb": image_kb}

    needed = int(_STORED * options.images * image_kb * 1e3)

    def run(name: str) -> Iterator[measuring.Columns]:
        how = ["--size", options.target, "--jobs", "1", *_KEYS.get(name, [])]
        with memory_at_hand(options.work, needed):
            yield run_columns(name) | builds.measure(builds.presize_build(root / name, out, *how))

    def run_limit() -> Iterator[measuring.Columns]:
        with memory_at_hand(options.work, needed):
            yield run_columns("limit") | limit(root / "tar", options.work / "limit", options.images)

    runs = {name: partial(run, name) for name in _WRITERS} | {"limit": run_limit}
    for each in runs.values():
        next(each())  # fills the page cache
    measuring.in_rounds(runs, options, conditions(photos[:_PHOTOS]) | machine(options.work))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--images", type=int, default=300_000, help="a multiple of 25,000 (default: 300,000)")
    arguments.add_argument("--target", default="keep", metavar="SIZE", help="the --size of the builds (default: keep)")
    measuring.run(arguments, measure_all, summary, minutes=15)


if __name__ == "__main__":
    main()
