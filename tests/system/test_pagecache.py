"""Available memory, and preloading shards into it."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import presize.system.pagecache
from presize.datasets import LMDBDataset
from presize.errors import DatasetError, OptionError
from presize.system.pagecache import MappedFile, drop, preload, readahead_pays, resident_share
from presize.system.resources import Memory
from processes import run_python
from tampering import change_manifest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, int]:
    """Create a file of a little more than 3 MiB; return its path and size."""
    path = tmp_path / "a.lmdb"
    path.write_bytes(os.urandom(3 * MIB + 100))
    return path, 3 * MIB + 100


@pytest.fixture
def copied(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "copied")


def locked_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmLck:"))


def shard_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "shards").iterdir())


def test_files_are_in_the_page_cache_afterwards(file: tuple[Path, int]) -> None:
    drop([file[0]])
    if MappedFile(*file).resident_bytes() > MIB:
        pytest.skip("the file system is in memory")
    assert preload([file], "page-cache") == []
    assert MappedFile(*file).resident_bytes() >= 3 * MIB


def test_a_file_shorter_than_expected_is_refused_before_it_is_mapped(file: tuple[Path, int]) -> None:
    path, nbytes = file
    with pytest.raises(DatasetError, match=rf"a\.lmdb has {nbytes} bytes where the manifest says {nbytes + 1}"):
        preload([(path, nbytes + 1)], "memory")


def test_mapping_many_files_takes_no_descriptors(file: tuple[Path, int]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    held = preload([file, file], "memory")
    assert len(os.listdir("/proc/self/fd")) == before, held


@pytest.mark.parametrize("how", ["page-cache", "memory"])
def test_a_dataset_larger_than_memory_is_refused_with_both_numbers(copied: Path, how: Any) -> None:
    shard = next((copied / "shards").iterdir())
    os.truncate(shard, 1 << 40)  # a sparse terabyte
    name = shard.relative_to(copied).as_posix()
    change_manifest(copied, lambda values: next(s for s in values["shards"] if s["file"] == name).update(bytes=1 << 40))
    with pytest.raises(
        OptionError,
        match=rf"^preload: '{how}' needs 1.1 TB of memory, but [\d.]+ [kMG]B is available; leave preload out",
    ):
        LMDBDataset(copied, preload=how)


@pytest.mark.parametrize("resident", [True, False])
def test_files_locked_by_another_rank_need_no_more_memory(
    file: tuple[Path, int], resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(None, None, MIB, None, None, locked=100 * MIB)  # locked by another process
    monkeypatch.setattr(presize.system.pagecache, "read_memory", lambda: memory)
    monkeypatch.setattr(MappedFile, "resident_bytes", lambda _: file[1] if resident else 0)
    if resident:
        preload([file], "page-cache")
    else:
        with pytest.raises(OptionError, match="is available"):
            preload([file], "page-cache")


NOT_ALLOWED = """
    import ctypes, resource, sys
    from pathlib import Path
    from presize.errors import OptionError
    from presize.system.pagecache import preload

    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
    libc = ctypes.CDLL(None, use_errno=True)  # and without CAP_IPC_LOCK, which is number 14
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << 14)
    assert libc.capset(header, sets) == 0
    try:
        preload([(Path(sys.argv[1]), int(sys.argv[2]))], "memory")
    except OptionError as error:
        print(error)
"""


def test_a_refused_memory_lock_is_a_one_line_error_that_says_what_to_do(file: tuple[Path, int]) -> None:
    said = run_python(NOT_ALLOWED, *file)
    assert re.match(r"preload: 'memory' locks 3\.15 MB, but this process may lock 4\.1 kB; allow more with ul", said)
    assert "'page-cache'" in said and said.count("\n") == 1


# --- preloading a dataset ---


def test_an_unknown_preload_is_refused(dataset: Path) -> None:
    with pytest.raises(OptionError, match="preload: expected one of page-cache, memory, got 'ram'"):
        LMDBDataset(dataset, preload="ram")  # type: ignore[arg-type]


def test_a_dataset_holds_its_shards_in_memory_while_it_exists(dataset: Path) -> None:
    before = locked_bytes()
    ds = LMDBDataset(dataset, preload="memory")
    assert locked_bytes() - before >= shard_bytes(dataset)
    assert len(ds[0]) == 2
    del ds
    assert locked_bytes() == before


@pytest.mark.parametrize("how", ["page-cache", "memory"])
def test_a_pickled_dataset_is_not_preloaded_again(dataset: Path, how: Any) -> None:
    pickled = pickle.dumps(LMDBDataset(dataset, preload=how))
    read_before, locked_before = _read_bytes(), locked_bytes()
    ds = pickle.loads(pickled)
    assert _read_bytes() - read_before < shard_bytes(dataset)
    assert locked_bytes() == locked_before
    assert len(ds[0]) == 2


def _read_bytes() -> int:
    """Return the bytes that this process has read, from files and the page cache alike."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


@pytest.mark.parametrize(
    ("record_bytes", "dataset_bytes", "window_bytes", "pays", "reason"),
    [
        (30_000, 500 * GIB, 128 * KIB, True, "waiting for eight single pages takes longer than the window"),
        (1_000, 500 * GIB, 128 * KIB, False, "tiny records of a dataset larger than memory"),
        (30_000, 500 * GIB, 8 << 20, False, "a window of 280 records for one requested record"),
        (10_923, 500 * GIB, 128 * KIB, True, "a twelfth of the window"),
        (10_922, 500 * GIB, 128 * KIB, False, "a byte below a twelfth of the window"),
        (0, 0, 128 * KIB, True, "an empty dataset"),
    ],
)
def test_readahead_is_for_datasets_that_fit_into_memory_and_for_large_records(
    record_bytes: int, dataset_bytes: int, window_bytes: int, pays: bool, reason: str
) -> None:
    assert readahead_pays(record_bytes, dataset_bytes, 64 * GIB, window_bytes) is pays, reason


def test_dropped_files_leave_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(1 << 20))
    (tmp_path / "empty").touch()
    files = [tmp_path / "a", tmp_path / "empty"]
    assert (resident_share(files), resident_share([])) == (1, 0)
    drop(files)
    if resident_share(files) == 1:
        pytest.skip("the file system is in memory")
    assert resident_share(files) < 0.1
