"""Order of samples in each epoch, and the positions of each batch: pure functions of (seed, epoch, position), the same
for any number of workers. Does not need torch."""

from __future__ import annotations

import copy
import operator
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from presize.datasets.reading.draws import permute, uniform_at
from presize.errors import DatasetError, OptionError
from presize.options import check_choice, check_range, set_in_range

MOST_SAMPLES = 2**48
MOST_SEED = 2**63 - 1
"""The highest seed and epoch: states have signed 64-bit integers."""

Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]


class Order(Protocol):
    """A mapping from the positions of an epoch, 0 to len(order) - 1 (not checked), to samples of a `population`. Crops
    use the same seed. The seed is None, which counts as 0, until a sampler chooses one."""

    @property
    def seed(self) -> int | None: ...

    @property
    def population(self) -> int: ...

    def __len__(self) -> int: ...

    def samples(self, epoch: int, positions: Positions) -> Numbers: ...

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        """Return the key that each visit draws from, with seed and epoch, int64 (n,): the sample number, or if samples
        can repeat, a number above all sample numbers that is unique to the position."""
        ...


@dataclass(frozen=True)
class _EachOnce:
    length: int
    seed: int | None = None

    def __post_init__(self) -> None:
        set_in_range(self, "length", 0, MOST_SAMPLES)
        object.__setattr__(self, "seed", check_seed(self.seed))

    def __len__(self) -> int:
        return self.length

    @property
    def population(self) -> int:
        return self.length

    def samples(self, epoch: int, positions: Positions) -> Numbers:  # noqa: ARG002
        return np.asarray(positions, np.int64)

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        return self.samples(epoch, positions)


class Sequential(_EachOnce):
    """Samples 0, 1, 2, ... in every epoch. Only the crops use `seed`."""


class Shuffled(_EachOnce):
    """Every sample once, in a new order for each (seed, epoch). Takes O(1) memory."""

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        return permute(positions, self.length, (self.seed or 0, epoch, 0))


class _Drawn:
    """An order that draws samples with replacement. Its repr contains the CRC of `table`, which states compare."""

    def __init__(self, population: int, seed: int | None, length: int | None, table: bytes) -> None:
        self.population, self.seed = population, check_seed(seed)
        self.draws = population if length is None else check_range("length", length, 0, MOST_SAMPLES)
        self.crc = zlib.crc32(table)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seed={self.seed!r}, draws={self.draws}, crc={self.crc})"

    def __len__(self) -> int:
        return self.draws

    def keys(self, epoch: int, positions: Positions) -> Numbers:  # noqa: ARG002
        return self.population + np.asarray(positions, np.int64)


class Weighted(_Drawn):
    """Samples drawn with replacement, each with a probability proportional to its weight.

    Keeps and pickles float64 cumulative sums of the weights, 8 bytes per sample.

    Args:
        weights: one number per sample, finite and not negative; at least one above 0.
        seed: random seed of the draws and the crops, from 0; None until a sampler chooses one.
        length: positions in an epoch; None for the number of samples.
    """

    def __init__(self, weights: npt.ArrayLike, seed: int | None = None, length: int | None = None) -> None:
        shares = _weights(weights)
        # Divided by the largest weight, no sum overflows and no draw rounds up to the last one.
        self.cumulative = np.cumsum(shares / shares.max())
        super().__init__(len(shares), seed, length, self.cumulative.tobytes())

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        drawn = uniform_at(positions, (self.seed or 0, epoch, 0)) * self.cumulative[-1]
        return np.asarray(np.searchsorted(self.cumulative, drawn, "right"), np.int64)


class ClassBalanced(_Drawn):
    def __init__(self, targets: npt.ArrayLike, seed: int | None, length: int | None) -> None:
        classes = _array("targets", targets)
        if classes.ndim != 1 or not classes.size or classes.dtype.kind not in "iu":
            raise OptionError(f"targets: expected one whole number per sample, got {_described(classes)}")
        self.members = np.argsort(classes, kind="stable")  # class by class
        ordered = classes[self.members]
        self.starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
        super().__init__(len(classes), seed, length, self.members.tobytes() + self.starts.tobytes())

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        classes = (uniform_at(positions, (self.seed or 0, epoch, 0)) * (len(self.starts) - 1)).astype(np.int64)
        low, high = self.starts[classes], self.starts[classes + 1]
        within = (uniform_at(positions, (self.seed or 0, epoch, 1)) * (high - low)).astype(np.int64)
        return np.asarray(self.members[low + within])


@dataclass(eq=False)
class Given:
    """An order taken from a sampler of indices. draw() stores the indices of an epoch, 8 bytes each. If the sampler has
    an epoch, it is used: set_epoch() sets it too, and an epoch that was set on the sampler is noticed."""

    sampler: Any = field(repr=False)
    population: int
    seed: int | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__") or not hasattr(self.sampler, "__iter__"):
            raise OptionError(f"sampler: expected indices with a length, got {type(self.sampler).__name__}")
        self._length = len(self.sampler)
        self._drawn: Numbers = np.empty(0, np.int64)
        self._rank = 0, 1
        self._seen = self._own_epoch()

    def __len__(self) -> int:
        return self._length

    def _own_epoch(self) -> int | None:
        epoch = getattr(self.sampler, "epoch", None)
        return epoch if isinstance(epoch, int) and epoch >= 0 else None

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        self._seen = self._own_epoch()

    def draw(self, epoch: int, rank: int, ranks: int) -> int:
        """Take the indices of an epoch from the sampler, and return its number. Crops differ between `ranks`."""
        own = self._own_epoch()
        if own is not None and own != self._seen:
            epoch = self._seen = own
        try:
            indices = np.fromiter(map(operator.index, islice(self.sampler, self._length + 1)), np.int64)
        except TypeError as error:
            raise OptionError(f"sampler: expected whole numbers, one per sample: {error}") from None
        if len(indices) != self._length:
            raise OptionError(f"sampler: has a length of {self._length}, but yields a different number of indices")
        self._drawn, self._rank = sample_numbers(indices, self.population), (rank, ranks)
        return epoch

    def samples(self, epoch: int, positions: Positions) -> Numbers:  # noqa: ARG002
        return self._drawn[positions]

    def keys(self, epoch: int, positions: Positions) -> Numbers:  # noqa: ARG002
        rank, ranks = self._rank
        return self.population + np.asarray(positions, np.int64) * ranks + rank


def check_seed(seed: int | None) -> int | None:
    return None if seed is None else check_range("seed", seed, 0, MOST_SEED)


def with_seed(order: Order, seed: int) -> Order:
    seeded = copy.copy(order)
    object.__setattr__(seeded, "seed", check_range("seed", seed, 0, MOST_SEED))
    return seeded


def choose_order(length: int, shuffle: bool | Order | None, seed: int | None) -> Order:
    """Return `shuffle` if it is an order, Shuffled for True, or Sequential for False and None."""
    if shuffle is None or isinstance(shuffle, (bool, np.bool_)):
        return Shuffled(length, seed) if shuffle else Sequential(length, seed)
    if not hasattr(shuffle, "population"):
        raise OptionError(
            f"shuffle: expected True, False or an order, such as ShardShuffled(dataset.data), got {shuffle!r}"
        )
    if shuffle.population != length:
        raise OptionError(f"shuffle: expected an order over {length} samples, got {shuffle!r}")
    if seed is None:
        return shuffle
    if shuffle.seed is not None:
        raise OptionError(f"seed: the order already has a seed, {shuffle!r}; leave one of the two out")
    return with_seed(shuffle, seed)


def sample_numbers(indices: Any, length: int) -> Numbers:
    """Return `indices` into a list as sample numbers from 0, int64 (n,). Raises OptionError unless they are whole
    numbers from -length to length - 1."""
    try:
        given = np.asarray(indices)
    except ValueError:  # lists of uneven length
        given = np.asarray(None)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        hint = "; for a mask use numpy.flatnonzero(mask)" if given.dtype.kind == "b" else ""
        raise OptionError(
            f"indices: expected a list or an array of whole numbers, got "
            f"{_described(given) if given.ndim else type(indices).__name__}{hint}"
        )
    wrong = (given < -length) | (given >= length)
    if wrong.any():
        at = int(wrong.argmax())
        raise OptionError(f"indices: expected numbers from {-length} to {length - 1}, got {given[at]} at position {at}")
    numbers = given.astype(np.int64)
    numbers[numbers < 0] += length
    return numbers


def class_balanced(targets: npt.ArrayLike, seed: int | None = None, length: int | None = None) -> ClassBalanced:
    """Return an order that draws with replacement, in which each class that has samples is equally likely.

    Args:
        targets: the class of each sample, whole numbers (n,) such as LMDBDataset.targets; OptionError for others. The
            order keeps 8 bytes per sample.
        seed: random seed of the draws and the crops, from 0; None until a sampler chooses one.
        length: positions in an epoch; None for the number of samples.
    """
    return ClassBalanced(targets, seed, length)


def _weights(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    given = _array("weights", weights)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "biuf":
        raise OptionError(f"weights: expected one number per sample, got {_described(given)}")
    shares = given.astype(np.float64)
    wrong = ~(np.isfinite(shares) & (shares >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise OptionError(f"weights: expected finite numbers of 0 or more, got {shares[first]} for sample {first}")
    if not shares.any():
        raise OptionError("weights: expected at least one above 0, got only zeros")
    return shares


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return `values` as an array. Raises OptionError for a dataset, which NumPy would read from beginning to end."""
    if not isinstance(values, Sequence) and not hasattr(values, "__array__"):
        raise OptionError(f"{name}: expected a list or an array, such as dataset.targets, got {values!r}")
    return np.asarray(values)


def _described(array: npt.NDArray[Any]) -> str:
    return f"an array of shape {array.shape} and type {array.dtype}" if array.size else "none"


# ---- an order that reads a few shards at a time ----

_ROWS_AT_ONCE = 2**20

_SHARDS_AT_LEAST = 2**20
"""Shard numbers must be below this or below the number of samples: counts up to a damaged one must not fill memory."""

_DIVISIONS = 2**62
"""Random streams from this number on divide shards; those below permute shards and the samples of groups."""


class ShardColumn(Protocol):
    def __len__(self) -> int: ...
    def numbers(self, name: str) -> npt.NDArray[Any]: ...
    def fetch_ahead(self, groups: Sequence[Sequence[int]]) -> None: ...


class _Groups(NamedTuple):
    """The groups of an epoch in a sequence of all samples, which is ordered by host, then by shard."""

    hosts: Positions  # start of each host's samples in the sequence, then its length
    bounds: Positions  # start of each group in the sequence, then its length
    shards: list[Numbers]  # of each group
    lows: list[Positions]  # start of each of these; before the group's if the previous host has a part of the shard


@dataclass(frozen=True)
class ShardShuffled:
    """Every sample once, `window` shards at a time: for datasets larger than memory.

    Each epoch shuffles the shards, divides them into groups of about `window` shards, and shuffles the samples within
    each group. Each shard is read once per epoch if `window` shards fit into memory: 5 GB by default, for shards of
    32,768 JPEGs of 20 kB.

    Quality: a build assigns samples to shards at random, so that a group is a fair sample of the whole. Batches of one
    group share its composition: the share p of a class has a standard deviation of sqrt(p (1 - p) / M) in a group of M
    samples (0.06% for p = 0.1 and M = 262,144). In every epoch, the samples of a shard are in one group together.

    Hosts: with `by_host` each host reads consecutive shards of the epoch's order, with as many samples as its ranks
    have positions. A shard at a boundary is divided at random and read by both hosts. A state can be resumed only with
    the same number of ranks and hosts. The samples that last="pad" repeats may be in another host's shards.

    Memory: the sample numbers of two groups, 8 bytes each, in each process; they are not pickled. Thread-safe.

    Attributes:
        data: the dataset, such as LMDBDataset.data.
        seed: random seed of the order and the crops, from 0; None until a sampler chooses one.
        window: shards in a group, from 1.
        by_host: give each host its own shards.
        ranks, ranks_per_host: the number of ranks on all hosts together and on each host, numbered as by torchrun; None
            for its WORLD_SIZE and LOCAL_WORLD_SIZE. Only with `by_host`.

    Raises:
        OptionError: an option is out of range, or ranks for `by_host` are neither given nor in the environment.
        DatasetError: the index is damaged and names an impossible shard; raised when samples are first requested.
    """

    data: ShardColumn = field(repr=False)
    seed: int | None = None
    window: int = 8
    by_host: bool = False
    ranks: int | None = None
    ranks_per_host: int | None = None
    # Caches of the methods below. On the class they would keep every dataset ever shuffled open.
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
        # States contain its CRC: without by_host the repr must never change.
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
        """The CRC-32 of the shard numbers of all samples, on which this order depends."""
        return zlib_ng.crc32(np.ascontiguousarray(self.data.numbers("shard")))

    @property
    def _sharing(self) -> tuple[int, int]:
        """(ranks, ranks_per_host); (1, 1) without by_host."""
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
        """Return the shards, by group, that the host of `rank` reads in an epoch from global position `start` on."""
        host = rank // self.ranks_per_host if self.ranks_per_host else 0
        groups = self._groups(epoch)
        low = groups.hosts[host] + self._positions_of(host, start)
        first = int(np.searchsorted(groups.bounds, low, "right")) - 1
        stop = int(np.searchsorted(groups.bounds, groups.hosts[host + 1]))
        occupied = [shards[self._counts[shards] > 0].tolist() for shards in groups.shards[first:stop]]
        return [shards for shards in occupied if shards]

    def _positions_of(self, hosts: Numbers | int, before: int) -> Numbers:
        """Count the positions below `before` of each host's ranks."""
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
        """Return the samples of a group, ascending. Reads the column in parts that fit into caches and memory."""
        groups = self._groups(epoch)
        wanted = np.zeros(len(self._counts), np.bool_)
        wanted[groups.shards[group]] = True
        column = self.data.numbers("shard")
        parts = range(0, len(column), _ROWS_AT_ONCE)
        members = np.concatenate([low + np.flatnonzero(wanted[column[low : low + _ROWS_AT_ONCE]]) for low in parts])
        for shard, low in zip(groups.shards[group], groups.lows[group], strict=True):
            first, stop = groups.bounds[group : group + 2] - low
            count = int(self._counts[shard])
            if first > 0 or stop < count:  # the previous or the next host has a part of it
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


# ---- ranks and batches ----

Last = Literal["keep", "pad"]
"""Handling of a last batch that is not full, unless it is dropped."""


def check_last(last: Last | None, drop_last: bool) -> None:
    if last is not None:
        check_choice("last", last, Last)
    if drop_last not in (False, True):
        raise OptionError(f"drop_last: expected True or False, got {drop_last!r}")
    if drop_last and last is not None:
        does = "fills up" if last == "pad" else "keeps"
        raise OptionError(f'drop_last: cannot be combined with last="{last}", which {does} the last batch')


@dataclass(frozen=True)
class Schedule:
    """Batches of the positions of an epoch on one of several ranks.

    Ranks take turns: in an epoch begun at global position `start`, rank i mod ranks gets position start + i. So the
    positions that all ranks have consumed are always a prefix of one global order, for any number of ranks.

    Attributes:
        last: handling of positions that do not fill a batch on all ranks. "keep": each comes once; the first ranks may
            have a batch more than the others. "drop": they are left out. "pad": the epoch's first positions fill the
            batches.
        in_blocks: divide a padded last global batch into blocks instead: the first `batch_size` positions for rank 0,
            the next for rank 1. The padding then comes last when the ranks' batches are concatenated.
    """

    length: int
    batch_size: int
    ranks: int = 1
    rank: int = 0
    last: Last | Literal["drop"] = "keep"
    in_blocks: bool = False

    def __post_init__(self) -> None:
        set_in_range(self, "length", 0, MOST_SAMPLES)
        set_in_range(self, "batch_size", 1, MOST_SAMPLES)
        set_in_range(self, "ranks", 1, MOST_SAMPLES)
        set_in_range(self, "rank", 0, self.ranks - 1)
        check_choice("last", self.last, Literal["keep", "drop", "pad"])

    def sample_count(self, start: int) -> int:
        """Return the number of samples on this rank in an epoch begun at global position `start`, 0 to length."""
        check_range("start", start, 0, self.length)
        left = self.length - start
        if self.last == "keep":
            return max(-(-(left - self.rank) // self.ranks), 0)
        together = self.batch_size * self.ranks
        return self.batch_size * (left // together if self.last == "drop" else -(-left // together))

    def batch_count(self, start: int) -> int:
        return -(-self.sample_count(start) // self.batch_size)

    def positions(self, start: int, first: int, stop: int) -> Positions:
        turns = np.arange(max(first, 0), min(stop, self.sample_count(start)), dtype=np.int64)
        places = self.rank + self.ranks * turns
        if self.in_blocks and self.last == "pad":
            filled = (self.length - start) // (self.batch_size * self.ranks) * self.batch_size
            places = np.where(turns < filled, places, turns + filled * (self.ranks - 1) + self.rank * self.batch_size)
        return (start + places) % max(self.length, 1)

    def remainder(self, start: int) -> int:
        """Return the positions in the last global batch of an epoch begun at `start` if it is not full; otherwise 0."""
        return 0 if self.last == "drop" else (self.length - start) % (self.batch_size * self.ranks)

    def batch(self, start: int, number: int) -> Positions:
        return self.positions(start, number * self.batch_size, (number + 1) * self.batch_size)

    def consumed(self, start: int, batches: int) -> int:
        """Return the global position after `batches` batches on every rank since `start`."""
        check_range("start", start, 0, self.length)
        check_range("batches", batches, 0, MOST_SAMPLES)
        return min(start + batches * self.batch_size * self.ranks, self.length)
