"""File locks: exclusive or shared, blocking or not, on a file that is removed meanwhile, and among many processes."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import errands
from presize.system.child import Child, ChildDiedError, spawn
from presize.system.locks import RWLock, file_lock, is_alone


def test_a_shared_lock_is_held_by_many_and_excludes_others(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock", shared=True) as held, file_lock(tmp_path / "lock", shared=True):
        assert not is_alone(held)
        with pytest.raises(BlockingIOError), file_lock(tmp_path / "lock"):
            pass


def test_the_last_of_many_becomes_exclusive(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock", shared=True) as held:
        assert is_alone(held)
        with pytest.raises(BlockingIOError), file_lock(tmp_path / "lock", shared=True):
            pass


def test_a_waiter_for_a_lock_that_was_removed_holds_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def wait() -> None:
        with file_lock(path, patience_s=60), pytest.raises(BlockingIOError), file_lock(path):
            pass
        ended.append(path.exists())

    ended: list[bool] = []
    with file_lock(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.1)
        path.unlink()
    waiting.join()
    assert ended == [True]


@pytest.fixture
def file() -> Iterator[int]:
    with tempfile.TemporaryFile() as opened:
        yield opened.fileno()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def wait_for(log: Path, line: str) -> None:
    deadline = time.monotonic() + 60
    while line not in log.read_text().splitlines():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_shared_holders_overlap_and_an_exclusive_one_is_alone(file: int, log: Path) -> None:
    def visit(name: str, seconds: float, alone: bool) -> None:
        child = Child(start=partial(spawn, keep=[file]))
        try:
            for _ in range(3):
                child.call(errands.visit, file, log, name, seconds, alone)
        finally:
            child.close()

    visitors = [("a", 0.1, False), ("b", 0.15, False), ("c", 0.12, False), ("alone", 0.05, True)]
    threads = [threading.Thread(target=visit, args=visitor) for visitor in visitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inside: set[str] = set()
    together = 0
    for line in log.read_text().splitlines():
        name, _, _ = line.partition(" ")
        inside ^= {name}
        together = max(together, len(inside))
        assert inside <= {"a", "b", "c"} or inside == {"alone"}, line
    assert len(log.read_text().splitlines()) == 24
    assert together > 1


def test_a_holder_that_stays_lets_others_be_alone_when_it_enters_again(file: int, log: Path) -> None:
    lock, child = RWLock(file), Child(start=partial(spawn, keep=[file]))
    other = threading.Thread(target=child.call, args=(errands.visit, file, log, "alone", 0, True))
    lock.enter()
    other.start()
    while os.pread(file, 1, 0) != b"\1":  # until it waits
        time.sleep(0.01)
    assert log.read_text() == ""
    lock.enter()  # returns when the other holder has left
    assert log.read_text().splitlines() == ["alone in", "alone out"]
    lock.leave()
    other.join()
    child.close()


def test_an_exclusive_holder_that_dies_keeps_nobody_waiting(file: int, log: Path) -> None:
    lock, child = RWLock(file), Child(start=partial(spawn, keep=[file]))

    def be_alone() -> None:
        with suppress(ChildDiedError):
            child.call(errands.visit, file, log, "alone", 600, True)

    other = threading.Thread(target=be_alone)
    other.start()
    wait_for(log, "alone in")
    child.kill()
    other.join()
    for _ in range(3):
        lock.enter()
    lock.leave()
    child.close()
