"""A process of our own that runs functions for this one: what ends it does not end us."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SILENT_S = 60.0
"""How long a child may give no sign of life."""
_START_S = 30.0
"""Python may have to be read over a network before the first sign of life."""
_ENDS_WITHIN_S = 5.0
_POLL_S = 1.0
_WATCH_S = 0.5
_ALIVE = None
"""The sign of life, in place of a result."""
_OUT_OF_MEMORY_SCORE = 200
_ENVIRONMENT = {
    # NumPy would start a thread for each further core, in each child: they spin before they sleep, and have nothing to
    # do.
    "OPENBLAS_NUM_THREADS": "1",
    # The memory of an image goes to the next one. glibc would give it back to the kernel and get it again page by page,
    # which is a tenth of the time of a build from photographs of 12 megapixels. The first is the most that glibc takes.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""Of children, where the user has not set it; bytes."""


FOR_PARENTS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that a terminal or a job scheduler sends to a whole process group: workers leave them to their parent."""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Hold back FOR_PARENTS: in this thread for the block, in a process that it starts until leave_to_parent()."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_PARENTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # those that came meanwhile are delivered here


def leave_to_parent(numbers: frozenset[signal.Signals] = FOR_PARENTS) -> None:
    """Ignore signals in this process, whose parent ends it. For the main thread."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


class ChildDiedError(Exception):
    """A child ended while, or before, it ran a function. `code` is its exit code, or minus the signal."""

    def __init__(self, code: int, said: str = "") -> None:
        super().__init__(said or (f"exit code {code}" if code >= 0 else signal.Signals(-code).name))
        self.code = code


class ChildStoppedError(ChildDiedError):
    """A child gave no sign of life, and was killed: it was stopped, or waited for a silent file system."""


class Child:
    """Runs functions in a process of its own, one at a time; for one thread at a time.

    It is started afresh and not forked, so it holds no lock or environment of its parent. It leaves Ctrl-C and the
    signals of job schedulers to its parent, ends when that does, and is the first to go when memory runs out. Its
    standard output is closed. While it runs a function, a thread of it gives signs of life.

    Args:
        keep: open files that it inherits, under the same numbers.
        silent_s: how long it may give no sign of life before it is killed, in seconds in which this process runs.

    Raises:
        OSError: no process can be started, or none with a thread.
        ChildDiedError: it ended before it could run anything; what it wrote to standard error says why.
    """

    def __init__(self, keep: Sequence[int] = (), silent_s: float = SILENT_S) -> None:
        self._silent_s, self._is_killed = silent_s, False
        ours, theirs = socket.socketpair()
        for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # it may stop in the middle of a message
            ours.setsockopt(socket.SOL_SOCKET, way, struct.pack("@ll", int(silent_s) + 1, 0))
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from presize.system import child; child._serve({theirs.fileno()}, {os.getpid()})"
        )
        with ours, theirs:
            with starting_workers():
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *keep],
                    env=_ENVIRONMENT | os.environ,
                )
            self._pipe = Connection(ours.detach())
        raised, error = self._receive(max(silent_s, _START_S))
        if raised:
            self.close()
            raise BlockingIOError(errno.EAGAIN, str(error))

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return or raise what ``function(*args, **kwargs)`` does there. All of it is pickled. Raises ChildDiedError
        when the process ended, ChildStoppedError when it was killed without a sign of life."""
        with suppress(OSError):  # it has died or stopped, and _receive says which
            self._pipe.send((function, args, kwargs))
        raised, result = self._receive(self._silent_s)
        if raised:
            raise result
        return result  # type: ignore[no-any-return]

    def _receive(self, silent_s: float) -> Any:
        silence_s = 0.0  # not by a clock: after Ctrl-Z both go on, and this process may be the first
        try:
            while silence_s < silent_s and not self._is_killed:
                if not self._pipe.poll(_POLL_S):
                    silence_s += _POLL_S
                    continue
                message = self._pipe.recv()
                if message is not _ALIVE:
                    return message
                silence_s = 0.0
        except BlockingIOError:
            pass  # in the middle of a message
        except (EOFError, OSError):
            raise ChildDiedError(self._process.wait()) from None
        if self._is_killed:
            raise ChildDiedError(-signal.SIGKILL)
        self.kill()
        raise ChildStoppedError(-signal.SIGKILL, f"it gave no sign of life for {silent_s:g} s")

    def leave(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have it run a function that nobody waits for, and end then, or with close(). It can be called no more."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send((function, args, kwargs))
        self._pipe.close()

    def kill(self) -> None:
        """End it at once, from any thread. A call in progress raises ChildDiedError."""
        self._is_killed = True
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # the kernel holds it, as for a frozen mount, and ends it when it can
            self._process.wait(_ENDS_WITHIN_S)

    def close(self) -> None:
        """End it at once. It can be called no more."""
        self.kill()
        self._pipe.close()


def _serve(pipe: int, parent: int) -> None:
    leave_to_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _offer_memory()
    connection, is_busy, sending = Connection(pipe), threading.Event(), threading.Lock()

    def watch() -> None:
        while os.getppid() == parent:
            if is_busy.is_set():
                with sending, suppress(OSError):
                    connection.send(_ALIVE)
            time.sleep(_WATCH_S)
        os._exit(1)

    with suppress(EOFError, OSError):  # the parent has closed its end
        try:
            threading.Thread(target=watch, name="presize-watch-parent", daemon=True).start()
        except RuntimeError as error:  # there is a limit on threads
            connection.send((True, error))
            return
        connection.send((False, None))
        while True:
            message = connection.recv_bytes()
            is_busy.set()
            outcome = _outcome(message)
            is_busy.clear()
            with sending:
                connection.send(outcome)


def _outcome(message: bytes) -> tuple[bool, Any]:
    try:
        function, args, kwargs = pickle.loads(message)  # which imports what they are of
        return False, function(*args, **kwargs)
    except Exception as error:  # call() raises it
        error.add_note(f"In a child process:\n{''.join(traceback.format_exception(error))}")
        return True, error


def _offer_memory() -> None:
    """Be chosen before the parent when the kernel ends a process for want of memory."""
    with suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, score + _OUT_OF_MEMORY_SCORE)))
