"""EpochSampler: an order as a torch sampler, divided among ranks and resumable from a few integers."""

from __future__ import annotations

import reprlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch.distributed
import torch.utils.data

from presize.datasets.read_only import read_only
from presize.datasets.reading.order import MOST_SEED, Given, Last, Order, Schedule, ShardShuffled, check_last, with_seed
from presize.errors import OptionError, warn
from presize.formatting import plural
from presize.options import check_range

_DRAWN_AT_ONCE = 1024

_DIFFERENCES = {
    "length": "an epoch has {value:,} positions, and had {saved:,} when this was saved; give the same dataset and "
    "shuffle=",
    "population": "the dataset has {value:,} samples, and had {saved:,} when this was saved; give the same dataset",
    "seed": "seed is {value}, and was {saved} when this was saved; give seed={saved}",
    "order": "this was saved with another order; give the same shuffle=, with the same options, weights or targets",
    "samples": "the samples of the dataset, or their order, have changed since this was saved; begin the epoch again "
    "with set_epoch({epoch!r})",
    "shards": "samples of the dataset have moved to other shards since this was saved, which changes the order of "
    "ShardShuffled; begin the epoch again with set_epoch({epoch!r})",
}
"""Reasons to refuse a state, by the name of the value that differs."""


class Visit(int):
    """A sample number with (seed, epoch, key) of its crops and transforms (see Order.keys): persistent workers miss
    set_epoch()."""

    seed: int
    epoch: int
    key: int

    def __new__(cls, sample: int, seed: int, epoch: int, key: int) -> Visit:
        visit = super().__new__(cls, sample)
        visit.seed, visit.epoch, visit.key = seed, epoch, key
        return visit

    def __reduce__(self) -> tuple[type[Visit], tuple[int, int, int, int]]:
        return Visit, (int(self), self.seed, self.epoch, self.key)


def visits(indices: Sequence[SupportsIndex]) -> tuple[int, int, npt.NDArray[np.int64]]:
    """Return the (seed, epoch, keys) from which the crops of samples are drawn (presize.datasets.reading.draws)."""
    first = indices[0] if indices else None
    if isinstance(first, Visit):
        visits: Any = indices
        return first.seed, first.epoch, np.array([visit.key for visit in visits], np.int64)
    return int(torch.randint(2**62, (), device="cpu")), 0, np.arange(len(indices))


@read_only(
    "make another EpochSampler",
    torch.utils.data.DistributedSampler,
    **dict.fromkeys(("epoch", "start", "begun"), "use set_epoch()"),
    fingerprint="",
)
class EpochSampler(torch.utils.data.DistributedSampler[int]):
    """A sampler of `order` for a plain DataLoader: yields Visits, in O(1) memory. One iteration at a time. It is a
    subclass of DistributedSampler so that trainers do not wrap it in another.

    Epochs: each iteration is the next epoch, from 0, even if the previous one was left early. set_epoch() overrides
    this; for the epoch that is next anyway it changes nothing.

    Resuming: a DataLoader draws indices ahead, so only the consumer of the batches knows the position. It passes the
    position to ``state_after(batches, batch_size)``, or in global positions to ``state_dict(consumed)``.
    load_state_dict() resumes with any batch size and number of ranks or workers: with last="keep" each remaining
    position comes exactly once. Only ShardShuffled(by_host=True) needs the same number of ranks and hosts.

    Seed: an order without a seed gets one when the first epoch begins, or state_dict() is first called: one draw from
    torch's default generator, or 0 with several ranks. Later epochs and states keep it.

    Args:
        order: the order, which maps positions to samples.
        rank, ranks: the share of the positions to draw; None for torch.distributed's if it is initialized when an epoch
            begins, otherwise 0 of 1. Ranks take turns (see Schedule).
        batch_size: the DataLoader's, on one rank; only drop_last=True and last="pad" need it.
        drop_last: leave out samples that do not fill a batch on all ranks.
        last: "keep" or "pad" these samples otherwise. None keeps them in one process, and pads with several ranks. With
            "keep" ranks may differ by a batch, which DistributedDataParallel supports only inside its join().
        fingerprint: function that returns a number, different for other samples, to save in states; it may return None.

    Attributes:
        order: the order, with its seed once that is chosen.
        epoch: the epoch that began last; while `begun` is False, the next one.
        start: the first global position of `epoch`.
        begun: True once `epoch` has begun; False after set_epoch() and load_state_dict().

    Raises:
        OptionError: an option is out of range, `last` comes with drop_last=True, or the order was made for other ranks.
    """

    start: int
    begun: bool

    def __init__(
        self,
        order: Order,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        batch_size: int = 1,
        drop_last: bool = False,
        last: Last | None = None,
        fingerprint: Callable[[], int | None] | None = None,
    ) -> None:
        # Not DistributedSampler.__init__, which takes a dataset, and needs torch.distributed to be initialized.
        if not hasattr(order, "seed"):
            raise OptionError(f"order: expected an order, such as Shuffled(len(dataset)), got {order!r}")
        self.order = order
        self._seed_is_given = order.seed is not None
        self._seed_is_drawn = False
        self.fingerprint = fingerprint
        check_last(last, drop_last)
        self._share = rank, ranks, "drop" if drop_last else last
        self._schedule = Schedule(len(order), batch_size)
        self._schedule = self._shared()
        if ranks is not None or _distributed():
            self._check_ranks(self._schedule)
        self._stand_at(0, 0, False)
        self._is_finished = True

    @property
    def fingerprint(self) -> Callable[[], int | None] | None:
        """The function as given; assign another one when the samples have been replaced."""
        return self._fingerprint

    @fingerprint.setter
    def fingerprint(self, fingerprint: Callable[[], int | None] | None) -> None:
        self._fingerprint = fingerprint
        self._samples: int | None = None

    def _stand_at(self, epoch: int, start: int, begun: bool, order: Order | None = None) -> None:
        vars(self).update(epoch=epoch, start=start, begun=begun, order=self.order if order is None else order)

    def __getattr__(self, name: str) -> Any:
        """Return a missing attribute from the sampler that a Loader was given, such as `weights`."""
        order = vars(self).get("order")
        if isinstance(order, Given) and not name.startswith("_"):
            return getattr(order.sampler, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        order = vars(self).get("order")
        is_ours = name.startswith("_") or hasattr(type(self), name)
        if isinstance(order, Given) and not is_ours and hasattr(order.sampler, name):
            setattr(order.sampler, name, value)
        else:
            super().__setattr__(name, value)

    def _shared(self) -> Schedule:
        """Return the schedule for the current ranks: trainers initialize torch.distributed after loaders are made."""
        rank, ranks, last = self._share
        own_rank, own_ranks = _rank()
        ranks = own_ranks if ranks is None else ranks
        last = last or ("keep" if ranks == 1 else "pad")
        return replace(self._schedule, ranks=ranks, rank=own_rank if rank is None else rank, last=last)

    def choose_seed(self) -> None:
        """Give the order a seed if it has none, or if its seed was drawn before there were several ranks."""
        ranks = max(self._shared().ranks, _rank()[1])
        if self.order.seed is None or (self._seed_is_drawn and ranks > 1):
            self._seed_is_drawn = ranks == 1
            drawn = int(torch.randint(2**62, (), device="cpu")) if ranks == 1 else 0
            vars(self)["order"] = with_seed(self.order, drawn)

    @property
    def _order_ranks(self) -> int | None:
        return self.order.ranks if isinstance(self.order, ShardShuffled) else None

    def _check_ranks(self, schedule: Schedule) -> None:
        if self._order_ranks not in (None, schedule.ranks):
            raise OptionError(f"order: was made for {self._order_ranks} ranks, but there are {schedule.ranks}")

    @property
    def schedule(self) -> Schedule:
        """The schedule of batches on this rank in `epoch`."""
        return self._schedule if self.begun else self._shared()

    def __len__(self) -> int:
        """Return the number of samples on this rank in a whole epoch; a resumed epoch has fewer."""
        return self.schedule.sample_count(0)

    def __iter__(self) -> Iterator[Visit]:
        # A generator, so that an epoch begins with its first sample: DataLoader makes iterators that it never uses.
        epoch, start = self.begin()
        seed, schedule = self.order.seed or 0, self.schedule
        for first in range(0, schedule.sample_count(start), _DRAWN_AT_ONCE):
            positions = schedule.positions(start, first, first + _DRAWN_AT_ONCE)
            samples = self.order.samples(epoch, positions).tolist()
            keys = self.order.keys(epoch, positions).tolist()
            yield from map(Visit, samples, repeat(seed), repeat(epoch), keys)

    def begin(self) -> tuple[int, int]:
        """Begin the next epoch, as iterating does. Returns its number and its first global position."""
        schedule = self._shared()
        self._check_ranks(schedule)
        self.choose_seed()
        epoch, start = (self.epoch + 1, 0) if self.begun else (self.epoch, self.start)
        if isinstance(self.order, Given):
            epoch = self.order.draw(epoch, *_rank())
        self._stand_at(epoch, start, True)
        self._schedule = schedule
        if schedule.last == "drop" and schedule.length and schedule.batch_count(0) == 0:
            on_ranks = f" on each of {schedule.ranks} ranks" if schedule.ranks > 1 else ""
            warn(
                f"drop_last: an epoch has no batch, since {plural(schedule.length, 'sample')} cannot fill one of "
                f"{schedule.batch_size}{on_ranks}"
            )
        if isinstance(self.order, ShardShuffled):
            self.order.data.fetch_ahead(self.order.groups_ahead(epoch, start, schedule.rank))
        return epoch, start

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next to iterate, from its beginning or from the position that load_state_dict() set."""
        epoch = check_range("epoch", epoch, 0, MOST_SEED)
        if self.begun or epoch != self.epoch:
            self._stand_at(epoch, 0, False)
        if isinstance(self.order, Given):
            self.order.set_epoch(epoch)

    def state_dict(self, consumed: int | None = None) -> dict[str, int]:
        """Return the position of training as a few integers. Save the state of rank 0, which may have one more batch
        than the others with last="keep". `consumed` is the number of positions of `epoch` that all ranks together have
        consumed; OptionError if it is missing once the epoch has begun."""
        return self._state(self.schedule, consumed)

    def state_after(self, batches: int, batch_size: int) -> dict[str, int]:
        """Return state_dict() after `batches` batches on every rank since `epoch` began or was resumed."""
        schedule = replace(self.schedule, batch_size=batch_size)
        return self._state(schedule, schedule.consumed(self.start, batches))

    def _state(self, schedule: Schedule, consumed: int | None) -> dict[str, int]:
        if consumed is None:
            if self.begun:
                raise OptionError(
                    "consumed: needed once an epoch has begun, since indices are drawn ahead; "
                    "use state_after(batches, batch_size)"
                )
            consumed = self.start
        check_range("consumed", consumed, 0, len(self.order))
        self.choose_seed()
        over = consumed > 0 and replace(schedule, rank=0).batch_count(consumed) == 0
        return {**self._identity(self.order), "epoch": self.epoch + over, "consumed": 0 if over else consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where state_dict() was taken, with any batch size and number of ranks or workers. Raises OptionError
        unless `state` is a state of the same order, seed, length and dataset."""
        if not isinstance(state, Mapping) or not {"length", "seed", "epoch", "consumed"} <= {*state}:
            raise OptionError(f"state: expected what state_dict() returned, got {reprlib.repr(state)}")
        order = self.order
        if isinstance(order, Given) and state["consumed"]:
            raise OptionError("state: an epoch of a sampler cannot be resumed midway; give an order as shuffle=")
        if not self._seed_is_given:
            order = with_seed(order, check_range("state: seed", state.get("seed"), 0, MOST_SEED))
        for name, value in self._identity(order).items():
            saved = state.get(name)
            if name == "samples" and saved is None:  # saved by a sampler without a fingerprint
                continue
            if not isinstance(saved, int):
                raise OptionError(f"state: {name}: expected a whole number, got {reprlib.repr(saved)}")
            if saved != value:
                words = _DIFFERENCES[name].format(value=value, saved=saved, epoch=state["epoch"])
                raise OptionError(f"state: {words}")
        epoch = check_range("state: epoch", state.get("epoch"), 0, MOST_SEED)
        consumed = check_range("state: consumed", state.get("consumed"), 0, len(order))
        ranks = self._order_ranks or 1
        if consumed % ranks and consumed != len(order):
            raise OptionError(
                f"state: consumed: expected a multiple of {ranks}, the ranks of the order, got {consumed}"
            )
        self._seed_is_drawn = False
        self._stand_at(epoch, consumed, False, order)
        if isinstance(self.order, Given):
            self.order.set_epoch(epoch)

    def _identity(self, order: Order) -> dict[str, int]:
        """Return the values that a state must share with the order that loads it."""
        identity = {
            "length": len(order),
            "population": order.population,
            "seed": order.seed or 0,
            # The repr has the class, the window and hosts of ShardShuffled, and the CRC of weights or targets.
            "order": zlib.crc32(repr(order).encode()),
        }
        if isinstance(order, ShardShuffled):
            identity["shards"] = order.table
        if self._samples is None and self._fingerprint is not None:
            self._samples = self._fingerprint()
        if self._samples is not None:
            identity["samples"] = self._samples
        return identity


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _rank() -> tuple[int, int]:
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if _distributed() else (0, 1)
