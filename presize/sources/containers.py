"""Lists the samples of a source that consists of containers: LMDBs, tar shards or Parquet files."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import PresizeWarning, SourceError
from presize.formatting import plural, printable
from presize.options import SourceOptions, ValueType
from presize.sources.contents import PLACE_COLUMNS, Contents, joined, reject
from presize.sources.labels import check_classes, class_labels, with_types
from presize.sources.lmdb import list_lmdb
from presize.sources.parquet import list_parquet
from presize.sources.recognize import Containers
from presize.sources.source_files import Container
from presize.sources.tar import list_tar
from presize.sources.text_columns import label_texts
from presize.sources.tree import SPLITS
from presize.sources.walk import LINK_OUT, as_utf8, indexed_ns, is_inside, is_of_the_disk, is_utf8
from presize.store.dealing import groups_of
from presize.store.filenames import unsafe_paths
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects
from presize.system.file_version import FileVersion

_FIELDS_NAMED = 5
_OWN_COLUMNS = ("path", "source_nbytes", "source_mtime_ns", *PLACE_COLUMNS)


class ContainerSamples(NamedTuple):
    """The samples of a source of containers; see presize.sources.scan.Source."""

    table: pa.Table
    classes: tuple[str, ...] | None
    rejects: Rejects
    hidden: int
    containers: tuple[Container, ...]


def list_samples(
    found: Containers,
    samples: SourceOptions,
    classes: tuple[str, ...] | None,
    follow_links: bool,
    types: Mapping[str, ValueType],
) -> ContainerSamples:
    """List the samples of all containers, in the order of their names. What cannot be a sample becomes a reject.

    Args:
        found: the containers.
        samples: how they are read.
        classes: the class list to use.
        follow_links: read containers that are links out of the source.
        types: the types of columns, by their names.

    Raises:
        SourceError: not one sample was found, or class lists disagree.
        OptionError: ``keys`` or ``label_keys`` is no pattern.

    Warns:
        PresizeWarning: containers, or fields of samples, were left out.
    """
    contents, containers, rejects = _read_all(found, samples, follow_links)
    left_out = sum((one.left_out for one in contents), Counter[str]())
    listed = _Listed(joined([one.samples for one in contents], left_out), containers, rejects)
    _tell_left_out(found, left_out)
    known = None
    if len(listed.table):
        _check_paths(listed)
        own = _common_classes(contents, containers)
        if own and types.get("label") in ("text", "class"):  # their numbers have names
            types = {name: kind for name, kind in types.items() if name != "label"}
        listed.table = with_types(listed.table, types, _OWN_COLUMNS)
        if samples.labels == "none" and "label" in listed.table.column_names:
            listed.table = listed.table.drop_columns("label")
        by_value = types.get("label") == "class"
        known = _number_labels(listed, own, classes, by_value)
    if not len(listed.table):
        first = f"; the first, {printable(rejects[0].path)!r}: {rejects[0].reason}" if rejects else ""
        raise SourceError(f"source {found.root!r} holds no samples in {plural(len(found.paths), 'file')}{first}")
    listed.set("run", _runs(listed.table))
    if samples.split == "folders":
        _add_splits(listed)
    fields = [name for name in listed.table.column_names if name not in _OWN_COLUMNS]
    return ContainerSamples(
        table=listed.table.select([*_OWN_COLUMNS, *fields]),
        classes=known,
        rejects=Rejects.of(listed.rejects),
        hidden=sum(one.hidden for one in contents),
        containers=tuple(containers),
    )


def _read_all(
    found: Containers, samples: SourceOptions, follow_links: bool
) -> tuple[list[Contents], list[Container], list[Reject]]:
    """What the containers hold, those that can be read, and what is no sample."""
    contents: list[Contents] = []
    containers: list[Container] = []
    refused: list[Reject] = []
    for path in found.paths:
        try:
            listed = _list_at_rest(found, path, samples, follow_links)
        except SourceError as error:
            if is_of_the_disk(error.__cause__):
                raise SourceError(
                    f"{as_utf8(path)!r} in {found.root!r}: {error}; move it away to build without it"
                ) from None
            refused.append(reject(as_utf8(path), str(error)))
            continue
        if listed is None:
            raise SourceError(f"{path!r} in {found.root} changes while it is listed; run again when it is complete")
        rows = len(listed.samples)
        mtime = indexed_ns(listed.version.mtime_ns)
        table = listed.samples.append_column("container", pa.array(np.full(rows, len(containers), np.int32)))
        table = table.append_column("source_mtime_ns", pa.array(np.full(rows, mtime, np.int64)))
        contents.append(replace(listed, samples=table))
        containers.append(Container(path, listed.version, listed.column))
    if refused and contents:
        warnings.warn(
            f"{plural(len(refused), 'file')} of {found.root!r} left out with all that is in them; the first is "
            f"'{printable(refused[0].path)}': {refused[0].reason}",
            PresizeWarning,
            stacklevel=5,
        )
    return contents, containers, refused + [one for listed in contents for one in listed.rejects]


def _list_at_rest(found: Containers, path: str, samples: SourceOptions, follow_links: bool) -> Contents | None:
    """What a container holds. It is listed again if it changed meanwhile; None if it changed then, too."""
    for _ in range(2):
        before = _version(found, path)
        try:
            listed = _list(found, path, samples, follow_links)
        except SourceError:
            if _version(found, path) == before:
                raise
        else:
            if _version(found, path) == listed.version:
                return listed
    return None


def _version(found: Containers, path: str) -> FileVersion | None:
    """The version of a container; None where it cannot be opened."""
    with suppress(OSError):
        return FileVersion.at(os.path.join(found.root, path))
    return None


def _list(found: Containers, path: str, samples: SourceOptions, follow_links: bool) -> Contents:
    place = os.path.join(found.root, path)
    if not is_utf8(path):
        raise SourceError("its name is not UTF-8")
    if os.path.islink(place) and not follow_links and not is_inside(place, found.root):
        raise SourceError(f"it is {LINK_OUT}")
    if samples.label_keys is not None and found.kind != "lmdb":
        raise SourceError("--label-keys is for LMDBs; other files bring their labels along")
    if found.kind == "lmdb":
        return list_lmdb(place, path, samples.keys, samples.label_keys)
    return (list_tar if found.kind == "tar" else list_parquet)(place, path, samples.keys)


def _tell_left_out(found: Containers, left_out: Counter[str]) -> None:
    if left_out:
        names = ", ".join(f"{printable(name)} ({count:,})" for name, count in left_out.most_common(_FIELDS_NAMED))
        more = f" and {len(left_out) - _FIELDS_NAMED} more" if len(left_out) > _FIELDS_NAMED else ""
        warnings.warn(
            f"{found.root!r} has what the index cannot hold, with the number of samples that have it: {names}{more}; "
            "it is left out",
            PresizeWarning,
            stacklevel=5,
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
            self.rejects.append(reject(f"{self.containers[number].path}/{path}", reason))
        self.table = self.table.filter(pa.array(kept))

    def set(self, name: str, column: pa.Array | pa.ChunkedArray) -> None:
        """Add a column, or replace it."""
        if name in self.table.column_names:
            self.table = self.table.set_column(self.table.column_names.index(name), name, column)
        else:
            self.table = self.table.append_column(name, column)

    def of_each(self, texts: list[str]) -> pa.Array:
        """For each sample the text of its container."""
        return pa.array(texts, pa.large_string()).take(self.table.column("container").combine_chunks())


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
        names = listed.of_each([name_of(container.path) for container in listed.containers])
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


def _add_splits(listed: _Listed) -> None:
    """The column ``split``: the first word of the names of containers, if that is a split's in each, as in
    ``train-00000-of-00002.parquet``; otherwise the first folder of their paths."""
    if "split" in listed.table.column_names:
        raise SourceError("the samples have a field 'split' already; leave out --split to use that")
    paths = [container.path for container in listed.containers]
    splits = [re.split(r"[^A-Za-z]", os.path.basename(path))[0] for path in paths]
    if not SPLITS.issuperset(splits):
        splits = [path.partition("/")[0] for path in paths]
        beside = [path for path in paths if "/" not in path]
        if beside:
            raise SourceError(f"--split folders: {beside[0]!r} lies in no folder of the source")
    listed.set("split", listed.of_each(splits))


def _common_classes(contents: Sequence[Contents], containers: Sequence[Container]) -> tuple[str, ...] | None:
    """The class list that the containers have in common. Raises SourceError when they disagree."""
    lists = [one.classes for one in contents]
    for names, container in zip(lists, containers, strict=True):
        if names != lists[0]:
            raise SourceError(
                f"the class lists of {containers[0].path!r} and {container.path!r} differ; build each separately"
            )
    return None if lists[0] is None else check_classes(lists[0])


def _number_labels(
    listed: _Listed, own: tuple[str, ...] | None, classes: tuple[str, ...] | None, by_value: bool
) -> tuple[str, ...] | None:
    """Make labels the numbers of classes. Samples without one are rejected.

    Args:
        listed: the samples.
        own: the class list of the containers.
        classes: the class list to use.
        by_value: see class_labels.

    Returns:
        The class list; None where labels are no classes.
    """
    if "label" not in listed.table.column_names:
        if classes is not None:
            raise SourceError("--classes needs labels, and the samples have none")
        return None
    labels = label_texts(listed.table.column("label"))
    listed.set("label", labels)
    has_label = pc.not_equal(labels, "") if pa.types.is_large_string(labels.type) else labels.is_valid()
    listed.keep(pc.fill_null(has_label, False).to_numpy(), "it has no label")
    labels, known = listed.table.column("label"), own or classes
    if pa.types.is_integer(labels.type) and known is not None:
        numbers = labels.to_numpy()
        is_class = (numbers >= 0) & (numbers < len(known))
        listed.keep(is_class, f"its label is not in the class list of {len(known)} names")
        labels = listed.table.column("label").cast(pa.int32())
        if classes is not None and known != classes:
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
