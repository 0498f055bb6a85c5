"""Compare torchvision's decode_jpeg on the GPU with Loader, whose workers decode.

    python benchmarks/gpu/decode.py OUT

OUT is a dataset of JPEGs that `presize build` made from class folders. The decoder gets batches of whole records that
are already in memory, and only decodes them: an upper bound for any loader that decodes on the device. Loader reads,
decodes, crops to 224 px, flips and copies. Each variant runs once per round, in random order. Needs torchvision.
`--device cpu` is a dry run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_read import facts

from presize.datasets import LMDBDataset
from presize.system.resources import usable_cores
from reading.read import measure
from shared import builds, measuring, processes, rates

_SECONDS = 3.0
"""Seconds that each decoder is timed, after a batch that is not."""


def decode(root: Path, device: str, batch: int) -> measuring.Columns:
    """Measure decoding. Must run in its own process, because it initializes the device."""
    from torchvision.io import decode_jpeg

    data = LMDBDataset(root, decode="bytes")
    count = min(len(data) // batch * batch, 8 * batch)
    records = [torch.from_numpy(np.frombuffer(data[index][0], np.uint8).copy()) for index in range(count)]
    images, seconds, begin = 0, 0.0, 0.0
    while seconds < _SECONDS:
        for first in range(0, count, batch):
            decode_jpeg(records[first : first + batch], device=device)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if not begin:
                begin = time.perf_counter()
                continue
            images, seconds = images + batch, time.perf_counter() - begin
    return {"images": images, "seconds": round(seconds, 4), "images_per_s": round(images / seconds, 1)}


def measure_all(options: argparse.Namespace) -> None:
    def on_device() -> Iterator[measuring.Columns]:
        named = {"variant": "decode_jpeg on the device", "workers": 0, "batch": options.batch}
        yield named | processes.apart(decode, options.source, options.device, options.batch)

    def loader(workers: int) -> Iterator[measuring.Columns]:
        command = [sys.executable, str(builds.PEERS / "presize_read.py"), str(options.source)]
        command += ["--device", options.device, "--workers", str(workers), "--batch", str(options.batch)]
        yield {"variant": "Loader", "workers": workers, "batch": options.batch} | measure(command)

    variants = {"decode_jpeg": on_device, "Loader": partial(loader, options.workers)}
    measuring.in_rounds(variants, options, facts(options))


def summary(rows: list[rates.Row]) -> str:
    names = dict.fromkeys((row["variant"], int(row["workers"])) for row in rows)
    lines = [
        [name, str(workers), rates.spread(rates.column(rates.select(rows, variant=name), "images_per_s"), ".0f")]
        for name, workers in names
    ]
    return rates.table(["", "workers", "images/s"], lines)


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=2)
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--workers", type=int, default=usable_cores())
    arguments.add_argument("--batch", type=int, default=128)
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
