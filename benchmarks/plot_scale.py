"""Draw what benchmarks/scale.py measured.

python benchmarks/plot_scale.py benchmarks/results/scale.csv benchmarks/results/scale.svg
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import plotting
import rates
import scale

_PRESIZE, _OTHER, _INK = "#1f6fb2", "#8a8f98", "#1b1f24"


def draw(rows: list[rates.Row], path: Path) -> None:
    """Lines through the medians, least to most as whiskers. The format is that of the suffix."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "presize", "font.size": 10, "text.color": _INK})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.4, 3.6), facecolor="white", layout="constrained")
    lines = {
        "whole command": (scale.microseconds(rows), _OTHER, "--"),
        "without start-up": (scale.microseconds(rows, less_start_up=True), _PRESIZE, "-"),
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
    axes.spines[["top", "right"]].set_visible(False)
    first = rows[0]
    axes.set_title(f"What an image costs: {first['size']} px, {first['procs']} processes", fontsize=12, loc="left")
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
