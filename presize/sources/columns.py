"""Columns as the index stores them, from whatever Arrow, JSON or Python holds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError
from presize.options import ValueType
from presize.sources.text_columns import as_type
from presize.store.index import INDEX_COLUMNS

ROWS_AT_ONCE = 65536
"""How many values exist as Python objects at a time."""

_DEEPEST = 32
"""Arrow writes no column of more than 64 types in one another."""


def python_values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield the values of a column as Python objects, of which few exist at a time."""
    for start in range(0, len(column), ROWS_AT_ONCE):
        yield from column.slice(start, ROWS_AT_ONCE).to_pylist()


def with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with one column added, or replaced."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def _leave_out(name: str, rows: int, error: Exception, left_out: Counter[str] | None) -> None:
    """Count the rows of a column that is left out; without a counter, raise SourceError."""
    if left_out is not None:
        left_out[name] += rows
    elif isinstance(error, UnicodeError):
        raise error
    else:
        raise SourceError(f"column {name!r}: {one_line(error)}") from None


def one_line(message: object) -> str:
    """Return the beginning of a message that may quote any text of a table."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)[:200])


def rows_table(rows: Sequence[Mapping[str, Any]], left_out: Counter[str] | None = None) -> pa.Table:
    """Return a column for each name in `rows`, null where a row lacks it. Those without a type are `left_out`."""
    columns = {}
    for name in {name: None for row in rows for name in row}:
        try:
            name.encode()  # raises for half of a surrogate pair, which JSON can escape
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            _leave_out(name, sum(name in row for row in rows), error, left_out)
    return pa.table(columns)


def joined(tables: Sequence[pa.Table], left_out: Counter[str] | None = None) -> pa.Table:
    """Return the rows of all tables. Columns of different types get one that holds both, or are `left_out`."""
    columns = {}
    for name in {name: None for table in tables for name in table.column_names}:
        fields = [table.schema.field(name) for table in tables if name in table.column_names]
        try:
            kind = pa.unify_schemas([pa.schema([one]) for one in fields], promote_options="permissive").field(0).type
            chunks = [chunk for table in tables for chunk in _chunks(table, name, kind)]
            columns[name] = pa.chunked_array(chunks, kind)
        except pa.ArrowException as error:
            _leave_out(name, sum(len(table) for table in tables), error, left_out)
    return pa.table(columns)


def _chunks(table: pa.Table, name: str, kind: pa.DataType) -> Iterable[pa.Array]:
    """Return a column of `table` as `kind`, a wider type. Arrow's own cast of nested types is not used: it truncates
    lists of nulls in structs (26.0.1)."""
    if name not in table.column_names:
        return [pa.nulls(len(table), kind)]
    column = table.column(name)
    return column.chunks if column.type == kind else [pa.array(column.to_pylist(), kind)]


def plain_table(table: pa.Table, left_out: Counter[str]) -> pa.Table:
    """Return the columns of `table`, normalized. Those that an index cannot store are `left_out`."""
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = plain_column(name, table.column(name))
        except SourceError as error:
            _leave_out(name, len(table), error, left_out)
    return pa.table(columns)


def plain_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column `name`, normalized as read_table documents. Raises SourceError for values that an index cannot store,
    or that Python cannot read, such as times in nanoseconds."""
    if _depth(column.type) > _DEEPEST:
        raise SourceError(f"column {name!r} holds lists or objects nested more than {_DEEPEST} deep; leave it out")
    try:
        plain = pa.chunked_array([_plain(chunk) for chunk in column.chunks])
    except pa.ArrowNotImplementedError:
        raise SourceError(
            f"column {name!r} holds {one_line(column.type)}, which an index cannot store; leave it out"
        ) from None
    if _has_times(plain.type):
        try:
            deque(python_values(plain), 0)
        except (ValueError, OverflowError, KeyError, pa.ArrowException) as error:  # KeyError: of an unknown time zone
            why = one_line(error).partition(". ")[0]
            raise SourceError(
                f"column {name!r} holds {one_line(plain.type)} with values that Python has no type for ({why}); round "
                "them, store them as numbers or text, or leave the column out"
            ) from None
    return plain


def with_types(
    table: pa.Table, types: Mapping[str, ValueType], own: Collection[str] = tuple(INDEX_COLUMNS)
) -> pa.Table:
    """A normalized table with the types that its columns are given, but for its `own`.

    Raises:
        SourceError: there is no such column, or a value is not of its type.
    """
    for name, kind in types.items():
        if name not in table.column_names or name in own:
            known = ", ".join(each for each in table.column_names if each not in own)[:200]
            raise SourceError(f"--column-type {name}:{kind}: there is no such column; there are {known or 'none'}")
        table = with_column(table, name, plain_column(name, as_type(name, table.column(name), kind)))
    return table


def _depth(kind: pa.DataType) -> int:
    """How many types a type is nested in one another."""
    return 1 + max((_depth(kind.field(number).type) for number in range(kind.num_fields)), default=0)


def _has_times(kind: pa.DataType) -> bool:
    """Whether there are dates or times in a type, of which Arrow has more than Python."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_temporal(kind) or any(map(_has_times, inner))


def _plain(values: pa.Array) -> pa.Array:
    """The same values, normalized as read_table documents."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _plain(values.storage)
    if pa.types.is_dictionary(kind):
        return _plain(values.dictionary_decode())
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [_plain(field) for field in values.flatten()]  # null where the struct is
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=values.is_null())
    if any(is_one(kind) for is_one in _LISTS):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
        ends = np.cumsum(lengths, dtype=np.int64)
        inner = _plain(values.flatten())  # without what lies under nulls
        return pa.LargeListArray.from_arrays(np.concatenate([[0], ends]), inner, mask=values.is_null())
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        kind = pa.large_string()
    elif pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        kind = pa.large_binary()
    elif (pa.types.is_nested(kind) and not pa.types.is_struct(kind)) or pa.types.is_run_end_encoded(kind):
        raise pa.ArrowNotImplementedError
    return values.cast(kind).take(pa.array(np.arange(len(values))))  # take writes zeros under nulls


_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
