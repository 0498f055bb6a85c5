"""Connections: several files at a time, until one fails or all are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from presize.remote import bucket
from presize.remote.bucket import Connections


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Yield an event for which a connection without an answer waits."""
    monkeypatch.setattr(bucket, "ENDS_WITHIN_S", 0.05)
    event = threading.Event()
    yield event
    event.set()


def test_several_files_are_transferred_at_a_time() -> None:
    together = threading.Barrier(8)
    Connections().all_of(lambda _: together.wait(60) and None, range(16))


@pytest.mark.parametrize("end", [ValueError, bucket.TransferStoppedError])
def test_an_error_or_a_stop_does_not_wait_for_a_connection_without_an_answer(
    end: type[Exception], never: threading.Event
) -> None:
    connections = Connections()

    def move(file: str) -> None:
        if file == "end" and end is ValueError:
            raise end
        if file == "end":
            connections.stop()
        never.wait()

    with pytest.raises(end):
        connections.all_of(move, ["silent", "end", "silent"])


def test_after_an_error_nothing_more_is_started() -> None:
    begun: list[int] = []

    def move(file: int) -> None:
        begun.append(file)
        raise ValueError

    with pytest.raises(ValueError):
        Connections().all_of(move, range(1000))
    assert len(begun) <= 8


def test_transfers_that_continue_after_the_stop_end_with_the_next_bytes() -> None:
    passed: list[int] = []
    connections = Connections(passed.append)
    connections.passed(5)
    connections.stop()
    with pytest.raises(bucket.TransferStoppedError):
        connections.passed(7)
    assert passed == [5] and connections.bytes == 5
