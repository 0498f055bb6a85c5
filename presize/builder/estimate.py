"""Estimates the size and the time of a build from a few of its samples. Writes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from presize.builder.plan import Plan
from presize.builder.tasks.records import Encoded, Sources, encode_sample
from presize.errors import ImageError, NotAnImageError
from presize.options import KEEP, BuildOptions
from presize.sources.dataset import DatasetSource
from presize.sources.source_files import Url
from presize.store.rejects import Reject
from presize.system.child import Child
from presize.system.resources import usable_cores

_TRY_S = 2.0
_MIN_TRIES = 24
MAX_TRIES = 400
"""Files are tried for _TRY_S seconds, but at least _MIN_TRIES and at most MAX_TRIES. 400 photographs give the mean
stored size to about 2 % (one standard deviation)."""

_GOLDEN_RATIO = 0.6180339887498949

_WRITE_S_PER_RECORD, _WRITE_S_PER_BYTE = 100e-6, 4e-9
"""CPU time per record on top of encoding it: checksums, LMDB, the index. Measured with
benchmarks/building/profile_build.py on two cores of an AMD EPYC, 2026-11-21."""

START_UP_S = 0.3
"""Time from the start of a build to the first image of its worker processes. The median build of a few images took
0.14 s (benchmarks/building/results/build.csv, 2026-11-28); a busy machine takes longer."""

_PAGE_S = 0.2
"""Time to make report.html, apart from comparing images: jinja2, charts, thumbnails."""

_INDEX_ROW_BYTES = 64
_PAGE_HEADER_BYTES = 16
_NODE_BYTES = 18
"""Overhead of LMDB per record: its offset in the page, a header, the key."""


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a build: bytes on disk, CPU time of one core, and seconds from scan to manifest. Of the `tried`
    files, `skipped` are not images, and `rejects` would be rejected."""

    bytes: int
    cpu_seconds: float
    seconds: float
    tried: int
    skipped: int
    rejects: tuple[Reject, ...]


def estimate(plan: Plan, jobs: int = 1, report: bool = True) -> Estimate:
    """Encode some of the plan's images in a child process for about two seconds, and extrapolate (accuracy:
    benchmarks/building/results/estimate.csv). Raises ChildDiedError if an image kills the child."""
    if len(plan.source.table) == 0:
        return Estimate(0, 0.0, 0.0, 0, 0, ())
    chosen = rows_to_try(plan.source.table.column("source_nbytes").to_numpy())
    child = Child()
    try:
        page_bytes = int(plan.identity["page_size"])
        found, pixels = child.call(_try, plan.source.root, plan.options, page_bytes, plan.files(chosen))
    finally:
        child.close()
    scale = len(plan.source.table) / found.tried
    seconds = wall_seconds(found.seconds * scale, len(plan.shards), jobs, usable_cores())
    if report:
        from presize.pages import comparison

        page_s = _PAGE_S + comparison.seconds(len(plan.source.table), pixels / found.tried)
        seconds += page_s * len(plan.options.image.sizes)
    return replace(found, bytes=round(found.bytes * scale), cpu_seconds=found.cpu_seconds * scale, seconds=seconds)


def stored_bytes(plan: Plan) -> int:
    """Return an estimate of the bytes that a build stores; for a derived dataset, an upper bound."""
    if not isinstance(plan.source, DatasetSource):
        return estimate(plan, report=False).bytes
    new = plan.options.image.sizes[0]
    old = [dataset.sizes[0] for dataset in plan.source.datasets]
    if new == KEEP or KEEP in old:
        return plan.source.nbytes
    # Up to twice as many bytes per pixel, because smaller images have more detail in each.
    growth = 2 * new.height * new.width / min(size.height * size.width for size in old)
    return int(plan.source.nbytes * min(1.0, growth))


def _try(source: Path | Url, options: BuildOptions, page_bytes: int, samples: list[Sources]) -> tuple[Estimate, int]:
    """Encode samples for _TRY_S seconds. Returns their cost, and source pixels plus four times the stored ones."""
    rejects: list[Reject] = []
    stored_bytes = tried = skipped = pixels = 0
    written_s = 0.0
    _presize(source, options, samples[0])  # loads lazy libraries before the clock starts
    begun, begun_cpu = time.perf_counter(), time.thread_time()
    for sample in samples:
        file = sample[0]
        if tried >= _MIN_TRIES and time.perf_counter() - begun > _TRY_S:
            break
        tried += 1
        encoded = _presize(source, options, sample)
        if isinstance(encoded, dict):
            first = next(iter(encoded.values())).columns
            pixels += first["source_height"] * first["source_width"] + 4 * first["height"] * first["width"]
            for record in encoded.values():
                nbytes = len(record.value)
                stored_bytes += _on_disk(nbytes, page_bytes) + _INDEX_ROW_BYTES + len(file.path)
                written_s += _WRITE_S_PER_RECORD + _WRITE_S_PER_BYTE * nbytes
        elif isinstance(encoded, NotAnImageError) and not file.claims_to_be_an_image:
            skipped += 1
        else:
            rejects.append(Reject(file.path, ImageError.__name__, str(encoded)))
    cpu_seconds = time.thread_time() - begun_cpu + written_s
    seconds = time.perf_counter() - begun + written_s
    return Estimate(stored_bytes, cpu_seconds, seconds, tried, skipped, tuple(sorted(rejects))), pixels


def rows_to_try(nbytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return rows to try. Any first n of them are spread evenly over the files by size (golden ratio)."""
    by_size = np.argsort(nbytes, kind="stable")
    places = (np.arange(1, MAX_TRIES + 1) * _GOLDEN_RATIO) % 1 * len(nbytes)
    _, first = np.unique(places.astype(np.int64), return_index=True)
    return np.asarray(by_size[places[np.sort(first)].astype(np.int64)])


def _presize(source: Path | Url, options: BuildOptions, sample: Sources) -> Encoded | ImageError:
    try:
        return encode_sample(source, options, sample)
    except ImageError as error:
        return error
    except MemoryError:
        return ImageError("out of memory")


def _on_disk(nbytes: int, page_bytes: int) -> int:
    """Return the bytes of a value on disk: whole pages, in LMDB as in most file systems, or its share of one."""
    room = page_bytes - _PAGE_HEADER_BYTES
    together = room // (nbytes + _NODE_BYTES)
    if together >= 2:
        return page_bytes // together
    return -(-(nbytes + _PAGE_HEADER_BYTES) // page_bytes) * page_bytes


def wall_seconds(seconds: float, shards: int, jobs: int, cores: int) -> float:
    """Return the time that `jobs` processes, each making whole shards, take for work of `seconds` in one process."""
    jobs = min(jobs, shards)
    rounds = -(-shards // jobs)
    jobs_per_core = max(1.0, jobs / cores)
    return seconds * rounds / shards * jobs_per_core + (START_UP_S if jobs > 1 else 0.0)
