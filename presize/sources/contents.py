"""What one container holds, as a table; and how the tables of several become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from presize.errors import SourceError
from presize.sources.labels import plain_column
from presize.store.index import INDEX_COLUMNS
from presize.store.rejects import Reject
from presize.system.file_version import FileVersion

PLACE_COLUMNS = ("container", "offset", "run")
"""Where a sample lies: the number of its container, its place there (see SourceFile), and the run that is read in one
go. The index does not have them."""


@dataclass(frozen=True)
class Contents:
    """The samples of one container.

    Attributes:
        version: that of the file, when its listing began.
        samples: ``path``, ``source_nbytes``, ``offset``, for Parquet ``run`` (the row group), and fields.
        classes: the names that ``label`` numbers; None where the container has none.
        rejects: what is no sample, and why.
        hidden: files whose names begin with a dot.
        left_out: fields that an index cannot store, and how many samples have them.
        column: that of the images, in Parquet.
    """

    version: FileVersion
    samples: pa.Table
    classes: tuple[str, ...] | None = None
    rejects: Sequence[Reject] = ()
    hidden: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    column: str = ""


def reject(path: str, reason: str) -> Reject:
    return Reject(path, SourceError.__name__, reason)


def field_name(name: str) -> str:
    """The column of a field: its name, with an underscore behind where the index has a column of that name."""
    return f"{name}_" if name in INDEX_COLUMNS or name in PLACE_COLUMNS else name


def rows_table(rows: Sequence[dict[str, Any]], left_out: Counter[str]) -> pa.Table:
    """A column for each name in `rows`, null where a row lacks it; names whose values have no common type are counted
    in `left_out`."""
    columns = {}
    for name in {name: None for row in rows for name in row}:
        try:
            name.encode()  # raises for half of a surrogate pair, which JSON can escape
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError, UnicodeError):
            left_out[name] += sum(name in row for row in rows)
    return plain_table(pa.table(columns), left_out)


def plain_table(table: pa.Table, left_out: Counter[str]) -> pa.Table:
    """The columns of `table` as an index stores them; those that it cannot store are counted in `left_out`."""
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = plain_column(name, table.column(name))
        except SourceError:
            left_out[name] += len(table)
    return pa.table(columns)


def joined(tables: Sequence[pa.Table], left_out: Counter[str]) -> pa.Table:
    """The rows of all tables; columns of different types get one that holds both, or are counted in `left_out`."""
    columns = {}
    for name in {name: None for table in tables for name in table.column_names}:
        fields = [table.schema.field(name) for table in tables if name in table.column_names]
        try:
            kind = pa.unify_schemas([pa.schema([one]) for one in fields], promote_options="permissive").field(0).type
            chunks = [chunk for table in tables for chunk in _chunks(table, name, kind)]
            columns[name] = pa.chunked_array(chunks, kind)
        except pa.ArrowException:
            left_out[name] += sum(len(table) for table in tables)
    return pa.table(columns)


def _chunks(table: pa.Table, name: str, kind: pa.DataType) -> Iterable[pa.Array]:
    """A column of `table` as `kind`, a wider type. Arrow's own cast of nested types is not used: it truncates lists of
    nulls in structs (26.0.1)."""
    if name not in table.column_names:
        return [pa.nulls(len(table), kind)]
    column = table.column(name)
    return column.chunks if column.type == kind else [pa.array(column.to_pylist(), kind)]
