"""Locks on files, released when their process ends; and a readers-writer lock for processes."""

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
    """Error for a file system without locks that several processes would share."""


@contextmanager
def file_lock(path: Path, shared: bool = False, patience_s: float = 0.0, optional: bool = False) -> Iterator[int]:
    """Hold a lock (flock) on a file and yield its descriptor.

    Args:
        path: the file; it is created if missing, and remains after the block.
        shared: share the lock with other shared holders; otherwise it is exclusive.
        patience_s: seconds to wait until others have released it.
        optional: if the file system has no locks, warn and continue without one.

    Raises:
        BlockingIOError: others hold it.
        NoLocksError: the file system has no locks, and the lock is not optional.
        OSError: the file cannot be created.
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
                        f"{what}, but several processes share this folder; mount it with locks (Lustre: -o flock), or "
                        "choose a folder on another file system, such as a local disk"
                    ) from None
                warn(f"{what}, so two commands could write there at the same time; run one at a time")
                break
            status = os.fstat(held)
            if is_same_file(path, (status.st_dev, status.st_ino)):
                break
            os.close(held)  # its holder removed the file between the two calls
            held = -1
            held = _open(path)
        yield held
    finally:
        if held >= 0:
            os.close(held)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # minus the umask: other users of the group may lock it later


def is_alone(held: int) -> bool:
    """Make a shared lock exclusive; return False if others share it."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_GATE, _ROOM = 0, 1


class RWLock:
    """A readers-writer lock for processes. A writer first closes a gate to new readers, so it does not wait forever. A
    process that dies releases its locks. Threads of a process count as one.

    Args:
        file: descriptor of a file that all processes inherit. Its one byte is set while a writer holds the lock or
            waits for it.
    """

    def __init__(self, file: int) -> None:
        os.ftruncate(file, 1)
        self._file, self._wanted, self._inside = file, mmap.mmap(file, 1), False

    def enter(self) -> None:
        """Wait until no writer holds the lock or waits for it, then hold it as a reader until leave(). Readers call it
        again now and then to let writers in, which costs next to nothing while none waits."""
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
        """Hold the lock as writer once all readers have left, or after `patience_s`: a reader that is stuck in the
        kernel cannot be killed."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _GATE)
        try:
            self._wanted[0] = 1  # set by one process at a time: it holds the gate
            deadline = time.monotonic() + patience_s
            while not self._is_empty() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            yield
        finally:
            self._wanted[0] = 0
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _ROOM)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _GATE)

    def _is_empty(self) -> bool:
        """Lock the room exclusively; return False if another process is in it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _ROOM)
        except OSError:
            return False
        return True
