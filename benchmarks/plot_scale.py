"""Draw what benchmarks/scale.py measured.

python benchmarks/plot_scale.py benchmarks/results/scale.csv benchmarks/results/scale.svg
"""

from __future__ import annotations

from pathlib import Path

import plotting
import rates
import scale


def draw(rows: list[rates.Row], path: Path) -> None:
    """Lines through the medians, least to most as whiskers. The format is that of the suffix."""
    first = rows[0]
    title = f"What an image costs: {first['size']} px, {first['procs']} processes"
    figure, (axes,) = plotting.panels([2.7], title)
    lines = {
        "whole command": (scale.microseconds(rows), plotting.OTHER, "--"),
        "without start-up": (scale.microseconds(rows, less_start_up=True), plotting.PRESIZE, "-"),
    }
    for label, (spreads, color, style) in lines.items():
        counts, medians = list(spreads), [spread.median for spread in spreads.values()]
        low = [spread.median - spread.least for spread in spreads.values()]
        high = [spread.most - spread.median for spread in spreads.values()]
        axes.errorbar(counts, medians, (low, high), color=color, linestyle=style, marker="o", capsize=4)
        axes.annotate(
            label, (counts[0], medians[0]), xytext=(8, 8), textcoords="offset points", color=color, weight="bold"
        )
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("images")
    axes.set_ylabel("µs an image, on the wall")
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
