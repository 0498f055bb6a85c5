"""The samples of a source, or of one container of it, as its listing gives them; and what cannot be one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from presize.errors import SourceError, warn
from presize.formatting import plural, printable
from presize.sources.source_files import Container
from presize.store.index import INDEX_COLUMNS
from presize.store.rejects import Reject

PLACE_COLUMNS = ("container", "offset", "run")
"""Where a sample lies: the number of its container, its offset there (see SourceFile), and the run that is read in one
go. The index does not have them."""

LINK_OUT = "a link out of the source; use --follow-links if you trust it"


@dataclass(frozen=True)
class Contents:
    """The samples of a source, or of one of its containers.

    Attributes:
        samples: ``path``, ``source_nbytes``, ``source_mtime_ns`` and fields, in dataset order; in containers
            PLACE_COLUMNS, too. The listing of one container has neither times nor ``container``, and ``run`` where it
            is a row group.
        classes: the names that ``label`` numbers; None where labels are not classes.
        rejects: files and samples that cannot be stored, and why.
        hidden: files and folders whose names begin with a dot.
        outside: files beside the class folders.
        by_folder: whether the classes are folders of the source.
        containers: the files that hold the samples; empty where each sample is a file.
        left_out: fields that an index cannot store, and how many samples have them.
    """

    samples: pa.Table
    classes: tuple[str, ...] | None = None
    rejects: Sequence[Reject] = ()
    hidden: int = 0
    outside: int = 0
    by_folder: bool = False
    containers: tuple[Container, ...] = ()
    left_out: Counter[str] = field(default_factory=Counter)


def rejected(path: str, reason: str) -> Reject:
    return Reject(path, SourceError.__name__, reason)


def warn_left_out(root: str, noun: str, refused: Sequence[Reject]) -> None:
    """Warn of folders or files that could have held samples."""
    if refused:
        warn(
            f"source {root!r}: {plural(len(refused), noun)} left out with all that is in them; the first is "
            f"'{printable(refused[0].path)}': {refused[0].reason}"
        )


def field_name(name: str) -> str:
    """Return the column of a field: its name, with an underscore behind where the index has a column of that name."""
    return f"{name}_" if name in INDEX_COLUMNS or name in PLACE_COLUMNS else name


def is_inside(path: str, root: str) -> bool:
    """Return whether a path lies below `root`, all links followed."""
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(root, ""))


def is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_utf8(path: str) -> str:
    """Return a readable path, in which bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
