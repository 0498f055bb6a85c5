"""Datasets read from a store: shards are fetched when needed, once per machine, and evicted when the cache is full."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

import errands
from builds import SERIAL, SMALL
from clusters import wait_until
from paired import WITH_MASKS, make_pairs
from presize import build_dataset
from presize.datasets import (
    EpochSampler,
    LMDBDataset,
    Loader,
    RandomResizedCrop,
    ShardShuffled,
    make_loader,
)
from presize.datasets.subsets import as_lmdb_dataset
from presize.errors import DatasetError, OptionError, RemoteError
from presize.options import BuildOptions
from presize.remote import cache as module
from presize.remote.cache import PLACE, Cache, CacheFolder, default_cache_dir, place_in, prepare
from presize.store.data_files import DataFile
from presize.store.dataset import Dataset
from presize.system.locks import file_lock
from processes import children, run_command, run_python
from servers import URL, Proxy, upload
from users import NEEDS_ROOT, shared_folder, user, without_locks

CROP = RandomResizedCrop(48)
PAGE = Path(__file__).parents[2] / "docs" / "remote.md"


@pytest.fixture
def shards(dataset: Path) -> Path:
    """Return the dataset at URL, in its local folder: 56 samples in 8 shards."""
    return dataset


def kept(cache: Path) -> list[str]:
    """Return the shards in a cache."""
    return sorted(path.name for path in cache.rglob("shards/*.lmdb"))


def asked_for(proxy: Proxy) -> list[str]:
    """Return the requested shards."""
    return sorted(path.rpartition("/")[2] for path in proxy.asked if path.endswith(".lmdb"))


def kept_bytes(cache: Path) -> int:
    """Return the bytes of the shards that exist at one moment: two listings must agree, because workers replace
    shards."""

    def look() -> dict[Path, tuple[int, int, int]]:
        found = {}
        for path in cache.rglob("shards/*.lmdb"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found[path] = (status.st_size, status.st_ino, status.st_mtime_ns)
        return found

    seen = look()
    while seen != (seen := look()):
        pass
    return sum(size for size, _, _ in seen.values())


def bytes_of(root: Path) -> int:
    return sum(file.bytes for file in Dataset(root).manifest.shards)


def batches(dataset: LMDBDataset, workers: int = 0, window: int = 2, epochs: int = 1) -> list[tuple[Any, Any]]:
    """Return the batches of epochs, shard by shard."""
    loader = Loader(dataset, 5, shuffle=ShardShuffled(dataset.data, seed=3, window=window), num_workers=workers)
    return [batch for _ in range(epochs) for batch in loader]


def assert_equal(ours: list[tuple[Any, Any]], theirs: list[tuple[Any, Any]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


@pytest.mark.slow
def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    ran = run_command([sys.executable, "program.py"], cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(kept(tmp_path / "CACHE")) == 8


@pytest.mark.slow
def test_only_needed_shards_are_fetched_and_once_for_all_runs(shards: Path, proxy: Proxy, tmp_path: Path) -> None:
    dataset, every = LMDBDataset(URL, decode="bytes", cache_dir=tmp_path), range(56)
    assert kept(tmp_path) == []
    dataset[0]
    first = Dataset(shards).numbers("shard")[0]
    assert kept(tmp_path) == asked_for(proxy) == [f"{first:05}.lmdb"]
    before = dataset.__getitems__(every)
    proxy.asked.clear()
    assert pickle.loads(pickle.dumps(dataset)).__getitems__(every) == before
    assert proxy.asked == []
    assert LMDBDataset(URL, decode="bytes", cache_dir=tmp_path).__getitems__(every) == before
    assert [path.rpartition("/")[2] for path in proxy.asked] == ["manifest.json"]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_all_workers_share_fetched_shards(context: str, shards: Path, proxy: Proxy, tmp_path: Path) -> None:
    loaders = [
        make_loader(dataset, 8, shuffle=True, seed=1, num_workers=2, multiprocessing_context=context)
        for dataset in (
            LMDBDataset(URL, crop=CROP, decode="tensor", cache_dir=tmp_path),
            LMDBDataset(shards, crop=CROP, decode="tensor"),
        )
    ]
    assert_equal(*[list(loader) for loader in loaders])
    assert asked_for(proxy) == [f"{number:05}.lmdb" for number in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_of_two_groups_is_enough_shard_by_shard(workers: int, shards: Path, tmp_path: Path) -> None:
    room = 2 * bytes_of(shards) // 3
    dataset = LMDBDataset(URL, crop=CROP, cache_dir=tmp_path, cache_bytes=room)
    loader = Loader(dataset, 5, shuffle=ShardShuffled(dataset.data, seed=3, window=2), num_workers=workers)
    ours = []
    for _ in range(3):
        for batch in loader:
            ours.append(batch)
            assert kept_bytes(tmp_path) <= room
    assert_equal(ours, batches(LMDBDataset(shards, crop=CROP), epochs=3))
    held = re.findall(rf"{re.escape(str(tmp_path))}\S+ \(deleted\)", os.fsdecode(Path("/proc/self/maps").read_bytes()))
    assert len(held) <= 8, "of 24 that were read: evicted shards are not held open"


def test_shards_are_prefetched_as_far_as_they_fit(shards: Path, tmp_path: Path) -> None:
    largest = max(file.bytes for file in Dataset(shards).manifest.shards)
    dataset = LMDBDataset(URL, crop=CROP, cache_dir=tmp_path, cache_bytes=3 * largest)
    order = ShardShuffled(dataset.data, seed=0, window=1)
    names = [f"{number:05}.lmdb" for (number,) in order.groups_ahead(0, 0)]
    loader = DataLoader(dataset, 4, sampler=EpochSampler(order), collate_fn=len)
    epoch = iter(loader)
    next(epoch)
    wait_until(lambda: set(names[:3]) <= set(kept(tmp_path)), "three shards")
    for _ in range(2):
        next(epoch)  # the second shard is opened: the first one may be evicted
    wait_until(lambda: names[3] in kept(tmp_path), "a fourth one")
    assert names[0] not in kept(tmp_path)


def test_a_resumed_epoch_fetches_only_the_rest(proxy: Proxy, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, crop=CROP, cache_dir=tmp_path)
    loader = Loader(dataset, 4, shuffle=ShardShuffled(dataset.data, seed=0, window=1), num_workers=0)
    state = {**loader.state_dict(), "consumed": 40}
    loader.load_state_dict(state)
    assert sum(len(targets) for _, targets in loader) == 16
    left = [f"{number:05}.lmdb" for (number,) in loader.sampler.order.groups_ahead(0, 40)]
    assert asked_for(proxy) == sorted(left)
    assert len(left) < 8


@pytest.mark.slow
def test_each_host_fetches_only_its_own_shards(tmp_path: Path) -> None:
    fetched = []
    for host in range(2):
        dataset = LMDBDataset(URL, crop=CROP, cache_dir=tmp_path / str(host))
        order = ShardShuffled(dataset.data, window=1, by_host=True, ranks=4, ranks_per_host=2)
        for rank in (2 * host, 2 * host + 1):
            list(Loader(dataset, 4, shuffle=order, rank=rank, ranks=4, num_workers=0))
        fetched.append(set(kept(tmp_path / str(host))))
    assert len(fetched[0] & fetched[1]) == 1, "the one divided between them"
    assert len(fetched[0] | fetched[1]) == 8


def test_companions_are_fetched_with_the_images(url: str, prefix: str, tmp_path: Path) -> None:
    options = replace(WITH_MASKS, shard_samples=4)
    build_dataset(make_pairs(tmp_path / "raw"), tmp_path / "out", options, SERIAL)
    upload(tmp_path / "out", prefix)
    crop = RandomResizedCrop(24)
    ours, theirs = LMDBDataset(url, crop=crop, cache_dir=tmp_path / "cache"), LMDBDataset(tmp_path / "out", crop=crop)
    order = ShardShuffled(ours.data, seed=0, window=1)
    read = [list(Loader(each, 3, shuffle=order, num_workers=0)) for each in (ours, theirs)]
    for ((image, mask), label), ((other, other_mask), other_label) in zip(*read, strict=True):
        assert torch.equal(image, other) and torch.equal(mask, other_mask) and torch.equal(label, other_label)


@pytest.mark.slow
def test_the_shards_of_joined_datasets_are_prefetched(tmp_path: Path) -> None:
    parts = [LMDBDataset(URL, crop=CROP, cache_dir=tmp_path / name) for name in "ab"]
    joined = as_lmdb_dataset(ConcatDataset(parts))
    joined.data.fetch_ahead([[1, 9], [14]])
    wait_until(lambda: kept(tmp_path / "b") == ["00001.lmdb", "00006.lmdb"], "shards of the second")
    wait_until(lambda: kept(tmp_path / "a") == ["00001.lmdb"], "a shard of the first")


def test_the_prefetching_process_ends_with_its_dataset(tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_bytes=200_000)
    before = set(children(os.getpid()))
    dataset.data.fetch_ahead([[number] for number in range(8)])
    (child,) = set(children(os.getpid())) - before
    del dataset
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the end of the process")


# --- orders for which a cache is too small ---


@pytest.fixture
def small(shards: Path, tmp_path: Path) -> LMDBDataset:
    """Return a dataset whose cache holds half of it."""
    return LMDBDataset(URL, crop=CROP, decode="tensor", cache_dir=tmp_path, cache_bytes=bytes_of(shards) // 2)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        *(
            (
                lambda small, load=load: load(small, 4, shuffle=True, num_workers=0),
                "this dataset of [\\d.]+ kB, so it can only be read shard by shard: give shuffle=ShardShuffled"
                r"\(dataset.data, seed=...\), or a larger cache_bytes$",
            )
            for load in (Loader, make_loader)
        ),
        (lambda small: small.__getitems__(range(56)), "8 shards that are read together, "),
        (lambda small: batches(small, window=3), r"two groups of shards, [\d.]+ kB; give"),
    ],
)
def test_orders_that_a_cache_cannot_hold_are_one_line_errors(
    read: Callable[[LMDBDataset], object], message: str, small: LMDBDataset
) -> None:
    with pytest.raises(OptionError, match=rf"^cache_bytes: [\d.]+ kB cannot hold {message}"):
        read(small)


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("/tmp", {"cache_dir": 5}, "cache_dir: only for URLs, such as s3://BUCKET/PATH, but /tmp is a folder"),
        ("/tmp", {"cache_bytes": 5}, "cache_bytes: only for URLs, such as s3://BUCKET/PATH, but /tmp is a folder"),
        (URL, {"cache_bytes": 0}, "cache_bytes: expected a whole number from 1 to 9223372036854775807, got 0$"),
    ],
)
def test_options_of_a_cache_require_a_url(place: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}"):
        LMDBDataset(place, **options)


# --- crashes and damage ---


KILLED = """
import os, sys, threading, signal
from presize.datasets import LMDBDataset
dataset = LMDBDataset(sys.argv[1], decode="bytes", cache_dir=sys.argv[2])
threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGKILL)).start()
for k in range(len(dataset)):
    dataset[k]
"""


@pytest.mark.slow
def test_a_cache_outlives_its_readers(shards: Path, tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(AssertionError):
            run_python(KILLED, URL, tmp_path)
    ours, theirs = LMDBDataset(URL, decode="bytes", cache_dir=tmp_path), LMDBDataset(shards, decode="bytes")
    assert [ours[k] for k in range(56)] == [theirs[k] for k in range(56)]


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "cut short": lambda content, _: content[:5000],
    "with a wrong record": lambda content, at: content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :],
    "without structure": lambda content, _: b"\7" * len(content),
}


@pytest.mark.slow
def test_a_damaged_shard_of_a_cache_is_fetched_again(shards: Path, tmp_path: Path) -> None:
    record = LMDBDataset(URL, decode="bytes", cache_dir=tmp_path)[5][0]
    (path,) = tmp_path.rglob("shards/*.lmdb")
    content = path.read_bytes()
    for damage in DAMAGES.values():
        path.unlink()  # this process has mapped it
        path.write_bytes(damage(content, content.index(record) + len(record) // 2))
        assert LMDBDataset(URL, decode="bytes", cache_dir=tmp_path)[5][0] == record
        assert path.read_bytes() == content == (shards / "shards" / path.name).read_bytes()


def test_a_missing_shard_is_a_one_line_error(shards: Path, url: str, prefix: str, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "set", ignore=lambda *_: ["shards"])
    upload(tmp_path / "set", prefix)
    dataset = LMDBDataset(url, crop=CROP, cache_dir=tmp_path / "cache")
    for read in (lambda: list(Loader(dataset, 4, num_workers=2)), lambda: dataset[0]):
        with pytest.raises(RemoteError, match=rf"^{url}/shards/\d+\.lmdb does not exist"):
            read()


def test_a_url_without_a_dataset_of_shards_is_a_one_line_error(
    raw: Path, url: str, prefix: str, tmp_path: Path
) -> None:
    with pytest.raises(RemoteError, match=rf"^{url}/manifest\.json does not exist"):
        LMDBDataset(url, cache_dir=tmp_path)
    build_dataset(raw, tmp_path / "folder", BuildOptions(SMALL.image, "folder"), SERIAL)
    upload(tmp_path / "folder", prefix)
    with pytest.raises(DatasetError, match=rf"^{url} is a folder of image files; copy it with presize"):
        LMDBDataset(url, cache_dir=tmp_path / "cache")


def test_a_fetching_process_that_dies_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(URL, tmp_path)
    monkeypatch.setattr(module, "fetch", errands.die)
    message = rf"^{URL}: the process that fetches from it ended \(SIGSEGV\); run again$"
    with pytest.raises(RemoteError, match=message):
        cache.provide([DataFile("shards/00000.lmdb", 1, "", 1)])


# --- the folder ---


@pytest.mark.parametrize("spoilt", ["readable", "readable above", "a link", "a file above"])
def test_a_folder_that_others_can_access_is_refused(spoilt: str, tmp_path: Path) -> None:
    root, words = Cache(URL, tmp_path).root, "is not private to you; remove it, run chmod 700 on it, or choose"
    assert {path.stat().st_mode & 0o777 for path in (root, tmp_path / PLACE, root / "shards")} == {0o700}
    if spoilt == "a link":
        root.symlink_to(root.rename(tmp_path / "elsewhere"))
    elif spoilt == "a file above":
        shutil.rmtree(root.parent)
        root.parent.touch()
        words = "File exists; choose another"
    else:
        (root.parent if "above" in spoilt else root).chmod(0o755)
    with pytest.raises(OptionError, match=rf"^cache_dir: .* ?{words}"):
        Cache(URL, tmp_path)


def remove(place: Path, what: str) -> None:
    for path in place.glob(what):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.slow
def test_files_removed_from_a_cache_are_restored(shards: Path, tmp_path: Path) -> None:
    first, every = LMDBDataset(URL, decode="bytes", cache_dir=tmp_path / "cache"), range(56)
    expected = LMDBDataset(shards, decode="bytes").__getitems__(every)
    for what in ("cache", "cache/*/*/shards", "cache/*/*/manifest.json", "cache/*/*/index.arrow"):
        opened = pickle.loads(pickle.dumps(first))
        remove(tmp_path, what)
        assert opened.__getitems__(every) == expected, what
    remove(tmp_path, "cache")
    assert pickle.loads(pickle.dumps(first)).__getitems__(every) == expected, "spawned afterwards"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob(f"cache/{PLACE}/*/")} == {0o700}


@pytest.mark.slow
def test_an_epoch_goes_on_when_its_cache_is_removed(shards: Path, tmp_path: Path) -> None:
    dataset, theirs = LMDBDataset(URL, crop=CROP, cache_dir=tmp_path / "cache"), LMDBDataset(shards, crop=CROP)
    order = ShardShuffled(dataset.data, seed=3, window=1)
    epochs = (
        iter(Loader(each, 5, shuffle=order, num_workers=workers)) for each, workers in ((dataset, 1), (theirs, 0))
    )
    for number, (one, other) in enumerate(zip(*epochs, strict=True)):
        assert_equal([one], [other])
        if number == 1:
            remove(tmp_path, f"cache/{PLACE}/*")


def test_a_different_dataset_after_a_removal_is_not_read(dataset: Path, url: str, prefix: str, tmp_path: Path) -> None:
    upload(dataset, prefix)
    opened = LMDBDataset(url, cache_dir=tmp_path / "cache")
    upload(Path(__file__).parents[1] / "fixtures" / "format-1", prefix)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DatasetError, match="has been updated or replaced since it was opened; open it again"):
        opened[0]


def test_a_cache_on_a_file_system_without_locks_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch)
    with pytest.raises(OptionError, match=r"^cache_dir: .*no locks .*\(Lustre: -o flock\), or choose .*a local disk$"):
        prepare(URL, tmp_path / PLACE)


@NEEDS_ROOT
def test_a_second_user_has_a_separate_cache() -> None:
    with shared_folder() as folder:
        for number in (1001, 1002):
            with user(number):
                place = place_in(folder)
                assert prepare(URL, place).parent == place
        assert sorted(path.name for path in folder.iterdir()) == [PLACE, f"{PLACE}-1002"]
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o700}


def test_a_damaged_index_is_fetched_again(shards: Path, tmp_path: Path) -> None:
    index = Cache(URL, tmp_path).root / "index.arrow"
    index.write_bytes(bytes(index.stat().st_size))
    Cache(URL, tmp_path)
    assert index.read_bytes() == (shards / "index.arrow").read_bytes()


def test_other_files_in_the_folder_stay(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "64")
    shutil.copytree(shards, tmp_path / PLACE / "64")
    (tmp_path / PLACE).chmod(0o700)
    room = max(file.bytes for file in Dataset(shards).manifest.shards)
    dataset = LMDBDataset(URL, decode="bytes", cache_dir=tmp_path, cache_bytes=room)
    numbers = dataset.data.numbers("shard").tolist()
    for number in (0, 1):
        dataset[numbers.index(number)]
    assert kept(dataset.data.root) == ["00001.lmdb"]
    assert len(kept(tmp_path / "64")) == len(kept(tmp_path / PLACE / "64")) == 8


def test_the_default_folder_follows_the_xdg_standard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache"


def folder_with(tmp_path: Path, most: int | None, *used: tuple[str, int]) -> CacheFolder:
    """Return a cache of two datasets, with (path, bytes) from the least to the most recently used."""
    for age, (name, nbytes) in enumerate(used):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(nbytes))
        os.utime(path, (age, age))
    (tmp_path / OWN / "shards").mkdir(parents=True, exist_ok=True)
    return CacheFolder(tmp_path / OWN, most)


OWN, OTHER = "a" * 64, "b" * 64
NEW = DataFile("shards/9.lmdb", 100, "", 1)


def test_a_shard_that_arrives_during_the_listing_of_the_cache_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path, 300)
    coming = folder.root / "shards" / "1.lmdb"
    lock = coming.with_name(".1.lmdb.lock")
    lock.write_text("250")
    listdir = os.listdir

    def listed_before_it_came(path: Path) -> list[str]:
        names = listdir(path)
        coming.write_bytes(bytes(250))
        lock.unlink(missing_ok=True)
        return names

    monkeypatch.setattr("os.listdir", listed_before_it_came)
    assert folder.make_room(NEW, keep=())
    assert not coming.exists()


@pytest.mark.parametrize(
    ("most", "used", "keep", "nbytes", "fits", "stays"),
    [
        (300, [(OTHER, 1, 100), (OWN, 2, 60), (OWN, 3, 100)], [], 100, True, [2, 3]),  # of any dataset
        (300, [(OWN, 1, 100), (OWN, 2, 100)], [], 100, True, [1, 2]),  # no more than necessary is evicted
        (200, [(OWN, 1, 100), (OWN, 2, 100)], [1], 100, True, [1]),  # needed shards stay
        (200, [(OWN, 1, 100), (OWN, 2, 100)], [1], 200, False, [1]),
    ],
)
def test_the_least_recently_used_shards_are_evicted(
    most: int, used: list[tuple[str, int, int]], keep: list[int], nbytes: int, fits: bool, stays: list[int],
    tmp_path: Path,
) -> None:  # fmt: skip
    folder = folder_with(tmp_path, most, *((f"{root}/shards/{name}.lmdb", size) for root, name, size in used))
    assert folder.make_room(DataFile(NEW.file, nbytes, "", 1), {f"shards/{name}.lmdb" for name in keep}) is fits
    assert kept(tmp_path) == [f"{name}.lmdb" for name in stays]


def test_room_is_reserved_before_a_file_arrives(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 150)
    assert folder.make_room(NEW, keep=())
    assert folder.make_room(NEW, keep=()), "it reserves the same room"
    assert not folder.make_room(DataFile("shards/8.lmdb", 100, "", 1), keep={NEW.file})


def test_files_being_fetched_by_others_are_left_alone(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 150)
    assert folder.make_room(NEW, keep=())
    part = tmp_path / OWN / "shards" / ".9.lmdb.part"
    part.write_bytes(bytes(50))
    with file_lock(tmp_path / OWN / "shards" / ".9.lmdb.lock"):
        assert not folder.make_room(DataFile("shards/8.lmdb", 100, "", 1), keep=())
    assert folder.make_room(DataFile("shards/8.lmdb", 100, "", 1), keep=()), "left by a process that ended"
    assert not part.exists()


def test_no_more_is_prefetched_than_fits_even_if_others_remove_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WaitError(Exception):
        pass

    def wait(_: float) -> None:
        raise WaitError

    folder = folder_with(tmp_path, 400)
    files_ahead = module.as_room_comes(folder, [[DataFile(f"shards/{k}.lmdb", 100, "", 1)] for k in range(9)])
    for file in islice(files_ahead, 4):
        (tmp_path / OWN / ".lock").unlink(missing_ok=True)
        (tmp_path / OWN / "shards" / f".{Path(file.file).name}.lock").unlink()
    monkeypatch.setattr(time, "sleep", wait)
    with pytest.raises(WaitError):
        next(files_ahead)


def test_a_full_disk_is_reported_before_fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1000, 901, 99))
    message = f"cache_dir: {tmp_path} has 99 bytes free, and shards/9.lmdb needs 100 bytes; make room, choose another"
    with pytest.raises(OptionError, match=f"^{re.escape(message)}"):
        folder.make_room(NEW, keep=())
    (tmp_path / OWN / "shards" / ".9.lmdb.part").write_bytes(b"1")
    assert folder.make_room(NEW, keep=()), "a byte of it already exists"
