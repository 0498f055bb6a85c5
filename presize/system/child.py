"""A child process that runs functions for this process. A crash there cannot kill this process."""

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
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SILENT_S = 60.0
"""Seconds without a heartbeat after which a child is killed."""
_START_S = 30.0
"""Minimum time limit, in seconds, for a child's first heartbeat: Python may have to be read over a network."""
_ENDS_WITHIN_S = 5.0
_POLL_S = 1.0
_WATCH_S = 0.5
_ALIVE = None
"""Message that is a heartbeat, not a result."""
_OUT_OF_MEMORY_SCORE = 200
_ENVIRONMENT = {
    # NumPy would start a thread per core in each child. These threads have nothing to do, but spin before they sleep.
    "OPENBLAS_NUM_THREADS": "1",
    # Keeps the memory of an image for the next one. glibc would return it to the kernel and get it back page by page, a
    # tenth of the time of a build from photographs of 12 megapixels. The first value is glibc's maximum.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""Environment variables of children, unless the user has set them; sizes are in bytes."""


FOR_PARENTS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that a terminal or a job scheduler sends to a whole process group: workers leave them to their parent."""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Hold back FOR_PARENTS: in this thread during the block, in processes started there until leave_to_parent()."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_PARENTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # pending signals are delivered now


def leave_to_parent(numbers: frozenset[signal.Signals] = FOR_PARENTS) -> None:
    """Ignore signals in this process; its parent will end it. Call this from the main thread."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


class ChildDiedError(Exception):
    """Error for a child that ended before or while it ran a function. `code` is its exit code, or minus the signal."""

    def __init__(self, code: int, said: str = "") -> None:
        super().__init__(said or (f"exit code {code}" if code >= 0 else signal.Signals(-code).name))
        self.code = code


class ChildStoppedError(ChildDiedError):
    """Error for a child killed because its heartbeat stopped: suspended, or waiting for an unresponsive file system."""


class Process(Protocol):
    """A running process, as far as subprocess.Popen and a forked process are alike."""

    pid: int

    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def run_python(statement: str, keep: Sequence[int]) -> subprocess.Popen[bytes]:
    """Run a statement in a new Python that imports what this one does. It is spawned, not forked, so it inherits no
    locks or LMDB environments; only the files `keep` are open in it. Its standard output is discarded. FOR_PARENTS are
    held back in it until leave_to_parent()."""
    with starting_workers():
        return subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {statement}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=keep,
            env=_ENVIRONMENT | os.environ,
        )


def spawn(pipe: int, keep: Sequence[int] = ()) -> Process:
    """Start a process that serves a Child at the other end of `pipe`. It inherits the open files `keep`."""
    return run_python(f"from presize.system import child; child.serve({pipe}, {os.getpid()})", [pipe, *keep])


class Child:
    """A child process that runs functions, one at a time. Only kill() is thread-safe.

    It leaves Ctrl-C and the signals of job schedulers to its parent, ends when its parent ends, and is killed first
    when memory runs out. While it runs a function, one of its threads sends heartbeats.

    Args:
        silent_s: seconds without a heartbeat after which it is killed; only time in which this process runs counts.
        start: function that starts it, as spawn() does.

    Raises:
        OSError: the process, or a thread in it, cannot be started.
        ChildDiedError: it ended before it could run anything; its standard error says why.
    """

    def __init__(self, silent_s: float = SILENT_S, start: Callable[[int], Process] = spawn) -> None:
        self._silent_s, self._is_killed = silent_s, False
        ours, theirs = socket.socketpair()
        for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # it may stop in the middle of a message
            ours.setsockopt(socket.SOL_SOCKET, way, struct.pack("@ll", int(silent_s) + 1, 0))
        with ours, theirs:
            self._process = start(theirs.fileno())
            self._pipe = Connection(ours.detach())
        raised, error = self._receive(max(silent_s, _START_S))
        if raised:
            self.close()
            raise BlockingIOError(errno.EAGAIN, str(error))

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function(*args, **kwargs)`` in the child, and return its result or raise its error; all are pickled.
        Raises ChildDiedError if the child ended, ChildStoppedError if it was killed because its heartbeat stopped."""
        with suppress(OSError):  # it has died or stopped, and _receive says which
            self._pipe.send((function, args, kwargs))
        raised, result = self._receive(self._silent_s)
        if raised:
            raise result
        return result  # type: ignore[no-any-return]

    def _receive(self, silent_s: float) -> Any:
        silence_s = 0.0  # counted without a clock: after Ctrl-Z, this process may continue before the child
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
        raise ChildStoppedError(-signal.SIGKILL, f"it sent no heartbeat for {silent_s:g} s")

    def leave(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a function in the child without waiting for it. The child then ends, or earlier at close(); no other call
        may follow."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send((function, args, kwargs))
        self._pipe.close()

    def kill(self) -> None:
        """Kill the child. Thread-safe: a call in progress raises ChildDiedError."""
        self._is_killed = True
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # the kernel holds it, as on a frozen mount, and ends it when it can
            self._process.wait(_ENDS_WITHIN_S)

    def close(self) -> None:
        """Kill the child. No other call may follow."""
        self.kill()
        self._pipe.close()


def serve(pipe: int, parent: int) -> None:
    """Run the functions that a Child sends, until its end of `pipe` is closed or the process `parent` has ended."""
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
        function, args, kwargs = pickle.loads(message)  # also imports their modules
        return False, function(*args, **kwargs)
    except Exception as error:  # call() raises it
        error.add_note(f"In a child process:\n{''.join(traceback.format_exception(error))}")
        return True, error


def _offer_memory() -> None:
    """Make the OOM killer choose this process before its parent."""
    with suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, score + _OUT_OF_MEMORY_SCORE)))
