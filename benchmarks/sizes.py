"""What a second size costs when both come from one decode.

    python benchmarks/sizes.py PHOTOS

Builds hard links to the JPEGs below PHOTOS at 256 px, at 160 px, and at both in one build, once a round, in
random order. Prints a table; asserts nothing. `python benchmarks/sizes.py --table CSV` prints one again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import measuring
import rates
from build import Variant, link_tree, measure
from conditions import conditions, find_photos

_BASE = "256"
_VARIANTS = {_BASE: [256], "160": [160], "256 and 160": [256, 160]}


def variants(options: argparse.Namespace, tree: Path) -> dict[str, Variant]:
    presize, out = Path(sys.executable).with_name("presize"), options.work / "out"
    found = {}
    for name, sizes in _VARIANTS.items():
        asked = [word for size in sizes for word in ("--size", str(size))]
        command = [str(presize), "build", str(tree), str(out), *asked, "--jobs", str(options.procs), "--json"]
        found[name] = Variant(command, lambda printed: int(printed["samples"]), out)
    return found


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; the ratios are those within a round."""
    seconds = {variant: _by_round(rows, variant, "seconds") for variant in _VARIANTS}
    cpu = {variant: _by_round(rows, variant, "cpu_seconds") for variant in _VARIANTS}
    lines = ["| sizes, px | seconds | times that of 256 | CPU seconds | times that of 256 |", "|---|---|---|---|---|"]
    for variant in _VARIANTS:
        cells = []
        for measured in (seconds, cpu):
            cells.append(rates.Spread.of(measured[variant]).format(".2f"))
            cells.append(rates.ratios(measured[variant], measured[_BASE]).format(".2f"))
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_round(rows: list[rates.Row], variant: str, column: str) -> list[float]:
    found = {int(row["round"]): float(row[column]) for row in rows if row["variant"] == variant}
    return [found[number] for number in sorted(found)]


def summary(rows: list[rates.Row]) -> str:
    first = rows[0]
    return "\n".join(
        [
            table(rows),
            "",
            rates.other_work(rows),
            f"{first['date']}, {len({row['round'] for row in rows})} rounds, {first['procs']} processes, "
            f"{first['images']} photographs (mean {first['mean_width']}×{first['mean_height']}, "
            f"{first['mean_kb']} kB).",
            f"{rates.where(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    tree = link_tree(photos, options.work, options.images)
    facts = conditions(sorted(tree.rglob("*.jpg")))
    todo = variants(options, tree)
    measure(todo[_BASE])  # what is read and imported is in the page cache from here on

    def run(name: str) -> Iterator[measuring.Columns]:
        yield {"variant": name, "procs": options.procs} | measure(todo[name])

    measuring.in_rounds({name: partial(run, name) for name in todo}, options, facts, options.seed)


def main() -> None:
    arguments = measuring.parser(__doc__, "sizes.csv", repeats=5)
    arguments.add_argument("--images", type=int, default=4000)
    arguments.add_argument("--procs", type=int, default=2)
    arguments.add_argument("--seed", type=int, default=0, help="of the order of the variants")
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
