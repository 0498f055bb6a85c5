"""Augmentation on the CPU: torchvision, Albumentations, and presize, which crops before it decodes; and on the device.

    python benchmarks/augment.py PHOTOS --peers-python PEERS_ENV/bin/python [--device cuda]

Presizes hard links to the JPEGs below PHOTOS to 256 px. First every library makes random resized crops of 224 px of the
same stored JPEGs, mirrored by halves, in a DataLoader, in batches of several sizes. Then crop, flip and colour jitter
are done by the workers or by the device. Everything runs once a round, in random order, in processes of its own, with
the page cache warm. Prints two tables; asserts nothing. `python benchmarks/augment.py --table CSV` prints them again.
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
from typing import Any

import device_augment
import measuring
import rates
import torch
import training
from build import link_tree
from conditions import find_photos

import processes

LIBRARIES = {
    "torchvision": "torchvision v2, Pillow decodes",
    "albumentations": "Albumentations, OpenCV decodes",
    "presize-after": "presize, cropped after decoding",
    "presize": "presize, cropped before decoding",
}
_PEERS = ("torchvision", "albumentations")
_SLOW_IMAGES = 512
"""What decodes whole images reads so many of them, drawn at random."""


def measure(command: list[str], library: str, workers: int, batches: tuple[int, ...]) -> Iterator[measuring.Columns]:
    """A row for each size of a batch; none, and a line that says so, where the library cannot be imported."""
    order = random.sample(batches, len(batches))
    finished = processes.run([*command, "--workers", str(workers), "--batches", *map(str, order)])
    printed = json.loads(finished.output.splitlines()[-1])
    if "missing" in printed:
        print(f"{library} is left out: {printed['missing']}", file=sys.stderr)
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
    """What is run for each."""
    script = str(Path(__file__).parent / "peers" / "augment.py")
    for library in LIBRARIES:
        python = options.peers_python if library in _PEERS else sys.executable
        if python is None:
            print(f"{library} is left out: no --peers-python", file=sys.stderr)
        elif library == "presize":
            yield library, [str(python), script, str(lmdb), library]
        else:
            yield library, [str(python), script, str(files), library, "--images", str(_SLOW_IMAGES)]


def by_library(rows: list[rates.Row]) -> dict[tuple[str, int], dict[int, list[float]]]:
    """(library, workers) -> size of a batch -> images a second."""
    found = {}
    for library, workers in product(LIBRARIES, numbers_in(rows, "workers")):
        mine = training.select(rows, variant=library, workers=workers)
        if mine:
            batches = numbers_in(mine, "batch")
            found[library, workers] = {
                batch: training.column(training.select(mine, batch=batch), "images_per_s") for batch in batches
            }
    return found


def numbers_in(rows: list[rates.Row], column: str) -> list[int]:
    return sorted({int(row[column]) for row in rows})


def by_place(rows: list[rates.Row]) -> dict[str, list[rates.Row]]:
    """Who augments -> the rows of its runs."""
    found = {place: training.select(rows, variant=place) for place in device_augment.PLACES}
    return {place: mine for place, mine in found.items() if mine}


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets."""
    found = by_library(rows)
    batches = sorted({batch for rate in found.values() for batch in rate})
    lines = [f"| images/s | workers | {' | '.join(f'batches of {batch}' for batch in batches)} |"]
    lines.append("|---|---|" + "---|" * len(batches))
    for (library, workers), rate in found.items():
        cells = [rates.Spread.of(rate[batch]).format(".0f") if batch in rate else "" for batch in batches]
        lines.append(f"| {LIBRARIES[library]} | {workers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def device_table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; the ratios are those within a round."""
    found = by_place(rows)
    first = next(iter(found.values()))
    heads = ["crop, flip, colour jitter", "images/s", "times all by the workers", "ms a batch on the device"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|"]
    for place, mine in found.items():
        images, base = (training.column(runs, "images_per_s") for runs in (mine, first))
        seconds = rates.Spread.of([1e3 * value for value in training.column(mine, "augment_s")])
        cells = [device_augment.PLACES[place], rates.Spread.of(images).format(".0f")]
        cells += [rates.ratios(images, base).format(".2f"), seconds.format(".1f")]
        lines.append(f"| {' | '.join(cells)} |")
    device, row = first[0]["device"], first[0]
    said = "the CPU: there is no GPU here, and this shows that all runs" if device == "cpu" else device
    workers = f"{row['workers']} worker{'' if row['workers'] == '1' else 's'}"
    return "\n".join([*lines, "", f"Batches of {row['batch']}, {workers}. The device is {said}."])


def summary(rows: list[rates.Row]) -> str:
    versions = sorted({version for row in rows for version in row["versions"].split()})
    return "\n".join(
        [
            table(rows),
            "",
            *([device_table(rows), ""] if by_place(rows) else []),
            training.closing(rows),
            f"{', '.join(version.replace('=', ' ') for version in versions)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no CUDA here; --device cpu shows whether all runs")
    tree = link_tree(find_photos(options.source), options.work, options.images)
    lmdb = training.build(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256").absolute()
    files = lmdb.with_name(f"{lmdb.name}-files")
    if not files.exists():
        presize = str(Path(sys.executable).with_name("presize"))
        subprocess.run([presize, "export", str(lmdb), str(files)], check=True, stdout=sys.stderr)
    variants: dict[str, Any] = {}
    for (library, command), workers in product(libraries(options, lmdb, files), options.workers):
        name = f"{library}, {workers} worker{'' if workers == 1 else 's'}"
        variants[name] = partial(measure, command, library, workers, options.batches)
    for place, said in device_augment.PLACES.items():
        variants[said] = partial(
            device_augment.measure, place, lmdb, options.device, options.device_batch, options.device_workers
        )
    measuring.in_rounds(variants, options, training.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, "augment.csv", repeats=3)
    arguments.add_argument("--peers-python", type=Path, help="of the environment with torchvision and Albumentations")
    arguments.add_argument("--images", type=int, default=1024)
    arguments.add_argument("--workers", type=measuring.numbers, default=(1, 2), metavar="N,N")
    arguments.add_argument("--batches", type=measuring.numbers, default=(1, 32, 128, 256), metavar="N,N")
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the second table")
    arguments.add_argument("--device-workers", type=int, default=1)
    arguments.add_argument("--device-batch", type=int, default=64)
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
