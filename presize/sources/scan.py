"""Scans a raw folder or a label table for samples, and lists them in dataset order.

The resulting table has the columns ``path`` (relative to the source, POSIX), ``source_nbytes``,
``source_mtime_ns`` and the label columns. It is Arrow memory, without a Python object per file. `scan`
opens no image: the build decides by content which files are images, and `scan_images` as it does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError, warn
from presize.formatting import printable
from presize.options import ColumnType, Companion, SourceOptions
from presize.sources.bucket import walk_bucket
from presize.sources.classes import check_classes, naming
from presize.sources.columns import python_values
from presize.sources.containers import SourceKind, list_containers
from presize.sources.contents import PLACE_COLUMNS, Contents
from presize.sources.folder import resolve, walk_folder
from presize.sources.recognize import BUCKET, BUCKET_TABLE, FOLDER, TABLE, check_options, recognize
from presize.sources.source_files import Container, Places, SourceFile, Url, source_files, starts_like_an_image
from presize.sources.splits import with_splits
from presize.sources.table import IMAGE_NAMES, is_list, list_table
from presize.sources.tree import list_tree
from presize.store.dealing import Groups
from presize.store.index import INDEX_COLUMNS
from presize.store.rejects_file import Rejects


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
        columns = self.table.select(["container", "offset"]).take(pa.array(rows))
        used, container = np.unique(columns.column("container").to_numpy(), return_inverse=True)
        containers = tuple(self.containers[number] for number in used.tolist())
        return Places(containers, container, columns.column("offset").to_numpy())

    def files(self, rows: npt.NDArray[np.int64]) -> list[SourceFile]:
        """The source files of these rows of the table."""
        columns = self.table.select(["path", "source_nbytes"]).take(pa.array(rows)).to_pydict()
        return source_files(columns["path"], columns["source_nbytes"], self.places(rows))


def scan(
    root: str | os.PathLike[str],
    samples: SourceOptions = SourceOptions(),
    follow_links: bool = False,
    types: Sequence[ColumnType] = (),
    companions: Sequence[Companion] = (),
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
        companions: those that add_companions is to find; not every kind of source has them.

    Raises:
        SourceError: the source or the label table cannot be used.

    Warns:
        PresizeWarning: something was probably not meant.
    """
    if samples.classes is not None:
        with naming("classes"):
            samples = replace(samples, classes=check_classes(samples.classes))
    url, given = Url.of(root), dict(types)
    containers = None if samples.table is not None or url else recognize(root, samples.keys is not None)
    if containers is not None:
        kind: SourceKind = containers.kind
    elif samples.table is not None:
        kind = BUCKET_TABLE if url else TABLE
    else:
        kind = BUCKET if url else FOLDER
    check_options(kind, root, keys=samples.keys, label_keys=samples.label_keys, column_type=types, pair=companions)
    base: Path | Url
    if containers is not None:
        base, contents = Path(containers.root), list_containers(containers, samples, follow_links, given)
    elif samples.table is not None:
        base = url or Path(resolve(root))
        with naming(f"labels {os.fspath(samples.table)!r}"):
            contents = list_table(samples.table, root, base, samples, follow_links, given)
    else:
        tree = walk_bucket(url) if url else walk_folder(root, follow_links)
        base, contents = url or Path(tree.root), list_tree(tree, samples)
    _warn_of_backslashes(str(base), contents, samples)
    return Source(
        root=base,
        table=with_splits(contents, samples),
        classes=contents.classes,
        rejects=Rejects.of(contents.rejects),
        hidden=contents.hidden,
        outside=contents.outside,
        by_folder=contents.by_folder,
        containers=contents.containers,
    )


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
    for row, path in zip(others, python_values(paths.take(pa.array(others))), strict=True):
        is_image[row] = starts_like_an_image(Path(source.root), path)
    if not is_image.any():
        raise SourceError(f"{os.fspath(root)} holds no images")
    return replace(source, table=source.table.filter(pa.array(is_image)))


def _warn_of_backslashes(root: str, source: Contents, options: SourceOptions) -> None:
    """Warn of samples that have no label, or all the same, since the backslashes in their names are no folders."""
    wanted = options.labels is None or (options.table is not None and is_list(options.table))
    one_class = source.classes is not None and source.by_folder and len(source.classes) == 1
    if not wanted or ("label" in source.samples.column_names and not one_class):
        return
    paths = source.samples.column("path")
    named = paths.filter(pc.match_substring(paths, "\\"))
    if len(named):
        fix = (
            "write it again with / in names" if source.containers else "unpack the archive with unzip, which makes them"
        )
        warn(
            f"source {root!r}: {len(named):,} of {len(paths):,} names hold backslashes, such as "
            f"'{printable(named[0].as_py())}': folders on Windows, but not here, and "
            f"{'all samples are of one class' if one_class else 'no sample has a label'}; {fix}"
        )
