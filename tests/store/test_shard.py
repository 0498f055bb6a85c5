"""One shard: reproducible bytes, no leftovers, and safe reading from threads and forks."""

from __future__ import annotations

import gc
import os
import pickle
import random
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

import presize.store.shard_reader
from presize.errors import BuildError, DatasetError
from presize.store.shard import (
    MapFull,
    ShardWriter,
    check_structure,
    commit_records,
    map_bytes,
    map_bytes_in_any_order,
)
from presize.store.shard_reader import ShardReader
from presize.system.files import check_file, file_digest
from processes import fork

MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def write(path: Path, values: Sequence[bytes], map_bytes: int = 64 * MIB, commit_records: int = 100) -> ShardReader:
    with ShardWriter(path, map_bytes, commit_records) as writer:
        rows = [writer.append(value) for value in values]
        nbytes, _ = writer.publish()
    assert rows == list(range(len(values)))
    return ShardReader(path, nbytes)


def read(reader: ShardReader, rows: int) -> list[bytes]:
    with reader as get:
        return [bytes(get(row)) for row in range(rows)]


def record(shard: int, row: int) -> bytes:
    return f"record {row} of shard {shard}. ".encode() * (1 + 37 * row % 11 * 40)


@pytest.fixture
def shards(tmp_path: Path) -> list[ShardReader]:
    """Write 12 shards of 4 records."""
    return [write(tmp_path / f"{k:02d}.lmdb", [record(k, row) for row in range(4)]) for k in range(12)]


# --- writing ---


@given(values=st.lists(st.binary(max_size=9000), max_size=30), commit=st.integers(1, 5))
def test_records_read_back_as_written(values: list[bytes], commit: int) -> None:
    with TemporaryDirectory() as folder:
        assert read(write(Path(folder, "a.lmdb"), values, commit_records=commit), len(values)) == values


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "a shard whose samples were all rejected"),
        ([b""], "an empty value"),
        ([b"", b"a", b""], "empty values between others"),
        ([bytes(5 * MIB), os.urandom(5 * MIB)], "large values"),
        ([os.urandom(n) for n in (4079, 4080, 4081, 2020, 2021, 8175, 8176, 8177)], "around the ends of pages"),
    ],
)
def test_records_of_unusual_sizes_are_stored(tmp_path: Path, values: list[bytes], reason: str) -> None:
    reader = write(tmp_path / "a.lmdb", values)
    assert read(reader, len(values)) == values, reason
    assert reader.entries() == len(values)
    assert check_structure(tmp_path / "a.lmdb") == []


def stat(path: Path) -> dict[str, int]:
    """Return LMDB's statistics of a shard."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
        return {**env.stat(), **env.info()}


@pytest.mark.parametrize(
    ("values", "commit", "transactions", "reason"),
    [
        ([b"x"] * 6, 1, 6, "each record separately"),
        ([b"x"] * 6, 2, 3, "the last one is full"),
        ([b"x"] * 6, 4, 2, "and the rest"),
        ([b"x"] * 6, 7, 1, "all in one"),
        ([bytes(64 * MIB), b"x"], 100, 2, "64 MiB are enough for one transaction"),
        ([bytes(64 * MIB - 1), b"x", b"x"], 100, 2, "and a little more"),
    ],
)
def test_transactions_hold_the_given_number_of_records_or_64_mib(
    tmp_path: Path, values: list[bytes], commit: int, transactions: int, reason: str
) -> None:
    write(tmp_path / "a.lmdb", values, map_bytes=128 * MIB, commit_records=commit)
    assert stat(tmp_path / "a.lmdb")["last_txnid"] == transactions, reason


def test_leaf_pages_are_filled_and_keys_are_row_numbers_as_eight_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [bytes(1000)] * 1000)
    found = stat(tmp_path / "a.lmdb")
    records_per_page = (found["psize"] - 16) // (2 + 8 + 8 + 1000)
    assert found["leaf_pages"] == -(-1000 // records_per_page)
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        assert [key for key, _ in txn.cursor()] == [row.to_bytes(8, "big") for row in range(1000)]


def test_the_same_records_yield_the_same_bytes_for_any_earlier_contents_of_memory(tmp_path: Path) -> None:
    values = [os.urandom(n) for n in (0, 10, 3000, 5000, 50_000, 9, 2 * MIB, 100) * 5]
    write(tmp_path / "a.lmdb", values, commit_records=7)
    write(tmp_path / "secret.lmdb", [b"not to be seen again" * 200] * 100)
    write(tmp_path / "b.lmdb", values, commit_records=7)
    assert (tmp_path / "a.lmdb").read_bytes() == (tmp_path / "b.lmdb").read_bytes()
    write(tmp_path / "c.lmdb", [b"x" * 3000] * 100)
    assert b"not to be seen" not in (tmp_path / "c.lmdb").read_bytes()


def test_a_shard_is_one_file_without_a_name_until_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    with ShardWriter(path, MIB, 1) as writer:
        writer.append(b"abc")
        assert not path.exists()
        nbytes, sha256 = writer.publish()
    assert os.listdir(tmp_path) == ["a.lmdb"]
    assert (nbytes, sha256) == file_digest(path)


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_unpublished_shards_are_removed(error: type[Exception] | None, tmp_path: Path) -> None:
    with pytest.raises(error) if error else nullcontext(), ShardWriter(tmp_path / "a.lmdb", MIB, 1) as writer:
        writer.append(b"abc")
        if error:
            raise error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("values", "commit"), [([bytes(2 * MIB)], 10), ([bytes(300_000)] * 4, 1)])
def test_a_too_small_map_raises_a_specific_error_and_leaves_nothing(
    tmp_path: Path, values: list[bytes], commit: int
) -> None:
    with pytest.raises(MapFull):
        write(tmp_path / "a.lmdb", values, MIB, commit)
    assert os.listdir(tmp_path) == []
    assert read(write(tmp_path / "a.lmdb", values, 4 * MIB, commit), len(values)) == values


@pytest.mark.parametrize(("records", "record_bytes"), [(1, 1), (1, 5 * MIB), (100, 2000), (100, 4000), (1000, 30_000)])
def test_records_of_the_declared_size_fit_the_map(tmp_path: Path, records: int, record_bytes: int) -> None:
    room = map_bytes(records, record_bytes)
    write(tmp_path / "a.lmdb", [bytes(record_bytes)] * records, room, commit_records(record_bytes))
    assert room % MIB == 0


def test_small_records_with_the_longest_keys_fit_the_map_in_any_order(tmp_path: Path) -> None:
    keys = [b"%0511d" % row for row in range(20_000)]
    value = bytes(1520)  # two records per page, and one in each half of it
    room = map_bytes_in_any_order(len(keys), len(keys) * len(value))
    for order in (random.Random(0).sample(keys, len(keys)), keys[::2] + keys[1::2]):
        with ShardWriter(tmp_path / "a.lmdb", room, 10_000) as writer:
            for key in order:
                writer.put(key, value)
            nbytes, _ = writer.publish()
        assert len(keys) * 4096 < nbytes < room / 2


def test_the_sizes_of_maps_and_transactions_never_change() -> None:
    """The bytes of existing datasets depend on them."""
    maps = {(0, 0): 1, (1, 5 * MIB): 326, (1000, 30_000): 35, (MIB - 64, 1000): 5160, (MIB - 63, 1000): 5161}
    assert {sizes: map_bytes(*sizes) for sizes in maps} == {sizes: mib * MIB for sizes, mib in maps.items()}
    commits = {0: 16_131, 1: 16_128, 30_000: 1964, MIB: 63, 64 * MIB: 1, 1 << 40: 1}
    assert {nbytes: commit_records(nbytes) for nbytes in commits} == commits


@contextmanager
def full_disk(place: Path) -> Iterator[None]:
    """Mount a file system of 1 MiB, if permitted."""
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "presize-test", place], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small file system is not permitted")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@contextmanager
def small_files(nbytes: int) -> Iterator[None]:
    """Limit the size of files that this process may write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("limit", "commit", "records", "at"),
    [
        (5000, 1, 1, "open"),
        (MIB, 7, 100, "append"),
        (MIB, 1000, 100, "publish"),
        (0, 1, 100, "append"),
        (0, 1000, 100, "publish"),
    ],
)
def test_a_file_size_limit_or_a_full_disk_is_a_clear_one_line_error(
    tmp_path: Path, limit: int, commit: int, records: int, at: str
) -> None:
    reason, begun = "File too large" if limit else "No space left on device", "open"
    with small_files(limit) if limit else full_disk(tmp_path):
        with pytest.raises(BuildError) as caught, ShardWriter(tmp_path / "a.lmdb", 1 << 30, commit) as writer:
            begun = "append"
            for _ in range(records):
                writer.append(bytes(100_000))
            begun = "publish"
            writer.publish()
        assert os.listdir(tmp_path) == []
    said = f"cannot write {tmp_path}/a.lmdb: {reason}; finished work is kept; run again to resume"
    assert (begun, str(caught.value)) == (at, said)


def test_a_shard_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, bool]] = []  # (forced, before the rename)
    really_open = lmdb.open

    def opened(*args: object, **options: object) -> SimpleNamespace:
        env = really_open(*args, **options)

        def sync(force: bool = False) -> None:
            env.sync(force)
            synced.append((force, not (tmp_path / "a.lmdb").exists()))

        return SimpleNamespace(begin=env.begin, close=env.close, sync=sync)

    monkeypatch.setattr(lmdb, "open", opened)
    write(tmp_path / "a.lmdb", [bytes(10_000)] * 10)
    assert synced == [(True, True)], "LMDB syncs an environment that is opened with sync=False only by force"


@pytest.mark.parametrize(
    ("name", "message"), [("no/a.lmdb", "No such file or directory; "), ("taken", "Is a directory; ")]
)
def test_an_unwritable_path_is_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(BuildError, match=f"^cannot write {tmp_path}/{name}: {message}"):
        write(tmp_path / name, [b"x"])
    assert os.listdir(tmp_path) == ["taken"]


# --- reading ---


def test_a_file_that_is_not_a_shard_is_refused_before_it_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    engine_1 = lmdb.open(str(tmp_path / "engine-1"), subdir=False, lock=False, map_size=MIB, lib_version=1)
    with engine_1, engine_1.begin(write=True) as txn:
        txn.put(bytes(8), b"x")
    for name, words in {
        "empty": "is damaged: it is empty",
        "engine-1": "is damaged: it is not an LMDB file of engine 0.9",
        "folder": "truncated or replaced",
        "pipe": "truncated or replaced",
    }.items():
        path = tmp_path / name
        with pytest.raises(DatasetError, match=f"^{path} .*{words}.*$"), ShardReader(path, path.stat().st_size):
            pass


def test_a_page_damaged_while_its_shard_is_open_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    reader = write(path, [b"x" * 100] * 5)
    with reader as get:
        get(0)
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(bytes(reader.nbytes - 8192))
        with pytest.raises(DatasetError) as caught:
            get(0)
    assert str(caught.value) == f"{path} is damaged: Located page was wrong type; copy or build the dataset again"


def test_a_shard_opened_by_other_code_is_an_error_that_says_so(tmp_path: Path) -> None:
    reader = write(tmp_path / "a.lmdb", [b"x"])
    words = r"a\.lmdb cannot be opened as a shard: The environment .*/a\.lmdb' is already open in this process[^;]*$"
    with lmdb.open(reader.path, subdir=False, readonly=True, lock=False), pytest.raises(DatasetError, match=words):
        read(reader, 1)


def test_a_file_is_opened_once_for_all_spellings_of_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    reader = write(folder / "a.lmdb", [record(0, 0)])
    os.link(folder / "a.lmdb", folder / "b.lmdb")
    (tmp_path / "link").symlink_to(folder)
    paths = [folder / "a.lmdb", folder / "b.lmdb", tmp_path / "link" / "a.lmdb", folder / ".." / "folder" / "a.lmdb"]
    with ExitStack() as stack:
        gets = [stack.enter_context(ShardReader(path, reader.nbytes)) for path in paths]
        assert [bytes(get(0)) for get in gets] == [record(0, 0)] * 4
        assert len(open_files(tmp_path)) == 1


def test_a_shard_replaced_at_its_path_is_another_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    old = write(path, [b"old" * 3000])
    assert read(old, 1) == [b"old" * 3000]
    new = write(path, [b"new" * 3000])
    assert new.nbytes == old.nbytes
    with old as get_old, new as get_new:
        assert (bytes(get_old(0)), bytes(get_new(0))) == (b"old" * 3000, b"new" * 3000)


def is_mapped_for_random_reading(path: Path) -> bool:
    """Return True if LMDB has asked the kernel for random access to the map of an open shard ("rr" among its flags)."""
    smaps = Path("/proc/self/smaps").read_text(errors="replace")  # names of other tests are not UTF-8
    mappings = smaps.split(str(path), 1)[1]
    return "rr" in mappings.split("VmFlags:", 1)[1].partition("\n")[0].split()


@pytest.mark.parametrize("options", [(), (True,), (False,)])
def test_the_kernel_is_told_whether_to_read_ahead(tmp_path: Path, options: tuple[bool, ...]) -> None:
    written = write(tmp_path / "a.lmdb", [b"x" * 9000] * 20)
    reader = pickle.loads(pickle.dumps(ShardReader(written.path, written.nbytes, *options)))
    assert len(read(reader, 20)) == 20
    assert is_mapped_for_random_reading(tmp_path / "a.lmdb") is (options == (False,)), "it reads ahead by default"


# --- limits on open shards ---


def open_files(folder: Path) -> list[str]:
    """Return the names of the files below `folder` that this process has open."""
    links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    places = [os.readlink(link) for link in links if link.is_symlink()]
    return sorted(Path(place).name for place in places if place.startswith(str(folder)))


@pytest.fixture
def three_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow three more open shards than before the test."""
    room = len(presize.store.shard_reader.open_shards) + 3
    with monkeypatch.context() as patched, ExitStack() as stack:
        for shard in [*presize.store.shard_reader.open_shards.values()]:  # open shards of other tests stay
            shard.readers += 1
            stack.callback(setattr, shard, "readers", shard.readers - 1)
        patched.setattr(presize.store.shard_reader, "max_open_shards", lambda: room)
        yield


@pytest.mark.usefixtures("three_at_once")
def test_the_least_recently_used_shard_is_closed_for_another(tmp_path: Path, shards: list[ShardReader]) -> None:
    for k in (0, 1, 2, 0, 3):
        read(shards[k], 4)
    assert open_files(tmp_path) == ["00.lmdb", "02.lmdb", "03.lmdb"]
    for k in (4, 5, 1):
        assert read(shards[k], 4) == [record(k, row) for row in range(4)]
    assert open_files(tmp_path) == ["01.lmdb", "04.lmdb", "05.lmdb"]


@pytest.mark.usefixtures("three_at_once")
def test_a_shard_in_use_is_never_closed(tmp_path: Path, shards: list[ShardReader]) -> None:
    with ExitStack() as stack:
        gets = [stack.enter_context(shard) for shard in shards]
        views = [get(2) for get in gets]
        assert [bytes(view) for view in views] == [record(k, 2) for k in range(12)]
    read(write(tmp_path / "more.lmdb", [b"x"]), 1)
    assert len(open_files(tmp_path)) == 3


@pytest.mark.usefixtures("three_at_once")
def test_many_threads_read_more_shards_than_may_be_open(shards: list[ShardReader]) -> None:
    def is_right(seed: int) -> bool:
        order = random.Random(seed).choices(range(12), k=500)
        return all(read(shards[k], 4) == [record(k, row) for row in range(4)] for k in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(8)))


def test_a_reader_is_open_from_its_first_use_until_it_is_closed(tmp_path: Path, shards: list[ShardReader]) -> None:
    for _ in range(2):
        assert not shards[0].is_open
        assert read(shards[0], 4) == [record(0, row) for row in range(4)]
        assert shards[0].is_open
        shards[0].close()
    assert open_files(tmp_path) == []
    assert not shards[0].is_open


def test_close_leaves_a_shard_in_use_open(tmp_path: Path, shards: list[ShardReader]) -> None:
    shards[1].close()  # never opened: no effect
    with shards[0] as get:
        ShardReader(shards[0].path, shards[0].nbytes).close()
        shards[0].close()
        assert bytes(get(3)) == record(0, 3)
    assert open_files(tmp_path) == ["00.lmdb"]


def test_the_garbage_collector_may_finalize_a_reader_while_a_shard_is_opened(
    shards: list[ShardReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading() -> Iterator[None]:
        with shards[0]:
            yield

    cycle: list[object] = [reading()]
    next(cycle[0])  # type: ignore[call-overload]
    cycle.append(cycle)
    gc.disable()
    del cycle
    really_open = lmdb.open

    def open_and_collect(*args: object, **options: object) -> lmdb.Environment:
        gc.collect()
        return really_open(*args, **options)

    monkeypatch.setattr(presize.store.shard_reader.lmdb, "open", open_and_collect)
    thread = threading.Thread(target=read, args=(shards[1], 4), daemon=True)
    thread.start()
    thread.join(10)
    gc.enable()
    assert not thread.is_alive(), "one thread took the lock twice"


# --- in children ---


def exit_code(work: Callable[[], int]) -> int:
    """Return the exit code of a forked child."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1])


def test_a_program_without_free_descriptors_is_told_what_to_do(shards: list[ShardReader]) -> None:
    def read_without_files() -> int:
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, lowest_free))
        with pytest.raises(DatasetError, match=r"opened as a shard: Too many open files; allow more with ulimit -n$"):
            read(shards[0], 1)
        return 0

    assert exit_code(read_without_files) == 0


@pytest.mark.slow
def test_children_forked_while_threads_read_get_the_same_records(shards: list[ShardReader]) -> None:
    ended = threading.Event()

    def is_right(draw: random.Random, among: int) -> bool:
        k, row = draw.randrange(among), draw.randrange(4)
        with shards[k] as get:
            return bytes(get(row)) == record(k, row)

    def read_on(seed: int) -> None:
        draw = random.Random(seed)
        while not ended.is_set():
            assert is_right(draw, 10)  # only children open the last two

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read_on, seed) for seed in range(4)]
        draws = map(random.Random, range(50))
        try:
            codes = [
                exit_code(lambda draw=draw: 0 if all(is_right(draw, 12) for _ in range(100)) else 2) for draw in draws
            ]
        finally:
            ended.set()
        assert codes == [0] * 50
        assert [thread.result() for thread in reading] == [None] * 4


def test_reading_in_a_forked_child_does_not_accumulate_memory(shards: list[ShardReader]) -> None:
    def private_kib() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))

    def grows() -> int:
        for _ in range(500):
            read(shards[0], 4)
        before = private_kib()
        for _ in range(5000):
            read(shards[0], 4)
        return private_kib() - before > 500

    read(shards[0], 4)
    assert exit_code(grows) == 0, "a transaction per read would leave 5000 KiB behind"


@pytest.mark.usefixtures("three_at_once")
def test_a_child_closes_nothing_that_its_parent_opened(tmp_path: Path, shards: list[ShardReader]) -> None:
    def read_by_child() -> int:
        shards[0].close()
        right = all(read(shards[k], 4) == [record(k, row) for row in range(4)] for k in (3, 4, 5, 6, 7, 0, 1, 2, 7))
        return 0 if right and open_files(tmp_path) == [f"{k:02}.lmdb" for k in (0, 1, 2, 7)] else 2

    for k in (8, 0, 1, 2):
        read(shards[k], 4)
    assert exit_code(read_by_child) == 0


def test_a_file_removed_while_it_is_opened_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.lmdb"
    nbytes = write(path, [b"one"]).nbytes
    kept, fetched = shutil.copy(path, tmp_path / "kept"), []

    def fetch() -> None:
        fetched.append(shutil.copy(kept, path))

    def removed(path: str, nbytes: int) -> os.stat_result:
        if not fetched:
            os.unlink(path)
        return check_file(path, nbytes)

    monkeypatch.setattr(presize.store.shard_reader, "check_file", removed)
    with ShardReader(path, nbytes, fetch=fetch) as get:
        assert bytes(get(0)) == b"one"
    assert len(fetched) == 1


# --- a cache ---


@pytest.mark.parametrize("is_cached", [True, False])
def test_opening_a_shard_marks_it_as_used_if_it_is_in_a_cache(is_cached: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    nbytes = write(path, [b"x"]).nbytes
    os.utime(path, ns=(0, 0))
    read(ShardReader(path, nbytes, fetch=(lambda: None) if is_cached else None), 1)
    assert (path.stat().st_mtime_ns > 0) is is_cached, "caches evict the least recently used"


def test_shards_evicted_from_a_cache_are_closed_when_more_are_open(tmp_path: Path, shards: list[ShardReader]) -> None:
    cached = [ShardReader(shard.path, shard.nbytes, fetch=lambda: None) for shard in shards]
    for reader in (*cached[:2], *shards[2:4]):
        read(reader, 4)
    os.unlink(cached[0].path)
    os.unlink(shards[2].path)  # by another process: it stays readable while it is open
    for reader in cached[4:9]:
        read(reader, 4)
    assert open_files(tmp_path) == [f"{k:02}.lmdb{' (deleted)' if k == 2 else ''}" for k in range(1, 9)]
