"""Hugging Face's Accelerate: tells it when an epoch ends, and makes the last batches such as it can gather."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from presize.datasets.reading.order import Schedule
from presize.errors import OptionError


@dataclass(eq=False)
class EpochStatus:
    """The part of Accelerate's DataLoaderStateMixin that its GradientState reads from the loader of a running epoch."""

    remainder: int  # samples of all ranks in the last batch, if it is not full; otherwise 0
    end_of_dataloader: bool = False  # whether the last batch was handed out


@contextmanager
def seen_by_accelerate(remainder: int) -> Iterator[EpochStatus]:
    """The status of an epoch, which Accelerate reads if there is an Accelerator: its accumulate() and
    gather_for_metrics() need the end, and prepare() passes on a Loader as it is."""
    status, state = EpochStatus(remainder), _accelerates("GradientState")
    if state is not None:
        state._add_dataloader(status)
    try:
        yield status
    finally:
        if (state := _accelerates("GradientState")) is not None:
            state._remove_dataloader(status)


def gatherable(schedule: Schedule, start: int) -> Schedule:
    """A schedule by which Accelerate can gather the last batches of all ranks, and cut off what fills them up. Raises
    OptionError if those of an epoch begun at `start` have different sizes."""
    state = _accelerates("PartialState")
    if state is None or schedule.ranks == 1 or schedule.ranks != state.num_processes:
        return schedule
    if schedule.last == "keep" and schedule.remainder(start) % schedule.ranks:
        raise OptionError(
            'last: "keep" gives the ranks batches of different sizes, on which Accelerate\'s gather() fails; give '
            'last="pad", whose repeated samples gather_for_metrics() leaves out, or drop_last=True'
        )
    return replace(schedule, in_blocks=True)


def _accelerates(name: str) -> Any:
    """A singleton of Accelerate's state, or None where no Accelerator was made."""
    kind = getattr(sys.modules.get("accelerate.state"), name, None)
    return kind() if kind is not None and kind._shared_state else None
