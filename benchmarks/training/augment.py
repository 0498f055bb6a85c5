"""Compare random crops on the CPU by torchvision, Albumentations, and presize, which crops before decoding.

    python benchmarks/training/augment.py PHOTOS --peers-python PEERS_ENV/bin/python

Presizes hard links to the JPEGs below PHOTOS to 256 px. Every library makes random resized crops of 224 px of the same
stored JPEGs, mirrored with probability 1/2, in a DataLoader, in batches of several sizes. Each runs once per round, in
random order, in its own process, with the page cache warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import bench_runs, builds, measuring, processes, rates
from shared.conditions import find_photos

LIBRARIES = {
    "torchvision": "torchvision v2, Pillow decodes",
    "albumentations": "Albumentations, OpenCV decodes",
    "presize-after": "presize, cropped after decoding",
    "presize": "presize, cropped before decoding",
}
_PEERS = ("torchvision", "albumentations")
_SLOW_IMAGES = 512
"""Images, drawn at random, that each variant reads if it decodes whole images."""


def measure(command: list[str], library: str, workers: int, batches: tuple[int, ...]) -> Iterator[measuring.Columns]:
    """Yield a row for each batch size, or print a message if the library cannot be imported."""
    order = random.sample(batches, len(batches))
    finished = processes.run([*command, "--workers", str(workers), "--batches", *map(str, order)])
    printed = json.loads(finished.output.splitlines()[-1])
    if "missing" in printed:
        print(f"skipping {library}: {printed['missing']}", file=sys.stderr)
        return
    for batch, found in printed["batches"].items():
        yield {
            "variant": library,
            "workers": workers,
            "batch": int(batch),
            **found,
            "images_per_s": round(found["images"] / found["seconds"], 1),
            "other_cpu": round(finished.other_cpu, 3),
            "versions": printed["versions"],
        }


def libraries(options: argparse.Namespace, lmdb: Path, files: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the libraries and their commands."""
    script = str(builds.PEERS / "augment.py")
    for library in LIBRARIES:
        python = options.peers_python if library in _PEERS else sys.executable
        if python is None:
            print(f"skipping {library}: needs --peers-python", file=sys.stderr)
        elif library == "presize":
            yield library, [str(python), script, str(lmdb), library]
        else:
            yield library, [str(python), script, str(files), library, "--images", str(_SLOW_IMAGES)]


def by_library(rows: list[rates.Row]) -> dict[tuple[str, int], dict[int, list[float]]]:
    """Return images/s by (library, workers) and batch size."""
    found = {}
    for library, workers in product(LIBRARIES, rates.numbers_in(rows, "workers")):
        mine = rates.select(rows, variant=library, workers=workers)
        if mine:
            batches = rates.numbers_in(mine, "batch")
            found[library, workers] = {
                batch: rates.column(rates.select(mine, batch=batch), "images_per_s") for batch in batches
            }
    return found


def summary(rows: list[rates.Row]) -> str:
    batches, lines = rates.numbers_in(rows, "batch"), []
    for (library, workers), rate in by_library(rows).items():
        cells = [rates.spread(rate[batch], ".0f") if batch in rate else "" for batch in batches]
        lines.append([LIBRARIES[library], str(workers), *cells])
    heads = ["images/s", "workers", *(f"batches of {batch}" for batch in batches)]
    return "\n".join([rates.table(heads, lines), "", bench_runs.closing(rows), f"{rates.versions(rows)}."])


def measure_all(options: argparse.Namespace) -> None:
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    lmdb = builds.build_once(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256").absolute()
    files = lmdb.with_name(f"{lmdb.name}-files")
    if not files.exists():
        subprocess.run([builds.PRESIZE, "export", str(lmdb), str(files)], check=True, stdout=sys.stderr)
    variants = {
        f"{library}, {rates.workers_text(workers)}": partial(measure, command, library, workers, options.batches)
        for (library, command), workers in product(libraries(options, lmdb, files), options.workers)
    }
    measuring.in_rounds(variants, options, bench_runs.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--peers-python", type=Path, help="interpreter with torchvision and Albumentations")
    arguments.add_argument("--images", type=int, default=1024)
    arguments.add_argument("--workers", type=measuring.numbers, default=(1, 2), metavar="N,N")
    arguments.add_argument("--batches", type=measuring.numbers, default=(1, 32, 128, 256), metavar="N,N")
    measuring.run(arguments, measure_all, summary, minutes=4)


if __name__ == "__main__":
    main()
