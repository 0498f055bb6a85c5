"""Child processes: they run functions, and errors report how they ended."""

from __future__ import annotations

import mmap
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import errands
from presize.builder.executors.fork_server import ForkServer
from presize.errors import ImageError
from presize.system.child import FOR_PARENTS, Child, ChildDiedError, ChildStoppedError, spawn
from processes import is_running, run_python


@pytest.fixture(autouse=True)
def no_limit_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # a command that ran in this process may have set it


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with closing(ForkServer()) as made:
        yield made


@pytest.fixture(params=["spawned", "forked"])
def child(request: pytest.FixtureRequest) -> Iterator[Child]:
    start = spawn if request.param == "spawned" else request.getfixturevalue("server").fork
    with closing(Child(start=start)) as made:
        yield made


def test_a_child_returns_the_result_of_a_function(child: Child) -> None:
    assert child.call(os.getpid) != os.getpid()
    assert child.call(divmod, 17, 5) == (3, 2)


def test_an_error_is_raised_in_the_parent_and_the_child_continues(child: Child) -> None:
    with pytest.raises(ImageError) as caught:
        child.call(errands.complain)
    assert str(caught.value) == "it is broken"
    assert "errands.py" in caught.value.__notes__[0], "where it was raised"
    assert child.call(abs, -3) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_numpy_starts_no_threads_in_it(child: Child) -> None:
    """By default, it would start a thread per core in each child, and there is a child per core."""
    assert len(child.call(errands.threads_with_numpy)) == 2  # its main thread, and the one that watches its parent


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is set in glibc")
def test_it_keeps_the_memory_of_a_record_for_the_next(child: Child) -> None:
    records, nbytes = 64, 32_768
    assert child.call(errands.pages_taken, records, nbytes, 20) < 3 * records * nbytes / mmap.PAGESIZE


@pytest.mark.parametrize(
    ("function", "arguments", "said", "code"),
    [(errands.die, (), "SIGSEGV", -signal.SIGSEGV), (errands.end, (5,), "exit code 5", 5)],
)
def test_its_end_is_explained_each_time(
    child: Child, function: Callable[..., object], arguments: tuple[int, ...], said: str, code: int
) -> None:
    for _ in range(2):
        with pytest.raises(ChildDiedError, match=f"^{said}$") as caught:
            child.call(function, *arguments)
        assert caught.value.code == code


def test_killing_it_from_another_thread_ends_a_call(child: Child) -> None:
    timer = threading.Timer(0.2, child.kill)
    timer.start()
    with pytest.raises(ChildDiedError, match=r"^SIGKILL$"):
        child.call(errands.sleep)
    timer.join()


def test_a_stopped_child_is_killed_with_a_message(server: ForkServer) -> None:
    with closing(Child(1, server.fork)) as child:
        threading.Timer(0.2, os.kill, (child.pid, signal.SIGSTOP)).start()
        with pytest.raises(ChildStoppedError, match=r"^it sent no heartbeat for 1 s$"):
            child.call(errands.sleep)
        assert not is_running(child.pid)


@pytest.mark.slow
def test_a_slow_child_is_waited_for() -> None:
    with closing(Child(silent_s=1)) as child:
        child.call(time.sleep, 3)


@pytest.mark.parametrize("number", sorted(FOR_PARENTS))
def test_it_leaves_signals_of_terminals_and_schedulers_to_its_parent(number: signal.Signals, child: Child) -> None:
    os.kill(child.pid, number)
    assert child.call(abs, -1) == 1


def test_a_limit_on_threads_that_prevents_its_start_gives_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fail = """def fail(_): raise RuntimeError("can't start new thread")"""
    (tmp_path / "sitecustomize.py").write_text(f"import threading\n{fail}\nthreading.Thread.start = fail\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BlockingIOError, match="can't start new thread"):
        Child()
    assert capfd.readouterr().err == ""


STARTS = """
import os, signal, time
from presize.builder.executors.fork_server import ForkServer
from presize.system.child import Child, ChildDiedError, spawn
"""


@pytest.mark.parametrize("start", ["spawn", "ForkServer().fork"])
def test_it_ends_with_its_parent_even_before_the_first_call(start: str) -> None:
    copy = "os.fork() or (os.close(1), time.sleep(600), os._exit(0))"  # a copy of the parent, with its descriptors
    script = f"{STARTS}child = Child(start={start}); {copy}; print(child.pid, os.getpid(), flush=True); os._exit(0)"
    ran = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True, cwd="/", start_new_session=True
    )
    pid, session = map(int, ran.stdout.split())
    try:
        wait_for_end_of(pid)
    finally:
        os.killpg(session, signal.SIGKILL)


def test_exit_codes_are_known_to_a_process_that_ignores_the_end_of_children() -> None:
    script = f"""{STARTS}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    Child(start=ForkServer().fork).call(os._exit, 5)
except ChildDiedError as error:
    print(error.code)
"""
    assert run_python(script) == "5\n"


def wait_for_end_of(pid: int) -> None:
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_fork_server_has_one_thread_when_it_is_ready(server: ForkServer) -> None:
    with closing(Child(start=server.fork)) as child:
        parent = child.call(os.getppid)
        assert parent != os.getpid() and len(os.listdir(f"/proc/{parent}/task")) == 1
        assert child.call(errands.are_imported, ("presize.builder.tasks.task", "cv2")), "before it was forked"


def test_children_end_with_their_fork_server_and_others_are_spawned(server: ForkServer) -> None:
    with closing(Child(start=server.fork)) as first:
        os.kill(first.call(os.getppid), signal.SIGKILL)
        with pytest.raises(ChildDiedError):
            first.call(errands.sleep)
        wait_for_end_of(first.pid)
    with closing(Child(start=server.fork)) as other:
        assert other.call(os.getppid) == os.getpid()
        assert other.call(os.fstat, server.turnstile).st_ino == os.fstat(server.turnstile).st_ino


def test_a_forked_child_can_be_killed_while_others_start(server: ForkServer) -> None:
    for _ in range(3):
        with closing(Child(start=server.fork)) as one, closing(Child(start=server.fork)) as other:
            one.kill()
            with pytest.raises(ChildDiedError, match=r"^SIGKILL$"):
                one.call(abs, -1)
            assert other.call(abs, -1) == 1
            assert other.call(os.fstat, server.turnstile).st_ino == os.fstat(server.turnstile).st_ino


@pytest.mark.skipif(sys.platform != "linux", reason="uses prlimit")
def test_a_fork_server_that_may_open_no_more_files_says_so(server: ForkServer) -> None:
    with closing(Child(start=server.fork)) as child:
        parent = child.call(os.getppid)
        limits = resource.prlimit(parent, resource.RLIMIT_NOFILE)
        resource.prlimit(parent, resource.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(OSError, match="Too many open files"):
            Child(start=server.fork)
        resource.prlimit(parent, resource.RLIMIT_NOFILE, limits)
    with closing(Child(start=server.fork)) as child:
        assert child.call(os.getppid) != os.getpid()


def test_a_request_that_is_interrupted_ends_the_server(server: ForkServer) -> None:
    """Its answer, which comes later, would be taken for that to another request."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with closing(Child(start=server.fork)) as child:
        os.kill(child.call(os.getppid), signal.SIGSTOP)
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                Child(start=server.fork)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert not server.is_running
    with closing(Child(start=server.fork)) as other:
        assert other.call(os.getppid) == os.getpid()
