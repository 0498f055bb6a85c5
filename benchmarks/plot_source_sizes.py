"""Draw what benchmarks/source_sizes.py measured.

python benchmarks/plot_source_sizes.py benchmarks/results/source-sizes.csv benchmarks/results/source-sizes.svg
"""

from __future__ import annotations

from pathlib import Path

import plotting
import rates
import source_sizes
import training


def draw(rows: list[rates.Row], path: Path) -> None:
    """A panel for the loader alone, and one for training with it."""
    kinds = source_sizes.kinds(rows)
    models = [model for model in ("none", "small") if any(row["model"] == model for row in rows)]
    figure, axes = plotting.panels([0.5 + 0.3 * len(kinds)] * len(models), "How small to presize", sharex=True)
    for panel, model in zip(axes, models, strict=True):
        runs = training.select(rows, model=model)
        drawn = []
        for reads, variant in kinds:
            mine = training.select(runs, reads=reads, variant=variant)
            remark = "" if model == "none" else f", U {training.utilisation(mine, runs):.2f}"
            drawn.append((source_sizes.label(reads, variant), training.column(mine, "images_per_s"), remark))
        plotting.bars(panel, training.MODELS[model], drawn)
    axes[0].set_xlim(0, 1.3 * max(max(training.column(training.select(rows, model=m), "images_per_s")) for m in models))
    axes[-1].set_xlabel("images a second")
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
