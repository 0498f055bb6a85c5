"""Which sample comes at which position of which epoch, and which positions make up each batch. Pure; no torch.

An order is a function of (seed, epoch, position) alone: any position can be computed, in any process, without those
before it. So it is the same for any number of workers, and an epoch is resumed from a few integers.
"""

from __future__ import annotations

import copy
import operator
import zlib
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from presize.datasets.reading.draws import permute, uniform_at
from presize.errors import OptionError
from presize.options import check_choice, check_range, set_in_range

MOST_SAMPLES = 2**48
MOST_SEED = 2**63 - 1
"""The highest seed and epoch: state fits into signed 64-bit integers."""

Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]


class Order(Protocol):
    """Maps positions of an epoch, 0 to len(order) - 1 and not checked, to samples of a `population`.

    The seed decides the order, together with the epoch, and the random crops of each visit. It is None until the
    sampler that uses the order chooses one (see presize.datasets.EpochSampler); on its own, None counts as 0.
    """

    @property
    def seed(self) -> int | None: ...

    @property
    def population(self) -> int: ...

    def __len__(self) -> int: ...

    def samples(self, epoch: int, positions: Positions) -> Numbers: ...

    def keys(self, epoch: int, positions: Positions) -> Numbers:
        """What the random draws of each visit depend on beside seed and epoch, int64 (n,).

        The sample number where a sample comes at most once an epoch. Where it may come twice, a number above all
        samples and unique to the position, so that it is cropped differently each time.
        """
        ...


@dataclass(frozen=True)
class _EachOnce:
    """An order of all samples, each at one position of an epoch."""

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
    """Samples 0, 1, 2 ..., the same in each epoch; `seed` is that of the crops."""


class Shuffled(_EachOnce):
    """Every sample once, in a new order for each (seed, epoch), in O(1) memory: see permute()."""

    def samples(self, epoch: int, positions: Positions) -> Numbers:
        return permute(positions, self.length, (self.seed or 0, epoch, 0))


class _Drawn:
    """An order that draws with replacement from samples by a table. Its repr has a CRC of that, so that the state of an
    order with another table is refused."""

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
    """Samples drawn with replacement, each with a probability in proportion to its weight.

    Keeps float64 cumulative sums of the weights, 8 bytes a sample, and pickles them. A draw is a binary search.

    Args:
        weights: one number a sample, finite, none below 0 and at least one above it.
        seed: of the draws and the crops, from 0; None until a sampler chooses one.
        length: positions in an epoch; the number of samples when None.
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
    """Draws with replacement: first a class, uniformly, then one of its samples, uniformly. See class_balanced()."""

    def __init__(self, targets: npt.ArrayLike, seed: int | None, length: int | None) -> None:
        classes = np.asarray(targets)
        if classes.ndim != 1 or not classes.size or classes.dtype.kind not in "iu":
            raise OptionError(f"targets: expected one whole number a sample, got {_described(classes)}")
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
    """The samples that a sampler of indices gives, in its order. draw() asks it for those of an epoch, 8 bytes each.

    Epochs are the sampler's own where it counts them, as a DistributedSampler does: set_epoch() sets both, and one that
    the caller has set at the sampler is noticed.
    """

    sampler: Any = field(repr=False)
    population: int
    seed: int | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__") or not hasattr(self.sampler, "__iter__"):
            raise OptionError(f"sampler: expected indices that have a length, got {type(self.sampler).__name__}")
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
        """Ask the sampler for the indices of an epoch, and return its number: `epoch`, or that to which the caller has
        set the sampler since the last one. Crops differ between `ranks`, which may read the same samples."""
        own = self._own_epoch()
        if own is not None and own != self._seen:
            epoch = self._seen = own
        try:
            indices = np.fromiter(map(operator.index, islice(self.sampler, self._length + 1)), np.int64)
        except TypeError as error:
            raise OptionError(f"sampler: expected whole numbers, one a sample: {error}") from None
        if len(indices) != self._length:
            raise OptionError(f"sampler: has a length of {self._length}, and gave another number of indices")
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
    """A copy of an order of this package, with another seed."""
    seeded = copy.copy(order)
    object.__setattr__(seeded, "seed", check_range("seed", seed, 0, MOST_SEED))
    return seeded


def choose_order(length: int, shuffle: bool | Order | None, seed: int | None) -> Order:
    """The order that `shuffle` is, or Shuffled for True and Sequential for False and None, over `length` samples."""
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
        raise OptionError(f"seed: the order has one, {shuffle!r}; leave one of the two out")
    return with_seed(shuffle, seed)


def sample_numbers(indices: Any, length: int) -> Numbers:
    """`indices` as sample numbers from 0, int64 (n,). Negative ones count from the end, as in a list. Raises
    OptionError unless they are whole numbers, each from -length to length - 1, in a list, range, array or tensor."""
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
    """An order in which each class that has samples is equally likely, by drawing with replacement.

    Args:
        targets: the class of each sample, whole numbers (n,), such as LMDBDataset.targets. Sorting them takes about 16
            bytes a sample for a moment; 8 are kept.
        seed: of the draws and the crops, from 0; None until a sampler chooses one.
        length: positions in an epoch; the number of samples when None.

    Raises:
        OptionError: `targets` are not whole numbers, one a sample.
    """
    return ClassBalanced(targets, seed, length)


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


def _described(array: npt.NDArray[Any]) -> str:
    return f"an array of shape {array.shape} and type {array.dtype}" if array.size else "none"


Last = Literal["keep", "pad"]
"""What becomes of a last batch that is not full, where it is not dropped."""


def check_last(last: Last | None, drop_last: bool) -> None:
    if last is not None:
        check_choice("last", last, Last)
    if drop_last not in (False, True):
        raise OptionError(f"drop_last: expected True or False, got {drop_last!r}")
    if drop_last and last is not None:
        does = "fills up" if last == "pad" else "keeps"
        raise OptionError(f'drop_last: expected it without last="{last}", which {does} the last batch')


@dataclass(frozen=True)
class Schedule:
    """Divides the positions of an epoch into batches on one of several ranks.

    Ranks take turns: an epoch begun at global position `start` gives start + i to rank i mod ranks. The next
    batch_size · ranks positions are a global batch, of which each rank has one batch. So what all ranks have consumed
    is always a prefix of the one global order, whatever their number.

    Attributes:
        last: what becomes of positions that do not fill a global batch. "keep": each comes once; the last batch may be
            short, ranks may differ by a sample, and so rank 0 may have a batch more than others. "drop": they are left
            out. "pad": filled up with the epoch's first positions, so that all ranks have equally many full batches.
        in_blocks: deal a last global batch that was filled up in blocks instead: the first `batch_size` positions to
            rank 0, the next to rank 1. What fills it up then comes last where the ranks' batches are concatenated.
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
        """Samples on this rank in an epoch begun at global position `start`, 0 to length."""
        check_range("start", start, 0, self.length)
        left = self.length - start
        if self.last == "keep":
            return max(-(-(left - self.rank) // self.ranks), 0)
        together = self.batch_size * self.ranks
        return self.batch_size * (left // together if self.last == "drop" else -(-left // together))

    def batch_count(self, start: int) -> int:
        """Batches on this rank in an epoch begun at global position `start`, 0 to length."""
        return -(-self.sample_count(start) // self.batch_size)

    def positions(self, start: int, first: int, stop: int) -> Positions:
        """The positions of this rank's samples from `first` to `stop` - 1 since `start`; fewer at the end."""
        turns = np.arange(max(first, 0), min(stop, self.sample_count(start)), dtype=np.int64)
        places = self.rank + self.ranks * turns
        if self.in_blocks and self.last == "pad":
            filled = (self.length - start) // (self.batch_size * self.ranks) * self.batch_size
            places = np.where(turns < filled, places, turns + filled * (self.ranks - 1) + self.rank * self.batch_size)
        return (start + places) % max(self.length, 1)

    def remainder(self, start: int) -> int:
        """Positions in the last global batch of an epoch begun at `start`, if they do not fill it; otherwise 0."""
        return 0 if self.last == "drop" else (self.length - start) % (self.batch_size * self.ranks)

    def batch(self, start: int, number: int) -> Positions:
        """The positions in this rank's batch `number`, from 0, of an epoch begun at `start`."""
        return self.positions(start, number * self.batch_size, (number + 1) * self.batch_size)

    def consumed(self, start: int, batches: int) -> int:
        """The global position, at most length, after that many batches on every rank since `start`."""
        check_range("start", start, 0, self.length)
        check_range("batches", batches, 0, MOST_SAMPLES)
        return min(start + batches * self.batch_size * self.ranks, self.length)
