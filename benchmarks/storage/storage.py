"""How fast records come from disk and from the page cache, with the kernel's readahead and without.

    python benchmarks/storage.py --work DIR [--work DIR2]

Writes shards of random bytes below each DIR, one set for each size of record, and reads records from them through
presize.store.shard, without an index and without decoding, in batches of 128 that are sorted as Dataset sorts them:
every record once in random order ("epoch"), or in the order of the disk ("sequential"), or so few of them that
what is read around them is never wanted ("sparse", which is what an epoch of a dataset much larger than memory
looks like). "preload" reads the shards into the page cache first, in the time that counts.

Each run is a process of its own, forked from this one, and all runs of a round are in random order. Cold means that
the shards were dropped from this machine's page cache, which is checked; a disk that is not in this machine may
have a cache of its own.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import random
import shutil
import sys
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rates
from conditions import machine

from presize.store.shard import ShardReader, ShardWriter, commit_records, map_bytes
from presize.system.pagecache import MappedFile, preload, window_bytes

_HERE = Path(__file__).parent
_BATCH = 128
_SHARD_BYTES = 20_000_000
_SPARSE_SHARE = 0.02
"""Of a dataset, in windows of the kernel's readahead, one for each record of a sparse run; and 8 at least."""

_WARM_PASSES = 10
"""One of them is over too soon to be timed."""


class Variant(NamedTuple):
    work: Path
    record_bytes: int
    order: str
    cache: str
    readahead: str


def variants(options: argparse.Namespace) -> list[Variant]:
    ways = [*product(("epoch", "sequential"), ("cold", "warm"), ("on", "off"))]
    ways += [("sparse", "cold", "on"), ("sparse", "cold", "off"), ("epoch", "cold", "preload")]
    return [Variant(work, size, *way) for work, size, way in product(options.work, options.sizes, ways)]


def write_shards(work: Path, record_bytes: int, megabytes: int) -> None:
    folder = work / str(record_bytes)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = _SHARD_BYTES // record_bytes
    draw = np.random.default_rng(record_bytes)
    for number in range(megabytes * 1_000_000 // _SHARD_BYTES):
        path = folder / f"{number:05d}.lmdb"
        with ShardWriter(path, map_bytes(rows, record_bytes), commit_records(record_bytes)) as writer:
            for _ in range(rows):
                writer.append(draw.bytes(record_bytes))
            writer.publish()


def measure(variant: Variant, options: argparse.Namespace, seed: int) -> dict[str, object]:
    """What read() finds, in a process of its own."""
    shards = sorted((variant.work / str(variant.record_bytes)).iterdir())
    window = window_bytes(shards[0])
    records = None
    if variant.order == "sparse":
        records = max(8, int(_SPARSE_SHARE * options.megabytes * 1_000_000 / max(window, variant.record_bytes)))
    else:
        shards = shards[: options.epoch_megabytes * 1_000_000 // _SHARD_BYTES]
    load = round(os.getloadavg()[0], 1)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(read, (variant, shards, records, seed))
    return {"window_kb": window >> 10, "load": load} | found


def read(variant: Variant, shards: list[Path], records: int | None, seed: int) -> dict[str, object]:
    files = [(path, path.stat().st_size) for path in shards]
    if variant.cache == "warm":
        preload(files, "page-cache")
    for path in shards if variant.cache == "cold" else ():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    resident = sum(MappedFile(*file).resident_bytes() for file in files) / sum(nbytes for _, nbytes in files)
    if (variant.cache == "cold") != (resident < 0.01):
        raise RuntimeError(f"{resident:.1%} of the shards are in the page cache, which should be {variant.cache}")

    read_before, cpu_before, start = disk_bytes(), time.process_time(), time.perf_counter()
    if variant.readahead == "preload":
        preload(files, "page-cache")
    readers = [ShardReader(path, nbytes, variant.readahead != "off") for path, nbytes in files]
    rows = readers[0].entries()
    count = rows * len(readers)
    order = np.arange(count) if variant.order == "sequential" else np.random.default_rng(seed).permutation(count)
    order = order[:records] if variant.cache == "cold" else np.tile(order, _WARM_PASSES)
    nbytes = 0
    for first in range(0, len(order), _BATCH):
        for record in np.sort(order[first : first + _BATCH]).tolist():
            with readers[record // rows] as get:
                nbytes += len(bytes(get(record % rows)))
    seconds = time.perf_counter() - start
    return {
        "records": len(order),
        "seconds": round(seconds, 4),
        "records_per_s": round(len(order) / seconds, 1),
        "mb": round(nbytes / 1e6, 2),
        "disk_mb": round((disk_bytes() - read_before) / 1e6, 2),
        "cpu_seconds": round(time.process_time() - cpu_before, 3),
        "resident_before": round(resident, 4),
    }


def disk_bytes() -> int:
    """That this process, its threads included, has made the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def table(rows: list[rates.Row]) -> str:
    """By window and size of record: records a second of a cold epoch without readahead, and all other ways as
    multiples of the same order and cache without it."""
    lines = [
        "| window | record | cold epoch, off: records/s | on | preload | cold sequential: on | cold sparse: on "
        "| disk gives, times needed | warm epoch: on | warm sequential: on |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for window, size in sorted({(int(row["window_kb"]), int(row["record_bytes"])) for row in rows}):
        found = [row for row in rows if (int(row["window_kb"]), int(row["record_bytes"])) == (window, size)]

        def column(order: str, cache: str, readahead: str, name: str, found: list[rates.Row] = found) -> list[float]:
            chosen = [
                row for row in found if (row["order"], row["cache"], row["readahead"]) == (order, cache, readahead)
            ]
            return [float(row[name]) for row in sorted(chosen, key=lambda row: int(row["round"]))]

        def times(order: str, cache: str, readahead: str = "on", column: Any = column) -> str:
            rate, off = (column(order, cache, way, "records_per_s") for way in (readahead, "off"))
            return rates.ratios(rate, off).format(".2f")

        disk = rates.ratios(column("sparse", "cold", "on", "disk_mb"), column("sparse", "cold", "on", "mb"))
        cells = [
            f"{window} KiB",
            f"{size / 1000:g} kB",
            rates.Spread.of(column("epoch", "cold", "off", "records_per_s")).format(".0f"),
            times("epoch", "cold"),
            times("epoch", "cold", "preload"),
            times("sequential", "cold"),
            times("sparse", "cold"),
            f"{disk.median:.1f}",
            times("epoch", "warm"),
            times("sequential", "warm"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    first = rows[0]
    load = rates.Spread.of([float(row["load"]) for row in rows]).format(".1f")
    return "\n".join(
        [
            *lines,
            "",
            f"{first['date']}, {len({row['round'] for row in rows})} rounds, load average {load}. "
            f"{first['cpu']}, {first['cores']} cores, {first['kernel']}, {first['file_system']}, lmdb {first['lmdb']}.",
        ]
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, action="append", metavar="DIR", help="on the disk to be measured")
    parser.add_argument("--sizes", type=_numbers, default=[1000, 10_000, 30_000, 150_000], metavar="N,N")
    parser.add_argument("--megabytes", type=int, default=500, help="of shards, for each size of record")
    parser.add_argument("--epoch-megabytes", type=int, default=20, help="of them that an epoch reads, in twenties")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the runs, and of the records")
    parser.add_argument("--csv", type=Path, default=_HERE / "results" / "storage.csv", help="replaced")
    parser.add_argument("--print", action="store_true", help="only print the table of the CSV")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    options = parse()
    if options.print:
        print(table(rates.read(options.csv)))
        return
    if not options.work:
        raise SystemExit("--work: name a folder on the disk to be measured")
    for work, size in product(options.work, options.sizes):
        write_shards(work, size, options.megabytes)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    order = random.Random(options.seed)
    todo = variants(options)
    facts = {work: machine(work) | {"lmdb": version("lmdb")} for work in options.work}
    rows: list[dict[str, object]] = []
    for number in range(options.rounds):
        for variant in order.sample(todo, len(todo)):
            named: dict[str, Any] = {"date": date, "round": number, **variant._asdict()}
            del named["work"]  # what it is shows in the window and the file system
            rows.append(named | measure(variant, options, options.seed + number) | facts[variant.work])
            rates.write(options.csv, rows)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    for work, size in product(options.work, options.sizes):
        shutil.rmtree(work / str(size))
    print(table(rates.read(options.csv)))


if __name__ == "__main__":
    main()
