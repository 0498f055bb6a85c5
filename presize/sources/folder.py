"""A folder of image files, on a disk or under a URL: walked, or searched for the files that a table lists."""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import RemoteError, SourceError
from presize.remote.bucket import Bucket, Connections, Listed
from presize.sources.columns import python_values
from presize.sources.contents import LINK_OUT, as_utf8, is_inside, is_utf8
from presize.sources.source_files import Url, in_any_form
from presize.sources.tree import FileTree
from presize.store.filenames import MAX_FOLDERS, can_be_made, unsafe_paths
from presize.store.rejects import UNREADABLE

Folder = tuple[str, tuple[tuple[int, int], ...]]
"""A folder: its path from the source, and the (device, inode) of it and of each folder above it."""

Refuse = Callable[[int, str, "RefusedFile"], None]
"""Called with the row, the path and the reason of a file that cannot be used."""

Facts = npt.NDArray[np.int64]
"""Sizes in bytes and modification times in nanoseconds, int64 (files, 2); -1 for refused files."""

NamesIn = Callable[[str], Iterable[str]]
"""Returns the names in a folder, "" for the source; none if it is not a folder. Names of folders end with a slash."""

UNSEEN = "cannot be accessed"
"""Part of the reason for rejecting a file or folder that could not be examined. Updates search the reasons of old
datasets for it."""

_OF_ONE_FOLDER = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
"""Errors that concern only one folder, such as lost+found, not the disk."""

_NO_FILE = {None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}

_CHUNK = 65536
_AT_ONCE = 32
_ASKED_IN_TURN = 8
"""Number of files that a thread requests one after another."""
_NO_PATH = "its name is not a path: it has an empty part, a part . or .., or a control character"


class RefusedFile(Exception):
    """A file, or a folder with all its files, cannot be used. `error` is UNREADABLE if later runs should try again."""

    def __init__(self, reason: str, error: str = SourceError.__name__, is_folder: bool = False) -> None:
        super().__init__(reason)
        self.error = error
        self.is_folder = is_folder


def is_of_the_disk(error: BaseException | None) -> bool:
    """Return whether the disk failed or permission is missing. The file may still exist."""
    return isinstance(error, OSError) and error.errno not in _NO_FILE


def _unseen(error: OSError, is_folder: bool = False) -> RefusedFile:
    kind = UNREADABLE if is_of_the_disk(error) else SourceError.__name__
    return RefusedFile(f"{UNSEEN}: {error.strerror}", kind, is_folder)


def walk_folder(root: str | os.PathLike[str], follow_links: bool) -> FileTree:
    """Return all files below a folder. Unreadable folders become rejects. Raises SourceError if the disk fails."""
    tree = FileTree(resolve(root))
    waiting: list[Folder] = [("", (identity(os.stat(tree.root)),))]
    while waiting:
        above, chain = waiting.pop()
        try:
            with os.scandir(os.path.join(tree.root, above)) as entries:
                number = tree.folder(above)
                for entry in entries:
                    if is_hidden(entry.name):
                        tree.hidden += 1
                        continue
                    path = f"{above}/{entry.name}" if above else entry.name
                    try:
                        status = look_at(entry, chain, tree.root, follow_links)
                    except RefusedFile as reason:
                        tree.reject(as_utf8(path), str(reason), reason.error, reason.is_folder)
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append((path, (*chain, identity(status))))
                    else:
                        tree.add(number, path, status.st_size, indexed_ns(status.st_mtime_ns))
        except OSError as error:
            refused = refused_folder(error, os.path.join(tree.root, above), is_root=not above)
            tree.reject(as_utf8(above), str(refused), refused.error, is_folder=True)
    return tree


def resolve(root: str | os.PathLike[str]) -> str:
    name = os.fspath(root)
    try:
        status = os.stat(name)
    except FileNotFoundError:
        raise SourceError(f"source {name!r} does not exist; expected a folder of images") from None
    except (OSError, ValueError) as error:  # ValueError for a null character
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"source {name!r}: {reason}; expected a folder of images") from None
    if not stat.S_ISDIR(status.st_mode):
        raise SourceError(f"source {name!r} is a file; expected a folder of images")
    return os.path.realpath(name)


def refused_folder(error: OSError, folder: str, is_root: bool) -> RefusedFile:
    """Return the reason to leave out an unreadable folder. Raises SourceError for the source, or if the disk fails."""
    if is_root or error.errno not in _OF_ONE_FOLDER:
        raise SourceError(f"folder {error.filename or folder!r}: {error.strerror}") from None
    return _unseen(error, is_folder=True)


def look_at(
    entry: os.DirEntry[str], chain: tuple[tuple[int, int], ...], root: str, follow_links: bool
) -> os.stat_result:
    """Return the status of a file or folder. Raises RefusedFile for unusable ones, OSError if a folder's disk fails."""
    try:
        status = entry.stat()
    except OSError as error:
        may_be_folder = is_of_the_disk(error) and not entry.is_file(follow_symlinks=False)
        if may_be_folder and error.errno not in _OF_ONE_FOLDER:
            raise
        raise _unseen(error, may_be_folder) from None
    is_folder = stat.S_ISDIR(status.st_mode)
    if not (entry.name.isascii() or is_utf8(entry.name)):
        raise RefusedFile("its name is not UTF-8", is_folder=is_folder)
    if not is_folder and not stat.S_ISREG(status.st_mode):
        raise RefusedFile("neither a file nor a folder")
    if entry.is_symlink() and not follow_links and not is_inside(entry.path, root):
        raise RefusedFile(LINK_OUT, is_folder=is_folder)
    if is_folder and len(chain) > MAX_FOLDERS:
        raise RefusedFile(f"it is nested more than {MAX_FOLDERS} folders deep", is_folder=True)
    if is_folder and identity(status) in chain:
        raise RefusedFile("a link to a folder that contains it")
    return status


def is_hidden(name: str) -> bool:
    """Return whether a name begins with a dot, or is that of the folder that macOS adds to zip files."""
    return name.startswith(".") or name == "__MACOSX"


def identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def names_in(root: str, folder: str) -> list[str]:
    """Return the names in `folder`, which is "" or ends with a slash. Names of folders end with a slash."""
    try:
        with os.scandir(f"{root}/{folder}") as entries:
            return [
                entry.name + "/" * (os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir())
                for entry in entries
                if is_utf8(entry.name)
            ]
    except OSError:
        return []


def look_up_files(root: str, follow_links: bool, paths: pa.ChunkedArray, refuse: Refuse, any_form: bool) -> Facts:

    @functools.cache
    def leads_out(folder: str) -> bool:
        return not follow_links and not is_inside(os.path.join(root, folder), root)

    def look_at(path: str) -> tuple[int, int]:
        full = f"{root}/{path}"
        status = os.lstat(full)
        is_link = stat.S_ISLNK(status.st_mode)
        if is_link:
            status = os.stat(full)
        if leads_out(path if is_link else os.path.dirname(path)):
            raise RefusedFile(f"is {LINK_OUT}")
        if not stat.S_ISREG(status.st_mode):
            raise RefusedFile("is not a file")
        return status.st_size, indexed_ns(status.st_mtime_ns)

    facts = np.full((len(paths), 2), -1, np.int64)
    unsafe = pc.fill_null(unsafe_paths(paths), True).to_numpy()
    for row, path in enumerate(python_values(paths)):
        try:
            if unsafe[row]:
                raise no_path(path)
            facts[row] = in_any_form(path, look_at) if any_form else look_at(path)
        except RefusedFile as reason:
            refuse(row, path or "", reason)
        except FileNotFoundError:
            refuse(row, path, RefusedFile("does not exist"))
        except OSError as error:
            refuse(row, path, _unseen(error))
    return facts


def no_path(path: str | None) -> RefusedFile:
    return RefusedFile("leads out of the source" if path else "is not named")


def indexed_ns(mtime_ns: int) -> int:
    """Return a modification time that fits the index: times before 1677 or after 2262 are clipped."""
    return min(max(mtime_ns, -(2**63)), 2**63 - 1)


def walk_bucket(url: Url) -> FileTree:
    """Return all objects under a URL, except hidden ones, which are counted. A request lists a thousand."""
    tree = FileTree(url)
    hidden: set[str] = set()
    for path, nbytes, mtime_ns in _without_markers(_listed(url)):
        names = path.split("/")
        depth = next((depth for depth, name in enumerate(names, 1) if is_hidden(name)), None)
        if not _is_path(path):
            tree.reject(path, _NO_PATH)
        elif depth is not None:
            hidden.add("/".join(names[:depth]))
        else:
            tree.add(tree.folder(path.rpartition("/")[0]), path, nbytes, mtime_ns)
    tree.hidden = len(hidden)
    return tree


def _is_path(name: str) -> bool:
    return can_be_made(name) and re.search(r"[\x00-\x1f\x7f]", name) is None


def _without_markers(listed: Iterator[Listed]) -> Iterator[Listed]:
    """Leave out the empty objects that consoles create as markers of folders."""
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


def look_up_objects(url: Url, paths: pa.ChunkedArray, refuse: Refuse) -> Facts:
    """Look up objects under a URL: in the listing of a store, or with a request for each on a web server."""
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


def _find_in_listing(url: Url, paths: pa.ChunkedArray, facts: Facts) -> None:
    listed = (one for one in _listed(url) if _is_path(one.path))
    while some := list(islice(listed, _CHUNK)):
        rows = pc.index_in(paths, pa.array([one.path for one in some], paths.type)).combine_chunks()
        is_listed = rows.is_valid().to_numpy(zero_copy_only=False)
        known = np.array([(one.nbytes, one.mtime_ns) for one in some], np.int64)
        facts[is_listed] = known[rows.drop_null().to_numpy()]


def _ask_each(url: Url, paths: pa.ChunkedArray, facts: Facts) -> None:
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


def names_of(paths: Iterable[str]) -> NamesIn:
    """Return a function that lists the folders of these files. Its first call consumes `paths`."""
    folders: defaultdict[str, set[str]] = defaultdict(set)

    def names_in(folder: str) -> Iterable[str]:
        if not folders:
            for path in paths:
                while path:
                    above = path[: path.rstrip("/").rfind("/") + 1]
                    if path[len(above) :] in folders[above]:
                        break
                    folders[above].add(path[len(above) :])
                    path = above
        return folders.get(folder, ())

    return names_in
