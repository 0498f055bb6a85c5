"""How many workers: loading in the training process against workers beside it, one to N.

    python benchmarks/workers.py PHOTOS

A mock dataset that sleeps, in a plain DataLoader, before a training step that sleeps; then real images, a raw folder
and LMDB in a DataLoader. Each number of workers is run once a round, all in random order; the real ones in processes
of their own, with the page cache warm. Prints a table and an advice; asserts nothing.
`python benchmarks/workers.py --table CSV` prints one again.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import measuring
import rates
import torch
import training
from build import link_tree
from conditions import find_photos
from torch.utils.data import DataLoader, Dataset

import processes
from presize.datasets.timing.epochs import HostClock, time_epoch
from presize.measure.bench_options import BenchOptions

MOCK = "mock that sleeps"
LOAD_S, STEP_S = 0.1, 0.04
"""What a mock batch sleeps while it is loaded, and the step that trains on it: two and a half workers' work."""

MOCK_BATCH = 10
_MOCK_STEPS = 30
_EPOCHS = {"raw": 2, "lmdb": 5}
"""The first is not counted, and those of LMDB are short."""

NEAR = 0.95
"""Workers are enough when there is no more than this to gain from more."""


class Sleeping(Dataset[torch.Tensor]):
    """Takes its time, and none of a core's: what a slow disk is like."""

    def __len__(self) -> int:
        return MOCK_BATCH * _MOCK_STEPS

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(LOAD_S / MOCK_BATCH)
        return torch.tensor([i])


class SleepingStep:
    """Training on something else: the device is busy, the cores are not."""

    clock = HostClock()

    def place(self, batch: Any) -> Any:
        return batch

    def __call__(self, placed: Any) -> None:  # noqa: ARG002
        time.sleep(STEP_S)


def foretold_s(workers: int) -> float:
    """A step of the mock: one after the other without workers, else whoever is slower."""
    return max(LOAD_S / workers, STEP_S) if workers else LOAD_S + STEP_S


def advice(images_per_s: dict[int, list[float]]) -> int:
    """The fewest workers that are, by medians, within 5 % of the fastest."""
    medians = {workers: median(values) for workers, values in images_per_s.items()}
    return min(workers for workers, rate in medians.items() if rate >= NEAR * max(medians.values()))


def mock(workers: int) -> Iterator[measuring.Columns]:
    meter = processes.Meter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: they sleep
        loader = DataLoader(Sleeping(), MOCK_BATCH, num_workers=workers)
        epoch = time_epoch(loader, SleepingStep(), warmup_steps=max(1, workers))
    yield {
        "reads": MOCK,
        "variant": "mock",
        "model": "sleep",
        "workers": workers,
        "batch": MOCK_BATCH,
        "images": epoch.images,
        "images_per_s": round(epoch.images_per_s, 2),
        "step_s": round(MOCK_BATCH / epoch.images_per_s, 5),
        "resident_s": STEP_S,
        "copied_s": STEP_S,
        "other_cpu": round(meter.other_cpu(), 3),
    }


def sweeps(rows: list[rates.Row]) -> dict[tuple[str, str], dict[int, list[rates.Row]]]:
    """(variant, model) -> workers -> the rows of their runs."""
    found: dict[tuple[str, str], dict[int, list[rates.Row]]] = {}
    kinds = {(row["variant"], row["model"]): None for row in rows}
    for variant, model in sorted(kinds, key=lambda kind: (kind[1], ["mock", "raw", "lmdb"].index(kind[0]))):
        chosen = training.select(rows, variant=variant, model=model)
        counts = sorted({int(row["workers"]) for row in chosen})
        found[variant, model] = {count: training.select(chosen, workers=count) for count in counts}
    return found


def rate(sweep: dict[int, list[rates.Row]]) -> dict[int, list[float]]:
    return {workers: training.column(rows, "images_per_s") for workers, rows in sweep.items()}


def label(variant: str, model: str) -> str:
    read = {"mock": MOCK, "raw": "raw folder", "lmdb": "LMDB"}[variant]
    return read if model in ("sleep", "none") else f"{read}, training {training.MODELS[model]}"


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; ratios are those within a round."""
    found = sweeps(rows)
    lines: list[str] = []
    mocked = found.pop(("mock", "sleep"), {})
    if mocked:
        lines += [f"| {MOCK}: workers | ms a step | foretold | images/s | U |", "|---|---|---|---|---|"]
    for workers, runs in mocked.items():
        step = rates.Spread.of([1e3 * seconds for seconds in training.column(runs, "step_s")])
        images = rates.Spread.of(training.column(runs, "images_per_s"))
        share = STEP_S * 1e3 / step.median
        lines.append(
            f"| {workers} | {step.format('.1f')} | {1e3 * foretold_s(workers):.1f} | {images.format('.0f')} "
            f"| {share:.2f} |"
        )
    heads = [f"{label(*kind)}: images/s | times without workers" for kind in found]
    lines += ["", f"| workers | {' | '.join(heads)} |", "|---|" + "---|---|" * len(found)] if found else []
    for workers in sorted({count for sweep in found.values() for count in sweep}):
        cells = []
        for sweep in map(rate, found.values()):
            cells.append(rates.Spread.of(sweep[workers]).format(".0f") if workers in sweep else "")
            cells.append(rates.ratios(sweep[workers], sweep[0]).format(".2f") if {0, workers} <= sweep.keys() else "")
        lines.append(f"| {workers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[rates.Row]) -> str:
    enough = [f"{label(*kind)}: {advice(rate(sweep))}" for kind, sweep in sweeps(rows).items()]
    said = f"Workers that are enough, the fewest within 5 % of the fastest: {'; '.join(enough)}."
    real = [row for row in rows if row["variant"] != "mock"] or rows
    read = f"Batches of {real[0]['batch']}, random resized crops of {real[0]['crop']} px; LMDB of 256 px."
    return "\n".join([table(rows), "", said, "", read, training.closing(rows)])


def measure_all(options: argparse.Namespace) -> None:
    tree = link_tree(find_photos(options.source), options.work, options.images)
    lmdb = training.build(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256")
    variants: dict[str, Any] = {f"{MOCK}, {count} workers": partial(mock, count) for count in options.workers}
    for variant, root in {"raw": tree, "lmdb": lmdb}.items():
        asked = BenchOptions(
            models=tuple(options.models.split(",")),
            workers=options.workers,
            epochs=_EPOCHS[variant],
            steps=options.steps,
        )
        variants.update(training.variants_of(asked, {variant: root}))  # type: ignore[dict-item]
    measuring.in_rounds(variants, options, training.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, "workers.csv", repeats=5)
    most = len(os.sched_getaffinity(0)) + 2
    arguments.add_argument("--workers", type=measuring.numbers, default=tuple(range(most + 1)), metavar="N,N")
    arguments.add_argument("--models", default="none", metavar="MODEL,MODEL", help="none, small; none by default")
    arguments.add_argument("--images", type=int, default=2000)
    arguments.add_argument("--steps", type=int, default=12, help="of an epoch of real images, batches of 64")
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
