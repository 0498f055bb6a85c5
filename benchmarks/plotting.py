"""The command line of the scripts that draw: a CSV to read, and a picture to write."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import rates


def run(draw: Callable[[list[rates.Row], Path], None], description: str | None) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("out", type=Path, help="a .svg or .png")
    arguments = parser.parse_args()
    draw(rates.read(arguments.csv), arguments.out)
