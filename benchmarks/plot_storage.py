"""Draw what benchmarks/storage.py measured.

python benchmarks/plot_storage.py benchmarks/results/storage.csv benchmarks/results/storage.svg
"""

from __future__ import annotations

from pathlib import Path

import plotting
import rates
import training

_ORDERS = {"sequential": "in the order of the disk", "epoch": "at random, all of them"}
_WAYS = {("warm", "on"): "-", ("cold", "on"): "--", ("cold", "off"): ":"}


def draw(rows: list[rates.Row], path: Path) -> None:
    """A panel for each window of the kernel's readahead: megabytes a second over the size of a record."""
    windows = sorted({int(row["window_kb"]) for row in rows})
    sizes = sorted({int(row["record_bytes"]) for row in rows})
    figure, axes = plotting.panels([3.0] * len(windows), "Records from the disk and from the page cache", sharex=True)
    for panel, window in zip(axes, windows, strict=True):
        for color, (order, label) in zip(plotting.COLORS, _ORDERS.items(), strict=False):
            for (cache, readahead), style in _WAYS.items():
                chosen = training.select(rows, window_kb=window, order=order, cache=cache, readahead=readahead)
                points = {
                    size: [
                        float(row["mb"]) / float(row["seconds"]) for row in training.select(chosen, record_bytes=size)
                    ]
                    for size in sizes
                }
                said = f"{label}, {cache}{'' if cache == 'warm' else f', readahead {readahead}'}"
                plotting.line(panel, said, {size: values for size, values in points.items() if values}, color, style)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(sizes, [f"{size / 1000:g} kB" for size in sizes])
        panel.minorticks_off()
        panel.set_ylabel("MB a second")
        panel.set_title(f"readahead of {window} KiB", fontsize=10, loc="left", fontweight="bold")
    axes[0].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    axes[-1].set_xlabel("size of a record")
    plotting.save(figure, path)


if __name__ == "__main__":
    plotting.run(draw, __doc__)
