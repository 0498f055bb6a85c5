"""Draw what benchmarks/workers.py measured.

python benchmarks/plot_workers.py benchmarks/results/workers.csv benchmarks/results/workers.svg
"""

from __future__ import annotations

from pathlib import Path

import plotting
import rates
import workers


def draw(rows: list[rates.Row], path: Path) -> None:
    """The mock above, the real images below, each sweep a line; a ring where there are workers enough."""
    found = workers.sweeps(rows)
    mocked = {kind: sweep for kind, sweep in found.items() if kind[0] == "mock"}
    real = {kind: sweep for kind, sweep in found.items() if kind not in mocked}
    drawn = [group for group in (mocked, real) if group]
    figure, axes = plotting.panels([2.4] * len(drawn), "How many workers: a ring where they are enough")
    for panel, group in zip(axes, drawn, strict=True):
        for color, (kind, sweep) in zip(plotting.COLORS, group.items(), strict=False):
            points = workers.rate(sweep)
            plotting.line(panel, workers.label(*kind), points, plotting.PRESIZE if kind[0] == "mock" else color)
            enough = workers.advice(points)
            place = rates.Spread.of(points[enough]).median
            panel.plot(enough, place, "o", markersize=13, fillstyle="none", color=plotting.INK)
        if group is mocked:
            foretold = [workers.MOCK_BATCH / workers.foretold_s(count) for count in points]
            panel.plot(list(points), foretold, ":", color=plotting.INK, label="foretold: whoever is slower")
        panel.set_xticks(sorted({count for sweep in group.values() for count in sweep}))
        panel.set_ylim(bottom=0)
        panel.set_ylabel("images a second")
        panel.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    axes[-1].set_xlabel("workers")
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
