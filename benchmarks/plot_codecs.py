"""Draw what benchmarks/codecs.py measured.

python benchmarks/plot_codecs.py benchmarks/results/codecs.csv benchmarks/results/codecs.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import codec_rates
import matplotlib
import plotting
import rates

_PRESIZE, _PRESIZE_COPIES = "#1f6fb2", "#a5c5e0"
_OTHER, _OTHER_COPIES = "#8a8f98", "#d0d3d8"
_WRONG = "#b3412e"
_INK = "#1b1f24"
_ENOUGH_DB = 50
"""Bars below it are red: 50 dB is a root mean square of 0.8 levels of 255."""


def draw(rows: list[rates.Row], path: Path) -> None:
    """Time from array to array on the left, error on the right; a line for each back-end."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "presize", "font.size": 10, "text.color": _INK})
    from matplotlib import pyplot

    figure, (times, wrong) = pyplot.subplots(
        1, 2, figsize=(9.6, 4.4), width_ratios=[3, 2], sharey=True, facecolor="white", layout="constrained"
    )
    names = list(codec_rates.call_ms(rows, codec_rates.PHOTOS))
    _draw_times(times, rows, names)
    _draw_errors(wrong, rows, names)
    first = rows[0]
    figure.suptitle(
        f"Resizing photographs of {first['mean_width']}×{first['mean_height']} pixels in the mean to "
        f"{first['size']} px, antialiased bicubic, one thread",
        fontsize=12,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_times(axes: Any, rows: list[rates.Row], names: list[str]) -> None:
    """Medians as bars, the copies into and out of the library's own form paler; least to most as a whisker."""
    whole = codec_rates.call_ms(rows, codec_rates.PHOTOS)
    alone = codec_rates.resize_ms(rows, codec_rates.PHOTOS)
    for place, name in enumerate(names):
        strong, pale = (_PRESIZE, _PRESIZE_COPIES) if name in codec_rates.OURS else (_OTHER, _OTHER_COPIES)
        spread, resizing = rates.Spread.of(whole[name]), rates.Spread.of(alone[name])
        axes.barh(place, spread.median, height=0.6, color=pale)
        axes.barh(place, resizing.median, height=0.6, color=strong)
        axes.plot([spread.least, spread.most], [place, place], color=_INK, linewidth=1.2, marker="|", markersize=8)
        ratio = codec_rates.times_base(whole, name).median
        remark = f"{spread.median:.2f}" if name == codec_rates.BASE else f"{spread.median:.2f}: {ratio:.1f}×"
        axes.annotate(remark, (spread.most, place), xytext=(8, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(max(values) for values in whole.values()))
    axes.set_xlabel(
        "CPU milliseconds an image, and times as fast as Pillow;\npaler: copies in and out; blue: what presize offers"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False)


def _draw_errors(axes: Any, rows: list[rates.Row], names: list[str]) -> None:
    """PSNR of the photographs as bars and of the zone plate as a ring, which aliasing pulls to the left."""
    photos = codec_rates.errors(rows, codec_rates.PHOTOS)
    plate = codec_rates.errors(rows, codec_rates.PLATE)
    for place, name in enumerate(names):
        value = float(photos[name]["psnr_db"])
        axes.barh(place, value, height=0.6, color=_WRONG if value < _ENOUGH_DB else _OTHER)
        axes.annotate(f"{value:.1f}", (0, place), xytext=(6, 0), textcoords="offset points", va="center", color="white")
        axes.plot(
            float(plate[name]["psnr_db"]), place, "o", markerfacecolor="white", markeredgecolor=_INK, markersize=6
        )
    ceiling = float(photos[codec_rates.EXACT]["psnr_db"])
    axes.axvline(ceiling, color=_INK, linewidth=1, linestyle=":")
    axes.set_xlim(0, 1.08 * ceiling)
    axes.set_xlabel("PSNR against exact arithmetic, dB;\nring: of a zone plate; dotted: best possible")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
