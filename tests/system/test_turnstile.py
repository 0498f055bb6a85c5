"""A lock that many processes hold at once, or one alone."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import errands
from presize.system.child import Child, ChildDiedError
from presize.system.locks import RWLock


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


def test_those_who_share_are_in_together_and_one_alone_has_nobody_beside_it(file: int, log: Path) -> None:
    def visit(name: str, seconds: float, alone: bool) -> None:
        child = Child(keep=[file])
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


def test_whoever_stays_lets_others_be_alone_when_it_enters_again(file: int, log: Path) -> None:
    turnstile, child = RWLock(file), Child(keep=[file])
    other = threading.Thread(target=child.call, args=(errands.visit, file, log, "alone", 0, True))
    turnstile.enter()
    other.start()
    while os.pread(file, 1, 0) != b"\1":  # it waits
        time.sleep(0.01)
    assert log.read_text() == ""
    turnstile.enter()  # returns when the other has left
    assert log.read_text().splitlines() == ["alone in", "alone out"]
    turnstile.leave()
    other.join()
    child.close()


def test_whoever_dies_while_it_is_alone_keeps_nobody_waiting(file: int, log: Path) -> None:
    turnstile, child = RWLock(file), Child(keep=[file])

    def be_alone() -> None:
        with suppress(ChildDiedError):
            child.call(errands.visit, file, log, "alone", 600, True)

    other = threading.Thread(target=be_alone)
    other.start()
    wait_for(log, "alone in")
    child.kill()
    other.join()
    for _ in range(3):
        turnstile.enter()
    turnstile.leave()
    child.close()
