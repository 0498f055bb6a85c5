"""Test the predictions of `presize diagnose`: diagnose pipelines, then run them unchanged and with each tried change.

    python benchmarks/training/predict.py PHOTOS

Loaders sleep for a constant or varying time, in bursts, while collating, in tiny epochs, or read photographs, raw and
presized, of three data sets, two of them generated. Steps sleep or train; some leave work between steps. Each pipeline
runs once per round, in random order, in its own process.
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
from presize.datasets.timing.loading import changed, prefetch_of, workers_of
from presize.datasets.timing.models import TrainingStep, small_cnn
from presize.datasets.timing.variants import CroppedFolder
from presize.measure.diagnosis import Change
from presize.measure.listings import build_trial
from presize.measure.stages import Interval
from presize.options import Size
from presize.sources.sample import SampleOptions, make_samples
from shared import measuring, processes, rates
from shared.conditions import conditions, find_photos

BATCH = 32
CPU = torch.device("cpu")


class Sleeping(Dataset[torch.Tensor]):
    """Batches of BATCH images that take `mean_s` to load, with coefficient of variation `cv`."""

    def __init__(self, mean_s: float, cv: float = 0.0, batches: int = 10_000) -> None:
        random = np.random.default_rng(1)
        self.seconds = random.gamma(cv**-2, mean_s * cv**2, batches) if cv else np.full(batches, mean_s)

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds[index])
        return torch.zeros(BATCH, 3, 8, 8, dtype=torch.uint8)


def sleeping(mean_ms: float, cv: float, workers: int, batches: int = 10_000) -> DataLoader[Any]:
    return DataLoader(Sleeping(mean_ms / 1e3, cv, batches), None, num_workers=workers)


def slowly_collated(samples: list[Any]) -> torch.Tensor:
    time.sleep(0.03)
    return torch.stack(samples)


def collating(workers: int) -> DataLoader[Any]:
    samples: Any = [torch.zeros(3, 8, 8, dtype=torch.uint8)] * (BATCH * 10_000)
    return DataLoader(samples, BATCH, num_workers=workers, collate_fn=slowly_collated)


class SleepingStep:
    """A step that sleeps, as if waiting for a GPU, and then works on a core for `between` milliseconds."""

    def __init__(self, milliseconds: float, between: float = 0.0) -> None:
        self.seconds, self.between = milliseconds / 1e3, between / 1e3

    def __call__(self, _: Any) -> None:
        time.sleep(self.seconds)
        end = time.thread_time() + self.between
        while time.thread_time() < end:
            pass


def training() -> TrainingStep:
    torch.manual_seed(0)
    return TrainingStep(small_cnn(10), CPU)


@dataclass(frozen=True)
class Configuration:
    """A pipeline to diagnose.

    Attributes:
        name: description.
        photographs: whether its loader reads photographs.
        loader: function that returns its loader.
        step: function that returns its training step.
        others: functions that return the alternative loaders, by name.
    """

    name: str
    photographs: bool
    loader: Callable[[], Iterable[Any]]
    step: Callable[[], Any]
    others: dict[str, Callable[[], Iterable[Any]]]


def configurations(sets: dict[str, tuple[Path, Path]]) -> list[Configuration]:
    """Return the pipelines. `sets` holds the folder of each data set and its presized dataset, by name. No file is
    opened before a loader is created."""

    def mock(name: str, loader: Callable[[], Iterable[Any]], step: Callable[[], Any]) -> Configuration:
        return Configuration(name, False, loader, step, {})

    found = [
        mock("sleeps 60 ms, 1 worker, step 15 ms", partial(sleeping, 60, 0, 1), partial(SleepingStep, 15)),
        mock("sleeps 60 ms ± 50 %, 1 worker, step 15 ms", partial(sleeping, 60, 0.5, 1), partial(SleepingStep, 15)),
        mock("sleeps 30 ms ± 100 %, 3 workers, step 6 ms", partial(sleeping, 30, 1, 3), partial(SleepingStep, 6)),
        mock("sleeps 10 ms, 0 workers, step 12 ms", partial(sleeping, 10, 0, 0), partial(SleepingStep, 12)),
        mock("bursts: 7 workers of 0.7 s, step 30 ms", partial(sleeping, 700, 0, 7), partial(SleepingStep, 30)),
        mock("collates for 30 ms, 1 worker, step 10 ms", partial(collating, 1), partial(SleepingStep, 10)),
        mock("works 10 ms between steps of 10 ms", partial(sleeping, 40, 0, 1), partial(SleepingStep, 10, 10)),
        mock("epochs of 4 batches, 2 workers", partial(sleeping, 5, 0, 2, 4), partial(SleepingStep, 5)),
    ]
    for name, (photos, presized) in sets.items():
        made = {
            f"{kind}, {rates.workers_text(count)}": partial(photographs, kind, photos, presized, count)
            for kind in ("raw folder", "LMDBDataset", "Loader")
            for count in (0, 1, 2)
        }
        presizing = {f"presize, {kind}": made[f"{kind}, 1 worker"] for kind in ("LMDBDataset", "Loader")}
        for kind, others in (
            ("raw folder, 1 worker", presizing),
            ("raw folder, 0 workers", {}),
            ("LMDBDataset, 0 workers", {"Loader": made["Loader, 2 workers"]}),
            ("LMDBDataset, 2 workers", {"Loader": made["Loader, 2 workers"]}),
        ):
            found.append(Configuration(f"{name}: {kind}, small CNN", True, made[kind], training, others))
        step = partial(SleepingStep, 20)
        found.append(
            Configuration(
                f"{name}: raw folder, 1 worker, step 20 ms", True, made["raw folder, 1 worker"], step, presizing
            )
        )
    return found


def photographs(kind: str, photos: Path, presized: Path, workers: int) -> Iterable[Any]:
    crop = RandomResizedCrop(224)
    dataset: Any
    if kind == "raw folder":
        dataset = CroppedFolder(photos, crop, 0.5)
    else:
        dataset = LMDBDataset(presized, crop=crop, flip=0.5, decode="tensor")
    order = Weighted(np.ones(len(dataset)), length=10_000 * BATCH)
    make: Any = Loader if kind == "Loader" else make_loader
    loader: Iterable[Any] = make(dataset, BATCH, shuffle=order, num_workers=workers)
    return loader


def train(loader: Iterable[Any], step: Any, seconds: float) -> float:
    """Train for at least `seconds`; return images/s after the first batches of all workers, or of whole epochs."""
    warmup_steps = max(1, workers_of(loader) or 0) * prefetch_of(loader)
    begin, done, images, edge, edge_images = time.perf_counter(), 0, 0, 0.0, 0
    while True:
        for batch in loader:
            step(step.place(batch) if hasattr(step, "place") else batch)
            done, images = done + 1, images + BATCH
            now = time.perf_counter()
            if done == warmup_steps:
                edge, edge_images = now, images
            elif done > 10 * warmup_steps and done % warmup_steps == 0 and now - edge >= seconds and edge:
                return (images - edge_images) / (now - edge)
        if time.perf_counter() - begin >= seconds:
            return images / (time.perf_counter() - begin)
        edge = 0.0  # epochs are short: count whole ones


def made(one: Configuration, change: Change | None) -> Iterable[Any]:
    """Return the loader of a configuration, with a change."""
    if change is None:
        return one.loader()
    make = one.loader if change.alternative is None else list(one.others.values())[change.alternative]
    return changed(make(), **change.options)


def measure(options: argparse.Namespace) -> None:
    """Diagnose each configuration and run its changes, each in its own process."""
    photos = find_photos(options.source)
    sets = prepared(options.source, options.work)
    variants = {
        one.name: partial(processes.apart, predict, number, sets, options.seconds)
        for number, one in enumerate(configurations(sets))
    }
    measuring.in_rounds(variants, options, {"torch": torch.__version__, **conditions(photos)})


def prepared(source: Path, work: Path) -> dict[str, tuple[Path, Path]]:
    """Return the given photographs and two generated data sets, each with its presized dataset."""
    work.mkdir(parents=True, exist_ok=True)
    folders = {"photographs": source}
    for name, made_as in (
        ("large", SampleOptions(images=120, classes=3, long_side=2400)),
        ("small", SampleOptions(images=2000, classes=3, long_side=300)),
    ):
        folders[name] = work / f"predict-{name}"
        if not folders[name].exists():
            make_samples(folders[name], made_as)
    return {
        name: (folder, build_trial(str(folder), work / f"predict-{name}-256", Size(256, 256), images=2000))
        for name, folder in folders.items()
    }


def predict(number: int, sets: dict[str, tuple[Path, Path]], seconds: float) -> list[measuring.Columns]:
    """Return the rows of a configuration: the pipeline unchanged, and with each change that was tried. They run after
    the diagnosis, in two passes, the second in reverse order, so that a drift of the machine cancels out."""
    warnings.simplefilter("ignore")  # more workers than cores are intended
    torch.set_num_threads(1)
    one = configurations(sets)[number]
    meter = processes.Meter()
    others = {name: make() for name, make in one.others.items()}
    found = diagnose(one.loader(), one.step(), device=CPU, alternatives=others)
    predicted: list[tuple[Change | None, Interval]] = [(None, found.images_per_s)]
    predicted += [(trial.change, trial.images_per_s) for trial in found.tried]
    ran: list[list[float]] = [[] for _ in predicted]
    order = list(range(len(predicted)))
    for at in [*order, *reversed(order)]:
        ran[at].append(train(made(one, predicted[at][0]), one.step(), seconds))
        gc.collect()  # ends the workers
    other_cpu = meter.other_cpu()
    return [
        {
            "diagnosed": one.name,
            "photographs": one.photographs,
            "what": "as it is" if change is None else change.what,
            "predicted_images_per_s": rate.value,
            "error": rate.error,
            "images_per_s": sum(rounds) / len(rounds),
            "first_images_per_s": rounds[0],
            "last_images_per_s": rounds[1],
            "rounds": len(found.rates),
            "disagreement": found.disagreement,
            "diagnosis_s": found.seconds,
            "other_cpu": other_cpu,
        }
        for (change, rate), rounds in zip(predicted, ran, strict=True)
    ]


def missed(row: rates.Row) -> float:
    """Return predicted / measured - 1."""
    return float(row["predicted_images_per_s"]) / float(row["images_per_s"]) - 1


def holds(row: rates.Row) -> bool:
    """Return True if the measured rate is within the error of the predicted one."""
    return abs(np.log(1 + missed(row))) <= float(row["error"])


def summary(rows: list[rates.Row]) -> str:
    lines = []
    names = dict.fromkeys((row["diagnosed"], row["what"]) for row in sorted(rows, key=lambda row: row["photographs"]))
    for diagnosed, what in names:
        mine = rates.select(rows, diagnosed=diagnosed, what=what)
        predicted, measured, error = (
            median(rates.column(mine, name)) for name in ("predicted_images_per_s", "images_per_s", "error")
        )
        found = [missed(row) for row in mine]
        spread = f" ({min(found):+.0%} to {max(found):+.0%})" if len(found) > 1 else ""
        lines.append(
            [diagnosed, what, f"{predicted:,.0f} ± {error:.0%}", f"{measured:,.0f}", f"{median(found):+.1%}{spread}"]
        )
    said = []
    for name, some in (
        ("photographs", [row for row in rows if row["photographs"] == "True"]),
        ("loaders that sleep", [row for row in rows if row["photographs"] != "True"]),
    ):
        if some:
            near = sum(abs(missed(row)) <= 0.15 or holds(row) for row in some)
            far = sum(abs(missed(row)) > 0.30 and not holds(row) for row in some)
            said.append(
                f"Of {len(some)} predictions on {name}, {near / len(some):.0%} were within 15% or within their own ±, "
                f"{sum(map(holds, some)) / len(some):.0%} within their own ±, and {far} beyond 30% and their ±."
            )
    first = rows[0]
    return "\n".join(
        [
            rates.table(["diagnosed", "what", "predicted, images/s", "measured", "error"], lines),
            "",
            *said,
            f"A diagnosis took {median(rates.column(rows, 'diagnosis_s')):.0f} s (median).",
            rates.other_work(rows),
            f"{first['date']}, {len({row['round'] for row in rows})} rounds, {first['cpu']}, {first['cores']} cores, "
            f"torch {first['torch']}.",
        ]
    )


if __name__ == "__main__":
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--seconds", type=float, default=4.0, help="seconds to run each prediction")
    measuring.run(arguments, measure, summary, minutes=80)
