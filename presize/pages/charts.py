"""Numbers -> the geometry of charts, which templates draw. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from presize.formatting import digits

Numbers = npt.NDArray[Any]

WIDTH, HEIGHT = 1000, 200
"""Size of a chart in its own units; it is stretched to the space that it gets."""

_BINS = 40
_DOT = 12
"""Room for half a dot."""

FEW_VALUES = 12
"""Up to so many distinct numbers are drawn as dots where they lie: bars of bins would tell of gaps between them."""


@dataclass(frozen=True)
class Bar:
    """A bin that is not empty, from its upper left corner, and its label."""

    x: float
    y: float
    width: float
    height: float
    label: str
    series: int


@dataclass(frozen=True)
class Dot:
    """How often one number occurs: a dot, on a line from the baseline."""

    x: float
    y: float
    label: str
    series: int


@dataclass(frozen=True)
class Histogram:
    """One or two series of numbers, as bars or, if they are few, as dots; the second series hangs down from the
    baseline of the first, which is in units of HEIGHT from the top. Ticks are (percent from the left, text)."""

    title: str
    bars: tuple[Bar, ...]
    dots: tuple[Dot, ...]
    ticks: tuple[tuple[float, str], ...]
    baseline: float
    series: tuple[str, ...]
    summary: str


def logarithmic(title: str, unit: str, series: dict[str, Numbers]) -> Histogram:
    """A histogram of positive numbers, over bins of equal ratio."""
    low = min(float(values.min()) for values in series.values())
    high = max(float(values.max()) for values in series.values())
    low, high = max(low, 1) / 1.1, max(high, 1) * 1.1
    edges = np.geomspace(low, high, _BINS + 1)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return _histogram(title, unit, series, edges, [tick for tick in ticks if low <= tick <= high], log=True)


def linear(title: str, unit: str, series: dict[str, Numbers], finest: float) -> Histogram:
    """A histogram over up to 100 bins of equal width: `finest`, or 2, 5, 10, ... times that, and edges at multiples."""
    extent = max(float(values.max()) for values in series.values()) - min(float(v.min()) for v in series.values())
    steps = (finest * factor * 10**power for power in range(16) for factor in (1, 2, 5))
    step = next(step for step in steps if extent <= 100 * step)
    low = math.floor(min(float(values.min()) for values in series.values()) / step)
    high = math.floor(max(float(values.max()) for values in series.values()) / step) + 1
    if _few(series):
        low, high = low - 1, high + 1  # or dots would lie on the edges
    edges = np.arange(low, high + 1) * step
    every = next(
        factor * 10**power for power in range(4) for factor in (1, 2, 5) if factor * 10**power * 8 >= high - low
    )
    ticks = [tick * step for tick in range(-(-low // every) * every, high + 1, every)]
    return _histogram(title, unit, series, edges, ticks, log=False)


def _histogram(
    title: str, unit: str, series: dict[str, Numbers], edges: Numbers, ticks: Sequence[float], log: bool
) -> Histogram:
    scale = np.log(edges) if log else np.asarray(edges, np.float64)
    room = HEIGHT / len(series)
    few = _few(series)
    return Histogram(
        title,
        () if few else tuple(_bars(unit, series, edges, scale, room)),
        tuple(_dots(unit, series, scale, log, room)) if few else (),
        tuple((round(_place(tick, scale, log), 2), _number(tick)) for tick in _spread(ticks, scale, log)),
        room,
        tuple(series),
        "; ".join(f"{name}: {_extent(values, unit)}" for name, values in series.items()),
    )


def _few(series: dict[str, Numbers]) -> bool:
    return len(np.unique(np.concatenate(list(series.values())))) <= FEW_VALUES


def _extent(values: Numbers, unit: str) -> str:
    low, high = _number(values.min()), _number(values.max())
    return f"all {low}{unit}" if low == high else f"{low} to {high}{unit}, median {_number(median(values))}"


def _bars(unit: str, series: dict[str, Numbers], edges: Numbers, scale: Numbers, room: float) -> Iterator[Bar]:
    places = (scale - scale[0]) / (scale[-1] - scale[0]) * WIDTH
    for number, (name, values) in enumerate(series.items()):
        found = np.searchsorted(edges, values, side="right") - 1
        counts = np.bincount(found.clip(0, len(edges) - 2), minlength=len(edges) - 1)
        for i in np.flatnonzero(counts).tolist():
            height = max(2.0, float(counts[i] / counts.max() * (room - 4)))
            label = f"{name}: {counts[i]:,} from {_number(edges[i])} to {_number(edges[i + 1])}{unit}"
            y = room - height if number == 0 else room
            width = float(places[i + 1] - places[i]) * 0.92
            yield Bar(round(float(places[i]), 1), round(y, 1), round(width, 1), round(height, 1), label, number)


def _dots(unit: str, series: dict[str, Numbers], scale: Numbers, log: bool, room: float) -> Iterator[Dot]:
    for number, (name, values) in enumerate(series.items()):
        found, counts = np.unique(values, return_counts=True)
        for value, count in zip(found.tolist(), counts.tolist(), strict=True):
            height = count / int(counts.max()) * (room - _DOT)
            x = _place(value, scale, log) / 100 * WIDTH
            y = room - height if number == 0 else room + height
            yield Dot(round(x, 1), round(y, 1), f"{name}: {count:,} of {_number(value)}{unit}", number)


def _place(value: float, scale: Numbers, log: bool) -> float:
    at = math.log(value) if log else value
    return float((at - scale[0]) / (scale[-1] - scale[0]) * 100)


def _spread(ticks: Sequence[float], scale: Numbers, log: bool) -> list[float]:
    """Those of `ticks` whose texts do not overlap."""
    kept: list[float] = []
    for tick in ticks:
        if not kept or _place(tick, scale, log) - _place(kept[-1], scale, log) >= 11:
            kept.append(tick)
    return kept


def median(values: Numbers) -> float:
    """The median, as one of `values`."""
    return float(np.percentile(values, 50, method="inverted_cdf"))


def _number(value: float) -> str:
    """In few characters: three digits, or all before the point below 10,000.

    >>> [_number(value) for value in (0.98246, 12, 34.56, 3.1416, 3400.2, 12_345, 1_200_000)]
    ['0.982', '12', '34.6', '3.14', '3,400', '12.3k', '1.2M']
    """
    value = float(value)
    power, letter = next(((p, s) for p, s in ((1e9, "G"), (1e6, "M"), (1e4, "k")) if value >= p), (1.0, ""))
    return digits(value / (1e3 if letter == "k" else power)) + letter


@dataclass(frozen=True)
class Part:
    """A piece of a horizontal bar, in units of WIDTH from the left, and the number of its series."""

    x: float
    width: float
    series: int


@dataclass(frozen=True)
class Line:
    """A horizontal bar between the texts `name` and `value`, and `label`, the bar in words. Whiskers are the start and
    end of a thin line over it, in units of WIDTH."""

    name: str
    parts: tuple[Part, ...]
    whiskers: tuple[float, float] | None
    value: str
    label: str


@dataclass(frozen=True)
class Lines:
    """Horizontal bars, one per line, on one scale. `series` names their parts; empty if there is only one."""

    title: str
    lines: tuple[Line, ...]
    series: tuple[str, ...] = ()


def bars(title: str, values: Mapping[str, tuple[float, float, float]]) -> Lines:
    """A bar for each (median, min, max): as long as the median, with a thin line from minimum to maximum."""
    most = max(high for _, _, high in values.values()) or 1.0

    def line(name: str, median: float, low: float, high: float) -> Line:
        x = [round(value / most * WIDTH, 1) for value in (median, low, high)]
        label = f"{name}: {_number(median)}, from {_number(low)} to {_number(high)}"
        return Line(name, (Part(0, x[0], 0),), (x[1], x[2]), _number(median), label)

    return Lines(title, tuple(line(name, *numbers) for name, numbers in values.items()))


def shares(title: str, amounts: Mapping[str, Mapping[str, float]], values: Mapping[str, str]) -> Lines:
    """For each name the shares of its parts, side by side: all bars are equally long. Parts that are 0 everywhere are
    left out.

    Args:
        title: The title of the chart.
        amounts: For each name its parts, the same ones in the same order, from 0 up.
        values: For each name the text at the end of its bar.
    """
    parts = next(iter(amounts.values()))
    series = tuple(part for part in parts if any(each[part] > 0 for each in amounts.values()))

    def line(name: str, parts: Mapping[str, float]) -> Line:
        total = sum(parts.values()) or 1.0
        shares = [parts[part] / total for part in series]
        said = ", ".join(f"{part} {share:.0%}" for part, share in zip(series, shares, strict=True))
        ends = [round(end * WIDTH, 1) for end in accumulate(shares, initial=0.0)]
        pieces = [Part(at, round(end - at, 1), number) for number, (at, end) in enumerate(pairwise(ends)) if end > at]
        return Line(name, tuple(pieces), None, values[name], f"{name}, {values[name]}: {said}")

    return Lines(title, tuple(line(name, each) for name, each in amounts.items()), series)
