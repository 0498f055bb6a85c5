"""Scans a raw folder or a label table for samples, and lists them in dataset order.

The resulting table has the columns ``path`` (relative to the source, POSIX), ``source_nbytes``,
``source_mtime_ns`` and the label columns. It is Arrow memory, without a Python object per file. `scan`
opens no image: the build decides by content which files are images, and `scan_images` as it does.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import PresizeWarning, SourceError
from presize.formatting import plural, printable
from presize.options import SourceOptions
from presize.sources.labels import check_classes, class_labels, naming, read_table
from presize.sources.source_files import starts_like_an_image
from presize.sources.walk import Folder, Identity, Refused, Walk, files_of, identity
from presize.store.rejects import IMAGE_SUFFIXES, Reject, claims_to_be_an_image

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
_CHUNK = 65536
_IMAGE_NAMES = rf"(?i)({'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})$"


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
    samples: SourceOptions = SourceOptions(),
    follow_links: bool = False,
) -> Source:
    """List the samples of a source. Files that cannot be samples, and folders that cannot hold any, become rejects.

    In a folder of folders each folder is a class, and samples have the order of torchvision's ImageFolder: by
    class, then folder, then name. A folder of files has no labels.

    Args:
        root: the source folder.
        samples: how the source is read.
        follow_links: follow links that lead out of the source; otherwise they are rejects.

    Raises:
        SourceError: the source or the label table cannot be used.

    Warns:
        PresizeWarning: something was probably not meant.
    """
    folder, its_identity = _resolve(root)
    with naming("classes"):
        known = None if samples.classes is None else check_classes(samples.classes)
    if samples.labels is not None:
        with naming(f"labels {os.fspath(samples.labels)!r}"):
            return _scan_table(folder, samples.labels, known, follow_links)
    walk = Walk(folder, follow_links)
    class_folders = sorted(walk.enter(Folder("", (its_identity,))))
    if class_folders or walk.refused_folders:
        return _scan_classes(walk, class_folders, known)
    if known is not None:
        raise SourceError(f"--classes needs class folders, or --labels; source {folder!r} has no folders")
    return _source(walk, walk.table(), None)


def scan_images(root: str | os.PathLike[str]) -> Source:
    """The images of a folder as a build would list them, with links followed, as ImageFolder does.

    A file is listed when its name claims that it is an image, whatever its content; any other file when it starts
    like one, for which it is opened: about 10 µs each from the page cache.

    Raises:
        SourceError: there are none.
    """
    source = scan(root, follow_links=True)
    paths = source.table.column("path")
    is_image = pc.match_substring_regex(paths, _IMAGE_NAMES).to_numpy().copy()
    others = np.flatnonzero(~is_image)
    for start in range(0, len(others), _CHUNK):
        rows = others[start : start + _CHUNK]
        is_image[rows] = [starts_like_an_image(source.root, path) for path in paths.take(pa.array(rows)).to_pylist()]
    if not is_image.any():
        raise SourceError(f"{os.fspath(root)} holds no images")
    return replace(source, table=source.table.filter(pa.array(is_image)))


def _resolve(root: str | os.PathLike[str]) -> tuple[str, Identity]:
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
    return os.path.realpath(name), identity(status)


def _scan_classes(walk: Walk, folders: list[Folder], classes: tuple[str, ...] | None) -> Source:
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


def _source(walk: Walk, table: pa.Table, classes: tuple[str, ...] | None, outside: int = 0) -> Source:
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
    look_at = files_of(root, follow_links)
    refused, first = 0, ""
    chunks = []
    for start in range(0, len(paths), _CHUNK):
        found = []
        for path in paths.slice(start, _CHUNK).to_pylist():
            try:
                found.append(look_at(path))
            except Refused as reason:
                first = first or f"{path!r} {reason}"
                refused += 1
        chunks.append(np.array(found, np.int64).reshape(-1, 2))
    if refused:
        raise SourceError(f"{refused} of its {len(paths)} paths cannot be used, the first: {first}; source {root!r}")
    return [pa.chunked_array([chunk[:, k] for chunk in chunks]) for k in range(2)]
