"""Connections: several files at a time, until one fails or all are there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from presize.remote import transfer
from presize.remote.transfer import Connections


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What a connection without an answer waits for."""
    monkeypatch.setattr(transfer, "ENDS_WITHIN_S", 0.05)
    event = threading.Event()
    yield event
    event.set()


def test_several_are_moved_at_a_time() -> None:
    together = threading.Barrier(8)
    Connections().all_of(lambda _: together.wait(60) and None, range(16))


def test_an_error_does_not_wait_for_a_connection_without_an_answer(never: threading.Event) -> None:
    def move(file: str) -> None:
        if file == "bad":
            raise ValueError(file)
        never.wait()

    with pytest.raises(ValueError, match="bad"):
        Connections().all_of(move, ["silent", "bad", "silent"])


def test_after_an_error_nothing_more_is_begun() -> None:
    begun: list[int] = []

    def move(file: int) -> None:
        begun.append(file)
        raise ValueError

    with pytest.raises(ValueError):
        Connections().all_of(move, range(1000))
    assert len(begun) <= 8


def test_whoever_stops_it_does_not_wait_for_a_connection_without_an_answer(never: threading.Event) -> None:
    connections = Connections()

    def move(file: str) -> None:
        if file == "stop":
            connections.stop()
        never.wait()

    with pytest.raises(transfer.TransferStoppedError):
        connections.all_of(move, ["silent", "stop"])


def test_what_goes_on_after_the_stop_is_ended_by_the_next_bytes() -> None:
    passed: list[int] = []
    connections = Connections(passed.append)
    connections.passed(5)
    connections.stop()
    with pytest.raises(transfer.TransferStoppedError):
        connections.passed(7)
    assert passed == [5] and connections.bytes == 5
