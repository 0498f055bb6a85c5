"""Scans a raw folder or a label table for samples, and lists them in dataset order.

The resulting table has the columns ``path`` (relative to the source, POSIX), ``source_nbytes``,
``source_mtime_ns`` and the label columns. It is Arrow memory, without a Python object per file. No image is
opened here; the build decides by content which files are images.
"""

from __future__ import annotations

import functools
import heapq
import os
import re
import stat
import warnings
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import PresizeWarning, SourceError
from presize.formatting import plural, printable
from presize.sources.labels import check_classes, class_labels, naming, read_table
from presize.store.rejects import IMAGE_SUFFIXES, Reject, claims_to_be_an_image

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
_CHUNK = 65536
_IMAGE_NAMES = rf"(?i)({'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})$"
_Identity = tuple[int, int]
_LINK_OUT = "a link out of the source; use --follow-links if you trust it"


@dataclass(frozen=True)
class Source:
    """The samples of a build.

    Attributes:
        root: the source folder, absolute.
        table: one row per file, in dataset order.
        classes: the class names that ``label`` indexes; None when the labels are not classes.
        rejects: files and folders that are rejected unread: links out of the source, names that are not UTF-8, ...
        hidden: files and folders whose names begin with a dot.
        outside: files beside the class folders.
        by_folder: whether the classes are folders of the source.
    """

    root: Path
    table: pa.Table
    classes: tuple[str, ...] | None
    rejects: tuple[Reject, ...] = ()
    hidden: int = 0
    outside: int = 0
    by_folder: bool = False


def scan(
    root: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> Source:
    """List the samples of a source. Files that cannot be samples, and folders that cannot hold any, become rejects.

    In a folder of folders each folder is a class, and samples have the order of torchvision's ImageFolder: by
    class, then folder, then name. A folder of files has no labels.

    Args:
        root: the source folder.
        labels: a table (CSV, JSON lines or Parquet) whose ``path`` column lists the samples, in their order.
        classes: the class list; without it the classes are the sorted folder names or labels.
        follow_links: follow links that lead out of the source; otherwise they are rejects.

    Raises:
        SourceError: the source or the label table cannot be used.

    Warns:
        PresizeWarning: something was probably not meant.
    """
    folder, identity = _resolve(root)
    with naming("classes"):
        known = None if classes is None else check_classes(classes)
    if labels is not None:
        with naming(f"labels {os.fspath(labels)!r}"):
            return _scan_table(folder, labels, known, follow_links)
    walk = _Walk(folder, follow_links)
    class_folders = sorted(walk.enter(_Folder("", (identity,))))
    if class_folders or walk.refused_folders:
        return _scan_classes(walk, class_folders, known)
    if known is not None:
        raise SourceError(f"--classes needs class folders, or --labels; source {folder!r} has no folders")
    return _source(walk, walk.table(), None)


def scan_images(root: str | os.PathLike[str]) -> Source:
    """A folder as ImageFolder lists it: links are followed, and names decide what is an image. Raises SourceError
    when no name does."""
    source = scan(root, follow_links=True)
    table = source.table.filter(pc.match_substring_regex(source.table.column("path"), _IMAGE_NAMES))
    if len(table) == 0:
        raise SourceError(f"{os.fspath(root)} holds no files that are named like images")
    return replace(source, table=table)


def _resolve(root: str | os.PathLike[str]) -> tuple[str, _Identity]:
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
    return os.path.realpath(name), _identity(status)


def _scan_classes(walk: _Walk, folders: list[_Folder], classes: tuple[str, ...] | None) -> Source:
    names = tuple(folder.path for folder in folders)
    if classes is None and names and set(map(str.lower, names)) <= _SPLITS:
        warnings.warn(
            f"source {walk.root!r} holds just {', '.join(names)}: they become its classes; "
            "if they are splits, build each separately, with the same --classes",
            PresizeWarning,
            stacklevel=3,
        )
    number = {name: i for i, name in enumerate(classes or names)}
    unknown = [name for name in names if name not in number]
    if unknown:
        raise SourceError(
            f"class folder {unknown[0]!r} ({len(unknown)} such) is not in the class list of {len(number)} names; "
            "add it to the list or move the folder away"
        )
    outside = walk.files
    label = [np.empty(0, np.int32)]
    for folder in folders:
        before = walk.files
        walk.descend(folder)
        label.append(np.full(walk.files - before, number[folder.path], np.int32))
    table = walk.table()
    beside = table.column("path").slice(0, outside)
    table = table.slice(outside).append_column("label", pa.array(np.concatenate(label)))
    source = _source(walk, table, tuple(number), outside)
    images = sum(map(claims_to_be_an_image, beside.to_pylist()))
    if images:
        warnings.warn(
            f"source {walk.root!r} has folders, which become its classes; {images} images beside them belong to none "
            "and are left out: move the folders away, or the images into them, or list them all with --labels",
            PresizeWarning,
            stacklevel=3,
        )
    return source


def _source(walk: _Walk, table: pa.Table, classes: tuple[str, ...] | None, outside: int = 0) -> Source:
    if len(table) == 0:
        counts = {"hidden": walk.hidden, "beside the class folders": outside, "refused": len(walk.rejects)}
        found = [f"{count} {what}" for what, count in counts.items() if count]
        if walk.rejects:
            found[-1] += f", the first is '{printable(walk.rejects[0].path)}', {walk.rejects[0].reason}"
        raise SourceError(
            f"source {walk.root!r} holds no files ({', '.join(found) or 'nothing at all'}); "
            "expected image files, or a folder of them for each class"
        )
    if walk.refused_folders:
        first = walk.refused_folders[0]
        warnings.warn(
            f"source {walk.root!r}: {plural(len(walk.refused_folders), 'folder')} left out with all that is in them; "
            f"the first is '{printable(first.path)}': {first.reason}",
            PresizeWarning,
            stacklevel=4,
        )
    return Source(Path(walk.root), table, classes, tuple(walk.rejects), walk.hidden, outside, classes is not None)


class _Folder(NamedTuple):
    """A folder: its path from the source, and the (device, inode) of it and of each folder above it."""

    path: str
    chain: tuple[_Identity, ...]


class _Refused(Exception):
    """A file cannot be a sample; ``str()`` is the reason."""


class _RefusedFolder(_Refused):
    """Nothing in a folder can be a sample."""


class _Walk:
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

    def descend(self, folder: _Folder) -> None:
        """Enter a folder and all folders below it, in the order of a sorted os.walk."""
        waiting = [folder]
        while waiting:  # subfolders sort after their folder, so the smallest waiting path is the next of all
            for inner in self.enter(heapq.heappop(waiting)):
                heapq.heappush(waiting, inner)

    def enter(self, folder: _Folder) -> list[_Folder]:
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
                        status = self._look_at(entry, path, folder)
                    except _Refused as reason:
                        self.rejects.append(Reject(_as_utf8(path), SourceError.__name__, str(reason)))
                        if isinstance(reason, _RefusedFolder):
                            self.refused_folders.append(self.rejects[-1])
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        inner.append(_Folder(path, (*folder.chain, _identity(status))))
                    else:
                        self._append(path, status)
        except OSError as error:
            raise SourceError(f"folder {os.path.join(self.root, folder.path)!r}: {error.strerror}") from None
        return inner

    def _look_at(self, entry: os.DirEntry[str], path: str, folder: _Folder) -> os.stat_result:
        """The status of a file, or of a folder to enter. Nothing is opened. Raises _Refused for what is neither."""
        try:
            status = entry.stat()
        except OSError as error:
            raise _Refused(f"cannot be looked at: {error.strerror}") from None
        is_folder = stat.S_ISDIR(status.st_mode)
        refused = _RefusedFolder if is_folder else _Refused
        if not (entry.name.isascii() or _is_utf8(entry.name)):
            raise refused("its name is not UTF-8")
        if not is_folder and not stat.S_ISREG(status.st_mode):
            raise _Refused("neither a file nor a folder")
        if entry.is_symlink() and not self._follow_links and not _is_inside(entry.path, self.root):
            raise refused(_LINK_OUT)
        if is_folder and _identity(status) in folder.chain:
            raise _Refused("a link to a folder that it lies in")
        return status

    def _append(self, path: str, status: os.stat_result) -> None:
        self._folder_numbers.append(self._folders)
        self._sizes.append(status.st_size)
        self._mtimes.append(_mtime_ns(status))
        self._paths.append(path)
        if len(self._paths) == _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._path_chunks.append(pa.array(self._paths, pa.large_string()))
        self._paths.clear()

    def table(self) -> pa.Table:
        """All files: folders in the order in which they were entered, files by name."""
        self._flush()
        numbers = (self._folder_numbers, self._sizes, self._mtimes)
        folders, sizes, mtimes = (pa.array(np.frombuffer(values, np.int64)) for values in numbers)
        names = ["folder", "path", "source_nbytes", "source_mtime_ns"]
        table = pa.table([folders, pa.chunked_array(self._path_chunks), sizes, mtimes], names)
        # Arrow sorts by UTF-8 bytes, which is Python's order by code points.
        return table.sort_by([("folder", "ascending"), ("path", "ascending")]).drop_columns("folder")


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _is_inside(path: str, root: str) -> bool:
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(root, ""))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mtime_ns(status: os.stat_result) -> int:
    """A modification time as the index holds it. Those before 1677 or after 2262 count as its first or last: two of
    them are equal, so that only the size, or a checksum, tells whether such a file has changed."""
    return min(max(status.st_mtime_ns, -(2**63)), 2**63 - 1)


def _as_utf8(path: str) -> str:
    """A readable path, in which bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _scan_table(
    root: str, labels: str | os.PathLike[str], classes: tuple[str, ...] | None, follow_links: bool
) -> Source:
    table = read_table(labels)
    columns = {name: table.column(name) for name in table.column_names}
    known = None
    if "label" in columns and pa.types.is_large_string(columns["label"].type):
        columns["label"], known = class_labels(columns["label"], classes)
    elif classes is not None:
        raise SourceError("--classes needs a label column of strings")
    sizes, mtimes = _look_up(table.column("path"), root, follow_links)
    files = {"path": columns.pop("path"), "source_nbytes": sizes, "source_mtime_ns": mtimes}
    return Source(Path(root), pa.table(files | columns), known)


def _look_up(paths: pa.ChunkedArray, root: str, follow_links: bool) -> list[pa.ChunkedArray]:
    """The sizes in bytes and the mtimes in nanoseconds of the files that a table lists."""

    @functools.cache
    def leads_out(folder: str) -> bool:
        return not follow_links and not _is_inside(os.path.join(root, folder), root)

    def look_at(path: str) -> tuple[int, int]:
        full = f"{root}/{path}"
        try:
            status = os.lstat(full)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link:
                status = os.stat(full)
        except FileNotFoundError:
            raise _Refused("does not exist") from None
        except OSError as error:
            raise _Refused(f"cannot be looked at: {error.strerror}") from None
        if leads_out(path if is_link else os.path.dirname(path)):
            raise _Refused(f"is {_LINK_OUT}")
        if not stat.S_ISREG(status.st_mode):
            raise _Refused("is not a file")
        return status.st_size, _mtime_ns(status)

    refused, first = 0, ""
    chunks = []
    for start in range(0, len(paths), _CHUNK):
        found = []
        for path in paths.slice(start, _CHUNK).to_pylist():
            try:
                found.append(look_at(path))
            except _Refused as reason:
                first = first or f"{path!r} {reason}"
                refused += 1
        chunks.append(np.array(found, np.int64).reshape(-1, 2))
    if refused:
        raise SourceError(f"{refused} of its {len(paths)} paths cannot be used, the first: {first}; source {root!r}")
    return [pa.chunked_array([chunk[:, k] for chunk in chunks]) for k in range(2)]
