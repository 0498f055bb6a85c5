"""Measure the time per image of builds of a thousand to a hundred thousand images.

    python benchmarks/building/scale.py PHOTOS

Builds hard links to the JPEGs below PHOTOS, each number of images once per round, in random order, with the page cache
warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from building.build import BUILD, START_UP, start_up_s
from shared import builds, measuring, rates
from shared.conditions import conditions, find_photos

_COUNTS = (1_000, 3_000, 10_000, 30_000, 100_000)


def microseconds(rows: list[rates.Row], less_start_up: bool = False) -> dict[int, list[float]]:
    """Return the time of the whole command per image, by number of images, optionally minus the median start-up."""
    start_up = median(start_up_s(rows)) if less_start_up else 0.0
    built = rates.select(rows, variant=BUILD)
    return {
        images: [
            (seconds - start_up) / images * 1e6
            for seconds in rates.column(rates.select(built, images=images), "process_seconds")
        ]
        for images in rates.numbers_in(built, "images")
    }


def summary(rows: list[rates.Row]) -> str:
    built, working, first = rates.select(rows, variant=BUILD), microseconds(rows, less_start_up=True), rows[0]
    lines = []
    for images, whole in microseconds(rows).items():
        memory = max(rates.column(rates.select(built, images=images), "driver_private_mb"))
        cells = [f"{images:,}", rates.spread(whole, ".0f"), rates.spread(working[images], ".0f"), f"{memory:.0f}"]
        lines.append(cells)
    heads = ["images", "µs per image, whole command", "without start-up", "memory of the driver, MB"]
    return "\n".join(
        [
            rates.table(heads, lines),
            "",
            f"Start-up (a build of a few images): {rates.spread(start_up_s(rows), '.2f')} s.",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, {first['procs']} processes, {first['size']} px, photographs: "
            f"{rates.photographs(first)}.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    few = 2 * options.procs
    todo = {count: builds.link_tree(photos, options.work, count) for count in (few, *options.images)}
    asked = ("--size", str(options.size), "--jobs", str(options.procs))

    def build(count: int) -> Iterator[measuring.Columns]:
        where = {"variant": START_UP if count == few else BUILD, "procs": options.procs, "size": options.size}
        yield where | builds.measure(builds.presize_build(todo[count], options.work / "out", *asked))

    next(build(few))  # brings byte code and libraries into the page cache
    measuring.in_rounds({f"{count} images": partial(build, count) for count in todo}, options, conditions(photos))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--images", type=measuring.numbers, default=_COUNTS, metavar="N,N")
    arguments.add_argument("--procs", type=int, default=2)
    arguments.add_argument("--size", type=int, default=256)
    measuring.run(arguments, measure_all, summary, minutes=10)


if __name__ == "__main__":
    main()
