"""Measurements of a benchmark -> a row for each run, a summary of each kind of run, and the conditions of them all."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from presize.formatting import plural, size_text
from presize.measure.bench_options import READS, VARIANTS, Run, Variant
from presize.measure.stages import Spread, Stages, break_even_epochs
from presize.system.machine import read_cpu
from presize.system.resources import read_memory
from presize.system.storage import find_storage

_PACKAGES = (
    "presize", "torch", "torchvision", "simplejpeg", "cykooz.resizer", "opencv-python-headless", "numpy", "lmdb",
)  # fmt: skip


def conditions(places: Iterable[Path]) -> dict[str, str]:
    """The conditions, name -> words. `places` are files or folders whose storage to name."""
    cpu = read_cpu()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "CPU": cpu.model,
        "cores": f"{cpu.cores} of {cpu.online}",
        "memory": size_text(total) if (total := read_memory().total) else "unknown",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "storage": ", ".join(dict.fromkeys(find_storage(place).described for place in places)),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name)) is not None),
    }


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


Row = dict[str, Any]
"""A run as one flat row: its options, and what it measured."""


@dataclass(frozen=True)
class Results:
    """Results of a benchmark after any number of its runs.

    Attributes:
        conditions: Machine, versions and storage, name -> words (presize.measure.results).
        options: The options of the benchmark.
        notes: What a reader has to know about the figures.
        images: Number of samples that all variants read.
        build_s: Seconds that the builds of "presized" and "lmdb" took, if the benchmark made them.
        planned: Number of runs that the benchmark is to make.
        rows: The runs made so far.
    """

    conditions: Mapping[str, str]
    options: Mapping[str, Any]
    notes: tuple[str, ...]
    images: int
    build_s: Mapping[str, float]
    planned: int
    rows: tuple[Row, ...] = field(default=())


def row_of(run: Run, repeat: int, resident_share: float, measured: Mapping[str, Any]) -> Row:
    """The row of a run.

    The columns first_* are of the whole first epoch, the start of the workers included. All others are of the later
    epochs, or of the first if it is the only one.

    Args:
        run: Its options.
        repeat: Number of the repeat, from 0.
        resident_share: Share of the files that were in the page cache before the run, from 0 to 1.
        measured: What the run returned.
    """
    epochs = measured["epochs"]
    first, later = epochs[0], epochs[1:] or epochs
    images = sum(epoch["images"] for epoch in later)
    window_images = sum(epoch["window_images"] for epoch in later)
    window_s = sum(epoch["window_s"] for epoch in later)
    pss = [epoch["worker_pss_bytes"] for epoch in epochs if epoch["worker_pss_bytes"] is not None]
    read = [epoch["read_bytes"] for epoch in later]
    gpu = measured["gpu"] or {}
    return {
        "repeat": repeat,
        "variant": run.variant,
        "model": run.model,
        "device": run.device,
        "workers": run.workers,
        "pin_memory": run.pin_memory,
        "cold": run.cold,
        "prefetch": run.prefetch,
        "batch": run.batch,
        "crop": run.crop,
        "epochs": len(epochs),
        "images": first["images"],
        "resident_share": round(resident_share, 4),
        "images_per_s": window_images / window_s,
        "step_s": run.batch * window_s / window_images,
        "resident_s": measured["resident_s"],
        "copied_s": measured["copied_s"],
        "first_epoch_images_per_s": first["images"] / first["seconds"],
        "first_epoch_first_batch_s": first["first_batch_s"],
        "first_batch_s": median(epoch["first_batch_s"] for epoch in later),
        **{name: median(epoch["steps"][name] for epoch in later) for name in ("p50_s", "p95_s", "p99_s")},
        "cpu_s_per_image": sum(epoch["cpu_s"] for epoch in later) / images,
        "worker_pss_bytes": max(pss, default=None),
        "read_bytes_per_epoch": None if None in read else sum(read) / len(later),
        "gpu_busy": gpu.get("busy"),
        "gpu_memory_bytes": gpu.get("memory_bytes"),
        "model_of": measured["model_of"],
    }


MODEL_WORDS = {"none": "no model, the loader alone", "small": "small CNN", "resnet50": "ResNet-50"}


@dataclass(frozen=True)
class Kind:
    """What all runs of one table have in common. They differ in their variants."""

    model: str
    device: str
    workers: int
    pin_memory: bool
    cold: bool
    batch: int

    @classmethod
    def of(cls, row: Row) -> Kind:
        return cls(*(row[name] for name in ("model", "device", "workers", "pin_memory", "cold", "batch")))

    def __str__(self) -> str:
        words = [
            MODEL_WORDS[self.model],
            *([f"on {self.device}"] if self.model != "none" or self.device != "cpu" else []),
            f"batches of {self.batch}",
            plural(self.workers, "worker"),
            *(["pinned memory"] if self.pin_memory else []),
            "first epoch, files not in the page cache" if self.cold else "files in the page cache",
        ]
        return ", ".join(words)


@dataclass(frozen=True)
class Summary:
    """The runs of one variant and kind: medians, unless said otherwise.

    Attributes:
        variant: The variant.
        images_per_s: Median, minimum and maximum rate.
        speedup: Its median rate over that of the first variant of this kind.
        stages: Times of its stages in seconds; None without a model, and for cold runs without warm ones.
        break_even: Epochs after which its build breaks even, against the raw folder; None if not known, and if
            the raw folder leaves no speed-up possible.

    The others are as in a row.
    """

    variant: Variant
    images_per_s: Spread
    speedup: float
    stages: Stages | None
    first_epoch_images_per_s: float
    first_epoch_first_batch_s: float
    first_batch_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    cpu_s_per_image: float
    worker_pss_bytes: float | None
    read_bytes_per_epoch: float | None
    gpu_busy: float | None
    gpu_memory_bytes: float | None
    break_even: float | None


def summarise(results: Results) -> dict[Kind, list[Summary]]:
    """The kinds of runs in the order in which they were asked for, each with its variants in the order of VARIANTS."""
    groups: dict[Kind, dict[Variant, list[Row]]] = {}
    for row in results.rows:
        groups.setdefault(Kind.of(row), {}).setdefault(row["variant"], []).append(row)
    order = sorted(groups, key=lambda kind: (_place(results, kind), kind.workers, kind.pin_memory, kind.cold))
    return {kind: _summaries(results, kind, groups) for kind in order}


def _place(results: Results, kind: Kind) -> int:
    models = list(results.options.get("models", ()))
    return models.index(kind.model) if kind.model in models else len(models)


def _summaries(results: Results, kind: Kind, groups: dict[Kind, dict[Variant, list[Row]]]) -> list[Summary]:
    variants = groups[kind]
    there = [variant for variant in VARIANTS if variant in variants]
    rates = {variant: Spread.of([row["images_per_s"] for row in variants[variant]]) for variant in there}
    steps = _steps(kind, results.rows)
    warm = groups.get(replace(kind, cold=False), {})
    stages = {
        variant: _stages(steps, warm.get(variant, []), variants[variant] if kind.cold else []) for variant in there
    }
    raw = stages.get("raw")
    can_gain = "raw" in there and (raw is None or raw.bottleneck != "compute")
    found = []
    for variant in there:
        build_s = results.build_s.get(READS[variant])
        break_even = None
        if build_s is not None and can_gain and variant != "raw":
            epoch_s = (results.images / rates[one].median for one in ("raw", variant))
            break_even = break_even_epochs(build_s, *epoch_s)
        found.append(
            Summary(
                variant=variant,
                images_per_s=rates[variant],
                speedup=rates[variant].median / rates[there[0]].median,
                stages=stages[variant],
                break_even=break_even,
                **{name: _median(variants[variant], name) for name in _MEDIANS},
            )
        )
    return found


_MEDIANS = (
    "first_epoch_images_per_s", "first_epoch_first_batch_s", "first_batch_s", "p50_s", "p95_s", "p99_s",
    "cpu_s_per_image", "worker_pss_bytes", "read_bytes_per_epoch", "gpu_busy", "gpu_memory_bytes",
)  # fmt: skip


def _median(rows: Sequence[Row], name: str) -> Any:
    values = [row[name] for row in rows if row[name] is not None]
    return median(values) if values else None


def _steps(kind: Kind, rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """T_resident and T_h2d: medians over all variants and cache states, as they do not depend on the loader."""
    alike = [row for row in rows if replace(Kind.of(row), pin_memory=kind.pin_memory, cold=kind.cold) == kind]
    return _median(alike, "resident_s"), _median(alike, "copied_s")


def _stages(steps: tuple[float | None, float | None], warm: Sequence[Row], cold: Sequence[Row]) -> Stages | None:
    resident, copied = steps
    if resident is None or copied is None or not warm:
        return None
    return Stages(resident, copied, _median(warm, "step_s"), _median(cold, "step_s"))


def to_csv(results: Results) -> str:
    """A line for each run, with the conditions at its end."""
    text = io.StringIO()
    if results.rows:
        names = [*results.rows[0], *results.conditions]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        for row in results.rows:
            values = {name: _short(value) for name, value in row.items()} | dict(results.conditions)
            writer.writerow(values)
    return text.getvalue()


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def to_json(results: Results) -> str:
    """Conditions, options, notes, all runs, and a summary of each kind of runs."""
    summary = [
        {
            "kind": asdict(kind),
            "variants": [_plain(one) for one in variants],
        }
        for kind, variants in summarise(results).items()
    ]
    return json.dumps(asdict(results) | {"summary": summary}, indent=1, ensure_ascii=False) + "\n"


def _plain(one: Summary) -> dict[str, Any]:
    values = asdict(one)
    if one.stages is not None:
        stages = one.stages
        values["stages"] |= asdict(stages.stalls)
        values["stages"] |= {
            "bottleneck": stages.bottleneck,
            "bound": stages.bound,
            "disagreement": stages.disagreement,
        }
    if one.break_even is not None and math.isinf(one.break_even):
        values["break_even"] = None  # JSON has no infinity
    return values
