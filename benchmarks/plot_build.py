"""Draw what benchmarks/build.py measured.

python benchmarks/plot_build.py benchmarks/results/build.csv benchmarks/results/build.svg
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import plotting
import rates

_PRESIZE, _OTHER = "#1f6fb2", "#8a8f98"
_INK = "#1b1f24"
_LABELS = {
    rates.LIMIT: "codec limit\n(decode and encode, nothing else)",
    rates.WORKING: "presize build,\nwithout start-up",
    rates.BUILD: "presize build,\nscan to manifest",
    rates.WHOLE: "presize build,\nwhole command",
    rates.STOCK: "the script people write\n(Pillow, Lanczos, one LMDB)",
    rates.FFCV: "FFCV's DatasetWriter\n(Pillow, OpenCV)",
}


def draw(rows: list[rates.Row], path: Path) -> None:
    """Medians as bars, each run as a dot, least to most as a whisker. The format is that of the suffix."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "presize", "font.size": 10, "text.color": _INK})
    from matplotlib import pyplot

    measured = rates.images_per_s(rows)
    figure, axes = pyplot.subplots(figsize=(8.4, 4.2), facecolor="white", layout="constrained")
    for place, (name, values) in enumerate(measured.items()):
        spread = rates.Spread.of(values)
        color = _PRESIZE if name.startswith("presize") else _OTHER
        axes.barh(place, spread.median, height=0.6, color=color)
        axes.plot([spread.least, spread.most], [place, place], color=_INK, linewidth=1.5, marker="|", markersize=10)
        axes.plot(values, [place] * len(values), "o", color=_INK, markersize=3)
        axes.annotate(
            _remark(name, values, measured),
            (spread.most, place),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(measured)), [_LABELS[name] for name in measured])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(max(values) for values in measured.values()))
    axes.set_xlabel("photographs a second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False)
    first = rows[0]
    images = max(int(row["images"]) for row in rows)
    axes.set_title(
        f"Building a {first['size']} px dataset from {images:,} photographs with {first['procs']} processes",
        fontsize=12,
        loc="left",
    )
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _remark(name: str, values: list[float], measured: dict[str, list[float]]) -> str:
    """The median, and the median of the ratios within rounds."""
    rate = f"{rates.Spread.of(values).median:,.0f}"
    if name in (rates.LIMIT, rates.STOCK, rates.FFCV):
        return rate
    of_limit = rates.ratios(values, measured[rates.LIMIT]).median
    times_stock = rates.ratios(values, measured[rates.STOCK]).median
    return f"{rate}: {of_limit:.2f} of the limit,\n{times_stock:.2f} times the script"


if __name__ == "__main__":
    plotting.run(draw, __doc__)
