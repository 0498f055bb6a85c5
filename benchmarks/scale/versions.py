"""Compare the speed of this version of presize with that of another commit, in one run.

    git worktree add OTHER COMMIT && make -C OTHER .venv/.presize
    python benchmarks/scale/versions.py PHOTOS --other OTHER

Each version builds a 256 px dataset of hard links to the JPEGs below PHOTOS, reads one dataset through Loader and
through LMDBDataset in a DataLoader, updates a dataset of --many images after one of them has changed, and opens a
dataset of --records tiny images. Each step runs once per round, in random order, in its own process, with the page
cache warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PIL import Image

from shared import builds, measuring, processes, rates
from shared.conditions import conditions, find_photos

WAYS = {
    "build": "build, 256 px",
    "loader": "Loader, 256 px",
    "dataset": "LMDBDataset in a DataLoader, 256 px",
    "update": "update of one changed image",
    "open": "opening a dataset",
}
ROOT = Path(__file__).resolve().parents[2]
OPEN = """
import json, sys, time
from presize.datasets import LMDBDataset
begin = time.perf_counter()
for _ in range(20):
    data = LMDBDataset(sys.argv[1])
    data[len(data) // 2]
print(json.dumps({"seconds": (time.perf_counter() - begin) / 20, "images": len(data)}))
"""


@dataclass(frozen=True)
class Version:
    """A checkout, with presize installed in its .venv."""

    name: str
    folder: Path

    def presize(self, *words: object) -> list[str]:
        return [str(self.folder / ".venv/bin/presize"), *map(str, words)]

    def python(self, *words: object) -> list[str]:
        return [str(self.folder / ".venv/bin/python"), *map(str, words)]


def tiny(root: Path, images: int) -> Path:
    """Create a folder with `images` hard links to an image of 8×8 pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 100, 50)).save(buffer, "JPEG")
    files = []
    for number in range(-(-images // 50_000)):
        files.append(root / f"tiny-{number}.jpg")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_bytes(buffer.getvalue())
    return builds.link_tree(files, root, images)


def measured(command: list[str]) -> measuring.Columns:
    """Run a command and return its columns: `seconds` as printed, `process_seconds` of the whole command."""
    finished = processes.run(command)
    printed = json.loads(finished.output.splitlines()[-1])
    images, seconds = printed.get("samples", printed.get("images")), float(printed["seconds"])
    return {
        "images": images,
        "seconds": round(seconds, 5),
        "process_seconds": round(finished.seconds, 3),
        "images_per_s": round(images / seconds, 1),
        **builds.resources(finished),
    }


def build(version: Version, tree: Path, work: Path) -> measuring.Columns:
    out = work / f"built-{version.name}"
    subprocess.run(["rm", "-rf", out], check=True)
    os.sync()
    return measured(version.presize("build", tree, out, "--size", "256", "--no-report", "--json"))


def read(version: Version, root: Path, way: str, workers: int, epochs: int) -> measuring.Columns:
    script = version.folder / "benchmarks/peers/presize_read.py"
    return measured(version.python(script, root, "--way", way, "--workers", workers, "--epochs", epochs))


def update(version: Version, tree: Path, photos: list[Path], work: Path, turn: Iterator[int]) -> measuring.Columns:
    """Replace a photograph and update the dataset; time the whole command, including its scan."""
    out = work / f"updated-{version.name}"
    options = ("--size", "64", "--no-report", "--json")
    if not (out / "manifest.json").exists():
        processes.run(version.presize("build", tree, out, *options))
    else:
        processes.run(version.presize("build", tree, out, *options, "--update"))  # changes made for the other version
    changed = next(tree.rglob("*.jpg"))
    replacement = changed.with_suffix(".tmp")
    replacement.write_bytes(photos[next(turn) % len(photos)].read_bytes())
    replacement.rename(changed)
    columns = measured(version.presize("build", tree, out, *options, "--update"))
    return columns | {"seconds": columns["process_seconds"]}


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for way, words in WAYS.items():
        found = [rates.select(rows, variant=f"{way}, {version}") for version in ("this", "other")]
        if not found[0]:
            continue
        seconds = [rates.column(each, "seconds") for each in found]
        cpu = [rates.column(each, "cpu_seconds") for each in found]
        images = f"{int(found[0][0]['images']):,} images"
        form = ".4f" if way == "open" else ".2f"
        lines.append([f"{words}, {images}", *(rates.spread(each, form) for each in seconds), rates.times(*seconds)])
        lines[-1].append(rates.times(*cpu))
    first = rows[0]
    return "\n".join(
        [
            rates.table(["", "seconds", "the other version", "times as long", "times the CPU time"], lines),
            "",
            f"The other version: {first['other']}.",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, photographs: {rates.photographs(first)}.",
            f"{rates.machine(first)}, Python {first['python']}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    versions = Version("this", ROOT), Version("other", options.other.resolve())
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=options.other, capture_output=True, text=True, check=True
    )
    tree = builds.link_tree(photos, options.work, options.images)
    many = builds.link_tree(photos, options.work, options.many)
    root = options.work / f"read-{tree.name}"
    records = options.work / f"records-{options.records}"
    for source, out, size in ((tree, root, 256), (tiny(options.work, options.records), records, "keep")):
        if not (out / "manifest.json").exists():
            processes.run(versions[1].presize("build", source, out, "--size", size, "--no-report", "--overwrite"))
    turn = count()
    ways = {
        "build": lambda version: build(version, tree, options.work),
        "loader": lambda version: read(version, root, "loader", options.workers, options.epochs),
        "dataset": lambda version: read(version, root, "dataset", options.workers, options.epochs),
        "update": lambda version: update(version, many, photos, options.work, turn),
        "open": lambda version: measured(version.python("-P", "-c", OPEN, records)),
    }

    def run(way: str, version: Version) -> Iterator[measuring.Columns]:
        yield {"variant": f"{way}, {version.name}"} | ways[way](version)

    chosen = [way for way in WAYS if way in options.ways]
    runs = {f"{way}, {version.name}": partial(run, way, version) for way, version in product(chosen, versions)}
    measuring.in_rounds(runs, options, conditions(photos) | {"other": commit.stdout.strip()}, progress="seconds")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--other", type=Path, help="a checkout of the other version")
    arguments.add_argument("--images", type=int, default=8000)
    arguments.add_argument("--many", type=int, default=100_000, help="images of the dataset to update")
    arguments.add_argument("--records", type=int, default=1_000_000, help="images of the dataset to open")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--epochs", type=int, default=3, help="timed epochs of a run, after one untimed epoch")
    arguments.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    measuring.run(arguments, measure_all, summary, minutes=40)


if __name__ == "__main__":
    main()
