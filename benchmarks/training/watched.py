"""Measure the overhead of ``presize diagnose`` on a script's loop, in microseconds per batch.

    python benchmarks/training/watched.py PHOTOS

Iterates epochs of a plain DataLoader, without workers and with one, in turn with and without the watch, in one process,
without training steps. Asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from presize.measure.watch import Watch
from shared import measuring, processes, rates
from shared.conditions import conditions, find_photos

BATCHES = 500
LOOPS = {
    "0 workers, batches of 1 number": (0, (1,), 1),
    "0 workers, batches of 32 × 3 × 64 × 64": (0, (3, 64, 64), 32),
    "1 worker, batches of 32 × 3 × 64 × 64": (1, (3, 64, 64), 32),
}
HOW = {"plain": nullcontext, "watched": Watch}


def epoch(workers: int, shape: tuple[int, ...], size: int) -> tuple[float, float]:
    """Return wall time and CPU time of this process in microseconds per batch, after the first batches."""
    samples: Any = [torch.zeros(shape)] * (size * BATCHES)
    begin = cpu = 0.0
    for number, _ in enumerate(DataLoader(samples, size, num_workers=workers)):
        if number == 20:
            begin, cpu = time.perf_counter(), time.process_time()
    count = BATCHES - 21
    return 1e6 * (time.perf_counter() - begin) / count, 1e6 * (time.process_time() - cpu) / count


def epochs(loop: str, pairs: int) -> list[measuring.Columns]:
    torch.set_num_threads(1)
    meter = processes.Meter()
    rows: list[measuring.Columns] = []
    for number in range(pairs):
        for how in sorted(HOW, reverse=number % 2 == 1):
            with HOW[how]():
                batch_us, cpu_us = epoch(*LOOPS[loop])
            rows.append({"loop": loop, "how": how, "batch_us": round(batch_us, 3), "cpu_us": round(cpu_us, 3)})
    return [row | {"other_cpu": round(meter.other_cpu(), 3)} for row in rows]


def measure(loop: str, pairs: int) -> Iterator[measuring.Columns]:
    yield from processes.apart(epochs, loop, pairs)


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for loop in LOOPS:
        for column, name in (("batch_us", "wall time"), ("cpu_us", "CPU time")):
            plain, watched = (rates.column(rates.select(rows, loop=loop, how=how), column) for how in HOW)
            factor = rates.spread(rates.ratios(watched, plain), ".3f")
            lines.append([loop, name, rates.spread(plain, ",.0f"), rates.spread(watched, ",.0f"), factor])
    return "\n".join(
        [
            rates.table(["loop", "of the main process", "plain, µs per batch", "watched", "watched / plain"], lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}. {rates.machine(rows[0])}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    variants = {loop: partial(measure, loop, options.pairs) for loop in LOOPS}
    measuring.in_rounds(variants, options, conditions(find_photos(options.source)), progress="batch_us")


if __name__ == "__main__":
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--pairs", type=int, default=10, help="plain and watched epochs per process")
    measuring.run(arguments, measure_all, summary, minutes=3)
