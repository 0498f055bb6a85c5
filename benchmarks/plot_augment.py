"""Draw what benchmarks/augment.py measured.

python benchmarks/plot_augment.py benchmarks/results/augment.csv benchmarks/results/augment.svg
"""

from __future__ import annotations

from pathlib import Path

import augment
import device_augment
import plotting
import rates
import training


def draw(rows: list[rates.Row], path: Path) -> None:
    """A line for each library, over sizes of a batch and numbers of workers; below, who augments."""
    found = augment.by_library(rows)
    workers = sorted({count for _, count in found})
    places = augment.by_place(rows)
    figure, axes = plotting.panels([2.6] * len(workers) + [1.6] * bool(places), "Crop and flip to 224 px, from 256 px")
    most = max(max(values) for points in found.values() for values in points.values())
    for panel, count in zip(axes, workers, strict=False):
        for color, (library, label) in zip(plotting.COLORS[::-1], augment.LIBRARIES.items(), strict=False):
            if (library, count) in found:
                chosen = plotting.PRESIZE if library == "presize" else color
                plotting.line(panel, label, found[library, count], chosen)
        batches = sorted({batch for points in found.values() for batch in points})
        panel.set_xscale("symlog", base=2, linthresh=2)
        panel.set_xticks(batches, list(map(str, batches)))
        panel.minorticks_off()
        panel.set_ylim(0, 1.3 * most)
        panel.set_xlabel("images in a batch")
        panel.set_ylabel("images a second")
        panel.set_title(f"{count} worker{'' if count == 1 else 's'}", fontsize=10, loc="left", fontweight="bold")
    axes[0].legend(frameon=False, loc="upper left", fontsize=8)
    if places:
        device = next(iter(places.values()))[0]["device"]
        drawn = [
            (device_augment.PLACES[place].replace(", ", ",\n"), training.column(mine, "images_per_s"), "")
            for place, mine in places.items()
        ]
        plotting.bars(axes[-1], f"crop, flip and colour jitter; the device: {device}", drawn)
        axes[-1].set_xlabel("images a second")
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
