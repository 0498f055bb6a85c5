"""What an image costs in builds of a thousand to a hundred thousand.

    python benchmarks/scale.py PHOTOS

Builds hard links to the JPEGs below PHOTOS, once a round for each number of them, in random order, with the page
cache warm. Prints a table; asserts nothing. `python benchmarks/scale.py --table CSV` prints one again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import measuring
import rates
from build import Variant, link_tree, measure
from conditions import conditions, find_photos

COUNTS = (1_000, 3_000, 10_000, 30_000, 100_000)


def microseconds(rows: list[rates.Row], less_start_up: bool = False) -> dict[int, rates.Spread]:
    """For each number of images the seconds of the whole command an image, in millionths; without those of
    a build of a few images, if asked for."""
    start_up = rates.start_up_seconds(rows).median if less_start_up else 0.0
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["variant"] == rates.BUILD:
            images = int(row["images"])
            found.setdefault(images, []).append((float(row["process_seconds"]) - start_up) / images * 1e6)
    return {images: rates.Spread.of(found[images]) for images in sorted(found)}


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets."""
    lines = ["| images | µs an image, whole command | without start-up | memory of the driver, MB |"]
    lines.append("|---|---|---|---|")
    working = microseconds(rows, less_start_up=True)
    for images, spread in microseconds(rows).items():
        mine = [row for row in rows if row["variant"] == rates.BUILD and int(row["images"]) == images]
        memory = max(float(row["driver_private_mb"]) for row in mine)
        lines.append(f"| {images:,} | {spread.format('.0f')} | {working[images].format('.0f')} | {memory:.0f} |")
    return "\n".join(lines)


def summary(rows: list[rates.Row]) -> str:
    first = rows[0]
    return "\n".join(
        [
            table(rows),
            "",
            f"Start-up (a build of a few images): {rates.start_up_seconds(rows).format('.2f')} s.",
            rates.other_work(rows),
            f"{first['date']}, {len({row['round'] for row in rows})} rounds, {first['procs']} processes, "
            f"{first['size']} px, photographs of {first['mean_width']}×{first['mean_height']} and "
            f"{first['mean_kb']} kB in the mean.",
            f"{rates.where(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    facts = conditions(photos)
    few = 2 * options.procs
    todo = {count: link_tree(photos, options.work, count) for count in (few, *options.images)}
    out = options.work / "out"
    presize = str(Path(sys.executable).with_name("presize"))
    asked = ["--size", str(options.size), "--jobs", str(options.procs), "--no-report", "--json"]

    def build(count: int) -> Iterator[measuring.Columns]:
        command = [presize, "build", str(todo[count]), str(out), *asked]
        variant = rates.START_UP if count == few else rates.BUILD
        where = {"variant": variant, "procs": options.procs, "size": options.size}
        yield where | measure(Variant(command, lambda printed: int(printed["samples"]), out))

    next(build(few))  # its byte code and libraries are in the page cache from here on
    measuring.in_rounds({f"{count} images": partial(build, count) for count in todo}, options, facts, options.seed)


def main() -> None:
    arguments = measuring.parser(__doc__, "scale.csv", repeats=3)
    arguments.add_argument("--images", type=int, nargs="+", default=COUNTS, metavar="N")
    arguments.add_argument("--procs", type=int, default=2)
    arguments.add_argument("--size", type=int, default=256)
    arguments.add_argument("--seed", type=int, default=0, help="of the order of the builds")
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
