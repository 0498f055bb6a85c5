"""Columns as the index stores them, from the values of Arrow, JSON, Python or text files.

A column of texts becomes numbers if each text looks like a number that a program printed: 7 and 1e-05, but not 007,
12E5 or 0x1F. When in doubt, it stays text.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from presize.errors import SourceError
from presize.options import ValueType
from presize.store.index import INDEX_COLUMNS

ROWS_AT_ONCE = 65536

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
_DEEPEST = 32
"""Greatest depth of nested types. Arrow cannot write more than 64 levels."""

_NULLS = pa.array([*filter(None, pa.csv.ConvertOptions().null_values), "NAN", "-NAN", "+NAN", "+nan"], pa.string())
"""Spellings of missing numbers, besides an empty cell: NA, NaN and the like."""
_WHOLE = r"^(?:0|-?[1-9][0-9]*)$"
_FEW_DIGITS = r"(?:0|[1-9][0-9]{0,16})"
"""A number without a decimal point. With more digits than programs print for a float, it is an identifier."""
_NUMBER = (
    rf"^(?:-?{_FEW_DIGITS}|[+-]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)"
    r"|[+-]?[0-9](?:\.[0-9]*)?[eE][+-][0-9]+"  # most languages
    r"|-?[0-9]e(?:1[5-9]|[2-9][0-9]|[1-3][0-9]{2})"  # Polars, Rust and MySQL, of large numbers
    r"|-?[0-9]\.[0-9]+[eE][0-9]+"  # Java and Julia
    r"|[+-]?(?i:inf(?:inity)?))$"
)
_SURE = r"\.|[eE][+-]|[iI]"
"""Matches values that can only be decimals. A column of values such as 1e20 could hold identifiers."""
_BOOLEAN = r"^(?:true|True|TRUE|false|False|FALSE)$"
_SPELLING_LOST = (
    r"^(?:\+.*|-?(?:[0-9]*\.[0-9]*[1-9]0+|[0-9]*\.00+|\.[0-9]+|[0-9]+\."
    r"|[1-9][0-9]{15,}|0*\.?0*[1-9](?:\.?[0-9]){17,}))$"
)
"""Decimals that programs print differently: 3.10, 12.00, +0.5, .5, 5., and those with more digits than a float has."""
_GIVEN: dict[ValueType, str] = {
    "int": r"^[+-]?[0-9]+(?:\.0*)?$",
    "float": r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?))$",
}
_DOUBLED = r'(?s)^(?:[^"]|"")*$'
_ESCAPED = r'(?s)^(?:[^"\\]|\\.)*$'
_KINDS: Mapping[str, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "text": pa.large_string()}
NO_TEXT = r"(?s)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|^[ILFSV].*\n\.$"
"""Binary data that happens to be UTF-8: control characters except tabs and line breaks, or a pickle of protocol 0."""
_PICKLE = re.compile(rb"(?s)(\x80[\x02-\x05]|[ILFSV].*\n).*\.$")


def python_values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield the values of a column as Python objects, converting ROWS_AT_ONCE at a time to save memory."""
    for start in range(0, len(column), ROWS_AT_ONCE):
        yield from column.slice(start, ROWS_AT_ONCE).to_pylist()


def with_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def _leave_out(name: str, rows: int, error: Exception, left_out: Counter[str] | None, where: str = "") -> None:
    """Add the rows of a column to `left_out`; raise SourceError if that is None."""
    if left_out is not None:
        left_out[name] += rows
    elif isinstance(error, UnicodeError):
        raise error
    else:
        fix = "" if isinstance(error, OverflowError) else "; write its values all as text, or all as numbers"
        raise SourceError(f"column {name!r}{where}: {one_line(error)}{fix}") from None


def one_line(message: object) -> str:
    """Return the first 200 characters of a message, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)[:200])


def rows_table(
    rows: Sequence[Mapping[str, Any]], left_out: Counter[str] | None = None, rows_above: int = 0
) -> pa.Table:
    """Return a column for each name in `rows`, null where a row lacks it. Columns without one type are `left_out`.
    Errors count rows from 1, after `rows_above`."""
    columns = {}
    for name in {name: None for row in rows for name in row}:
        try:
            name.encode()  # raises for lone surrogates, which JSON can escape
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            where = "" if left_out is not None else f" in row {rows_above + _first_wrong(rows, name):,}"
            _leave_out(name, sum(name in row for row in rows), error, left_out, where)
    return pa.table(columns)


def _first_wrong(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    """Return the number, from 1, of the row whose value does not fit the column of the values above it."""
    good, wrong = 0, len(rows)
    while wrong - good > 1:
        middle = (good + wrong) // 2
        try:
            pa.array([row.get(name) for row in rows[:middle]])
            good = middle
        except (pa.ArrowException, OverflowError, UnicodeError):
            wrong = middle
    return wrong


def joined(tables: Sequence[pa.Table], left_out: Counter[str] | None = None) -> pa.Table:
    """Concatenate tables. A column with several types gets a common type, or is `left_out` if there is none, as are all
    columns that are left out already in one of the tables."""
    columns = {}
    for name in {name: None for table in tables for name in table.column_names}:
        some = [table.column(name) for table in tables if name in table.column_names]
        if left_out is not None and name in left_out:
            left_out[name] += sum(len(column) - column.null_count for column in some)
            continue
        fields = [table.schema.field(name) for table in tables if name in table.column_names]
        try:
            kind = pa.unify_schemas([pa.schema([one]) for one in fields], promote_options="permissive").field(0).type
            chunks = [chunk for table in tables for chunk in _chunks(table, name, kind)]
            columns[name] = pa.chunked_array(chunks, kind)
        except (pa.ArrowException, OverflowError) as error:  # OverflowError: uint64 and int64
            _leave_out(name, sum(len(table) for table in tables), error, left_out)
    return pa.table(columns)


def _chunks(table: pa.Table, name: str, kind: pa.DataType) -> Iterable[pa.Array]:
    if name not in table.column_names:
        return [pa.nulls(len(table), kind)]
    column = table.column(name)  # Arrow's own cast of nested types truncates lists of nulls in structs (26.0.1)
    return column.chunks if column.type == kind else [pa.array(column.to_pylist(), kind)]


def plain_table(table: pa.Table, left_out: Counter[str]) -> pa.Table:
    """Return `table` with normalized columns. Columns that an index cannot store are `left_out`."""
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = plain_column(name, table.column(name))
        except SourceError as error:
            _leave_out(name, len(table), error, left_out)
    return pa.table(columns)


def plain_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column normalized as read_table documents. Raises SourceError if an index or Python cannot hold it."""
    if any(depth > _DEEPEST for _, depth in all_types(column.type)):
        raise SourceError(
            f"column {name!r} holds lists or objects nested more than {_DEEPEST} levels deep; leave it out"
        )
    try:
        plain = pa.chunked_array([_plain(chunk) for chunk in column.chunks])
    except pa.ArrowNotImplementedError:
        raise SourceError(
            f"column {name!r} holds {one_line(column.type)}, which an index cannot store; leave it out"
        ) from None
    if any(pa.types.is_temporal(kind) for kind, _ in all_types(plain.type)):  # Python lacks some of these types
        try:
            deque(python_values(plain), 0)
        except (ValueError, OverflowError, KeyError, pa.ArrowException) as error:  # KeyError: unknown time zone
            why = one_line(error).partition(". ")[0]
            raise SourceError(
                f"column {name!r} holds {one_line(plain.type)} with values that Python has no type for ({why}); round "
                "them, store them as numbers or text, or leave the column out"
            ) from None
    return plain


def with_types(
    table: pa.Table, types: Mapping[str, ValueType], own: Collection[str] = tuple(INDEX_COLUMNS)
) -> pa.Table:
    """Return a normalized table whose columns have the given types. Raises SourceError for missing or `own` columns."""
    for name, kind in types.items():
        if name not in table.column_names or name in own:
            known = ", ".join(each for each in table.column_names if each not in own)[:200]
            raise SourceError(f"--column-type {name}:{kind}: there is no such column (columns: {known or 'none'})")
        table = with_column(table, name, plain_column(name, as_type(name, table.column(name), kind)))
    return table


def all_types(kind: pa.DataType, depth: int = 1) -> Iterator[tuple[pa.DataType, int]]:
    yield kind, depth
    for number in range(kind.num_fields):
        yield from all_types(kind.field(number).type, depth + 1)


def _plain(values: pa.Array) -> pa.Array:
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _plain(values.storage)
    if pa.types.is_dictionary(kind):
        return _plain(values.dictionary_decode())
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [_plain(field) for field in values.flatten()]  # null where the struct is null
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=values.is_null())
    if isinstance(kind, _LISTS):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
        ends = np.cumsum(lengths, dtype=np.int64)
        inner = _plain(values.flatten())  # without values under nulls
        return pa.LargeListArray.from_arrays(np.concatenate([[0], ends]), inner, mask=values.is_null())
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        kind = pa.large_string()
    elif pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        kind = pa.large_binary()
    elif (pa.types.is_nested(kind) and not pa.types.is_struct(kind)) or pa.types.is_run_end_encoded(kind):
        raise pa.ArrowNotImplementedError
    return values.cast(kind).take(pa.array(np.arange(len(values))))  # take writes zeros under nulls


def read_texts(texts: pa.ChunkedArray, is_label: bool = False) -> pa.ChunkedArray:
    """Return a column of texts as numbers or booleans if all of them are, and unchanged otherwise. Boolean labels stay
    text, since they name two classes."""
    known = _known(texts)
    if known.null_count == len(known):
        return pa.chunked_array([pa.nulls(len(texts))])
    if _all_match(known, _WHOLE):
        numbers = whole_numbers(known)
        return numbers if pa.types.is_integer(numbers.type) else texts
    if _all_match(known, _NUMBER):
        is_sure = (pc.any(pc.match_substring_regex(known, pattern)).as_py() for pattern in (_SURE, "[0-9]"))
        return known.cast(pa.float64()) if all(is_sure) else texts
    if not _all_match(known, _BOOLEAN):
        return texts
    if not is_label:
        return pc.equal(pc.utf8_lower(known), "true")
    return known if len(known.unique().drop_null()) <= 2 else pc.utf8_lower(known)


def whole_numbers(texts: Any) -> Any:
    """Return texts as int64 if all of them are whole numbers as programs print them, and unchanged otherwise."""
    if not pc.all(pc.match_substring_regex(texts, _WHOLE), min_count=0).as_py():
        return texts
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:  # more than 64 bits
        return texts


def unquoted(texts: Any, separators: str) -> Any:
    r"""Remove the quotes around texts if all have some: ``"Yes, we can"``, with ``""`` or ``\\"`` for quotes inside. If
    some have none, remove only necessary quotes: those around one of `separators` or another quote."""
    inside = pc.utf8_slice_codeunits(texts, 1, -1)
    in_quotes = pc.match_substring_regex(texts, r'(?s)^".*"$')
    doubled, escaped = (pc.match_substring_regex(inside, pattern) for pattern in (_DOUBLED, _ESCAPED))
    if pc.all(in_quotes, min_count=0).as_py():
        if pc.all(doubled).as_py():
            return pc.replace_substring(inside, '""', '"')
        if pc.all(escaped).as_py():
            return pc.replace_substring_regex(inside, r'\\(["\\])', r"\1")
        return inside if pc.any(pc.or_(doubled, escaped)).as_py() else texts
    needed = pc.and_(pc.and_(in_quotes, doubled), pc.match_substring_regex(inside, f'[{separators}"]'))
    return pc.if_else(needed, pc.replace_substring(inside, '""', '"'), texts)


def lost_spelling(texts: pa.ChunkedArray) -> str | None:
    known = _known(texts)
    lost = known.filter(pc.match_substring_regex(known, _SPELLING_LOST))
    return str(lost[0]) if len(lost) else None


def as_type(name: str, column: pa.ChunkedArray, kind: ValueType) -> pa.ChunkedArray:
    """Return the column `name` as the type that --column-type requests; "class" becomes text here."""
    option = f"--column-type {name}:{kind}"
    wanted = _KINDS.get(kind, pa.large_string())
    if pa.types.is_large_string(column.type) or pa.types.is_string(column.type):
        return column if kind in ("text", "class") else _as_numbers(column, kind, option)
    if pa.types.is_floating(column.type) and kind in ("text", "class"):
        raise SourceError(f"{option}: it holds {column.type}, so the original spelling is lost; store it as text")
    try:
        return column.cast(wanted)
    except pa.ArrowException:
        raise SourceError(f"{option}: it holds {column.type}, with values that cannot be {kind}") from None


def _as_numbers(texts: pa.ChunkedArray, kind: ValueType, option: str) -> pa.ChunkedArray:
    known = _known(texts)
    plain = pc.replace_substring_regex(known, r"^\+|\.0*$" if kind == "int" else r"^\+", "")
    fits = pc.match_substring_regex(known, _GIVEN[kind])
    with suppress(pa.ArrowInvalid):
        if pc.all(fits, min_count=0).as_py():
            return plain.cast(_KINDS[kind])
    # A text that fits the pattern is castable unless it is a whole number of more than 64 bits.
    row = next(
        i
        for i, (text, fit) in enumerate(zip(plain.to_pylist(), fits.to_pylist(), strict=True))
        if text is not None and not (fit and (kind == "float" or -(2**63) <= int(text) < 2**63))
    )
    wanted = {"int": "a whole number of at most 64 bits", "float": "a number"}[kind]
    raise SourceError(f"{option}: row {row + 1:,} has {texts[row].as_py()[:80]!r}, expected {wanted}")


def label_texts(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return booleans and bytes as texts, which name classes, and NaN as null; return other labels unchanged."""
    kind = labels.type
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(labels.cast(pa.float64())), pa.scalar(None, kind), labels)
    if not (pa.types.is_boolean(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)):
        return labels
    labels = labels if pa.types.is_boolean(kind) else labels.cast(pa.large_binary())
    try:
        return labels.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise no_text(next(one for one in labels.to_pylist() if one is not None and as_text(one) is None)) from None


def as_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def no_text(value: bytes) -> SourceError:
    like = looks_like(value)
    return SourceError(
        f"the label {repr(value)[:80]} is not text{f': it looks like {like}' if like else ''}; write labels as text, "
        "such as '1' or 'cat'"
    )


def looks_like(value: bytes) -> str | None:
    if _PICKLE.match(value):
        return "a Python pickle"
    if value.startswith(b"\x93NUMPY"):
        return "a NumPy array"
    if len(value) == 1 and value < b" ":
        return f"an 8-bit integer, {value[0]}"
    if len(value) not in (2, 4, 8):
        return None
    bits = 8 * len(value)
    for order, sign in (("little", "<"), ("big", ">")):
        whole, real = (np.frombuffer(value, f"{sign}{kind}{len(value)}")[0] for kind in "if")
        if abs(int(whole)) < 1 << bits * 3 // 4:
            return f"a {order}-endian {bits}-bit integer, {whole}"
        if bits > 16 and 1e-6 < abs(real) < 1e9:
            return f"a {order}-endian {bits}-bit float, {real:g}"
    return None


def _known(texts: Any) -> Any:
    """Return texts without surrounding blanks, and null for the spellings of missing numbers."""
    plain = pc.ascii_trim(texts, " \t")
    missing = pc.or_(pc.is_in(plain, _NULLS.cast(texts.type)), pc.equal(texts, ""))
    return pc.if_else(missing, pa.scalar(None, texts.type), plain)


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    """Return whether all non-null values match. Stops after the first chunk with a mismatch."""
    return all(pc.all(pc.match_substring_regex(chunk, pattern), min_count=0).as_py() for chunk in texts.chunks)
