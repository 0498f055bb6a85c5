"""How many shards, and which samples lie in which: a pure function of their number."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_MOST_SHARDS = 512


_MOST_SAMPLES_A_SHARD = 32768


def shard_count(samples: int, shard_samples: int | None = None) -> int:
    """How many shards hold `samples` (1 or more), at most `shard_samples` each when that is given.

    By itself: the square root, up to 512, and never more than 32,768 samples a shard. That makes 32
    shards of a thousand images, enough for every core and for an even finish, 512 of ten million,
    half of what a process may have open by default (1024 files), and 3,052 of a hundred million. The number of
    cores has no say: the same images make the same shards everywhere.
    """
    if shard_samples is not None:
        return -(-samples // shard_samples)
    return max(min(math.isqrt(samples - 1) + 1, _MOST_SHARDS), -(-samples // _MOST_SAMPLES_A_SHARD))


def deal(samples: int, shards: int) -> tuple[npt.NDArray[np.int64], ...]:
    """The samples of each shard, ascending: each shard is a fair sample of the whole, and all are of
    the same length give or take one. Order is by a fixed mixing of the sample numbers (SplitMix64,
    Steele, Lea and Flood 2014), which no library version can change.
    """
    order = np.argsort(mix(np.arange(samples, dtype=np.uint64)), kind="stable")
    bounds = [samples * shard // shards for shard in range(shards + 1)]
    return tuple(np.sort(order[low:high]) for low, high in pairwise(bounds))


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function: a bijection of 64-bit numbers that leaves no pattern."""
    z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
