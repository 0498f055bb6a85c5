"""Progress: a bar, occasional lines, or nothing."""

from __future__ import annotations

import io
import sys

import pytest

from presize.builder.shard_table import ShardDone
from presize.cli import show_warning
from presize.cli.output import BuildProgress, Progress
from presize.errors import PresizeWarning


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock by a settable time in seconds."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("quiet", "done", "said"),
    [(False, 400, "build: 1,200 of 5,000 images, 100/s, 38 s left, a note\n"), (True, 400, ""), (False, 0, "")],
)
def test_without_a_terminal_it_prints_a_line_every_ten_seconds(
    quiet: bool, done: int, said: str, clock: list[float]
) -> None:
    stream = io.StringIO()
    with Progress(stream, "build", quiet=quiet) as progress:
        progress.begin(5000)
        for _ in range(5):
            clock[0] += 4
            progress.add(done, "a note")
    assert stream.getvalue() == said


def test_rate_and_time_left_do_not_count_what_an_earlier_run_did(clock: list[float]) -> None:
    stream = io.StringIO()
    with BuildProgress(stream) as progress:
        progress.begin(5000)
        progress.on_shard(ShardDone(0, 3000, 0, 0, 0, earlier=True))
        clock[0] += 10
        progress.on_shard(ShardDone(1, 1000, 0, 0, 0))
    assert stream.getvalue() == "build: 4,000 of 5,000 images, 100/s, 10 s left, 0 bytes, 0 rejected\n"


def test_the_rate_of_a_bar_does_not_count_what_an_earlier_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    stream = Terminal()
    with BuildProgress(stream) as progress:
        progress.begin(5000)
        progress.on_shard(ShardDone(0, 3000, 0, 0, 0, earlier=True))
        now[0] += 10
        progress.on_shard(ShardDone(1, 1000, 0, 0, 0))
    last = stream.getvalue().rpartition("\r")[2]
    assert "4000/5000 [00:10<00:10, 100.00img/s" in last


def test_a_bar_is_cleared_for_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(sys.stderr, "build") as progress:
        progress.begin(10)
        show_warning("look out", PresizeWarning)
    before, warning, after = sys.stderr.getvalue().partition("presize: warning: look out\n")
    assert before.startswith("\rbuild:   0%|") and before.endswith(" \r")
    assert warning and after.startswith("\rbuild:   0%|")
