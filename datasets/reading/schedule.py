"""Which positions of an epoch make up each batch, on one of several ranks. Pure; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from presize.datasets.reading.order import MOST_SAMPLES, Positions
from presize.errors import OptionError
from presize.options import check_choice, check_range

Last = Literal["keep", "pad"]
"""What becomes of a last batch that is not full, where it is not dropped."""


def check_last(last: Last | None, drop_last: bool) -> None:
    """Raise OptionError unless these are choices that go together."""
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
        length: positions in the epoch.
        batch_size: samples in a batch on one rank.
        ranks: how many there are, from 1.
        rank: which one this is, from 0.
        last: what becomes of positions that do not fill a global batch. "keep": each comes once; the last batch may be
            short, ranks may differ by a sample, and so rank 0 may have a batch more than others. "drop": they are left
            out. "pad": filled up with the epoch's first positions, so that all ranks have equally many batches, all
            full.
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
        check_range("length", self.length, 0, MOST_SAMPLES)
        check_range("batch_size", self.batch_size, 1, MOST_SAMPLES)
        check_range("ranks", self.ranks, 1, MOST_SAMPLES)
        check_range("rank", self.rank, 0, self.ranks - 1)
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
        """The positions in this rank's batch `number`, from 0, of an epoch begun at `start`.

        Raises:
            IndexError: the epoch has no batch of that number on this rank.
        """
        if not 0 <= number < self.batch_count(start):
            raise IndexError(f"batch {number}: an epoch begun at {start} has {self.batch_count(start)} on this rank")
        return self.positions(start, number * self.batch_size, (number + 1) * self.batch_size)

    def consumed(self, start: int, batches: int) -> int:
        """The global position, at most length, after that many batches on every rank since `start`. Equal on all
        ranks."""
        check_range("start", start, 0, self.length)
        check_range("batches", batches, 0, MOST_SAMPLES)
        return min(start + batches * self.batch_size * self.ranks, self.length)
