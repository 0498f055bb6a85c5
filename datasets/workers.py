"""Processes, or threads, that fill the slots of a ring with batches, and their driver's side of it.

Each worker has a pipe of its own: tasks go one way, answers the other, pixels through shared memory. When
either side dies the other one's pipe ends, so that neither ever waits for the dead.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import signal
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.batches import BatchReader, Skipped
from presize.errors import LoaderError, PresizeError

Mode = Literal["processes", "threads"]

_ENDS_WITHIN_S = 5


class Task(NamedTuple):
    """One batch to read: into which slot, which samples, and what decides their crops."""

    slot: int
    samples: npt.NDArray[np.int64]
    seed: int
    epoch: int
    keys: npt.NDArray[np.int64]


class Answer(NamedTuple):
    """The batch in `slot` is there, less those `skipped`; or why it is not."""

    slot: int
    skipped: list[Skipped]
    error: PresizeError | None = None


class Ring:
    """Slots of one shape, uint8, in anonymous memory that child processes share.

    The memory has no name: nothing is left of it when its last process ends, however that happens.
    Raises LoaderError when the machine has not that much available, for else the kernel would kill somebody.
    """

    def __init__(self, slots: int, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.slots = slots
        nbytes = int(np.prod(shape))
        self._stride = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        available = _available_memory()
        if self._stride * slots > available:
            raise LoaderError(
                f"{slots} batches of {nbytes / 1e6:.0f} MB need more than the {available / 1e6:.0f} MB of memory that "
                "are available; choose a smaller batch_size, fewer workers or less prefetch"
            )
        self._fd = _anonymous_file()
        os.ftruncate(self._fd, self._stride * slots)
        self._map()
        weakref.finalize(self, os.close, self._fd)

    def _map(self) -> None:
        self.memory = np.frombuffer(mmap.mmap(self._fd, self._stride * self.slots), np.uint8)

    def __getitem__(self, slot: int) -> npt.NDArray[np.uint8]:
        """A new array over the memory of one slot."""
        return np.ndarray(self.shape, np.uint8, self.memory, slot * self._stride)

    def __getstate__(self) -> dict[str, Any]:
        """For a child that is being spawned; there is no other way to hand on memory without a name."""
        return {"shape": self.shape, "slots": self.slots, "_stride": self._stride, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd = state.pop("fd").detach()
        vars(self).update(state)
        self._map()


def _available_memory() -> int:
    """Bytes that can be taken without swapping, as the kernel estimates it; all there are where it does not."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create("presize-loader")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Crew:
    """`workers` processes or threads that read batches into a ring of slots.

    context: the start method of processes ("fork", "spawn", "forkserver"); None is Python's default.
    ahead: how many tasks a worker may have at a time.
    """

    def __init__(
        self,
        reader: BatchReader,
        workers: int,
        mode: Mode,
        ring: Ring,
        *,
        ahead: int,
        skip: bool,
        context: str | None = None,
    ) -> None:
        self._busy: dict[Connection, int] = {}
        self._ahead = ahead
        self._hosts: dict[Connection, multiprocessing.process.BaseProcess | threading.Thread] = {}
        self.close = weakref.finalize(self, _end, os.getpid(), self._hosts)
        processes: Any = multiprocessing.get_context(context)
        for number in range(workers):
            ours, theirs = processes.Pipe()
            inherited: Sequence[Connection] = ()
            if mode == "threads":
                host: Any = threading.Thread(
                    target=_serve, args=(theirs, reader, ring, skip), name=f"presize-loader-{number}", daemon=True
                )
            else:
                if processes.get_start_method() == "fork":  # or a sibling would keep this pipe from ending
                    inherited = [ours, *self._hosts]
                host = processes.Process(
                    target=_serve_process, args=(theirs, reader, ring, skip, inherited), daemon=True
                )
            self._hosts[ours] = host
            self._busy[ours] = 0
            host.start()
            if mode == "processes":
                theirs.close()

    def has_room(self) -> bool:
        """True when a worker may be given another task."""
        return min(self._busy.values()) < self._ahead

    def hand_out(self, task: Task) -> None:
        """Give `task` to the worker with the least to do. Raises LoaderError when it is dead."""
        connection = min(self._busy, key=self._busy.__getitem__)
        self._busy[connection] += 1
        try:
            connection.send(task)
        except OSError:
            raise self._died(connection) from None

    def answers(self) -> Iterator[Answer]:
        """Wait until there is an answer, and give all that are there. Raises LoaderError when a worker died."""
        for ready in wait(list(self._busy)):
            connection: Any = ready
            try:
                answer = connection.recv()
            except (EOFError, OSError):
                raise self._died(connection) from None
            self._busy[connection] -= 1
            yield answer

    def _died(self, connection: Connection) -> LoaderError:
        host = self._hosts[connection]
        how = "it ended"
        if not isinstance(host, threading.Thread):
            host.join(_ENDS_WITHIN_S)
            code = host.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return LoaderError(
            f"a loader worker died ({how}); most often for want of memory: try fewer workers or a smaller batch_size"
        )


def _end(owner: int, hosts: dict[Connection, Any]) -> None:
    """End all workers. In a forked child that inherited them this does nothing."""
    if os.getpid() != owner:
        return
    for connection in hosts:
        connection.close()
    for host in hosts.values():
        if not isinstance(host, threading.Thread):
            host.terminate()
    for host in hosts.values():
        host.join(_ENDS_WITHIN_S)
        if not isinstance(host, threading.Thread) and host.is_alive():
            host.kill()
            host.join()
    hosts.clear()


def _serve_process(
    connection: Connection, reader: BatchReader, ring: Ring, skip: bool, inherited: Sequence[Connection]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C on the terminal is for the driver, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    _serve(connection, reader, ring, skip)


def _serve(connection: Connection, reader: BatchReader, ring: Ring, skip: bool) -> None:
    """Read what is asked for until the pipe ends."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)  # of this thread
    with connection, contextlib.suppress(EOFError, OSError):  # the driver has gone
        while True:
            task = connection.recv()
            try:
                answer = Answer(task.slot, reader.read(ring[task.slot], *task[1:], skip=skip))
            except PresizeError as error:
                answer = Answer(task.slot, [], error)
            connection.send(answer)
