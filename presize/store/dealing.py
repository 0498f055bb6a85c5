"""Chooses the number of shards and the samples of each, from the number of samples and their groups. Pure."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_MAX_SHARDS = 512
_MAX_SHARD_SAMPLES = 32768
_MAX_RUN = 64

Groups = npt.NDArray[np.int64]
"""The group number of each sample; samples of a group are read one after the other."""


def shard_count(samples: int, shard_samples: int | None = None, groups: Groups | None = None) -> int:
    """Return how many shards hold `samples` (1 or more): of `shard_samples` each if given, else at most one per group.
    The default is the square root of `samples`, at most 512 (half of the usual 1,024 open files), but more to keep
    shards to 32,768 samples. It does not depend on the number of cores: the 32 shards of a thousand images keep up to
    32 cores busy."""
    if shard_samples is not None:
        return -(-samples // shard_samples)
    shards = max(min(math.isqrt(samples - 1) + 1, _MAX_SHARDS), -(-samples // _MAX_SHARD_SAMPLES))
    return shards if groups is None else min(shards, len(np.unique(groups)))


def shard_limit(samples: int, shard_samples: int | None, companions: int) -> int | None:
    """Return `shard_samples`. If it is None and the default would give images and `companions` more than 512 shards
    together, return a number that keeps them to 512, but at most 32,768 samples per shard."""
    if shard_samples is not None or shard_count(samples) * (1 + companions) <= _MAX_SHARDS:
        return shard_samples
    return min(-(-samples * (1 + companions) // _MAX_SHARDS), _MAX_SHARD_SAMPLES)


def assign_shards(samples: int, shards: int, groups: Groups | None = None) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the samples of each shard, ascending. Each shard is a random part of the dataset; their sizes differ by at
    most one. Samples are ordered by a hash of their numbers (SplitMix64, Steele, Lea and Flood 2014), which no library
    can change. Samples of a group stay together, except where a shard ends."""
    order = shuffled(np.arange(samples), groups)
    bounds = [samples * shard // shards for shard in range(shards + 1)]
    return tuple(np.sort(order[low:high]) for low, high in pairwise(bounds))


def shuffled(samples: npt.NDArray[np.int64], groups: Groups | None = None) -> npt.NDArray[np.int64]:
    """Return `samples` (ascending) ordered by a hash of their numbers, or of their groups (`groups` of all samples)."""
    numbers = samples if groups is None else groups[samples]
    return samples[np.argsort(mix(numbers.astype(np.uint64)), kind="stable")]


def groups_of(container: npt.NDArray[np.int32]) -> Groups:
    """Group consecutive samples of a container (numbers ascend): 16 groups per default shard, of at most 64 samples."""
    length = min(max(math.isqrt(len(container)) // 16, 1), _MAX_RUN)
    _, first, inverse = np.unique(container, return_index=True, return_inverse=True)
    within = np.arange(len(container)) - first[inverse]
    begins = within % length == 0
    return np.cumsum(begins) - 1


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's output function: a bijection of 64-bit numbers, used as a hash."""
    z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
