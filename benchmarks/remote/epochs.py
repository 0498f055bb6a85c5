"""Compare epochs of a dataset in a bucket with those of the same dataset on a disk.

    python benchmarks/remote/epochs.py PHOTOS --images 40000

Builds a dataset of hard links to the JPEGs below PHOTOS, uploads it to a local S3 server (moto), and reads an epoch
shard by shard: from its folder; through a connection of limited MB/s into an empty cache; through one that is closed
every few seconds; and from the filled cache. Each epoch runs in its own process, in random order, with the page cache
warm. Workers read each stored image and compute its CRC-32 without decoding it, so that only the transfer is measured.
All epochs must yield the same batches. Needs the packages of `pip install -e ".[dev]"`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from urllib.error import URLError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.datasets import LMDBDataset, ShardShuffled, make_loader
from presize.remote.upload import upload_dataset
from shared import builds, measuring, processes, rates
from shared.conditions import find_photos, machine, source_mix

BUCKET = "data"
WORKERS, BATCH, WINDOW = 2, 256, 4
SIZE, SHARD_SAMPLES = 256, 1024


@dataclass(frozen=True)
class Way:
    """Access to the dataset.

    Attributes:
        mb_per_s: rate of the connection; 0 for a folder.
        cut_s: seconds until a connection is closed; 0 means never.
        warm: whether an earlier epoch filled the cache.
    """

    mb_per_s: float = 0.0
    cut_s: float = 0.0
    warm: bool = False


WAYS = {
    "folder": Way(),
    "cold-25": Way(25),
    "cold-50": Way(50),
    "cut-50": Way(50, cut_s=3),
    "warm": Way(50, warm=True),
}


def environment(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def store(out: Path) -> Iterator[int]:
    """Run an S3 server with the dataset, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with started([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]):
        bucket = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        for _ in range(300):
            try:
                urllib.request.urlopen(bucket).close()
                break
            except URLError:  # the server is starting
                time.sleep(0.1)
        os.environ.update(environment(port))
        processes.apart(upload_dataset, out, f"s3://{BUCKET}/set")
        yield port


def epoch(root: str, cache: str | None) -> dict[str, object]:
    """Read an epoch; return its times, number of images and CRC-32."""
    begun = time.perf_counter()
    dataset = LMDBDataset(root, transform=zlib.crc32, decode="bytes", cache_dir=cache)
    opened = time.perf_counter()
    crc32 = images = 0
    for sums, targets in make_loader(
        dataset, BATCH, shuffle=ShardShuffled(dataset.data, seed=0, window=WINDOW), num_workers=WORKERS
    ):
        crc32 = zlib.crc32(targets.numpy(), zlib.crc32(sums.numpy(), crc32))
        images += len(targets)
    seconds = time.perf_counter() - opened
    return {"open_s": opened - begun, "seconds": seconds, "images": images, "crc32": crc32}


def measure_way(name: str, out: Path, cache: Path, port: int) -> Iterator[measuring.Columns]:
    way = WAYS[name]
    if not way.warm:
        shutil.rmtree(cache, ignore_errors=True)
    meter = processes.Meter()
    if not way.mb_per_s:
        found = processes.apart(epoch, str(out), None)
    else:
        script = str(Path(__file__).with_name("slow_store.py"))
        with started([sys.executable, script, str(port), str(way.mb_per_s), str(way.cut_s)]) as slow:
            os.environ.update(environment(int(slow.stdout.readline())))  # type: ignore[union-attr]
            if way.warm:
                processes.apart(epoch, f"s3://{BUCKET}/set", str(cache))
            found = processes.apart(epoch, f"s3://{BUCKET}/set", str(cache))
    nbytes = sum(path.stat().st_size for path in out.glob("shards/*.lmdb"))
    yield {
        "variant": name,
        "mb_per_s": way.mb_per_s,
        "cut_s": way.cut_s,
        "bytes": nbytes,
        **found,
        "of_allowed": nbytes / way.mb_per_s / 1e6 / float(str(found["seconds"])) if way.mb_per_s else "",
        "other_cpu": meter.other_cpu(),
    }


def measure(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    raw, out, cache = options.work / "raw", options.work / "out", options.work / "cache"
    options.work.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        builds.link_tree(photos, raw, options.images)
        builds.build_once(raw, out, "--size", str(SIZE), "--shard-samples", str(SHARD_SAMPLES))
    with store(out) as port:
        ways = {name: partial(measure_way, name, out, cache, port) for name in WAYS}
        facts = {"workers": WORKERS, "batch": BATCH, "window": WINDOW, **source_mix(photos), **machine(options.work)}
        measuring.in_rounds(ways, options, facts, progress="seconds")


def summary(rows: list[rates.Row]) -> str:
    if len({row["crc32"] for row in rows}) != 1:
        raise SystemExit("expected the same batches from all epochs, got different ones")
    folder = median(rates.column(rates.select(rows, variant="folder"), "seconds"))
    lines = []
    for name, way in WAYS.items():
        found = rates.select(rows, variant=name)
        allowed = rates.spread(rates.column(found, "of_allowed"), ".2f") if way.mb_per_s and not way.warm else ""
        seconds = rates.column(found, "seconds")
        lines.append([TITLES[name], rates.spread(seconds, ".1f"), allowed, f"{folder / median(seconds):.2f}"])
    size = int(rows[0]["bytes"]) / 1e6
    return "\n".join(
        [
            rates.table(["epoch", "seconds", "of what the connection allows", "rate relative to the folder"], lines),
            f"{rows[0]['images']} images, {size:.0f} MB; {rates.rounds(rows)}; {rates.machine(rows[0])}",
        ]
    )


TITLES = {
    "folder": "from a folder",
    "cold-25": "cold, 25 MB/s",
    "cold-50": "cold, 50 MB/s",
    "cut-50": "cold, 50 MB/s, each connection ended after 3 s",
    "warm": "from the cache",
}


if __name__ == "__main__":
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--images", type=int, default=40_000)
    measuring.run(arguments, measure, summary, minutes=15)
