"""Compare loading from the raw folder with loading from 320 px and 160 px, as folders and in LMDB.

    python benchmarks/training/source_sizes.py PHOTOS

Builds hard links to the JPEGs below PHOTOS at both sizes and in both layouts, and loads random resized crops of 128 px
from each and from the raw folder, without a model and while training the small CNN. Builds and loaders run once per
round, in random order, each in its own process, with the page cache warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.measure.bench_options import BenchOptions, Variant
from shared import bench_runs, builds, measuring, rates
from shared.conditions import find_photos

_FORMS: dict[Variant, str] = {"presized": "folder", "lmdb": "lmdb"}
_BUILD = "build"
_EPOCHS: dict[Variant, int] = {"raw": 2, "presized": 3, "lmdb": 3}
"""Epochs of a run. The first does not count; epochs of raw folders are long."""


def timed_build(tree: Path, out: Path, reads: str, variant: str, how: list[str]) -> Iterator[measuring.Columns]:
    """Time one build, and delete its output."""
    measured = builds.measure(builds.presize_build(tree, out, *how))
    yield {"reads": reads, "variant": variant, "model": _BUILD} | measured


def kinds(rows: list[rates.Row]) -> list[tuple[str, str]]:
    """Return pairs of `reads` and variant: the raw folder, then the sizes in descending order."""
    found = {(row["reads"], row["variant"]) for row in rows}
    sizes = sorted((int(reads.split()[0]) for reads, variant in found if variant == "lmdb"), reverse=True)
    return [("raw", "raw"), *((f"{size} px", variant) for size in sizes for variant in _FORMS)]


def label(reads: str, variant: str) -> str:
    return "raw folder" if variant == "raw" else f"{reads}, {'LMDB' if variant == 'lmdb' else 'folder'}"


def table(rows: list[rates.Row]) -> str:
    heads = ["read", "MB", "build, s", "the loader alone: images/s", "times raw", "training the small CNN: images/s"]
    raw = rates.column(rates.select(rows, variant="raw", model="none"), "images_per_s")
    trained, lines = rates.select(rows, model="small"), []
    for reads, variant in kinds(rows):
        mine = rates.select(rows, reads=reads, variant=variant)
        alone, small = (rates.select(mine, model=model) for model in ("none", "small"))
        seconds = rates.column(rates.select(mine, model=_BUILD), "seconds")
        images = rates.column(alone, "images_per_s")
        lines.append(
            [
                label(reads, variant),
                f"{float(alone[0]['stored_bytes']) / 1e6:.1f}",
                rates.spread(seconds, ".2f") if seconds else "",
                rates.spread(images, ".0f"),
                rates.times(images, raw),
                rates.spread(rates.column(small, "images_per_s"), ".0f") if small else "",
                f"{bench_runs.utilisation(small, trained):.2f}" if small else "",
            ]
        )
    return rates.table([*heads, "U"], lines)


def summary(rows: list[rates.Row]) -> str:
    first = next(row for row in rows if row["batch"])
    built = next(row for row in rows if row["model"] == _BUILD)
    read = (
        f"Random resized crops of {first['crop']} px, batches of {first['batch']}, "
        f"{rates.workers_text(int(first['workers']))}; {built['images']} photographs, built by all cores."
    )
    return "\n".join([table(rows), "", read, bench_runs.closing(rows)])


def measure_all(options: argparse.Namespace) -> None:
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    root = options.work / "source-sizes"
    asked = {
        variant: BenchOptions(crop=options.crop, workers=(1,), epochs=epochs, steps=options.steps)
        for variant, epochs in _EPOCHS.items()
    }
    variants: dict[str, Any] = dict(bench_runs.variants_of(asked["raw"], {"raw": tree}))
    for size, (variant, form) in product(options.sizes, _FORMS.items()):
        how = ["--size", str(size), "--to", form]
        folder = builds.build_once(tree, root / f"{tree.name}-{size}-{form}", *how)
        variants.update(bench_runs.variants_of(asked[variant], {variant: folder}, f"{size} px"))
        variants[f"building {size} px, {form}"] = partial(timed_build, tree, root / "out", f"{size} px", variant, how)
    measuring.in_rounds(variants, options, bench_runs.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--sizes", type=measuring.numbers, default=(320, 160), metavar="N,N", help="shorter side")
    arguments.add_argument("--crop", type=int, default=128)
    arguments.add_argument("--images", type=int, default=2000)
    arguments.add_argument("--steps", type=int, default=12, help="batches of 64 per epoch")
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
