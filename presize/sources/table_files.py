"""Reads the files that list samples: CSV and its kin, JSON lines, Parquet, and plain lists of paths."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import warnings
from collections.abc import Mapping
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from presize.errors import PresizeWarning, SourceError
from presize.formatting import plural
from presize.options import ValueType
from presize.sources.text_columns import lost_spelling, read_texts, unquoted, whole_numbers
from presize.store.rejects import IMAGE_SUFFIXES
from presize.system.files import open_at_once

PATH_NAMES = ("path", "filename", "file_name")
"""What the column of paths may be called; the first of them that a table has."""

IMAGE_NAMES = rf"(?i)({'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})$"
"""A regular expression for names with the suffix of an image format."""

_JSON_ROWS = 16384
_HEADER_BYTES = 1 << 20
_TAB_LABEL = r"(?s)^(?P<path>[^\t]*)\t\s*(?P<label>.+)$"
_SUFFIX = rf"(?:{'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})"
_LABEL = rf"(?is)^(?P<path>[^\"]*{_SUFFIX}|.*{_SUFFIX})[ ,;]\s*(?P<label>.+)$"
_QUOTED_PATH = rf"(?is)^\"([^\"]*{_SUFFIX})\"([ ,;\t]|$)"

Types = Mapping[str, ValueType] | None
"""The types that columns are given, by their names: readers leave those as text. None, if paths alone are wanted."""


def read_file(path: str, types: Types = None) -> pa.Table:
    """All columns of a file, as they are read. The suffix decides how.

    Args:
        path: the file.
        types: see Types.

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
            table = read(file, types)
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


def _read_csv(file: BinaryIO, types: Types, separators: str = ",;\t|") -> pa.Table:
    columns, spelled = [], {}
    table = _texts(file, _separator(file, separators))
    for name, texts in zip(table.column_names, table.columns, strict=True):
        is_text = types is None or name in types or name in PATH_NAMES
        columns.append(texts if is_text else read_texts(texts, is_label=name == "label"))
        if pa.types.is_floating(columns[-1].type) and (text := lost_spelling(texts)) is not None:
            spelled[name] = text
    if spelled:
        _tell_spelling(file.name, spelled)
    return _without_empty_rows(pa.table(columns, table.column_names))


def _texts(file: BinaryIO, separator: str) -> pa.Table:
    """All columns as text, without the blanks behind separators in columns whose name has one."""
    how: dict[str, Any] = {"parse_options": pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True)}
    content, header, after = file, file.readline(_HEADER_BYTES), separator.encode()
    if after + b" " in header:  # Arrow sees quotes directly behind a separator alone
        quoted = rb'(?<=%s) +(?="(?:[^"]|"(?:%s|\s|\Z)))' % (re.escape(after), re.escape(after))
        content = io.BytesIO(header + re.sub(quoted, b"", file.read()))
    content.seek(0)
    names = pa.csv.open_csv(content, **how).schema.names
    content.seek(0)
    options = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))
    columns = []
    for name, column in zip(names, pa.csv.read_csv(content, convert_options=options, **how).columns, strict=True):
        try:
            texts = column.cast(pa.string())
        except pa.ArrowInvalid:
            raise SourceError(f"column {name!r} is not UTF-8 text; save the table as UTF-8") from None
        columns.append(pc.utf8_ltrim_whitespace(texts) if name.startswith(" ") else texts)
    return pa.table(columns, [name.strip(' "') if name.startswith(" ") else name.strip() for name in names])


def _tell_spelling(path: str, spelled: Mapping[str, str]) -> None:
    """Warn of columns of decimals that would not be printed as they are written."""
    name = "label" if "label" in spelled else next(iter(spelled))
    not_class = ", not a class" if name == "label" else ""
    more = f", and {plural(len(spelled) - 1, 'more column')} likewise" if len(spelled) > 1 else ""
    warnings.warn(
        f"labels {path!r}: {spelled[name]!r} in column {name!r} is read as the number {float(spelled[name])}{not_class}"
        f"{more}; --column-type {name}:text keeps texts as they are written, --column-type {name}:float reads numbers "
        "without this warning",
        PresizeWarning,
        stacklevel=6,
    )


def _without_empty_rows(table: pa.Table) -> pa.Table:
    """Without the rows of separators alone that spreadsheets write below the last one that is filled."""
    empty = pa.scalar(True)
    for column in table.columns:
        blank = pc.equal(column, "") if pa.types.is_string(column.type) else pc.is_null(column)
        empty = pc.and_(empty, pc.fill_null(blank, True))
    return table.filter(pc.invert(empty)) if pc.any(empty).as_py() else table


def _separator(file: BinaryIO, separators: str) -> str:
    """The first separator that gives a column of paths, or the one with most columns."""
    line = file.readline(_HEADER_BYTES).decode("utf-8-sig", "replace").strip("\r\n")
    file.seek(0)
    found = {separator: [name.strip(' "') for name in line.split(separator)] for separator in separators}
    likeliest = max(found, key=lambda separator: len(found[separator]))  # for the message about a table without paths
    return next((separator for separator, names in found.items() if not {*PATH_NAMES}.isdisjoint(names)), likeliest)


def _read_tsv(file: BinaryIO, types: Types) -> pa.Table:
    return _read_csv(file, types, "\t")


def _read_list(file: BinaryIO, types: Types) -> pa.Table:
    """One path per line, with or without a label behind each: after a tab, or after a name with the suffix of an image
    format, as in ``cats/1.jpg 3``. Labels that are all whole numbers, without zeros before them, are numbers; quotes
    around paths and labels are none of them."""
    text = pa.array([file.read().decode("utf-8-sig")], pa.large_string())
    lines = pc.utf8_trim_whitespace(pc.split_pattern(text, "\n").flatten())
    lines = pc.replace_substring_regex(lines.filter(pc.not_equal(lines, "")), _QUOTED_PATH, r"\1\2")
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
    labels = unquoted(pc.struct_field(found, "label"), "\t" if with_tabs else ",;")
    labels = labels if types is None or "label" in types else whole_numbers(labels)
    return pa.table({"path": _without_dot(pc.struct_field(found, "path")), "label": labels})


def _without_dot(paths: pa.Array) -> pa.Array:
    """``./cats/1.jpg``, as `find` prints it, is ``cats/1.jpg``."""
    return pc.replace_substring_regex(paths, r"^(\./+)+", "")


def _read_json(file: BinaryIO, _: Types) -> pa.Table:
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


def _read_parquet(file: BinaryIO, _: Types) -> pa.Table:
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
