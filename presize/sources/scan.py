"""Scans a source for samples: a table of ``path`` (relative to the source, POSIX), ``source_nbytes``,
``source_mtime_ns`` and label columns, in dataset order, in Arrow memory without a Python object per file."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError, warn
from presize.formatting import printable
from presize.options import ColumnType, Companion, SourceOptions
from presize.sources.columns import python_values
from presize.sources.companions import add_companions, images_folder
from presize.sources.containers import check_options, list_containers, recognize
from presize.sources.contents import Source
from presize.sources.folder import resolve, walk_bucket, walk_folder
from presize.sources.labels import check_classes, folder_at, naming, with_splits
from presize.sources.source_files import Url, starts_like_an_image
from presize.sources.table import is_list, list_table
from presize.sources.tree import list_tree
from presize.store.rejects import IMAGE_NAMES
from presize.system.files import expanded

_IMAGES = {"image", "images", "img", "imgs", "leftimg8bit"}
"""Names of folders that probably hold all images, and are not classes."""


def scan(
    root: str | os.PathLike[str],
    samples: SourceOptions = SourceOptions(),
    follow_links: bool = False,
    types: Sequence[ColumnType] = (),
    companions: Sequence[Companion] = (),
) -> Source:
    """List the samples of a source: a folder, a URL, or containers. Files that cannot be samples become rejects.

    In a folder of folders, each folder is a class, and samples are sorted as by torchvision's ImageFolder: by class,
    then folder, then name. If the folders are splits, samples are sorted by split first. No image is opened. Links out
    of the source become rejects, unless `follow_links`. `types` override the inferred types of columns.
    """
    root = expanded(root)
    if samples.classes is not None:
        with naming("classes"):
            samples = replace(samples, classes=check_classes(samples.classes))
    url, given, images = Url.of(root), dict(types), ""
    containers = None if samples.table is not None or url else recognize(root, samples.keys is not None, follow_links)
    kind = containers.kind.plural if containers else "buckets" if url else "folders"
    if samples.table is not None:
        kind = "label tables of buckets" if url else "label tables"
    check_options(kind, root, keys=samples.keys, label_keys=samples.label_keys, column_type=types, pair=companions)
    if containers is not None:
        source = list_containers(containers, samples, follow_links, given, companions)
    elif samples.table is not None:
        with naming(f"labels {os.fspath(samples.table)!r}"):
            source = list_table(samples.table, root, url or Path(resolve(root)), samples, follow_links, given)
    else:
        tree = walk_bucket(url) if url else walk_folder(root, follow_links)
        by_folder = samples.labels != "none" or samples.split == "folders"
        found = images_folder(tree.paths, companions) if by_folder else ""
        images = found if found and tree.inner_folders()[found] else ""
        source = list_tree(tree, samples, images)
    _warn_of_backslashes(source, samples)
    if source.by_folder and samples.classes is None and not companions:
        _warn_of_companions(source)
    _warn_of_label_names(source, samples)
    source = with_splits(source, samples, images)
    _warn_of_lookalikes(source)
    return add_companions(source, companions, follow_links, samples.table is not None)


def scan_images(root: str | os.PathLike[str]) -> Source:
    """Return the images of a folder as a build would list them, following links, as ImageFolder does: files with the
    suffix of an image, and files that start like one. Opening one without such a suffix takes about 10 µs."""
    source = scan(root, follow_links=True)
    if source.containers:
        raise SourceError(
            f"{os.fspath(root)} holds no image files, only containers such as {source.containers[0].path!r}"
        )
    paths = source.table.column("path")
    is_image = pc.match_substring_regex(paths, IMAGE_NAMES).to_numpy().copy()
    others = np.flatnonzero(~is_image)
    for row, path in zip(others, python_values(paths.take(pa.array(others))), strict=True):
        is_image[row] = starts_like_an_image(Path(source.root), path)
    if not is_image.any():
        raise SourceError(f"{os.fspath(root)} holds no images")
    return replace(source, table=source.table.filter(pa.array(is_image)))


def _warn_of_companions(source: Source) -> None:
    """Warn if a class is named like a folder of all images, and another class has the same subfolders."""
    root = next((name for name in source.classes or () if name.lower() in _IMAGES), None)
    if root is None:
        return
    paths = source.table.column("path")
    folders = pa.table({"name": folder_at(paths, 0), "inner": folder_at(paths, 1)}).group_by(["name", "inner"])
    rows = [row for row in folders.aggregate([]).to_pylist() if row["inner"] is not None]
    inner = {row["inner"] for row in rows if row["name"] == root}
    other = next((row["name"] for row in rows if row["name"] != root and row["inner"] in inner), None)
    if other is not None:
        warn(
            f"source {str(source.root)!r} has the same folders in {root} and {other}, which become classes; if {other} "
            f"holds masks of {root}, add --pair mask={other}/{{subdir}}/{{stem}}.png, else build only {root}"
        )


_LABELS = {"label", "labels", "class", "classes", "category", "target"}


def _warn_of_label_names(source: Source, options: SourceOptions) -> None:
    """Warn if a label table or containers have no column `label`, but one that is probably meant to be."""
    schema = source.table.schema
    if "label" in schema.names or options.labels == "none" or (options.table is None and not source.containers):
        return
    what = f"source {source.name!r}" if options.table is None else f"labels {os.fspath(options.table)!r}"
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name.lower() in _LABELS and (pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
            fix = "rename it" if options.table else f"read it with LMDBDataset(OUT, target={printable(name)!r})"
            warn(
                f"{what}: samples have no label, because no column is named label; if column {printable(name)!r} holds "
                f"the labels, {fix}"
            )
            break


def _warn_of_lookalikes(source: Source) -> None:
    """Warn if names of classes or splits differ only in whitespace, or in the Unicode form of a letter."""
    splits: list[str] = []
    if "split" in (schema := source.table.schema).names and pa.types.is_large_string(schema.field("split").type):
        splits = pc.unique(source.table.column("split")).drop_null().to_pylist()
    for kind, names in (("classes", source.classes or ()), ("splits", splits)):
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(" ".join(unicodedata.normalize("NFC", name).split()), name)
            if other != name:
                warn(
                    f"source {str(source.root)!r}: the {kind} {other!a} and {name!a} differ only in whitespace or in "
                    "the Unicode form of a letter; if they mean the same, write them alike"
                )
                break


def _warn_of_backslashes(source: Source, options: SourceOptions) -> None:
    """Warn if samples have no label, or all the same, because backslashes in their names do not separate folders."""
    wanted = options.labels is None or (options.table is not None and is_list(options.table))
    one_class = source.classes is not None and source.by_folder and len(source.classes) == 1
    if not wanted or ("label" in source.table.column_names and not one_class):
        return
    paths = source.table.column("path")
    named = paths.filter(pc.match_substring(paths, "\\"))
    if len(named):
        fix = "write it again with / in names" if source.containers else "unpack the archive with unzip to get folders"
        warn(
            f"source {str(source.root)!r}: {len(named):,} of {len(paths):,} names contain backslashes, such as "
            f"'{printable(named[0].as_py())}', which separate folders only on Windows, and "
            f"{'all samples are of one class' if one_class else 'no sample has a label'}; {fix}"
        )
