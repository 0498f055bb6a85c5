"""Compare the reading speed of presize with that of other loaders, in one run.

    python benchmarks/reading/read.py PHOTOS --ffcv-python FFCV_ENV/bin/python --peers-python PEERS_ENV/bin/python

Builds presize datasets of hard links to the JPEGs below PHOTOS, exports their JPEGs for the other libraries, and lets
every variant write its own files. Then runs each variant once per round for each number of workers, in random order,
each in its own process, with the page cache warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, processes, rates
from shared.conditions import find_photos, machine, source_mix

_SLOW_IMAGES = 2000
"""Images that slow variants read, drawn at random: all with Pillow, and at 512 px also FFCV and the full decode."""

_BUILDS = {"256": ["--size", "256"], "512": ["--size", "512", "--upscale"], "pixels": ["--format", "raw"]}
"""Arguments of `presize build`. Most of ImageNet's photographs are smaller than 512 px; --upscale unifies sizes."""

_EXPORTED = ("256", "512")

STORED: dict[str, dict[str, str]] = {
    "256 px JPEG": {
        "decode-256": "decode in full, nothing else",
        "loader-256": "presize Loader",
        "loader-threads-256": "presize Loader, threads",
        "dataset-256": "presize LMDBDataset in a DataLoader",
        "ffcv-256": "FFCV",
        "ffcv-own-256": "FFCV, JPEGs encoded by FFCV",
        "folder-256": "folder, torchvision",
        "webdataset-256": "WebDataset",
        "streaming-256": "MosaicML Streaming",
        "litdata-256": "LitData",
        "slipstream-256": "slipstream",
        "slipstream-planes-256": "slipstream, 4:2:0 planes",
    },
    "512 px JPEG": {
        "decode-512": "decode in full, nothing else",
        "loader-512": "presize Loader",
        "dataset-512": "presize LMDBDataset in a DataLoader",
        "ffcv-512": "FFCV",
        "ffcv-own-512": "FFCV, JPEGs encoded by FFCV",
    },
    "256 px raw pixels": {
        "loader-pixels": "presize Loader",
        "dataset-pixels": "presize LMDBDataset in a DataLoader",
        "ffcv-pixels": "FFCV",
    },
    "photographs": {"folder-photos": "folder, torchvision"},
}
"""Stored form -> variant -> loader."""

FFCV = {"256 px JPEG": "ffcv-256", "512 px JPEG": "ffcv-512", "256 px raw pixels": "ffcv-pixels"}
DECODE = {"256 px JPEG": "decode-256", "512 px JPEG": "decode-512"}
"""Reference variants for each stored form."""


@dataclass(frozen=True)
class Variant:
    """A loader with the images that it reads.

    Attributes:
        script: name of its script in peers/.
        python: interpreter of its environment; None if not given.
        reads: name of a presize dataset, or "photos".
        files: whether it reads a folder of JPEGs instead of the dataset.
        store: name of the files that its library writes.
        more: other arguments.
        slow: whether it reads only _SLOW_IMAGES images.
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
        command = [str(self.python), str(builds.PEERS / self.script), str(folder), *self.more]
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
    slipstream = options.slipstream_python
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
        "ffcv-own-512": Variant(
            "ffcv_read.py", ffcv, "512", store="512-own.beton", more=("--stored", "own"), slow=True
        ),
        "ffcv-pixels": Variant("ffcv_read.py", ffcv, "256", store="pixels.beton", more=("--stored", "raw")),
        "folder-256": Variant("folder_read.py", peers, "256", slow=True),
        "folder-photos": Variant("folder_read.py", peers, "photos", slow=True),
        "webdataset-256": Variant("webdataset_read.py", peers, "256", store="webdataset", slow=True),
        "streaming-256": Variant("streaming_read.py", streaming, "256", store="streaming", slow=True),
        "litdata-256": Variant("litdata_read.py", litdata, "256", store="litdata", slow=True),
        "slipstream-256": Variant("slipstream_read.py", slipstream, "256", store="slipstream"),
        "slipstream-planes-256": Variant(
            "slipstream_read.py", slipstream, "256", store="slipstream-planes", more=("--stored", "yuv420")
        ),
    }


def presize(dataset: str, way: str, *more: str) -> Variant:
    return Variant("presize_read.py", Path(sys.executable), dataset, files=False, more=("--way", way, *more))


def prepare(todo: dict[str, Variant], options: argparse.Namespace, tree: Path) -> None:
    """Build the datasets of the variants, and export those that are read as files."""
    root = options.work / "read"
    if not options.keep:
        shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    for name, how in _BUILDS.items():
        if any(variant.reads == name for variant in todo.values()) and not (root / name / "manifest.json").exists():
            subprocess.run([builds.PRESIZE, "build", str(tree), str(root / name), *how], check=True, stdout=sys.stderr)
        files = root / f"{name}-files"
        if any(variant.reads == name and variant.files for variant in todo.values()) and not files.exists():
            subprocess.run([builds.PRESIZE, "export", str(root / name), str(files)], check=True, stdout=sys.stderr)


def measure(command: list[str]) -> measuring.Columns:
    """Run a command and return its columns."""
    finished = processes.run(command)
    printed = json.loads(finished.output.splitlines()[-1])
    return {
        "images": printed["images"],
        "seconds": printed["seconds"],
        "images_per_s": round(printed["images"] / printed["seconds"], 1),
        "first_batch_s": printed["first_batch_s"],
        "start_s": printed["start_s"],
        "process_seconds": round(finished.seconds, 3),
        **builds.resources(finished),
        "versions": printed["versions"],
    }


def choose(options: argparse.Namespace) -> dict[str, Variant]:
    """Return the variants to run, and print which lack an interpreter. Raises SystemExit for unknown names."""
    known = variants(options)
    names = list(known) if options.variants is None else options.variants.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"--variants: expected names of {', '.join(known)}; got {unknown[0]!r}")
    for name in names:
        if known[name].python is None:
            print(f"skipping {name}: no interpreter given for peers/{known[name].script}", file=sys.stderr)
    return {name: known[name] for name in names if known[name].python is not None}


def images_per_s(rows: list[rates.Row], workers: int) -> dict[str, dict[int, float]]:
    """Return the rate of each variant in each round, with this many workers."""
    found: dict[str, dict[int, float]] = {}
    for row in rates.select(rows, workers=workers):
        found.setdefault(row["variant"], {})[int(row["round"])] = int(row["images"]) / float(row["seconds"])
    return found


def times(measured: dict[str, dict[int, float]], variant: str, other: str | None) -> list[float]:
    """Return the ratio of a variant's rate to that of `other`, in the rounds with both."""
    mine, theirs = measured.get(variant, {}), measured.get(other or "", {})
    return [mine[number] / theirs[number] for number in sorted(mine.keys() & theirs.keys())]


def table(rows: list[rates.Row]) -> str:
    counts = rates.numbers_in(rows, "workers")
    heads = ["read", "by"]
    for count in counts:
        heads += [f"{rates.workers_text(count)}: images/s", "times FFCV", "of the decode"]
    by_count = [images_per_s(rows, count) for count in counts]
    lines = []
    for stored, loaders in STORED.items():
        for variant, label in loaders.items():
            if not any(variant in measured for measured in by_count):
                continue
            cells = [stored, label]
            for measured in by_count:
                cells.append(rates.spread([*measured[variant].values()], ".0f") if variant in measured else "")
                for other in (FFCV.get(stored), DECODE.get(stored)):
                    found = times(measured, variant, other)
                    cells.append(rates.spread(found, ".2f") if found else "")
            lines.append(cells)
    return rates.table(heads, lines)


def summary(rows: list[rates.Row]) -> str:
    first = rows[0]
    return "\n".join(
        [
            table(rows),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, photographs: {rates.photographs(first)}.",
            f"{rates.machine(first)}, Python {first['python']}.",
            f"{rates.versions(rows)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    todo = choose(options)
    photos = find_photos(options.source)
    tree = builds.link_tree(photos, options.work, options.images)
    facts = {**machine(photos[0]), **source_mix(photos)}
    prepare(todo, options, tree)
    for name, variant in todo.items():  # not counted: writes its files and fills the page cache
        print(f"trying {name}", file=sys.stderr)
        measure(variant.command(options, tree, max(options.workers), epochs=1))
    os.sync()
    stored = {variant: what for what, loaders in STORED.items() for variant in loaders}

    def run(name: str, workers: int) -> Iterator[measuring.Columns]:
        named = {"variant": name, "stored": stored[name], "workers": workers, "batch": options.batch}
        yield named | measure(todo[name].command(options, tree, workers, options.epochs))

    runs = {f"{name}, {rates.workers_text(n)}": partial(run, name, n) for name, n in product(todo, options.workers)}
    measuring.in_rounds(runs, options, facts)


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--ffcv-python", type=Path, help="interpreter of the environment with FFCV")
    arguments.add_argument("--peers-python", type=Path, help="interpreter with torchvision, WebDataset and the others")
    arguments.add_argument("--streaming-python", type=Path, help="interpreter with MosaicML Streaming, if different")
    arguments.add_argument("--litdata-python", type=Path, help="interpreter with LitData, if different")
    arguments.add_argument("--slipstream-python", type=Path, help="interpreter of the environment with slipstream")
    arguments.add_argument("--keep", action="store_true", help="reuse the files of an earlier run below --work")
    arguments.add_argument("--images", type=int, default=10_000)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--workers", type=measuring.numbers, default=(1, 2), metavar="N,N", help="default: 1,2")
    arguments.add_argument("--epochs", type=int, default=2, help="timed epochs of a run, after one untimed epoch")
    arguments.add_argument("--limit", type=int, default=None, metavar="N", help="end epochs after N batches")
    arguments.add_argument("--variants", default=None, metavar="NAME,NAME", help="variants to run (default: all)")
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
