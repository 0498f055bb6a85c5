"""Worker processes or threads that fill slots of shared memory with batches, and the pool that drives them by pipes. A
pipe ends when one side dies; polling finds deaths that leave it open."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch._utils import ExceptionWrapper

from presize.datasets.reading.batch_reader import BatchReader, Skipped, TransformedReader
from presize.datasets.reading.memory import SharedSlots
from presize.errors import LoaderError, OptionError, PresizeError
from presize.options import check_above_0, check_range
from presize.system.child import leave_to_parent, starting_workers
from presize.system.resources import limit_of, usable_cores

Mode = Literal["processes", "threads"]

STARTS_AGAIN = (
    "its own error is above. Unless they are forked, workers run the script again: put code that must run once under "
    'if __name__ == "__main__":'
)
"""Likely reason if a worker died as it started."""

TIMEOUT_S = 300.0
"""Default time that a Loader waits for a worker's batch, as long as a build waits for an image."""

_ENDS_WITHIN_S = 5
_POLL_EVERY_S = 2


def worker_counts(num_workers: int | None, prefetch_factor: int | None) -> tuple[int, int]:
    """Return the number of workers (None: all usable cores) and of batches that each may read ahead (None: 2)."""
    workers = usable_cores() if num_workers is None else num_workers
    ahead = 2 if prefetch_factor is None else prefetch_factor
    return check_range("num_workers", workers, 0, 4096), check_range("prefetch_factor", ahead, 1, 64)


def checked_timeout(timeout: float) -> float:
    if timeout:
        check_above_0("timeout", timeout, "seconds, or 0 to wait forever")
    return timeout or 0


def start_method(multiprocessing_context: str | BaseContext | None) -> str | None:
    """Return the name of the start method of a multiprocessing_context. Raises OptionError for unknown names."""
    name: Any = multiprocessing_context
    if isinstance(multiprocessing_context, BaseContext):
        name = multiprocessing_context.get_start_method()
    methods = multiprocessing.get_all_start_methods()
    if name is not None and name not in methods:
        raise OptionError(f"multiprocessing_context: expected one of {', '.join(methods)}, got {name!r}")
    return name  # type: ignore[no-any-return]


def check_may_start() -> None:
    if multiprocessing.current_process().daemon:
        raise LoaderError(
            "num_workers: this process is a worker itself, of a Pool or a DataLoader, and cannot start processes; use "
            'num_workers=0, or a Loader with mode="threads"'
        )


def check_not_forked(owner: int) -> None:
    """Raise LoaderError in a forked child of process `owner`, which would take its parent's batches."""
    if owner != os.getpid():
        raise LoaderError("this epoch began before the process was forked and belongs to its parent; begin another")


class BatchRequest(NamedTuple):
    """A batch for a worker to read: the slot, the samples, and (seed, epoch, keys), which determine their crops."""

    slot: int
    samples: npt.NDArray[np.int64]
    seed: int
    epoch: int
    keys: npt.NDArray[np.int64]

    def without(self, positions: Sequence[int]) -> BatchRequest:
        if not positions:
            return self
        return self._replace(samples=np.delete(self.samples, positions), keys=np.delete(self.keys, positions))


Reader = BatchReader | TransformedReader


class Work(NamedTuple):
    """Begin and end of reading a batch by time.perf_counter(), one clock for all processes of a machine; CPU time."""

    begin_s: float
    end_s: float
    cpu_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


class Answer(NamedTuple):
    slot: int
    skipped: list[int]  # positions of samples that were left out
    work: Work
    error: PresizeError | ExceptionWrapper | None = None  # wrapped if it is a transform's, with its traceback
    worker: int = 0

    def check(self) -> None:
        error: Any = self.error
        if isinstance(error, ExceptionWrapper):
            error.reraise()  # type: ignore[no-untyped-call]
        if error is not None:
            raise error


_FEWER = "use a smaller num_workers or batch_size"


def read(request: BatchRequest, reader: Reader, slots: SharedSlots) -> Answer:
    begin_s, cpu_s = time.perf_counter(), time.thread_time()
    skipped: list[Skipped] = []
    error: PresizeError | ExceptionWrapper | None = None
    try:
        skipped = reader.read(slots[request.slot], *request[1:])
    except PresizeError as raised:
        error = raised
    except (MemoryError, RuntimeError, cv2.error) as raised:
        why = limit_of(raised)
        if why is None:
            raise
        error = LoaderError(f"a batch cannot be read: {why}; {_FEWER}")
    work = Work(begin_s, time.perf_counter(), time.thread_time() - cpu_s)
    return Answer(request.slot, [sample.position for sample in skipped], work, error)


class WorkerPool:
    """Processes or threads that read batches into slots of shared memory, each with at most `ahead` requests."""

    def __init__(
        self,
        reader: Reader,
        workers: int,
        mode: Mode,
        slots: SharedSlots,
        ahead: int,
        timeout_s: float,
        context: str | None,
    ) -> None:
        self._timeout_s = timeout_s
        self._busy: dict[Connection, int] = {}
        self._ahead = ahead
        self._workers: dict[Connection, Any] = {}
        # Runs before multiprocessing joins its processes at exit, and not in forked children.
        self.close = Finalize(self, _end, (self._workers,), exitpriority=0)
        processes: Any = multiprocessing.get_context(context)
        self._is_forked = processes.get_start_method() == "fork"
        self._has_answered = False
        if mode == "processes":
            check_may_start()
        try:
            for number in range(workers):
                ours, theirs = processes.Pipe()
                self._busy[ours] = 0
                worker: Any
                if mode == "threads":
                    name = f"presize-loader-{number}"
                    worker = threading.Thread(target=_serve, args=(theirs, reader, slots), name=name, daemon=True)
                    worker.start()
                else:
                    # A forked worker would keep the pipes of earlier ones open.
                    inherited = [ours, *self._workers] if self._is_forked else []
                    arguments = (theirs, reader, slots, inherited)
                    worker = processes.Process(target=_serve_process, args=arguments, daemon=True)
                    with starting_workers():
                        worker.start()
                    theirs.close()
                self._workers[ours] = worker
        except BaseException as error:
            why = limit_of(error) if isinstance(error, (OSError, RuntimeError)) else None
            self.close()
            if why is None:
                raise
            raise cannot_start(number, workers, why) from None

    @property
    def is_whole(self) -> bool:
        return all(worker.is_alive() for worker in self._workers.values())

    def has_room(self) -> bool:
        return min(self._busy.values()) < self._ahead

    def send(self, request: BatchRequest) -> None:
        connection = min(self._busy, key=self._busy.__getitem__)
        self._busy[connection] += 1
        try:
            connection.send(request)
        except OSError:
            raise self._died(connection) from None

    def has_answer(self) -> bool:
        return bool(wait(list(self._busy), 0))

    def answers(self) -> Iterator[Answer]:
        """Wait for an answer, and yield all that have arrived. Raises LoaderError if a worker died, or on timeout."""
        poll_s = min(_POLL_EVERY_S, self._timeout_s or _POLL_EVERY_S)
        waited_s = 0.0  # not by a clock: after Ctrl-Z this process may resume before its workers
        while not (ready := wait(list(self._busy), poll_s)):
            for dead in [ours for ours, worker in self._workers.items() if not worker.is_alive()]:
                raise self._died(dead)
            waited_s += poll_s
            if 0 < self._timeout_s <= waited_s:
                raise self._silent()
        for end in ready:
            connection: Any = end
            try:
                answer = connection.recv()
            except (EOFError, OSError):
                raise self._died(connection) from None
            self._busy[connection] -= 1
            self._has_answered = True
            yield answer._replace(worker=list(self._busy).index(connection))

    def _silent(self) -> LoaderError:
        """Return the error that names the workers with unanswered requests."""
        named = ", ".join(
            f"{number} ({f'process {worker.pid}' if hasattr(worker, 'pid') else worker.name})"
            for number, (ours, worker) in enumerate(self._workers.items(), 1)
            if self._busy[ours]
        )
        return LoaderError(
            f"no batch for {self._timeout_s:g} s from worker {named} of {len(self._workers)}: stopped, or waiting "
            "for storage that does not answer; give a larger timeout= if a batch may take longer"
        )

    def _died(self, connection: Connection) -> LoaderError:
        worker = self._workers[connection]
        how = "it ended"
        if not isinstance(worker, threading.Thread):
            worker.join(_ENDS_WITHIN_S)
            code = worker.exitcode
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            if code == 1 and not self._has_answered and not self._is_forked:
                how += f" as it started; {STARTS_AGAIN}"
            if code == -signal.SIGKILL:
                how = "killed by SIGKILL, most often by the OOM killer; try a smaller num_workers or batch_size"
        return LoaderError(f"a loader worker died ({how})")


def cannot_start(number: int, workers: int, why: str) -> LoaderError:
    return LoaderError(f"cannot start worker {min(number + 1, workers)} of {workers}: {why}; use a smaller num_workers")


def _end(workers: dict[Connection, Any]) -> bool:
    """End all workers, and return whether they have ended: a thread may still be reading."""
    for connection, worker in workers.items():
        connection.close()
        if not isinstance(worker, threading.Thread):
            worker.kill()
    for worker in workers.values():
        if worker is not threading.current_thread():  # the garbage collector may run this in a worker
            worker.join(_ENDS_WITHIN_S)
    ended = not any(worker.is_alive() for worker in workers.values())
    workers.clear()
    return ended


def _serve_process(connection: Connection, reader: Reader, slots: SharedSlots, inherited: Sequence[Connection]) -> None:
    leave_to_parent()
    for other in inherited:
        other.close()
    torch.set_num_threads(1)  # per process, so not for workers that are threads
    torch.set_default_device(None)  # a forked worker inherits it but has no accelerator
    driver = os.getppid()
    _serve(connection, reader, slots, lambda: os.getppid() == driver)


def _serve(
    connection: Connection, reader: Reader, slots: SharedSlots, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    cv2.setNumThreads(0)  # per process; one thread a worker is faster overall
    with connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver has ended
        while is_wanted():
            if not connection.poll(_POLL_EVERY_S):
                continue
            request = connection.recv()
            try:
                answer = read(request, reader, slots)
            except Exception:  # send any error of a transform to the caller, as a DataLoader worker does
                error = ExceptionWrapper(where="in a Loader's worker")  # type: ignore[no-untyped-call]
                answer = Answer(request.slot, [], Work(0.0, 0.0, 0.0), error)
            connection.send(answer)
