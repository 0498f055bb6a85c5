"""make_loader: a plain DataLoader with fast settings, whose position in an epoch is a few integers."""

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
from presize.formatting import size_text
from presize.options import check_range
from presize.system.resources import usable_cores

SHARED_MEMORY = "/dev/shm"


class CountingLoader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that counts the batches it has handed out.

    state_dict(), load_state_dict() and set_epoch() act on its sampler, an EpochSampler.
    """

    sampler: EpochSampler
    delivered = 0

    def __iter__(self) -> Any:
        # A generator, so that the count begins with the epoch, which workers begin at once.
        batches = super().__iter__()
        self.delivered = 0
        for batch in batches:
            self.delivered += 1  # before the yield: a batch handed out counts as consumed
            yield batch
            del batch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next to be read; without this, epochs follow one another."""
        self.sampler.set_epoch(epoch)
        self.delivered = 0

    def state_dict(self) -> dict[str, int]:
        """The position after the last batch that was handed out, as a few integers."""
        return self.sampler.state_after(self.delivered, self.batch_size or 1)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where state_dict() was taken, with any number of workers or ranks or another batch size."""
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
    """A DataLoader over `dataset`, fastest with an LMDBDataset that has a crop and decode="tensor".

    Workers live from epoch to epoch and have one thread each. Memory is pinned where there is CUDA.

    Args:
        dataset: any map-style dataset with a length.
        batch_size: samples in a batch, from 1.
        workers: how many processes; None uses every core this process may use, 0 reads in the caller's process.
        prefetch: batches that each worker may be ahead, 1 to 64, in shared memory.
        shuffle, seed, order, last, rank, ranks: as in Loader.
        options: further arguments of DataLoader, which take precedence.

    Raises:
        OptionError: an option is out of range.
        LoaderError: the batches of all workers do not fit into /dev/shm, so that a worker would die by SIGBUS in the
            middle of an epoch.
    """
    check_range("batch_size", batch_size, 1, 2**31)
    check_range("prefetch", prefetch, 1, 64)
    if workers is None:
        workers = usable_cores()
    check_range("workers", workers, 0, 4096)
    length = len(dataset)  # type: ignore[arg-type]
    order = choose_order(length, shuffle, seed, order)
    if workers:
        if hasattr(dataset, "dev_shm_bytes"):  # an LMDBDataset, or another that can tell
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
            f"{SHARED_MEMORY} has {size_text(free)} free, and {batches} batches of {size_text(batch_bytes)} have to go "
            "there; choose fewer workers, less prefetch or a smaller batch_size, give a container more (docker run "
            '--shm-size), or use crop= and decode="tensor", which need next to none'
        )
