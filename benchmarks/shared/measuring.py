"""Common command line of the scripts: measure photographs into a CSV and print its table, or print the table again."""

from __future__ import annotations

import argparse
import datetime
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shared import rates

Columns = dict[str, object]


def parser(description: str | None, script: str, repeats: int) -> argparse.ArgumentParser:
    """Return a parser with the common options. The CSV is results/NAME.csv next to `script`, its ``__file__``."""
    path = Path(script).resolve()
    csv = path.parent / "results" / f"{path.stem.replace('_', '-')}.csv"
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source", type=Path, nargs="?", metavar="PHOTOS", help="searched recursively for JPEGs")
    arguments.add_argument("--table", type=Path, nargs="?", const=csv, metavar="CSV", help="only print its table")
    arguments.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    arguments.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"rounds (default: {repeats})")
    arguments.add_argument("--seed", type=int, default=0, help="seed of the order of the runs")
    arguments.add_argument("--csv", type=Path, default=csv, help="CSV to replace (default: in results/)")
    return arguments


def numbers(text: str) -> tuple[int, ...]:
    """Parse the value of an option that takes N,N."""
    return tuple(int(part) for part in text.split(","))


def run(
    arguments: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], None],
    summary: Callable[[list[rates.Row]], str],
    minutes: int | None = None,
) -> None:
    """Measure into options.csv, unless --table is given, and print the summary.

    Args:
        arguments: result of parser().
        measure: function that writes options.csv.
        summary: function that formats rows as a table.
        minutes: duration of the measurement with the defaults, printed first.
    """
    options = arguments.parse_args()
    if (options.source is None) == (options.table is None):
        arguments.error("expected PHOTOS or --table")
    if options.table is not None and not options.table.is_file():
        arguments.error(f"--table: {options.table} is not a file")
    if options.table is None:
        if minutes is not None:
            print(f"This takes about {minutes} minutes on two idle cores, with the defaults.", file=sys.stderr)
        measure(options)
    print(summary(rates.read(options.table or options.csv)))


def in_rounds(
    variants: Mapping[str, Callable[[], Iterable[Columns]]],
    options: argparse.Namespace,
    facts: Columns,
    progress: str = "images_per_s",
) -> None:
    """Run each variant once per round, options.repeats rounds, in random order, and write options.csv after each run.

    Args:
        variants: functions that yield rows, by name.
        options: repeats, seed of the order, and csv.
        facts: columns of every row, in addition to the date and the round.
        progress: column to print after each run.
    """
    date, order = datetime.datetime.now(datetime.UTC).date().isoformat(), random.Random(options.seed)
    rows: list[Columns] = []
    for number in range(options.repeats):
        for name in order.sample(list(variants), len(variants)):
            measured = list(variants[name]())
            rows += [{"date": date, "round": number} | columns | facts for columns in measured]
            found = ", ".join(f"{columns[progress]:.5g}" for columns in measured)
            print(f"round {number + 1} of {options.repeats}: {name}: {progress} {found}", file=sys.stderr)
            rates.write(options.csv, rows)
