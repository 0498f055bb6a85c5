"""How well a diagnosis predicts: one pipeline is diagnosed, the images/s of another one is predicted from that, and the
other one is run, before and after the diagnosis.

    python benchmarks/training/predict.py PHOTOS

Loaders that sleep for a constant time or a varying one, and real photographs, raw and presized; steps that sleep and
steps that train. All are run once a round, in random order, each in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, Weighted, diagnose, make_loader
from presize.datasets.timing.loading import prefetch_of, workers_of
from presize.datasets.timing.models import TrainingStep, small_cnn
from presize.datasets.timing.variants import CroppedFolder
from presize.measure.diagnosis import Diagnosis
from presize.measure.listings import build_trial
from presize.measure.simulation import Pipeline
from presize.options import Size
from shared import measuring, processes, rates
from shared.conditions import conditions, find_photos

BATCH = 32
CPU = torch.device("cpu")


class Sleeping(Dataset[torch.Tensor]):
    """Batches of BATCH images that take `mean_s` to load, varying by `cv`."""

    def __init__(self, mean_s: float, cv: float = 0.0) -> None:
        random = np.random.default_rng(1)
        self.seconds = random.gamma(cv**-2, mean_s * cv**2, 10_000) if cv else np.full(10_000, mean_s)

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds[index])
        return torch.zeros(BATCH, 3, 8, 8, dtype=torch.uint8)


def sleeping(mean_ms: float, cv: float, workers: int, prefetch: int = 2) -> DataLoader[Any]:
    return DataLoader(
        Sleeping(mean_ms / 1e3, cv), None, num_workers=workers, prefetch_factor=prefetch if workers else None
    )


class SleepingStep:
    """Like a step on a GPU: this process waits."""

    def __init__(self, milliseconds: float) -> None:
        self.seconds = milliseconds / 1e3

    def __call__(self, _: Any) -> None:
        time.sleep(self.seconds)


def training() -> TrainingStep:
    torch.manual_seed(0)
    return TrainingStep(small_cnn(10), CPU)


@dataclass(frozen=True)
class Configuration:
    """Two pipelines with the same step: one is diagnosed, the other predicted.

    Attributes:
        diagnosed: the first in words.
        predicted: the second in words.
        loader: makes the loader of the first.
        other: makes the loader of the second.
        step: makes the training step of both.
        pipeline: the second, from a diagnosis of the first; None where its loader was an alternative in the diagnosis.
    """

    diagnosed: str
    predicted: str
    loader: Callable[[], Iterable[Any]]
    other: Callable[[], Iterable[Any]]
    step: Callable[[], Any]
    pipeline: Callable[[Diagnosis], Pipeline] | None = None


def with_workers(count: int) -> Callable[[Diagnosis], Pipeline]:
    return lambda found: found.pipeline(workers=count)


def configurations(photos: Path, presized: Path) -> list[Configuration]:
    """Nothing is opened before a loader is made."""
    crop = RandomResizedCrop(224)

    def raw() -> CroppedFolder:
        return CroppedFolder(photos, crop, 0.5)

    def lmdb() -> LMDBDataset:
        return LMDBDataset(presized, crop=crop, flip=0.5, decode="tensor")

    def long_epochs(dataset: Any) -> dict[str, Any]:
        return {"shuffle": Weighted(np.ones(len(dataset)), length=10_000 * BATCH)}

    def raw_with(workers: int) -> Callable[[], Iterable[Any]]:
        return lambda: make_loader(raw(), BATCH, num_workers=workers, **long_epochs(raw()))

    def lmdb_with(workers: int) -> Callable[[], Iterable[Any]]:
        return lambda: make_loader(lmdb(), BATCH, num_workers=workers, **long_epochs(lmdb()))

    def loader_with(workers: int) -> Callable[[], Iterable[Any]]:
        return lambda: Loader(lmdb(), BATCH, num_workers=workers, **long_epochs(lmdb()))

    slept = [
        ("40 ms", 40, 0.0, 1, 3, 15),
        ("60 ms", 60, 0.0, 2, 5, 15),
        ("60 ms ± 50 %", 60, 0.5, 1, 4, 15),
        ("30 ms ± 100 %", 30, 1.0, 3, 6, 6),
        ("20 ms ± 50 %", 20, 0.5, 4, 1, 10),
        ("10 ms", 10, 0.0, 0, 1, 12),
    ]
    found = [
        Configuration(
            f"sleeps {name}, {rates.workers_text(before)}, step {step} ms",
            rates.workers_text(after),
            lambda ms=ms, cv=cv, before=before: sleeping(ms, cv, before),  # type: ignore[misc]
            lambda ms=ms, cv=cv, after=after: sleeping(ms, cv, after),  # type: ignore[misc]
            lambda step=step: SleepingStep(step),  # type: ignore[misc]
            with_workers(after),
        )
        for name, ms, cv, before, after, step in slept
    ]
    trains, presizing = "raw folder, 1 worker, small CNN", "LMDBDataset, 1 worker"
    waits = "raw folder, 1 worker, step 20 ms"
    return [
        *found,
        Configuration(waits, "2 workers", raw_with(1), raw_with(2), step_of_20_ms, with_workers(2)),
        Configuration(waits, presizing, raw_with(1), lmdb_with(1), step_of_20_ms),
        Configuration(trains, presizing, raw_with(1), lmdb_with(1), training),
        Configuration(trains, "Loader, 1 worker", raw_with(1), loader_with(1), training),
        Configuration(trains, "0 workers", raw_with(1), raw_with(0), training, with_workers(0)),
        Configuration(
            "LMDBDataset, 1 worker, small CNN", "0 workers", lmdb_with(1), lmdb_with(0), training, with_workers(0)
        ),
    ]


def step_of_20_ms() -> SleepingStep:
    return SleepingStep(20)


def train(loader: Iterable[Any], step: Any, seconds: float, warmup_steps: int) -> float:
    """Images/s of training, without the diagnosis."""
    begin, done, images, edge = time.perf_counter(), 0, 0, 0.0
    while True:
        for batch in loader:
            step(step.place(batch) if hasattr(step, "place") else batch)
            done += 1
            now = time.perf_counter()
            if done <= warmup_steps:
                edge = now
            else:
                images += BATCH
            if done > warmup_steps + 3 and now - begin >= seconds:
                return images / (now - edge)


def measure(options: argparse.Namespace) -> None:
    """Each configuration in each round, in a process of its own: diagnose, predict, run."""
    photos = find_photos(options.source)
    options.work.mkdir(parents=True, exist_ok=True)
    presized = build_trial(str(options.source), options.work / "predict", Size(256, 256), images=2000)
    variants = {
        f"{one.diagnosed} -> {one.predicted}": partial(
            processes.apart, predict, number, options.source, presized, options.seconds
        )
        for number, one in enumerate(configurations(options.source, presized))
    }
    measuring.in_rounds(variants, options, {"torch": torch.__version__, **conditions(photos)})


def predict(number: int, photos: Path, presized: Path, seconds: float) -> list[measuring.Columns]:
    """The row of a configuration, by its number. The predicted pipeline is run before and after the diagnosis, so that
    a drift of the machine cancels out."""
    warnings.simplefilter("ignore")  # more workers than cores are intended
    torch.set_num_threads(1)
    one = configurations(photos, presized)[number]
    meter = processes.Meter()

    def run() -> float:
        other = one.other()
        warmup_steps = max(1, workers_of(other) or 0) * prefetch_of(other)
        return train(other, one.step(), seconds, warmup_steps)

    before = run()
    alternatives = {} if one.pipeline is not None else {"other": one.other()}
    found = diagnose(one.loader(), one.step(), seconds=seconds, steps=10_000, device=CPU, alternatives=alternatives)
    pipeline = found.pipeline(found.alternatives[0]) if one.pipeline is None else one.pipeline(found)
    plain = train(one.loader(), one.step(), seconds, found.warmup_steps)
    after = run()
    gc.collect()  # ends the workers, so that their time counts
    row: dict[str, object] = {
        "diagnosed": one.diagnosed,
        "predicted": one.predicted,
        "predicted_images_per_s": found.predict(pipeline),
        "images_per_s": (before + after) / 2,
        "measured_first_images_per_s": before,
        "measured_last_images_per_s": after,
        "before_images_per_s": plain,
        "before_while_diagnosed_images_per_s": found.images_per_s,
        "free_cores": found.free_cores,
        "load_slowdown": found.load_slowdown,
        "step_slowdown": found.step_slowdown,
        "agreement": found.agreement,
        "diagnosis_s": found.seconds,
        "other_cpu": meter.other_cpu(),
    }
    return [row]


Name = tuple[str, str]


def names(rows: list[rates.Row]) -> list[Name]:
    """(diagnosed, predicted) of each configuration, in the order in which they are listed."""
    order = [(one.diagnosed, one.predicted) for one in configurations(Path(), Path())]
    return sorted({(row["diagnosed"], row["predicted"]) for row in rows}, key=order.index)


def errors(rows: list[rates.Row], name: Name) -> list[float]:
    """Of each round, predicted / measured - 1."""
    return [
        float(row["predicted_images_per_s"]) / float(row["images_per_s"]) - 1
        for row in rows
        if (row["diagnosed"], row["predicted"]) == name
    ]


def summary(rows: list[rates.Row]) -> str:
    heads = ["diagnosed", "predicted", "before, images/s", "predicted", "measured", "error"]
    lines, medians = [], []
    for name in names(rows):
        mine = rates.select(rows, diagnosed=name[0], predicted=name[1])
        rate = [
            f"{median(rates.column(mine, column)):,.0f}"
            for column in ("before_images_per_s", "predicted_images_per_s", "images_per_s")
        ]
        found = errors(rows, name)
        medians.append(median(found))
        lines.append([*name, *rate, f"{median(found):+.1%} ({min(found):+.1%} to {max(found):+.1%})"])
    plain, diagnosed = (
        rates.column(rows, name) for name in ("before_images_per_s", "before_while_diagnosed_images_per_s")
    )
    slower = median(rates.ratios(plain, diagnosed)) - 1
    first = rows[0]
    return "\n".join(
        [
            rates.table(heads, lines),
            "",
            f"Error: median {median(map(abs, medians)):.1%}, at most {max(map(abs, medians)):.1%}, of the medians of "
            f"{len({row['round'] for row in rows})} rounds.",
            f"A diagnosis took {median(rates.column(rows, 'diagnosis_s')):.0f} s (median); it slowed training down by "
            f"{slower:+.1%}.",
            rates.other_work(rows),
            f"{first['date']}, {first['cpu']}, {first['cores']} cores, torch {first['torch']}.",
        ]
    )


if __name__ == "__main__":
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--seconds", type=float, default=4.0, help="of each part of a diagnosis")
    measuring.run(arguments, measure, summary, minutes=45)
