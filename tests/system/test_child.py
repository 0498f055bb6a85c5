"""Child processes: they run functions, and errors report how they ended."""

from __future__ import annotations

import mmap
import os
import platform
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
from presize.errors import ImageError
from presize.system.child import FOR_PARENTS, Child, ChildDiedError, ChildStoppedError
from processes import is_running


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


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


def test_a_stopped_child_is_killed_with_a_message() -> None:
    with closing(Child(silent_s=1)) as child:
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


def test_it_ends_with_its_parent_even_before_the_first_call() -> None:
    script = "from presize.system.child import Child; import os; c = Child(); print(c.pid, flush=True); os._exit(0)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    deadline = time.monotonic() + 60
    while is_running(int(ran.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
