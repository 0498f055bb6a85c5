"""Measure the cost of the readers' checks: the same epochs with `check=True` and `check=False`, in one run.

    python benchmarks/reading/checks.py PHOTOS

Builds a 256 px dataset of hard links to the JPEGs below PHOTOS. Each variant runs once per round, in random order, in
its own process, with the page cache warm: it opens the dataset, checks the pages of all shards, and reads two epochs of
random crops and of stored records without decoding them. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, processes, rates
from shared.conditions import conditions, find_photos

VARIANTS = {"check": True, "no check": False}


def run(root: Path, check: bool) -> list[measuring.Columns]:
    """Measure a first and a second epoch in this process, and return their columns."""
    import torch

    from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
    from presize.store.dataset import Dataset
    from presize.store.shard_pages import check_pages

    torch.set_num_threads(1)
    meter = processes.Meter()

    def crops(data: LMDBDataset) -> Loader:
        return Loader(data, 128, crop=RandomResizedCrop(224), flip=0.5, shuffle=True, seed=0, num_workers=0)

    next(iter(crops(LMDBDataset(root, check=False))))  # loads libraries
    opened = _seconds(lambda: LMDBDataset(root, check=check))
    data = LMDBDataset(root, check=check)
    pages = _seconds(lambda: [check_pages(root / shard.file) for shard in data.data.manifest.shards])
    loader, records = crops(data), Dataset(root, check=check)

    def read_crops() -> None:
        for _ in loader:
            pass

    def read_records() -> None:
        for _ in records.values(range(len(records))):
            pass

    epochs = [(_seconds(read_crops), _seconds(read_records)) for _ in range(2)]
    return [
        {
            "epoch": number + 1,
            "images": len(data),
            "images_per_s": round(len(data) / crops_s, 1),
            "crops_us": round(crops_s / len(data) * 1e6, 2),
            "records_us": round(records_s / len(data) * 1e6, 3),
            "open_ms": round(opened * 1e3, 3),
            "pages_ms": round(pages * 1e3, 3),
            "pages_us": round(pages / len(data) * 1e6, 3),
            "record_kb": round(data.data.manifest.bytes / len(data) / 1e3, 1),
            "shards": len(data.data.manifest.shards),
            "other_cpu": round(meter.other_cpu(), 3),
        }
        for number, (crops_s, records_s) in enumerate(epochs)
    ]


def _seconds(work: Callable[[], object]) -> float:
    """Return CPU time, which other programs disturb less than wall time. With a warm page cache, both are equal."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    tree = builds.link_tree(photos, options.work, options.images)
    root = builds.build_once(tree, options.work / f"checks-{tree.name}", "--size", "256")

    def fresh(name: str) -> Iterator[measuring.Columns]:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            for columns in pool.submit(run, root, VARIANTS[name]).result():
                yield {"variant": name} | columns

    measuring.in_rounds({name: partial(fresh, name) for name in VARIANTS}, options, conditions(photos))


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for epoch in (1, 2):
        found = {name: rates.select(rows, variant=name, epoch=epoch) for name in VARIANTS}
        crops, records = (
            {name: rates.column(found[name], column) for name in VARIANTS} for column in ("crops_us", "records_us")
        )
        more = [a - b for a, b in zip(records["check"], records["no check"], strict=True)]
        lines.append(
            [
                f"{epoch}",
                *(rates.spread(crops[name], ".0f") for name in VARIANTS),
                rates.times(crops["check"], crops["no check"]),
                rates.spread(more, ".2f"),
                rates.spread([m / c for m, c in zip(more, crops["no check"], strict=True)], ".2%"),
            ]
        )
    first = rows[0]
    opened = {name: rates.column(rates.select(rows, variant=name, epoch=1), "open_ms") for name in VARIANTS}
    every = rates.select(rows, epoch=1)
    heads = ["epoch", "crops, checked: µs", "unchecked: µs", "ratio", "the checks alone: µs", "of an unchecked crop"]
    return "\n".join(
        [
            rates.table(heads, lines),
            "",
            f"Opening: {rates.spread(opened['check'], '.1f')} ms, unchecked {rates.spread(opened['no check'], '.1f')}.",
            f"Pages of {first['shards']} shards: {rates.spread(rates.column(every, 'pages_ms'), '.1f')} ms, "
            f"{rates.spread(rates.column(every, 'pages_us'), '.2f')} µs per image.",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, {first['images']} images of {first['record_kb']} kB, photographs: "
            f"{rates.photographs(first)}.",
            f"{rates.machine(first)}, Python {first['python']}.",
        ]
    )


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=7)
    arguments.add_argument("--images", type=int, default=4000)
    measuring.run(arguments, measure, summary)


if __name__ == "__main__":
    main()
