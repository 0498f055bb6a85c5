"""What the scripts that draw share: their command line, a CSV to read and a picture to write; colours, and charts of
lines and of bars."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rates

PRESIZE, OTHER, INK = "#1f6fb2", "#8a8f98", "#1b1f24"
COLORS = (OTHER, PRESIZE, "#c2571a", "#3c8d4f", "#7a5aa6", "#b8912b")
"""Of lines, in order."""

Bar = tuple[str, list[float], str]
"""Its label, the values of all rounds, and a remark."""


def run(draw: Callable[[list[rates.Row], Path], None], description: str | None) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("out", type=Path, help="a .svg or .png")
    arguments = parser.parse_args()
    draw(rates.read(arguments.csv), arguments.out)


def panels(heights: Sequence[float], title: str, columns: int = 1, **how: Any) -> tuple[Any, list[Any]]:
    """A figure, and its panels from the top, of `heights` in inches, in rows of `columns`."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "presize", "font.size": 10, "text.color": INK})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(heights),
        columns,
        figsize=(8.4, 0.9 + sum(heights)),
        height_ratios=heights,
        squeeze=False,
        facecolor="white",
        layout="constrained",
        **how,
    )
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)


def save(figure: Any, path: Path) -> None:
    """The format is that of the suffix. An .svg of the same rows is the same file."""
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def line(axes: Any, label: str, points: dict[int, list[float]], color: str, style: str = "-") -> None:
    """Through the medians, least to most as whiskers."""
    spreads = [rates.Spread.of(values) for values in points.values()]
    low = [spread.median - spread.least for spread in spreads]
    high = [spread.most - spread.median for spread in spreads]
    medians = [spread.median for spread in spreads]
    marks = {"marker": "o", "markersize": 4, "capsize": 3, "elinewidth": 1}
    axes.errorbar(list(points), medians, (low, high), color=color, label=label, linestyle=style, **marks)


def bars(axes: Any, title: str, drawn: Sequence[Bar], pattern: str = ",.0f") -> None:
    """Medians, each run as a dot, least to most as a whisker; presize's in its colour, raw folders in another."""
    for place, (label, values, remark) in enumerate(drawn):
        spread = rates.Spread.of(values)
        color = OTHER if label.startswith("raw") else PRESIZE
        axes.barh(place, spread.median, height=0.7, color=color, alpha=0.8, linewidth=0)
        axes.plot([spread.least, spread.most], [place, place], color=INK, linewidth=1, marker="|", markersize=6)
        axes.plot(values, [place] * len(values), "o", color=INK, markersize=2)
        axes.annotate(
            f"{spread.median:{pattern}}{remark}",
            (spread.most, place),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(drawn)), [label for label, _, _ in drawn])
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.set_xlim(0, 1.3 * max(max(values) for _, values, _ in drawn))
    axes.tick_params(left=False)
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
