"""Measure the gain of reading ahead from slow sources, and its cost with fast ones.

    python benchmarks/building/slow_source.py PHOTOS

Builds hard links to the JPEGs below PHOTOS in one process: from the page cache, from the disk, and with 5 ms before
each read, as over a network; each with and without reading ahead. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.builder.run import build_dataset
from presize.options import BuildOptions, RunOptions
from presize.sources import source_files
from shared import builds, measuring, rates
from shared.conditions import conditions, find_photos

_SOURCES = {"page cache": 0.0, "disk": 0.0, "5 ms before each read": 0.005}
"""Seconds before each read."""
_WAYS = {"in turn": math.inf, "ahead": source_files.SLOW_S}
"""Seconds per file from which files are read ahead."""


def evict(tree: Path) -> None:
    """Drop the files from the page cache, after writing them to disk: the kernel keeps dirty pages."""
    os.sync()
    for path in tree.rglob("*.jpg"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(tree: Path, out: Path, source: str, way: str) -> float:
    shutil.rmtree(out, ignore_errors=True)
    if source == "disk":
        evict(tree)
    read = source_files.SourceReader.read

    def after_a_while(*arguments: object) -> bytes:
        time.sleep(_SOURCES[source])
        return read(*arguments)  # type: ignore[arg-type]

    late = mock.patch.object(source_files.SourceReader, "read", after_a_while if _SOURCES[source] else read)
    with mock.patch.object(source_files, "SLOW_S", _WAYS[way]), late:
        start = time.perf_counter()
        build_dataset(tree, out, BuildOptions(), RunOptions(engine="sequential", report=False))
        return time.perf_counter() - start


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for source in _SOURCES:
        in_turn, ahead = (
            rates.column(rates.select(rows, source=source, way=way), "images_per_s") for way in ("in turn", "ahead")
        )
        lines.append([source, rates.spread(in_turn, ".0f"), rates.spread(ahead, ".0f"), rates.times(ahead, in_turn)])
    first = rows[0]
    return "\n".join(
        [
            rates.table(
                ["source", "without reading ahead, images/s", "reading ahead, images/s", "times as fast"], lines
            ),
            "",
            f"{rates.rounds(rows)}, one process, 256 px, {first['images']} photographs of {first['mean_kb']} kB.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    images = min(options.images, len(photos))
    tree = builds.link_tree(photos, options.work, images)
    facts = conditions(sorted(tree.rglob("*.jpg")))
    seconds(tree, options.work / "out", "page cache", "in turn")  # imports everything

    def measure(source: str, way: str) -> Iterator[measuring.Columns]:
        rate = round(images / seconds(tree, options.work / "out", source, way), 1)
        yield {"source": source, "way": way, "images": images, "images_per_s": rate}

    variants = {f"{source}, {way}": partial(measure, source, way) for source in _SOURCES for way in _WAYS}
    measuring.in_rounds(variants, options, facts)
    shutil.rmtree(options.work / "out")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--images", type=int, default=1000, help="at most the number of photographs")
    measuring.run(arguments, measure_all, summary, minutes=2)


if __name__ == "__main__":
    main()
