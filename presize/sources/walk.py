"""Walks a source folder, and collects its files in dataset order without a Python object for each."""

from __future__ import annotations

import errno
import functools
import heapq
import os
import stat
from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError
from presize.store.rejects import UNREADABLE, Reject

Identity = tuple[int, int]
"""(device, inode) of a file or folder."""

LINK_OUT = "a link out of the source; use --follow-links if you trust it"

_CHUNK = 65536


class Folder(NamedTuple):
    """A folder: its path from the source, and the (device, inode) of it and of each folder above it."""

    path: str
    chain: tuple[Identity, ...]


class Refused(Exception):
    """A file cannot be a sample; ``str()`` is the reason."""


class RefusedFolder(Refused):
    """Nothing in a folder can be a sample."""


class Unreadable(Refused):
    """The disk failed, or permission is missing; later runs try the file again."""


UNSEEN = "cannot be looked at"
"""In the reason of what was refused, unlisted, because the disk failed."""

_NO_FILE = {None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


def is_of_the_disk(error: BaseException | None) -> bool:
    """Whether the disk failed or permission is missing, and the name may well be that of a file."""
    return isinstance(error, OSError) and error.errno not in _NO_FILE


def _unseen(error: OSError) -> Refused:
    """Why a file cannot be a sample that cannot be looked at."""
    return (Unreadable if is_of_the_disk(error) else Refused)(f"{UNSEEN}: {error.strerror}")


class Walk:
    """Collects the files of one folder after the other, without a Python object for each."""

    def __init__(self, root: str, follow_links: bool) -> None:
        self.root = root
        self.hidden = 0
        self.rejects: list[Reject] = []
        self.refused_folders: list[Reject] = []
        self._follow_links = follow_links
        self._folders = 0
        self._folder_numbers, self._sizes, self._mtimes = array("q"), array("q"), array("q")
        self._paths: list[str] = []
        self._path_chunks: list[pa.Array] = []

    @property
    def files(self) -> int:
        return len(self._sizes)

    def descend(self, folder: Folder) -> None:
        """Enter a folder and all folders below it, in the order of a sorted os.walk."""
        waiting = [folder]
        while waiting:  # subfolders sort after their folder, so the smallest waiting path is the next of all
            for inner in self.enter(heapq.heappop(waiting)):
                heapq.heappush(waiting, inner)

    def enter(self, folder: Folder) -> list[Folder]:
        """Collect the files of one folder, and return the folders in it, in any order."""
        self._folders += 1
        inner = []
        try:
            with os.scandir(os.path.join(self.root, folder.path)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        self.hidden += 1
                        continue
                    path = f"{folder.path}/{entry.name}" if folder.path else entry.name
                    try:
                        status = self._look_at(entry, folder)
                    except Refused as reason:
                        kind = UNREADABLE if isinstance(reason, Unreadable) else SourceError.__name__
                        self.rejects.append(Reject(as_utf8(path), kind, str(reason)))
                        if isinstance(reason, RefusedFolder):
                            self.refused_folders.append(self.rejects[-1])
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        inner.append(Folder(path, (*folder.chain, identity(status))))
                    else:
                        self._append(path, status)
        except OSError as error:
            place = error.filename or os.path.join(self.root, folder.path)
            raise SourceError(f"folder {place!r}: {error.strerror}") from None
        return inner

    def _look_at(self, entry: os.DirEntry[str], folder: Folder) -> os.stat_result:
        """The status of a file, or of a folder to enter. Nothing is opened. Raises Refused for what is neither, OSError
        when the disk fails and it may be a folder: without it there would be other classes."""
        try:
            status = entry.stat()
        except OSError as error:
            reason = _unseen(error)
            if isinstance(reason, Unreadable) and not entry.is_file(follow_symlinks=False):
                raise
            raise reason from None
        is_folder = stat.S_ISDIR(status.st_mode)
        refused = RefusedFolder if is_folder else Refused
        if not (entry.name.isascii() or is_utf8(entry.name)):
            raise refused("its name is not UTF-8")
        if not is_folder and not stat.S_ISREG(status.st_mode):
            raise Refused("neither a file nor a folder")
        if entry.is_symlink() and not self._follow_links and not is_inside(entry.path, self.root):
            raise refused(LINK_OUT)
        if is_folder and identity(status) in folder.chain:
            raise Refused("a link to a folder that it lies in")
        return status

    def _append(self, path: str, status: os.stat_result) -> None:
        self._folder_numbers.append(self._folders)
        self._sizes.append(status.st_size)
        self._mtimes.append(indexed_ns(status.st_mtime_ns))
        self._paths.append(path)
        if len(self._paths) == _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._path_chunks.append(pa.array(self._paths, pa.large_string()))
        self._paths.clear()

    def table(self) -> pa.Table:
        """All files: folders in the order in which they were entered, files by name. To be called once: what was
        collected is given away, column by column, since all of ten million files twice are two gigabytes."""
        self._flush()
        paths = pa.concat_arrays(self._path_chunks)  # take() would make of the chunks one more copy, and keep them
        self._path_chunks.clear()
        columns = {
            "folder": pa.array(np.frombuffer(self._folder_numbers, np.int64)),
            "path": paths,
            "source_nbytes": pa.array(np.frombuffer(self._sizes, np.int64)),
            "source_mtime_ns": pa.array(np.frombuffer(self._mtimes, np.int64)),
        }
        del paths, self._folder_numbers, self._sizes, self._mtimes
        # Arrow sorts by UTF-8 bytes, which is Python's order by code points.
        order = pc.sort_indices(pa.table(columns), [("folder", "ascending"), ("path", "ascending")])
        del columns["folder"]
        return pa.table({name: columns.pop(name).take(order) for name in list(columns)})


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def is_inside(path: str, root: str) -> bool:
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(root, ""))


def is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def indexed_ns(mtime_ns: int) -> int:
    """A modification time as the index holds it. Those before 1677 or after 2262 count as its first or last: two of
    them are equal, so that only the size, or a checksum, tells whether such a file has changed."""
    return min(max(mtime_ns, -(2**63)), 2**63 - 1)


def files_of(root: str, follow_links: bool) -> Callable[[str], tuple[int, int]]:
    """What looks up a file by its path from `root`: its size in bytes, and its mtime in nanoseconds. It raises Refused
    for what is no file, or lies outside and links are not to be followed."""

    @functools.cache
    def leads_out(folder: str) -> bool:
        return not follow_links and not is_inside(os.path.join(root, folder), root)

    def look_at(path: str) -> tuple[int, int]:
        full = f"{root}/{path}"
        try:
            status = os.lstat(full)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link:
                status = os.stat(full)
        except FileNotFoundError:
            raise Refused("does not exist") from None
        except OSError as error:
            raise _unseen(error) from None
        if leads_out(path if is_link else os.path.dirname(path)):
            raise Refused(f"is {LINK_OUT}")
        if not stat.S_ISREG(status.st_mode):
            raise Refused("is not a file")
        return status.st_size, indexed_ns(status.st_mtime_ns)

    return look_at


def as_utf8(path: str) -> str:
    """A readable path, in which bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
