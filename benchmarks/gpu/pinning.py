"""Page-locked memory and copies that nobody waits for: pin_memory, non_blocking, and workers that load meanwhile.

    python benchmarks/pinning.py PHOTOS --device cuda

Trains the small CNN on hard links to the JPEGs below PHOTOS, in LMDB of 256 px, by LMDBDataset in a DataLoader: each
combination once a round, in random order, in a process of its own, with the page cache warm. Without CUDA there is
nothing to copy to and no memory to lock: on the CPU, the default, it shows that all runs, and noise. Prints a table;
asserts nothing. `python benchmarks/pinning.py --table CSV` prints one again.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import measuring
import rates
import torch
import training
from build import link_tree
from conditions import find_photos

import processes
from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader
from presize.datasets.timing.epochs import copied_s, resident_s, time_epoch
from presize.datasets.timing.models import TrainingStep, make_model

_EPOCHS = 2
"""The first is not counted."""


class Way(NamedTuple):
    workers: int
    pin_memory: bool
    non_blocking: bool

    def __str__(self) -> str:
        said = [f"{name} {'on' if value else 'off'}" for name, value in zip(self._fields[1:], self[1:], strict=True)]
        return ", ".join([f"{self.workers} workers", *said])


class Copying(TrainingStep):
    """Copies as it is told to, not always without waiting."""

    def __init__(self, model: torch.nn.Module, device: torch.device, non_blocking: bool) -> None:
        super().__init__(model, device)
        self.non_blocking = non_blocking

    def place(self, batch: Any) -> Any:
        return [part.to(self.device, non_blocking=self.non_blocking) for part in batch]


def train(way: Way, root: Path, device: torch.device, batch: int) -> measuring.Columns:
    """To be called in a process of its own: it sets torch's threads, and asks for CUDA."""
    if device.type == "cpu":
        torch.set_num_threads(1)  # with several, training waits for cores that workers have
    torch.manual_seed(0)
    data = LMDBDataset(root, crop=RandomResizedCrop(224), flip=0.5, decode="tensor")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pin_memory.*")  # that there is nothing to lock it for
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
        loader = make_loader(data, batch, shuffle=True, workers=way.workers, last="drop", pin_memory=way.pin_memory)
        step = Copying(make_model("small", len(data.classes or (0,)))[0], device, way.non_blocking)
        epochs = [time_epoch(loader, step, warmup_steps=max(1, way.workers)) for _ in range(_EPOCHS)][1:]
        one = next(iter(loader))
    del loader
    locked = device.type == "cuda" and one[0].is_pinned()
    return {
        "page_locked": locked,
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
    """The rows of each, in the order of the table."""
    names = Way._fields
    found = {
        Way(*way): training.select(rows, **dict(zip(names, way, strict=True)))
        for way in product(sorted({int(row["workers"]) for row in rows}), (False, True), (False, True))
    }
    return {way: chosen for way, chosen in found.items() if chosen}


def copying_ms(rows: list[rates.Row]) -> list[float]:
    """T_h2d - T_resident of each run: what the copy of a batch adds to a step."""
    return [1e3 * (float(row["copied_s"]) - float(row["resident_s"])) for row in rows]


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; ratios are those within a round, to both off."""
    found = ways(rows)
    lines = [
        "| workers | pin_memory | non_blocking | page-locked | images/s | times both off | U | ms a copy adds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way, mine in found.items():
        images, base = (training.column(runs, "images_per_s") for runs in (mine, found[Way(way.workers, False, False)]))
        others = training.select(rows, workers=way.workers)
        copied = rates.Spread.of(copying_ms(mine)).format(".2f") if mine[0]["device"] == "cuda" else "no copy"
        cells = [
            str(way.workers),
            *("on" if value else "off" for value in way[1:]),
            "yes" if mine[0]["page_locked"] == "True" else "no",
            rates.Spread.of(images).format(".0f"),
            rates.ratios(images, base).format(".2f"),
            f"{training.utilisation(mine, others):.2f}",
            copied,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[rates.Row]) -> str:
    first = rows[0]
    said = f"The small CNN on {first['device_name']}, batches of {first['batch']} random resized crops of 224 px."
    if first["device"] == "cpu":
        said += " Without CUDA nothing is page-locked and nothing is copied: the differences are noise."
    return "\n".join([table(rows), "", said, training.closing(rows)])


def measure_all(options: argparse.Namespace) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no CUDA here; --device cpu shows whether all runs")
    tree = link_tree(find_photos(options.source), options.work, options.images)
    lmdb = training.build(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256")
    todo = [Way(*way) for way in product(options.workers, (False, True), (False, True))]
    variants = {str(way): partial(measure, way, lmdb.absolute(), options) for way in todo}
    measuring.in_rounds(variants, options, training.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, "pinning.csv", repeats=3)
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments.add_argument("--workers", type=measuring.numbers, default=(0, 4), metavar="N,N")
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--images", type=int, default=640, help="on a GPU rather 20,000")
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
