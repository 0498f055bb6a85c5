"""Times of training steps -> rates, utilisation, stalls, break-even, the bottleneck and its words. Pure; no torch.

The stages are those of DS-Analyzer (Mohan et al., VLDB 2021): a step on a batch that is already on the device, a step
that first copies a batch there, an epoch of the real loader with its files in the page cache, and one with its files on
disk. Each adds one part of the pipeline to the one before, and the extra time is what that part costs: copy,
preparation, fetch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median, stdev
from typing import Final, Literal, Self

from presize.errors import OptionError
from presize.formatting import factor_text, rate_text, seconds_text

Bottleneck = Literal["loading", "balanced", "compute"]

BANDS: Final[tuple[tuple[Bottleneck, float, str], ...]] = (
    ("loading", 0.80, "{} is the bottleneck"),
    ("balanced", 0.95, "{} and compute are balanced"),
    ("compute", math.inf, "Compute is the bottleneck"),
)
"""Each bottleneck, the utilisation below which it is the one, and its words, with what stalls training put in. A loader
that costs nothing would make training at most 1.25 times as fast from 0.80 on, and 1.05 times from 0.95 on, where runs
differ by about that. MLPerf Storage asks for 0.90."""

COMPUTE_BOUND: Final = BANDS[1][1]
"""From this utilisation on faster loading is not worth while."""

_STALLS: Final = {
    "copy": ("Copying to the device", "Copying to the device"),
    "preparation": ("Loading", "Preparing batches"),
    "fetch": ("The disk", "Fetching from disk"),
}
"""For each stall what counts as the bottleneck, and the work that stalls training."""


def bottleneck(utilisation: float) -> Bottleneck:
    """What holds training back, by the share of the time that the step itself takes.

    >>> [bottleneck(utilisation) for utilisation in (0.31, 0.8, 0.91, 0.95)]
    ['loading', 'balanced', 'balanced', 'compute']
    """
    return next(name for name, below, _ in BANDS if utilisation < below)


def bottleneck_words(utilisation: float, stall: str = "Loading") -> str:
    """The bottleneck in words. `stall`: what stalls training, the beginning of a sentence.

    >>> bottleneck_words(0.31, "Copying")
    'Copying is the bottleneck'
    """
    return next(words for _, below, words in BANDS if utilisation < below).format(stall)


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of several runs, and how many they are."""

    median: float
    min: float
    max: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of `values`. Raises OptionError if there are none."""
        if not values:
            raise OptionError("values: expected at least one, got none")
        return cls(median(values), min(values), max(values), len(values))


_T90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.90, 1.86, 1.83)
"""Student's t for 90 %, two-sided, by degrees of freedom from 1; beyond them 1.8."""

UNKNOWN_ERROR = 0.25
"""The error of a figure that was measured once."""

_BOTH = 1.64 * math.sqrt(2)
"""A measurement and another run each vary by a standard error; nine in ten differ by less than that many of them."""

_LEAST_ERROR = 0.02
"""Runs of one program minutes apart differ by that much."""


@dataclass(frozen=True)
class Interval:
    """A rate or a factor from several rounds.

    Attributes:
        value: Geometric mean of the rounds, above 0.
        error: How far another run may be from it, as a share: nine in ten lie between `low` and `high`. From the spread
            of the rounds, by Student's t for one more of them (a prediction interval); at least 0.02, and 0.25 where
            there was one round. Never below what the spread within the rounds tells, as all may have seen the same
            samples.
    """

    value: float
    error: float

    @classmethod
    def of(cls, rounds: Sequence[float], within: float = 0.0) -> Self:
        """The interval of `rounds`, each above 0. `within`: standard error of a round, as a share, from the spread
        within it. Raises OptionError if there are no rounds."""
        if not rounds:
            raise OptionError("rounds: expected at least one, got none")
        logs, count = [math.log(value) for value in rounds], len(rounds)
        if count == 1:
            return cls(rounds[0], max(UNKNOWN_ERROR, _BOTH * within))
        t = _T90[count - 2] if count - 2 < len(_T90) else 1.8
        between = t * stdev(logs) * math.sqrt(1 + 1 / count)
        return cls(math.exp(fmean(logs)), max(between, _BOTH * within, _LEAST_ERROR))

    @property
    def low(self) -> float:
        return self.value * math.exp(-self.error)

    @property
    def high(self) -> float:
        return self.value * math.exp(self.error)

    def known(self) -> dict[str, float]:
        """Plain values of JSON."""
        return {"value": self.value, "error": self.error}


VAGUE: Final = 0.30
"""A figure with a larger error is given as a range."""


def interval_text(interval: Interval, number: Callable[[float], str]) -> str:
    """A figure with its error: ``1.90 ± 4%``; or from where to where it may be, if that is wide: ``1.1 to 3.2``."""
    if interval.error > VAGUE:
        return f"{number(interval.low)} to {number(interval.high)}"
    return f"{number(interval.value)} ± {interval.error:.0%}"


@dataclass(frozen=True)
class Quantiles:
    """Median, 95th and 99th percentile of step times in seconds. Each is a time that occurred (inverted CDF)."""

    p50_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """The quantiles of `seconds`. Raises OptionError if there are none."""
        if not seconds:
            raise OptionError("seconds: expected at least one step, got none")
        ordered = sorted(seconds)
        return cls(*(float(ordered[-(-len(ordered) * percent // 100) - 1]) for percent in (50, 95, 99)))


@dataclass(frozen=True)
class Stalls:
    """Where the time of a step goes, as shares from 0 to 1 that add up to 1.

    Attributes:
        utilisation: The step itself, U = T_resident / T.
        copy: Copying to the device, (T_h2d - T_resident) / T.
        preparation: Making the batch, (T_warm - T_h2d) / T.
        fetch: Reading from disk, (T_cold - T_warm) / T; 0 in a run whose files are in the page cache.
    """

    utilisation: float
    copy: float
    preparation: float
    fetch: float

    @property
    def largest(self) -> str:
        """Which of the three stalls takes most of the time."""
        return max(_STALLS, key=lambda name: float(getattr(self, name)))


@dataclass(frozen=True)
class Stages:
    """Time of a training step in each stage, in seconds above 0.

    More work cannot take less time. Where a stage was measured faster than the one before it, that is noise: the
    two are taken as equal, and `disagreement` says by how much they were not.

    Attributes:
        resident_s: T_resident, with a batch that stays on the device.
        copied_s: T_h2d, with one batch in pinned memory that is copied in each step.
        warm_s: T_warm, with the real loader, its files in the page cache.
        cold_s: T_cold, with the real loader, its files on disk; None if not measured.

    Raises:
        OptionError: A time is not above 0, or not finite.
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
        """The stages that were measured, in order."""
        warm = (self.resident_s, self.copied_s, self.warm_s)
        return warm if self.cold_s is None else (*warm, self.cold_s)

    @property
    def total_s(self) -> float:
        """T: that of the cold run if there is one, else of the warm one."""
        return max(self.measured)

    @property
    def stalls(self) -> Stalls:
        """U, and 1 - U = copy + preparation + fetch, all as shares of T."""
        times = list(accumulate(self.measured, max))
        parts = [after - before for before, after in zip([0.0, *times], times, strict=False)]
        return Stalls(*(part / times[-1] for part in parts), *[0.0] * (4 - len(parts)))

    @property
    def disagreement(self) -> float:
        """How much faster a stage was than one that does less, as a share of T: how far to trust the figures."""
        most = accumulate(self.measured, max)
        return max(before - after for before, after in zip(most, self.measured, strict=True)) / self.total_s

    @property
    def bound(self) -> float:
        """How many times as fast training would be if loading cost nothing: 1 / U."""
        return 1 / self.stalls.utilisation

    @property
    def bottleneck(self) -> Bottleneck:
        return bottleneck(self.stalls.utilisation)


def regular_stops(waits_s: Sequence[float], most: int, seconds: float) -> int | None:
    """n if training stops regularly, before every n-th batch, 2 to `most`; None otherwise, and where it waits for less
    than a hundredth of `seconds`. See Timeline.stops_every for what is regular."""
    total_s = sum(waits_s)
    if total_s <= 0.01 * seconds:
        return None
    found = []
    for period in range(2, min(most, len(waits_s) // 3) + 1):
        stops = max((waits_s[first::period] for first in range(period)), key=sum)
        mean = sum(stops) / len(stops)
        if sum((stop - mean) ** 2 for stop in stops) <= len(stops) * (mean / 4) ** 2:
            found.append((sum(stops) / total_s, -period))
    share, period = max(found, default=(0.0, 0))
    return -period if share >= 0.8 else None


def break_even_epochs(build_s: float, before_s: float, after_s: float) -> float:
    """Epochs after which a build breaks even: build_s / (before_s - after_s).

    >>> break_even_epochs(100, 60, 20)
    2.5

    Args:
        build_s: Seconds that the build took.
        before_s: Seconds of an epoch without it.
        after_s: Seconds of an epoch with it.

    Returns:
        The number of epochs; infinity when an epoch is no faster than before.
    """
    for name, seconds in (("build_s", build_s), ("before_s", before_s), ("after_s", after_s)):
        if not 0 <= seconds < math.inf:
            raise OptionError(f"{name}: expected seconds from 0 up, got {seconds!r}")
    return build_s / (before_s - after_s) if after_s < before_s else math.inf


def headline(stages: Stages, step: str = "training step") -> str:
    """The bottleneck and the utilisation in a few words, without a full stop. `step`: what is busy."""
    stalls = stages.stalls
    words = bottleneck_words(stalls.utilisation, _STALLS[stalls.largest][0])
    return f"{words}: the {step} is busy {stalls.utilisation:.0%} of the time"


def explanation(stages: Stages, batch: int) -> str:
    """What stalls training, and what faster loading could bring, in a sentence or two. `batch`: images in a step."""
    stalls = stages.stalls
    rate = rate_text(batch / stages.resident_s)
    source = f"with batches already on the device, a step takes {seconds_text(stages.resident_s)}, {rate} images/s"
    bound = f"Faster loading can make training at most {factor_text(stages.bound)} times as fast ({source})."
    if stages.bottleneck == "compute":
        return bound
    share, total = f"{getattr(stalls, stalls.largest):.0%}", f"{1 - stalls.utilisation:.0%}"
    in_all = "" if share == total else f", all stalls together {total}"
    return f"{_STALLS[stalls.largest][1]} stalls training {share} of the time{in_all}. {bound}"


def verdict(stages: Stages, batch: int) -> str:
    """headline() and explanation(), in sentences."""
    return f"{headline(stages)}. {explanation(stages, batch)}"
