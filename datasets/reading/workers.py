"""Processes or threads that fill slots of shared memory with batches, and the driver's side of them.

Each worker has a pipe of its own: requests go one way, answers the other, pixels through shared memory. When one side
dies, the other one's pipe ends; where a process that was forked meanwhile holds it open, polling finds out.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, Literal, NamedTuple, NoReturn

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch._utils import ExceptionWrapper

from presize.datasets.reading.batch_reader import BatchReader, Skipped
from presize.datasets.reading.slots import SharedSlots
from presize.datasets.reading.transformed_reader import TransformedReader
from presize.errors import LoaderError, OptionError, PresizeError
from presize.options import check_range
from presize.system.resources import usable_cores

Mode = Literal["processes", "threads"]

_ENDS_WITHIN_S = 5
_POLL_EVERY_S = 2


def worker_counts(num_workers: int | None, prefetch_factor: int | None) -> tuple[int, int]:
    """How many workers there are, all cores that this process may use for None, and how many batches each may be ahead,
    2 for None, as in a DataLoader. Raises OptionError for numbers that are out of range."""
    workers = usable_cores() if num_workers is None else num_workers
    ahead = 2 if prefetch_factor is None else prefetch_factor
    check_range("num_workers", workers, 0, 4096)
    check_range("prefetch_factor", ahead, 1, 64)
    return workers, ahead


def start_method(multiprocessing_context: str | BaseContext | None) -> str | None:
    """The name of the start method of a DataLoader's multiprocessing_context. Raises OptionError for any other name."""
    name: Any = multiprocessing_context
    if isinstance(multiprocessing_context, BaseContext):
        name = multiprocessing_context.get_start_method()
    methods = multiprocessing.get_all_start_methods()
    if name is not None and name not in methods:
        raise OptionError(f"multiprocessing_context: expected one of {', '.join(methods)}, got {name!r}")
    return name  # type: ignore[no-any-return]


class BatchRequest(NamedTuple):
    """A batch for a worker to read: the samples, their slot, and what decides their crops (seed, epoch, keys)."""

    slot: int
    samples: npt.NDArray[np.int64]
    seed: int
    epoch: int
    keys: npt.NDArray[np.int64]

    def without(self, positions: Sequence[int]) -> BatchRequest:
        """The same batch, samples at `positions` left out."""
        if not positions:
            return self
        return self._replace(samples=np.delete(self.samples, positions), keys=np.delete(self.keys, positions))


Reader = BatchReader | TransformedReader


class Work(NamedTuple):
    """When a batch was made, by time.perf_counter(), one clock for all processes of a machine, and its CPU time."""

    begin_s: float
    end_s: float
    cpu_s: float

    @property
    def seconds(self) -> float:
        """Wall time."""
        return self.end_s - self.begin_s


class Answer(NamedTuple):
    """A batch is ready, or could not be read, as a worker sends it.

    Attributes:
        slot: where it is.
        skipped: positions of samples that were left out.
        work: when it was made.
        error: why it could not be read; wrapped if it is a transform's, with its traceback.
        worker: which one made it, from 0.
    """

    slot: int
    skipped: list[int]
    work: Work
    error: PresizeError | ExceptionWrapper | None = None
    worker: int = 0

    def raise_error(self) -> NoReturn:
        """Raise `error`, which is not None."""
        error: Any = self.error
        if isinstance(error, ExceptionWrapper):
            error.reraise()  # type: ignore[no-untyped-call]
        raise error


def read(request: BatchRequest, reader: Reader, slots: SharedSlots, skip: bool) -> Answer:
    """Read a batch in this thread."""
    begin_s, cpu_s = time.perf_counter(), time.thread_time()
    skipped: list[Skipped] = []
    error: PresizeError | ExceptionWrapper | None = None
    try:
        skipped = reader.read(
            slots[request.slot], request.samples, request.seed, request.epoch, request.keys, skip=skip
        )
    except PresizeError as raised:
        error = raised
    work = Work(begin_s, time.perf_counter(), time.thread_time() - cpu_s)
    return Answer(request.slot, [sample.position for sample in skipped], work, error)


class WorkerPool:
    """`workers` processes or threads that read batches into slots of shared memory.

    Args:
        reader: what they read with.
        workers: how many, from 1.
        mode: "processes" or "threads".
        slots: where batches go.
        ahead: requests that a worker may have at a time.
        skip: whether to leave out damaged images.
        context: start method of processes: "fork", "spawn" or "forkserver"; None is Python's default.
    """

    def __init__(
        self,
        reader: Reader,
        workers: int,
        mode: Mode,
        slots: SharedSlots,
        *,
        ahead: int,
        skip: bool,
        context: str | None = None,
    ) -> None:
        self._busy: dict[Connection, int] = {}
        self._numbers: dict[Connection, int] = {}
        self._ahead = ahead
        self._workers: dict[Connection, Any] = {}
        self.close = weakref.finalize(self, _end, os.getpid(), self._workers)
        processes: Any = multiprocessing.get_context(context)
        try:
            for number in range(workers):
                ours, theirs = processes.Pipe()
                self._busy[ours] = 0
                self._numbers[ours] = number
                worker: Any
                if mode == "threads":
                    name = f"presize-loader-{number}"
                    worker = threading.Thread(target=_serve, args=(theirs, reader, slots, skip), name=name, daemon=True)
                    worker.start()
                else:
                    # A forked sibling would keep the pipes of the others open.
                    inherited = [ours, *self._workers] if processes.get_start_method() == "fork" else []
                    arguments = (theirs, reader, slots, skip, inherited)
                    worker = processes.Process(target=_serve_process, args=arguments, daemon=True)
                    worker.start()
                    theirs.close()
                self._workers[ours] = worker
        except BaseException:
            self.close()
            raise

    def has_room(self) -> bool:
        """Whether a worker may get another request."""
        return min(self._busy.values()) < self._ahead

    def send(self, request: BatchRequest) -> None:
        """Send a request to the least busy worker. Raises LoaderError when that has died."""
        connection = min(self._busy, key=self._busy.__getitem__)
        self._busy[connection] += 1
        try:
            connection.send(request)
        except OSError:
            raise self._died(connection) from None

    def answers(self) -> Iterator[Answer]:
        """Wait for an answer, and give all that are there. Raises LoaderError when a worker died."""
        while not (ready := wait(list(self._busy), _POLL_EVERY_S)):
            for dead in [ours for ours, worker in self._workers.items() if not worker.is_alive()]:
                raise self._died(dead)
        for end in ready:
            connection: Any = end
            try:
                answer = connection.recv()
            except (EOFError, OSError):
                raise self._died(connection) from None
            self._busy[connection] -= 1
            yield answer._replace(worker=self._numbers[connection])

    def _died(self, connection: Connection) -> LoaderError:
        worker = self._workers[connection]
        how = "it ended"
        if not isinstance(worker, threading.Thread):
            worker.join(_ENDS_WITHIN_S)
            code = worker.exitcode
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            if code == -signal.SIGKILL:
                how = "killed by SIGKILL, most often by the OOM killer; try fewer num_workers or a smaller batch_size"
        return LoaderError(f"a loader worker died ({how})")


def _end(owner: int, workers: dict[Connection, Any]) -> None:
    """End all workers. Does nothing in a forked child that inherited them."""
    if os.getpid() != owner:
        return
    for connection, worker in workers.items():
        connection.close()
        if not isinstance(worker, threading.Thread):
            worker.terminate()
    for worker in workers.values():
        if worker is not threading.current_thread():  # where the garbage collector may run this
            worker.join(_ENDS_WITHIN_S)
        if not isinstance(worker, threading.Thread) and worker.is_alive():
            worker.kill()
            worker.join()
    workers.clear()


def _serve_process(
    connection: Connection, reader: Reader, slots: SharedSlots, skip: bool, inherited: Sequence[Connection]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the terminal is for the driver, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    torch.set_num_threads(1)  # per process, so not where workers are threads of the caller's
    driver = os.getppid()
    _serve(connection, reader, slots, skip, lambda: os.getppid() == driver)


def _serve(
    connection: Connection,
    reader: Reader,
    slots: SharedSlots,
    skip: bool,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Read what is requested until the pipe ends."""
    cv2.setNumThreads(0)  # per process; one thread a worker is faster overall
    with connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver is gone
        while is_wanted():
            if not connection.poll(_POLL_EVERY_S):
                continue
            request = connection.recv()
            try:
                answer = read(request, reader, slots, skip)
            except Exception:  # whatever a transform raises goes to the caller, as from a DataLoader's worker
                error = ExceptionWrapper(where="in a Loader's worker")  # type: ignore[no-untyped-call]
                answer = Answer(request.slot, [], Work(0.0, 0.0, 0.0), error)
            connection.send(answer)
