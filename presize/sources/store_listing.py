"""Images in an object store: a listing of them that is walked as a folder is."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import RemoteError, SourceError
from presize.remote.bucket import Bucket, Listed
from presize.remote.transfer import Connections
from presize.sources.store_source import Url
from presize.sources.walk import Folder
from presize.store.filenames import is_safe
from presize.store.rejects import Reject

_CHUNK = 65536
_AT_ONCE = 32
"""Requests to a web server for the sizes of files."""
_ASKED_IN_TURN = 8
"""Files that are asked for one after another, by a thread."""


class StoreWalk:
    """The objects below a URL, walked as presize.sources.walk.Walk does it with a folder. They are listed once,
    at the beginning, a thousand a request.

    Args:
        url: where they are.

    Raises:
        SourceError: they cannot be listed.
    """

    def __init__(self, url: Url) -> None:
        self.root = url
        self.hidden = 0
        self.rejects: list[Reject] = []
        self.refused_folders: list[Reject] = []
        self.files = 0
        self._entered: list[slice] = []
        number_of, folders, columns = self._list()
        self._names = sorted(number_of)
        rank = np.empty(len(self._names), np.int64)
        rank[[number_of[name] for name in self._names]] = np.arange(len(self._names))
        folders = rank[folders]
        self._ends = np.cumsum(np.bincount(folders, minlength=len(self._names)))
        keys = pa.table({"folder": pa.array(folders), "path": columns["path"]})
        order = pc.sort_indices(keys, [("folder", "ascending"), ("path", "ascending")])
        del keys, folders
        # Column by column: all of ten million files twice are two gigabytes.
        self._files = pa.table({name: columns.pop(name).take(order) for name in list(columns)})

    def _list(self) -> tuple[dict[str, int], npt.NDArray[np.int64], dict[str, pa.Array]]:
        """The number of each folder, that of the folder of each file, and the columns of files."""
        number_of: dict[str, int] = {}
        hidden: set[str] = set()
        folders, sizes, mtimes = array("q"), array("q"), array("q")
        chunks, paths = [], []
        for path, nbytes, mtime_ns in _without_markers(_listed(self.root)):
            dot = f"/{path}".find("/.")
            if not is_safe(path):
                self.rejects.append(Reject(path, SourceError.__name__, "its name is no path"))
            elif dot >= 0:
                hidden.add(path[:dot] + path[dot:].partition("/")[0])
            else:
                folder = path.rpartition("/")[0]
                folders.append(number_of.setdefault(folder, len(number_of)))
                sizes.append(nbytes)
                mtimes.append(mtime_ns)
                paths.append(path)
                if len(paths) == _CHUNK:
                    chunks.append(pa.array(paths, pa.large_string()))
                    paths.clear()
        self.hidden = len(hidden)
        chunks.append(pa.array(paths, pa.large_string()))
        found = {"path": pa.concat_arrays(chunks)}  # take() would make of the chunks one more copy, and keep them
        for name, numbers in (("source_nbytes", sizes), ("source_mtime_ns", mtimes)):
            found[name] = pa.array(np.frombuffer(numbers, np.int64))
        return number_of, np.frombuffer(folders, np.int64), found

    def _rows(self, number: int) -> slice:
        """Where the files of a folder are when all are sorted."""
        return slice(int(self._ends[number - 1]) if number else 0, int(self._ends[number]))

    def _below(self, path: str) -> range:
        """The numbers of the folders below a folder."""
        if not path:
            return range(int(self._names[:1] == [""]), len(self._names))
        return range(bisect_left(self._names, f"{path}/"), bisect_left(self._names, f"{path}0"))  # 0 follows /

    def _take(self, numbers: range) -> None:
        for number in numbers:
            rows = self._rows(number)
            self._entered.append(rows)
            self.files += rows.stop - rows.start

    def _own(self, path: str) -> range:
        """The number of a folder, if it has files of its own."""
        number = bisect_left(self._names, path)
        return range(number, number + (self._names[number : number + 1] == [path]))

    def enter(self, folder: Folder) -> list[Folder]:
        """Collect the files of one folder, and return the folders in it."""
        self._take(self._own(folder.path))
        above = f"{folder.path}/" if folder.path else ""
        names = {self._names[number][len(above) :].partition("/")[0] for number in self._below(folder.path)}
        return [Folder(above + name, ()) for name in sorted(names)]

    def descend(self, folder: Folder) -> None:
        """Collect the files of a folder, and of all folders below it."""
        self._take(self._own(folder.path))
        self._take(self._below(folder.path))

    def table(self) -> pa.Table:
        """All files that were collected: folders in the order in which they were entered, files by name."""
        parts = [self._files.slice(rows.start, rows.stop - rows.start) for rows in self._entered]
        return pa.concat_tables([self._files.slice(0, 0), *parts])


def _without_markers(listed: Iterator[Listed]) -> Iterator[Listed]:
    """Without the empty objects that stand for folders where a console shows a bucket as such."""
    folders, empty = {""}, []
    for one in listed:
        folders.add(one.path.rpartition("/")[0])
        if one.nbytes:
            yield one
        else:
            empty.append(one)
    above = {name[:at] for name in folders for at in (*_slashes(name), len(name))}
    yield from (one for one in empty if one.path not in above)


def _slashes(name: str) -> Iterator[int]:
    return (at for at, letter in enumerate(name) if letter == "/")


def _listed(url: Url) -> Iterator[Listed]:
    if url.startswith("http"):
        raise SourceError(f"source {url}: a web server does not list its files; give their paths with --labels")
    try:
        yield from Bucket(url).list()
    except RemoteError as error:
        raise SourceError(f"source {error}") from None


def look_up(url: Url, paths: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """The sizes in bytes and the mtimes in nanoseconds of the objects that a table lists: of a store that can be listed
    by its listing, of a web server by a request each.

    Raises:
        SourceError: one is not there, or the store cannot be read.
    """
    found = _ask_each(url, paths) if url.startswith("http") else _find_in_listing(url, paths)
    missing = np.flatnonzero(found[:, 0] < 0)
    if len(missing):
        first = paths[int(missing[0])].as_py()
        raise SourceError(
            f"{len(missing)} of its {len(paths)} paths cannot be used, the first: {first!r} does not exist; source "
            f"{url}"
        )
    return [pa.chunked_array([found[:, k]]) for k in range(2)]


def _find_in_listing(url: Url, paths: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    found = np.full((len(paths), 2), -1, np.int64)
    listed = _listed(url)
    while some := list(islice(listed, _CHUNK)):
        rows = pc.index_in(paths, pa.array([one.path for one in some], paths.type)).combine_chunks()
        here = rows.is_valid().to_numpy(zero_copy_only=False)
        facts = np.array([(one.nbytes, one.mtime_ns) for one in some], np.int64)
        found[here] = facts[rows.drop_null().to_numpy()]
    return found


def _ask_each(url: Url, paths: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    bucket, facts = Bucket(url), np.full((len(paths), 2), -1, np.int64)

    def ask(first: int) -> None:
        for number, path in enumerate(paths.slice(first, _ASKED_IN_TURN).to_pylist(), first):
            found = bucket.head(path)
            if found is not None:
                facts[number] = found.nbytes, found.mtime_ns

    try:
        Connections(count=_AT_ONCE).all_of(ask, range(0, len(paths), _ASKED_IN_TURN))
    except RemoteError as error:
        raise SourceError(f"source {error}") from None
    return facts
