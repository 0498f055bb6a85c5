"""Measure the cost of progressive JPEGs for a build, an upper bound of what a faster decoder could save.

    python benchmarks/building/progressive.py PHOTOS

Encodes the JPEGs below PHOTOS again into three folders with the same coefficients: all baseline, every fifth
progressive, all progressive. Builds each folder once per round, in random order, with two processes and the page cache
warm. presize decodes baseline JPEGs itself and progressive ones by libjpeg-turbo: with a decoder as fast for both, all
folders would take the time of the first. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, rates
from shared.conditions import conditions, find_photos

_EVERY = {"baseline": 0, "fifth": 5, "progressive": 1}
"""One photograph in this many is progressive; 0 means none."""
_WORDS = {
    "baseline": "all baseline",
    "fifth": "every fifth progressive",
    "progressive": "all progressive",
}


def write_tree(photos: list[Path], root: Path, every: int) -> Path:
    """Write the photographs into class folders, unless `root` exists."""
    if root.exists():
        return root
    unfinished = root.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for number, photo in enumerate(photos):
        with Image.open(photo) as image:
            buffer = io.BytesIO()
            progressive = every > 0 and number % every == 0
            image.convert("RGB").save(buffer, "JPEG", quality=90, progressive=progressive)
        place = unfinished / f"class-{number % 10}" / f"{number:07d}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(buffer.getvalue())
    unfinished.rename(root)
    return root


def summary(rows: list[rates.Row]) -> str:
    least = rates.column(rates.select(rows, variant="baseline"), "seconds")
    lines = []
    for variant, words in _WORDS.items():
        found = rates.select(rows, variant=variant)
        lines.append(
            [
                words,
                rates.spread(rates.column(found, "images_per_s"), ".0f"),
                rates.times(rates.column(found, "seconds"), least),
            ]
        )
    first = rows[0]
    return "\n".join(
        [
            rates.table(["photographs", "images/s", "time, times all baseline"], lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, 2 processes, 256 px, {first['images']} photographs: {rates.photographs(first)}.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    written = [photos[number % len(photos)] for number in range(options.images)]
    trees = {
        variant: write_tree(written, options.work / f"progressive-{options.images}-{variant}", every)
        for variant, every in _EVERY.items()
    }
    out = options.work / "out"

    def run(variant: str) -> Iterator[measuring.Columns]:
        build = builds.presize_build(trees[variant], out, "--size", "256", "--jobs", "2")
        yield {"variant": variant} | builds.measure(build)

    for variant in trees:
        next(run(variant))  # fills the page cache
    measuring.in_rounds({variant: partial(run, variant) for variant in trees}, options, conditions(photos))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=7)
    arguments.add_argument("--images", type=int, default=4000)
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
