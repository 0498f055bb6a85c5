"""Which sample comes at which position of which epoch, and which positions make up a batch. Pure; no torch.

An order is a function of (seed, epoch, position) and of nothing else: any position can be asked for, in any
process, without those before it. So workers have no say in it, and an epoch is resumed from a few integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from presize.errors import DatasetError, OptionError
from presize.options import check_range
from presize.store.dealing import mix

Last = Literal["keep", "drop", "pad"]

MOST_SAMPLES = 2**48
MOST_SEED = 2**63 - 1
"""The highest seed and epoch: state fits into signed 64-bit integers."""

Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]

# Shorter permutations are sorted, where a Feistel network of few rounds is far from uniform. Above, four rounds
# still tell the distance of positions that are a side apart (13 standard deviations, at 1,031 samples over
# 4,000 seeds); six do not.
_SORTED_LENGTH = 1024
_ROUNDS = 6
_ROWS_AT_ONCE = 2**20
# Shard numbers below this are counted even where there are fewer samples; a damaged one must not fill memory.
_SHARDS_AT_LEAST = 2**20


class Order(Protocol):
    """What an order is. Positions run from 0 to len(order) - 1 and are not checked.

    seed: decides the order, together with the epoch, and the random crops of each visit.
    population: samples in the dataset that it draws from.
    """

    @property
    def seed(self) -> int: ...

    @property
    def population(self) -> int: ...

    def __len__(self) -> int:
        """Positions in an epoch."""
        ...

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        """The sample at each position, int64 (n,)."""
        ...

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        """What the random draws of each visit depend on, beside seed and epoch, int64 (n,): the sample
        number where a sample comes once an epoch, and a number above all samples that no other position
        has where it may come twice, so that each time it is cropped differently."""
        ...


@dataclass(frozen=True)
class Sequential:
    """Samples 0, 1, 2 ..., the same in each epoch; `seed` is for the crops."""

    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("length", self.length, 0, MOST_SAMPLES)
        check_range("seed", self.seed, 0, MOST_SEED)

    def __len__(self) -> int:
        return self.length

    @property
    def population(self) -> int:
        return self.length

    def samples(self, epoch: int, positions: Positions) -> Numbers:  # noqa: ARG002
        return np.asarray(positions, np.int64)

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        return self.samples(epoch, positions)


@dataclass(frozen=True)
class Shuffled:
    """Every sample once, in an order of its own for each (seed, epoch), in O(1) memory: see permute()."""

    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("length", self.length, 0, MOST_SAMPLES)
        check_range("seed", self.seed, 0, MOST_SEED)

    def __len__(self) -> int:
        return self.length

    @property
    def population(self) -> int:
        return self.length

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        return permute(positions, self.length, (self.seed, epoch, 0))

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        return self.samples(epoch, positions)


class ShardColumn(Protocol):
    """What ShardShuffled needs of a presize.store.dataset.Dataset."""

    def __len__(self) -> int: ...

    def numbers(self, name: str) -> npt.NDArray[Any]: ...


@dataclass(frozen=True)
class ShardShuffled:
    """Every sample once, `window` shards at a time: for datasets larger than memory.

    Each epoch puts the shards into another order, takes them in groups of about `window` (all groups within
    one shard of each other), and shuffles the samples of a group among each other. So reading stays inside
    `window` shards for a while, and each shard is read from disk once an epoch if that many fit into memory:
    a shard of 32,768 JPEGs of 20 KB is 0.65 GB, and the default window 5 GB.

    Quality: presize deals samples to shards at random, so that a group is a fair sample of the whole even
    where the folder is sorted by class. A batch of B of the group's M samples varies as one of a global
    shuffle does: the variance of the number of its samples of one class, over all batches of an epoch, has
    the same expectation. What differs: batches of one group share its composition, which strays from
    the whole's by a standard deviation of sqrt(p (1 - p) / M) for a class of share p (0.05 % for p = 0.1 and
    M = 262,144); and samples of a shard, dealt once, meet in one group in each epoch.

    Memory: two groups' sample numbers, 8 bytes each, in each process that asks; they are found by a pass
    over the mapped shard column when a group begins, about 4 ms a million samples of the dataset. Besides, a
    count a shard. Pickled without them, and the dataset as its path. Safe from threads.
    Raises DatasetError, when first asked for samples, if the column names a shard that cannot be.
    """

    data: ShardColumn = field(repr=False)
    seed: int = 0
    window: int = 8
    # Caches of the methods below; on the class they would keep every dataset open that was ever shuffled.
    _counts: Callable[[], Numbers] = field(init=False, repr=False, compare=False)
    _groups: Callable[[int], tuple[list[Numbers], Positions]] = field(init=False, repr=False, compare=False)
    _members: Callable[[int, int], Numbers] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_range("seed", self.seed, 0, MOST_SEED)
        check_range("window", self.window, 1, MOST_SAMPLES)
        # Two groups: a batch may straddle them, and is asked for twice, as samples and as keys.
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
        """The samples of a group, ascending. In parts: the dataset's rows would not fit the caches, or memory."""
        wanted = np.zeros(len(self._counts()), np.bool_)
        wanted[self._groups(epoch)[0][group]] = True
        column = self.data.numbers("shard")
        lows = range(0, len(column), _ROWS_AT_ONCE)
        return np.concatenate([low + np.flatnonzero(wanted[column[low : low + _ROWS_AT_ONCE]]) for low in lows])


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples drawn with replacement, each with a probability in proportion to its weight.

    weights: one number a sample, at least one above 0 and none below it; float64 cumulative sums are kept of
        them, 8 bytes a sample, and pickled along. A draw is a binary search in them.
    length: positions in an epoch; as many as there are samples by default.
    """

    weights: InitVar[npt.ArrayLike]
    seed: int = 0
    length: InitVar[int | None] = None
    draws: int = field(init=False)
    cumulative: npt.NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self, weights: npt.ArrayLike, length: int | None) -> None:
        check_range("seed", self.seed, 0, MOST_SEED)
        shares = _weights(weights)
        object.__setattr__(self, "draws", _draws(length, len(shares)))
        # Divided by the largest, no sum overflows and no draw rounds up to it.
        object.__setattr__(self, "cumulative", np.cumsum(shares / shares.max()))

    def __len__(self) -> int:
        return self.draws

    @property
    def population(self) -> int:
        return len(self.cumulative)

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        drawn = _uniform(positions, (self.seed, epoch, 0)) * self.cumulative[-1]
        return np.asarray(np.searchsorted(self.cumulative, drawn, "right"), np.int64)

    def keys(self, epoch: int, positions: Positions) -> Numbers:  # noqa: ARG002
        return self.population + np.asarray(positions, np.int64)


@dataclass(frozen=True, eq=False)
class ClassBalanced:
    """Samples drawn with replacement: a class, all alike, and one of its samples, all alike. See class_balanced().

    members: the samples, class by class, int64; 8 bytes a sample, pickled along.
    starts: where each class begins in them, with the length at the end, int64 (classes + 1,).
    """

    members: Numbers = field(repr=False)
    starts: Numbers = field(repr=False)
    seed: int
    draws: int

    def __len__(self) -> int:
        return self.draws

    @property
    def population(self) -> int:
        return len(self.members)

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        classes = (_uniform(positions, (self.seed, epoch, 0)) * (len(self.starts) - 1)).astype(np.int64)
        low, high = self.starts[classes], self.starts[classes + 1]
        within = (_uniform(positions, (self.seed, epoch, 1)) * (high - low)).astype(np.int64)
        return np.asarray(self.members[low + within])

    def keys(self, epoch: int, positions: Positions) -> Numbers:  # noqa: ARG002
        return self.population + np.asarray(positions, np.int64)


def choose_order(length: int, shuffle: bool, seed: int, order: Order | None) -> Order:
    """`order`, if there is one, which then must be of `length` samples; otherwise Shuffled or Sequential.
    Raises OptionError."""
    if order is None:
        return Shuffled(length, seed) if shuffle else Sequential(length, seed)
    if shuffle or seed:
        raise OptionError("order: it has a shuffle and a seed of its own; give either order, or shuffle and seed")
    if order.population != length:
        raise OptionError(f"order: expected one of {length} samples, got {order!r}")
    return order


def class_balanced(targets: npt.ArrayLike, seed: int = 0, length: int | None = None) -> ClassBalanced:
    """An order in which each class that has samples comes equally often, by drawing with replacement.

    targets: the class of each sample, whole numbers (n,), such as LMDBDataset.targets. Sorting them takes
    about 16 bytes a sample for a moment; 8 are kept.
    length: positions in an epoch; as many as there are samples by default.
    """
    check_range("seed", seed, 0, MOST_SEED)
    classes = np.asarray(targets)
    if classes.ndim != 1 or not classes.size or classes.dtype.kind not in "iu":
        raise OptionError(f"targets: expected one whole number a sample, got {_described(classes)}")
    members = np.argsort(classes, kind="stable")
    ordered = classes[members]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    return ClassBalanced(members, starts, seed, _draws(length, len(classes)))


def _weights(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    given = np.asarray(weights)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "biuf":
        raise OptionError(f"weights: expected one number a sample, got {_described(given)}")
    shares = given.astype(np.float64)
    wrong = ~(np.isfinite(shares) & (shares >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise OptionError(f"weights: expected finite numbers of 0 or more, got {shares[first]} for sample {first}")
    if not shares.any():
        raise OptionError(f"weights: expected at least one above 0, got {len(shares)} of 0")
    return shares


def _draws(length: int | None, samples: int) -> int:
    if length is None:
        return samples
    check_range("length", length, 0, MOST_SAMPLES)
    return length


def _described(array: npt.NDArray[Any]) -> str:
    return f"an array of shape {array.shape} and type {array.dtype}" if array.size else "none"


def permute(positions: Positions, length: int, key: tuple[int, int, int]) -> Numbers:
    """Where a permutation of 0 ... length - 1, one of its own for each key, sends `positions`, int64 (n,).

    Up to 1,024 long, the permutation that sorts the hashes of its positions: the prefix cipher. Longer ones
    are generalised Feistel networks on pairs of numbers below (a, b), with a·b barely above `length`; a
    result beyond `length` is sent through again: cycle walking, which is rare here. Both are from Black and
    Rogaway, Ciphers with Arbitrary Finite Domains (2002), methods 1 to 3; four rounds and more suffice by
    Luby and Rackoff (1988). Round functions are SplitMix64 under keys. Memory does not depend on `length`.
    """
    if length <= _SORTED_LENGTH:
        return np.asarray(_sorted_permutation(length, key)[positions])
    rounds, (a, b), end = _round_keys(key), _sides(length), np.uint64(length)
    walking = np.asarray(positions).astype(np.uint64)
    found = np.empty(len(walking), np.int64)
    at: npt.NDArray[np.intp] | slice = slice(None)
    while len(walking):
        left, right = walking // b, walking % b
        for even, odd in zip(rounds[::2], rounds[1::2], strict=True):
            # Half of a hash, or the sum would wrap at 2^64 and lose the bijection.
            left = (left + (mix(right ^ even) >> np.uint64(1))) % a
            right = (right + (mix(left ^ odd) >> np.uint64(1))) % b
        walking = left * b + right
        found[at] = walking
        beyond = np.flatnonzero(walking >= end)
        walking = walking[beyond]
        at = beyond if isinstance(at, slice) else at[beyond]
    return found


@lru_cache(maxsize=16)
def _sorted_permutation(length: int, key: tuple[int, int, int]) -> Numbers:
    return np.argsort(mix(np.arange(length, dtype=np.uint64) ^ _hashed(key)), kind="stable")


@lru_cache(maxsize=16)
def _round_keys(key: tuple[int, int, int]) -> tuple[np.uint64, ...]:
    return tuple(mix(np.arange(_ROUNDS, dtype=np.uint64) ^ _hashed(key)))


@lru_cache(maxsize=16)
def _sides(length: int) -> tuple[np.uint64, np.uint64]:
    """(a, b), much alike, with a·b at least `length` and as little above it as 4,096 tries find: a walk
    more costs the batch as much as the first one."""
    least = math.isqrt(length - 1) + 1
    a = np.arange(least, min(least + least // 2, least + 4096) + 1, dtype=np.uint64)
    b = (np.uint64(length - 1) // a) + np.uint64(1)
    best = np.argmin(a * b)
    return a[best], b[best]


@lru_cache(maxsize=16)
def _hashed(key: tuple[int, int, int]) -> npt.NDArray[np.uint64]:
    """A key (seed, epoch, stream) as one hash, (1,)."""
    hashed = np.zeros(1, np.uint64)
    for number in key:
        hashed = mix(hashed ^ np.uint64(number))
    return hashed


def _uniform(positions: Positions, key: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    """A number for each position, 0 included and 1 not, in steps of 2^-53."""
    hashes = mix(np.asarray(positions).astype(np.uint64) ^ _hashed(key))
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
