"""Scans a raw folder or a label table for samples, and lists them in dataset order.

The resulting table has the columns ``path`` (relative to the source, POSIX), ``source_nbytes``,
``source_mtime_ns`` and the label columns. It is Arrow memory, without a Python object per file. `scan`
opens no image: the build decides by content which files are images, and `scan_images` as it does.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import PresizeWarning, SourceError
from presize.formatting import plural, printable
from presize.options import ColumnType, SourceOptions, ValueType
from presize.sources.containers import list_samples
from presize.sources.contents import PLACE_COLUMNS
from presize.sources.labels import check_classes, class_labels, naming, read_table
from presize.sources.recognize import Containers, recognize
from presize.sources.source_files import Container, Places, SourceFile, source_files, starts_like_an_image
from presize.sources.splits import with_folder_labels, with_splits
from presize.sources.store_listing import StoreWalk, look_up
from presize.sources.store_source import Url
from presize.sources.table_files import IMAGE_NAMES, is_list
from presize.sources.tree import class_column, list_tree, warn_of_images
from presize.sources.walk import Folder, Identity, Refused, Walk, files_of, identity
from presize.store.dealing import Groups
from presize.store.index import INDEX_COLUMNS
from presize.store.rejects_file import Rejects

_CHUNK = 65536


@dataclass(frozen=True)
class Source:
    """The samples of a build.

    Attributes:
        root: the source folder, absolute; or its URL.
        table: one row per file, in dataset order.
        classes: the class names that ``label`` indexes; None when the labels are not classes.
        rejects: files and folders that are rejected unread: links out of the source, names that are not UTF-8, ...
        hidden: files and folders whose names begin with a dot.
        outside: files beside the class folders.
        by_folder: whether the classes are folders of the source.
        containers: the files that hold the samples; empty where each sample is a file. The table then has
            PLACE_COLUMNS, too.
    """

    root: Path | Url
    table: pa.Table
    classes: tuple[str, ...] | None
    rejects: Rejects = field(default_factory=Rejects)
    hidden: int = 0
    outside: int = 0
    by_folder: bool = False
    containers: tuple[Container, ...] = ()

    @property
    def fields(self) -> list[str]:
        """The columns of the table that the index takes over as they are: labels, and whatever else is known."""
        own = {*INDEX_COLUMNS, *(PLACE_COLUMNS if self.containers else ())}
        return [name for name in self.table.column_names if name not in own]

    @property
    def groups(self) -> Groups | None:
        """The group of each sample (see presize.store.dealing.assign_shards); None where each is a file."""
        return self.table.column("run").to_numpy() if self.containers else None

    def places(self, rows: npt.NDArray[np.int64]) -> Places | None:
        """Where the samples in these rows of the table lie in containers; None where each is a file."""
        if not self.containers:
            return None
        found = self.table.select(["container", "offset"]).take(pa.array(rows))
        used, container = np.unique(found.column("container").to_numpy(), return_inverse=True)
        containers = tuple(self.containers[number] for number in used.tolist())
        return Places(containers, container, found.column("offset").to_numpy())

    def files(self, rows: npt.NDArray[np.int64]) -> list[SourceFile]:
        """The source files of these rows of the table."""
        found = self.table.select(["path", "source_nbytes"]).take(pa.array(rows)).to_pydict()
        return source_files(found["path"], found["source_nbytes"], self.places(rows))


def scan(
    root: str | os.PathLike[str],
    samples: SourceOptions = SourceOptions(),
    follow_links: bool = False,
    types: Sequence[ColumnType] = (),
) -> Source:
    """List the samples of a source. Files that cannot be samples, and folders that cannot hold any, become rejects.

    In a folder of folders each folder is a class, and samples have the order of torchvision's ImageFolder: by
    class, then folder, then name; where the folders are splits, by split first. A folder of files has no labels.
    LMDBs, tar shards and Parquet files are recognized (presize.sources.containers).

    Args:
        root: the source folder, its URL, or a container.
        samples: how the source is read.
        follow_links: follow links that lead out of the source; otherwise they are rejects.
        types: the types of columns that would be read as another.

    Raises:
        SourceError: the source or the label table cannot be used.

    Warns:
        PresizeWarning: something was probably not meant.
    """
    with naming("classes"):
        known = None if samples.classes is None else check_classes(samples.classes)
    url = Url.of(root)
    found = None if samples.table is not None or url else recognize(root, samples.keys is not None)
    if samples.keys is not None and found is None:
        raise SourceError(f"--keys needs an LMDB, tar shards or Parquet files; source {os.fspath(root)!r} has none")
    if found is not None:
        source = _scan_containers(found, samples, known, follow_links, dict(types))
        _warn_of_backslashes(source, samples)
        return source if samples.split == "folders" else replace(source, table=with_splits(source.table, samples))
    place, chain = (url, ()) if url else _resolve(root)
    if samples.table is not None:
        with naming(f"labels {os.fspath(samples.table)!r}"):
            listed = read_table(samples.table, root, samples.repeated, dict(types))
            if "label" not in listed.column_names and is_list(samples.table):
                listed = with_folder_labels(listed, samples)
            source = _scan_table(place, listed, known, follow_links, dict(types).get("label") == "class")
    else:
        if types:
            raise SourceError(f"--column-type is for tables and containers; source {os.fspath(root)!r} has none")
        walk = StoreWalk(url) if url else Walk(place, follow_links)
        source = _scan_tree(walk, Folder("", chain), samples, known)
    _warn_of_backslashes(source, samples)
    return replace(source, table=with_splits(source.table, samples))


def scan_images(root: str | os.PathLike[str]) -> Source:
    """The images of a folder as a build would list them, with links followed, as ImageFolder does.

    A file is listed when its name claims that it is an image, whatever its content; any other file when it starts
    like one, for which it is opened: about 10 µs each from the page cache.

    Raises:
        SourceError: there are none.
    """
    source = scan(root, follow_links=True)
    if source.containers:
        raise SourceError(f"{os.fspath(root)} holds no image files but {source.containers[0].path!r}")
    paths = source.table.column("path")
    is_image = pc.match_substring_regex(paths, IMAGE_NAMES).to_numpy().copy()
    others = np.flatnonzero(~is_image)
    for start in range(0, len(others), _CHUNK):
        rows = others[start : start + _CHUNK]
        is_image[rows] = [
            starts_like_an_image(Path(source.root), path) for path in paths.take(pa.array(rows)).to_pylist()
        ]
    if not is_image.any():
        raise SourceError(f"{os.fspath(root)} holds no images")
    return replace(source, table=source.table.filter(pa.array(is_image)))


def _scan_containers(
    found: Containers,
    samples: SourceOptions,
    classes: tuple[str, ...] | None,
    follow_links: bool,
    types: Mapping[str, ValueType],
) -> Source:
    listed = list_samples(found, samples, classes, follow_links, types)
    return Source(
        Path(found.root), listed.table, listed.classes, listed.rejects, listed.hidden, containers=listed.containers
    )


def _resolve(root: str | os.PathLike[str]) -> tuple[str, tuple[Identity]]:
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
    return os.path.realpath(name), (identity(status),)


def _scan_tree(walk: Walk | StoreWalk, top: Folder, samples: SourceOptions, known: tuple[str, ...] | None) -> Source:
    tree, classes = list_tree(walk, top, samples)
    if known is not None and classes is None:
        raise SourceError(f"--classes needs class folders, or --labels; source {walk.root!r} has no folders of classes")
    table, beside = tree.tables()
    if classes is not None:
        classes = known or classes
        table = table.append_column("label", class_column(tree, classes))
    in_splits = samples.split == "folders"
    source = _source(walk, table, classes, len(beside), by_folder=classes is not None and not in_splits)
    warn_of_images(beside, walk.root, in_splits)
    return source


def _source(
    walk: Walk | StoreWalk, table: pa.Table, classes: tuple[str, ...] | None, outside: int, by_folder: bool
) -> Source:
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
    return Source(_root(walk.root), table, classes, Rejects.of(walk.rejects), walk.hidden, outside, by_folder)


def _warn_of_backslashes(source: Source, samples: SourceOptions) -> None:
    """Warn of samples that have no label, or all the same, since the backslashes in their names are no folders."""
    wanted = samples.labels is None or (samples.table is not None and is_list(samples.table))
    one_class = source.classes is not None and source.by_folder and len(source.classes) == 1
    if not wanted or ("label" in source.table.column_names and not one_class):
        return
    paths = source.table.column("path")
    named = paths.filter(pc.match_substring(paths, "\\"))
    if len(named):
        cure = (
            "write it again with / in names" if source.containers else "unpack the archive with unzip, which makes them"
        )
        warnings.warn(
            f"source {str(source.root)!r}: {len(named):,} of {len(paths):,} names hold backslashes, such as "
            f"'{printable(named[0].as_py())}': folders on Windows, but not here, and "
            f"{'all samples are of one class' if one_class else 'no sample has a label'}; {cure}",
            PresizeWarning,
            stacklevel=4,
        )


def _root(place: str) -> Path | Url:
    return place if isinstance(place, Url) else Path(place)


def _scan_table(
    root: str, table: pa.Table, classes: tuple[str, ...] | None, follow_links: bool, by_value: bool
) -> Source:
    columns = {name: table.column(name) for name in table.column_names}
    known = None
    if "label" in columns and pa.types.is_large_string(columns["label"].type):
        columns["label"], known = class_labels(columns["label"], classes, by_value)
    elif classes is not None:
        cure = "; --column-type label:class reads numbers as their names" if "label" in columns else ""
        raise SourceError(f"--classes needs a label column of strings{cure}")
    paths = table.column("path")
    sizes, mtimes = look_up(root, paths) if isinstance(root, Url) else _look_up(paths, root, follow_links)
    files = {"path": columns.pop("path"), "source_nbytes": sizes, "source_mtime_ns": mtimes}
    return Source(_root(root), pa.table(files | columns), known)


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
                hint = "; expected / between folders, not a backslash" if "\\" in path else ""
                first = first or f"{path!r} {reason}{hint}"
                refused += 1
        chunks.append(np.array(found, np.int64).reshape(-1, 2))
    if refused:
        raise SourceError(f"{refused} of its {len(paths)} paths cannot be used, the first: {first}; source {root!r}")
    return [pa.chunked_array([chunk[:, k] for chunk in chunks]) for k in range(2)]
