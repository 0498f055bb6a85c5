"""Reads the files that list samples: CSV and its kin, JSON lines, Parquet, and plain lists of paths."""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from presize.errors import SourceError
from presize.store.rejects import IMAGE_SUFFIXES
from presize.system.files import open_at_once

PATH_NAMES = ("path", "filename", "file_name")
"""What the column of paths may be called; the first of them that a table has."""

IMAGE_NAMES = rf"(?i)({'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})$"
"""A regular expression for names with the suffix of an image format."""

_JSON_ROWS = 16384
_HEADER_BYTES = 1 << 20
_TAB_LABEL = r"(?s)^(?P<path>[^\t]*)\t\s*(?P<label>.+)$"
_LABEL = (
    rf"(?is)^(?P<path>.*(?:{'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))}))[ ,;]\s*(?P<label>.+)$"
)


def read_file(path: str) -> pa.Table:
    """All columns of a file, as they are read. The suffix decides how.

    Raises:
        SourceError: the file cannot be read, or is not what its suffix says.
    """
    read = _READERS.get(os.path.splitext(path)[1].lower())
    if read is None:
        raise SourceError(f"expected a name that ends with {', '.join(_READERS)}")
    try:
        with open(path, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError("it is not a regular file")
            table = read(file)
            table.validate(full=True)
            table.column_names  # noqa: B018  # raises for names that are not UTF-8
            return table
    except UnicodeError:
        raise SourceError("it is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise SourceError(error.strerror or one_line(error)) from None
    except pa.ArrowException as error:
        raise SourceError(one_line(error)) from None


def is_list(path: str | os.PathLike[str]) -> bool:
    """Whether a file is read as a plain list of paths."""
    return os.path.splitext(os.fspath(path))[1].lower() == ".txt"


def one_line(message: object) -> str:
    """The beginning of a message that may quote any text of the table."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)[:200])


def _read_csv(file: BinaryIO, separators: str = ",;\t|") -> pa.Table:
    separator, names = _header(file, separators)
    texts = {name: pa.string() for name in names if name.strip() in PATH_NAMES}
    table = _parsed(file, separator, texts)
    named = zip(table.column_names, table.columns, strict=True)  # two may have one name, which is refused later
    codes = _codes(file, separator, [name for name, column in named if _may_be_codes(column)])
    if codes:
        table = _parsed(file, separator, texts | dict.fromkeys(codes, pa.string()))
    for field in table.schema:
        if pa.types.is_binary(field.type):  # what pyarrow makes of it
            raise SourceError(f"column {field.name!r} is not UTF-8 text; save the table as UTF-8")
    return _without_empty_rows(_without_blanks(table))


def _parsed(file: BinaryIO, separator: str, types: Mapping[str, pa.DataType], columns: Sequence[str] = ()) -> pa.Table:
    """The columns called so, or all; those without a type get that of their values."""
    file.seek(0)
    return pa.csv.read_csv(
        file,
        parse_options=pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types=dict(types), include_columns=list(columns) or None),
    )


def _codes(file: BinaryIO, separator: str, columns: Sequence[str]) -> list[str]:
    """Those columns, of such as _may_be_codes, that hold codes."""
    if not columns or len(set(columns)) < len(columns):
        return []
    texts = _parsed(file, separator, dict.fromkeys(columns, pa.string()), columns)
    return [name for name in columns if _are_codes(texts.column(name))]


def _may_be_codes(column: pa.ChunkedArray) -> bool:
    """Whether whole numbers have been read, or such as are too large for that, which Arrow reads as floats."""
    if pa.types.is_floating(column.type):
        return bool(pc.any(pc.greater_equal(pc.abs(column), 2.0**63)).as_py())
    return bool(pa.types.is_integer(column.type))


def _are_codes(texts: pa.Array) -> bool:
    """Whether numbers would lose something: a zero that one of them begins with, since 007 is not 7, or the last of
    more digits than 64 bits hold."""
    if pc.any(pc.match_substring_regex(texts, r"^\s*0[0-9]")).as_py():
        return True
    numbers = pc.utf8_trim_whitespace(texts)
    numbers = numbers.filter(pc.not_equal(numbers, ""))
    try:
        numbers.cast(pa.int64())
    except pa.ArrowInvalid:
        return bool(pc.all(pc.match_substring_regex(numbers, r"^-?[0-9]+$")).as_py())
    return False


def _without_blanks(table: pa.Table) -> pa.Table:
    """Names without blanks around them. A name that begins with one is of a file with a blank behind each separator,
    so that the texts of its column begin with one, too."""
    columns = [
        pc.utf8_ltrim_whitespace(column) if name.startswith(" ") and pa.types.is_string(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.table(columns, [name.strip() for name in table.column_names])


def _without_empty_rows(table: pa.Table) -> pa.Table:
    """Without the rows of separators alone that spreadsheets write below the last one that is filled."""
    empty = pa.scalar(True)
    for column in table.columns:
        blank = pc.equal(column, "") if pa.types.is_string(column.type) else pc.is_null(column)
        empty = pc.and_(empty, pc.fill_null(blank, True))
    return table.filter(pc.invert(empty)) if pc.any(empty).as_py() else table


def _header(file: BinaryIO, separators: str) -> tuple[str, Sequence[str]]:
    """The first separator that gives a column of paths, or the one with most columns, and their names."""
    line = file.readline(_HEADER_BYTES).decode("utf-8-sig", "replace").strip("\r\n")
    file.seek(0)
    found = [(separator, [name.strip('"') for name in line.split(separator)]) for separator in separators]
    likeliest = max(found, key=lambda each: len(each[1]))  # for the message about a table without a column of paths
    return next((each for each in found if any(name.strip() in PATH_NAMES for name in each[1])), likeliest)


def _read_tsv(file: BinaryIO) -> pa.Table:
    return _read_csv(file, "\t")


def _read_list(file: BinaryIO) -> pa.Table:
    """One path per line, with or without a label behind each: after a tab, or after a name with the suffix of an image
    format, as in ``cats/1.jpg 3``. Labels that are all whole numbers, without zeros before them, are numbers."""
    text = pa.array([file.read().decode("utf-8-sig")], pa.large_string())
    lines = pc.utf8_trim_whitespace(pc.split_pattern(text, "\n").flatten())
    lines = lines.filter(pc.not_equal(lines, ""))
    with_tabs = pc.any(pc.match_substring(lines, "\t")).as_py()
    found = pc.extract_regex(lines, _TAB_LABEL if with_tabs else _LABEL)
    if not with_tabs:  # "a photo 1.jpg" has a space and no label
        found = pc.if_else(pc.match_substring_regex(lines, IMAGE_NAMES), pa.scalar(None, found.type), found)
    if found.null_count == len(lines):
        return pa.table({"path": _without_dot(lines)})
    if found.null_count:
        first, other = lines.filter(found.is_null())[0].as_py(), lines.filter(found.is_valid())[0].as_py()
        raise SourceError(
            f"{found.null_count} of {len(lines)} lines have no label, such as {one_line(repr(first))}, and others have "
            f"one, such as {one_line(repr(other))}; expected a label in each line or in none"
        )
    labels = pc.struct_field(found, "label")
    if not _are_codes(labels):
        with suppress(pa.ArrowInvalid):
            labels = labels.cast(pa.int64())
    return pa.table({"path": _without_dot(pc.struct_field(found, "path")), "label": labels})


def _without_dot(paths: pa.Array) -> pa.Array:
    """``./cats/1.jpg``, as `find` prints it, is ``cats/1.jpg``."""
    return pc.replace_substring_regex(paths, r"^(\./+)+", "")


def _read_json(file: BinaryIO) -> pa.Table:
    """Read with Python's own parser: pyarrow's turns strings into dates and large numbers into floats, and reads
    [null, 1] as a list that ends outside its values (apache/arrow#51305, still in 26.0.1).
    """
    tables = []
    with io.TextIOWrapper(file, "utf-8-sig", newline="\n") as text:
        lines = enumerate(text, 1)
        while block := list(islice(lines, _JSON_ROWS)):
            tables.append(_json_table([_json_row(number, line) for number, line in block if not line.isspace()]))
    schema = pa.unify_schemas([pa.schema([]), *(table.schema for table in tables)], promote_options="permissive")
    columns = [pa.chunked_array([_typed(table, field) for table in tables], field.type) for field in schema]
    return pa.table(columns, schema)


def _json_row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"line {number} is not JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(row, dict):
        raise SourceError(f"line {number} is not a JSON object; expected one per line")
    return row


def _json_table(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {}
    for name in {name: None for row in rows for name in row}:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError) as error:
            raise SourceError(f"column {name!r}: {one_line(error)}") from None
    return pa.table(columns)


def _typed(table: pa.Table, field: pa.Field) -> pa.Array:
    """A column that may have a narrower type in this table, or be missing. Arrow's own cast of nested types is not
    used: it truncates lists of nulls in structs (26.0.1)."""
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    column = table.column(field.name)
    return column.chunk(0) if column.type == field.type else pa.array(column.to_pylist(), field.type)


def _read_parquet(file: BinaryIO) -> pa.Table:
    # read_table would take columns from the names of folders. Without threads: Arrow aborts a process that ends soon
    # after they have read now and then ("terminate called without an active exception", 5 of 180 under load, 26.0).
    with pa.parquet.ParquetFile(file, pre_buffer=False) as table:
        return table.read(use_threads=False)


_READERS = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".txt": _read_list,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
