"""Rows of results/read.csv -> images a second of each loader, and their ratios within rounds.

`python benchmarks/read_rates.py CSV` prints the table that benchmarks/read.py prints at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rates import Row, Spread, other_work, ratios, read, where

STORED: dict[str, dict[str, str]] = {
    "256 px JPEG": {
        "decode-256": "decode in full, nothing else",
        "loader-256": "presize Loader",
        "loader-threads-256": "presize Loader, threads",
        "dataset-256": "presize LMDBDataset in a DataLoader",
        "ffcv-256": "FFCV",
        "ffcv-own-256": "FFCV, JPEG of its own making",
        "folder-256": "folder, torchvision",
        "webdataset-256": "WebDataset",
        "streaming-256": "MosaicML Streaming",
        "litdata-256": "LitData",
    },
    "512 px JPEG": {
        "decode-512": "decode in full, nothing else",
        "loader-512": "presize Loader",
        "dataset-512": "presize LMDBDataset in a DataLoader",
        "ffcv-512": "FFCV",
    },
    "256 px raw pixels": {
        "loader-pixels": "presize Loader",
        "dataset-pixels": "presize LMDBDataset in a DataLoader",
        "ffcv-pixels": "FFCV",
    },
    "photographs": {"folder-photos": "folder, torchvision"},
}
"""What is read -> variant -> the loader. A variant is one way to read one thing."""

FFCV = {"256 px JPEG": "ffcv-256", "512 px JPEG": "ffcv-512", "256 px raw pixels": "ffcv-pixels"}
DECODE = {"256 px JPEG": "decode-256", "512 px JPEG": "decode-512"}
"""What the other variants that read the same are compared with."""


def images_per_s(rows: list[Row], workers: int) -> dict[str, dict[int, float]]:
    """For each variant that was run with so many workers: its rate in each round."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if int(row["workers"]) == workers:
            found.setdefault(row["variant"], {})[int(row["round"])] = int(row["images"]) / float(row["seconds"])
    return found


def worker_counts(rows: list[Row]) -> list[int]:
    return sorted({int(row["workers"]) for row in rows})


def ratio(measured: dict[str, dict[int, float]], variant: str, other: str | None) -> Spread | None:
    """Of runs in the same round; None when one of the two was not run."""
    ours, theirs = measured.get(variant, {}), measured.get(other or "", {})
    rounds = sorted(ours.keys() & theirs.keys())
    return ratios([ours[number] for number in rounds], [theirs[number] for number in rounds]) if rounds else None


def table(rows: list[Row]) -> str:
    """Markdown: medians, and least and most in brackets."""
    counts = worker_counts(rows)
    heads = [f"{count} worker{'s' * (count > 1)}: images/s | times FFCV | of the decode" for count in counts]
    lines = ["| read | by | " + " | ".join(heads) + " |", "|---|---|" + "---|---|---|" * len(counts)]
    by_count = {count: images_per_s(rows, count) for count in counts}
    for stored, loaders in STORED.items():
        for variant, label in loaders.items():
            if not any(variant in measured for measured in by_count.values()):
                continue
            cells = [stored, label]
            for measured in by_count.values():
                cells.append(Spread.of(list(measured[variant].values())).format(".0f") if variant in measured else "")
                for other in (FFCV.get(stored), DECODE.get(stored)):
                    spread = ratio(measured, variant, other)
                    cells.append("" if spread is None else spread.format(".2f"))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """The table, and what goes with it, in Markdown."""
    first = rows[0]
    versions = sorted({version for row in rows for version in row["versions"].split()})
    return "\n".join(
        [
            table(rows),
            "",
            other_work(rows),
            f"{first['date']}, {len({row['round'] for row in rows})} rounds, photographs of "
            f"{first['mean_width']}×{first['mean_height']} and {first['mean_kb']} kB in the mean.",
            f"{where(first)}, Python {first['python']}.",
            f"{', '.join(version.replace('=', ' ') for version in versions)}.",
        ]
    )


if __name__ == "__main__":
    print(summary(read(Path(sys.argv[1]))))
