"""A process that imports and tries what workers need, once, and then forks them: they start at once and share memory.

The command starts it before it imports and lists anything itself.
"""

from __future__ import annotations

import errno
import gc
import math
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from presize.system.child import ChildDiedError, Process, leave_to_parent, run_python, serve, spawn
from presize.system.files import anonymous_file

_FORK = 0
"""Request for a new process; the answer is its PID, or minus an errno. Any other request is a PID, and the answer its
exit code, or _RUNNING."""
_RUNNING = 1 << 16
_NUMBER = struct.Struct("@i")
_PATIENCE_S = 60.0
_ENDS_WITHIN_S = 5.0
_WATCH_S = 0.5


class ForkServer:
    """A child process that forks others. It has a single thread, so its copies inherit no locks. They end when it
    ends, and it ends when this process ends. Thread-safe.

    `turnstile` is a descriptor of a file in memory that is open in all of them.
    """

    def __init__(self) -> None:
        self.turnstile = anonymous_file("presize-turnstile")
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        with theirs, suppress(OSError):  # fork() says why it cannot start
            call = f"fork_server.serve_forks({theirs.fileno()}, {os.getpid()})"
            keep = [theirs.fileno(), self.turnstile]
            self._process = run_python(f"from presize.builder.executors import fork_server; {call}", keep)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def fork(self, pipe: int) -> Process:
        """Start a process as spawn() does, which it calls if the server is not running. Raises OSError if the process
        cannot be started, ChildDiedError if the server ends meanwhile."""
        if not self.is_running:
            return spawn(pipe, [self.turnstile])
        pid = self.ask(_FORK, [pipe])
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return _Forked(self, pid)

    def ask(self, request: int, pipes: Sequence[int] = (), patience_s: float = _PATIENCE_S) -> int:
        """Return the answer to a request. Raises ChildDiedError if the server has ended. It is killed if it does not
        answer in time, counted in polls of a second, because this process may be suspended meanwhile."""
        answer = b""
        with self._lock:
            try:
                with suppress(OSError):
                    socket.send_fds(self._socket, [_NUMBER.pack(request)], pipes)
                    poll = select.poll()
                    poll.register(self._socket, select.POLLIN)
                    if any(poll.poll(1000) for _ in range(math.ceil(patience_s))):
                        answer = self._socket.recv(_NUMBER.size)
            finally:
                if not answer:  # an answer that comes after Ctrl-C would count as that to another request
                    self._kill()
        if not answer:
            raise ChildDiedError(-signal.SIGKILL)
        return int(*_NUMBER.unpack(answer))

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel holds it
                self._process.wait(_ENDS_WITHIN_S)

    def close(self) -> None:
        """End the server, and the processes that it has forked."""
        self._kill()
        self._socket.close()
        os.close(self.turnstile)


class _Forked:
    """A process that a ForkServer has forked; it is not a child of this process. Thread-safe."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None
        self._lock = threading.Lock()

    def kill(self) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._code is None and self._server.is_running:  # otherwise another process may have this PID
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._poll(timeout)) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            time.sleep(0.002)
        return code

    def _poll(self, timeout: float | None) -> int | None:
        with self._lock:
            if self._code is None:
                try:
                    code = self._server.ask(self.pid, patience_s=timeout or _PATIENCE_S)
                except ChildDiedError as error:
                    self._wait_for_end()
                    code = error.code
                self._code = None if code == _RUNNING else code
            return self._code

    def _wait_for_end(self) -> None:
        """Wait until it has ended with its server. Not for long: it may be stopped, or a zombie that nobody reaps."""
        deadline = time.monotonic() + _ENDS_WITHIN_S
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.kill(self.pid, 0)
                time.sleep(0.01)


def serve_forks(control: int, parent: int) -> None:
    """Answer the requests of a ForkServer until its end of `control` is closed or the process `parent` has ended. In a
    process that this forks, serve a Child instead."""
    leave_to_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was ignored, exit codes would be lost
    with suppress(Exception):  # a worker that needs it says why
        _prepare()
    gc.freeze()  # the collector of a copy leaves imported modules alone, and their memory shared
    server, pipe = os.getpid(), None
    with socket.socket(fileno=control) as requests, suppress(OSError):  # the parent has ended
        poll = select.poll()
        poll.register(requests, select.POLLIN)
        while pipe is None and os.getppid() == parent:
            if poll.poll(1000 * _WATCH_S):
                request, pipes, _, _ = socket.recv_fds(requests, _NUMBER.size, 1)
                if not request:
                    break
                (number,) = _NUMBER.unpack(request)
                pipe = _answer(requests, number, pipes)
    if pipe is not None:
        serve(pipe, server)


def _prepare() -> None:
    """Import what workers need, and use the codecs once, which checks them and fills their tables: 40 ms."""
    from presize.builder.tasks import task  # noqa: F401
    from presize.codecs.fingerprint import codecs_digest
    from presize.options import ImageOptions

    codecs_digest(ImageOptions())


def _answer(requests: socket.socket, number: int, pipes: Sequence[int]) -> int | None:
    """Answer a request. In a process that it forks, return the pipe of its Child instead."""
    if number != _FORK:
        pid, status = os.waitpid(number, os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else _RUNNING
    elif not pipes:
        answer = -errno.EMFILE  # it could not be received
    else:
        try:
            answer = os.fork()
        except OSError as error:
            answer = -(error.errno or errno.EAGAIN)
        if answer == 0:
            return pipes[0]
        os.close(pipes[0])
    requests.sendall(_NUMBER.pack(answer))
    return None


_early: list[ForkServer] = []


def start_early() -> Callable[[], None]:
    """Start the server that take_server() will return, so that it imports while this process does. Return a function
    that closes it if it has not been taken."""
    _early.append(ForkServer())

    def close() -> None:
        while _early:
            _early.pop().close()

    return close


def take_server() -> ForkServer:
    """Return a new server, or the one that was started early. The caller closes it."""
    with suppress(IndexError):
        return _early.pop()
    return ForkServer()
