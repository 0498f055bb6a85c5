"""Draw what benchmarks/predict.py measured.

python benchmarks/plot_predict.py benchmarks/results/predict.csv benchmarks/results/predict.svg
"""

from __future__ import annotations

from pathlib import Path

import plotting
import predict
import rates


def draw(rows: list[rates.Row], path: Path) -> None:
    """Of each configuration what came over what was predicted: each round a dot, the median a bar."""
    figure, (axes,) = plotting.panels([0.42 * len(predict.names(rows)) + 0.6], "Predicted over measured, images/s")
    for place, name in enumerate(predict.names(rows)):
        ratios = [1 + error for error in predict.errors(rows, name)]
        color = plotting.OTHER if name[0].startswith("sleeps") else plotting.PRESIZE
        axes.plot(ratios, [place] * len(ratios), "o", color=color, markersize=5, alpha=0.6)
        axes.plot([rates.Spread.of(ratios).median], [place], "|", color=plotting.INK, markersize=16)
    axes.axvspan(0.85, 1.15, color=plotting.OTHER, alpha=0.15, linewidth=0)
    axes.axvline(1, color=plotting.INK, linewidth=0.8)
    axes.set_yticks(range(len(predict.names(rows))), [f"{before}\n→ {after}" for before, after in predict.names(rows)])
    axes.tick_params(axis="y", labelsize=8, left=False)
    axes.set_ylim(len(predict.names(rows)) - 0.4, -0.6)
    furthest = max(0.4, 0.05 + max(abs(error) for name in predict.names(rows) for error in predict.errors(rows, name)))
    axes.set_xlim(1 - furthest, 1 + furthest)
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
