"""Reads label tables (CSV, JSON lines, Parquet) as checked Arrow columns, and class lists."""

from __future__ import annotations

import io
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from presize.errors import SourceError
from presize.store.index import INDEX_COLUMNS
from presize.store.manifest import read_manifest
from presize.system.files import open_at_once

_JSON_ROWS = 16384
_UNSAFE_PATH = r"^$|^/|//|/$|(^|/)\.\.?(/|$)|\x00"


def read_table(path: str | os.PathLike[str]) -> pa.Table:
    """The label table at `path`: a ``path`` column of strings and any others, in its own order.

    The suffix decides how it is read: .csv (types as pyarrow infers them), .jsonl, .ndjson or .json (one object per
    line; a missing key is a null), or .parquet. Columns are normalized: strings and binaries have 64-bit offsets,
    lists are large lists, dictionaries are decoded. Equal values give equal bytes, those under nulls included,
    whatever file they were read from.

    Raises:
        SourceError: the table cannot be read; a path is missing, repeated, absolute or leads upwards; a row has
            no label; or a column has a name that the index uses itself.
    """
    table = _read(os.fspath(path))
    _check_columns(table.column_names)
    if len(table) == 0:
        raise SourceError("it lists no samples")
    table = pa.table({name: plain_column(name, table.column(name)) for name in table.column_names})
    _check_paths(table.column("path"))
    if "label" in table.column_names:
        _check_labels(table.column("label"))
    return table


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Prefix each SourceError with `what` it is about."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{what}: {error}") from None


def _read(path: str) -> pa.Table:
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
        raise SourceError("it is not UTF-8 text") from None
    except OSError as error:
        raise SourceError(error.strerror or _one_line(error)) from None
    except pa.ArrowException as error:
        raise SourceError(_one_line(error)) from None


def _read_csv(file: BinaryIO) -> pa.Table:
    table = pa.csv.read_csv(
        file,
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types={"path": pa.string()}),
    )
    for field in table.schema:
        if pa.types.is_binary(field.type):  # what pyarrow makes of it
            raise SourceError(f"column {field.name!r} is not UTF-8 text")
    return table


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
            raise SourceError(f"column {name!r}: {_one_line(error)}") from None
    return pa.table(columns)


def _typed(table: pa.Table, field: pa.Field) -> pa.Array:
    """A column that may have a narrower type in this table, or be missing. Arrow's own cast of nested types is not
    used: it truncates lists of nulls in structs (26.0.1)."""
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    column = table.column(field.name)
    return column.chunk(0) if column.type == field.type else pa.array(column.to_pylist(), field.type)


def _read_parquet(file: BinaryIO) -> pa.Table:
    with pa.parquet.ParquetFile(file) as table:  # read_table would take columns from the names of folders
        return table.read()


_READERS = {
    ".csv": _read_csv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}


def _one_line(message: object) -> str:
    """The beginning of a message that may quote any text of the table."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)[:200])


def _check_columns(names: Sequence[str]) -> None:
    if "path" not in names:
        some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise SourceError(f"it has no path column; it has {some[:200] or 'none'}")
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"it has the column {name!r} more than once")
        if name in INDEX_COLUMNS and name != "path":
            raise SourceError(f"the index has a column {name!r} of its own; rename yours")


def plain_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([_plain(chunk) for chunk in column.chunks])
    except pa.ArrowNotImplementedError:
        raise SourceError(
            f"column {name!r} holds {_one_line(column.type)}, which an index cannot store; leave it out"
        ) from None


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


def _check_paths(paths: pa.ChunkedArray) -> None:
    if not pa.types.is_large_string(paths.type):
        raise SourceError(f"the path column holds {_one_line(paths.type)}, expected strings")
    if paths.null_count:
        raise SourceError(f"{paths.null_count} of {len(paths)} rows have no path")
    unsafe = paths.filter(pc.match_substring_regex(paths, _UNSAFE_PATH))
    if len(unsafe):
        raise SourceError(
            f"{unsafe[0].as_py()!r} is not a relative path inside the source; expected one such as cats/1.jpg"
        )
    counts = paths.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        path, times = repeated[0].as_py().values()
        raise SourceError(f"{len(repeated)} paths are listed more than once, the first is {path!r}, {times} times")


def _check_labels(labels: pa.ChunkedArray) -> None:
    missing = labels.null_count
    if pa.types.is_large_string(labels.type):
        missing += pc.sum(pc.equal(labels, pa.scalar("", labels.type))).as_py() or 0
    if missing:
        raise SourceError(f"{missing} of {len(labels)} rows have no label; leave them out, or rename the column")


def class_labels(labels: pa.ChunkedArray, classes: Sequence[str] | None) -> tuple[pa.ChunkedArray, tuple[str, ...]]:
    """String labels as int32 positions in the class list, which is `classes` or else the sorted labels."""
    known = tuple(classes) if classes is not None else tuple(sorted(labels.unique().to_pylist()))
    numbers = pc.index_in(labels, pa.array(known, pa.large_string()))
    unknown = labels.filter(pc.is_null(numbers))
    if len(unknown):
        raise SourceError(f"the label {unknown[0].as_py()!r} is not in the class list of {len(known)} names")
    return numbers.cast(pa.int32()), known


def check_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return a class list unchanged. Raises SourceError when it is empty, or has a name that is empty or repeated."""
    if isinstance(names, str):
        raise SourceError(f"expected a list of names, got the text {names!r}; read_classes reads a file")
    for name in names:
        if not isinstance(name, str) or not name:
            raise SourceError(f"{name!r} is not the name of a class")
    if not names:
        raise SourceError("expected at least one name, got none")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise SourceError(f"expected each name once, got {name!r} {times} times")
    return tuple(names)


def read_classes(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The class list of a text file, one name per line, or of another dataset.

    Raises:
        SourceError: the file cannot be read, or is not a class list.
        DatasetError: `path` is a folder without a dataset.
    """
    path = Path(path)
    with naming(f"classes {str(path)!r}"):
        try:
            if not path.is_dir():
                lines = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
                return check_classes([line for line in lines if line])
            classes = read_manifest(path).classes
        except UnicodeDecodeError:
            raise SourceError("it is not UTF-8 text; expected one name per line") from None
        except OSError as error:
            raise SourceError(error.strerror) from None
        if classes is None:
            raise SourceError("the dataset has no classes")
        return classes
