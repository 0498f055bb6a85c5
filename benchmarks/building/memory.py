"""Measure the private memory of a build worker of two presize versions, on photographs of 2, 12 and 50 megapixels.

    python benchmarks/building/memory.py PHOTOS --before OTHER_ENV/bin/presize

Builds mosaics of the JPEGs below PHOTOS (see mosaics.py) with one process. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import simplejpeg

from building.mosaics import mosaic
from shared import builds, measuring, rates
from shared.conditions import find_photos, machine

_PHOTOS = {2: 200, 12: 60, 50: 20}
"""Number of photographs by megapixels."""
_SIZES = (256, 1024)


def make_photos(photos: list[Path], root: Path) -> dict[int, Path]:
    """Create a folder for each number of megapixels. 50 megapixels are four times the mosaic of 12."""
    pixels = mosaic(random.Random(0).choices(photos, k=81))
    shown = {2: pixels[:1224, :1632], 12: pixels, 50: np.tile(pixels, (2, 2, 1))}
    for megapixels, count in _PHOTOS.items():
        folder = root / f"{megapixels}-megapixels"
        folder.mkdir(parents=True, exist_ok=True)
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(shown[megapixels]), 85, "RGB", "420")
        for number in range(count):
            (folder / f"{number}.jpg").write_bytes(data)
    return {megapixels: root / f"{megapixels}-megapixels" for megapixels in _PHOTOS}


def summary(rows: list[rates.Row]) -> str:
    names = sorted({row["variant"] for row in rows})
    lines = []
    for size, megapixels in product(_SIZES, _PHOTOS):
        found = [rates.select(rows, variant=name, size=size, megapixels=megapixels) for name in names]
        cells = [rates.spread(rates.column(mine, "worker_private_mb"), ".0f") for mine in found]
        lines.append([f"{megapixels} megapixels to {size} px", *cells])
    table = rates.table(["", *(f"{name}, MB" for name in names)], lines)
    return f"{table}\n\n{rates.rounds(rows)}, 1 process.\n{rates.machine(rows[0])}."


def measure_all(options: argparse.Namespace) -> None:
    folders = make_photos(find_photos(options.source)[:81], options.work)
    commands = {"now": builds.PRESIZE} | ({"before": str(options.before)} if options.before else {})
    out = options.work / "out"

    def run(name: str, size: int, megapixels: int) -> Iterator[measuring.Columns]:
        _, *asked = builds.presize_build(folders[megapixels], out, "--size", str(size), "--jobs", "1").command
        measured = builds.measure(builds.Variant([commands[name], *asked], out))
        yield {"variant": name, "size": size, "megapixels": megapixels} | measured

    variants = {f"{each}": partial(run, *each) for each in product(commands, _SIZES, _PHOTOS)}
    measuring.in_rounds(variants, options, machine(options.work), "worker_private_mb")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--before", type=Path, help="the command `presize` of another version")
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
