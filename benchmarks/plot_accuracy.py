"""Draw what benchmarks/accuracy.py found.

python benchmarks/plot_accuracy.py benchmarks/results/accuracy.csv benchmarks/results/accuracy.svg
"""

from __future__ import annotations

from pathlib import Path

import accuracy
import matplotlib
import plotting
import rates

_PRESIZE, _OTHER, _INK = "#1f6fb2", "#8a8f98", "#1b1f24"
_STYLES = ((_OTHER, "--"), ("#c8781e", "-"), (_PRESIZE, "-"))
"""Of the variants in their order, the raw folder first."""


def draw(rows: list[rates.Row], path: Path) -> None:
    """Means over seeds as lines, least to most as bands, by epoch. The format is that of the suffix."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "presize", "font.size": 10, "text.color": _INK})
    from matplotlib import pyplot

    rows = accuracy.complete(rows)
    first = rows[0]
    figure, axes = pyplot.subplots(figsize=(8.4, 3.6), facecolor="white", layout="constrained")
    for (variant, name), (color, style) in zip(accuracy.variants_of(rows).items(), _STYLES, strict=False):
        spreads = accuracy.by_epoch(rows, variant)
        epochs, means = list(spreads), [spread.mean for spread in spreads.values()]
        low, high = ([getattr(spread, end) for spread in spreads.values()] for end in ("least", "most"))
        axes.fill_between(epochs, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(epochs, means, color=color, linestyle=style, label=name)
    chance = 100 * float(first["chance"])
    axes.axhline(chance, color=_INK, linewidth=0.8, linestyle=":")
    axes.annotate("the largest class alone", (1, chance), xytext=(0, 4), textcoords="offset points", fontsize=9)
    axes.set_ylim(0, 90)
    axes.set_xlim(1, int(first["epochs"]))
    axes.set_xlabel("epoch")
    axes.set_ylabel("top-1 of held-out images, %")
    axes.legend(loc="upper left", frameon=False, title="trained on")
    axes.spines[["top", "right"]].set_visible(False)
    seeds = len(accuracy.final(rows, "raw"))
    axes.set_title(
        f"{first['name']}, seen at {first['crop']} px: mean and range of {seeds} seeds",
        fontsize=12,
        loc="left",
    )
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
