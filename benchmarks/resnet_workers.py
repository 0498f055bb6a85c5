"""One worker against seven for ResNet-50: images a second, and how busy the GPU is.

    python benchmarks/resnet_workers.py PHOTOS --device cuda

Trains on hard links to the JPEGs below PHOTOS, from the raw folder and from LMDB of 256 px, each once a round, in
random order, in a process of its own, with the page cache warm. On the CPU, the default, a few steps of few and small
images show that all of it runs. Prints a table; asserts nothing. `python benchmarks/resnet_workers.py --table CSV`
prints one again.
"""

from __future__ import annotations

import argparse

import measuring
import rates
import training
from build import link_tree
from conditions import find_photos

from presize.measure.bench_options import BenchOptions

VARIANTS = ("raw", "lmdb", "loader")
_IN_SMALL = {"batch": 4, "crop": 128, "steps": 12, "epochs": 1}
_ON_A_GPU = {"batch": 128, "crop": 224, "steps": 60, "epochs": 2}


def kinds(rows: list[rates.Row]) -> dict[tuple[str, int], list[rates.Row]]:
    """(variant, workers) -> the rows of its runs."""
    workers = sorted({int(row["workers"]) for row in rows})
    found = {
        (variant, count): training.select(rows, variant=variant, workers=count)
        for variant in VARIANTS
        for count in workers
    }
    return {kind: chosen for kind, chosen in found.items() if chosen}


def utilisation(rows: list[rates.Row], workers: int) -> dict[str, float]:
    """U of each variant with so many workers. On the CPU they leave training fewer cores, so it is measured for
    each."""
    others = training.select(rows, workers=workers)
    return {
        variant: training.utilisation(mine, others)
        for (variant, count), mine in kinds(rows).items()
        if count == workers
    }


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; ratios are those within a round, to fewest workers."""
    found = kinds(rows)
    fewest = min(count for _, count in found)
    lines = [
        f"| read | workers | images/s | times {fewest} worker{'' if fewest == 1 else 's'} | ms a step | U | GPU busy |",
        "|---|---|---|---|---|---|---|",
    ]
    for (variant, workers), mine in found.items():
        images, base = (training.column(runs, "images_per_s") for runs in (mine, found[variant, fewest]))
        busy = training.column(mine, "gpu_busy")
        cells = [
            training.LABELS[variant],  # type: ignore[index]
            str(workers),
            rates.Spread.of(images).format(".3g"),
            rates.ratios(images, base).format(".2f"),
            rates.Spread.of([1e3 * seconds for seconds in training.column(mine, "step_s")]).format(".0f"),
            f"{utilisation(rows, workers)[variant]:.2f}",
            rates.Spread.of(busy).format(".0%") if busy else "no GPU",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[rates.Row]) -> str:
    first = rows[0]
    asked = f"On {first['device']}, batches of {first['batch']}, random resized crops of {first['crop']} px."
    return "\n".join([table(rows), "", asked, training.closing(rows)])


def measure_all(options: argparse.Namespace) -> None:
    defaults = _IN_SMALL if options.device == "cpu" else _ON_A_GPU
    given = {name: getattr(options, name) for name in defaults if getattr(options, name) is not None}
    asked = BenchOptions(models=("resnet50",), device=options.device, workers=options.workers, **defaults | given)
    tree = link_tree(find_photos(options.source), options.work, options.images)
    lmdb = training.build(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256")
    variants = dict(training.variants_of(asked, {"raw": tree, "lmdb": lmdb, "loader": lmdb}))
    measuring.in_rounds(variants, options, training.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, "resnet-workers.csv", repeats=3)
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments.add_argument("--workers", type=measuring.numbers, default=(1, 7), metavar="N,N")
    for name, value in _IN_SMALL.items():
        arguments.add_argument(f"--{name}", type=int, help=f"{value} on the CPU, {_ON_A_GPU[name]} on a GPU")
    arguments.add_argument("--images", type=int, default=2000, help="on a GPU rather 20,000")
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
