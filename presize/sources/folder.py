"""A folder of image files on a disk: walked, or looked into for the files that a table lists."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError
from presize.sources.columns import python_values
from presize.sources.contents import LINK_OUT, as_utf8, is_inside, is_utf8
from presize.sources.source_files import in_any_form
from presize.sources.tree import FileTree
from presize.store.filenames import MAX_FOLDERS, unsafe_paths
from presize.store.rejects import UNREADABLE

Folder = tuple[str, tuple[tuple[int, int], ...]]
"""A folder: its path from the source, and (device, inode) of it and of each folder above it."""

Refuse = Callable[[int, str, "RefusedFile"], None]
"""Takes the row, the path and the reason of a file that cannot be used."""

LookUp = Callable[[pa.ChunkedArray, Refuse], npt.NDArray[np.int64]]
"""Returns sizes and modification times in nanoseconds, int64 (files, 2), of paths that may be null; -1 if refused."""

UNSEEN = "cannot be looked at"
"""In the reason of what was refused, unlisted, because the disk failed."""

_OF_ONE_FOLDER = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
"""Errors of one folder, such as lost+found, that say nothing of the disk."""

_NO_FILE = {None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


class RefusedFile(Exception):
    """A file, or all in a folder, cannot be a sample. `error` is UNREADABLE if later runs should try again."""

    def __init__(self, reason: str, error: str = SourceError.__name__, is_folder: bool = False) -> None:
        super().__init__(reason)
        self.error = error
        self.is_folder = is_folder


def is_of_the_disk(error: BaseException | None) -> bool:
    """Return whether the disk failed or permission is missing, and the name may well be that of a file."""
    return isinstance(error, OSError) and error.errno not in _NO_FILE


def _unseen(error: OSError, is_folder: bool = False) -> RefusedFile:
    kind = UNREADABLE if is_of_the_disk(error) else SourceError.__name__
    return RefusedFile(f"{UNSEEN}: {error.strerror}", kind, is_folder)


def walk_folder(root: str | os.PathLike[str], follow_links: bool) -> FileTree:
    """Return all files below a folder. Folders that may not be read are refused; SourceError if the disk fails."""
    tree = FileTree(resolve(root))
    waiting: list[Folder] = [("", (_identity(os.stat(tree.root)),))]
    while waiting:
        waiting += _enter(tree, waiting.pop(), follow_links)
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


def _enter(tree: FileTree, folder: Folder, follow_links: bool) -> list[Folder]:
    """Collect the files of one folder, and return the folders in it."""
    above, chain = folder
    inner: list[Folder] = []
    try:
        with os.scandir(os.path.join(tree.root, above)) as entries:
            number = tree.folder(above)
            for entry in entries:
                if entry.name.startswith("."):
                    tree.hidden += 1
                    continue
                path = f"{above}/{entry.name}" if above else entry.name
                try:
                    status = _look_at(entry, chain, tree.root, follow_links)
                except RefusedFile as reason:
                    tree.reject(as_utf8(path), str(reason), reason.error, reason.is_folder)
                    continue
                if stat.S_ISDIR(status.st_mode):
                    inner.append((path, (*chain, _identity(status))))
                else:
                    tree.add(number, path, status.st_size, indexed_ns(status.st_mtime_ns))
    except OSError as error:
        refused = refused_folder(error, os.path.join(tree.root, above), is_root=not above)
        tree.reject(as_utf8(above), str(refused), refused.error, is_folder=True)
    return inner


def refused_folder(error: OSError, folder: str, is_root: bool) -> RefusedFile:
    """Return why a folder is left out that may not be read. SourceError for the source, or where the disk fails."""
    if is_root or error.errno not in _OF_ONE_FOLDER:
        raise SourceError(f"folder {error.filename or folder!r}: {error.strerror}") from None
    return _unseen(error, is_folder=True)


def _look_at(
    entry: os.DirEntry[str], chain: tuple[tuple[int, int], ...], root: str, follow_links: bool
) -> os.stat_result:
    """Return the status of a file or folder. RefusedFile for neither; OSError if the disk fails on a folder."""
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
        raise RefusedFile(f"it lies in more than {MAX_FOLDERS} folders", is_folder=True)
    if is_folder and _identity(status) in chain:
        raise RefusedFile("a link to a folder that it lies in")
    return status


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def names_in(root: str, folder: str) -> list[str]:
    """Return the names in a folder, "" or with a slash behind it: those of folders have one, too."""
    try:
        with os.scandir(f"{root}/{folder}") as entries:
            return [
                entry.name + "/" * (os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir())
                for entry in entries
                if is_utf8(entry.name)
            ]
    except OSError:
        return []


def look_up_files(
    root: str, follow_links: bool, paths: pa.ChunkedArray, refuse: Refuse, any_form: bool = False
) -> npt.NDArray[np.int64]:
    """A LookUp of files below `root`: with `follow_links` also outside, and in `any_form` in another normalization."""

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
    """Return a modification time as the index holds it: those before 1677 or after 2262 count as its first or last."""
    return min(max(mtime_ns, -(2**63)), 2**63 - 1)
