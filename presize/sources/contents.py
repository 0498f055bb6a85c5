"""Results of a listing: the samples of a source, or of one of its containers, and rejects."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.errors import SourceError, warn
from presize.formatting import plural, printable
from presize.sources.source_files import Container, Places, SourceFile, Url, files_at
from presize.store.dealing import Groups
from presize.store.index import INDEX_COLUMNS
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects

PLACE_COLUMNS = ("container", "offset", "run")
"""The number of a sample's container, its offset there, and the run that is read together. No index stores them."""

OFFSET_OF = "offset:"
"""Prefix of the columns of companions' offsets, before the companion's name."""

LINK_OUT = "a link out of the source; use --follow-links if you trust it"


@dataclass(frozen=True)
class Source:
    """The samples of a source.

    Attributes:
        root: the source folder, absolute; or its URL.
        table: one row per sample, in dataset order; with PLACE_COLUMNS if there are `containers`.
        classes: the class names that ``label`` indexes; None if the labels are not classes.
        rejects: files and folders that are rejected unread: links out of the source, names that are not UTF-8, ...
        hidden, outside: the number of hidden files and folders, and of files outside the class folders.
        by_folder: whether classes are the first folders of paths.
        has_table: whether a label table lists the samples.
        has_list: whether the class list was given or comes from a container; otherwise it has the names of all labels.
        containers: the files that hold the samples; empty if each sample is a file.
    """

    root: Path | Url
    table: pa.Table
    classes: tuple[str, ...] | None
    rejects: Rejects = field(default_factory=Rejects)
    hidden: int = 0
    outside: int = 0
    by_folder: bool = False
    has_table: bool = False
    has_list: bool = False
    containers: tuple[Container, ...] = ()

    @property
    def name(self) -> str:
        """The root, or the file that holds all samples."""
        return os.path.join(self.root, self.containers[0].path) if len(self.containers) == 1 else str(self.root)

    @property
    def fields(self) -> list[str]:
        """The columns of the table that the index stores unchanged, such as labels."""
        names = [name for name in self.table.column_names if name not in INDEX_COLUMNS]
        if not self.containers:
            return names
        return [name for name in names if name not in PLACE_COLUMNS and not name.startswith(OFFSET_OF)]

    @property
    def groups(self) -> Groups | None:
        return self.table.column("run").to_numpy() if self.containers else None

    def places(self, rows: npt.NDArray[np.int64]) -> Places | None:
        if not self.containers:
            return None
        columns = self.table.select(["container", "offset"]).take(pa.array(rows))
        used, container = np.unique(columns.column("container").to_numpy(), return_inverse=True)
        containers = tuple(self.containers[number] for number in used.tolist())
        return Places(containers, container, columns.column("offset").to_numpy())

    def files(self, rows: npt.NDArray[np.int64]) -> list[SourceFile]:
        columns = self.table.select(["path", "source_nbytes"]).take(pa.array(rows)).to_pydict()
        return files_at(columns["path"], columns["source_nbytes"], self.places(rows))


@dataclass(frozen=True)
class Contents:
    """The samples of one container, in dataset order: ``path``, ``source_nbytes``, ``offset`` and fields; ``run`` if it
    is a row group; ``mask_source_nbytes`` and ``offset:mask`` for a companion called mask. `left_out` counts, for each
    field or file that no index can store, the samples that have it."""

    container: Container
    samples: pa.Table
    classes: tuple[str, ...] | None = None
    rejects: Sequence[Reject] = ()
    hidden: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def rejected(path: str, reason: str) -> Reject:
    return Reject(path, SourceError.__name__, reason)


def warn_left_out(root: str, noun: str, refused: Sequence[Reject]) -> None:
    if refused:
        warn(
            f"source {root!r}: {plural(len(refused), noun)} left out with everything inside; the first: "
            f"'{printable(refused[0].path)}': {refused[0].reason}"
        )


def field_name(name: str) -> str:
    """Return the column name of a field: its name, followed by an underscore if that name is taken; ``offset_x`` for
    ``offset:x``."""
    if name.startswith(OFFSET_OF):
        return name.replace(":", "_", 1)
    return f"{name}_" if name in INDEX_COLUMNS or name in PLACE_COLUMNS else name


def is_inside(path: str, root: str) -> bool:
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(root, ""))


def is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_utf8(path: str) -> str:
    """Return a path as text, with bytes that are not UTF-8 written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
