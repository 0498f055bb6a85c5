"""Measure the cost of a second size from the same decode.

    python benchmarks/building/sizes.py PHOTOS

Builds hard links to the JPEGs below PHOTOS at 256 px, at 160 px, and at both in one build, once per round, in random
order. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, rates
from shared.conditions import conditions, find_photos

_BASE = "256"
_VARIANTS = {_BASE: [256], "160": [160], "256 and 160": [256, 160]}


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for variant in _VARIANTS:
        cells = [variant]
        for name in ("seconds", "cpu_seconds"):
            values, base = (rates.column(rates.select(rows, variant=one), name) for one in (variant, _BASE))
            cells += [rates.spread(values, ".2f"), rates.times(values, base)]
        lines.append(cells)
    first = rows[0]
    return "\n".join(
        [
            rates.table(["sizes, px", "seconds", "times that of 256", "CPU seconds", "times that of 256"], lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, {first['procs']} processes, {first['images']} photographs "
            f"({rates.photographs(first)}).",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    out = options.work / "out"

    def run(name: str) -> Iterator[measuring.Columns]:
        asked = [word for size in _VARIANTS[name] for word in ("--size", str(size))]
        command = [builds.PRESIZE, "build", str(tree), str(out), *asked, "--jobs", str(options.procs), "--json"]
        yield {"variant": name, "procs": options.procs} | builds.measure(builds.Variant(command, out))

    facts = conditions(sorted(tree.rglob("*.jpg")))
    next(run(_BASE))  # fills the page cache
    measuring.in_rounds({name: partial(run, name) for name in _VARIANTS}, options, facts)


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--images", type=int, default=4000)
    arguments.add_argument("--procs", type=int, default=2)
    measuring.run(arguments, measure_all, summary, minutes=2)


if __name__ == "__main__":
    main()
