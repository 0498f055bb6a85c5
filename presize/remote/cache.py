"""A dataset in a store, read through a local cache folder. Shards are fetched when they are needed.

Fetching runs in separate processes (presize.system.child): a process that has used obstore must not be forked, and a
forked process must not use obstore. Training would do both.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from presize.errors import BuildError, DatasetError, OptionError, PresizeError, RemoteError
from presize.formatting import plural, size_text
from presize.options import check_range
from presize.remote.bucket import Bucket, Connections
from presize.remote.fetch import download_file, part_of, read_manifest_of, size_of
from presize.store.data_files import MANIFEST, DataFile
from presize.store.dataset import Dataset
from presize.system.child import Child, ChildDiedError
from presize.system.files import (
    expanded,
    file_digest,
    is_file_of,
    is_url,
    names_in,
    reason_and_fix,
    write_atomically,
)
from presize.system.locks import NoLocksError, file_lock

PLACE = "presize-shards"
"""Name of the cache's folder in the user's cache directory."""

_FOREVER_S = float("inf")
_POLL_S = 0.1
_ROOM_LOCK = ".lock"
_DATASET = re.compile(r"[0-9a-f]{64}")


class _Kept(NamedTuple):
    """A shard in the cache or being fetched. Sorts by the time of last use."""

    used_ns: int
    path: Path
    bytes: int


@dataclass(frozen=True)
class CacheFolder:
    """A dataset's folder in PLACE, named after the SHA-256 of its manifest. All shards in PLACE, of any dataset, may
    take `max_bytes` together; None for no limit."""

    root: Path
    max_bytes: int | None

    def is_there(self) -> bool:
        names = names_in(self.root)
        return MANIFEST in names and "shards" in names and any(name.startswith("index") for name in names)

    def has(self, file: DataFile) -> bool:
        return is_file_of(self.root / file.file, file.bytes)

    def make_room(self, file: DataFile, keep: Collection[str]) -> bool:
        """Reserve room for a file: remove shards of any dataset, except `keep`, least recently used first.

        The room of a removed shard becomes free when the last process closes it. Returns False if `keep` and shards
        that other processes are fetching take the room. Raises OptionError if the disk is full."""
        path = self.root / file.file
        with file_lock(self.root.parent / _ROOM_LOCK, patience_s=_FOREVER_S):
            if self.max_bytes is not None:
                others = sorted(kept for kept in self._kept() if kept.path != path)
                surplus = sum(kept.bytes for kept in others) + file.bytes - self.max_bytes
                stay = {self.root / name for name in keep}
                for kept in others:
                    if surplus > 0 and kept.path not in stay and _remove(kept.path):
                        surplus -= kept.bytes
                if surplus > 0:
                    return False
            free = shutil.disk_usage(self.root).free
            if file.bytes - size_of(part_of(path)) > free:
                raise OptionError(
                    f"cache_dir: {self.root.parent} has {size_text(free)} free, and {file.file} needs "
                    f"{size_text(file.bytes)}; make room, choose another, or give a smaller cache_bytes"
                )
            _lock_of(path).write_text(str(file.bytes))
            return True

    def _kept(self) -> Iterator[_Kept]:
        for dataset in os.scandir(self.root.parent):
            if _DATASET.fullmatch(dataset.name):
                names = names_in(folder := Path(dataset.path, "shards"))
                for shard in {name.removeprefix(".").removesuffix(".lock").removesuffix(".part") for name in names}:
                    with suppress(FileNotFoundError):  # just removed
                        yield _look_at(folder / shard)


def _look_at(shard: Path) -> _Kept:
    """Return a shard that exists or is being fetched. Reads the lock first: it is removed after the shard appears."""
    lock = _lock_of(shard)
    coming = None
    with suppress(FileNotFoundError):
        coming = _Kept(lock.stat().st_mtime_ns, shard, int(lock.read_text() or 0))
    try:
        status = shard.stat()
    except FileNotFoundError:
        if coming is not None:
            return coming
        status = part_of(shard).stat()  # left by a process that ended
    return _Kept(status.st_mtime_ns, shard, status.st_size)


def _lock_of(path: Path) -> Path:
    """Return the lock of a file that is being fetched. It contains the file's final size in bytes."""
    return path.with_name(f".{path.name}.lock")


def _remove(path: Path) -> bool:
    """Remove a shard and return True, or return False if it is being fetched."""
    try:
        with file_lock(_lock_of(path)):
            path.unlink(missing_ok=True)
            part_of(path).unlink(missing_ok=True)
            _lock_of(path).unlink()
    except BlockingIOError:
        return False
    return True


def place_in(folder: Path) -> Path:
    """Return PLACE in a folder, with this user's ID appended if PLACE belongs to another user."""
    place = folder / PLACE
    with suppress(OSError):  # prepare() reports it
        if place.lstat().st_uid != os.geteuid():
            return folder / f"{PLACE}-{os.geteuid()}"
    return place


def prepare(url: str, place: Path) -> Path:
    """Fetch the manifest and index of the dataset at `url` into its folder in the cache at `place`; return the folder.

    Raises the errors of Bucket and download_file; DatasetError for a folder dataset; and OptionError if other users may
    access the cache, or it cannot be written.
    """
    bucket = Bucket(url)
    text, manifest = read_manifest_of(bucket)
    if manifest.layout == "folder":
        raise DatasetError(f"{url} is a folder of image files; copy it with presize fetch and open the copy")
    root = place / hashlib.sha256(text).hexdigest()
    with _writing_in(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        for folder in (place, root, root / "shards"):
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()  # only this user may write: cached files are not compared with their SHA-256 again
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise OptionError(
                    f"cache_dir: {folder} is not private to you; remove it, run chmod 700 on it, or choose another "
                    "cache_dir"
                )
        index = root / manifest.index.file
        with file_lock(_lock_of(index), patience_s=_FOREVER_S):
            if not index.exists() or file_digest(index) != (manifest.index.bytes, manifest.index.sha256):
                index.unlink(missing_ok=True)
                download_file(bucket, manifest.index, index)
            write_atomically(root / MANIFEST, text)
    return root


@contextmanager
def _writing_in(folder: Path) -> Iterator[None]:
    """Convert an OSError about a file in the cache into an OptionError that names the file."""
    try:
        yield
    except NoLocksError as error:
        raise OptionError(f"cache_dir: {error}") from None
    except OSError as error:
        fix = reason_and_fix(error, "run again, or choose another")
        raise OptionError(f"cache_dir: {error.filename or folder}: {fix}") from None


def fetch(url: str, folder: CacheFolder, files: Sequence[DataFile]) -> None:
    """Bring all of these files into the folder: fetch missing ones, or wait for processes that do. A removed folder is
    restored. Raises the errors of prepare, download_file and make_room, and DatasetError if the dataset has changed."""
    bucket = Bucket(url)
    keep = {file.file for file in files}
    with _writing_in(folder.root):
        while True:
            if not folder.is_there() and prepare(url, folder.root.parent) != folder.root:
                raise DatasetError(f"{url} has been updated or replaced since it was opened; open it again")
            connections = Connections()
            fetch_one = partial(_fetch_one, bucket, folder, connections=connections, keep=keep)
            try:
                return connections.all_of(fetch_one, files)
            except (FileNotFoundError, BuildError) as error:  # somebody may be removing the folder
                time.sleep(_POLL_S)
                if isinstance(error, BuildError) and folder.is_there():
                    raise


def fetch_ahead(url: str, folder: CacheFolder, groups: Sequence[Sequence[DataFile]]) -> None:
    """Fetch groups of files in reading order, as far ahead as there is room. Once a file of a group is used, earlier
    groups may be removed. Errors of fetching are ignored: fetch() reports them."""
    bucket, connections = Bucket(url), Connections()

    def fetch_one(file: DataFile) -> None:
        with suppress(RemoteError, FileNotFoundError):
            _fetch_one(bucket, folder, file, connections)

    with _writing_in(folder.root):
        connections.all_of(fetch_one, as_room_comes(folder, groups))


def _fetch_one(
    bucket: Bucket, folder: CacheFolder, file: DataFile, connections: Connections, keep: Collection[str] | None = None
) -> None:
    """Fetch a file, or wait for a process that does. With `keep`, first make room without removing these files."""
    path = folder.root / file.file
    with file_lock(_lock_of(path), patience_s=_FOREVER_S):
        while keep is not None and not folder.has(file) and not folder.make_room(file, keep):
            time.sleep(_POLL_S)
        try:
            if not folder.has(file):
                # Access time 0 means unused: opening a shard sets both times.
                download_file(
                    bucket, file, path, connections.passed, lambda part: os.utime(part, ns=(0, time.time_ns()))
                )
        finally:
            _lock_of(path).unlink(missing_ok=True)


def as_room_comes(folder: CacheFolder, groups: Sequence[Sequence[DataFile]]) -> Iterator[DataFile]:
    """Yield the missing files of `groups` in order, each once there is room for it."""
    begun_ns, reading = time.time_ns(), 0

    def is_used(file: DataFile) -> bool:
        try:
            return (folder.root / file.file).stat().st_atime_ns > begun_ns
        except FileNotFoundError:
            return False

    for number, group in enumerate(groups):
        for count, file in enumerate(group, 1):
            while not folder.has(file):
                begun = time.monotonic()
                reading = next((at for at in range(number, reading, -1) if any(map(is_used, groups[at]))), reading)
                needed = [*(one for group in groups[reading:number] for one in group), *group[:count]]
                # Counts all needed files, even if other processes have removed some.
                fits = folder.max_bytes is None or sum(one.bytes for one in needed) <= folder.max_bytes
                with suppress(FileNotFoundError):  # fetch() restores a removed folder
                    if fits and folder.make_room(file, {one.file for one in needed}):
                        yield file
                        break
                time.sleep(max(_POLL_S, 10 * (time.monotonic() - begun)))  # listing a large cache is slow


def open_dataset(
    root: str | os.PathLike[str],
    readahead: bool | None,
    max_pixels: int,
    check: bool,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    companions: Sequence[str] | None = None,
) -> Dataset:
    """Open the Dataset in the folder `root`, or at the URL `root` through a Cache. Raises their errors, and OptionError
    if `cache_dir` or `cache_bytes` is given for a folder."""
    if is_url(root):
        cache = Cache(os.fspath(root), cache_dir, cache_bytes)
        data = Dataset(cache.root, readahead, max_pixels, check, cache)
        data.read_with = data.read_with if companions is None else tuple(companions)
        return data
    for name, value in (("cache_dir", cache_dir), ("cache_bytes", cache_bytes)):
        if value is not None:
            raise OptionError(f"{name}: only for URLs, such as s3://BUCKET/PATH, but {root} is a folder; leave it out")
    return Dataset(root, readahead, max_pixels, check)


def default_cache_dir(option: str = "cache_dir") -> Path:
    """Return ``$XDG_CACHE_HOME``, by default ``~/.cache``. Raises OptionError, which names `option`, if the
    user has no home directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise OptionError(f"{option}: this user has no home directory; choose a folder") from None


class Cache:
    """A ShardFetcher that fetches shards of the dataset at `url` into the folder `root` in `cache_dir`, by default
    default_cache_dir(). All shards there may take `cache_bytes`, at least 1; None for no limit.

    Thread-safe and process-safe: each shard is fetched once per machine. It can be pickled, and does not use obstore in
    this process. Raises the errors of prepare.
    """

    def __init__(
        self, url: str, cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | None = None
    ) -> None:
        if cache_bytes is not None:
            cache_bytes = check_range("cache_bytes", cache_bytes, 1, 2**63 - 1)
        self._url = url
        kept_in = Path(os.path.realpath(default_cache_dir() if cache_dir is None else expanded(cache_dir)))
        self.root: Path = _in_child(url, prepare, url, place_in(kept_in))
        self.max_bytes = cache_bytes
        self._folder = CacheFolder(self.root, cache_bytes)
        self._stop: Callable[[], object] | None = None  # ends fetching ahead

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stop": None}

    def provide(self, files: Sequence[DataFile]) -> None:
        """Bring all of these files into the folder. Raises OptionError if the cache cannot hold them together."""
        if not self._folder.is_there() or not all(map(self._folder.has, files)):
            self._check_room(files, f"{plural(len(files), 'shard')} that are read together")
            _in_child(self._url, fetch, self._url, self._folder, files)

    def fetch_ahead(self, groups: Sequence[Sequence[DataFile]]) -> None:
        """Start to fetch groups of files in the background, and stop what an earlier call started. Raises OptionError
        if the cache cannot hold two consecutive groups."""
        for one, other in zip(groups, [*groups[1:], ()], strict=True):
            self._check_room([*one, *other], "two groups of shards")
        if self._stop is not None:
            self._stop()
        if any(not self._folder.has(file) for group in groups for file in group):
            child = Child()
            child.leave(fetch_ahead, self._url, self._folder, groups)
            self._stop = weakref.finalize(self, _end, child, os.getpid())

    def _check_room(self, files: Sequence[DataFile], why: str) -> None:
        nbytes = sum(file.bytes for file in files)
        if self.max_bytes is not None and nbytes > self.max_bytes:
            raise OptionError(
                f"cache_bytes: {size_text(self.max_bytes)} cannot hold {why}, {size_text(nbytes)}; give more, or read "
                "shard by shard, with shuffle=ShardShuffled(dataset.data, window=...) and a smaller window"
            )


def _in_child(url: str, function: Any, *args: Any) -> Any:
    try:
        with closing(Child()) as child:
            return child.call(function, *args)
    except PresizeError as error:
        error.__notes__.clear()  # the child's traceback, for bugs only
        raise
    except ChildDiedError as error:
        raise RemoteError(f"{url}: the process that fetches from it ended ({error}); run again") from None


def _end(child: Child, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has a copy of the Cache
        child.close()
