"""Measure the gain of pinned memory (pin_memory) and asynchronous copies (non_blocking), with and without workers.

    python benchmarks/gpu/pinning.py PHOTOS

Trains the small CNN on hard links to the JPEGs below PHOTOS, from LMDB of 256 px, through LMDBDataset in a DataLoader.
Each combination runs once per round, in random order, in its own process, with the page cache warm. Prints a table;
asserts nothing. With `--device cpu`, a dry run, nothing is pinned or copied.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader
from presize.datasets.timing.epochs import copied_s, resident_s, time_epoch
from presize.datasets.timing.models import TrainingStep, make_model
from shared import bench_runs, builds, measuring, processes, rates
from shared.conditions import find_photos

_EPOCHS = 2
"""Epochs of a run. The first is not counted."""


class Way(NamedTuple):
    workers: int
    pin_memory: bool
    non_blocking: bool

    def __str__(self) -> str:
        said = [f"{name} {'on' if value else 'off'}" for name, value in zip(self._fields[1:], self[1:], strict=True)]
        return ", ".join([f"{self.workers} workers", *said])


class Copying(TrainingStep):
    """Training step that copies with `non_blocking` on or off; a TrainingStep always has it on."""

    def __init__(self, model: torch.nn.Module, device: torch.device, non_blocking: bool) -> None:
        super().__init__(model, device)
        self.non_blocking = non_blocking

    def place(self, batch: Any) -> Any:
        return [part.to(self.device, non_blocking=self.non_blocking) for part in batch]


def train(way: Way, root: Path, device: torch.device, batch: int) -> measuring.Columns:
    """Measure a combination. Must run in its own process, because it sets torch's threads and initializes CUDA."""
    if device.type == "cpu":
        torch.set_num_threads(1)  # with several, training would wait for the workers' cores
    torch.manual_seed(0)
    data = LMDBDataset(root, crop=RandomResizedCrop(224), flip=0.5, decode="tensor")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pin_memory.*")  # no accelerator
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
        loader = make_loader(
            data, batch, shuffle=True, num_workers=way.workers, drop_last=True, pin_memory=way.pin_memory
        )
        step = Copying(make_model("small", len(data.classes or (0,)))[0], device, way.non_blocking)
        epochs = [time_epoch(loader, step, warmup_steps=max(1, way.workers)) for _ in range(_EPOCHS)][1:]
        one = next(iter(loader))
    del loader
    return {
        "pinned": device.type == "cuda" and one[0].is_pinned(),
        "images": epochs[0].images,
        "images_per_s": round(fmean(epoch.images_per_s for epoch in epochs), 1),
        "step_s": round(batch / fmean(epoch.images_per_s for epoch in epochs), 6),
        "resident_s": round(resident_s(step, one), 6),
        "copied_s": round(copied_s(step, one), 6),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def measure(way: Way, root: Path, options: argparse.Namespace) -> Iterator[measuring.Columns]:
    meter = processes.Meter()
    found = processes.apart(train, way, root, torch.device(options.device), options.batch)
    named = way._asdict() | {"device": options.device, "batch": options.batch}
    yield named | found | {"other_cpu": round(meter.other_cpu(), 3)}


def ways(rows: list[rates.Row]) -> dict[Way, list[rates.Row]]:
    """Return the rows of each combination, in the order of the table."""
    names = Way._fields
    found = {
        Way(*way): rates.select(rows, **dict(zip(names, way, strict=True)))
        for way in product(rates.numbers_in(rows, "workers"), (False, True), (False, True))
    }
    return {way: chosen for way, chosen in found.items() if chosen}


def summary(rows: list[rates.Row]) -> str:
    """Format the table. Ratios are within a round, to both options off. "A copy adds" is T_h2d - T_resident."""
    heads = ["workers", "pin_memory", "non_blocking", "pinned", "images/s", "times both off", "U", "a copy adds, ms"]
    found, lines = ways(rows), []
    for way, mine in found.items():
        base = found[Way(way.workers, False, False)]
        times = zip(*(rates.column(mine, name) for name in ("copied_s", "resident_s")), strict=True)
        lines.append(
            [
                str(way.workers),
                *("on" if value else "off" for value in way[1:]),
                "yes" if mine[0]["pinned"] == "True" else "no",
                rates.spread(rates.column(mine, "images_per_s"), ".0f"),
                rates.times(*(rates.column(runs, "images_per_s") for runs in (mine, base))),
                f"{bench_runs.utilisation(mine, rates.select(rows, workers=way.workers)):.2f}",
                rates.spread([1e3 * (copied - resident) for copied, resident in times], ".2f"),
            ]
        )
    first = rows[0]
    said = f"The small CNN on {first['device_name']}, batches of {first['batch']} random resized crops of 224 px."
    return "\n".join([rates.table(heads, lines), "", said, bench_runs.closing(rows)])


def measure_all(options: argparse.Namespace) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA; use --device cpu for a dry run")
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    lmdb = builds.build_once(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256")
    todo = [Way(*way) for way in product(options.workers, (False, True), (False, True))]
    variants = {str(way): partial(measure, way, lmdb.absolute(), options) for way in todo}
    measuring.in_rounds(variants, options, bench_runs.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    arguments.add_argument("--workers", type=measuring.numbers, default=(0, 4), metavar="N,N")
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--images", type=int, default=20_000)
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
