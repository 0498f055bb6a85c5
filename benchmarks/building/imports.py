"""How many records a second come in from tar shards, an LMDB and Parquet, and from the same images as files.

    python benchmarks/building/imports.py PHOTOS

The JPEGs below PHOTOS are made smaller, to about 30 kB each, and written over and over into a folder, tar shards, an
LMDB and Parquet files. `presize build --size keep` copies them into a dataset with one process, once a round each, in
random order. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lmdb
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, rates
from shared.conditions import conditions, find_photos

_LONG_SIDE = 400
_PHOTOS = 500
_SHARD_IMAGES = 5000
_GROUP_ROWS = 100
_KEYS = {"lmdb": ["--keys", "image-{:09d}"]}


def small(photo: Path) -> bytes:
    """A photograph as a JPEG of about 30 kB."""
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


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for variant in _WRITERS:
        found = rates.select(rows, variant=variant)
        per_core = [float(row["images"]) / float(row["cpu_seconds"]) for row in found]
        lines.append(
            [
                variant,
                rates.spread(rates.column(found, "images_per_s"), ",.0f"),
                rates.spread(per_core, ",.0f"),
                rates.spread(rates.column(found, "worker_private_mb"), ".0f"),
                rates.spread(rates.column(found, "driver_private_mb"), ".0f"),
            ]
        )
    first = rows[0]
    heads = ["source", "records/s", "records per CPU second", "memory of the worker, MB", "of the driver, MB"]
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
    for name, write in _WRITERS.items():
        if not (root / name).exists():
            root.mkdir(parents=True, exist_ok=True)
            write((values[number % len(values)] for number in range(options.images)), root / name)
    out = options.work / "out"

    def run(name: str) -> Iterator[measuring.Columns]:
        how = ["--size", options.target, "--jobs", "1", *_KEYS.get(name, [])]
        columns: measuring.Columns = {"variant": name, "target": options.target}
        columns["image_kb"] = round(sum(map(len, values)) / len(values) / 1e3, 1)
        yield columns | builds.measure(builds.presize_build(root / name, out, *how))

    for name in _WRITERS:
        next(run(name))  # from here on all that is read and imported is in the page cache
    measuring.in_rounds({name: partial(run, name) for name in _WRITERS}, options, conditions(photos[:_PHOTOS]))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--images", type=int, default=50_000)
    arguments.add_argument("--target", default="keep", metavar="SIZE", help="the --size of the builds; keep by default")
    measuring.run(arguments, measure_all, summary, minutes=4)


if __name__ == "__main__":
    main()
