"""The command line of scripts that measure into a CSV and print its table: also of one that was measured before."""

from __future__ import annotations

import argparse
import datetime
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import rates

_RESULTS = Path(__file__).parent / "results"

Columns = dict[str, object]


def parser(description: str | None, csv: str, repeats: int) -> argparse.ArgumentParser:
    """csv: the name of the file below results/. repeats: by default."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source", type=Path, nargs="?", metavar="PHOTOS", help="searched recursively for JPEGs")
    arguments.add_argument("--table", type=Path, metavar="CSV", help="measure nothing")
    arguments.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    arguments.add_argument("--repeats", type=int, default=repeats)
    arguments.add_argument("--csv", type=Path, default=_RESULTS / csv, help="replaced")
    return arguments


def numbers(text: str) -> tuple[int, ...]:
    """The type of an option that takes N,N."""
    return tuple(int(part) for part in text.split(","))


def run(
    arguments: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], None],
    summary: Callable[[list[rates.Row]], str],
    minutes: int | None = None,
) -> None:
    """Measure into options.csv, unless --table is there, and print the summary.

    minutes: what that takes with the defaults, said before it begins.
    """
    options = arguments.parse_args()
    if (options.source is None) == (options.table is None):
        arguments.error("PHOTOS or --table is needed")
    if options.table is None:
        if minutes is not None:
            print(f"This takes about {minutes} minutes on two quiet cores, with the defaults.", file=sys.stderr)
        measure(options)
    print(summary(rates.read(options.table or options.csv)))


def in_rounds(
    variants: Mapping[str, Callable[[], Iterable[Columns]]], options: argparse.Namespace, facts: Columns, seed: int = 0
) -> None:
    """Each of `variants` once a round, options.repeats rounds, in an order drawn by `seed`; what they measure, a row or
    several a run, all with "images_per_s", is in options.csv after each run, with the date, the round and `facts`."""
    date, order = datetime.datetime.now(datetime.UTC).date().isoformat(), random.Random(seed)
    rows: list[Columns] = []
    for number in range(options.repeats):
        for name in order.sample(list(variants), len(variants)):
            measured = list(variants[name]())
            rows += [{"date": date, "round": number} | columns | facts for columns in measured]
            rate = ", ".join(f"{columns['images_per_s']:.5g}" for columns in measured)
            print(f"round {number + 1} of {options.repeats}: {name}: {rate} images/s", file=sys.stderr)
            rates.write(options.csv, rows)
