"""Label tables: CSV and its kin, JSON lines, Parquet and plain lists of paths, read as checked Arrow columns."""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from presize.errors import SourceError, warn
from presize.formatting import plural
from presize.options import Repeated, SourceOptions, ValueType
from presize.sources.bucket import look_up_objects
from presize.sources.classes import class_labels
from presize.sources.columns import joined, one_line, plain_column, rows_table, with_types
from presize.sources.contents import Source, is_utf8
from presize.sources.folder import RefusedFile, look_up_files
from presize.sources.source_files import Url
from presize.sources.splits import with_folder_labels
from presize.sources.text_columns import label_texts, lost_spelling, read_texts, unquoted, whole_numbers
from presize.store.filenames import unsafe_paths
from presize.store.index import INDEX_COLUMNS
from presize.store.rejects import IMAGE_SUFFIXES
from presize.system.files import open_at_once

PATH_NAMES = ("path", "filename", "file_name")
"""What the column of paths may be called; the first of them that a table has."""

IMAGE_NAMES = rf"(?i)({'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})$"
"""A regular expression for names with the suffix of an image format."""

JSON_ROWS_AT_ONCE = 16384
"""How many lines of JSON become an Arrow table at a time."""

_HEADER_BYTES = 1 << 20
_TAB_LABEL = r"(?s)^(?P<path>[^\t]*)\t\s*(?P<label>.+)$"
_SUFFIX = rf"(?:{'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})"
_LABEL = rf"(?is)^(?P<path>[^\"]*{_SUFFIX}|.*{_SUFFIX})[ ,;]\s*(?P<label>.+)$"
_QUOTED_PATH = rf"(?is)^\"([^\"]*{_SUFFIX})\"([ ,;\t]|$)"

Types = Mapping[str, ValueType] | None
"""The types that columns are given, by their names: readers leave those as text. None, if paths alone are wanted."""


def list_table(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str],
    base: Path | Url,
    options: SourceOptions,
    follow_links: bool,
    types: Mapping[str, ValueType],
) -> Source:
    """List the samples of a label table, in its order; `base` is the source `root`, resolved.

    Raises:
        SourceError: the table cannot be used, or does not fit the source.
    """
    table = read_table(path, root, options.repeated, types)
    if "label" not in table.column_names and is_list(path):
        table = with_folder_labels(table, options)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    classes = None
    if "label" in columns and pa.types.is_large_string(columns["label"].type):
        columns["label"], classes = class_labels(columns["label"], options.classes, types.get("label") == "class")
    elif options.classes is not None:
        fix = "; --column-type label:class reads numbers as their names" if "label" in columns else ""
        raise SourceError(f"--classes needs a label column of strings{fix}")
    refused, first = 0, ""

    def refuse(_: int, path: str, reason: RefusedFile) -> None:
        nonlocal refused, first
        hint = "; expected / between folders, not a backslash" if "\\" in path else ""
        refused, first = refused + 1, first or f"{path!r} {reason}{hint}"

    paths = columns.pop("path")
    if isinstance(base, Url):
        facts = look_up_objects(base, paths, refuse)
    else:
        facts = look_up_files(str(base), paths, follow_links, refuse)
    if refused:
        raise SourceError(
            f"{refused} of its {len(paths)} paths cannot be used, the first: {first}; source {str(base)!r}"
        )
    files = {"path": paths, "source_nbytes": facts[:, 0], "source_mtime_ns": facts[:, 1]}
    return Source(base, pa.table(files | columns), classes)


def read_table(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    repeated: Repeated = "refuse",
    types: Mapping[str, ValueType] = MappingProxyType({}),
) -> pa.Table:
    """The label table at `path`: a ``path`` column of strings and any others, in its own order.

    The suffix decides how it is read: .csv (numbers, booleans or text, see presize.sources.text_columns; separated by
    commas, semicolons, tabs or bars), .tsv, .txt (a path in each line, with or without a label behind it), .jsonl,
    .ndjson or .json (one object per line; a missing key is a null), or .parquet. The column of paths may be called
    ``filename`` or ``file_name``.
    Columns are normalized: strings and binaries have 64-bit offsets, lists are large lists, dictionaries are decoded.
    Equal values give equal bytes, those under nulls included, whatever file they were read from.

    Args:
        path: the file.
        root: the source; absolute paths that lie in it become relative. None refuses all of them.
        repeated: "refuse" a path that several rows have, or make these rows one, at the place of the first: all other
            columns then hold lists.
        types: the types of columns, by their names.

    Raises:
        SourceError: the table cannot be read; a path is missing, repeated, or leads out of the source; a row has no
            label; a value is not of the type given; or a column has a name that the index uses itself.

    Warns:
        PresizeWarning: decimals are written as they would not be printed.
    """
    table = _with_path(_read_file(os.fspath(path), types))
    _check_columns(table.column_names)
    if len(table) == 0:
        raise SourceError("it lists no samples")
    table = pa.table({name: plain_column(name, table.column(name)) for name in table.column_names})
    table = with_types(table, types)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    if root is not None:
        columns["path"] = _relative(columns["path"], root)
    _check_paths(columns["path"])
    if "label" in columns:
        columns["label"] = label_texts(columns["label"])
        _check_labels(columns["label"])
    return _without_repeats(pa.table(columns), repeated)


def read_paths(path: str | os.PathLike[str]) -> list[str]:
    """Return the paths that a file lists, of any kind that read_table takes; other columns do not matter. Raises
    SourceError when there are none."""
    paths = plain_column("path", _with_path(_read_file(os.fspath(path))).column("path")).drop_null()
    if len(paths) == 0 or not pa.types.is_large_string(paths.type):
        raise SourceError("it lists no paths")
    return list(paths.to_pylist())


def _read_file(path: str, types: Types = None) -> pa.Table:
    """Return all columns of a file, whose suffix decides how it is read. Raises SourceError when it cannot be."""
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
    warn(
        f"labels {path!r}: {spelled[name]!r} in column {name!r} is read as the number {float(spelled[name])}{not_class}"
        f"{more}; --column-type {name}:text keeps texts as they are written, --column-type {name}:float reads numbers "
        "without this warning"
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
    names = {separator: [name.strip(' "') for name in line.split(separator)] for separator in separators}
    likeliest = max(names, key=lambda separator: len(names[separator]))  # for the message about a table without paths
    return next((separator for separator in names if not {*PATH_NAMES}.isdisjoint(names[separator])), likeliest)


def _read_list(file: BinaryIO, types: Types) -> pa.Table:
    """One path per line, with or without a label behind each: after a tab, or after a name with the suffix of an image
    format, as in ``cats/1.jpg 3``. Labels that are all whole numbers, without zeros before them, are numbers; quotes
    around paths and labels are none of them."""
    text = pa.array([file.read().decode("utf-8-sig")], pa.large_string())
    lines = pc.utf8_trim_whitespace(pc.split_pattern(text, "\n").flatten())
    lines = pc.replace_substring_regex(lines.filter(pc.not_equal(lines, "")), _QUOTED_PATH, r"\1\2")
    with_tabs = pc.any(pc.match_substring(lines, "\t")).as_py()
    fields = pc.extract_regex(lines, _TAB_LABEL if with_tabs else _LABEL)
    if not with_tabs:  # "a photo 1.jpg" has a space and no label
        fields = pc.if_else(pc.match_substring_regex(lines, IMAGE_NAMES), pa.scalar(None, fields.type), fields)
    if fields.null_count == len(lines):
        return pa.table({"path": _without_dot(lines)})
    if fields.null_count:
        first, other = lines.filter(fields.is_null())[0].as_py(), lines.filter(fields.is_valid())[0].as_py()
        raise SourceError(
            f"{fields.null_count} of {len(lines)} lines have no label, such as {one_line(repr(first))}, and others "
            f"have one, such as {one_line(repr(other))}; expected a label in each line or in none"
        )
    labels = unquoted(pc.struct_field(fields, "label"), "\t" if with_tabs else ",;")
    labels = labels if types is None or "label" in types else whole_numbers(labels)
    return pa.table({"path": _without_dot(pc.struct_field(fields, "path")), "label": labels})


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
        while block := list(islice(lines, JSON_ROWS_AT_ONCE)):
            rows = [_json_row(number, line) for number, line in block if not line.isspace()]
            tables.append(rows_table(rows))
    return joined(tables)


def _json_row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"line {number} is not JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(row, dict):
        raise SourceError(f"line {number} is not a JSON object; expected one per line")
    return row


def _read_parquet(file: BinaryIO, _: Types) -> pa.Table:
    # read_table would take columns from the names of folders. Without threads: Arrow aborts a process that ends soon
    # after they have read now and then ("terminate called without an active exception", 5 of 180 under load, 26.0).
    with pa.parquet.ParquetFile(file, pre_buffer=False) as table:
        return table.read(use_threads=False)


_READERS: Mapping[str, Callable[[BinaryIO, Types], pa.Table]] = {
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, separators="\t"),
    ".txt": _read_list,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}


def _with_path(table: pa.Table) -> pa.Table:
    """The table with its column of paths named ``path``."""
    names = table.column_names
    given = [name for name in PATH_NAMES if name in names]
    if not given:
        some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise SourceError(
            f"it has no path column (called {', '.join(PATH_NAMES[:-1])} or {PATH_NAMES[-1]}); it has "
            f"{some[:200] or 'none'}; rename the column of the paths to path"
        )
    if "path" not in given and len(given) > 1:
        raise SourceError(f"it has the columns {' and '.join(map(repr, given))}; rename the one of the paths to path")
    return table.rename_columns(["path" if name == given[0] else name for name in names])


def _check_columns(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"it has the column {name!r} more than once")
        if name in INDEX_COLUMNS and name != "path":
            raise SourceError(f"the index has a column {name!r} of its own; rename yours")


def _check_paths(paths: pa.ChunkedArray) -> None:
    if not pa.types.is_large_string(paths.type):
        raise SourceError(f"the path column holds {one_line(paths.type)}, expected strings")
    if paths.null_count:
        raise SourceError(f"{paths.null_count} of {len(paths)} rows have no path")
    unsafe = paths.filter(unsafe_paths(paths))
    if len(unsafe):
        raise SourceError(
            f"{unsafe[0].as_py()!r} is not a relative path inside the source; expected one such as cats/1.jpg"
        )


def _relative(paths: pa.ChunkedArray, root: str | os.PathLike[str]) -> pa.ChunkedArray:
    """Absolute paths below `root`, as given or with its links resolved, as relative ones. Others are unchanged."""
    if not pa.types.is_large_string(paths.type):
        return paths
    for prefix in {os.path.join(folder, "") for folder in (os.path.abspath(root), os.path.realpath(root))}:
        if is_utf8(prefix):
            inside = pc.starts_with(paths, prefix)
            paths = pc.if_else(inside, pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    return paths


def _without_repeats(table: pa.Table, repeated: Repeated) -> pa.Table:
    paths = table.column("path").combine_chunks().dictionary_encode()
    if repeated == "list":
        return _gathered(table, paths)
    counts = np.bincount(paths.indices)
    many = np.flatnonzero(counts > 1)
    if len(many):
        first = paths.dictionary[many[0]].as_py()
        raise SourceError(
            f"{plural(len(many), 'path is', 'paths are')} listed more than once, the first is {first!r}, "
            f"{counts[many[0]]} times; "
            "--repeated list makes the rows of a path one sample, whose other columns are lists"
        )
    return table


def _gathered(table: pa.Table, paths: pa.DictionaryArray) -> pa.Table:
    """One row for each path, in the order in which they first come, with a list of the values of its rows in every
    other column."""
    numbers = paths.indices.to_numpy()
    rows = pa.array(np.argsort(numbers, kind="stable"))
    ends = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
    columns = {"path": paths.dictionary}
    for name in table.column_names:
        if name != "path":
            columns[name] = pa.LargeListArray.from_arrays(ends, table.column(name).take(rows).combine_chunks())
    return pa.table(columns).select(table.column_names)


def _check_labels(labels: pa.ChunkedArray) -> None:
    missing = labels.null_count
    if pa.types.is_large_string(labels.type):
        missing += pc.sum(pc.equal(labels, pa.scalar("", labels.type))).as_py() or 0
    if missing:
        raise SourceError(f"{missing} of {len(labels)} rows have no label; leave them out, or rename the column")
