"""Translates the names of DataLoader's options into ours, and tells Accelerate when an epoch ends."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from presize.datasets.collate import collate
from presize.datasets.reading.order import Last
from presize.datasets.reading.schedule import Schedule
from presize.errors import OptionError

PREFETCH = 2
"""Batches that a worker may be ahead by default, as in a DataLoader."""


def common_options(
    options: dict[str, Any], workers: int | None, prefetch: int, last: Last | None
) -> tuple[int | None, int, Last | None]:
    """`workers`, `prefetch` and `last`, from DataLoader's num_workers, prefetch_factor and drop_last where these were
    given. Takes them out of `options`.

    Raises:
        OptionError: an option was given by both names.
    """
    num_workers, factor = options.pop("num_workers", None), options.pop("prefetch_factor", None)
    drop_last = options.pop("drop_last", False)
    if num_workers is not None:
        if workers is not None:
            raise OptionError("num_workers: it is called workers here; give one of the two")
        workers = num_workers
    if factor is not None:
        if prefetch != PREFETCH:
            raise OptionError("prefetch_factor: it is called prefetch here; give one of the two")
        prefetch = factor
    if drop_last not in (False, True):
        raise OptionError(f"drop_last: expected True or False, got {drop_last!r}")
    if drop_last:
        if last in ("keep", "pad"):
            does = "fills up" if last == "pad" else "keeps"
            raise OptionError(f'drop_last: expected it without last="{last}", which {does} the last batch')
        last = "drop"
    return workers, prefetch, last


_ORDER = "give order=, such as Weighted or class_balanced; ranks share an epoch by themselves"

_ANSWERS = {
    "sampler": f"a Loader takes no sampler; {_ORDER}",
    "batch_sampler": f"a Loader takes no batch_sampler; {_ORDER}",
    "collate_fn": "a Loader calls none, since it decodes into whole batches; use make_loader",
    "worker_init_fn": "a Loader calls none: crops are drawn from seed, and nothing of yours runs in its workers",
    "generator": "a Loader draws from seed=; give that",
    "timeout": "a Loader needs none: it notices when a worker dies; leave it out",
    "in_order": "a Loader gives batches in order; leave it out",
    "persistent_workers": "a Loader's workers stay until close(); leave it out",
    "pin_memory": 'a Loader pins its own memory when it copies batches; give device="cuda" and leave it out',
    "pin_memory_device": "a Loader pins its own memory when it copies batches; give device=",
}

_SAME: dict[str, tuple[Any, ...]] = {
    "collate_fn": (None, collate),
    "timeout": (0, None),
    "in_order": (True,),
    "persistent_workers": (True,),
    "pin_memory_device": ("", None),
}
"""Values with which a DataLoader does what a Loader does anyway; None for other names."""


def check_loader_options(options: Mapping[str, Any], context: str | None, device: torch.device) -> str | None:
    """The start method of workers, from DataLoader's multiprocessing_context where that was given.

    Args:
        options: DataLoader's other options, by name.
        context: the Loader's.
        device: the Loader's.

    Raises:
        OptionError: an option asks for something that a Loader does not do.
        TypeError: DataLoader has no such option either.
    """
    for name, value in options.items():
        if name == "multiprocessing_context":
            if value is not None:
                context = value.get_start_method() if hasattr(value, "get_start_method") else value
        elif name == "pin_memory":
            if value and device.type != "cuda" and torch.cuda.is_available():
                raise OptionError(f"pin_memory: {_ANSWERS[name]}")
        elif name not in _ANSWERS:
            raise TypeError(f"Loader() got an unexpected keyword argument {name!r}")
        elif value not in _SAME.get(name, (None,)):
            raise OptionError(f"{name}: {_ANSWERS[name]}")
    methods = multiprocessing.get_all_start_methods()
    if context is not None and context not in methods:
        raise OptionError(f"context: expected one of {', '.join(methods)}, got {context!r}")
    return context


def check_make_loader_options(options: dict[str, Any]) -> None:
    """Raise OptionError for options of DataLoader that make_loader does not pass on, unless they are None."""
    for name in ("sampler", "batch_sampler"):
        if options.pop(name, None) is not None:
            raise OptionError(
                f"{name}: make_loader takes order=; for a {name} use DataLoader(dataset, {name}=..., "
                "collate_fn=presize.datasets.collate)"
            )


class EpochStatus:
    """The part of Accelerate's DataLoaderStateMixin that its GradientState reads from the loader of a running epoch.

    Attributes:
        end_of_dataloader: whether the last batch was handed out.
        remainder: samples of all ranks in the last batch, if it is not full; otherwise 0.
    """

    def __init__(self, remainder: int) -> None:
        self.end_of_dataloader = False
        self.remainder = remainder


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


def gathered(schedule: Schedule, start: int) -> Schedule:
    """A schedule by which Accelerate can gather the last batches of all ranks, and cut off what fills them up.

    Raises:
        OptionError: the last batches of an epoch begun at `start` have different sizes.
    """
    state = _accelerates("PartialState")
    if state is None or schedule.ranks == 1 or schedule.ranks != state.num_processes:
        return schedule
    if schedule.last == "keep" and schedule.remainder(start) % schedule.ranks:
        raise OptionError(
            'last: "keep" gives the ranks batches of different sizes, on which Accelerate\'s gather() fails; give '
            'last="pad", whose repeated samples gather_for_metrics() leaves out, or last="drop"'
        )
    return replace(schedule, in_blocks=True)


def _accelerates(name: str) -> Any:
    """A singleton of Accelerate's state, or None where no Accelerator was made."""
    kind = getattr(sys.modules.get("accelerate.state"), name, None)
    return kind() if kind is not None and kind._shared_state else None
