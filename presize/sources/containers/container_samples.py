"""Lists the samples of a source that consists of containers: LMDBs, tar shards or Parquet files."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import PresizeWarning, SourceError
from presize.formatting import plural, printable
from presize.options import SourceOptions
from presize.sources.containers.contents import PLACE_COLUMNS, Contents, joined, reject
from presize.sources.containers.foreign_lmdb import list_lmdb
from presize.sources.containers.parquet_files import list_parquet
from presize.sources.containers.recognize import Containers
from presize.sources.containers.tar_shards import list_tar
from presize.sources.labels import check_classes, class_labels
from presize.sources.source_files import Container
from presize.sources.tree import SPLITS
from presize.sources.walk import LINK_OUT, as_utf8, is_inside, is_utf8, mtime_ns
from presize.store.dealing import neighbours
from presize.store.filenames import unsafe_paths
from presize.store.rejects import Reject

_FIELDS_NAMED = 5
_OWN_COLUMNS = ("path", "source_nbytes", "source_mtime_ns", *PLACE_COLUMNS)


class Samples(NamedTuple):
    """The samples of a source of containers; see presize.sources.scan.Source."""

    table: pa.Table
    classes: tuple[str, ...] | None
    rejects: tuple[Reject, ...]
    hidden: int
    containers: tuple[Container, ...]


def list_samples(
    found: Containers, samples: SourceOptions, classes: tuple[str, ...] | None, follow_links: bool
) -> Samples:
    """List the samples of all containers, in the order of their names. What cannot be a sample becomes a reject.

    Args:
        found: the containers.
        samples: how they are read.
        classes: the class list to use.
        follow_links: read containers that are links out of the source.

    Raises:
        SourceError: not one sample was found, or class lists disagree.
        OptionError: ``keys`` or ``label_keys`` is no pattern.

    Warns:
        PresizeWarning: containers, or fields of samples, were left out.
    """
    rejects: list[Reject] = []
    listings: list[Contents] = []
    containers: list[Container] = []
    for path in found.paths:
        try:
            listing = _list(found, path, samples, follow_links)
        except SourceError as error:
            rejects.append(reject(as_utf8(path), str(error)))
            continue
        number = np.full(len(listing.samples), len(containers), np.int32)
        mtime = mtime_ns(os.stat(os.path.join(found.root, path)))
        table = listing.samples.append_column("container", pa.array(number))
        table = table.append_column("source_mtime_ns", pa.array(np.full(len(number), mtime, np.int64)))
        listings.append(replace(listing, samples=table))
        containers.append(Container(path, listing.column))
    if rejects and listings:
        warnings.warn(
            f"{plural(len(rejects), 'file')} of {found.root!r} left out with all that is in them; the first is "
            f"'{printable(rejects[0].path)}': {rejects[0].reason}",
            PresizeWarning,
            stacklevel=4,
        )
    left_out = sum((listing.left_out for listing in listings), Counter[str]())
    table = joined([listing.samples for listing in listings], left_out)
    _tell_left_out(found, left_out)
    rejects += [one for listing in listings for one in listing.rejects]
    if listings and len(table):
        is_safe = ~unsafe_paths(table.column("path")).to_numpy()
        table = _keep(table, is_safe, "its name is no relative path of UTF-8 text", containers, rejects)
        table = _keep(table, ~_repeated(table), "an earlier sample of the file has its name", containers, rejects)
        table = _with_distinct_paths(table, containers)
        if samples.labels == "none" and "label" in table.column_names:
            table = table.drop_columns("label")
        table, known = _with_classes(table, _classes(listings, containers), classes, containers, rejects)
    if not listings or not len(table):
        first = f"; the first, {printable(rejects[0].path)!r}: {rejects[0].reason}" if rejects else ""
        raise SourceError(f"source {found.root!r} holds no samples in {plural(len(found.paths), 'file')}{first}")
    if "run" not in table.column_names:
        table = table.append_column("run", pa.array(neighbours(table.column("container").to_numpy())))
    else:
        groups = np.stack([table.column(name).to_numpy() for name in ("container", "run")])
        begins = np.append(True, (np.diff(groups) != 0).any(axis=0))
        table = table.drop_columns("run").append_column("run", pa.array(np.cumsum(begins) - 1))
    if samples.split == "folders":
        table = _with_splits(table, containers)
    fields = [name for name in table.column_names if name not in _OWN_COLUMNS]
    hidden = sum(listing.hidden for listing in listings)
    return Samples(table.select([*_OWN_COLUMNS, *fields]), known, tuple(rejects), hidden, tuple(containers))


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


def _names(containers: Sequence[Container]) -> list[str]:
    """What containers are called before a sample's name: their path without a suffix, or the folder of an LMDB."""
    paths = [container.path.removesuffix("/data.mdb") for container in containers]
    return [os.path.splitext(path)[0] for path in paths]


def _codes(table: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each path: the same for the same paths."""
    return np.asarray(table.column("path").combine_chunks().dictionary_encode().indices.to_numpy(), np.int64)


def _with_splits(table: pa.Table, containers: Sequence[Container]) -> pa.Table:
    """The samples with the column ``split``: the first word of the names of containers, if that is a split's in each,
    as in ``train-00000-of-00002.parquet``; otherwise the first folder of their paths."""
    if "split" in table.column_names:
        raise SourceError("the samples have a field 'split' already; leave out --split to use that")
    paths = [container.path for container in containers]
    splits = [re.split(r"[^A-Za-z]", os.path.basename(path))[0] for path in paths]
    if not SPLITS.issuperset(splits):
        splits = [path.partition("/")[0] for path in paths]
        beside = [path for path in paths if "/" not in path]
        if beside:
            raise SourceError(f"--split folders: {beside[0]!r} lies in no folder of the source")
    names = pa.array(splits, pa.large_string()).take(table.column("container").combine_chunks())
    return table.append_column("split", names)


def _repeated(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which samples have the path of an earlier one of their container."""
    paths, container = _codes(table), table.column("container").to_numpy().astype(np.int64)
    _, first = np.unique(container * len(table) + paths, return_index=True)
    repeated = np.ones(len(table), np.bool_)
    repeated[first] = False
    return repeated


def _with_distinct_paths(table: pa.Table, containers: Sequence[Container]) -> pa.Table:
    """The samples with the name of their container before each path, where two containers have one path in common."""
    if len(np.unique(_codes(table))) == len(table):
        return table
    names = pa.array(_names(containers), pa.large_string()).take(table.column("container").combine_chunks())
    paths = pc.binary_join_element_wise(names, table.column("path").combine_chunks(), pa.scalar("/", pa.large_string()))
    return table.set_column(table.column_names.index("path"), "path", paths)


def _keep(
    table: pa.Table,
    kept: npt.NDArray[np.bool_],
    reason: str,
    containers: Sequence[Container],
    rejects: list[Reject],
) -> pa.Table:
    """The samples that are `kept`; the others become rejects."""
    if kept.all():
        return table
    others = table.select(["container", "path"]).filter(pa.array(~kept))
    for number, path in zip(*(others.column(name).to_pylist() for name in others.column_names), strict=True):
        rejects.append(reject(f"{containers[number].path}/{path}", reason))
    return table.filter(pa.array(kept))


def _classes(listings: Sequence[Contents], containers: Sequence[Container]) -> tuple[str, ...] | None:
    """The class list that the containers have in common. Raises SourceError when they disagree."""
    known = [(listing.classes, container.path) for listing, container in zip(listings, containers, strict=True)]
    for names, path in known[1:]:
        if names != known[0][0]:
            raise SourceError(f"the class lists of {known[0][1]!r} and {path!r} differ; build each separately")
    return None if known[0][0] is None else check_classes(known[0][0])


def _with_classes(
    table: pa.Table,
    own: tuple[str, ...] | None,
    classes: tuple[str, ...] | None,
    containers: Sequence[Container],
    rejects: list[Reject],
) -> tuple[pa.Table, tuple[str, ...] | None]:
    """The samples with their labels as numbers of classes, and the class list; None where labels are no classes."""
    if "label" not in table.column_names:
        if classes is not None:
            raise SourceError("--classes needs labels, and the samples have none")
        return table, None
    labels = table.column("label")
    table = _keep(table, labels.is_valid().to_numpy(), "it has no label", containers, rejects)
    labels, known = table.column("label"), own or classes
    if pa.types.is_integer(labels.type) and known is not None:
        numbers = labels.to_numpy()
        listed = (numbers >= 0) & (numbers < len(known))
        table = _keep(table, listed, f"its label is not in the class list of {len(known)} names", containers, rejects)
        labels = table.column("label").cast(pa.int32())
        if own is not None and classes is not None and own != classes:
            names = pa.chunked_array([pa.array(own, pa.large_string()).take(labels.combine_chunks())])
            labels, known = class_labels(names, classes)
    elif pa.types.is_large_string(labels.type):
        labels, known = class_labels(labels, classes)
    elif classes is not None:
        raise SourceError(f"--classes needs labels that are names or numbers; they are {labels.type}")
    else:
        known = None
    return table.set_column(table.column_names.index("label"), "label", labels), known
