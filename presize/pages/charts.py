"""Computes the geometry of charts, which templates draw. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from presize.formatting import digits

Numbers = npt.NDArray[Any]

WIDTH, HEIGHT = 1000, 200  # of a chart in SVG units; pages stretch it to the available space
_BINS = 40


class Bar(NamedTuple):
    """A bar: its upper left corner, size and label, and the number of its series."""

    x: float
    y: float
    width: float
    height: float
    label: str
    series: int


class Histogram(NamedTuple):
    """One or two series of numbers as bars; the second series hangs down from the baseline of the first. `baseline` is
    in units of HEIGHT from the top. Ticks are (percent from the left, text)."""

    title: str
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    baseline: float
    series: list[str]
    summary: str


def logarithmic(title: str, unit: str, series: dict[str, Numbers]) -> Histogram:
    """Return a histogram of positive numbers with bins of equal ratio."""
    everything = np.concatenate(list(series.values()))
    low, high = max(float(everything.min()), 1) / 1.1, max(float(everything.max()), 1) * 1.1
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    edges = np.geomspace(low, high, _BINS + 1)
    return _histogram(title, unit, series, edges, [tick for tick in ticks if low <= tick <= high], np.log)


def linear(title: str, unit: str, series: dict[str, Numbers], finest: float) -> Histogram:
    """Return a histogram with up to 100 bins of width 1, 2, 5, 10, ... times `finest`, with edges at multiples."""
    everything = np.concatenate(list(series.values()))
    least, most = float(everything.min()), float(everything.max())
    factors = [factor * 10**power for power in range(16) for factor in (1, 2, 5)]
    step = next(finest * factor for factor in factors if most - least <= 100 * finest * factor)
    low, high = math.floor(least / step), math.floor(most / step) + 1
    every = next(factor for factor in factors if factor * 8 >= high - low)
    ticks = [tick * step for tick in range(-(-low // every) * every, high + 1, every)]
    if high == low + 1:  # otherwise a single bar would fill the chart
        low, high, ticks = low - 8, high + 8, [least]
    return _histogram(title, unit, series, np.arange(low, high + 1) * step, ticks, np.asarray)


def _histogram(
    title: str, unit: str, series: dict[str, Numbers], edges: Numbers, ticks: Sequence[float], scale: Callable[..., Any]
) -> Histogram:
    first, last = scale(edges[0]), scale(edges[-1])
    lefts = (scale(edges) - first) / (last - first) * WIDTH
    widths = np.diff(lefts) * 0.92
    room, bars = HEIGHT / len(series), []
    for number, (name, values) in enumerate(series.items()):
        bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        counts = np.bincount(bins, minlength=len(edges) - 1)
        for i in np.flatnonzero(counts).tolist():
            height = max(2.0, float(counts[i] / counts.max() * (room - 4)))
            corner = round(float(lefts[i]), 1), round(room - height if number == 0 else room, 1)
            low, high = np.min(values[bins == i]), np.max(values[bins == i])
            said = f"of {_number(low)}" if low == high else f"from {_number(edges[i])} to {_number(edges[i + 1])}"
            label = f"{name}: {counts[i]:,} {said}{unit}"
            bars.append(Bar(*corner, round(float(widths[i]), 1), round(height, 1), label, number))
    shown: list[tuple[float, str]] = []
    for tick in ticks:
        at = float((scale(tick) - first) / (last - first) * 100)
        if not shown or at - shown[-1][0] >= 11:  # otherwise the texts would overlap
            shown.append((round(at, 2), _number(tick)))
    summary = "; ".join(f"{name}: {_extent(values, unit)}" for name, values in series.items())
    return Histogram(title, bars, shown, room, list(series), summary)


def _extent(values: Numbers, unit: str) -> str:
    low, high = _number(values.min()), _number(values.max())
    return f"all {low}{unit}" if low == high else f"{low} to {high}{unit}, median {_number(median(values))}"


def median(values: Numbers) -> float:
    """Return the median, which is always one of `values`."""
    return float(np.percentile(values, 50, method="inverted_cdf"))


def _number(value: float) -> str:
    """Format a number briefly: with three digits, or all digits before the point below 10,000.

    >>> [_number(value) for value in (0.98246, 12, 34.56, 3.1416, 3400.2, 12_345, 1_200_000)]
    ['0.982', '12', '34.6', '3.14', '3,400', '12.3k', '1.2M']
    """
    value = float(value)
    power, letter = next(((p, s) for p, s in ((1e9, "G"), (1e6, "M"), (1e4, "k")) if value >= p), (1.0, ""))
    return digits(value / (1e3 if letter == "k" else power)) + letter


class Line(NamedTuple):
    """A horizontal bar between the texts `name` and `value`; `label` describes it in words. Parts are (left, width,
    number of the series), whiskers the start and end of a thin line over it, all in units of WIDTH."""

    name: str
    parts: list[tuple[float, float, int]]
    whiskers: tuple[float, float] | None
    value: str
    label: str


class Lines(NamedTuple):
    """Horizontal bars, one per line, on one scale. `series` names their parts; empty if there is only one."""

    title: str
    lines: list[Line]
    series: tuple[str, ...]


def bars(title: str, values: Mapping[str, tuple[float, float, float]]) -> Lines:
    """Return a bar for each (median, min, max): as long as the median, with a thin line from minimum to maximum."""
    most = max(high for _, _, high in values.values()) or 1.0
    lines = []
    for name, numbers in values.items():
        middle, low, high = (round(value / most * WIDTH, 1) for value in numbers)
        said = [_number(value) for value in numbers]
        label = f"{name}: {said[0]}, from {said[1]} to {said[2]}"
        lines.append(Line(name, [(0, middle, 0)], (low, high), said[0], label))
    return Lines(title, lines, ())


def shares(title: str, amounts: Mapping[str, Mapping[str, float]], values: Mapping[str, str]) -> Lines:
    """Return a bar for each name, divided into the shares of its parts, the same parts in the same order for all. Bars
    have equal lengths, with `values` at their ends. Parts that are 0 everywhere are left out."""
    series = tuple(part for part in next(iter(amounts.values())) if any(each[part] > 0 for each in amounts.values()))
    lines = []
    for name, amount in amounts.items():
        total = sum(amount.values()) or 1.0
        ends = [round(end / total * WIDTH, 1) for end in accumulate((amount[part] for part in series), initial=0.0)]
        parts = [(at, round(end - at, 1), number) for number, (at, end) in enumerate(pairwise(ends)) if end > at]
        said = ", ".join(f"{part} {amount[part] / total:.0%}" for part in series)
        lines.append(Line(name, parts, None, values[name], f"{name}, {values[name]}: {said}"))
    return Lines(title, lines, series)
