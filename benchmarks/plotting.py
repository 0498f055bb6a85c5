"""Draw the charts of CHARTS, each next to its CSV.

python benchmarks/plotting.py              # all
python benchmarks/plotting.py read scale   # some
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import matplotlib

from building import build, scale
from reading import read
from shared import bench_runs, rates
from training import accuracy, augment, source_sizes, workers
from transcoding import resizers

BLUE, GREY, INK, RED = "#1f6fb2", "#8a8f98", "#1b1f24", "#b3412e"
COLORS = (GREY, "#c2571a", "#3c8d4f", "#7a5aa6", "#b8912b")
"""Colours of other lines than presize's, which are blue."""

_WIDTH = 8.4
_HERE = Path(__file__).resolve().parent

Points = dict[float, list[float]]
"""x -> the values of all rounds."""


@dataclass(frozen=True)
class Bar:
    """A bar with a remark.

    Attributes:
        values: values of all rounds; the bar shows their median.
        remark: text next to the bar.
        color: colour of the bar.
        alpha: opacity of the bar.
        inner: values of the part of the bar in full colour; the rest is paler.
    """

    values: list[float]
    remark: str
    color: str = GREY
    alpha: float = 0.8
    inner: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    points: Points
    color: str
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """Bars or lines by label.

    Attributes:
        title: title above the panel.
        bars: one or several adjacent bars per label.
        lines: one line per label.
        rings: points (x, y) to mark.
    """

    title: str
    bars: dict[str, list[Bar]] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    rings: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Chart:
    """A chart of a CSV.

    Attributes:
        csv: path below benchmarks/. The picture is in the same folder.
        title: title that may contain columns of the first row: "{size} px".
        panels: function from rows to panels, from the top.
        draw: one of bars, lines and strips.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        tick: function from a number on the horizontal axis to its label.
        scales: scales of the axes, as Matplotlib names them.
        same_x: whether all panels share a scale for their bars.
        svg: name of the picture, if it differs from the CSV's.
    """

    csv: str
    title: str
    panels: Callable[[list[rates.Row]], list[Panel]]
    draw: Callable[..., None]
    x: str
    y: str = ""
    tick: Callable[[float], str] = "{:g}".format
    scales: tuple[str, str] = ("linear", "linear")
    same_x: bool = False
    svg: str = ""


def bars(axes: Any, panel: Panel, chart: Chart) -> None:
    """Draw medians as bars, each run as a dot, min–max as a whisker."""
    for row, group in enumerate(panel.bars.values()):
        height = 0.8 / len(group)
        for number, bar in enumerate(group):
            place = row + (number - (len(group) - 1) / 2) * height
            alpha = 0.4 if bar.inner else bar.alpha
            how = {"height": 0.9 * height, "color": bar.color, "linewidth": 0}
            axes.barh(place, median(bar.values), alpha=alpha, **how)
            if bar.inner:
                axes.barh(place, median(bar.inner), **how)
            if len(bar.values) > 1:
                ends = [min(bar.values), max(bar.values)]
                axes.plot(ends, [place, place], color=INK, linewidth=1, marker="|", markersize=6)
                axes.plot(bar.values, [place] * len(bar.values), "o", color=INK, markersize=2)
            where = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
            axes.annotate(bar.remark, (max(bar.values), place), **where)
    axes.set_yticks(range(len(panel.bars)), list(panel.bars), fontsize=9)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.35 * max(max(bar.values) for group in panel.bars.values() for bar in group))
    axes.tick_params(left=False)
    axes.set_xlabel(chart.x)


def strips(axes: Any, panel: Panel, chart: Chart) -> None:
    """Draw each run as a dot, the median as a bar, and a band of 15% around 1."""
    for row, (bar,) in enumerate(panel.bars.values()):
        axes.plot(bar.values, [row] * len(bar.values), "o", color=bar.color, markersize=5, alpha=0.6)
        axes.plot([median(bar.values)], [row], "|", color=INK, markersize=16)
    axes.axvspan(0.85, 1.15, color=GREY, alpha=0.15, linewidth=0)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(panel.bars)), list(panel.bars), fontsize=8)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.tick_params(left=False)
    furthest = 0.05 + max(abs(value - 1) for (bar,) in panel.bars.values() for value in bar.values)
    axes.set_xlim(1 - furthest, 1 + furthest)
    axes.set_xlabel(chart.x)


def lines(
    axes: Any, panel: Panel, chart: Chart, centre: Callable[[list[float]], float] = median, band: bool = False
) -> None:
    """Draw lines through the medians, min–max as whiskers or as a band."""
    for label, line in panel.lines.items():
        middles = [centre(values) for values in line.points.values()]
        low, high = ([end(values) for values in line.points.values()] for end in (min, max))
        how = {"color": line.color, "linestyle": line.style, "label": label}
        if band or low == high:
            axes.fill_between(list(line.points), low, high, color=line.color, alpha=0.18, linewidth=0)
            axes.plot(list(line.points), middles, **how)
        else:
            ends = (
                [a - b for a, b in zip(middles, low, strict=True)],
                [b - a for a, b in zip(middles, high, strict=True)],
            )
            marks = {"marker": "o", "markersize": 4, "capsize": 3, "elinewidth": 1}
            axes.errorbar(list(line.points), middles, ends, **how, **marks)
    for ring in panel.rings:
        axes.plot(*ring, "o", markersize=13, fillstyle="none", color=INK)
    ticks = sorted({x for line in panel.lines.values() for x in line.points})
    axes.set_xscale(chart.scales[0], **({"base": 2, "linthresh": 2} if chart.scales[0] == "symlog" else {}))
    axes.set_yscale(chart.scales[1])
    if not band:
        axes.set_xticks(ticks, list(map(chart.tick, ticks)))
    axes.minorticks_off()
    if chart.scales[1] == "linear":
        axes.set_ylim(bottom=0)
    axes.set_ylabel(chart.y)
    axes.set_xlabel(chart.x)


def build_panels(rows: list[rates.Row]) -> list[Panel]:
    labels = {
        build.LIMIT: "codec limit\n(decode and encode, nothing else)",
        build.WORKING: "presize build,\nwithout start-up",
        build.BUILD: "presize build,\nscan to manifest",
        build.WHOLE: "presize build,\nwhole command",
        build.STOCK: "the script people write\n(Pillow, Lanczos, one LMDB)",
        build.FFCV: "FFCV's DatasetWriter\n(Pillow, OpenCV)",
    }
    found, drawn = build.images_per_s(rows), {}
    for name, values in found.items():
        ours, remark = name.startswith("presize"), f"{median(values):,.0f}"
        if ours:
            of_limit, times = (median(rates.ratios(values, found[other])) for other in (build.LIMIT, build.STOCK))
            remark += f": {of_limit:.2f} of the limit,\n{times:.2f} times the script"
        drawn[labels[name]] = [Bar(values, remark, BLUE if ours else GREY)]
    first = rates.select(rows, variant=build.BUILD)[0]
    return [Panel(f"{int(first['images']):,} photographs, {first['procs']} processes", drawn)]


def scale_panels(rows: list[rates.Row]) -> list[Panel]:
    whole, working = ({**scale.microseconds(rows, less)} for less in (False, True))
    return [Panel("", lines={"whole command": Line(whole, GREY, "--"), "without start-up": Line(working, BLUE)})]


def read_panels(rows: list[rates.Row]) -> list[Panel]:
    counts = rates.numbers_in(rows, "workers")
    by_count = {count: read.images_per_s(rows, count) for count in counts}
    return [
        Panel(
            stored,
            {
                label: [
                    _read_bar(stored, variant, count, measured, 0.8 if count == counts[-1] else 0.45)
                    for count, measured in by_count.items()
                    if variant in measured
                ]
                for variant, label in loaders.items()
                if any(variant in measured for measured in by_count.values())
            },
        )
        for stored, loaders in read.STORED.items()
    ]


def summary_panels(rows: list[rates.Row]) -> list[Panel]:
    """Return the panels of the README's chart: presize's fastest loader, the loader that it replaces, and FFCV."""
    shown = {
        "folder-photos": "torchvision,\nthe photographs",
        "folder-256": "torchvision,\nresized to 256 px",
        "ffcv-256": "FFCV, 256 px",
        "dataset-256": "presize LMDBDataset\nin a DataLoader, 256 px",
        "loader-256": "presize Loader, 256 px",
    }
    count = rates.numbers_in(rows, "workers")[-1]
    measured = read.images_per_s(rows, count)
    drawn = {
        label: [Bar(list(measured[name].values()), f"{median(measured[name].values()):,.0f}", _color(name))]
        for name, label in shown.items()
    }
    return [Panel(rates.workers_text(count), drawn)]


def _color(variant: str) -> str:
    return BLUE if variant.startswith(("loader", "dataset")) else GREY


def _read_bar(stored: str, variant: str, count: int, measured: dict[str, dict[int, float]], alpha: float) -> Bar:
    values = list(measured[variant].values())
    remark, ffcv = f"{median(values):,.0f} ({count})", read.FFCV.get(stored)
    if ffcv in measured and variant not in (ffcv, read.DECODE.get(stored)):
        remark += f": {median(read.times(measured, variant, ffcv)):.2f} × FFCV"
    return Bar(values, remark, _color(variant), alpha)


def resizer_panels(rows: list[rates.Row]) -> list[Panel]:
    whole, alone = (measured(rows, resizers.PHOTOS) for measured in (resizers.call_ms, resizers.resize_ms))
    photos, plate = (resizers.errors_of(rows, images) for images in (resizers.PHOTOS, resizers.PLATE))
    spent, wrong = {}, {}
    for name, values in whole.items():
        times = median(rates.ratios(whole[resizers.BASE], values))
        color = BLUE if name in resizers.OURS else GREY
        spent[name] = [Bar(values, f"{median(values):.2f} ms: {times:.1f} × Pillow", color, inner=alone[name])]
        psnr, zone = (float(row[name]["psnr_db"]) for row in (photos, plate))
        wrong[name] = [Bar([psnr], f"{psnr:.1f}; zone plate {zone:.1f}", color if psnr > 50 else RED)]
    return [
        Panel("CPU time per image, ms; paler: copies in and out; blue: what presize offers", spent),
        Panel("PSNR against exact arithmetic, dB; red: below 50", wrong),
    ]


def accuracy_panels(rows: list[rates.Row]) -> list[Panel]:
    rows = accuracy.complete(rows)
    styles = ((GREY, "--"), (COLORS[1], "-"), (BLUE, "-"))
    drawn = {
        name: Line({**accuracy.by_epoch(rows, variant)}, *style)
        for (variant, name), style in zip(accuracy.variants_of(rows).items(), styles, strict=False)
    }
    chance = [100 * float(rows[0]["chance"])]
    drawn["the largest class"] = Line({1: chance, int(rows[0]["epochs"]): chance}, INK, ":")
    seeds = len(accuracy.final(rows, "raw"))
    return [Panel(f"mean and min–max of {seeds} seeds, trained on", lines=drawn)]


def augment_panels(rows: list[rates.Row]) -> list[Panel]:
    found = augment.by_library(rows)
    colors = dict(zip(augment.LIBRARIES, (GREY, COLORS[1], COLORS[2], BLUE), strict=True))
    return [
        Panel(
            rates.workers_text(count),
            lines={
                label: Line({**found[library, count]}, colors[library])
                for library, label in augment.LIBRARIES.items()
                if (library, count) in found
            },
        )
        for count in rates.numbers_in(rows, "workers")
    ]


def source_size_panels(rows: list[rates.Row]) -> list[Panel]:
    made = []
    for model in ("none", "small"):
        runs, drawn = rates.select(rows, model=model), {}
        for reads, variant in source_sizes.kinds(rows):
            mine = rates.select(runs, reads=reads, variant=variant)
            values = rates.column(mine, "images_per_s")
            busy = "" if model == "none" else f", U {bench_runs.utilisation(mine, runs):.2f}"
            drawn[source_sizes.label(reads, variant)] = [
                Bar(values, f"{median(values):,.0f}{busy}", GREY if variant == "raw" else BLUE)
            ]
        made.append(Panel(bench_runs.MODELS[model], drawn))
    return made


def storage_panels(rows: list[rates.Row]) -> list[Panel]:
    orders = {"sequential": ("sequential", GREY), "epoch": ("random", BLUE)}
    ways = {
        ("warm", "on"): ("warm", "-"),
        ("cold", "on"): ("cold, readahead", "--"),
        ("cold", "off"): ("cold, no readahead", ":"),
    }
    made = []
    for window in rates.numbers_in(rows, "window_kb"):
        drawn = {}
        for (order, (named, color)), ((cache, readahead), (said, style)) in product(orders.items(), ways.items()):
            mine = rates.select(rows, window_kb=window, order=order, cache=cache, readahead=readahead)
            points: Points = {}
            for row in mine:
                points.setdefault(int(row["record_bytes"]), []).append(float(row["mb"]) / float(row["seconds"]))
            drawn[f"{named}, {said}"] = Line(dict(sorted(points.items())), color, style)
        made.append(Panel(f"readahead window of {window:,} KiB", lines=drawn))
    return made


def worker_panels(rows: list[rates.Row]) -> list[Panel]:
    found = workers.sweeps(rows)
    made = []
    for mocked in (True, False):
        drawn, rings = {}, []
        for kind, sweep in found.items():
            if (kind[0] == "mock") is mocked:
                points = workers.rate(sweep)
                drawn[workers.label(*kind)] = Line(
                    {**points}, GREY if kind[0] == "raw" else BLUE, "--" if kind[1] == "small" else "-"
                )
                enough = workers.enough(points)
                rings.append((enough, median(points[enough])))
                if mocked:
                    predicted: Points = {n: [workers.MOCK_BATCH / workers.predicted_s(n)] for n in points}
                    drawn["predicted"] = Line(predicted, INK, ":")
        made.append(Panel("loading and training sleep" if mocked else "real images", lines=drawn, rings=rings))
    return made


CHARTS = {
    "build": Chart(
        "building/results/build.csv", "Building a {size} px dataset", build_panels, bars, "photographs per second"
    ),
    "scale": Chart(
        "building/results/scale.csv",
        "What an image costs: {size} px, {procs} processes",
        scale_panels,
        lines,
        "images",
        "µs per image, wall time",
        "{:,}".format,
        ("log", "linear"),
    ),
    "read": Chart(
        "reading/results/read.csv",
        "Reading batches of {batch} random resized crops of 224 px (paler: fewer workers)",
        read_panels,
        bars,
        "images per second",
        same_x=True,
    ),
    "summary": Chart(
        "reading/results/read.csv",
        "Random resized crops of 224 px of ImageNet's photographs",
        summary_panels,
        bars,
        "images per second",
        svg="summary.svg",
    ),
    "resizers": Chart(
        "transcoding/results/resizers.csv",
        "Resizing to {size} px, antialiased bicubic, one thread: mean {mean_width}×{mean_height} px",
        resizer_panels,
        bars,
        "",
    ),
    "accuracy": Chart(
        "training/results/accuracy.csv",
        "{name}, seen at {crop} px",
        accuracy_panels,
        partial(lines, centre=fmean, band=True),
        "epoch",
        "top-1 of held-out images, %",
    ),
    "augment": Chart(
        "training/results/augment.csv",
        "Random crop and flip to 224 px, from 256 px",
        augment_panels,
        lines,
        "images in a batch",
        "images per second",
        scales=("symlog", "linear"),
    ),
    "source-sizes": Chart(
        "training/results/source-sizes.csv",
        "How small to presize",
        source_size_panels,
        bars,
        "images per second",
        same_x=True,
    ),
    "storage": Chart(
        "storage/results/storage.csv",
        "Records from disk and from the page cache",
        storage_panels,
        lines,
        "record size",
        "MB per second",
        lambda nbytes: f"{nbytes / 1000:g} kB",
        ("log", "log"),
    ),
    "workers": Chart(
        "training/results/workers.csv",
        "How many workers: a ring marks the fewest within 5% of the fastest",
        worker_panels,
        lines,
        "workers",
        "images per second",
    ),
}


def draw(chart: Chart) -> Path:
    """Write the picture and return its path. The same rows yield the same file."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "presize", "font.size": 10, "text.color": INK})
    from matplotlib import pyplot

    rows = rates.read(_HERE / chart.csv)
    panels = chart.panels(rows)
    heights = [0.5 + 0.27 * sum(map(len, panel.bars.values())) if panel.bars else 2.6 for panel in panels]
    figure, columns = pyplot.subplots(
        len(panels),
        figsize=(_WIDTH, 0.9 + sum(heights)),
        height_ratios=heights,
        squeeze=False,
        facecolor="white",
        layout="constrained",
    )
    figure.suptitle(chart.title.format_map(rows[0]), fontsize=12, x=0.01, ha="left")
    for axes, panel in zip(columns.flat, panels, strict=True):
        chart.draw(axes, panel, chart)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(panel.title, fontsize=10, loc="left", fontweight="bold")
    for axes, panel, before in zip(columns.flat, panels, [None, *panels], strict=False):
        if panel.lines and (before is None or panel.lines.keys() != before.lines.keys()):
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        if chart.same_x:
            axes.set_xlim(0, max(other.get_xlim()[1] for other in columns.flat))
        if axes is not columns.flat[-1]:
            axes.set_xlabel("")
    csv = _HERE / chart.csv
    path = csv.with_name(chart.svg or f"{csv.stem}.svg")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CHARTS)} (default: all)")
    names = parser.parse_args().names or list(CHARTS)
    unknown = [name for name in names if name not in CHARTS]
    if unknown:
        parser.error(f"expected names of {', '.join(CHARTS)}; got {unknown[0]}")
    for name in names:
        print(draw(CHARTS[name]))


if __name__ == "__main__":
    main()
