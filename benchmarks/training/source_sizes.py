"""How small to presize: the raw folder against 320 px and 160 px, as folders and in LMDB.

    python benchmarks/source_sizes.py PHOTOS

Builds hard links to the JPEGs below PHOTOS at both sizes and in both forms, and loads random resized crops of 128 px
from each and from the raw folder, alone and into training of the small CNN. Builds and loaders run once a round, in
random order, in processes of their own, with the page cache warm. Prints a table; asserts nothing.
`python benchmarks/source_sizes.py --table CSV` prints one again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import build as building
import measuring
import rates
import training
from conditions import find_photos

from presize.measure.bench_options import BenchOptions, Variant

_FORMS: dict[Variant, str] = {"presized": "folder", "lmdb": "lmdb"}
_BUILD = "build"
_EPOCHS: dict[Variant, int] = {"raw": 2, "presized": 3, "lmdb": 3}
"""The first is not counted; those of raw folders are long."""


def timed_build(tree: Path, out: Path, reads: str, variant: str, how: list[str]) -> Iterator[measuring.Columns]:
    """One build, which is removed again."""
    presize = str(Path(sys.executable).with_name("presize"))
    command = [presize, "build", str(tree), str(out), *how, "--no-report", "--json"]
    measured = building.measure(building.Variant(command, lambda printed: int(printed["samples"]), out))
    yield {"reads": reads, "variant": variant, "model": _BUILD} | measured


def kinds(rows: list[rates.Row]) -> list[tuple[str, str]]:
    """(what is read, variant): the raw folder, then the larger sizes before the smaller."""
    found = {(row["reads"], row["variant"]) for row in rows}
    sizes = sorted((int(reads.split()[0]) for reads, variant in found if variant == "lmdb"), reverse=True)
    return [("raw", "raw"), *((f"{size} px", variant) for size in sizes for variant in _FORMS)]


def label(reads: str, variant: str) -> str:
    return "raw folder" if variant == "raw" else f"{reads}, {'LMDB' if variant == 'lmdb' else 'folder'}"


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; ratios are those within a round."""
    lines = [
        "| read | MB | build, s | the loader alone: images/s | times raw | training the small CNN: images/s | U |",
        "|---|---|---|---|---|---|---|",
    ]
    raw = training.column(training.select(rows, variant="raw", model="none"), "images_per_s")
    trained = training.select(rows, model="small")
    for reads, variant in kinds(rows):
        mine = training.select(rows, reads=reads, variant=variant)
        alone, small = (training.select(mine, model=model) for model in ("none", "small"))
        seconds = training.column(training.select(mine, model=_BUILD), "seconds")
        images = training.column(alone, "images_per_s")
        cells = [
            label(reads, variant),
            f"{float(alone[0]['stored_bytes']) / 1e6:.1f}",
            rates.Spread.of(seconds).format(".2f") if seconds else "",
            rates.Spread.of(images).format(".0f"),
            rates.ratios(images, raw).format(".2f"),
            rates.Spread.of(training.column(small, "images_per_s")).format(".0f") if small else "",
            f"{training.utilisation(small, trained):.2f}" if small else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[rates.Row]) -> str:
    first = next(row for row in rows if row["batch"])
    built = next(row for row in rows if row["model"] == _BUILD)
    read = (
        f"Random resized crops of {first['crop']} px, batches of {first['batch']}, {first['workers']} worker; "
        f"{built['images']} photographs, built by all cores."
    )
    return "\n".join([table(rows), "", read, training.closing(rows)])


def measure_all(options: argparse.Namespace) -> None:
    tree = building.link_tree(find_photos(options.source), options.work, options.images)
    root = options.work / "source-sizes"
    asked = {
        variant: BenchOptions(crop=options.crop, workers=(1,), epochs=epochs, steps=options.steps)
        for variant, epochs in _EPOCHS.items()
    }
    variants: dict[str, Any] = dict(training.variants_of(asked["raw"], {"raw": tree}))
    for size, (variant, form) in product(options.sizes, _FORMS.items()):
        how = ["--size", str(size), "--to", form]
        folder = training.build(tree, root / f"{tree.name}-{size}-{form}", *how)
        variants.update(training.variants_of(asked[variant], {variant: folder}, f"{size} px"))
        variants[f"building {size} px, {form}"] = partial(timed_build, tree, root / "out", f"{size} px", variant, how)
    measuring.in_rounds(variants, options, training.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, "source-sizes.csv", repeats=5)
    arguments.add_argument("--sizes", type=measuring.numbers, default=(320, 160), metavar="N,N", help="shorter side")
    arguments.add_argument("--crop", type=int, default=128)
    arguments.add_argument("--images", type=int, default=2000)
    arguments.add_argument("--steps", type=int, default=12, help="of an epoch, batches of 64")
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
