"""Sources that consist of containers (LMDBs, tar shards or Parquet files): their samples as one table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError, warn
from presize.formatting import plural, printable
from presize.options import Companion, SourceOptions, ValueType
from presize.sources.classes import check_classes, class_labels
from presize.sources.columns import joined, with_column, with_types
from presize.sources.contents import (
    LINK_OUT,
    PLACE_COLUMNS,
    Contents,
    Source,
    as_utf8,
    is_inside,
    is_utf8,
    rejected,
    warn_left_out,
)
from presize.sources.folder import indexed_ns, is_of_the_disk
from presize.sources.source_files import Container
from presize.sources.splits import of_containers
from presize.sources.text_columns import label_texts
from presize.store.dealing import groups_of
from presize.store.filenames import unsafe_paths
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects
from presize.system.file_version import FileVersion

_FIELDS_NAMED = 5
_OWN_COLUMNS = ("path", "source_nbytes", "source_mtime_ns", *PLACE_COLUMNS)

ListContainer = Callable[[str, str, SourceOptions, Sequence[Companion]], Contents]
"""Lists a container: its file, its path from the source (to name what is rejected), the options, and what each sample
has beside it. Raises SourceError where it cannot be read, or OptionError."""


@dataclass(frozen=True)
class ContainerKind:
    """A kind of file that holds samples.

    Attributes:
        name: a word for it.
        plural: several of them, in messages.
        options: those that make sense for it, of the options that do not make sense for every source.
        list: the function that lists one.
        suffixes: of names, in lower case.
        magic: what such a file holds, and where.
    """

    name: str
    plural: str
    options: tuple[str, ...]
    list: ListContainer
    suffixes: tuple[str, ...]
    magic: tuple[int, bytes]


@dataclass(frozen=True)
class Containers:
    """Files of one kind that hold the samples of a source.

    Attributes:
        kind: what they are.
        root: the folder that they are in, absolute.
        paths: their paths from the root, sorted.
        unseen: folders that may not be read.
    """

    kind: ContainerKind
    root: str
    paths: tuple[str, ...]
    unseen: tuple[Reject, ...] = ()

    @property
    def name(self) -> str:
        """The root, or the file if there is one alone."""
        return os.path.join(self.root, self.paths[0]) if len(self.paths) == 1 else self.root


def list_containers(
    source: Containers,
    options: SourceOptions,
    follow_links: bool,
    types: Mapping[str, ValueType],
    companions: Sequence[Companion] = (),
) -> Source:
    """List the samples of all containers, in the order of their names. What cannot be a sample becomes a reject.

    Raises:
        SourceError: not one sample was found, or class lists disagree.
        OptionError: ``keys`` or ``label_keys`` is no pattern.

    Warns:
        PresizeWarning: containers, or fields of samples, were left out.
    """
    listings, refused = _list_all(source, options, follow_links, companions)
    left_out = sum((one.left_out for one in listings), Counter[str]())
    containers = [one.container for one in listings]
    rejects = [*source.unseen, *refused, *(reject for one in listings for reject in one.rejects)]
    listed = _Listed(joined([one.samples for one in listings], left_out), containers, rejects)
    _warn_of_fields(source.name, left_out)
    classes = None
    if len(listed.table):
        _check_paths(listed)
        own = _common_classes(listings)
        if own and types.get("label") in ("text", "class"):  # their numbers have names
            types = {name: kind for name, kind in types.items() if name != "label"}
        listed.table = with_types(listed.table, types, _OWN_COLUMNS)
        if options.labels == "none" and "label" in listed.table.column_names:
            listed.table = listed.table.drop_columns("label")
        classes = _number_labels(listed, own, options.classes, by_value=types.get("label") == "class")
    if not len(listed.table):
        first = f"; the first, {printable(rejects[0].path)!r}: {rejects[0].reason}" if rejects else ""
        raise SourceError(f"source {source.name!r} holds no samples in {plural(len(source.paths), 'file')}{first}")
    listed.set("run", _runs(listed.table))
    fields = [name for name in listed.table.column_names if name not in _OWN_COLUMNS]
    table = listed.table.select([*_OWN_COLUMNS, *fields])
    hidden = sum(one.hidden for one in listings)
    return Source(Path(source.root), table, classes, Rejects.of(rejects), hidden, containers=tuple(containers))


def _list_all(
    source: Containers, options: SourceOptions, follow_links: bool, companions: Sequence[Companion]
) -> tuple[list[Contents], list[Reject]]:
    """Return the listings of the containers that can be read, and those that cannot."""
    listings: list[Contents] = []
    refused: list[Reject] = []
    for path in source.paths:
        try:
            listed = _list_at_rest(source, path, options, follow_links, companions)
        except SourceError as error:
            if is_of_the_disk(error.__cause__):
                raise SourceError(
                    f"{as_utf8(path)!r} in {source.root!r}: {error}; move it away to build without it"
                ) from None
            refused.append(rejected(as_utf8(path), str(error)))
            continue
        if listed is None:
            raise SourceError(f"{path!r} in {source.root} changes while it is listed; run again when it is complete")
        rows, mtime_ns = len(listed.samples), indexed_ns(listed.container.version.mtime_ns)
        table = listed.samples.append_column("container", pa.array(np.full(rows, len(listings), np.int32)))
        for name in ("source_mtime_ns", *(f"{companion.name}_source_mtime_ns" for companion in companions)):
            table = table.append_column(name, pa.array(np.full(rows, mtime_ns, np.int64)))
        listings.append(replace(listed, samples=table))
    warn_left_out(source.root, "folder", source.unseen)
    if listings:
        warn_left_out(source.name, "file", refused)
    return listings, refused


def _list_at_rest(
    source: Containers, path: str, options: SourceOptions, follow_links: bool, companions: Sequence[Companion]
) -> Contents | None:
    """List a container. It is listed again if it changed meanwhile; return None if it changed then, too."""
    file = os.path.join(source.root, path)
    if not is_utf8(path):
        raise SourceError("its name is not UTF-8")
    if os.path.islink(file) and not follow_links and not is_inside(file, source.root):
        raise SourceError(f"it is {LINK_OUT}")
    for _ in range(2):
        before = _version(file)
        try:
            listed = source.kind.list(file, path, options, companions)
        except SourceError:
            if _version(file) == before:
                raise
        else:
            if _version(file) == listed.container.version:
                return listed
    return None


def _version(path: str) -> FileVersion | None:
    """Return the version of a container; None where it cannot be opened."""
    with suppress(OSError):
        return FileVersion.at(path)
    return None


def _warn_of_fields(root: str, left_out: Counter[str]) -> None:
    if left_out:
        names = ", ".join(f"{printable(name)} ({count:,})" for name, count in left_out.most_common(_FIELDS_NAMED))
        more = f" and {len(left_out) - _FIELDS_NAMED} more" if len(left_out) > _FIELDS_NAMED else ""
        warn(
            f"{root!r} has what the index cannot hold, with the number of samples that have it: {names}{more}; it is "
            "left out"
        )


@dataclass
class _Listed:
    """The samples of all containers, while they are checked."""

    table: pa.Table
    containers: list[Container]
    rejects: list[Reject]

    def keep(self, kept: npt.NDArray[np.bool_], reason: str) -> None:
        """Reject the samples that are not `kept`."""
        if kept.all():
            return
        others = self.table.select(["container", "path"]).filter(pa.array(~kept)).to_pydict()
        for number, path in zip(others["container"], others["path"], strict=True):
            container = self.containers[number]
            # Rows of Parquet are called after their file already, and rejected by that name when they are decoded.
            self.rejects.append(rejected(path if container.column else f"{container.path}/{path}", reason))
        self.table = self.table.filter(pa.array(kept))

    def set(self, name: str, column: pa.Array | pa.ChunkedArray) -> None:
        self.table = with_column(self.table, name, column)


def _check_paths(listed: _Listed) -> None:
    """Reject samples whose paths are unsafe, or those of earlier ones; and give all of them the name of their container
    in front where two containers have one path in common."""
    is_safe = ~unsafe_paths(listed.table.column("path")).to_numpy()
    listed.keep(is_safe, "its name is no relative path of UTF-8 text")
    path, container = _path_numbers(listed.table), listed.table.column("container").to_numpy().astype(np.int64)
    is_first = np.zeros(len(path), np.bool_)
    is_first[np.unique(container * len(path) + path, return_index=True)[1]] = True
    listed.keep(is_first, "an earlier sample of the file has its name")
    own = listed.table.column("path")
    for name_of in (_without_suffix, str):
        if len(np.unique(_path_numbers(listed.table))) == len(listed.table):
            break
        names = of_containers(listed.table, [name_of(container.path) for container in listed.containers])
        paths = pc.binary_join_element_wise(names, own.combine_chunks(), pa.scalar("/", pa.large_string()))
        listed.set("path", paths)


def _without_suffix(path: str) -> str:
    """The name of a container for the paths of its samples. An LMDB in a folder is called as that."""
    folder = path.removesuffix("/data.mdb")
    return os.path.splitext(path)[0] if folder == path else folder


def _path_numbers(table: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each path: the same for the same paths."""
    return np.asarray(table.column("path").combine_chunks().dictionary_encode().indices.to_numpy(), np.int64)


def _runs(table: pa.Table) -> pa.Array:
    """The run of each sample: its row group in Parquet, its neighbours elsewhere."""
    container = table.column("container").to_numpy()
    if "run" not in table.column_names:
        return pa.array(groups_of(container))
    begins = (np.diff(container) != 0) | (np.diff(table.column("run").to_numpy()) != 0)
    return pa.array(np.cumsum(np.append(False, begins)))


def _common_classes(listings: Sequence[Contents]) -> tuple[str, ...] | None:
    """Return the class list that the containers have in common. Raises SourceError when they disagree."""
    first = listings[0]
    for other in listings:
        if other.classes != first.classes:
            paths = [repr(one.container.path) for one in (first, other)]
            raise SourceError(f"the class lists of {' and '.join(paths)} differ; build each separately")
    return None if first.classes is None else check_classes(first.classes)


def _number_labels(
    listed: _Listed, own: tuple[str, ...] | None, classes: Sequence[str] | None, by_value: bool
) -> tuple[str, ...] | None:
    """Make labels the numbers of `classes`, of the containers' `own`, or of their names. Those without one
    are rejected. Returns the class list; None where labels are no classes."""
    if "label" not in listed.table.column_names:
        if classes is not None:
            raise SourceError("--classes needs labels, and the samples have none")
        return None
    labels = label_texts(listed.table.column("label"))
    listed.set("label", labels)
    has_label = pc.not_equal(labels, "") if pa.types.is_large_string(labels.type) else labels.is_valid()
    listed.keep(pc.fill_null(has_label, False).to_numpy(), "it has no label")
    labels = listed.table.column("label")
    known = own or (None if classes is None else tuple(classes))
    if pa.types.is_integer(labels.type) and known is not None:
        numbers = labels.to_numpy()
        is_class = (numbers >= 0) & (numbers < len(known))
        listed.keep(is_class, f"its label is not in the class list of {len(known)} names")
        labels = listed.table.column("label").cast(pa.int32())
        if classes is not None and known != tuple(classes):
            names = pa.array(known, pa.large_string()).take(labels.combine_chunks())
            labels, known = class_labels(pa.chunked_array([names]), classes)
    elif pa.types.is_large_string(labels.type):
        labels, known = class_labels(labels, classes, by_value)
    elif classes is not None:
        raise SourceError(f"--classes needs labels that are names or numbers; they are {labels.type}")
    else:
        known = None
    listed.set("label", labels)
    return known
