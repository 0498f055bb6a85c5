"""ShardShuffled: an order that stays inside a few shards at a time, for datasets larger than memory. Pure; no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from presize.datasets.reading.order import MOST_SAMPLES, MOST_SEED, Numbers, Positions
from presize.datasets.reading.permutation import permute
from presize.errors import DatasetError
from presize.options import check_range

_ROWS_AT_ONCE = 2**20

_SHARDS_AT_LEAST = 2**20
"""Shard numbers below this are counted even where there are fewer samples; a damaged one must not fill memory."""


class ShardColumn(Protocol):
    """The part of presize.store.dataset.Dataset that ShardShuffled needs."""

    def __len__(self) -> int: ...

    def numbers(self, name: str) -> npt.NDArray[Any]: ...


@dataclass(frozen=True)
class ShardShuffled:
    """Every sample once, `window` shards at a time: for datasets larger than memory.

    Each epoch puts the shards into another order, divides that into groups of about `window` shards (group sizes
    differ by at most one shard), and shuffles the samples within each group. So reading stays inside `window` shards
    for a while, and each shard is read from disk once an epoch if that many fit into memory: a shard of 32,768 JPEGs
    of 20 kB is 0.65 GB, and the default window 5 GB.

    Quality: presize deals samples to shards at random, so that a group is a fair sample of the whole even where the
    folder is sorted by class. A batch of B of the group's M samples varies as one of a global shuffle does: the
    variance of the number of its samples of one class, over all batches of an epoch, has the same expectation. What
    differs: batches of one group share its composition, which deviates from the whole's with a standard deviation of
    sqrt(p (1 - p) / M) for a class of share p (0.05 % for p = 0.1 and M = 262,144); and samples of one shard are in
    the same group in every epoch.

    Memory: the sample numbers of two groups, 8 bytes each, in each process that uses it, and a count a shard. A group
    is found by a pass over the mapped shard column when it begins: about 4 ms a million samples of the dataset.
    Pickled without these, and the dataset as its path. Thread-safe.

    Attributes:
        data: an opened presize.store.dataset.Dataset, such as LMDBDataset.data.
        seed: of the order and the crops, from 0.
        window: shards in a group, from 1.

    Raises:
        DatasetError: when first asked for samples, if the index is damaged and names an impossible shard.
    """

    data: ShardColumn = field(repr=False)
    seed: int = 0
    window: int = 8
    # Caches of the methods below; on the class they would keep every dataset ever shuffled open.
    _counts: Callable[[], Numbers] = field(init=False, repr=False, compare=False)
    _groups: Callable[[int], tuple[list[Numbers], Positions]] = field(init=False, repr=False, compare=False)
    _members: Callable[[int, int], Numbers] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_range("seed", self.seed, 0, MOST_SEED)
        check_range("window", self.window, 1, MOST_SAMPLES)
        # Two groups: a batch may straddle them, and each batch is computed twice, as samples and as keys.
        object.__setattr__(self, "_counts", lru_cache(maxsize=1)(self._count))
        object.__setattr__(self, "_groups", lru_cache(maxsize=2)(self._group))
        object.__setattr__(self, "_members", lru_cache(maxsize=2)(self._find))

    def __reduce__(self) -> tuple[type[ShardShuffled], tuple[ShardColumn, int, int]]:
        return ShardShuffled, (self.data, self.seed, self.window)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def population(self) -> int:
        return len(self.data)

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        bounds = self._groups(epoch)[1]
        group_of = np.searchsorted(bounds, positions, "right") - 1
        found = np.empty(len(positions), np.int64)
        for group in np.unique(group_of).tolist():
            here = group_of == group
            members = self._members(epoch, group)
            within = permute(positions[here] - bounds[group], len(members), (self.seed, epoch, 1 + group))
            found[here] = members[within]
        return found

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        return self.samples(epoch, positions)

    def _count(self) -> Numbers:
        """The number of samples in each shard."""
        column = self.data.numbers("shard")
        counts = np.zeros(1, np.int64)
        for low in range(0, len(column), _ROWS_AT_ONCE):
            part = column[low : low + _ROWS_AT_ONCE]
            for number in (int(part.min()), int(part.max())):
                if not 0 <= number < max(len(column), _SHARDS_AT_LEAST):
                    raise DatasetError(f"the index is damaged: there is no shard {number}")
            more = np.bincount(part, minlength=len(counts))
            more[: len(counts)] += counts
            counts = more
        return counts

    def _group(self, epoch: int) -> tuple[list[Numbers], Positions]:
        """The shards of each group, and the position at which each begins, with the length at the end."""
        counts = self._counts()
        order = permute(np.arange(len(counts)), len(counts), (self.seed, epoch, 0))
        groups = np.array_split(order, -(-len(counts) // self.window))
        return groups, np.cumsum([0, *(counts[group].sum() for group in groups)])

    def _find(self, epoch: int, group: int) -> Numbers:
        """The samples of a group, ascending. In parts: all rows at once would not fit the caches, or memory."""
        wanted = np.zeros(len(self._counts()), np.bool_)
        wanted[self._groups(epoch)[0][group]] = True
        column = self.data.numbers("shard")
        lows = range(0, len(column), _ROWS_AT_ONCE)
        return np.concatenate([low + np.flatnonzero(wanted[column[low : low + _ROWS_AT_ONCE]]) for low in lows])
