"""The number of shards, and which samples each holds: a pure function of the number of samples."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_MAX_SHARDS = 512
_MAX_SHARD_SAMPLES = 32768


def shard_count(samples: int, shard_samples: int | None = None) -> int:
    """How many shards hold `samples` (1 or more), with at most `shard_samples` each when that is given.

    The default is the square root, up to 512, with at most 32,768 samples per shard. That makes 32 shards of a
    thousand images, enough to keep every core busy to the end; 512 of ten million, half of the files that a process
    may have open by default (1024); and 3,052 of a hundred million. It does not depend on the number of cores: the
    same images make the same shards everywhere.
    """
    if shard_samples is not None:
        return -(-samples // shard_samples)
    return max(min(math.isqrt(samples - 1) + 1, _MAX_SHARDS), -(-samples // _MAX_SHARD_SAMPLES))


def deal(samples: int, shards: int) -> tuple[npt.NDArray[np.int64], ...]:
    """The samples of each shard, ascending. Each shard is a random sample of the whole, and their lengths differ by
    at most one. The order is that of hashed sample numbers (SplitMix64, Steele, Lea and Flood 2014), which no library
    version can change.
    """
    order = np.argsort(mix(np.arange(samples, dtype=np.uint64)), kind="stable")
    bounds = [samples * shard // shards for shard in range(shards + 1)]
    return tuple(np.sort(order[low:high]) for low, high in pairwise(bounds))


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function: a bijection of 64-bit numbers, used as a hash."""
    z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
