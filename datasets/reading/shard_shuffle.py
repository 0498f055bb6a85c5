"""ShardShuffled: an order that stays inside a few shards at a time, for datasets larger than memory. No torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from presize.datasets.reading.draws import permute
from presize.datasets.reading.order import MOST_SAMPLES, Numbers, Positions, check_seed
from presize.errors import DatasetError, OptionError
from presize.options import check_range, set_in_range

_ROWS_AT_ONCE = 2**20

_SHARDS_AT_LEAST = 2**20
"""Shard numbers below this are counted even where there are fewer samples; a damaged one must not fill memory."""

_DIVISIONS = 2**62
"""Streams of random numbers from this one on divide shards; those below it permute shards and the samples of groups."""


class ShardColumn(Protocol):
    """The part of presize.store.dataset.Dataset that ShardShuffled needs."""

    def __len__(self) -> int: ...
    def numbers(self, name: str) -> npt.NDArray[Any]: ...
    def fetch_ahead(self, groups: Sequence[Sequence[int]]) -> None: ...


class _Groups(NamedTuple):
    """The groups of an epoch, in a sequence of all samples: host after host, and shard after shard of each."""

    hosts: Positions  # where the samples of each begin in the sequence, with the length at the end
    bounds: Positions  # where each group begins in the sequence, with the length at the end
    shards: list[Numbers]  # of each group
    lows: list[Positions]  # where each of these begins: before its group, if a host before it has a part


@dataclass(frozen=True)
class ShardShuffled:
    """Every sample once, `window` shards at a time: for datasets larger than memory.

    Each epoch puts the shards into another order, divides that into groups of about `window` shards (group sizes
    differ by at most one shard), and shuffles the samples within each group. So each shard is read from disk once an
    epoch if `window` of them fit into memory: a shard of 32,768 JPEGs of 20 kB is 0.65 GB, and the default window 5 GB.

    Quality: presize deals samples to shards at random, so that a group is a fair sample of the whole even where the
    folder is sorted by class. The number of a batch's samples of one class has the variance that it has with a global
    shuffle. What differs: batches of one group share its composition, which deviates from the whole's with a standard
    deviation of sqrt(p (1 - p) / M) for a class of share p in a group of M samples (0.05 % for p = 0.1 and M =
    262,144); and samples of one shard are in the same group in every epoch.

    Hosts: with `by_host` the shards, in the epoch's order, are cut into one run for each host, of as many samples as
    its ranks have positions, and groups are formed within each run. So each sample still comes exactly once. A shard
    at a cut is divided at random and read by both hosts: hosts - 1 shards at most. Where there are fewer shards than
    hosts, several hosts read the same one. A state can be resumed with equally many ranks and hosts only. The samples
    that last="pad" repeats may be of another host's shards.

    Memory: the sample numbers of two groups, 8 bytes each, in each process that uses it, and a few numbers a shard. A
    group is found by a pass over the mapped shard column when it begins: about 4 ms a million samples of the dataset.
    Pickled without these, and the dataset as its path. Thread-safe.

    Attributes:
        data: such as LMDBDataset.data.
        seed: of the order and the crops, from 0; None until a sampler chooses one.
        window: shards in a group, from 1.
        by_host: give each host shards of its own.
        ranks: how many there are on all hosts together; None reads torchrun's WORLD_SIZE. Only with `by_host`.
        ranks_per_host: as many on each host: rank r is on host r // ranks_per_host, as torchrun numbers them. None
            reads its LOCAL_WORLD_SIZE. Only with `by_host`.

    Raises:
        OptionError: an option is out of range, `ranks` is no multiple of `ranks_per_host`, or with `by_host` one of
            them is neither given nor in the environment.
        DatasetError: when first asked for samples, if the index is damaged and names an impossible shard.
    """

    data: ShardColumn = field(repr=False)
    seed: int | None = None
    window: int = 8
    by_host: bool = False
    ranks: int | None = None
    ranks_per_host: int | None = None
    # Caches of the methods below; on the class they would keep every dataset ever shuffled open.
    _groups: Callable[[int], _Groups] = field(init=False, repr=False, compare=False)
    _members: Callable[[int, int], Numbers] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        set_in_range(self, "window", 1, MOST_SAMPLES)
        # Two groups: a batch may straddle them, and each batch is computed twice, as samples and as keys.
        object.__setattr__(self, "_groups", lru_cache(maxsize=2)(self._group))
        object.__setattr__(self, "_members", lru_cache(maxsize=2)(self._find))
        for name, variable in (("ranks", "WORLD_SIZE"), ("ranks_per_host", "LOCAL_WORLD_SIZE")):
            value = getattr(self, name)
            if self.by_host:
                value = _from_torchrun(variable) if value is None else value
                object.__setattr__(self, name, check_range(name, value, 1, MOST_SAMPLES))
            elif value is not None:
                raise OptionError(f"{name}: needs by_host=True, got {value!r} without it")
        ranks, per_host = self._sharing
        if ranks % per_host:
            raise OptionError(f"ranks: expected a multiple of ranks_per_host, {per_host}, got {ranks}")

    def __repr__(self) -> str:
        # States have a CRC of it: that of an order without by_host must stay as it is.
        hosts = f", by_host=True, ranks={self.ranks}, ranks_per_host={self.ranks_per_host}" if self.by_host else ""
        return f"{type(self).__qualname__}(seed={self.seed!r}, window={self.window!r}{hosts})"

    def __reduce__(self) -> tuple[type[ShardShuffled], tuple[object, ...]]:
        return ShardShuffled, (self.data, self.seed, self.window, self.by_host, self.ranks, self.ranks_per_host)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def population(self) -> int:
        return len(self.data)

    @cached_property
    def table(self) -> int:
        """The CRC-32 of the shard of every sample, on which this order depends as much as on its seed."""
        return zlib_ng.crc32(np.ascontiguousarray(self.data.numbers("shard")))

    @property
    def _sharing(self) -> tuple[int, int]:
        """(ranks, ranks_per_host); without by_host as if there were one rank, so that positions are the sequence."""
        return self.ranks or 1, self.ranks_per_host or 1

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        groups = self._groups(epoch)
        ranks, per_host = self._sharing
        turns, rank = np.divmod(positions, ranks)
        hosts, rank_in_host = np.divmod(rank, per_host)
        places = groups.hosts[hosts] + turns * per_host + rank_in_host
        group_of = np.searchsorted(groups.bounds, places, "right") - 1
        found = np.empty(len(places), np.int64)
        for group in np.unique(group_of).tolist():
            here = group_of == group
            members = self._members(epoch, group)
            within = permute(places[here] - groups.bounds[group], len(members), (self.seed or 0, epoch, 1 + group))
            found[here] = members[within]
        return found

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        return self.samples(epoch, positions)

    def groups_ahead(self, epoch: int, start: int, rank: int = 0) -> list[list[int]]:
        """The shards that the host of `rank` is yet to read in an epoch from global position `start` on, group by
        group, for code that fetches them ahead."""
        host = rank // self.ranks_per_host if self.ranks_per_host else 0
        groups = self._groups(epoch)
        low = groups.hosts[host] + self._positions_of(host, start)
        first = int(np.searchsorted(groups.bounds, low, "right")) - 1
        stop = int(np.searchsorted(groups.bounds, groups.hosts[host + 1]))
        occupied = [shards[self._counts[shards] > 0].tolist() for shards in groups.shards[first:stop]]
        return [shards for shards in occupied if shards]

    def _positions_of(self, hosts: Numbers | int, before: int) -> Numbers:
        """How many of the positions below `before` are those of each host's ranks."""
        ranks, per_host = self._sharing
        turns, more = divmod(before, ranks)
        return np.asarray(turns * per_host + np.clip(more - per_host * hosts, 0, per_host))

    @cached_property
    def _counts(self) -> Numbers:
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

    def _group(self, epoch: int) -> _Groups:
        counts = self._counts
        order = permute(np.arange(len(counts)), len(counts), (self.seed or 0, epoch, 0))
        ends = np.cumsum(counts[order])
        begins = ends - counts[order]
        ranks, per_host = self._sharing
        hosts = np.cumsum([0, *self._positions_of(np.arange(ranks // per_host), len(self))])
        firsts = [0, *np.searchsorted(ends, hosts[1:-1], "right")]
        stops = [*np.searchsorted(begins, hosts[1:-1], "left"), len(order)]
        shards, lows, sizes = [], [], [0]
        for first, stop, low, high in zip(firsts, stops, hosts[:-1], hosts[1:], strict=True):
            for places in np.array_split(np.arange(first, stop), max(1, -(-(stop - first) // self.window))):
                shards.append(order[places])
                lows.append(begins[places])
                sizes.append((np.minimum(ends[places], high) - np.maximum(begins[places], low)).sum())
        return _Groups(hosts, np.cumsum(sizes), shards, lows)

    def _find(self, epoch: int, group: int) -> Numbers:
        """The samples of a group, ascending. Read in parts: all rows at once would not fit the caches, or memory."""
        groups = self._groups(epoch)
        wanted = np.zeros(len(self._counts), np.bool_)
        wanted[groups.shards[group]] = True
        column = self.data.numbers("shard")
        parts = range(0, len(column), _ROWS_AT_ONCE)
        members = np.concatenate([low + np.flatnonzero(wanted[column[low : low + _ROWS_AT_ONCE]]) for low in parts])
        for shard, low in zip(groups.shards[group], groups.lows[group], strict=True):
            first, stop = groups.bounds[group : group + 2] - low
            count = int(self._counts[shard])
            if first > 0 or stop < count:  # a host before or after this one has a part of it
                turns = permute(np.arange(count), count, (self.seed or 0, epoch, _DIVISIONS + int(shard)))
                kept = np.ones(len(members), np.bool_)
                kept[column[members] == shard] = (turns >= first) & (turns < stop)
                members = members[kept]
        return members


def _from_torchrun(variable: str) -> int:
    value = os.environ.get(variable, "")
    if not value.isdecimal():
        raise OptionError(
            "by_host: give ranks= and ranks_per_host=, or start with torchrun, which sets WORLD_SIZE and "
            "LOCAL_WORLD_SIZE"
        )
    return int(value)
