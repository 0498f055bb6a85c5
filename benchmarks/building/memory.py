"""Measure the private memory of a build worker, on photographs of 2, 12 and 50 megapixels.

    python benchmarks/building/memory.py PHOTOS

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
    lines = []
    for size in _SIZES:
        found = (rates.select(rows, size=size, megapixels=megapixels) for megapixels in _PHOTOS)
        cells = (rates.spread(rates.column(mine, "worker_private_mb"), ".0f") for mine in found)
        lines.append([f"to {size} px, MB", *cells])
    table = rates.table(["", *(f"{megapixels} megapixels" for megapixels in _PHOTOS)], lines)
    return f"{table}\n\n{rates.rounds(rows)}, 1 process.\n{rates.machine(rows[0])}."


def measure_all(options: argparse.Namespace) -> None:
    folders = make_photos(find_photos(options.source)[:81], options.work)
    out = options.work / "out"

    def run(size: int, megapixels: int) -> Iterator[measuring.Columns]:
        variant = builds.presize_build(folders[megapixels], out, "--size", str(size), "--jobs", "1")
        yield {"size": size, "megapixels": megapixels} | builds.measure(variant)

    variants = {f"{each}": partial(run, *each) for each in product(_SIZES, _PHOTOS)}
    measuring.in_rounds(variants, options, machine(options.work), "worker_private_mb")


def main() -> None:
    measuring.run(measuring.parser(__doc__, __file__, repeats=3), measure_all, summary)


if __name__ == "__main__":
    main()
