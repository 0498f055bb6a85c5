"""Draw what benchmarks/pinning.py measured.

python benchmarks/plot_pinning.py benchmarks/results/pinning.csv benchmarks/results/pinning.svg
"""

from __future__ import annotations

from pathlib import Path

import pinning
import plotting
import rates
import training


def draw(rows: list[rates.Row], path: Path) -> None:
    """A panel for each number of workers."""
    found = pinning.ways(rows)
    counts = sorted({way.workers for way in found})
    title = "Page-locked memory and copies without waiting"
    title += ": no CUDA, so nothing but noise" if rows[0]["device"] == "cpu" else f", {rows[0]['device_name']}"
    figure, axes = plotting.panels([1.6] * len(counts), title)
    for panel, count in zip(axes, counts, strict=True):
        drawn = [
            (str(way).partition(", ")[2], training.column(mine, "images_per_s"), "")
            for way, mine in found.items()
            if way.workers == count
        ]
        plotting.bars(panel, f"{count} worker{'' if count == 1 else 's'}", drawn)
    axes[-1].set_xlabel("images a second")
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
