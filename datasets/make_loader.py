"""make_loader: a plain DataLoader with fast settings, which can resume from a few integers."""

from __future__ import annotations

import mmap
import multiprocessing
import multiprocessing.queues
import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn, Unpack

import cv2
import torch
import torch.utils.data
from torch._utils import ExceptionWrapper

from presize.datasets.collate import collate, cpu_by_default
from presize.datasets.dataset import LMDBDataset
from presize.datasets.read_only import DataLoaderOptions
from presize.datasets.reading.memory import send_without_descriptors
from presize.datasets.reading.order import Last, Order, choose_order
from presize.datasets.reading.transfer import accelerator
from presize.datasets.reading.workers import (
    STARTS_AGAIN,
    cannot_start,
    check_may_start,
    check_not_forked,
    checked_timeout,
    start_method,
    worker_counts,
)
from presize.datasets.sampler import EpochSampler
from presize.datasets.subsets import (
    as_lmdb_dataset,
    check_labels,
    check_length,
    differ,
    fingerprint_of,
    keep_assigned,
    sampler_of,
    state_of,
    transforms_of,
)
from presize.errors import LoaderError, OptionError, PresizeError
from presize.formatting import plural, size_text
from presize.options import check_function, check_range
from presize.system.child import FOR_PARENTS, leave_to_parent, starting_workers
from presize.system.resources import is_asynchronous, limit_of

SHARED_MEMORY = "/dev/shm"

_POLL_S = 1.0

_SEMAPHORES_BYTES = 4 * mmap.PAGESIZE
"""Size of the semaphores that a DataLoader keeps in SHARED_MEMORY for each worker; its own need twice as much."""

_FIX = (
    f"free some of {SHARED_MEMORY}, or make it larger and writable (docker run --shm-size), or use num_workers=0, or a "
    "presize.datasets.Loader, which does not need it"
)
_END = object()
_TORCH_SAYS = ("shared memory", "/torch_", "torch_shm_manager")


class CountingLoader(torch.utils.data.DataLoader[Any]):
    sampler: EpochSampler
    delivered = 0
    _source: Any = None  # the dataset as given, such as a Subset
    _derived: Mapping[str, Any] = {}  # the transforms of the dataset that was made of it
    _states: tuple[Sequence[Any], Sequence[Any]] = ((), ())  # of dataset and _source when the workers started

    def __iter__(self) -> Any:
        # A generator, so that the count and the workers, which read ahead at once, start with the first batch.
        self._follow_changes()
        self.delivered = 0
        batches: Any = None
        while True:
            try:
                batches = self._begin() if batches is None else batches
                batch = next(batches, _END)
            except BaseException as error:
                self._end_workers(batches)  # else the next epoch would get their answers to this one
                self._raise_clearly(error)
                raise
            if batch is _END:
                return
            self.delivered += 1  # before the yield: a batch counts as consumed when it is returned
            yield batch
            del batch

    def _follow_changes(self) -> None:
        """Stop persistent workers if the dataset has changed since they started, or one of them has died."""
        is_derived = self._source is not self.dataset
        own = state_of(self.dataset) if is_derived else ()
        source = state_of(self._source)
        if isinstance(self._iterator, _Workers) and self._iterator.owner != os.getpid():
            self._iterator = None  # the parent's
        workers = self._iterator._workers if isinstance(self._iterator, _Workers) else ()
        if differ(self._states[1], source):
            if is_derived:
                dataset = as_lmdb_dataset(self._source)
                check_length(dataset, self.sampler.order.population)
                derived = transforms_of(dataset)
                keep_assigned(dataset, self.dataset, self._derived)
                vars(self)["dataset"], self._derived = dataset, derived
                own = state_of(dataset)
                self.sampler.fingerprint = fingerprint_of(dataset)
        elif not differ(self._states[0], own) and all(worker.is_alive() for worker in workers):
            return
        self._end_workers()
        self._states = own, source

    def _begin(self) -> Any:
        if self.num_workers and self._iterator is None:
            check_may_start()
            context: Any = self.multiprocessing_context or multiprocessing
            try:
                context.Semaphore()
            except OSError as error:
                why = f"{SHARED_MEMORY}: {error.strerror}, and a DataLoader's workers need it; {_FIX}"
                raise LoaderError(why) from None
        self.sampler.choose_seed()  # before torch draws the seed of its workers, so that it is Loader's
        rank, given = self.sampler.schedule.rank, self.generator
        if rank and self._iterator is None:
            drawn = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=given))
            self.generator = torch.Generator().manual_seed(drawn + rank)
        try:
            with starting_workers(), cpu_by_default():  # for the seed, and in forked workers
                return super().__iter__()
        finally:
            self.generator = given

    def _end_workers(self, batches: object = None) -> None:
        ended, self._iterator = self._iterator, None
        for iterator in (ended, batches):
            if isinstance(iterator, _Workers):
                iterator._shutdown_workers()

    def _raise_clearly(self, error: BaseException) -> None:
        """Raise a one-line error for presize's errors in workers, and torch's about shared memory or dead workers."""
        message = str(error).strip().rpartition("\n")[2]
        if isinstance(error, PresizeError) and message.startswith(f"{type(error).__module__}."):
            raise type(error)(message.partition(": ")[2]) from None
        if isinstance(error, (ConnectionError, EOFError)) and not str(error).startswith("Caught "):
            raise LoaderError("a DataLoader worker died while sending a batch") from None
        if isinstance(error, RuntimeError) and any(words in message for words in _TORCH_SAYS):
            raise LoaderError(f"{message.removeprefix('RuntimeError: ')}; {_FIX}") from None
        context: Any = self.multiprocessing_context or multiprocessing
        if "exited unexpectedly" in message and not self.delivered and context.get_start_method() != "fork":
            raise LoaderError(f"a DataLoader worker died as it started; {STARTS_AGAIN}") from None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_iterator": None}  # without workers

    def _get_iterator(self) -> Any:
        return _Workers(self) if self.num_workers else super()._get_iterator()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Read by Accelerate's prepare(), which would divide the batches of this rank among all ranks again."""
        if self.sampler.schedule.ranks > 1:
            raise OptionError(
                "rank: Accelerate divides batches among ranks itself; give make_loader rank=0, ranks=1, or use Loader"
            )
        return False

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one to read; otherwise epochs follow one another."""
        self.sampler.set_epoch(epoch)
        self.delivered = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch that was returned, as a few integers. Raises OptionError in the
        middle of an epoch with in_order=False."""
        delivered = self.delivered if self.sampler.begun else 0
        is_midway = 0 < delivered < self.sampler.schedule.batch_count(self.sampler.start)
        if is_midway and self.num_workers > 1 and not getattr(self, "in_order", True):  # torch before 2.6 lacks it
            raise OptionError(
                "in_order: without order, the batches so far are not the first ones of the epoch, and resuming would "
                "repeat some and leave out others; save a state between epochs, or leave in_order out"
            )
        return self.sampler.state_after(delivered, self.batch_size or 1)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where state_dict() was taken, with any batch size and number of workers or ranks."""
        self._follow_changes()
        self.sampler.load_state_dict(state)
        self.delivered = 0


class _Workers(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
    """torch's workers. If one cannot be started, the others are killed and a one-line error is raised. A forked child
    leaves them to its parent."""

    _shutdown = True  # for __del__, until there is something to shut down

    def __init__(self, loader: CountingLoader) -> None:
        self.owner = os.getpid()
        loader.check_worker_number_rationality()
        self._workers: list[Any] = []
        try:
            super().__init__(loader)
        except (OSError, RuntimeError) as error:
            why, number = limit_of(error), len(self._workers)
            self._shutdown = True
            for worker in self._workers:
                worker.kill()
                worker.join()
            if why is None:
                raise
            raise cannot_start(number, loader.num_workers, why) from None

    def _next_data(self) -> Any:
        check_not_forked(self.owner)
        return super()._next_data()  # type: ignore[no-untyped-call]

    def _shutdown_workers(self) -> None:
        if self.owner == os.getpid():  # ending them sets an event that is shared with the parent
            super()._shutdown_workers()


def make_loader(
    dataset: torch.utils.data.Dataset[Any],
    batch_size: int,
    *,
    shuffle: bool | Order | None = False,
    seed: int | None = None,
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    drop_last: bool = False,
    last: Last | None = None,
    rank: int | None = None,
    ranks: int | None = None,
    sampler: None = None,
    timeout: float = 0,
    multiprocessing_context: str | BaseContext | None = None,
    **options: Unpack[DataLoaderOptions],
) -> CountingLoader:
    """Return a DataLoader over `dataset`, fastest for an LMDBDataset with a crop and decode="tensor".

    Workers persist between epochs and use one thread each. Memory is pinned if there is a CUDA, ROCm or XPU device.

    Args:
        dataset: any map-style dataset with a length. A Subset or ConcatDataset of LMDBDatasets is read as one
            LMDBDataset with the same samples.
        timeout: seconds to wait for a batch, as in DataLoader; 0 waits forever. The other arguments are Loader's.
        options: DataLoader's other options; they override make_loader's settings.

    Raises:
        OptionError: an option is out of range, or one label means several classes in a ConcatDataset.
        LoaderError: batches do not fit into /dev/shm; while iterating, when it is full or read-only.
    """
    if isinstance(dataset, (str, os.PathLike)):
        raise OptionError(f"dataset: expected a dataset, got a path; give LMDBDataset({os.fspath(dataset)!r})")
    if isinstance(dataset, (torch.utils.data.IterableDataset, type)) or not hasattr(dataset, "__len__"):
        raise OptionError(
            f"dataset: expected one with a length, got {type(dataset).__name__}; for an IterableDataset use "
            "DataLoader(dataset, batch_size, collate_fn=presize.datasets.collate)"
        )
    given: dict[str, Any] = {**options}
    for name, value in (("sampler", sampler), ("batch_sampler", given.pop("batch_sampler", None))):
        if value is not None:
            raise OptionError(
                f"{name}: make_loader takes an order as shuffle=; for a {name} use DataLoader(dataset, {name}=..., "
                "collate_fn=presize.datasets.collate)"
            )
    for name in ("collate_fn", "worker_init_fn"):
        check_function(name, given.get(name))
    start_method(multiprocessing_context)
    workers, ahead = worker_counts(num_workers, prefetch_factor)
    batch_size = check_range("batch_size", batch_size, 1, 2**31)
    check_labels(dataset)
    source = dataset
    with suppress(OptionError):  # other datasets are read as they are
        dataset = as_lmdb_dataset(dataset)
    order = choose_order(len(dataset), shuffle, seed)
    timeout = checked_timeout(timeout)
    if workers:
        if hasattr(dataset, "dev_shm_bytes"):  # an LMDBDataset, or a dataset with the same method
            _check_shared_memory(dataset, batch_size, workers, ahead)
        given = {"persistent_workers": True, "prefetch_factor": ahead, "timeout": timeout, **given}
        given["multiprocessing_context"] = multiprocessing_context
    here = accelerator()
    given = {"pin_memory": here is not None and is_asynchronous(here.type), "collate_fn": collate, **given}
    loader = CountingLoader(
        dataset,
        batch_size,
        sampler=sampler_of(dataset, order, batch_size, rank, ranks, drop_last, last),
        drop_last=bool(drop_last),  # without effect, since the sampler drops samples; Accelerate reads it
        num_workers=workers,
        worker_init_fn=partial(_begin_worker, given.pop("worker_init_fn", None)),
        **given,
    )
    loader._source, loader._states = source, (() if dataset is source else state_of(dataset), state_of(source))
    loader._derived = {} if dataset is source else transforms_of(dataset)
    return loader


def _begin_worker(begin: Callable[[int], object] | None, worker: int) -> None:
    leave_to_parent(FOR_PARENTS - {signal.SIGTERM})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # received by the thread below
    with suppress(RuntimeError):  # the limit on threads is reached; _put() reports it
        threading.Thread(target=_end_with_consumer, name="presize-watch-consumer", daemon=True).start()
    cv2.setNumThreads(0)  # torch limits its own threads, not OpenCV's
    send_without_descriptors()
    multiprocessing.queues.Queue._on_queue_feeder_error = _undelivered  # type: ignore[attr-defined]
    multiprocessing.queues.Queue.put = _put  # type: ignore[assignment, method-assign]
    if begin is not None:
        begin(worker)


def _end_with_consumer() -> None:
    """End this worker when the consumer ends, even by SIGKILL, or sends SIGTERM. SIGTERM from any other process is
    ignored: the consumer handles it. Under forkserver torch watches the server instead, which lives as long as its
    workers."""
    consumer = multiprocessing.parent_process()
    told = None
    while consumer is not None and consumer.is_alive() and (told is None or told.si_pid != consumer.pid):
        told = signal.sigtimedwait([signal.SIGTERM], _POLL_S)
    os._exit(0 if told else 1)


def _undelivered(queue: Any, error: Exception, batch: tuple[Any, Any]) -> None:
    """Send the consumer the error instead of the batch. Python would only print it, and the consumer wait forever."""
    undelivered = batch[0], _Undelivered(error)
    if limit_of(error) is None:
        queue.put(undelivered)
        return
    queue._sem.acquire(False)  # the queue's thread has released it, and the receiver will, too
    with queue._wlock:  # sent from here, and nothing after it, since the queue's thread cannot be started
        queue._writer.send_bytes(ForkingPickler.dumps(undelivered))
    os._exit(0)


def _put(queue: Any, batch: tuple[Any, Any], put: Callable[..., None] = multiprocessing.queues.Queue.put) -> None:
    try:
        put(queue, batch)
    except RuntimeError as error:
        _undelivered(queue, error, batch)


class _Undelivered(ExceptionWrapper):
    """An error sent in place of a batch; the DataLoader raises it in the consumer."""

    def __init__(self, why: Exception) -> None:
        worker, limit = torch.utils.data.get_worker_info(), limit_of(why)
        self.error: Exception = RuntimeError(f"a DataLoader worker cannot send a batch: {why}")
        if worker is not None and limit is not None:
            self.error = cannot_start(worker.id, worker.num_workers, limit)

    def reraise(self) -> NoReturn:
        raise self.error


def _check_shared_memory(dataset: Any, batch_size: int, workers: int, ahead: int) -> None:
    if not os.path.isdir(SHARED_MEMORY):  # not Linux
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    batch_bytes, batches = dataset.dev_shm_bytes(batch_size), workers * ahead
    pages = -(-batch_bytes // mmap.PAGESIZE)
    needed = batches * pages * mmap.PAGESIZE + _SEMAPHORES_BYTES * (workers + 2)
    if needed > free:
        raise LoaderError(
            f"{SHARED_MEMORY} has {size_text(free)} free, and {plural(batches, 'batch', 'batches')} of "
            f"{size_text(batch_bytes)} need {size_text(needed)} there; choose a smaller num_workers, prefetch_factor "
            f"or batch_size, or give a container more (docker run --shm-size){_smaller_batches(dataset)}"
        )


def _smaller_batches(dataset: Any) -> str:
    if not isinstance(dataset, LMDBDataset):
        return ""
    images, rest = dataset._reading.images, dataset._reading.rest
    lacks = ["crop="] if images.reader is None else []
    lacks += ['decode="tensor"'] if images.decode != "tensor" else []
    if rest is not None:
        lacks.append("no transform (call it on batches in the training loop)")
    return f"; batches need almost none with {' and '.join(lacks)}" if lacks else ""
