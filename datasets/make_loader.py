"""make_loader: a plain DataLoader with what makes it fast, and its place in an epoch as a few integers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

import cv2
import torch
import torch.utils.data

from presize.datasets.collate import collate
from presize.datasets.reading.order import Last, Order, choose_order
from presize.datasets.sampler import EpochSampler
from presize.errors import LoaderError
from presize.options import check_range
from presize.system.resources import usable_cores

SHARED_MEMORY = "/dev/shm"


class CountingLoader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that knows how many batches its caller has taken.

    state_dict(), load_state_dict() and set_epoch() are those of its sampler, an EpochSampler.
    """

    sampler: EpochSampler
    delivered = 0

    def __iter__(self) -> Any:
        # A generator, so that the epoch, which workers begin at once, and the count begin together.
        batches = super().__iter__()
        self.delivered = 0
        for batch in batches:
            self.delivered += 1  # before the caller has it: what he has, he has consumed
            yield batch
            del batch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next to be read; without this each one is followed by the next."""
        self.sampler.set_epoch(epoch)
        self.delivered = 0

    def state_dict(self) -> dict[str, int]:
        """Where the caller stands, as a few integers: after the batch that was handed out last."""
        return self.sampler.state_after(self.delivered, self.batch_size or 1)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where state_dict() was taken, with any number of workers, ranks or another batch size."""
        self.sampler.load_state_dict(state)
        self.delivered = 0


def make_loader(
    dataset: torch.utils.data.Dataset[Any],
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    order: Order | None = None,
    workers: int | None = None,
    prefetch: int = 2,
    last: Last = "keep",
    rank: int | None = None,
    ranks: int | None = None,
    **options: Any,
) -> CountingLoader:
    """A DataLoader over `dataset`, any with a length, but best an LMDBDataset with crop and decode="tensor".

    workers: None uses every core this process may use. They stay from epoch to epoch, have one thread each,
        and `prefetch` batches each in shared memory. Memory is pinned where there is CUDA.
    shuffle, seed, order, last, rank, ranks: as in Loader. options: any others of DataLoader.

    Raises LoaderError when the batches of all workers do not fit into /dev/shm, which would otherwise kill a
    worker by SIGBUS in the middle of an epoch.
    """
    check_range("batch_size", batch_size, 1, 2**31)
    check_range("prefetch", prefetch, 1, 64)
    if workers is None:
        workers = usable_cores()
    check_range("workers", workers, 0, 4096)
    length = len(dataset)  # type: ignore[arg-type]
    order = choose_order(length, shuffle, seed, order)
    if workers:
        if hasattr(dataset, "dev_shm_bytes"):  # an LMDBDataset, and what tells it as that does
            _check_shared_memory(dataset.dev_shm_bytes(batch_size), workers * prefetch)
        options = {"persistent_workers": True, "prefetch_factor": prefetch, **options}
    options = {"pin_memory": torch.cuda.is_available(), "collate_fn": collate, **options}
    return CountingLoader(
        dataset,
        batch_size,
        sampler=EpochSampler(order, rank=rank, ranks=ranks, batch_size=batch_size, last=last),
        num_workers=workers,
        worker_init_fn=options.pop("worker_init_fn", _one_thread),
        **options,
    )


def _one_thread(worker: int) -> None:  # noqa: ARG001
    cv2.setNumThreads(0)  # torch limits its own, not OpenCV's


def _check_shared_memory(batch_bytes: int, batches: int) -> None:
    if not os.path.isdir(SHARED_MEMORY):  # not Linux
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    if batch_bytes * batches > free:
        raise LoaderError(
            f"{SHARED_MEMORY} has {free / 1e6:.0f} MB free, and {batches} batches of {batch_bytes / 1e6:.3g} MB have "
            "to go there: choose fewer workers, less prefetch or a smaller batch_size, give a container more "
            '(docker run --shm-size), or read batches as one, with crop= and decode="tensor", which need next to none'
        )
