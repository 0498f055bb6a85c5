"""Companions of the samples of a source, such as masks: found by a pattern, or in a column of the table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import ImageError, OptionError, SourceError
from presize.options import SPELLINGS, Companion
from presize.sources.columns import with_column
from presize.sources.contents import OFFSET_OF, Source
from presize.sources.folder import RefusedFile
from presize.sources.labels import folder_at
from presize.sources.source_files import starts_like_an_image
from presize.sources.spellings import SourceFiles
from presize.store.index import COMPANION_COLUMNS
from presize.store.rejects import IMAGE_NAMES, NOT_AN_IMAGE, UNREADABLE, Reject, claims_to_be_an_image, of_companion
from presize.store.rejects_file import Rejects


def add_companions(
    source: Source, companions: Sequence[Companion], follow_links: bool = False, listed: bool = False
) -> Source:
    """Return `source` with ``mask_source_nbytes`` and ``mask_source_mtime_ns`` for a companion called mask.

    Samples whose companion is missing become rejects. Files that a pattern names as companions are not samples. Files
    whose name does not match a pattern are skipped, unless they are `listed` by a table. Paths in companion columns
    are replaced by the source's spelling of them.
    """
    if not companions or source.containers:  # containers are listed with their companions
        return source
    check_columns(source.table, companions)
    source, emptied = _without_companions(source, companions, listed)
    table = source.table
    reasons: dict[int, tuple[str, str, str]] = {}
    """For each row of a sample that lacks a companion: the error, its reason, and the path of the companion."""
    files = SourceFiles(source.root, follow_links)
    for companion in companions:

        def refuse(row: int, path: str, reason: RefusedFile, companion: Companion = companion) -> None:
            by = f" by {companion.pattern}" if companion.pattern else f" in column {companion.column}"
            error = reason.error
            if error != UNREADABLE:  # a file that does not match the pattern is skipped
                error = NOT_AN_IMAGE if companion.pattern and not path and not listed else ImageError.__name__
            reasons.setdefault(row, (error, f"{of_companion(companion.name)} {reason}{'' if path else by}", path))

        paths = companion_paths(companion, table)
        if companion.column is None:
            facts = files.look_up(paths, refuse, any_form=True)
        else:
            paths, facts = files.look_up_spelled(paths, refuse)
            table = with_column(table, companion.column, paths)
        for name, values in zip(("source_nbytes", "source_mtime_ns"), facts.T, strict=True):
            table = table.append_column(f"{companion.name}_{name}", pa.array(values))
    if not reasons:
        return _without_classes(replace(source, table=table), emptied)
    rows = np.array(sorted(reasons), np.int64)
    paths = table.column("path").take(pa.array(rows)).to_pylist()
    rejects = []
    for row, path in zip(rows.tolist(), paths, strict=True):
        is_image = claims_to_be_an_image(path) or starts_like_an_image(Path(source.root), path)
        error, reason = reasons[row][:2] if is_image else (NOT_AN_IMAGE, "not an image format that presize reads")
        rejects.append(Reject(path, error, reason))
    if len(rejects) == len(table):
        row = next((row for row, path in enumerate(paths) if claims_to_be_an_image(path)), 0)
        _, reason, missing = reasons[row]
        named = f": {missing!r}{files.hint(missing)}" if missing else ""
        raise SourceError(f"no sample of {source.root} can be used; {paths[row]}: the {reason}{named}")
    stays = pa.array(~np.isin(np.arange(len(table)), rows))
    source = replace(source, table=table.filter(stays), rejects=Rejects.joined([source.rejects, Rejects.of(rejects)]))
    return _without_classes(source, emptied)


def images_folder(paths: pa.ChunkedArray, companions: Sequence[Companion]) -> str:
    """Return the top-level folder that holds all images, if the companions of all patterns lie outside it; else "".

    A file without companions is not counted as an image if its top-level folder holds companions.
    """
    table = pa.table({"path": paths})
    patterns = [companion_paths(companion, table) for companion in companions if companion.column is None]
    if not patterns:
        return ""
    is_image, is_companion = pc.match_substring_regex(paths, IMAGE_NAMES), pa.scalar(False)
    for named in patterns:
        is_image = pc.and_(is_image, named.is_valid())
        is_companion = pc.or_(is_companion, _are_among(paths, named))
    top = folder_at(paths, 0)
    among_companions = pc.is_in(top, value_set=top.filter(is_companion).unique().drop_null())
    is_stray = pc.and_not(among_companions, _have_companions(patterns, paths.filter(is_companion)))
    is_image = pc.and_not(is_image, pc.or_(is_companion, is_stray))
    images = top.filter(is_image)
    beside = [folder_at(named.filter(is_image), 0) for named in patterns]
    folders = images.unique().to_pylist()
    if len(folders) != 1 or folders[0] is None or any(pc.any(pc.equal(each, folders[0])).as_py() for each in beside):
        return ""
    return str(folders[0])


def companions_of(pairs: Sequence[str], formats: Sequence[str], filters: Sequence[str]) -> tuple[Companion, ...]:
    """Parse companions from ``NAME=PATTERN``, and their formats and filters: ``NAME=X`` for one, ``X`` for all."""
    companions = [Companion.parse(pair) for pair in pairs]
    chosen: dict[str, dict[str, Any]] = {companion.name: {} for companion in companions}
    for option, values in (("format", formats), ("filter", filters)):
        for text in sorted(values, key=lambda text: "=" in text):  # a value for one companion wins
            name, _, value = text.rpartition("=")
            if not companions or name not in ("", *chosen):
                raise OptionError(f"pair_{option}: {text!r} matches no --pair (names: {', '.join(chosen) or 'none'})")
            for each in [name] if name else chosen:
                chosen[each][option] = SPELLINGS.get(value, value)
    return tuple(replace(companion, **chosen[companion.name]) for companion in companions)


def source_of(source: Source, companion: Companion) -> Source:
    table = source.table
    for name in ("source_nbytes", "source_mtime_ns"):
        table = with_column(table, name, table.column(f"{companion.name}_{name}"))
    if source.containers:
        table = with_column(table, "offset", table.column(f"{OFFSET_OF}{companion.name}"))
    return replace(source, table=with_column(table, "path", companion_paths(companion, source.table)))


def companion_paths(companion: Companion, table: pa.Table) -> pa.ChunkedArray:
    """Return the path of each sample's companion; null if its column is null or its name does not match the pattern."""
    if companion.column is not None:
        if companion.column not in table.column_names:
            names = ", ".join(table.column_names)
            raise SourceError(f"--pair {companion.name}: there is no column {companion.column!r} (columns: {names})")
        return table.column(companion.column)
    paths = table.column("path")
    names = pc.replace_substring_regex(paths, "(?s)^.*/", "")
    folders = pc.replace_substring_regex(paths, "/?[^/]*$", "")
    fields = {
        "dir": folders,
        "subdir": pc.replace_substring_regex(folders, "^[^/]*/?", ""),
        "name": names,
        "stem": pc.replace_substring_regex(names, r"(?s)^(.+)\.[^.]*$", r"\1"),
    }
    joined = pc.replace_substring_regex(paths, "(?s)^.*$", "")
    for literal, field, end in companion.pieces():
        added = [pa.scalar(literal, paths.type)]
        if field:
            cut = pc.utf8_slice_codeunits(fields[field], 0, -len(end)) if end else fields[field]
            added.append(pc.if_else(pc.ends_with(fields[field], end), cut, pa.scalar(None, paths.type)))
        joined = pc.binary_join_element_wise(joined, *added, pa.scalar("", paths.type))
    return pc.replace_substring_regex(joined, "^/|(/)/+", r"\1")  # where {dir} is empty


def check_columns(table: pa.Table, companions: Sequence[Companion]) -> None:
    for companion in companions:
        if not pa.types.is_large_string(companion_paths(companion, table).type):
            raise SourceError(f"--pair {companion.name}: column {companion.column!r} does not hold paths")
        own = {f"{companion.name}_{column}" for column in COMPANION_COLUMNS}
        if taken := [name for name in table.column_names if name in own]:
            raise SourceError(f"--pair {companion.name}: the index needs the column name {taken[0]!r}; rename yours")


def _without_companions(source: Source, companions: Sequence[Companion], listed: bool) -> tuple[Source, set[int]]:
    """Return `source` without companions that patterns name, and, unless it is `listed`, the labels of the classes that
    hold companions, but no file that has any."""
    table = source.table
    by_pattern = [companion_paths(companion, table) for companion in companions if companion.column is None]
    paths = pa.chunked_array([chunk for column in by_pattern for chunk in column.chunks], pa.large_string())
    is_companion = _are_among(table.column("path"), paths)
    if not pc.any(is_companion).as_py():
        return source, set()
    rest = table.filter(pc.invert(is_companion))
    if len(rest) == 0:
        raise SourceError(f"every file of {source.root} is a companion; --pair matches the images themselves")
    source = replace(source, table=rest)
    if listed or source.classes is None:
        return source, set()
    labels = table.column("label")
    is_sample = pc.and_not(_have_companions(by_pattern, table.column("path").filter(is_companion)), is_companion)
    emptied = set(labels.filter(is_companion).unique().to_pylist())
    return source, emptied.difference(labels.filter(is_sample).unique().to_pylist())


def _without_classes(source: Source, emptied: set[int]) -> Source:
    """Return `source` without the classes `emptied`, given by their labels. Classes that have samples stay."""
    if not emptied or source.classes is None:
        return source
    labels = source.table.column("label")
    gone = emptied.difference(labels.unique().to_pylist())
    number = np.cumsum([label not in gone for label in range(len(source.classes))]) - 1
    renumbered = pa.array(number[labels.to_numpy()].astype(np.int32))
    return replace(
        source,
        table=with_column(source.table, "label", renumbered),
        classes=tuple(name for label, name in enumerate(source.classes) if label not in gone),
    )


def _have_companions(patterns: Sequence[pa.ChunkedArray], companions: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask of the rows for which any of the `patterns` names one of the `companions`."""
    return functools.reduce(pc.or_, (_are_among(named, companions) for named in patterns))


def _are_among(paths: pa.ChunkedArray, named: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask of the `paths` that are in `named`, in any Unicode normalization."""
    if not pc.all(pc.string_is_ascii(paths)).as_py():
        paths, named = (pc.utf8_normalize(each, "NFC") for each in (paths, named))
    return pc.is_in(paths, value_set=pc.unique(named))
