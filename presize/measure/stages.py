"""Times of training steps -> rates, utilisation, stalls, break-even, and a verdict in words. Pure; no torch.

The stages are those of DS-Analyzer (Mohan et al., VLDB 2021): a step on a batch that is on the device already,
a step that first copies a batch there, an epoch of the real loader with its files in the page cache, and one
with its files on disk. Each has one more part of the pipeline than the one before, so what it takes more is what
that part costs: copy, preparation, fetch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Self

import numpy as np

from presize.errors import OptionError

NO_GAIN = 0.95
"""The utilisation from which on there is no gain to be had: a loader that costs nothing would make training at
most 1 / 0.95 = 1.05 times as fast, which is about what runs differ by. MLPerf Storage asks for 0.90."""


@dataclass(frozen=True)
class Spread:
    """Of several runs: their median, the least and the most."""

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Raises OptionError when there is nothing to take the median of."""
        if not values:
            raise OptionError("values: expected at least one, got none")
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Quantiles:
    """Seconds that half, 95 % and 99 % of the steps do not exceed: times that occurred (inverted CDF)."""

    p50_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Raises OptionError when there are no steps."""
        if not seconds:
            raise OptionError("seconds: expected at least one step, got none")
        return cls(*map(float, np.percentile(seconds, (50, 95, 99), method="inverted_cdf")))


@dataclass(frozen=True)
class Stalls:
    """What the seconds of a step are spent on, as shares of them: the four sum up to 1, and each is from 0 to 1.

    utilisation: the step itself, U = T_resident / T.
    copy: (T_h2d - T_resident) / T. preparation: (T_warm - T_h2d) / T. fetch: (T_cold - T_warm) / T, 0 in a run
        whose files are in the page cache.
    """

    utilisation: float
    copy: float
    preparation: float
    fetch: float


@dataclass(frozen=True)
class Stages:
    """Seconds a step of one batch takes, above 0.

    resident_s: with a batch that stays on the device. copied_s: with one page-locked batch that is copied each
        step. warm_s, cold_s: with the real loader, its files in the page cache, or not (None: not measured).

    More work cannot take less time. Where a stage was measured faster than the one before it, that is noise: the
    two are taken as equal, and `disagreement` says by how much they were not.
    Raises OptionError for a time that cannot be.
    """

    resident_s: float
    copied_s: float
    warm_s: float
    cold_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("resident_s", "copied_s", "warm_s", "cold_s"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < math.inf:
                raise OptionError(f"{name}: expected seconds above 0, got {seconds!r}")

    @property
    def measured(self) -> tuple[float, ...]:
        """The stages there are, in order."""
        warm = (self.resident_s, self.copied_s, self.warm_s)
        return warm if self.cold_s is None else (*warm, self.cold_s)

    @property
    def total_s(self) -> float:
        """T: of the run in question, the cold one where there is one."""
        return max(self.measured)

    @property
    def stalls(self) -> Stalls:
        """U and 1 - U = copy + preparation + fetch, over one denominator, T."""
        times = list(accumulate(self.measured, max))
        parts = [after - before for before, after in zip([0.0, *times], times, strict=False)]
        return Stalls(*(part / times[-1] for part in parts), *[0.0] * (4 - len(parts)))

    @property
    def disagreement(self) -> float:
        """By what share of T a stage was faster than one that does less: how far the figures can be trusted."""
        most = accumulate(self.measured, max)
        return max(before - after for before, after in zip(most, self.measured, strict=True)) / self.total_s

    @property
    def bound(self) -> float:
        """How many times as fast training can become by loading alone: 1 / U, when nothing but the step is left."""
        return 1 / self.stalls.utilisation


def break_even_epochs(build_s: float, before_s: float, after_s: float) -> float:
    """Epochs until a build of `build_s` has paid: build_s / (before_s - after_s), the seconds of an epoch without
    and with it. Infinite when an epoch is no faster.

    >>> break_even_epochs(100, 60, 20)
    2.5
    """
    for name, seconds in (("build_s", build_s), ("before_s", before_s), ("after_s", after_s)):
        if not 0 <= seconds < math.inf:
            raise OptionError(f"{name}: expected seconds from 0 up, got {seconds!r}")
    return build_s / (before_s - after_s) if after_s < before_s else math.inf


def verdict(stages: Stages, batch: int) -> str:
    """What the stages say about loading, in a sentence or two. `batch`: the images of a step."""
    stalls = stages.stalls
    rate = batch / stages.resident_s
    source = (
        f"with batches that are on the device already a step takes {_time(stages.resident_s)}, {shown(rate)} images/s"
    )
    if stalls.utilisation >= NO_GAIN:
        return (
            f"No gain to be had: U is {stalls.utilisation:.2f}, and a loader that costs nothing would make training "
            f"at most {stages.bound:.2f} times as fast ({source})."
        )
    name, share = max(
        (("copying to the device", stalls.copy), ("preparing batches", stalls.preparation), ("the disk", stalls.fetch)),
        key=lambda part: part[1],
    )
    waits, most = f"{1 - stalls.utilisation:.0%}", f"{share:.0%}"
    return (
        f"Training waits {waits} of the time{'' if most == waits else f', {most}'} for {name}: U is "
        f"{stalls.utilisation:.2f}, and loading can make it up to {stages.bound:.1f} times as fast ({source})."
    )


def shown(rate: float) -> str:
    """In three digits, or all before the point.

    >>> [shown(rate) for rate in (3.1416, 31.416, 314.16, 3141.6)]
    ['3.14', '31.4', '314', '3,142']
    """
    return f"{rate:,.{0 if rate >= 100 else 1 if rate >= 10 else 2}f}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
