"""Times of training steps -> rates, utilisation, stalls, break-even, and the bottleneck in words. Pure; no torch.

The stages are those of DS-Analyzer (Mohan et al., VLDB 2021). Each stage adds one part of the pipeline to the stage
before it. The extra time is the cost of that part: copy, preparation, fetch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final, Literal, NamedTuple, Self

from presize.formatting import factor_text, rate_text, seconds_text

Bottleneck = Literal["loading", "balanced", "compute"]

_BANDS: Final[tuple[tuple[Bottleneck, float, str], ...]] = (
    ("loading", 0.80, "{} is the bottleneck"),
    ("balanced", 0.95, "{} and compute are balanced"),
    ("compute", math.inf, "Compute is the bottleneck"),
)
"""Each bottleneck, the utilisation below which it applies, and its words with a gap for the stall. A loader that costs
nothing would make training at most 1.25 times as fast from 0.80 on, and 1.05 times from 0.95 on, about as much as runs
differ. MLPerf Storage requires 0.90."""

COMPUTE_BOUND: Final = _BANDS[1][1]  # from this utilisation on, faster loading is not worthwhile

# Stall -> name of the bottleneck, and the work that stalls training.
_STALLS: Final = {
    "copy": ("Copying to the device", "Copying to the device"),
    "preparation": ("Loading", "Preparing batches"),
    "fetch": ("The disk", "Fetching from disk"),
}


def bottleneck(utilisation: float) -> Bottleneck:
    """Return the bottleneck at a `utilisation`, the share of the time that the step itself takes."""
    return next(name for name, below, _ in _BANDS if utilisation < below)


def bottleneck_words(utilisation: float, stall: str = "Loading") -> str:
    """Return the bottleneck in words. `stall`: the work that stalls training, capitalized."""
    return next(words for _, below, words in _BANDS if utilisation < below).format(stall)


@dataclass(frozen=True)
class Spread:
    median: float
    min: float
    max: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(median(values), min(values), max(values), len(values))


# Student's t for 90%, two-sided, by degrees of freedom from 1; 1.8 for more.
_T90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.90, 1.86, 1.83)
UNKNOWN_ERROR = 0.25  # of a figure that was measured once
# A measurement and another run each vary by a standard error; 90% of pairs differ by less than this many.
_BOTH = 1.64 * math.sqrt(2)
_LEAST_ERROR = 0.02  # difference between runs of one program, minutes apart
VAGUE: Final = 0.30  # a figure with a larger error is printed as a range


@dataclass(frozen=True)
class Interval:
    """A rate or a factor from several rounds: their geometric mean, and the error of another run, as a share. 90% of
    further rounds lie between `low` and `high`: a prediction interval by Student's t. The error is never below what the
    spread within rounds implies, because all rounds may have seen the same samples."""

    value: float
    error: float

    @classmethod
    def of(cls, rounds: Sequence[float], within: float = 0.0, noise: float = 0.0) -> Self:
        """Return the interval of `rounds`. `within`: standard error of a round, from its own spread, as a share.
        `noise`: least spread to assume between rounds, as returned by noise_of()."""
        between = max(noise_of([rounds]), noise) * math.sqrt(1 + 1 / len(rounds))
        least = UNKNOWN_ERROR if len(rounds) == 1 else _LEAST_ERROR
        return cls(math.exp(fmean(map(math.log, rounds))), max(between, _BOTH * within, least))

    @property
    def low(self) -> float:
        return self.value * math.exp(-self.error)

    @property
    def high(self) -> float:
        return self.value * math.exp(self.error)


def noise_of(groups: Iterable[Sequence[float]]) -> float:
    """Return how far a value may lie from the mean of its group, as a share, in 90% of cases: from the spread of all
    groups together. The spread of one group of three values is too small by chance too often. 0 if no group has two
    values."""
    logs = [[math.log(value) for value in group] for group in groups]
    degrees = sum(len(group) - 1 for group in logs)
    if not degrees:
        return 0.0
    squares = sum((value - fmean(group)) ** 2 for group in logs for value in group)
    return (_T90[degrees - 1] if degrees <= len(_T90) else 1.8) * math.sqrt(squares / degrees)


def rate_interval(interval: Interval, number: Callable[[float], str] = rate_text) -> str:
    """Return a figure with its error, ``1.90 ± 4%``, or its range if the error is large, ``1.1 to 3.2``."""
    if interval.error > VAGUE:
        return f"{number(interval.low)} to {number(interval.high)}"
    return f"{number(interval.value)} ± {interval.error:.0%}"


factor_interval = partial(rate_interval, number=factor_text)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest of `values` that at least `percent` percent of them do not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


class Stalls(NamedTuple):
    """Shares of the time of a step, with sum 1: the step itself, copying, making the batch, reading from disk."""

    utilisation: float
    copy: float
    preparation: float
    fetch: float = 0.0

    @property
    def largest(self) -> str:
        """The stall that takes longest."""
        return max(_STALLS, key=lambda name: float(getattr(self, name)))


@dataclass(frozen=True)
class Stages:
    """Seconds of a training step in each stage. More work cannot take less time: a stage that was measured faster than
    an earlier one counts as equal to it, and `disagreement` is the difference."""

    resident_s: float  # with one batch that stays on the device
    copied_s: float  # with one batch in pinned memory that each step copies
    warm_s: float  # with the real loader, its files in the page cache
    cold_s: float | None = None  # with the real loader, its files on disk; None if not measured

    @property
    def measured(self) -> tuple[float, ...]:
        warm = (self.resident_s, self.copied_s, self.warm_s)
        return warm if self.cold_s is None else (*warm, self.cold_s)

    @property
    def stalls(self) -> Stalls:
        """Shares of the time of the last stage: each part is the time that its stage adds to the ones before."""
        times = list(accumulate(self.measured, max))
        parts = [(after - before) / times[-1] for before, after in pairwise([0.0, *times])]
        return Stalls(*parts)

    @property
    def disagreement(self) -> float:
        """Largest fraction by which a stage was faster than one with less work: a measure of noise."""
        most = list(accumulate(self.measured, max))
        return max(before - after for before, after in zip(most, self.measured, strict=True)) / most[-1]

    @property
    def bound(self) -> float:
        """Speed-up of training if loading cost nothing."""
        return 1 / self.stalls.utilisation

    @property
    def bottleneck(self) -> Bottleneck:
        return bottleneck(self.stalls.utilisation)


def regular_stops(waits_s: Sequence[float], most: int, seconds: float) -> int | None:
    """Return n if training stops before every n-th batch, n from 2 to `most`: at least 4/5 of the waiting is before
    these batches, and the stops are about equally long (coefficient of variation up to 1/4). Return None otherwise, and
    if it waits for at most a hundredth of `seconds`."""
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
    """Return the epochs after which a build breaks even if they take `after_s`, not `before_s`; inf if not faster."""
    return build_s / (before_s - after_s) if after_s < before_s else math.inf


def headline(stages: Stages, step: str = "training step") -> str:
    """Return the bottleneck and the utilisation, without a full stop. `step`: name of what is busy."""
    stalls = stages.stalls
    words = bottleneck_words(stalls.utilisation, _STALLS[stalls.largest][0])
    return f"{words}: the {step} is busy {stalls.utilisation:.0%} of the time"


def explanation(stages: Stages, batch: int) -> str:
    """Explain what stalls training, and the most that faster loading could gain. `batch`: images in a step."""
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
    return f"{headline(stages)}. {explanation(stages, batch)}"
