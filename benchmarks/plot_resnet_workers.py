"""Draw what benchmarks/resnet_workers.py measured.

python benchmarks/plot_resnet_workers.py benchmarks/results/resnet-workers.csv benchmarks/results/resnet-workers.svg
"""

from __future__ import annotations

from pathlib import Path

import plotting
import rates
import resnet_workers
import training


def draw(rows: list[rates.Row], path: Path) -> None:
    """A bar for each loader and number of workers."""
    found = resnet_workers.kinds(rows)
    figure, axes = plotting.panels([0.5 + 0.3 * len(found)], f"ResNet-50 on {rows[0]['device']}: how many workers")
    drawn = []
    for (variant, workers), mine in found.items():
        busy = training.column(mine, "gpu_busy")
        remark = f", U {resnet_workers.utilisation(rows, workers)[variant]:.2f}"
        remark += f", GPU {rates.Spread.of(busy).median:.0%}" if busy else ""
        label = f"{training.LABELS[variant]}, {workers} worker{'' if workers == 1 else 's'}"  # type: ignore[index]
        drawn.append((label, training.column(mine, "images_per_s"), remark))
    plotting.bars(axes[0], f"batches of {rows[0]['batch']}, crops of {rows[0]['crop']} px", drawn, ".3g")
    axes[0].set_xlabel("images a second")
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
