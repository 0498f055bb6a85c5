"""A few samples tried -> size and time of the whole. Writes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from presize import images
from presize.errors import ImageError
from presize.plan import Plan
from presize.task import read_source

_TRIES = 48
_RECORD_OVERHEAD_BYTES = 2100
"""What LMDB and the index add to a record on average: half a page left unused, key, node, index row."""


@dataclass(frozen=True)
class Estimate:
    """What a build will take.

    bytes: on disk, all sizes together. cpu_seconds: of one core. tried, rejected: samples looked at.
    """

    bytes: int
    cpu_seconds: float
    tried: int
    rejected: int


def estimate(plan: Plan) -> Estimate:
    """Presize some of the plan's images, spread evenly over the dataset, in this process, and scale up."""
    if len(plan.source.table) == 0:
        return Estimate(0, 0.0, 0, 0)
    last = len(plan.source.table) - 1
    chosen = np.unique(np.linspace(0, last, _TRIES).astype(np.int64))
    files = plan.source.table.select(["path", "source_nbytes"]).take(pa.array(chosen)).to_pylist()
    rejected = stored_bytes = 0
    start = time.process_time()
    for file in files:
        try:
            data = read_source(plan.source.root, file["path"], file["source_nbytes"])
            presized = images.presize(data, plan.options.image)
        except ImageError:
            rejected += 1
            continue
        stored_bytes += sum(len(record.value) + _RECORD_OVERHEAD_BYTES for record in presized.records)
    seconds = time.process_time() - start
    scale = len(plan.source.table) / len(files)
    return Estimate(int(stored_bytes * scale), seconds * scale, len(files), rejected)
