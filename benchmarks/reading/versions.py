"""Whether a change made reading slower: this presize beside another version of it, on one dataset, in one run.

    python benchmarks/reading/versions.py PHOTOS --other-python OTHER_ENV/bin/python

Builds a 256 px dataset of hard links to the JPEGs below PHOTOS. Each version reads it through Loader and through
LMDBDataset in a DataLoader, once a round each, in random order, in a process of its own, with the page cache warm.
Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, processes, rates
from shared.conditions import conditions, find_photos

WAYS = {"loader": "Loader", "dataset": "LMDBDataset in a DataLoader"}
VERSIONS = ("this", "other")


def measure(command: list[str]) -> measuring.Columns:
    """The columns of one run. CPU time includes what the process does before its first epoch."""
    finished = processes.run(command)
    printed = json.loads(finished.output.splitlines()[-1])
    return {
        "images": printed["images"],
        "seconds": printed["seconds"],
        "images_per_s": round(printed["images"] / printed["seconds"], 1),
        "cpu_seconds": round(finished.cpu_seconds, 3),
        "other_cpu": round(finished.other_cpu, 3),
        "versions": printed["versions"],
    }


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for way, words in WAYS.items():
        found = [rates.select(rows, variant=f"{way}, {version}") for version in VERSIONS]
        speeds = [rates.column(each, "images_per_s") for each in found]
        seconds = [rates.column(each, "cpu_seconds") for each in found]
        lines.append([words, *(rates.spread(each, ".0f") for each in speeds), rates.times(*speeds)])
        lines[-1].append(rates.times(*seconds))
    first = rows[0]
    return "\n".join(
        [
            rates.table(["", "images/s", "the other version", "times as fast", "CPU time of the other's"], lines),
            "",
            f"The other version: {first['other']}.",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, photographs: {rates.photographs(first)}.",
            f"{rates.machine(first)}, Python {first['python']}, {first['versions']}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    tree = builds.link_tree(photos, options.work, options.images)
    root = builds.build_once(tree, options.work / f"checks-{tree.name}", "--size", "256")
    pythons = dict(zip(VERSIONS, (sys.executable, str(options.other_python)), strict=True))

    def run(way: str, version: str) -> Iterator[measuring.Columns]:
        command = [pythons[version], str(builds.PEERS / "presize_read.py"), str(root), "--way", way]
        command += ["--workers", str(options.workers), "--epochs", str(options.epochs)]
        yield {"variant": f"{way}, {version}", "workers": options.workers} | measure(command)

    runs = {f"{way}, {version}": partial(run, way, version) for way, version in product(WAYS, VERSIONS)}
    measuring.in_rounds(runs, options, conditions(photos) | {"other": options.other})


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=9)
    arguments.add_argument("--other-python", type=Path, help="of the environment with the other version")
    arguments.add_argument("--other", default="", metavar="COMMIT", help="which version that is, in words")
    arguments.add_argument("--images", type=int, default=4000)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--epochs", type=int, default=3, help="timed epochs of a run, after one that is not")
    measuring.run(arguments, measure_all, summary, minutes=8)


if __name__ == "__main__":
    main()
