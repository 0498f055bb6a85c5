"""Files are read in order; slow ones are read ahead, within bounds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import UnreadableError
from presize.sources import source_files
from presize.sources.source_files import THREADS, Container, SourceFile, SourceReader, read_in_order
from presize.system.file_version import FileVersion

SLOW, FAST = -1.0, 3600.0
"""Bounds above which every file is slow, and none is."""


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("presize-read")]


def outcome(get: Callable[[], bytes]) -> object:
    try:
        return get()
    except OSError as error:
        return str(error)


@given(sizes=st.lists(st.integers(0, 40 << 20), max_size=60), slow=st.booleans())
def test_each_file_has_its_own_result_in_order(sizes: list[int], slow: bool) -> None:
    def read(number: int) -> bytes:
        if number % 3 == 2:
            raise OSError(f"no {number}")
        return b"%d" % number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_files, "SLOW_S", SLOW if slow else FAST)
        found = [outcome(get) for get in read_in_order(read, enumerate(sizes))]
    assert found == [f"no {n}" if n % 3 == 2 else b"%d" % n for n in range(len(sizes))]
    assert own_threads() == []


def test_slow_files_are_read_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "SLOW_S", SLOW)
    together = threading.Barrier(THREADS)

    def read(number: int) -> bytes:
        if number >= 4:  # from there on threads read, and each waits until all of them do
            together.wait(timeout=30)
        return b""

    assert sum(get() == b"" for get in read_in_order(read, ((n, 1) for n in range(4 + 5 * THREADS)))) == 4 + 5 * THREADS


def test_the_caller_reads_files_itself_if_only_a_few_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now, readers = [0.0], []

    def read(number: int) -> bytes:
        now[0] += number in {3, 4, 5, 40, 41, 90}
        readers.append(threading.get_ident())
        return b""

    monkeypatch.setattr(source_files.time, "perf_counter", lambda: now[0])
    for number, get in enumerate(read_in_order(read, ((n, 1) for n in range(100)))):
        assert len(readers) == number
        get()
    assert set(readers) == {threading.get_ident()}


def test_reading_ahead_is_bounded_by_files_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "SLOW_S", SLOW)
    asked: list[int] = []

    def files(nbytes: int) -> Iterator[tuple[int, int]]:
        for number in range(100):
            asked.append(number)
            yield number, nbytes

    for nbytes, most in ((1, 16), (20 << 20, 3), (1 << 30, 1)):
        asked.clear()
        for taken, get in enumerate(read_in_order(lambda _: b"", files(nbytes))):
            get()
            assert len(asked) - taken <= most + 2  # files ahead, the current one, and the next


@pytest.mark.parametrize("speed", [SLOW, FAST])
def test_closing_early_ends_the_threads(speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "SLOW_S", speed)
    started = []

    def read(number: int) -> bytes:
        started.append(number)
        return b""

    with closing(read_in_order(read, ((n, 1) for n in range(10_000)))) as files:
        for _ in range(20):
            next(files)()
        assert bool(own_threads()) == (speed == SLOW)
    assert own_threads() == []
    assert len(started) < 60


@pytest.mark.parametrize(("nbytes", "is_slow"), [(1, True), (1 << 50, False)])
def test_a_large_file_may_take_longer_than_a_small_one(nbytes: int, is_slow: bool) -> None:
    with closing(read_in_order(lambda _: time.sleep(0.002) or b"", ((n, nbytes) for n in range(20)))) as files:
        for get in islice(files, 10):
            get()
        assert bool(own_threads()) == is_slow


# Values in a container


@pytest.fixture
def container(tmp_path: Path) -> Container:
    (tmp_path / "a.tar").write_bytes(b"x" * 1000 + b"\xff\xd8\xff" + b"y" * 997 + b"z" * 1000)
    return Container("a.tar", FileVersion.at(str(tmp_path / "a.tar")))


def open_files(folder: Path) -> int:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.path.exists(link) and os.readlink(link).startswith(str(folder)) for link in links)


def test_each_thread_opens_one_container_which_its_reader_closes(container: Container, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(b"b" * 3000)
    other = Container("b.tar", FileVersion.at(str(tmp_path / "b.tar")))
    found: list[bytes] = []

    def read(reader: SourceReader) -> None:
        for each in (container, other, container):
            for offset in (0, 2000):
                found.append(reader.read(SourceFile("x.jpg", 1000, each, offset)))
                assert open_files(tmp_path) >= 1

    reader = SourceReader(tmp_path)
    thread = threading.Thread(target=read, args=(reader,))
    thread.start()
    thread.join()
    assert open_files(tmp_path) == 0
    read(reader)
    assert found == [b"x" * 1000, b"z" * 1000, b"b" * 1000, b"b" * 1000, b"x" * 1000, b"z" * 1000] * 2
    assert open_files(tmp_path) == 1
    del reader, thread
    assert open_files(tmp_path) == 0


def test_an_open_container_is_read_although_another_has_replaced_it(container: Container, tmp_path: Path) -> None:
    reader, file = SourceReader(tmp_path), SourceFile("2.jpg", 1000, container, 2000)
    for _ in range(2):
        assert reader.read(file) == b"z" * 1000
        (tmp_path / "new.tar").write_bytes(b"n" * 3000)
        (tmp_path / "new.tar").replace(tmp_path / "a.tar")


def test_only_the_start_of_a_large_value_that_is_not_an_image_is_read(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "LARGE_BYTES", 500)
    reader = SourceReader(tmp_path)
    assert reader.read(SourceFile("1.jpg", 1000, container, 1000)) == b"\xff\xd8\xff" + b"y" * 997
    assert reader.read(SourceFile("2.jpg", 600, container, 2000)) == b"z" * 1000  # at most 4096 bytes


def test_a_value_that_the_container_no_longer_holds_is_rejected(container: Container, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="it changed during the build: 1000 bytes when listed, 500 when read"):
        SourceReader(tmp_path).read(SourceFile("2.jpg", 1000, container, 2500))
