"""Measure how fast records are read from disk and from the page cache, with and without the kernel's readahead.

    python benchmarks/storage/storage.py --work DIR [--work DIR2]

Writes shards of random bytes below each DIR, one set per record size. Reads records from them through ShardReader,
without an index and without decoding, in batches of 128 that are sorted as Dataset sorts them: every record once in
random order ("epoch") or in disk order ("sequential"), or so few that the records around them are never read ("sparse",
like an epoch of a dataset much larger than memory). "preload" first reads the shards into the page cache, which is
timed, too.

Each run is a process, forked from this one; all runs of a round are in random order. Cold means that the shards were
dropped from this machine's page cache, which is checked; the disk or a host may have another cache.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.store.shard import ShardWriter, commit_records, map_bytes
from presize.store.shard_reader import ShardReader
from presize.system.pagecache import MappedFile, preload
from presize.system.storage import window_bytes
from shared import measuring, rates
from shared.conditions import machine

_BATCH = 128
_SHARD_BYTES = 20_000_000
_SPARSE_SHARE = 0.02
"""Share of a dataset that the readahead windows of a sparse run cover, one window per record; at least 8 records."""

_WARM_PASSES = 10
"""Passes over the records in a warm run: one is too short to be timed."""


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


def measure(variant: Variant, options: argparse.Namespace, draw: random.Random) -> Iterator[measuring.Columns]:
    """Call read() in a new process, and yield its row."""
    shards = sorted((variant.work / str(variant.record_bytes)).iterdir())
    window = window_bytes(shards[0])
    records = None
    if variant.order == "sparse":
        records = max(8, int(_SPARSE_SHARE * options.megabytes * 1_000_000 / max(window, variant.record_bytes)))
    else:
        shards = shards[: options.epoch_megabytes * 1_000_000 // _SHARD_BYTES]
    load = round(os.getloadavg()[0], 1)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(read, (variant, shards, records, draw.randrange(1 << 31)))
    named: dict[str, Any] = variant._asdict()
    del named["work"]  # no paths; the window and the file system tell them apart
    yield named | {"window_kb": window >> 10, "load": load} | found | machine(variant.work) | {"lmdb": version("lmdb")}


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
    """Return the bytes that this process has read from disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def summary(rows: list[rates.Row]) -> str:
    """Format a table by window and record size: the rate of a cold epoch without readahead, and the other runs relative
    to the same order and cache without readahead."""
    heads = ["window", "record", "cold epoch, off: records/s", "on", "preload", "cold sequential: on"]
    heads += ["cold sparse: on", "bytes from disk per byte wanted", "warm epoch: on", "warm sequential: on"]
    lines = []
    for window, size in product(rates.numbers_in(rows, "window_kb"), rates.numbers_in(rows, "record_bytes")):
        mine = rates.select(rows, window_kb=window, record_bytes=size)

        def column(
            order: str, cache: str, readahead: str, name: str = "records_per_s", mine: list[rates.Row] = mine
        ) -> list[float]:
            return rates.column(rates.select(mine, order=order, cache=cache, readahead=readahead), name)

        def times(order: str, cache: str, readahead: str = "on", column: Any = column) -> str:
            return rates.times(column(order, cache, readahead), column(order, cache, "off"))

        disk = rates.ratios(column("sparse", "cold", "on", "disk_mb"), column("sparse", "cold", "on", "mb"))
        lines.append(
            [
                f"{window} KiB",
                f"{size / 1000:g} kB",
                rates.spread(column("epoch", "cold", "off"), ".0f"),
                times("epoch", "cold"),
                times("epoch", "cold", "preload"),
                times("sequential", "cold"),
                times("sparse", "cold"),
                f"{median(disk):.1f}",
                times("epoch", "warm"),
                times("sequential", "warm"),
            ]
        )
    load = rates.spread(rates.column(rows, "load"), ".1f")
    closing = f"{rates.rounds(rows)}, load average {load}. {rates.machine(rows[0])}, lmdb {rows[0]['lmdb']}."
    return f"{rates.table(heads, lines)}\n\n{closing}"


def main() -> None:
    csv = Path(__file__).resolve().parent / "results" / "storage.csv"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, action="append", metavar="DIR", help="on the disk to be measured")
    parser.add_argument("--table", type=Path, nargs="?", const=csv, metavar="CSV", help="only print its table")
    parser.add_argument("--sizes", type=measuring.numbers, default=(1000, 10_000, 30_000, 150_000), metavar="N,N")
    parser.add_argument("--megabytes", type=int, default=500, help="MB of shards per record size")
    parser.add_argument("--epoch-megabytes", type=int, default=20, help="MB that an epoch reads, a multiple of 20")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of runs and records")
    parser.add_argument("--csv", type=Path, default=csv, help="CSV to replace (default: in results/)")
    options = parser.parse_args()
    if options.table is not None:
        print(summary(rates.read(options.table)))
        return
    if not options.work:
        parser.error("expected --work, a folder on the disk to be measured, or --table")
    for work, size in product(options.work, options.sizes):
        write_shards(work, size, options.megabytes)
    draw = random.Random(options.seed)
    runs = {", ".join(map(str, variant)): partial(measure, variant, options, draw) for variant in variants(options)}
    measuring.in_rounds(runs, options, {}, progress="records_per_s")
    for work, size in product(options.work, options.sizes):
        shutil.rmtree(work / str(size))
    print(summary(rates.read(options.csv)))


if __name__ == "__main__":
    main()
