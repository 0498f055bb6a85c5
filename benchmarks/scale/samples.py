"""Measure time and memory by number of samples, from the scan of a folder to the order of an epoch.

    python benchmarks/scale/samples.py --work FOLDER [--samples 10000,100000,1000000] [--repeats 1]

Covers a build without its images, and a reader before its first image. The folder is a tree of hard links in class
folders of 1,300; the bucket is a local server that generates its listing page by page; the shards are sparse files with
a build's sidecar files. Each stage runs in its own process, with the page cache warm. Asserts nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.fingerprint import CodecFingerprint
from presize.builder.output_dir import BuildJournal, OutputDir
from presize.builder.plan import Plan, make_plan
from presize.builder.publish import publish
from presize.builder.shard_table import ShardTable
from presize.builder.work import find_work
from presize.options import BuildOptions, RunOptions
from presize.sources.contents import Source
from presize.sources.scan import scan
from presize.store.data_files import DataFile
from presize.store.dataset import Dataset
from shared import measuring, rates
from shared.conditions import machine

A_CLASS, A_LINK = 1300, 60_000
"""Images in a class, as in ImageNet; links to one file, which ext4 limits to 65,000."""
STORED_BYTES = 30_000
BATCH, BATCHES = 256, 100

A_STORED, REASONS = 100, ("truncated", "not an image", "too many pixels", "no scan")
"""A build that rejects nearly all samples: one in A_STORED is stored; a tenth of the others have unique reasons, the
rest one of REASONS."""

STAGES = ("scan", "bucket", "plan", "resume", "publish", "reject", "open", "shuffle", "continue")
PREPARING = ("tree", "sidecars", "rejected")


def make_tree(tree: Path, samples: int) -> None:
    tree.mkdir(parents=True)
    for at in range(samples):
        if at % A_LINK == 0:
            file = tree.parent / f"link-{at // A_LINK}.jpg"
            file.write_bytes(b"\xff\xd8\xff" + bytes(100))
        if at % A_CLASS == 0:
            folder = tree / f"n{at // A_CLASS:08d}"
            folder.mkdir()
        os.link(file, folder / f"{folder.name}_{at % A_CLASS:04d}.JPEG")


def name_of(number: int) -> str:
    folder = f"n{number // A_CLASS:08d}"
    return f"{folder}/{folder}_{number % A_CLASS:04d}.JPEG"


PAGE = 1000
"""Objects on a page of an S3 listing."""


class _Bucket(BaseHTTPRequestHandler):
    """Handler that only lists the objects of a bucket."""

    samples = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        token = re.search(r"continuation-token=(\d+)", self.path)
        start = int(token[1]) if token else 0
        end = min(start + PAGE, self.samples)
        objects = "".join(
            f"<Contents><Key>photos/{name_of(number)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"{number:x}"</ETag><Size>110000</Size><StorageClass>STANDARD</StorageClass></Contents>'
            for number in range(start, end)
        )
        more = end < self.samples
        following = f"<NextContinuationToken>{end}</NextContinuationToken>" if more else ""
        body = (
            "<ListBucketResult><Name>data</Name><Prefix>photos/</Prefix>"
            f"<KeyCount>{end - start}</KeyCount><MaxKeys>{PAGE}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{objects}{following}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def serve_bucket(samples: int, to: Connection) -> None:
    _Bucket.samples = samples
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Bucket)
    to.send(server.server_port)
    server.serve_forever()


@contextmanager
def bucket(samples: int) -> Iterator[None]:
    """Run the server of a bucket in its own process, with the environment pointing to it."""
    ours, theirs = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve_bucket, args=(samples, theirs), daemon=True)
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ours.recv()}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    yield
    server.terminate()


def source(samples: int) -> Source:
    """Return the result of a scan of make_tree's folder, without the folder."""
    classes = -(-samples // A_CLASS)
    names = pa.array([f"n{number:08d}" for number in range(classes)])
    number = np.arange(samples)
    label = pa.array(number // A_CLASS)
    ends = pa.array([f"_{number:04d}.JPEG" for number in range(A_CLASS)]).take(pa.array(number % A_CLASS))
    folder = names.take(label)
    table = pa.table(
        {
            "path": pc.binary_join_element_wise(folder, "/", folder, ends, "").cast(pa.large_string()),
            "source_nbytes": pa.array(np.full(samples, 110_000)),
            "source_mtime_ns": pa.array(np.full(samples, 1_700_000_000_000_000_000)),
            "label": label.cast(pa.int32()),
        }
    )
    return Source(Path("/nowhere"), table, tuple(names.to_pylist()), by_folder=True)


def plan(samples: int) -> Plan:
    return make_plan(source(samples), BuildOptions(), CodecFingerprint("of no images", {}), 4096)


def reasons(samples: list[int]) -> list[tuple[int, str, str]]:
    """Return the rejects of a sidecar file."""
    return [
        (at, "ImageError", f"it ends after {at} bytes" if at % 10 == 0 else REASONS[at % len(REASONS)])
        for at in samples
    ]


def prepare(out: Path, samples: int, is_stored: int = 1) -> None:
    """Write the files of a build whose shards are all finished.

    Args:
        out: folder of the build.
        samples: number of samples.
        is_stored: one in this many samples is stored; all others are rejected.
    """
    todo, place = plan(samples), OutputDir.of(out, BuildOptions().image.sizes)
    (out / "shards").mkdir(parents=True)
    BuildJournal(todo.identity, 0).write(out)
    work = find_work(todo, RunOptions(), place, BuildJournal(todo.identity, 0))
    draw = np.random.default_rng(0)
    for task in work.tasks:
        stored = task.samples % is_stored == 0
        rejects = reasons(task.samples[~stored].tolist())
        rows = int(stored.sum())
        nbytes = draw.integers(STORED_BYTES // 2, 2 * STORED_BYTES, rows)
        sides = {"source_height": 400, "source_width": 500, "source_facts": 1, "height": 256, "width": 320}
        columns = {name: np.full(rows, value) for name, value in sides.items()}
        columns |= {"nbytes": nbytes, "crc32": draw.integers(0, 2**32, rows)}
        ((stream, path),) = task.targets.items()
        with path.open("wb") as shard:
            shard.truncate(int(nbytes.sum()))
        files = {stream: DataFile(f"shards/{path.name}", int(nbytes.sum()), "0" * 64, rows)}
        table = ShardTable(task.number, task.samples[stored], {stream: columns}, files, rejects)
        table.write(task.sidecar, task.digest)


Stage = Callable[[], object]


def stage(name: str, work: Path, samples: int) -> tuple[Stage, Stage]:
    """Return the set-up of a stage, and the stage itself."""
    out, tree = work / ("rejected" if name in ("rejected", "reject") else "out"), work / "tree"
    place = OutputDir.of(out, BuildOptions().image.sizes)
    state: dict[str, Any] = {}
    if name == "tree":
        return (lambda: None), (lambda: make_tree(tree, samples))
    if name == "sidecars":
        return (lambda: None), (lambda: prepare(out, samples))
    if name == "rejected":
        return (lambda: None), (lambda: prepare(out, samples, A_STORED))
    if name == "scan":
        return (lambda: None), (lambda: scan(tree))
    if name == "bucket":
        serving = bucket(samples)
        return serving.__enter__, (lambda: scan("s3://data/photos"))
    if name == "plan":
        return (lambda: state.update(source=source(samples))), (
            lambda: make_plan(state["source"], BuildOptions(), CodecFingerprint("of no images", {}), 4096)
        )

    def planned() -> None:
        state["plan"] = plan(samples)

    def resume() -> None:
        state["work"] = find_work(
            state["plan"], RunOptions(report=False), place, BuildJournal(state["plan"].identity, 0)
        )

    if name == "resume":
        return planned, resume
    if name in ("publish", "reject"):
        return (lambda: (planned(), resume())), (lambda: publish(state.pop("work")))
    if name == "open":
        return (lambda: None), (lambda: state.update(data=Dataset(out)))
    from presize.datasets import EpochSampler, Shuffled

    def shuffle() -> None:
        order = Shuffled(samples)
        for batch in range(BATCHES):
            order.samples(0, np.arange(batch * BATCH, (batch + 1) * BATCH) % samples)

    def go_on() -> None:
        """Draw batches from the middle of an epoch."""
        sampler = EpochSampler(Shuffled(samples), batch_size=BATCH)
        sampler.load_state_dict(sampler.state_dict(samples // 2))
        for _ in islice(sampler, BATCH * BATCHES):
            pass

    return (lambda: None), (go_on if name == "continue" else shuffle)


def own_bytes() -> int:
    """Return the anonymous memory of this process; mapped files do not count, as processes share them."""
    found = re.search(r"^Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measured(name: str, work: Path, samples: int) -> dict[str, object]:
    """Run a stage in this process; return seconds, private MB that remain allocated, and peak MB including set-up."""
    before, run = stage(name, work, samples)
    before()
    private = own_bytes()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {
        "seconds": round(seconds, 4),
        "private_mb": round((own_bytes() - private) / 1e6, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
    }


def in_child(name: str, work: Path, samples: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--stage", name, "--work", str(work), "--samples", str(samples)]
    found: dict[str, object] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def measure(options: argparse.Namespace) -> None:
    rows: list[measuring.Columns] = []
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    for samples in options.samples:
        work = options.work / f"scale-{samples}"
        shutil.rmtree(work, ignore_errors=True)
        for name in PREPARING:
            in_child(name, work, samples)
        for number in range(options.repeats):
            for name in STAGES:
                if name == "publish" and number:
                    shutil.rmtree(work / "out")
                    shutil.rmtree(work / "rejected")
                    in_child("sidecars", work, samples)
                    in_child("rejected", work, samples)
                found = in_child(name, work, samples)
                rows.append(
                    {"date": date, "stage": name, "samples": samples, "round": number} | found | machine(options.work)
                )
                print(f"{samples:,}: {name}: {found}", file=sys.stderr)
                rates.write(options.csv, rows)
        shutil.rmtree(work)


def summary(rows: list[rates.Row]) -> str:
    sizes = rates.numbers_in(rows, "samples")

    def cells(name: str) -> Iterator[str]:
        for samples in sizes:
            mine = rates.select(rows, stage=name, samples=samples)
            seconds, peak = (median(rates.column(mine, column)) for column in ("seconds", "peak_mb"))
            yield f"{seconds:.2g} s, {peak:,.0f} MB" if seconds < 10 else f"{seconds:.0f} s, {peak:,.0f} MB"

    heads = ["time, peak memory", *(f"{samples:,}" for samples in sizes)]
    where = f"{rows[0]['cpu']}, {rows[0]['cores']} cores, {rows[0]['file_system']}, {rows[0]['date']}"
    return f"{rates.table(heads, ([name, *cells(name)] for name in STAGES if rates.select(rows, stage=name)))}\n{where}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--work", type=Path, metavar="FOLDER")
    arguments.add_argument("--table", action="store_true", help="only print the table of the CSV")
    arguments.add_argument("--samples", type=measuring.numbers, default=(10_000, 100_000, 1_000_000), metavar="N,N")
    arguments.add_argument("--repeats", type=int, default=1, metavar="N")
    arguments.add_argument("--stage", choices=PREPARING + STAGES, help="internal: run one stage in this process")
    arguments.add_argument("--csv", type=Path, default=Path(__file__).parent / "results" / "samples.csv")
    options = arguments.parse_args()
    if options.stage:
        print(json.dumps(measured(options.stage, options.work, options.samples[0])))
        return
    if not options.table:
        if options.work is None:
            arguments.error("expected --work or --table")
        measure(options)
    print(summary(rates.read(options.csv)))


if __name__ == "__main__":
    main()
