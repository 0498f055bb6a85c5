"""Times of training steps -> rates, utilisation, stalls, break-even, and a verdict in words. Pure; no torch.

The stages are those of DS-Analyzer (Mohan et al., VLDB 2021): a step on a batch that is already on the device, a step
that first copies a batch there, an epoch of the real loader with its files in the page cache, and one with its files on
disk. Each adds one part of the pipeline to the one before, and the extra time is what that part costs: copy,
preparation, fetch.
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
from presize.formatting import rate_text, seconds_text

COMPUTE_BOUND = 0.95
"""From this utilisation on training counts as compute-bound: a loader that costs nothing would make it at most
1 / 0.95 = 1.05 times as fast, and runs differ by about that. MLPerf Storage asks for 0.90."""


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
        return cls(*map(float, np.percentile(seconds, (50, 95, 99), method="inverted_cdf")))


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


def verdict(stages: Stages, batch: int) -> str:
    """The bottleneck, and what removing it could bring, in one or two sentences. `batch`: images in a step."""
    stalls = stages.stalls
    rate = rate_text(batch / stages.resident_s)
    source = f"with batches already on the device, a step takes {seconds_text(stages.resident_s)}, {rate} images/s"
    if stalls.utilisation >= COMPUTE_BOUND:
        return (
            f"No speed-up possible: U is {stalls.utilisation:.2f}, and a loader that costs nothing would make training "
            f"at most {stages.bound:.2f} times as fast ({source})."
        )
    name, share = max(
        (("Copying to the device", stalls.copy), ("Preparing batches", stalls.preparation), ("The disk", stalls.fetch)),
        key=lambda part: part[1],
    )
    largest, total = f"{share:.0%}", f"{1 - stalls.utilisation:.0%}"
    in_all = "" if largest == total else f", all stalls together {total}"
    return (
        f"{name} is the bottleneck: it stalls training {largest} of the time{in_all}. U is {stalls.utilisation:.2f}, "
        f"so faster loading can make training up to {stages.bound:.1f} times as fast ({source})."
    )
