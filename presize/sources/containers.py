"""Containers as sources: recognizes LMDBs, tar shards and Parquet files, and lists their samples in one table."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import DatasetError, SourceError, warn
from presize.formatting import plural, printable
from presize.options import Companion, SourceOptions, ValueType
from presize.sources.columns import joined, label_texts, with_column, with_types
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
from presize.sources.folder import RefusedFile, identity, indexed_ns, is_hidden, is_of_the_disk, look_at, refused_folder
from presize.sources.labels import check_classes, class_labels, of_containers
from presize.sources.lmdb import list_lmdb
from presize.sources.parquet import list_parquet
from presize.sources.source_files import Container
from presize.sources.tar import COMPRESSED_TARS, CONSECUTIVE, list_tar
from presize.store.data_files import MANIFEST
from presize.store.dealing import groups_of
from presize.store.filenames import unsafe_paths
from presize.store.manifest import read_manifest
from presize.store.rejects import Reject, claims_to_be_an_image, of_companion
from presize.store.rejects_file import Rejects
from presize.system.file_version import FileVersion
from presize.system.files import open_at_once

ListContainer = Callable[[str, str, SourceOptions, Sequence[Companion]], Contents]
"""Lists a container, given its file, its path from the source (which begins the names of rejects), the options and the
companions. Raises SourceError if it cannot be read, or OptionError."""


@dataclass(frozen=True)
class ContainerKind:
    """A kind of file that holds samples: its name and plural; the options that apply to it, besides those for every
    source; and the lower-case suffixes, and the `magic` bytes at an offset, by which it is recognized."""

    name: str
    plural: str
    options: tuple[str, ...]
    list: ListContainer
    suffixes: tuple[str, ...]
    magic: tuple[int, bytes]


_LMDB_OPTIONS = ("keys", "label_keys", "column_type")
KINDS = (
    ContainerKind("parquet", "Parquet files", ("keys", "column_type"), list_parquet, (".parquet",), (0, b"PAR1")),
    ContainerKind("lmdb", "LMDBs", _LMDB_OPTIONS, list_lmdb, (".lmdb", ".mdb"), (16, b"\xde\xc0\xef\xbe")),
    ContainerKind(
        "tar", "tar shards", ("keys", "column_type", "pair"), list_tar, (".tar", *COMPRESSED_TARS), (257, b"ustar")
    ),
)
"""A new kind needs a module with such a function and an entry here. Its images are read as bytes at an offset."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "folders": ("pair",),
    "label tables": ("column_type", "pair"),
    "buckets": (),
    "label tables of buckets": ("column_type",),
    **{kind.plural: kind.options for kind in KINDS},
}
"""The options that apply to each kind of source, besides those for every source."""

_LOCKS = ("lock.mdb", "-lock")
"""Suffixes of the lock files that LMDB keeps next to its data."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^/]")
_SIZES = 16
"""Number of folders that are searched for the sizes of a dataset."""
_FIELDS_NAMED = 5
_OWN_COLUMNS = ("path", "source_nbytes", "source_mtime_ns", *PLACE_COLUMNS)


@dataclass(frozen=True)
class Containers:
    """Files of one `kind`, sorted, that hold the samples of a source; and `unseen`, its unreadable folders."""

    kind: ContainerKind
    root: str
    paths: tuple[str, ...]
    unseen: tuple[Reject, ...] = ()

    @property
    def name(self) -> str:
        return os.path.join(self.root, self.paths[0]) if len(self.paths) == 1 else self.root


def check_options(kind: str, source: str | os.PathLike[str], **given: object) -> None:
    """Raise SourceError for an option that does not apply to this kind of source. False values count as not given."""
    for option in (option for option, value in given.items() if value and option not in _OPTIONS[kind]):
        kinds = [each for each, options in _OPTIONS.items() if option in options]
        flag = f"--{option.replace('_', '-')}"
        fix = "copy it to a disk first" if kind.endswith("buckets") else f"leave {flag} out"
        raise SourceError(f"{flag} is for {', '.join(kinds)}, not for {kind} (source {os.fspath(source)!r}); {fix}")


def recognize(
    source: str | os.PathLike[str], among_images: bool = False, follow_links: bool = False
) -> Containers | None:
    """Return the containers that a source consists of, at any depth; None for a folder with an image file, unless
    `among_images`. Files in folders are recognized by name, and a single file by its first bytes, then by name."""
    name = os.fspath(source)
    if _URL.match(name) and not os.path.lexists(name):
        raise SourceError(f"source {name!r} is a URL; download it, or mount it, and give the local folder")
    if os.path.isfile(name):
        return _of_file(name)
    if not os.path.isdir(name):
        return None
    _refuse_dataset(name)
    root = os.path.realpath(name)
    unseen: list[Reject] = []
    paths = sorted(_containers(root, among_images, follow_links, unseen))
    if not paths:
        return None
    kinds = [kind for kind in KINDS if any(kind_of(path) is kind for path in paths)]
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.name for kind in kinds))
        raise SourceError(
            f"source {name!r} holds files of several kinds ({names}); give a folder with one kind, or a file"
        )
    return Containers(kinds[0], root, tuple(paths), tuple(sorted(unseen)))


def kind_of(path: str) -> ContainerKind | None:
    name = os.path.basename(path).lower()
    by_name = (kind for kind in KINDS if name.endswith(kind.suffixes) and not name.endswith(_LOCKS))
    return next(by_name, None)


def _of_file(name: str) -> Containers | None:
    try:
        with open(name, "rb", opener=open_at_once) as file:
            begin = file.read(512)
    except OSError as error:
        raise SourceError(f"source {name!r}: {error.strerror}") from None
    if begin.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise SourceError(f"source {name!r} is a zip file; unpack it, and give the folder")
    kind = next((kind for kind in KINDS if begin.startswith(kind.magic[1], kind.magic[0])), kind_of(name))
    root, path = os.path.split(os.path.realpath(name))
    return None if kind is None else Containers(kind, root, (path,))


def _refuse_dataset(name: str) -> None:
    folders = [name]
    if not os.path.exists(os.path.join(name, MANIFEST)):  # perhaps it has a folder for each size
        with suppress(OSError), os.scandir(name) as entries:  # scan() reports an unreadable folder
            folders = [entry.path for entry in islice(entries, _SIZES)]
    for folder in folders:
        with suppress(DatasetError):  # not a manifest of presize
            if os.path.isfile(os.path.join(folder, MANIFEST)) and read_manifest(folder).layout == "lmdb":
                raise SourceError(
                    f"source {name!r} is a presize dataset, whose images are already resized; build from the raw "
                    "images, or make another dataset from it with presize derive"
                )


def _containers(root: str, among_images: bool, follow_links: bool, unseen: list[Reject]) -> list[str]:
    """Return the paths of containers below a folder, or none if it finds an image. Visits each folder once, and those
    that only links lead to last."""
    paths, waiting, linked, visited = [], [root], list[str](), set[tuple[int, int]]()
    while waiting or linked:
        linked.sort(reverse=True)
        folder = (waiting or linked).pop()
        try:
            if (this := identity(os.stat(folder))) in visited:
                continue
            visited.add(this)
            with os.scandir(folder) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif claims_to_be_an_image(entry.name) and not among_images:
                        return []
                    elif entry.is_symlink() and _is_folder(entry, root, follow_links, unseen):
                        linked.append(entry.path)
                    elif kind_of(entry.name) is not None and (entry.is_symlink() or entry.is_file()):
                        paths.append(os.path.relpath(entry.path, root))
        except OSError as error:
            refused = refused_folder(error, folder, is_root=folder == root)
            unseen.append(Reject(as_utf8(os.path.relpath(folder, root)), refused.error, str(refused)))
    return paths


def _is_folder(link: os.DirEntry[str], root: str, follow_links: bool, unseen: list[Reject]) -> bool:
    """Return whether a link leads to a folder to read. Folders that cannot be used are added to `unseen`."""
    try:
        return stat.S_ISDIR(look_at(link, (), root, follow_links).st_mode)
    except RefusedFile as reason:
        if reason.is_folder:
            unseen.append(Reject(as_utf8(os.path.relpath(link.path, root)), reason.error, str(reason)))
        return False


def list_containers(
    source: Containers,
    options: SourceOptions,
    follow_links: bool,
    types: Mapping[str, ValueType],
    companions: Sequence[Companion] = (),
) -> Source:
    """List the samples of all containers, in the order of the containers. Unusable files and samples become rejects."""
    listings, refused = _list_all(source, options, follow_links, companions)
    left_out = sum((one.left_out for one in listings), Counter[str]())
    rejects = [*source.unseen, *refused, *(reject for one in listings for reject in one.rejects)]
    table = joined([one.samples for one in listings], left_out)
    listed = _Listed(table, tuple(one.container for one in listings), rejects)
    if left_out:
        shown = left_out.most_common(_FIELDS_NAMED)
        names = ", ".join(f"{printable(name)} ({plural(count, 'sample')})" for name, count in shown)
        more = f" and {len(left_out) - _FIELDS_NAMED} more" if len(left_out) > _FIELDS_NAMED else ""
        warn(f"{source.name!r} has fields or files that the index cannot store, which are left out: {names}{more}")
    classes, has_list = None, False
    if len(table):
        _check_paths(listed)
        own = listings[0].classes
        for other in (one for one in listings if one.classes != own):
            paths = " and ".join(repr(one.container.path) for one in (listings[0], other))
            raise SourceError(f"the class lists of {paths} differ; build each separately")
        own = None if own is None else check_classes(own)
        if own and types.get("label") in ("text", "class"):  # the class list names the numbers
            types = {name: kind for name, kind in types.items() if name != "label"}
        listed.table = with_types(listed.table, types, _OWN_COLUMNS)
        if options.labels == "none" and "label" in listed.table.column_names:
            listed.table = listed.table.drop_columns("label")
        has_list = bool(own) or options.classes is not None
        # Labels of LMDBs are texts, which may be names; numbers of tars and Parquet files are positions.
        kind = types.get("label", None if source.kind.name == "lmdb" else "int")
        classes = _number_labels(listed, own, options.classes, kind)
        if options.labels != "none":
            _warn_of_parted(source.name, listed)
    if not len(listed.table):
        first = f"; the first: {printable(rejects[0].path)!r}: {rejects[0].reason}" if rejects else ""
        for one in companions:
            if one.pattern and rejects and rejects[0].reason.startswith(f"{of_companion(one.name)} "):
                wanted = f"--pair {one.name}={{dir}}/{{stem}}.{one.name}.png"
                first += f"; expected a file of the same sample, such as {wanted}, got {one.pattern}"
        raise SourceError(f"source {source.name!r} holds no samples in {plural(len(source.paths), 'file')}{first}")
    table = with_column(listed.table, "run", _runs(listed.table))
    table = table.select(list(dict.fromkeys([*_OWN_COLUMNS, *table.column_names])))
    hidden = sum(one.hidden for one in listings)
    return Source(
        Path(source.root), table, classes, Rejects.of(rejects), hidden, has_list=has_list, containers=listed.containers
    )


def _warn_of_parted(source: str, listed: _Listed) -> None:
    """Warn about files of tars, such as labels, that are not next to the image of the same name."""
    parted = pa.array([each.path for each in listed.rejects if each.reason.endswith(CONSECUTIVE)], pa.large_string())
    if not len(parted):
        return
    tars = of_containers(listed.table, [container.path for container in listed.containers])
    images = pc.binary_join_element_wise(
        tars, listed.table.column("path").combine_chunks(), pa.scalar("/", pa.large_string())
    )
    stems = (pc.replace_substring_regex(paths, r"\.[^/]*$", "") for paths in (parted, images))
    beside = parted.filter(pc.is_in(*stems))
    if len(beside):
        warn(
            f"source {source!r}: {plural(len(beside), 'file is', 'files are')} not next to the image of the same name, "
            f"the first: {printable(beside[0].as_py())}; such files and the labels in them are left out; make the tar "
            "again with tar --sort=name -cf NEW.tar FOLDER"
        )


def _list_all(
    source: Containers, options: SourceOptions, follow_links: bool, companions: Sequence[Companion]
) -> tuple[list[Contents], list[Reject]]:
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
            raise SourceError(f"{path!r} in {source.root} changed while it was listed; run again when it is complete")
        rows, mtime_ns = len(listed.samples), indexed_ns(listed.container.version.mtime_ns)
        table = listed.samples.append_column("container", pa.array(np.full(rows, len(listings), np.int32)))
        for prefix in ("", *(f"{companion.name}_" for companion in companions)):
            table = table.append_column(f"{prefix}source_mtime_ns", pa.array(np.full(rows, mtime_ns, np.int64)))
        listings.append(replace(listed, samples=table))
    warn_left_out(source.root, "folder", source.unseen)
    if listings:
        warn_left_out(source.name, "file", refused)
    return listings, refused


def _list_at_rest(
    source: Containers, path: str, options: SourceOptions, follow_links: bool, companions: Sequence[Companion]
) -> Contents | None:
    """List a container, and list it again if it changed meanwhile. Return None if it changed both times."""
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
    with suppress(OSError):
        return FileVersion.at(path)
    return None


@dataclass
class _Listed:
    table: pa.Table
    containers: tuple[Container, ...]
    rejects: list[Reject]

    def keep(self, kept: npt.NDArray[np.bool_], reason: str) -> None:
        if kept.all():
            return
        others = self.table.select(["container", "path"]).filter(pa.array(~kept)).to_pydict()
        for number, path in zip(others["container"], others["path"], strict=True):
            container = self.containers[number]
            # Paths of Parquet rows already include the file's name, and later rejects use the same path.
            self.rejects.append(rejected(path if container.column else f"{container.path}/{path}", reason))
        self.table = self.table.filter(pa.array(kept))


def _check_paths(listed: _Listed) -> None:
    """Reject unsafe and repeated paths. If containers share a path, prefix all paths with the containers' names."""
    is_safe = ~unsafe_paths(listed.table.column("path")).to_numpy()
    listed.keep(is_safe, "its name is not a relative path in UTF-8")
    path, container = _path_numbers(listed.table), listed.table.column("container").to_numpy().astype(np.int64)
    is_first = np.zeros(len(path), np.bool_)
    is_first[np.unique(container * len(path) + path, return_index=True)[1]] = True
    listed.keep(is_first, "an earlier sample of the file has the same name")
    own = listed.table.column("path")
    for name_of in (_without_suffix, str):
        if len(np.unique(_path_numbers(listed.table))) == len(listed.table):
            break
        names = of_containers(listed.table, [name_of(container.path) for container in listed.containers])
        paths = pc.binary_join_element_wise(names, own.combine_chunks(), pa.scalar("/", pa.large_string()))
        listed.table = with_column(listed.table, "path", paths)


def _without_suffix(path: str) -> str:
    """Return a container's path without suffix. An LMDB in a folder has the folder's path."""
    folder = path.removesuffix("/data.mdb")
    return os.path.splitext(path)[0] if folder == path else folder


def _path_numbers(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return a number for each path; equal paths have equal numbers."""
    return np.asarray(table.column("path").combine_chunks().dictionary_encode().indices.to_numpy(), np.int64)


def _runs(table: pa.Table) -> pa.Array:
    """Return the run of each sample: its row group in Parquet, a group of neighbours elsewhere."""
    container = table.column("container").to_numpy()
    if "run" not in table.column_names:
        return pa.array(groups_of(container))
    begins = (np.diff(container) != 0) | (np.diff(table.column("run").to_numpy()) != 0)
    return pa.array(np.cumsum(np.append(False, begins)))


def _number_labels(
    listed: _Listed, own: tuple[str, ...] | None, classes: Sequence[str] | None, kind: str | None
) -> tuple[str, ...] | None:
    """Replace labels by positions in `classes`, `own` or the sorted labels, and return that list. Without labels, or
    for numbers without a list, which stay, return None. `kind`: the type of the column that the user has given."""
    if "label" not in listed.table.column_names:
        if classes is not None:
            raise SourceError("--classes needs labels, and the samples have none")
        return None
    labels = label_texts(listed.table.column("label"))
    listed.table = with_column(listed.table, "label", labels)
    has_label = pc.not_equal(labels, "") if pa.types.is_large_string(labels.type) else labels.is_valid()
    listed.keep(pc.fill_null(has_label, False).to_numpy(), "it has no label")
    labels = listed.table.column("label")
    known = own or (None if classes is None else tuple(classes))
    if pa.types.is_integer(labels.type) and known is not None:
        if own is None and kind is None:
            _check_positions(labels, known)
        numbers = labels.to_numpy()
        is_class = (numbers >= 0) & (numbers < len(known))
        listed.keep(is_class, f"its label is not in the class list of {plural(len(known), 'name')}")
        labels = listed.table.column("label").cast(pa.int32())
        if classes is not None and known != tuple(classes):
            names = pa.array(known, pa.large_string()).take(labels.combine_chunks())
            labels, known = class_labels(pa.chunked_array([names]), classes)
    elif pa.types.is_large_string(labels.type):
        labels, known = class_labels(labels, classes, by_value=kind == "class")
    elif classes is not None:
        raise SourceError(f"--classes needs labels that are names or numbers; they are {labels.type}")
    else:
        known = None
    listed.table = with_column(listed.table, "label", labels)
    return known


def _check_positions(labels: pa.ChunkedArray, classes: tuple[str, ...]) -> None:
    """Raise SourceError if all labels, which are whole numbers, are also names of other positions in the class list."""
    position = {name: number for number, name in enumerate(classes)}
    found = {number: position.get(str(number), -1) for number in labels.unique().to_pylist()}
    number = next((number for number, named in found.items() if number != named), None)
    if number is not None and min(found.values()) >= 0:
        raise SourceError(
            f"the label {number} may be a position in the class list or the name {str(number)!r} in it; --column-type "
            "label:class reads labels as names, --column-type label:int as positions"
        )
