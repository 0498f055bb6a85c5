"""Rows of results/build.csv -> images a second by what is counted, and their ratios within rounds.

`python benchmarks/rates.py CSV` prints the table that benchmarks/build.py prints at its end.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

LIMIT = "codec limit"
STOCK = "stock LMDB script"
FFCV = "FFCV's writer"
BUILD = "presize build"
START_UP = "presize start-up"
"""The variants: what is run, once a round. START_UP is a build of a few images with the same command. FFCV is there
when its environment was given."""

WORKING = "presize build, without start-up"
WHOLE = "presize build, whole command"
"""BUILD is also counted from the start of its command to its end, and the same less its START_UP."""

Row = dict[str, str]


@dataclass(frozen=True)
class Spread:
    """Of several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def format(self, pattern: str) -> str:
        """`pattern` is that of one number: ``.2f``."""
        return f"{self.median:{pattern}} ({self.least:{pattern}}–{self.most:{pattern}})"


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """A row may lack columns that others have."""
    names = dict.fromkeys(name for row in rows for name in row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def images_per_s(rows: list[Row]) -> dict[str, list[float]]:
    """For each thing counted, one number a round, in the order of the rounds."""
    rounds = sorted({int(row["round"]) for row in rows})
    by_variant = {(row["variant"], int(row["round"])): row for row in rows}

    def rate(variant: str, column: str = "seconds", less: str | None = None) -> list[float]:
        found = []
        for number in rounds:
            row = by_variant[variant, number]
            seconds = float(row[column]) - (float(by_variant[less, number][column]) if less else 0)
            found.append(int(row["images"]) / seconds)
        return found

    found = {
        LIMIT: rate(LIMIT),
        WORKING: rate(BUILD, "process_seconds", less=START_UP),
        BUILD: rate(BUILD),
        WHOLE: rate(BUILD, "process_seconds"),
        STOCK: rate(STOCK),
    }
    if any(row["variant"] == FFCV for row in rows):
        found[FFCV] = rate(FFCV)
    return found


def ratios(rates: list[float], others: list[float]) -> Spread:
    """Of runs in the same round: what slows the machine for a while slows both."""
    return Spread.of([rate / other for rate, other in zip(rates, others, strict=True)])


def other_work(rows: list[Row]) -> str:
    return f"Other processes took up to {max(float(row['other_cpu']) for row in rows):.1%} of the CPU time."


def where(row: Row) -> str:
    return f"{row['cpu']}, {row['cores']} cores, {row['kernel']}, {row['file_system']}"


def start_up_seconds(rows: list[Row]) -> Spread:
    return Spread.of([float(row["process_seconds"]) for row in rows if row["variant"] == START_UP])


def table(rows: list[Row]) -> str:
    """Markdown: medians, and least and most in brackets."""
    rates = images_per_s(rows)
    others = {LIMIT: "of the codec limit", STOCK: "times the stock script", FFCV: "times FFCV's writer"}
    others = {other: heading for other, heading in others.items() if other in rates}
    lines = [f"| | images/s | {' | '.join(others.values())} |", "|---|---|" + "---|" * len(others)]
    for name, values in rates.items():
        times = " | ".join(ratios(values, rates[other]).format(".2f") for other in others)
        lines.append(f"| {name} | {Spread.of(values).format('.0f')} | {times} |")
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """The table, and what goes with it, in Markdown."""
    memory = max(float(row["worker_private_mb"]) for row in rows if row["variant"] == BUILD)
    first = rows[0]
    return "\n".join(
        [
            table(rows),
            "",
            f"Start-up (a build of a few images): {start_up_seconds(rows).format('.2f')} s.",
            f"Private memory of a build worker, at most: {memory:.0f} MB.",
            other_work(rows),
            f"{first['date']}, {len({row['round'] for row in rows})} rounds, {first['procs']} processes, "
            f"{first['size']} px, {next(row['images'] for row in rows if row['variant'] == BUILD)} photographs "
            f"(mean {first['mean_width']}×{first['mean_height']}, {first['mean_kb']} kB; "
            f"{float(first['share_444']):.0%} 4:4:4, {float(first['share_420']):.0%} 4:2:0).",
            f"{where(first)}.",
        ]
    )


if __name__ == "__main__":
    print(summary(read(Path(sys.argv[1]))))
