"""Measure how fast a Loader delivers batches to a GPU.

    python benchmarks/gpu/gpu_read.py OUT [--jpegs FOLDER]

OUT is a dataset that `presize build` made from class folders. Each variant (a number of processes or threads) runs once
per round, in random order, in its own process, with the page cache warm. With --jpegs, other runs with as many
processes only decode the JPEGs of a folder, from memory: the limit of this machine's cores. Prints a table; asserts
nothing. `--device cpu` is a dry run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.errors import PresizeError
from presize.store.dataset import Dataset
from reading.read import measure
from shared import builds, measuring, rates
from shared.conditions import machine

_DECODER = "decoder alone"


def facts(options: argparse.Namespace) -> measuring.Columns:
    """Return the conditions of the times, except the versions, which each run prints."""
    try:
        data = Dataset(options.source)
    except PresizeError as error:
        raise SystemExit(str(error)) from None
    if data.manifest.classes is None:
        raise SystemExit(f"{options.source} has no labels; build it from class folders")
    on_cuda = options.device.startswith("cuda")
    found = {"device": torch.cuda.get_device_name(options.device) if on_cuda else "cpu"}
    means = {f"mean_{name}": round(float(data.numbers(name).mean())) for name in ("width", "height")}
    kilobytes = {"samples": len(data), "mean_kb": round(float(data.numbers("nbytes").mean()) / 1e3, 1)}
    return {**found, **machine(options.source), **means, **kilobytes}


def summary(rows: list[rates.Row]) -> str:
    """Format the images/s of each variant."""
    lines = []
    for mode, workers in sorted({(row["mode"], int(row["workers"])) for row in rows}):
        mine = rates.column(rates.select(rows, mode=mode, workers=workers), "images_per_s")
        lines.append([f"{workers} {mode}", rates.spread(mine, ".0f")])
    return rates.table(["workers", "images/s"], lines)


def measure_all(options: argparse.Namespace) -> None:
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"--device {options.device}: torch finds no CUDA; use --device cpu for a dry run")

    def run(mode: str, workers: int) -> Iterator[measuring.Columns]:
        if mode == _DECODER:
            command = [sys.executable, str(builds.PEERS / "decode_limit.py"), str(options.jpegs)]
            batch, limit = 1, options.limit and options.limit * options.batch  # it makes no batches
        else:
            command = [sys.executable, str(builds.PEERS / "presize_read.py"), str(options.source)]
            command += ["--device", options.device, "--mode", mode]
            batch, limit = options.batch, options.limit
        command += ["--workers", str(workers), "--batch", str(batch), "--epochs", str(options.epochs)]
        command += [] if limit is None else ["--limit", str(limit)]
        yield {"mode": mode, "workers": workers, "batch": options.batch} | measure(command)

    kinds = product([*options.modes, *([_DECODER] if options.jpegs else [])], options.workers)
    variants = {f"{count} {mode}": partial(run, mode, count) for mode, count in kinds}
    measuring.in_rounds(variants, options, facts(options))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--workers", type=measuring.numbers, default=(1, 2, 4, 8, 16), metavar="N,N")
    arguments.add_argument("--modes", type=lambda text: text.split(","), default=["processes", "threads"])
    arguments.add_argument("--jpegs", type=Path, metavar="FOLDER", help="also time decoding these JPEGs alone")
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--epochs", type=int, default=2, help="timed epochs of a run, after one untimed epoch")
    arguments.add_argument("--limit", type=int, default=None, metavar="N", help="end epochs after N batches")
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
