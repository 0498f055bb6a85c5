"""Compare loading in the training process with loading by one to N workers.

    python benchmarks/training/workers.py PHOTOS

Runs a mock dataset that sleeps, in a plain DataLoader, with a training step that sleeps; and real images from a raw
folder and from LMDB in a DataLoader. Each number of workers runs once per round, in random order; real images run in
their own processes, with the page cache warm. Prints a table and a recommendation; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from presize.datasets.timing.epochs import NoModel, time_epoch
from presize.measure.bench_options import BenchOptions
from shared import bench_runs, builds, measuring, processes, rates
from shared.conditions import find_photos

MOCK = "mock that sleeps"
LOAD_S, STEP_S = 0.1, 0.04
"""Seconds that loading a mock batch and a training step sleep: work for two and a half workers."""

MOCK_BATCH = 10
_MOCK_STEPS = 30
_EPOCHS = {"raw": 2, "lmdb": 5}
"""Epochs of a run. The first does not count; epochs of LMDB are short."""

NEAR = 0.95
"""Share of the fastest rate from which workers are enough."""


class Sleeping(Dataset[torch.Tensor]):
    """Dataset that takes time but no CPU, like a slow disk."""

    def __len__(self) -> int:
        return MOCK_BATCH * _MOCK_STEPS

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(LOAD_S / MOCK_BATCH)
        return torch.tensor([i])


class SleepingStep(NoModel):
    """Training step that leaves the cores idle, as on a GPU."""

    def __call__(self, placed: Any) -> None:  # noqa: ARG002
        time.sleep(STEP_S)


def predicted_s(workers: int) -> float:
    """Return the predicted step time of the mock: the sum of both without workers, else the longer one."""
    return max(LOAD_S / workers, STEP_S) if workers else LOAD_S + STEP_S


def enough(images_per_s: dict[int, list[float]]) -> int:
    """Return the fewest workers with a median rate within 5% of the fastest."""
    medians = {workers: median(values) for workers, values in images_per_s.items()}
    return min(workers for workers, rate in medians.items() if rate >= NEAR * max(medians.values()))


def mock(workers: int) -> Iterator[measuring.Columns]:
    meter = processes.Meter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: they sleep
        loader = DataLoader(Sleeping(), MOCK_BATCH, num_workers=workers)
        epoch = time_epoch(loader, SleepingStep(torch.device("cpu")), warmup_steps=max(1, workers))
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
    """Return the rows of runs by (variant, model) and number of workers."""
    found: dict[tuple[str, str], dict[int, list[rates.Row]]] = {}
    kinds = {(row["variant"], row["model"]): None for row in rows}
    for variant, model in sorted(kinds, key=lambda kind: (kind[1], ["mock", "raw", "lmdb"].index(kind[0]))):
        chosen = rates.select(rows, variant=variant, model=model)
        counts = rates.numbers_in(chosen, "workers")
        found[variant, model] = {count: rates.select(chosen, workers=count) for count in counts}
    return found


def rate(sweep: dict[int, list[rates.Row]]) -> dict[int, list[float]]:
    return {workers: rates.column(rows, "images_per_s") for workers, rows in sweep.items()}


def label(variant: str, model: str) -> str:
    read = {"mock": MOCK, "raw": "raw folder", "lmdb": "LMDB"}[variant]
    return read if model in ("sleep", "none") else f"{read}, training {bench_runs.MODELS[model]}"


def tables(rows: list[rates.Row]) -> list[str]:
    found = sweeps(rows)
    mocked, made = found.pop(("mock", "sleep"), {}), []
    lines = []
    for workers, runs in mocked.items():
        step, images = (rates.column(runs, name) for name in ("step_s", "images_per_s"))
        milliseconds = [1e3 * seconds for seconds in step]
        cells = [rates.spread(milliseconds, ".1f"), f"{1e3 * predicted_s(workers):.1f}", rates.spread(images, ".0f")]
        lines.append([str(workers), *cells, f"{STEP_S * 1e3 / median(milliseconds):.2f}"])
    if mocked:
        made.append(rates.table([f"{MOCK}: workers", "ms per step", "predicted", "images/s", "U"], lines))
    heads = ["workers"]
    for kind in found:
        heads += [f"{label(*kind)}: images/s", "times without workers"]
    lines = []
    for workers in sorted({count for sweep in found.values() for count in sweep}):
        cells = [str(workers)]
        for sweep in map(rate, found.values()):
            both = {0, workers} <= sweep.keys()
            cells.append(rates.spread(sweep[workers], ".0f") if workers in sweep else "")
            cells.append(rates.times(sweep[workers], sweep[0]) if both else "")
        lines.append(cells)
    return [*made, rates.table(heads, lines)] if found else made


def summary(rows: list[rates.Row]) -> str:
    fewest = [f"{label(*kind)}: {enough(rate(sweep))}" for kind, sweep in sweeps(rows).items()]
    said = f"The fewest workers within 5% of the fastest: {'; '.join(fewest)}."
    real = [row for row in rows if row["variant"] != "mock"] or rows
    read = f"Batches of {real[0]['batch']}, random resized crops of {real[0]['crop']} px; LMDB of 256 px."
    return "\n\n".join([*tables(rows), said, f"{read}\n{bench_runs.closing(rows)}"])


def measure_all(options: argparse.Namespace) -> None:
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    lmdb = builds.build_once(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256")
    variants: dict[str, Any] = {f"{MOCK}, {count} workers": partial(mock, count) for count in options.workers}
    for variant, root in {"raw": tree, "lmdb": lmdb}.items():
        asked = BenchOptions(
            models=tuple(options.models.split(",")),
            workers=options.workers,
            epochs=_EPOCHS[variant],
            steps=options.steps,
        )
        variants.update(bench_runs.variants_of(asked, {variant: root}))  # type: ignore[dict-item]
    measuring.in_rounds(variants, options, bench_runs.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    most = len(os.sched_getaffinity(0)) + 2
    arguments.add_argument("--workers", type=measuring.numbers, default=tuple(range(most + 1)), metavar="N,N")
    arguments.add_argument("--models", default="none", metavar="MODEL,MODEL", help="none, small (default: none)")
    arguments.add_argument("--images", type=int, default=2000)
    arguments.add_argument("--steps", type=int, default=12, help="batches of 64 per epoch of real images")
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
