"""What is simulated: how long loading a batch and training on it take, how many workers there are, and which cores they
share. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from presize.errors import OptionError
from presize.options import check_above_0, check_range

MOST_WORKERS = 1024

_DRAWN_AT_ONCE = 1024
_LONGEST_S = 1e6
_HIGHEST_CV = 100.0
_CONSTANT_CV = 1e-6


@dataclass(frozen=True)
class Times:
    """How long a piece of work takes when it has all the cores that it wants, and how that varies.

    Attributes:
        mean_s: Mean in seconds, from 0 to 1e6.
        cv: Coefficient of variation (standard deviation / mean), from 0 to 100. Times are drawn from a gamma
            distribution with this mean and variation.
        samples_s: Measured times in seconds. If there are any, times are drawn from them instead, with replacement;
            see `Times.measured`.

    Raises:
        OptionError: A value is out of range.
    """

    mean_s: float
    cv: float = 0.0
    samples_s: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.mean_s <= _LONGEST_S:
            raise OptionError(f"mean_s: expected seconds from 0 to {_LONGEST_S:.0f}, got {self.mean_s!r}")
        if not 0 <= self.cv <= _HIGHEST_CV:
            raise OptionError(f"cv: expected a number from 0 to {_HIGHEST_CV:.0f}, got {self.cv!r}")
        for sample in self.samples_s:
            if not 0 <= sample <= _LONGEST_S:
                raise OptionError(f"samples_s: expected seconds from 0 to {_LONGEST_S:.0f}, got {sample!r}")

    @classmethod
    def measured(cls, samples_s: Iterable[float]) -> Self:
        """Times to be drawn from measured ones. Raises OptionError if there are none."""
        samples = tuple(map(float, samples_s))
        if not samples:
            raise OptionError("samples_s: expected at least one, got none")
        mean = sum(samples) / len(samples)
        return cls(mean, float(np.std(samples)) / mean if mean else 0.0, samples)

    def times(self, factor: float) -> Times:
        """The same work, `factor` times as long."""
        return Times(self.mean_s * factor, self.cv, tuple(sample * factor for sample in self.samples_s))

    def draws(self, random: np.random.Generator) -> Iterator[float]:
        """Yield random times in seconds, endlessly."""
        samples = np.array(self.samples_s)
        while True:
            if len(samples):
                yield from random.choice(samples, _DRAWN_AT_ONCE).tolist()
            elif self.cv > _CONSTANT_CV:
                yield from random.gamma(self.cv**-2, self.mean_s * self.cv**2, _DRAWN_AT_ONCE).tolist()
            else:
                yield self.mean_s


NOTHING = Times(0.0)


@dataclass(frozen=True)
class Pipeline:
    """Loader workers and the training step that they feed.

    Attributes:
        load: Time of one worker to load one batch, above 0.
        step: Time of training on one batch, above 0.
        workers: Loader processes, 0 to 1024. With 0 the training process loads batches itself, between steps.
        prefetch: Batches requested of each worker ahead of training, 1 to 1024.
        pin: Time to copy a batch to pinned memory. One thread does it, batch after batch.
        copy: Time to copy a batch to the device. The step waits for it.
        in_order: Whether batches are taken in the order in which they were requested.
        stagger_s: Delay in seconds between the start of one worker and the next.
        cores: CPU cores that all work shares; None for as many as it takes. When more are wanted than there are,
            everything that wants cores slows down by the same factor.
        load_cores: Cores that loading one batch keeps busy; 0 for loading that only waits.
        step_cores: Cores that the step keeps busy; 0 for a step on a GPU.
    """

    load: Times
    step: Times
    workers: int
    prefetch: int = 2
    pin: Times = NOTHING
    copy: Times = NOTHING
    in_order: bool = True
    stagger_s: float = 0.0
    cores: float | None = None
    load_cores: float = 1.0
    step_cores: float = 0.0

    def __post_init__(self) -> None:
        check_range("workers", self.workers, 0, MOST_WORKERS)
        check_range("prefetch", self.prefetch, 1, 1024)
        for name in ("stagger_s", "load_cores", "step_cores"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise OptionError(f"{name}: expected a number from 0 up, got {value!r}")
        if self.cores is not None:
            check_above_0("cores", self.cores)
        for name in ("load", "step"):
            if getattr(self, name).mean_s == 0:
                raise OptionError(f"{name}: expected work that takes time, got 0 s")
