"""A dataset in a store, read through a folder of this machine to which its shards come when they are needed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from presize.errors import OptionError, PresizeError, RemoteError
from presize.formatting import plural, size_text
from presize.options import check_range
from presize.remote import cache_folder
from presize.remote.cache_folder import CacheFolder, place_in
from presize.store.data_files import DataFile
from presize.store.dataset import Dataset
from presize.system.child import Child, ChildDiedError
from presize.system.files import expanded, is_url


def open_dataset(
    root: str | os.PathLike[str],
    readahead: bool | None,
    max_pixels: int,
    check: bool,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    companions: Sequence[str] | None = None,
) -> Dataset:
    """Open the Dataset in the folder `root`, or at the URL `root` through a Cache. Raises as these do, and OptionError
    when `cache_dir` or `cache_bytes` come with a folder."""
    if is_url(root):
        cache = Cache(os.fspath(root), cache_dir, cache_bytes)
        data = Dataset(cache.root, readahead, max_pixels, check, cache)
        data.read_with = data.read_with if companions is None else tuple(companions)
        return data
    for name, value in (("cache_dir", cache_dir), ("cache_bytes", cache_bytes)):
        if value is not None:
            raise OptionError(f"{name}: is for URLs, such as s3://BUCKET/PATH, and {root} is a folder; leave it out")
    return Dataset(root, readahead, max_pixels, check)


def default_cache_dir(option: str = "cache_dir") -> Path:
    """Return ``$XDG_CACHE_HOME``, by default ``~/.cache``. Raises OptionError, about `option`, without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise OptionError(f"{option}: this user has no home directory; choose a folder") from None


class Cache:
    """A ShardFetcher that brings the shards of a Dataset from a store to the folder `root`.

    For all threads and processes of this machine: each shard comes once. It can be pickled, and does not use obstore in
    this process, see presize.remote.cache_folder. Raises as cache_folder.prepare.

    Args:
        url: of the folder with manifest.json, as for fetch_dataset.
        cache_dir: where the shards are kept, from run to run, in a private folder (see place_in); None for
            default_cache_dir().
        cache_bytes: bytes that all shards there may take together, at least 1; None for any number.
    """

    def __init__(
        self, url: str, cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | None = None
    ) -> None:
        if cache_bytes is not None:
            cache_bytes = check_range("cache_bytes", cache_bytes, 1, 2**63 - 1)
        self._url = url
        kept_in = Path(os.path.realpath(default_cache_dir() if cache_dir is None else expanded(cache_dir)))
        self.root: Path = _in_child(url, cache_folder.prepare, url, place_in(kept_in))
        self._folder = CacheFolder(self.root, cache_bytes)
        self._stop: Callable[[], object] | None = None  # of what fetches ahead

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stop": None}

    @property
    def max_bytes(self) -> int | None:
        return self._folder.max_bytes

    def provide(self, files: Sequence[DataFile]) -> None:
        """Have these files in the folder at the same time. Raises OptionError when the cache is too small."""
        if not self._folder.is_there() or not all(map(self._folder.has, files)):
            self._check_room(files, f"{plural(len(files), 'shard')} that are read together")
            _in_child(self._url, cache_folder.fetch, self._url, self._folder, files)

    def fetch_ahead(self, groups: Sequence[Sequence[DataFile]]) -> None:
        """Begin to fetch groups of files in the background, in place of what was begun before. Raises OptionError when
        two groups in a row are more than the cache may hold."""
        if self.max_bytes is not None:
            for two in zip(groups, [*groups[1:], ()], strict=True):
                self._check_room([*two[0], *two[1]], "two groups of shards")
        if self._stop is not None:
            self._stop()
        if any(not self._folder.has(file) for group in groups for file in group):
            child = Child()
            child.leave(cache_folder.fetch_ahead, self._url, self._folder, groups)
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
        error.__notes__.clear()  # where it was raised over there: for mistakes of ours
        raise
    except ChildDiedError as error:
        raise RemoteError(f"{url}: the process that fetches from it ended ({error}); run again") from None


def _end(child: Child, owner: int) -> None:
    if os.getpid() == owner:  # what was forked has a copy of the Cache
        child.close()
