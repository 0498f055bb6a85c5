"""How fast `presize build` is, beside the codec limit and the script that people write.

    python benchmarks/build.py PHOTOS --ffcv-python FFCV_ENV/bin/python

Makes a class-folder tree of hard links to the JPEGs below PHOTOS, then runs every variant once a round, in
random order, each in a process of its own, with the page cache warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rates
from conditions import conditions, find_photos

import processes

_HERE = Path(__file__).parent
_CLASSES = 10
_START_UP_IMAGES_A_PROCESS = 2


@dataclass(frozen=True)
class Variant:
    """command: what is run. images, seconds: how many it did and in what time, from what it printed."""

    command: list[str]
    images: Callable[[dict[str, float]], int]
    out: Path


def link_tree(photos: list[Path], root: Path, images: int) -> Path:
    """A folder of `images` links to `photos`, in class folders; made once for the same photographs."""
    facts = [(str(photo), photo.stat().st_size, photo.stat().st_mtime_ns) for photo in photos]
    digest = hashlib.sha256(repr((facts, images)).encode()).hexdigest()[:12]
    tree = root / f"source-{images}-{digest}"
    if tree.exists():
        return tree
    unfinished = tree.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for number in range(_CLASSES):
        (unfinished / f"class-{number}").mkdir(parents=True)
    for number in range(images):
        place = unfinished / f"class-{number % _CLASSES}" / f"{number:07d}.jpg"
        photo = photos[number % len(photos)]
        try:
            os.link(photo, place)
        except OSError:  # another device, or no more links allowed
            shutil.copyfile(photo, place)
    unfinished.rename(tree)
    return tree


def variants(options: argparse.Namespace, tree: Path, few: Path) -> dict[str, Variant]:
    procs, size = str(options.procs), str(options.size)
    out = options.work / "out"
    presize = Path(sys.executable).with_name("presize")

    def peer(script: str, *more: str, python: str | Path = sys.executable) -> Variant:
        command = [str(python), str(_HERE / "peers" / script), str(tree), "--procs", procs, "--size", size, *more]
        return Variant(command, lambda printed: int(printed["images"]), out)

    def build(source: Path) -> Variant:
        command = [str(presize), "build", str(source), str(out), "--size", size, "--jobs", procs]
        command += ["--no-report", "--json"]  # the page takes a second whatever the number of images
        return Variant(command, lambda printed: int(printed["samples"]), out)

    found = {
        rates.LIMIT: peer("codec_limit.py"),
        rates.STOCK: peer("stock_lmdb.py", "--out", str(out)),
        rates.BUILD: build(tree),
        rates.START_UP: build(few),
    }
    if options.ffcv_python is None:
        print("FFCV's writer is left out: no --ffcv-python", file=sys.stderr)
    else:
        found[rates.FFCV] = peer("ffcv_write.py", "--out", str(out), python=options.ffcv_python)
    return found


def measure(variant: Variant) -> dict[str, object]:
    """One run. What an earlier one left to be written to disk is written first."""
    shutil.rmtree(variant.out, ignore_errors=True)
    os.sync()
    finished = processes.run(variant.command)
    shutil.rmtree(variant.out, ignore_errors=True)
    printed = json.loads(finished.output.splitlines()[-1])
    images, seconds = variant.images(printed), float(printed["seconds"])
    return {
        "images": images,
        "seconds": round(seconds, 3),
        "process_seconds": round(finished.seconds, 3),
        "cpu_seconds": round(finished.cpu_seconds, 3),
        "images_per_s": round(images / seconds, 1),
        "worker_private_mb": round(finished.worker_private_mb, 1),
        "driver_private_mb": round(finished.driver_private_mb, 1),
        "other_cpu": round(finished.other_cpu, 3),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="PHOTOS", help="searched recursively for JPEGs")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    parser.add_argument("--ffcv-python", type=Path, help="the interpreter of an environment with FFCV")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the variants")
    parser.add_argument("--csv", type=Path, default=_HERE / "results" / "build.csv", help="replaced")
    return parser.parse_args()


def main() -> None:
    options = parse()
    photos = find_photos(options.source)
    tree = link_tree(photos, options.work, options.images)
    few = link_tree(photos, options.work, _START_UP_IMAGES_A_PROCESS * options.procs)
    facts = conditions(sorted(tree.rglob("*.jpg")))
    todo = variants(options, tree, few)
    measure(todo[rates.START_UP])  # its byte code and libraries are in the page cache from here on
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    order = random.Random(options.seed)
    rows: list[dict[str, object]] = []
    for number in range(options.repeats):
        for name in order.sample(sorted(todo), len(todo)):
            measured = measure(todo[name])
            rows.append(
                {"date": date, "variant": name, "round": number, "procs": options.procs, "size": options.size}
                | measured
                | facts
            )
            print(
                f"round {number + 1}: {name}: {measured['images_per_s']} images/s, {measured['process_seconds']} s",
                file=sys.stderr,
            )
            rates.write(options.csv, rows)
    print(rates.summary(rates.read(options.csv)))


if __name__ == "__main__":
    main()
