"""Draw what benchmarks/read.py measured.

python benchmarks/plot_read.py benchmarks/results/read.csv benchmarks/results/read.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import plotting
import rates
import read_rates

_PRESIZE, _OTHER = "#1f6fb2", "#8a8f98"
_INK = "#1b1f24"
_PALEST = 0.45
_MARGIN = 0.3


def draw(rows: list[rates.Row], path: Path) -> None:
    """A panel for each thing that is read, a bar for each number of workers, paler for fewer of them."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "presize", "font.size": 10, "text.color": _INK})
    from matplotlib import pyplot

    run = {row["variant"] for row in rows}
    panels = {
        stored: [variant for variant in loaders if variant in run]
        for stored, loaders in read_rates.STORED.items()
        if run & loaders.keys()
    }
    counts = read_rates.worker_counts(rows)
    bars = len(counts) * len(run)
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(8.4, 1.6 + 0.24 * bars + 0.4 * len(panels)),
        height_ratios=[len(names) + _MARGIN for names in panels.values()],
        sharex=True,
        squeeze=False,
        facecolor="white",
        layout="constrained",
    )
    by_count = {count: read_rates.images_per_s(rows, count) for count in counts}
    for panel, (stored, names) in zip(axes[:, 0], panels.items(), strict=True):
        _draw_panel(panel, stored, names, by_count)
    most = max(rate for measured in by_count.values() for rounds in measured.values() for rate in rounds.values())
    axes[-1, 0].set_xlim(0, 1.3 * most)
    axes[-1, 0].set_xlabel("images a second")
    workers = " and ".join(map(str, counts))
    figure.suptitle(
        f"Reading batches of {rows[0]['batch']} random resized crops of 224 px with {workers} workers",
        fontsize=12,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_panel(axes: Any, stored: str, names: list[str], by_count: dict[int, dict[str, dict[int, float]]]) -> None:
    """Medians as bars, each run as a dot, least to most as a whisker, and the ratio to FFCV in words."""
    height = 0.8 / len(by_count)
    for row, variant in enumerate(names):
        for number, (count, measured) in enumerate(by_count.items()):
            if variant not in measured:
                continue
            values = list(measured[variant].values())
            spread = rates.Spread.of(values)
            place = row + (number - (len(by_count) - 1) / 2) * height
            color = _PRESIZE if variant.startswith(("loader", "dataset")) else _OTHER
            fewer = (len(by_count) - 1 - number) / max(1, len(by_count) - 1)
            shade = 1 - (1 - _PALEST) * fewer
            axes.barh(place, spread.median, height=0.9 * height, color=color, alpha=shade, linewidth=0)
            axes.plot([spread.least, spread.most], [place, place], color=_INK, linewidth=1, marker="|", markersize=6)
            axes.plot(values, [place] * len(values), "o", color=_INK, markersize=2)
            axes.annotate(
                _remark(stored, variant, count, measured),
                (spread.most, place),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.set_yticks(range(len(names)), [read_rates.STORED[stored][variant] for variant in names])
    axes.set_ylim(len(names) - 0.5 + _MARGIN / 2, -0.5 - _MARGIN / 2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False)
    axes.set_title(stored, fontsize=10, loc="left", fontweight="bold")


def _remark(stored: str, variant: str, workers: int, measured: dict[str, dict[int, float]]) -> str:
    """The median, and the median of the ratios to FFCV within rounds."""
    remark = f"{rates.Spread.of(list(measured[variant].values())).median:,.0f} ({workers})"
    to_ffcv = read_rates.ratio(measured, variant, read_rates.FFCV.get(stored))
    if to_ffcv is None or variant in (read_rates.FFCV.get(stored), read_rates.DECODE.get(stored)):
        return remark
    return f"{remark}: {to_ffcv.median:.2f} × FFCV"


if __name__ == "__main__":
    plotting.run(draw, __doc__)
