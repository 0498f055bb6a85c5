"""A process of our own that runs functions for this one: what ends it does not end us."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_WATCH_S = 0.5
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


class ChildDiedError(Exception):
    """A child ended while it ran a function, or before it could run one. ``str(error)`` says how.

    Attributes:
        code: its exit code, or minus the number of the signal that ended it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}" if code >= 0 else signal.Signals(-code).name)
        self.code = code


class Child:
    """Runs functions in a process of its own, one at a time; for one thread at a time.

    It is started afresh and not forked, so it may be made in any thread, and holds no lock or environment of its
    parent. It leaves Ctrl-C to its parent, ends when its parent does, whatever ends that, and is the first to go when
    memory runs out. Its standard output is closed, and its standard error is that of its parent.

    Args:
        keep: open files that it inherits, under the same numbers.

    Raises:
        OSError: no process can be started.
        ChildDiedError: it ended before it could run anything; what it wrote to standard error says why.
    """

    def __init__(self, keep: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from presize.system import child; child._serve({theirs.fileno()}, {os.getpid()})"
        )
        with ours, theirs:
            # The child inherits the mask, and a Ctrl-C on the terminal comes to it, too.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *keep],
                    env=_ENVIRONMENT | os.environ,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # a pending Ctrl-C is raised here
            self._pipe = Connection(ours.detach())
        self._receive()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``function(*args, **kwargs)`` returns or raises there. All of it is pickled.

        Raises:
            ChildDiedError: the process ended before the function did.
        """
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died, and _receive says how
            self._pipe.send((function, args, kwargs))
        raised, result = self._receive()
        if raised:
            raise result
        return result  # type: ignore[no-any-return]

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            raise ChildDiedError(self._process.wait()) from None

    def leave(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have it run a function that nobody waits for, and end then, or with close(). It can be called no more."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send((function, args, kwargs))
        self._pipe.close()

    def kill(self) -> None:
        """End it at once, from any thread. A call in progress raises ChildDiedError."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it at once. It can be called no more."""
        self.kill()
        self._pipe.close()


def _serve(pipe: int, parent: int) -> None:
    """What a child does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _offer_memory()
    threading.Thread(target=_watch, args=(parent,), name="presize-watch-parent", daemon=True).start()
    connection = Connection(pipe)
    with suppress(EOFError, OSError):  # the parent has closed its end
        connection.send(None)
        while True:
            function, args, kwargs = connection.recv()
            connection.send(_outcome(function, args, kwargs))


def _outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[bool, Any]:
    try:
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


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)
