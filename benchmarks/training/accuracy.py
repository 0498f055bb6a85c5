"""Compare the accuracy of training on presized images with that of training on the photographs.

    python benchmarks/training/accuracy.py SRC

SRC is a folder of class folders; without it, the script generates images like `presize sample`. A fifth of each class
is held out. The small CNN of `presize bench` is trained from scratch on the rest, once for each seed and variant: from
the raw folder, and from LMDB datasets of one or more sizes. With one seed, all variants start from the same weights and
get the same samples in the same order, with the same crops and flips. The script does not train on presized folders,
but measures the share of crops with the same pixels as LMDB. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t as student
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.builder.run import build_dataset
from presize.datasets.crops import Crop, Floats, Ints, RandomResizedCrop
from presize.datasets.timing.models import small_cnn
from presize.datasets.timing.variants import FLIP, Chosen, load_variant, open_variant
from presize.errors import PresizeError
from presize.measure.bench_options import Variant
from presize.measure.listings import LISTERS, Listing, common_samples
from presize.options import BuildOptions, ImageOptions, Layout, RunOptions, Size
from presize.sources.sample import SampleOptions, make_samples
from shared import measuring, rates
from shared.conditions import conditions, find_photos

KINDS: dict[str, Layout] = {"presized": "folder", "lmdb": "lmdb"}
"""The --to of each built variant."""

HELD_OUT = 5
"""One of this many samples is held out."""

SHOWN = 0.8
"""Share of the shorter side that test crops cover, as by Resize(160) and CenterCrop(128)."""


@dataclass(frozen=True)
class Middle:
    """Centre crop like torchvision's Resize and CenterCrop: a square of SHOWN of the shorter side, resized to
    `size`."""

    size: int
    draws: int = 0
    exact: bool = True

    def boxes(self, heights: Ints, widths: Ints, random: Floats) -> Ints:  # noqa: ARG002
        sides = np.rint(np.minimum(heights, widths) * SHOWN).astype(np.int64)
        tops, lefts = ((lengths - sides) // 2 for lengths in (heights, widths))
        return np.stack((tops, lefts, sides, sides), axis=1)


def parse() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    csv = Path(__file__).resolve().parent / "results" / "accuracy.csv"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", metavar="SRC", help="a folder of class folders")
    parser.add_argument("--name", default="photographs", help="name of SRC in the results")
    parser.add_argument("--table", type=Path, nargs="?", const=csv, metavar="CSV", help="only print its table")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-accuracy"))
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument(
        "--sizes",
        type=measuring.numbers,
        default=(160, 256),
        metavar="N,N",
        help="shorter sides of the presized images, px",
    )
    parser.add_argument("--crop", type=int, default=128, help="side of the network's input, px")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=5e-3, help="maximum learning rate")
    parser.add_argument("--workers", type=int, default=2, help="does not affect the results")
    parser.add_argument("--csv", type=Path, default=csv, help="CSV to replace (default: in results/)")
    return parser, parser.parse_args()


def split(labels: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Return the indices of training and held-out samples: one in HELD_OUT of each class, drawn with a fixed seed."""
    order = np.random.default_rng(0).permutation(len(labels))
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        of_class = order[labels[order] == label]
        held[of_class[: len(of_class) // HELD_OUT]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def prepare(options: argparse.Namespace) -> dict[str, Listing]:
    """List the raw folder, and build and list a folder and an LMDB dataset of each size."""
    raw = options.source
    if raw is None:
        raw, options.name = options.work / "sample", "the sample set"
        if not raw.exists():
            make_samples(raw, SampleOptions(images=1500, classes=10))
    found = {"raw": LISTERS["raw"](raw)}
    for size, (kind, to) in product(options.sizes, KINDS.items()):
        target = options.work / f"{kind}-{size}"
        how = BuildOptions(ImageOptions(sizes=(Size(size, size),)), to, follow_links=True)
        build_dataset(raw, target, how, RunOptions(overwrite=target.exists(), report=False))
        found[f"{kind}-{size}"] = LISTERS[kind](target)
    return found


@dataclass(frozen=True)
class Samples:
    """Samples of a variant: `numbers` are their indices in the dataset at `root`."""

    variant: Variant
    root: str
    numbers: Ints

    def batches(self, crop: Crop, flip: float, options: argparse.Namespace, seed: int) -> Any:
        """Return a loader that yields all of them once per epoch; (seed, epoch) determines order and crops."""
        dataset = open_variant(self.variant, self.root, crop, flip)
        how = argparse.Namespace(batch=options.batch, workers=options.workers, prefetch=4)
        order = Chosen(self.numbers, len(dataset), seed)
        return load_variant(self.variant, dataset, order, how, torch.device("cpu"))


def same_pixels(one: Samples, other: Samples, options: argparse.Namespace) -> float:
    """Return the share of one epoch's random crops that are bit-identical."""
    crop = training_crop(options)
    alike: list[bool] = []
    for batch, again in zip(*(variant.batches(crop, FLIP, options, 0) for variant in (one, other)), strict=True):
        alike += [torch.equal(*pair) for pair in zip(batch[0], again[0], strict=True)]
    return fmean(alike)


def training_crop(options: argparse.Namespace) -> RandomResizedCrop:
    """Return larger crops than for ImageNet, as is usual for small datasets."""
    return RandomResizedCrop(options.crop, scale=(0.25, 1.0))


def train(
    samples: Samples, tests: dict[str, list[Any]], classes: int, seed: int, options: argparse.Namespace
) -> Iterator[tuple[float, dict[str, float]]]:
    """Train a new network and yield, after each epoch, the mean loss and the top-1 accuracy on each test set.

    Args:
        samples: training samples.
        tests: batches of held-out images, by name.
        classes: number of outputs.
        seed: seed of the weights and of the order.
        options: options of the script.
    """
    torch.manual_seed(seed)
    model = small_cnn(classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = samples.batches(training_crop(options), FLIP, options, seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, epochs=options.epochs, steps_per_epoch=len(batches)
    )
    for _ in range(options.epochs):
        losses = []
        for images, labels in batches:
            loss = functional.cross_entropy(model(pixels(images)), labels.long())
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        yield fmean(losses), {name: top1(model, test) for name, test in tests.items()}


def pixels(images: torch.Tensor) -> torch.Tensor:
    """Scale uint8 to about -2 to 2."""
    return images.to(torch.float32, memory_format=torch.channels_last).sub(128).div_(64)


def top1(model: nn.Module, test: list[Any]) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(pixels(images)).argmax(1) == labels).float() for images, labels in test]
    model.train()
    return float(torch.cat(right).mean())


def measure(options: argparse.Namespace) -> Iterator[list[dict[str, object]]]:
    """Yield the rows of each run, one per epoch."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - options.workers))
    listings = prepare(options)
    numbers = common_samples(listings)
    labels = listings["raw"].labels
    if labels is None:
        raise SystemExit(f"expected class folders in {options.source}, found none")
    names, classes = np.unique(labels[numbers["raw"]].astype(str), return_inverse=True)
    learnt, held = split(classes)

    def samples(name: str, which: Ints) -> Samples:
        return Samples(kind_of(name), listings[name].root, numbers[name][which])

    variants = ["raw", *(f"lmdb-{size}" for size in options.sizes)]
    tests = {variant: list(samples(variant, held).batches(Middle(options.crop), 0, options, 0)) for variant in variants}
    alike = {
        variant: same_pixels(*(samples(f"{kind}-{variant.partition('-')[2]}", learnt) for kind in KINDS), options)
        for variant in variants[1:]
    }
    facts: dict[str, object] = {
        "name": options.name, "classes": len(names), "trained_on": len(learnt), "held_out": len(held),
        "chance": round(float(np.bincount(classes[held]).max() / len(held)), 4), "crop": options.crop,
        "batch": options.batch, "rate": options.rate, "epochs": options.epochs,
        **conditions(find_photos(Path(listings["raw"].root))), "torch": version("torch"),
    }  # fmt: skip
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    for seed, variant in product(range(options.seeds), variants):
        begin = time.monotonic()
        test = {"top1": tests[variant], "top1_on_raw": tests["raw"]}
        rows: list[dict[str, object]] = []
        for loss, right in train(samples(variant, learnt), test, len(names), seed, options):
            shares = {name: round(share, 5) for name, share in right.items()} | {"same_pixels": alike.get(variant, "")}
            run = {"date": date, "seed": seed, "variant": variant, "epoch": len(rows) + 1, "loss": round(loss, 4)}
            rows.append(run | shares | facts)
        seconds = time.monotonic() - begin
        print(f"seed {seed}: {variant}: top-1 {right['top1']:.1%}, after {seconds:.0f} s", file=sys.stderr)
        yield rows


def kind_of(name: str) -> Variant:
    """Return the variant of presize.measure.bench_options: "lmdb" for "lmdb-160"."""
    kind: Any = name.partition("-")[0]
    return kind


@dataclass(frozen=True)
class Difference:
    """Mean difference of pairs (one per seed), its standard error, and the half-width of its 95% interval."""

    mean: float
    error: float
    interval: float

    @classmethod
    def of(cls, values: list[float], others: list[float]) -> Difference:
        found = [value - other for value, other in zip(values, others, strict=True)]
        if len(found) < 2:
            return cls(fmean(found), math.inf, math.inf)
        error = stdev(found) / math.sqrt(len(found))
        return cls(fmean(found), error, error * float(student.ppf(0.975, len(found) - 1)))


def variants_of(rows: list[rates.Row]) -> dict[str, str]:
    """Return the labels of the variants in the results, in their order."""
    names = dict.fromkeys(row["variant"] for row in rows)
    return {
        variant: "the raw folder" if variant == "raw" else f"LMDB, {variant.partition('-')[2]} px" for variant in names
    }


def complete(rows: list[rates.Row]) -> list[rates.Row]:
    """Return the rows of seeds that every variant has finished."""
    ended = {(row["seed"], row["variant"]) for row in rows if row["epoch"] == row["epochs"]}
    return [row for row in rows if all((row["seed"], variant) in ended for variant in variants_of(rows))]


def final(rows: list[rates.Row], variant: str, column: str = "top1") -> list[float]:
    """Return the accuracy after the last epoch in per cent, one value per seed."""
    last = {int(row["seed"]): row for row in rows if row["variant"] == variant and row["epoch"] == row["epochs"]}
    return [100 * float(last[seed][column]) for seed in sorted(last)]


def by_epoch(rows: list[rates.Row], variant: str) -> dict[int, list[float]]:
    """Return the accuracy of each epoch in per cent, one value per seed."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["variant"] == variant:
            found.setdefault(int(row["epoch"]), []).append(100 * float(row["top1"]))
    return found


def table(rows: list[rates.Row]) -> str:
    """Format means with their standard deviation over seeds, and mean differences of the same seed with their standard
    error."""
    heads = ["trained and tested on", "top-1, %", "of each seed", "difference from raw, points", "95% interval"]
    raw, lines = final(rows, "raw"), []
    for variant, name in variants_of(rows).items():
        values, on_raw = final(rows, variant), final(rows, variant, "top1_on_raw")
        found = Difference.of(values, raw)
        less = ["", ""]
        if variant != "raw":
            low, high = found.mean - found.interval, found.mean + found.interval
            less = [f"{found.mean:+.1f} ± {found.error:.1f}", f"{low:+.1f} to {high:+.1f}"]
        lines.append([name, _mean(values), ", ".join(f"{value:.1f}" for value in values), *less, _mean(on_raw)])
    return rates.table([*heads, "tested on raw, %"], lines)


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def summary(rows: list[rates.Row]) -> str:
    rows = complete(rows)
    if not rows:
        return "no seed is complete: some variant has not finished it"
    first = rows[0]
    alike = {variants_of(rows)[row["variant"]]: float(row["same_pixels"]) for row in rows if row["same_pixels"]}
    return "\n".join(
        [
            table(rows),
            "",
            "Crops of an epoch that are bit-identical from a presized folder: "
            f"{'; '.join(f'{name}: {100 * share:.1f}%' for name, share in alike.items())}.",
            f"{first['date']}, {len(final(rows, 'raw'))} seeds, {first['epochs']} epochs, batches of {first['batch']} "
            f"crops of {first['crop']} px; {first['name']}: {first['classes']} classes, {first['trained_on']} images "
            f"to train on, {first['held_out']} held out, of which the largest class is {float(first['chance']):.1%} "
            f"({rates.photographs(first)}).",
            f"{rates.machine(first)}, torch {first['torch']}.",
        ]
    )


def main() -> None:
    parser, options = parse()
    if options.table is None:
        rows: list[dict[str, object]] = []
        try:
            for run in measure(options):
                rows += run
                rates.write(options.csv, rows)
        except PresizeError as error:
            parser.exit(1, f"{error}\n")
    print(summary(rates.read(options.table or options.csv)))


if __name__ == "__main__":
    main()
