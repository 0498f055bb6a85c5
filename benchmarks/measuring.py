"""The command line of scripts that measure into a CSV and print its table: also of one that was measured before."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import rates

_RESULTS = Path(__file__).parent / "results"


def parser(description: str | None, csv: str, repeats: int) -> argparse.ArgumentParser:
    """csv: the name of the file below results/. repeats: by default."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source", type=Path, nargs="?", metavar="PHOTOS", help="searched recursively for JPEGs")
    arguments.add_argument("--table", type=Path, metavar="CSV", help="measure nothing")
    arguments.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    arguments.add_argument("--repeats", type=int, default=repeats)
    arguments.add_argument("--csv", type=Path, default=_RESULTS / csv, help="replaced")
    return arguments


def run(
    arguments: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], None],
    summary: Callable[[list[rates.Row]], str],
) -> None:
    """Measure into options.csv, unless --table is there, and print the summary."""
    options = arguments.parse_args()
    if (options.source is None) == (options.table is None):
        arguments.error("PHOTOS or --table is needed")
    if options.table is None:
        measure(options)
    print(summary(rates.read(options.table or options.csv)))
