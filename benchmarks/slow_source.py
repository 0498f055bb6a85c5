"""What reading ahead is worth when the source is slow, and that it costs nothing when it is not.

    python benchmarks/slow_source.py PHOTOS

Builds hard links to the JPEGs below PHOTOS in one process, with the files in the page cache, with none of them there,
and with 5 ms before each read as a network would take; each with reading ahead and without. Prints a table;
asserts nothing. `python benchmarks/slow_source.py --table CSV` prints one again.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import measuring
import rates
from build import link_tree
from conditions import conditions, find_photos

from presize import options
from presize.build import run, task
from presize.sources import source_files

_LATENCY_S = 0.005
_SOURCES = {"page cache": 0.0, "disk": 0.0, "5 ms before each read": _LATENCY_S}
_WAYS = {"in turn": math.inf, "ahead": source_files.SLOW_S}
"""From how many seconds a file on others are read ahead."""


def evict(tree: Path) -> None:
    """Take the files out of the page cache. The kernel does it for files that are on the disk."""
    os.sync()
    for path in tree.rglob("*.jpg"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(tree: Path, out: Path, source: str, way: str) -> float:
    shutil.rmtree(out, ignore_errors=True)
    if source == "disk":
        evict(tree)
    read = task.read_source

    def after_a_while(*arguments: object) -> bytes:
        time.sleep(_SOURCES[source])
        return read(*arguments)  # type: ignore[arg-type]

    reader = after_a_while if _SOURCES[source] else read
    with mock.patch.object(source_files, "SLOW_S", _WAYS[way]), mock.patch.object(task, "read_source", reader):
        start = time.perf_counter()
        run.build_dataset(tree, out, options.BuildOptions(), options.RunOptions(jobs=1, report=False))
        return time.perf_counter() - start


def summary(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; the ratios are those within a round."""
    lines = ["| the source | in turn, images/s | ahead, images/s | times as fast |", "|---|---|---|---|"]
    for source in _SOURCES:
        found = {}
        for way in _WAYS:
            mine = [row for row in rows if (row["source"], row["way"]) == (source, way)]
            found[way] = [float(row["images_per_s"]) for row in sorted(mine, key=lambda row: int(row["round"]))]
        cells = [rates.Spread.of(values).format(".0f") for values in found.values()]
        cells.append(rates.ratios(found["ahead"], found["in turn"]).format(".2f"))
        lines.append(f"| {source} | {' | '.join(cells)} |")
    first = rows[0]
    count = len({row["round"] for row in rows})
    lines += ["", f"{first['date']}, {count} rounds, one process, 256 px, {first['images']} photographs of "]
    lines[-1] += f"{first['mean_kb']} kB in the mean.\n{rates.where(first)}."
    return "\n".join(lines)


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    tree = link_tree(photos, options.work, min(options.images, len(photos)))
    facts = conditions(sorted(tree.rglob("*.jpg")))
    images = len(list(tree.rglob("*.jpg")))
    seconds(tree, options.work / "out", "page cache", "in turn")  # what is imported is so from here on

    def measure(source: str, way: str) -> Iterator[measuring.Columns]:
        rate = round(images / seconds(tree, options.work / "out", source, way), 1)
        yield {"source": source, "way": way, "images": images, "images_per_s": rate}

    variants = {f"{source}, {way}": partial(measure, source, way) for source in _SOURCES for way in _WAYS}
    measuring.in_rounds(variants, options, facts)
    shutil.rmtree(options.work / "out")


def main() -> None:
    arguments = measuring.parser(__doc__, "slow-source.csv", repeats=5)
    arguments.add_argument("--images", type=int, default=1000, help="no more than there are photographs")
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
