"""Reading speed of a path: the files that are read, how, and the report. Times are never asserted."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builds import files
from presize.measure.read_speed import Content, File, list_content, measure, random_parts
from presize.store.dataset import Dataset
from presize.system.pagecache import resident_share

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Create 48 files of 200,000 bytes in 3 folders."""
    for number in range(48):
        path = tmp_path / "photos" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(200_000))
    return tmp_path / "photos"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(6 * MIB))
    return path


# --- files to read ---


def test_a_dataset_consists_of_its_shards_and_records_have_their_real_size(dataset: Path) -> None:
    content, data = list_content(dataset), Dataset(dataset)
    assert sorted(file.path for file in content.files) == sorted((dataset / "shards").iterdir())
    assert content.nbytes == sum(path.stat().st_size for path in (dataset / "shards").iterdir())
    assert content.record_bytes == sum(data.numbers("nbytes").tolist()) // len(data)
    assert content.shards and content.all_files


def test_a_folder_and_a_damaged_dataset_consist_of_their_files(photos: Path, tmp_path: Path) -> None:
    content = list_content(photos)
    assert sorted(file.path for file in content.files) == sorted(photos.rglob("*.jpg"))
    assert (content.record_bytes, content.shards, content.all_files) == (200_000, False, True)
    (tmp_path / "manifest.json").write_text("{}")
    assert tmp_path / "manifest.json" in {file.path for file in list_content(tmp_path).files}


def test_a_shard_that_is_a_pipe_does_not_block(dataset: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(dataset, tmp_path / "copied")
    (copied / "shards" / "00003.lmdb").unlink()
    os.mkfifo(copied / "shards" / "00003.lmdb")
    content = list_content(copied)
    assert not content.shards
    assert "00003.lmdb" not in {file.path.name for file in content.files}


def test_links_pipes_empty_files_and_devices_are_not_read(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "file").symlink_to(photos / "class 0" / "0.jpg")
    (folder / "folder").symlink_to(photos)
    (folder / "empty").touch()
    os.mkfifo(folder / "pipe")
    assert list_content(folder).files == ()
    assert stat.S_ISCHR(os.stat("/dev/zero").st_mode)
    assert list_content(Path("/dev/zero")).files == ()


def test_a_listing_that_reaches_its_limit_is_incomplete(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presize.measure.read_speed.FILES_LISTED", 40)
    content = list_content(photos)
    assert 0 < len(content.files) <= 41
    assert not content.all_files


# --- reading ---


@pytest.mark.parametrize("readers", [1, 3])
def test_a_folder_is_read_file_by_file_and_a_single_file_record_by_record(
    photos: Path, large: Path, readers: int
) -> None:
    reading = measure(list_content(photos), readers)
    assert reading is not None
    assert (reading.record_bytes, reading.readers) == (200_000, readers)
    assert min(reading.random_reads_per_s, reading.sequential_bytes_per_s) > 0
    content = list_content(large)
    assert content == Content((File(large, 6 * MIB),), 32 << 10, shards=True, all_files=True)
    reading = measure(content, readers)
    assert reading is not None and reading.record_bytes == 32 << 10


def test_nothing_is_written_and_no_file_stays_open(photos: Path) -> None:
    before, opened = files(photos), len(os.listdir("/proc/self/fd"))
    times = {path: path.stat().st_mtime_ns for path in photos.rglob("*")}
    measure(list_content(photos), 2)
    assert files(photos) == before
    assert {path: path.stat().st_mtime_ns for path in photos.rglob("*")} == times
    assert len(os.listdir("/proc/self/fd")) == opened


def test_too_few_bytes_and_records_larger_than_their_file_yield_nothing(dataset: Path, large: Path) -> None:
    assert measure(list_content(dataset), 2) is None
    assert measure(Content((File(large, 6 * MIB),), 7 * MIB, shards=True, all_files=True), 2) is None


def test_a_missing_file_is_an_error_that_names_it(photos: Path) -> None:
    content = list_content(photos)
    for path in photos.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"\d+\.jpg"):
        measure(content, 2)


def test_files_that_were_in_the_page_cache_are_in_it_again_afterwards(tmp_path: Path) -> None:
    shards = [tmp_path / "read at random", tmp_path / "read in order"]
    for path in shards:
        with path.open("wb") as file:
            file.write(os.urandom(24 * MIB))
            file.flush()
            os.fsync(file.fileno())  # changed pages are never dropped
    content = Content(tuple(File(path, 24 * MIB) for path in shards), PAGE, shards=True, all_files=True)
    assert measure(content, 2) is not None
    assert [resident_share([path]) for path in shards] == [1.0, 1.0]  # at random, 1,000 pages of 6,144 were read


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a file system in memory")
def test_files_in_memory_are_never_cold() -> None:
    path = Path("/dev/shm") / f"presize-test-{os.getpid()}"
    try:
        path.write_bytes(bytes(6 * MIB))
        reading = measure(list_content(path), 1)
    finally:
        path.unlink()
    assert reading is not None and reading.cold is False


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be another user")
def test_without_write_permission_cold_is_unknown() -> None:
    with tempfile.NamedTemporaryFile() as file:  # not in pytest's folder, which no other user may enter
        file.write(bytes(6 * MIB))
        file.flush()
        os.chmod(file.name, 0o444)
        os.seteuid(65534)
        try:
            reading = measure(list_content(Path(file.name)), 1)
        finally:
            os.seteuid(0)
    assert reading is not None and reading.cold is None


@given(
    sizes=st.lists(st.integers(1, 40 * PAGE), min_size=1, max_size=8),
    nbytes=st.integers(0, 5 * PAGE),
    seed=st.integers(0, 9),
)
def test_records_to_read_are_inside_their_files_and_share_no_page(sizes: list[int], nbytes: int, seed: int) -> None:
    listed = [File(Path(str(number)), size) for number, size in enumerate(sizes)]
    pages = set()
    for path, offset, length in random_parts(listed, nbytes, Random(seed)):
        assert length == nbytes
        assert 0 <= offset <= offset + length <= sizes[int(str(path))]
        touched = {(path, page) for page in range(offset // PAGE, (offset + max(1, length) - 1) // PAGE + 1)}
        assert not touched & pages
        pages |= touched
