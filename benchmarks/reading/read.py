"""How fast images are read: presize beside the loaders that one would use instead, in one run.

    python benchmarks/read.py PHOTOS --ffcv-python FFCV_ENV/bin/python --peers-python PEERS_ENV/bin/python

Builds presize datasets of hard links to the JPEGs below PHOTOS, exports their JPEGs for the others, lets
every variant make the files it wants, then runs each variant once a round for each number of workers, in random
order, each in a process of its own, with the page cache warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import rates
import read_rates
from build import link_tree
from conditions import find_photos, machine, source_mix

import processes

_HERE = Path(__file__).parent
_SLOW_IMAGES = 2000
"""Variants that take long read so many of the images, drawn at random: those with Pillow, those at 512 px."""

_BUILDS = {"256": ["--size", "256"], "512": ["--size", "512", "--upscale"], "pixels": ["--format", "raw"]}
"""What `presize build` is told. ImageNet's photographs are smaller than 512 px; enlarged, they are all alike."""

_EXPORTED = ("256", "512")


@dataclass(frozen=True)
class Variant:
    """One way to read one thing.

    script: below peers/. python: the interpreter of its environment; None where that is not given.
    reads: the presize dataset of that name, or "photos". files: it wants that as a folder of JPEGs.
    store: the name of what its library makes of them. more: other arguments.
    """

    script: str
    python: Path | None
    reads: str
    files: bool = True
    store: str | None = None
    more: tuple[str, ...] = ()
    slow: bool = False

    def command(self, options: argparse.Namespace, tree: Path, workers: int, epochs: int) -> list[str]:
        read = options.work / "read"
        folder = tree if self.reads == "photos" else read / (f"{self.reads}-files" if self.files else self.reads)
        command = [str(self.python), str(_HERE / "peers" / self.script), str(folder), *self.more]
        command += ["--workers", str(workers), "--epochs", str(epochs), "--batch", str(options.batch)]
        if self.store is not None:
            command += ["--store", str(read / "stores" / self.store)]
        if self.slow:
            command += ["--images", str(_SLOW_IMAGES)]
        if options.limit is not None:
            command += ["--limit", str(options.limit)]
        return command


def variants(options: argparse.Namespace) -> dict[str, Variant]:
    here, ffcv, peers = Path(sys.executable), options.ffcv_python, options.peers_python
    streaming, litdata = options.streaming_python or peers, options.litdata_python or peers
    found = {"loader-threads-256": presize("256", "loader", "--mode", "threads")}
    for name in _BUILDS:
        found[f"loader-{name}"] = presize(name, "loader")
        found[f"dataset-{name}"] = presize(name, "dataset")
    for name in _EXPORTED:
        found[f"decode-{name}"] = Variant("decode_limit.py", here, name, slow=name == "512")
    return found | {
        "ffcv-256": Variant("ffcv_read.py", ffcv, "256", store="256.beton"),
        "ffcv-own-256": Variant("ffcv_read.py", ffcv, "256", store="256-own.beton", more=("--stored", "own")),
        "ffcv-512": Variant("ffcv_read.py", ffcv, "512", store="512.beton", slow=True),
        "ffcv-pixels": Variant("ffcv_read.py", ffcv, "256", store="pixels.beton", more=("--stored", "raw")),
        "folder-256": Variant("folder_read.py", peers, "256", slow=True),
        "folder-photos": Variant("folder_read.py", peers, "photos", slow=True),
        "webdataset-256": Variant("webdataset_read.py", peers, "256", store="webdataset", slow=True),
        "streaming-256": Variant("streaming_read.py", streaming, "256", store="streaming", slow=True),
        "litdata-256": Variant("litdata_read.py", litdata, "256", store="litdata", slow=True),
    }


def presize(dataset: str, way: str, *more: str) -> Variant:
    return Variant("presize_read.py", Path(sys.executable), dataset, files=False, more=("--way", way, *more))


def prepare(todo: dict[str, Variant], options: argparse.Namespace, tree: Path) -> None:
    """Build the datasets that the variants read, and export those that are wanted as files."""
    root = options.work / "read"
    if not options.keep:
        shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    command = str(Path(sys.executable).with_name("presize"))
    for name, how in _BUILDS.items():
        if any(variant.reads == name for variant in todo.values()) and not (root / name / "manifest.json").exists():
            subprocess.run([command, "build", str(tree), str(root / name), *how], check=True, stdout=sys.stderr)
        files = root / f"{name}-files"
        if any(variant.reads == name and variant.files for variant in todo.values()) and not files.exists():
            subprocess.run([command, "export", str(root / name), str(files)], check=True, stdout=sys.stderr)


def measure(command: list[str]) -> dict[str, object]:
    finished = processes.run(command)
    printed = json.loads(finished.output.splitlines()[-1])
    return {
        "images": printed["images"],
        "seconds": printed["seconds"],
        "images_per_s": round(printed["images"] / printed["seconds"], 1),
        "first_batch_s": printed["first_batch_s"],
        "start_s": printed["start_s"],
        "process_seconds": round(finished.seconds, 3),
        "cpu_seconds": round(finished.cpu_seconds, 3),
        "worker_private_mb": round(finished.worker_private_mb, 1),
        "driver_private_mb": round(finished.driver_private_mb, 1),
        "other_cpu": round(finished.other_cpu, 3),
        "versions": printed["versions"],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="PHOTOS", help="searched recursively for JPEGs")
    parser.add_argument("--ffcv-python", type=Path, help="interpreter of the environment with FFCV")
    parser.add_argument("--peers-python", type=Path, help="of the one with torchvision, WebDataset and the like")
    parser.add_argument("--streaming-python", type=Path, help="with MosaicML Streaming, if in another one")
    parser.add_argument("--litdata-python", type=Path, help="with LitData, if in another one")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    parser.add_argument("--keep", action="store_true", help="use what an earlier run made below --work")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=_numbers, default=[1, 2], metavar="N,N", help="1,2 by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="that a run times, after one that it does not")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="end epochs after N batches, for a try")
    parser.add_argument("--variants", default=None, metavar="NAME,NAME", help="only these; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the runs")
    parser.add_argument("--csv", type=Path, default=_HERE / "results" / "read.csv", help="replaced")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def choose(options: argparse.Namespace) -> dict[str, Variant]:
    """The variants to run. Says which are left out for want of an interpreter; raises SystemExit for other names."""
    known = variants(options)
    names = list(known) if options.variants is None else options.variants.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"--variants: no variant {unknown[0]!r}; there are {', '.join(known)}")
    for name in names:
        if known[name].python is None:
            print(f"{name} is left out: no interpreter was given for peers/{known[name].script}", file=sys.stderr)
    return {name: known[name] for name in names if known[name].python is not None}


def main() -> None:
    options = parse()
    todo = choose(options)
    photos = find_photos(options.source)
    tree = link_tree(photos, options.work, options.images)
    facts = {**machine(photos[0]), **source_mix(photos)}
    prepare(todo, options, tree)
    for name, variant in todo.items():  # not counted: it makes its files, and all of them are in the page cache then
        print(f"trying {name}", file=sys.stderr)
        measure(variant.command(options, tree, max(options.workers), epochs=1))
    os.sync()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    stored = {variant: what for what, loaders in read_rates.STORED.items() for variant in loaders}
    order = random.Random(options.seed)
    runs = [(name, workers) for name in todo for workers in options.workers]
    rows: list[dict[str, object]] = []
    for number in range(options.rounds):
        for name, workers in order.sample(runs, len(runs)):
            measured = measure(todo[name].command(options, tree, workers, options.epochs))
            rows.append(
                {"date": date, "variant": name, "stored": stored[name], "round": number, "workers": workers}
                | {"batch": options.batch}
                | measured
                | facts
            )
            print(
                f"round {number + 1}: {name}, {workers} workers: {measured['images_per_s']} images/s, "
                f"{measured['process_seconds']} s",
                file=sys.stderr,
            )
            rates.write(options.csv, rows)
    print(read_rates.summary(rates.read(options.csv)))


if __name__ == "__main__":
    main()
