"""Summaries of the rows of a CSV: medians with their range, ratios within rounds, tables in Markdown."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a CSV of rows whose columns may differ."""
    names = dict.fromkeys(name for row in rows for name in row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def select(rows: list[Row], **columns: object) -> list[Row]:
    """Return the rows with these values, sorted by round."""
    wanted = {name: str(value) for name, value in columns.items()}
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return sorted(found, key=lambda row: int(row["round"]))


def column(rows: list[Row], name: str) -> list[float]:
    """Return the numbers of a column, without empty cells."""
    return [float(row[name]) for row in rows if row[name] != ""]


def numbers_in(rows: list[Row], name: str) -> list[int]:
    """Return the unique integers of a column, in ascending order."""
    return sorted({int(row[name]) for row in rows})


def ratios(values: list[float], others: list[float]) -> list[float]:
    """Return the ratio within each round: both values are measured under the same load."""
    return [value / other for value, other in zip(values, others, strict=True)]


def spread(values: Sequence[float], pattern: str) -> str:
    """Format the median, and min–max in brackets. `pattern` formats one number, such as ``.2f``."""
    return f"{median(values):{pattern}} ({min(values):{pattern}}–{max(values):{pattern}})"


def times(values: list[float], others: list[float]) -> str:
    """Format the spread of the ratios."""
    return spread(ratios(values, others), ".2f")


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    head, *rest = (f"| {' | '.join(row)} |" for row in (heads, *lines))
    return "\n".join([head, "|---" * len(heads) + "|", *rest])


def workers_text(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def other_work(rows: list[Row]) -> str:
    return f"Other processes took up to {max(column(rows, 'other_cpu')):.1%} of the CPU time."


def rounds(rows: list[Row]) -> str:
    """Format the date and the number of rounds."""
    return f"{rows[0]['date']}, {len({row['round'] for row in rows})} rounds"


def photographs(row: Row) -> str:
    """Format the mean size of the photographs."""
    return f"mean {row['mean_width']}×{row['mean_height']}, {row['mean_kb']} kB"


def machine(row: Row) -> str:
    return f"{row['cpu']}, {row['cores']} cores, {row['kernel']}, {row['file_system']}"


def versions(rows: list[Row]) -> str:
    """Format the package versions that the runs reported, such as "numpy=2.4.6 torch=2.13.0"."""
    found = sorted({version for row in rows for version in row["versions"].split()})
    return ", ".join(version.replace("=", " ") for version in found)
