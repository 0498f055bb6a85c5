"""Images in an object store: its listing as the folders that it looks like, and the objects that a table lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import RemoteError, SourceError
from presize.remote.bucket import Bucket, Listed
from presize.remote.transfer import Connections
from presize.sources.folder import Refuse, RefusedFile, no_path
from presize.sources.source_files import Url
from presize.sources.spellings import NamesIn, names_of
from presize.sources.tree import FileTree
from presize.store.filenames import can_be_made, unsafe_paths

_CHUNK = 65536
_AT_ONCE = 32
"""Requests to a web server for the sizes of files."""
_ASKED_IN_TURN = 8
"""Files that are asked for one after another, by a thread."""
_NO_PATH = "its name is no path: it has an empty part, . or .. as one, or a control character"


def walk_bucket(url: Url) -> FileTree:
    """Return all objects below a URL, hidden ones apart. They are listed a thousand a request."""
    tree = FileTree(url)
    hidden: set[str] = set()
    for path, nbytes, mtime_ns in _without_markers(_listed(url)):
        dot = f"/{path}".find("/.")
        if not _is_path(path):
            tree.reject(path, _NO_PATH)
        elif dot >= 0:
            hidden.add(path[:dot] + path[dot:].partition("/")[0])
        else:
            tree.add(tree.folder(path.rpartition("/")[0]), path, nbytes, mtime_ns)
    tree.hidden = len(hidden)
    return tree


def _is_path(name: str) -> bool:
    """Return whether an object can be asked for by its name."""
    return can_be_made(name) and re.search(r"[\x00-\x1f\x7f]", name) is None


def _without_markers(listed: Iterator[Listed]) -> Iterator[Listed]:
    """Leave out the empty objects that stand for folders where a console shows a bucket as such."""
    folders, empty = {""}, []
    for one in listed:
        folders.add(one.path.rpartition("/")[0])
        if one.nbytes:
            yield one
        else:
            empty.append(one)
    above = {name[:at] for name in folders for at, letter in enumerate(f"{name}/") if letter == "/"}
    yield from (one for one in empty if one.path not in above)


def _listed(url: Url) -> Iterator[Listed]:
    if url.startswith("http"):
        raise SourceError(f"source {url}: a web server does not list its files; give their paths with --labels")
    try:
        yield from Bucket(url).list()
    except RemoteError as error:
        raise SourceError(f"source {error}") from None


def names_in_bucket(url: Url) -> NamesIn | None:
    return None if url.startswith("http") else names_of(one.path for one in _listed(url))


def look_up_objects(url: Url, paths: pa.ChunkedArray, refuse: Refuse) -> npt.NDArray[np.int64]:
    """A LookUp of objects below a URL. A store that can be listed is; a web server gets a request for each."""
    unsafe = pc.fill_null(unsafe_paths(paths), True)
    facts = np.full((len(paths), 2), -1, np.int64)
    asked = pc.if_else(unsafe, pa.scalar(None, paths.type), paths)
    (_ask_each if url.startswith("http") else _find_in_listing)(url, asked, facts)
    for row in np.flatnonzero(facts[:, 0] < 0).tolist():
        path = paths[row].as_py()
        if unsafe[row].as_py():
            refuse(row, path or "", no_path(path))
        else:
            refuse(row, path, RefusedFile("does not exist" if _is_path(path) else _NO_PATH))
    return facts


def _find_in_listing(url: Url, paths: pa.ChunkedArray, facts: npt.NDArray[np.int64]) -> None:
    listed = (one for one in _listed(url) if _is_path(one.path))
    while some := list(islice(listed, _CHUNK)):
        rows = pc.index_in(paths, pa.array([one.path for one in some], paths.type)).combine_chunks()
        is_listed = rows.is_valid().to_numpy(zero_copy_only=False)
        known = np.array([(one.nbytes, one.mtime_ns) for one in some], np.int64)
        facts[is_listed] = known[rows.drop_null().to_numpy()]


def _ask_each(url: Url, paths: pa.ChunkedArray, facts: npt.NDArray[np.int64]) -> None:
    bucket = Bucket(url)

    def ask(first: int) -> None:
        for row, path in enumerate(paths.slice(first, _ASKED_IN_TURN).to_pylist(), first):
            listed = bucket.head(path) if path is not None and _is_path(path) else None
            if listed is not None:
                facts[row] = listed.nbytes, listed.mtime_ns

    try:
        Connections(count=_AT_ONCE).all_of(ask, range(0, len(paths), _ASKED_IN_TURN))
    except RemoteError as error:
        raise SourceError(f"source {error}") from None
