"""Processes, or threads, that fill slots of shared memory with batches, and their driver's side of it.

Each worker has a pipe of its own: tasks go one way, answers the other, pixels through shared memory. When
one side dies the other one's pipe ends; where a process that was forked meanwhile holds it open, a look every
few seconds tells.
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
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.reading.batches import BatchReader
from presize.datasets.reading.slots import SharedSlots
from presize.errors import LoaderError, PresizeError

Mode = Literal["processes", "threads"]

_ENDS_WITHIN_S = 5
_LOOKS_EVERY_S = 2


class BatchRequest(NamedTuple):
    """One batch to read: into which slot, which samples, and what decides their crops."""

    slot: int
    samples: npt.NDArray[np.int64]
    seed: int
    epoch: int
    keys: npt.NDArray[np.int64]


class Work(NamedTuple):
    """When a batch was made, as time.perf_counter has it, which is one clock for all processes of a machine; and the
    seconds of CPU that this took."""

    begin_s: float
    end_s: float
    cpu_s: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.begin_s


class Answer(NamedTuple):
    """The batch in `slot` is there, less the positions `skipped` of its samples; or why it is not. worker: who made
    it, from 0."""

    slot: int
    skipped: list[int]
    work: Work
    error: PresizeError | None = None
    worker: int = 0


def read(task: BatchRequest, reader: BatchReader, slots: SharedSlots, skip: bool) -> Answer:
    """Do a task in this very thread."""
    begin_s, cpu_s = time.perf_counter(), time.thread_time()
    skipped, error = [], None
    try:
        skipped = reader.read(slots[task.slot], task.samples, task.seed, task.epoch, task.keys, skip=skip)
    except PresizeError as raised:
        error = raised
    work = Work(begin_s, time.perf_counter(), time.thread_time() - cpu_s)
    return Answer(task.slot, [sample.position for sample in skipped], work, error)


class WorkerPool:
    """`workers` processes or threads that read batches into slots of shared memory.

    context: the start method of processes ("fork", "spawn", "forkserver"); None is Python's default.
    ahead: how many tasks a worker may have at a time.
    """

    def __init__(
        self,
        reader: BatchReader,
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
                    # Forked, a sibling would keep their pipes from ending.
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
        """True when a worker may be given another task."""
        return min(self._busy.values()) < self._ahead

    def hand_out(self, task: BatchRequest) -> None:
        """Give `task` to the worker with the least to do. Raises LoaderError when it is dead."""
        connection = min(self._busy, key=self._busy.__getitem__)
        self._busy[connection] += 1
        try:
            connection.send(task)
        except OSError:
            raise self._died(connection) from None

    def answers(self) -> Iterator[Answer]:
        """Wait until there is an answer, and give all that are there. Raises LoaderError when a worker died."""
        while not (ready := wait(list(self._busy), _LOOKS_EVERY_S)):
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
                how = "killed by SIGKILL, most often for want of memory: try fewer workers or a smaller batch_size"
        return LoaderError(f"a loader worker died ({how})")


def _end(owner: int, workers: dict[Connection, Any]) -> None:
    """End all workers. In a forked child that inherited them this does nothing."""
    if os.getpid() != owner:
        return
    for connection, worker in workers.items():
        connection.close()
        if not isinstance(worker, threading.Thread):
            worker.terminate()
    for worker in workers.values():
        if worker is not threading.current_thread():  # where the garbage collector may run us
            worker.join(_ENDS_WITHIN_S)
        if not isinstance(worker, threading.Thread) and worker.is_alive():
            worker.kill()
            worker.join()
    workers.clear()


def _serve_process(
    connection: Connection, reader: BatchReader, slots: SharedSlots, skip: bool, inherited: Sequence[Connection]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C on the terminal is for the driver, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    torch.set_num_threads(1)  # of the process, so not where workers are threads of the caller's
    driver = os.getppid()
    _serve(connection, reader, slots, skip, lambda: os.getppid() == driver)


def _serve(
    connection: Connection,
    reader: BatchReader,
    slots: SharedSlots,
    skip: bool,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Read what is asked for until the pipe ends."""
    cv2.setNumThreads(0)  # of the process; OpenCV in one thread a worker is faster than all in all
    with connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver has gone
        while is_wanted():
            if connection.poll(_LOOKS_EVERY_S):
                connection.send(read(connection.recv(), reader, slots, skip))
