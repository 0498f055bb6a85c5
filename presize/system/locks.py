"""Locks on files, which end with the process that holds them; and a lock held by many processes, or by one alone."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from presize.errors import BuildError, warn
from presize.system.files import NOT_OFFERED, is_same_file

_POLL_S = 0.02


class NoLocksError(BuildError):
    """A file system has no locks, and several processes would have to share it."""


@contextmanager
def file_lock(path: Path, shared: bool = False, patience_s: float = 0.0, optional: bool = False) -> Iterator[int]:
    """Hold a lock (flock) on `path`, which is made when absent, and stays; yield its descriptor.

    Args:
        path: the file.
        shared: with others who hold it so; otherwise alone.
        patience_s: how long to wait until others have released it.
        optional: go on without one, and warn, where the file system has no locks.

    Raises:
        BlockingIOError: others hold it.
        NoLocksError: its file system has no locks.
        OSError: the file cannot be made.
    """
    deadline = time.monotonic() + patience_s
    held = _open(path)
    try:
        while True:
            try:
                fcntl.flock(held, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)
                continue
            except OSError as error:
                if error.errno not in NOT_OFFERED:
                    raise
                path.unlink(missing_ok=True)
                what = f"{path.parent}: its file system has no locks (flock: {error.strerror})"
                if not optional:
                    raise NoLocksError(
                        f"{what}, and several processes share this folder; mount it with them (Lustre: -o flock), or "
                        "choose a folder on another file system, such as a local disk"
                    ) from None
                warn(f"{what}, so nothing keeps a second command from writing there; run one at a time")
                break
            status = os.fstat(held)
            if is_same_file(path, (status.st_dev, status.st_ino)):
                break
            os.close(held)  # its holder has ended and removed the file between the two calls
            held = -1
            held = _open(path)
        yield held
    finally:
        if held >= 0:
            os.close(held)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # less the umask: others of the group may take it over


def is_alone(held: int) -> bool:
    """Make a shared lock one that is held alone, if nobody shares it."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_GATE, _ROOM = 0, 1


class RWLock:
    """A lock that many processes hold at once, or one alone, which closes a gate first so that it does not wait for
    ever. A process that dies gives back what it holds. Threads of a process count as one.

    Args:
        file: an open file that all have inherited. Its one byte is set while somebody is alone or waits to be.
    """

    def __init__(self, file: int) -> None:
        os.ftruncate(file, 1)
        self._file, self._wanted, self._inside = file, mmap.mmap(file, 1), False

    def enter(self) -> None:
        """Hold it with others, until leave(), once nobody is alone or waits to be. Holders call it again now and then,
        which lets others be alone and costs next to nothing while nobody wants to be."""
        if self._inside:
            if not self._wanted[0]:
                return
            self.leave()
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _GATE)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _GATE)
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _ROOM)
        self._inside = True

    def leave(self) -> None:
        self._inside = False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _ROOM)

    @contextmanager
    def shared(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def alone(self, patience_s: float = math.inf) -> Iterator[None]:
        """Wait until all others have left, or for `patience_s`, as the kernel may hold one that cannot be killed."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _GATE)
        try:
            self._wanted[0] = 1  # by one process at a time, which holds the gate
            deadline = time.monotonic() + patience_s
            while not self._is_empty() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            yield
        finally:
            self._wanted[0] = 0
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _ROOM)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _GATE)

    def _is_empty(self) -> bool:
        """Hold the room alone, if nobody else is in it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _ROOM)
        except OSError:
            return False
        return True
