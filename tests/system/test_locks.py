"""Locks on files: alone or shared, waited for or not, and of a file that is removed meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from presize.system.locks import file_lock, is_alone


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"), pytest.raises(BlockingIOError), file_lock(tmp_path / "lock"):
        pass
    with file_lock(tmp_path / "lock"):
        pass


def test_a_shared_lock_is_held_by_many_and_keeps_others_out(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock", shared=True) as held, file_lock(tmp_path / "lock", shared=True):
        assert not is_alone(held)
        with pytest.raises(BlockingIOError), file_lock(tmp_path / "lock"):
            pass


def test_the_last_of_many_becomes_alone(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock", shared=True) as held:
        assert is_alone(held)
        with pytest.raises(BlockingIOError), file_lock(tmp_path / "lock", shared=True):
            pass


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    order = []

    def wait() -> None:
        with file_lock(tmp_path / "lock", patience_s=60):
            order.append("second")

    with file_lock(tmp_path / "lock"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.1)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_whoever_waited_for_a_lock_that_was_removed_holds_the_new_one(tmp_path: Path) -> None:
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
