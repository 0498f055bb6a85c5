"""Label tables: CSV, TSV, JSON lines, Parquet and plain lists of paths, read as checked Arrow columns."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from presize.sources.columns import (
    joined,
    label_texts,
    lost_spelling,
    one_line,
    plain_column,
    python_values,
    read_texts,
    rows_table,
    unquoted,
    whole_numbers,
    with_column,
    with_types,
)
from presize.sources.contents import Source, is_utf8
from presize.sources.folder import RefusedFile
from presize.sources.labels import READABLE, class_labels, folder_at
from presize.sources.source_files import Url
from presize.sources.spellings import SourceFiles
from presize.store.index import INDEX_COLUMNS
from presize.store.rejects import IMAGE_NAMES, IMAGE_SUFFIXES, claims_to_be_an_image
from presize.system.files import is_url, open_at_once

PATH_NAMES = ("path", "filename", "file_name")
"""Names of the column of paths. A table with several of them needs ``path``."""
ID_NAMES = ("image", "image_path", "image_id", "id")
"""Names of the column of paths in a table without PATH_NAMES, if it has exactly one of these."""
JSON_ROWS_AT_ONCE = 16384

_HEADER_BYTES = 1 << 20
_DECLARED = re.compile(rb"(?:\xef\xbb\xbf)?\"?sep=([,;\t|])\"?\s*")
"""The line above the header in which Excel declares the separator."""
_TAB_LABEL = r"(?s)^(?P<path>[^\t]*)\t\s*(?P<label>.+)$"
_SUFFIX = rf"(?:{'|'.join(re.escape(suffix) for suffix in sorted(IMAGE_SUFFIXES))})"
_LABEL = rf"(?is)^(?P<path>[^\"]*{_SUFFIX}|.*{_SUFFIX})[ ,;]\s*(?P<label>.+)$"
_WORD_LABEL = r"(?s)^(?P<path>[^\s,;]+)[ ,;]\s*(?P<label>.+)$"
"""For a path without an image suffix, if it refers to a file."""
_NUMBER = r"^(?P<number>[0-9]+)\s+"
"""The number of a line, in front of its path. A number that two lines have may be a label."""
_SEVERAL = r"^[-+]?[0-9.]+(?:[ ,;\t]+[-+]?[0-9.]+)+$|\t"
"""Several numbers, or values separated by tabs, are columns and not a label."""
_NO_COMMENT = rf"(?i)^(?:[^#]|#\S*{_SUFFIX})"
"""A line that begins with # is a comment, unless it begins with the name of an image."""
_QUOTED_PATH = rf"(?is)^\"([^\"]*{_SUFFIX})\"([ ,;\t]|$)"

Types = Mapping[str, ValueType] | None
"""Requested types of columns, by name: readers leave these columns as text. None if only paths are wanted."""

Fits = Callable[[str], bool] | None
"""Returns whether a path refers to exactly one file of the source; None if that is unknown."""


def list_table(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str],
    base: Path | Url,
    options: SourceOptions,
    follow_links: bool,
    types: Mapping[str, ValueType],
) -> Source:
    table = read_table(path, root, options.repeated, types, SourceFiles(base, follow_links))
    if "label" not in table.column_names and is_list(path):
        folders = folder_at(table.column("path"), 1 if options.split == "folders" else 0)
        table = table if folders.null_count else table.append_column("label", folders)
    classes, has_labels = None, "label" in table.column_names
    if has_labels and pa.types.is_large_string(table.column("label").type):
        labels, classes = class_labels(table.column("label"), options.classes, types.get("label") == "class")
        table = with_column(table, "label", labels)
    elif options.classes is not None:
        fix = "; --column-type label:class reads numbers as their names" if has_labels else ""
        raise SourceError(f"--classes needs a label column of strings{fix}")
    return Source(base, table, classes, has_table=True, has_list=options.classes is not None)


def read_table(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    repeated: Repeated = "refuse",
    types: Mapping[str, ValueType] = MappingProxyType({}),
    files: SourceFiles | None = None,
) -> pa.Table:
    """Return the label table at `path`, read as its suffix says: a ``path`` column and any others, in file order.

    Columns are normalized: strings and binaries have 64-bit offsets, lists are large lists, dictionaries are decoded.
    Equal values have equal bytes, also under nulls, in all file formats. Absolute paths in `root` become relative. With
    `files`, paths become the source's spelling, and ``source_nbytes`` and ``source_mtime_ns`` are added.
    """
    if is_url(path):
        raise SourceError("a URL cannot be read here; download the table, and give the file")
    table = _read_file(os.fspath(path), types, None if files is None else files.fits)
    column, table = _path_name(table.column_names), _with_path(table)
    _check_columns(table.column_names)
    if len(table) == 0:
        raise SourceError("it lists no samples")
    table = pa.table({name: plain_column(name, table.column(name)) for name in table.column_names})
    table = with_types(table, types)
    _check_named(table.column("path"), column)
    table = with_column(table, "path", _relative(table.column("path"), root))
    table = table if files is None else _looked_up(table, files, column)
    if "label" in table.column_names:
        table = with_column(table, "label", _whole_labels(table.column("label")))
    return _without_repeats(table, repeated)


def read_paths(path: str | os.PathLike[str]) -> list[str]:
    """Return the paths that a file lists, in any format of read_table. Other columns are ignored."""
    paths = plain_column("path", _with_path(_read_file(os.fspath(path))).column("path")).drop_null()
    if len(paths) == 0 or not pa.types.is_large_string(paths.type):
        raise SourceError("it lists no paths")
    return list(paths.to_pylist())


def _read_file(path: str, types: Types = None, fits: Fits = None) -> pa.Table:
    read = _READERS.get(os.path.splitext(path)[1].lower())
    if read is None:
        raise SourceError(f"expected a name that ends with {', '.join(_READERS)}")
    try:
        with open(path, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError("it is not a regular file")
            if os.fstat(file.fileno()).st_size == 0:
                raise SourceError("it is empty; expected the paths of images")
            begin = b"" if read is _read_parquet else file.peek(2)[:2]
            if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in begin:
                raise SourceError("it is UTF-16 text or binary data; save it as UTF-8 text")
            table = _read_list(file, types, fits) if read is _read_list else read(file, types)
            table.validate(full=True)
            table.column_names  # noqa: B018  # raises for names that are not UTF-8
            return table
    except UnicodeError:
        raise SourceError("it is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise SourceError(f"{error.strerror}; {READABLE}" if error.strerror else one_line(error)) from None
    except pa.ArrowException as error:
        raise SourceError(one_line(error)) from None


def is_list(path: str | os.PathLike[str]) -> bool:
    return os.path.splitext(os.fspath(path))[1].lower() == ".txt"


def _read_csv(file: BinaryIO, types: Types, separators: str = ",;\t|") -> pa.Table:
    names, columns, spelled, empty = [], [], {}, pa.scalar(True)
    table, separator = _texts(file, separators)
    path_name = _path_name(table.column_names)
    for number, (name, texts) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if not name and not pc.any(pc.not_equal(texts, "")).as_py():
            continue  # spreadsheets add such columns after the last named one
        is_text = types is None or name in types or name in (path_name, *PATH_NAMES)
        if name == "label":  # a text of several lines is possible, one that holds whole rows is not
            swallowed = pc.match_substring_regex(texts, rf"\n[^\n]*[{separators}]")
            if (row := pc.index(swallowed, True).as_py()) >= 0:
                raise _unclosed(row, name, texts[row].as_py())
        elif path_name is not None and name != path_name:
            _check_swallowed(table, number, table.column_names.index(path_name), separator)
        names.append(name)
        columns.append(texts if is_text else read_texts(texts, is_label=name == "label"))
        if pa.types.is_floating(columns[-1].type) and (text := lost_spelling(texts)) is not None:
            spelled[name] = text
        is_text = pa.types.is_string(columns[-1].type)
        blank = pc.equal(columns[-1], "") if is_text else pc.is_null(columns[-1])
        empty = pc.and_(empty, pc.fill_null(blank, True))
    if spelled:
        name = "label" if "label" in spelled else next(iter(spelled))
        not_class = ", not a class" if name == "label" else ""
        more = f", and {plural(len(spelled) - 1, 'more column')} likewise" if len(spelled) > 1 else ""
        warn(
            f"labels {file.name!r}: {spelled[name]!r} in column {name!r} is read as the number {float(spelled[name])}"
            f"{not_class}{more}; --column-type {name}:text keeps values as written, --column-type {name}:float reads "
            "numbers without this warning"
        )
    table = pa.table(columns, names)  # spreadsheets add rows without values after the last row
    return table.filter(pc.invert(empty)) if pc.any(empty).as_py() else table


def _texts(file: BinaryIO, separators: str) -> tuple[pa.Table, str]:
    """Return all columns as text, without the blanks after separators in columns whose name begins with one; and the
    separator."""
    wrong: list[pa.csv.InvalidRow] = []

    def refuse(row: pa.csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    header = file.readline(_HEADER_BYTES)
    if declared := _DECLARED.fullmatch(header):
        separators, file = declared[1].decode(), io.BytesIO(file.read())
        header = file.readline(_HEADER_BYTES)
    content = file
    line = header.decode("utf-8-sig", "replace").strip("\r\n")
    cells = {each: {name.strip(' "') for name in line.split(each)} for each in separators}
    # The separator that yields a column of paths, or else the most columns.
    separator = max(cells, key=lambda each: (not cells[each].isdisjoint((*PATH_NAMES, *ID_NAMES)), line.count(each)))
    options = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=refuse)
    how: dict[str, Any] = {"parse_options": options}
    after = separator.encode()
    if header.startswith(b"#") and after not in header:
        said = one_line(header.decode(errors="replace").strip())
        raise SourceError(
            f"its first line is a comment: {said!r}; a table begins with the names of its columns, such as path,label: "
            "remove the lines above them"
        )
    if after + b" " in header:  # Arrow only sees quotes directly after a separator
        quoted = rb'(?<=%s) +(?="(?:[^"]|"(?:%s|\s|\Z)))' % (re.escape(after), re.escape(after))
        content = io.BytesIO(header + re.sub(quoted, b"", file.read()))
    try:
        content.seek(0)
        names = pa.csv.open_csv(content, **how).schema.names
        content.seek(0)
        binary = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))
        table = pa.csv.read_csv(content, convert_options=binary, **how)
    except pa.ArrowInvalid:
        if not wrong:
            raise
        content.seek(0)
        with suppress(pa.ArrowInvalid):  # threads would not number rows
            lenient = pa.csv.ConvertOptions(check_utf8=False)
            pa.csv.read_csv(content, pa.csv.ReadOptions(use_threads=False), convert_options=lenient, **how)
        raise _wrong_row(wrong[-1], separator) from None
    # An unclosed quote makes the rest of the file one value.
    content.seek(max(content.seek(0, io.SEEK_END) - _TAIL_BYTES, 0))
    tail = content.read()
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        last = column[-1].as_py() if len(column) else b""
        end = last.rpartition(b'"')[2][-_TAIL_BYTES:]
        if b"\n" in last and end.strip() and tail.endswith(end):
            raise _unclosed(len(column) - 1, name, last.decode(errors="replace"))
        try:
            texts = column.cast(pa.string())
        except pa.ArrowInvalid:
            raise SourceError(f"column {name!r} is not UTF-8 text; save the table as UTF-8") from None
        columns.append(pc.utf8_ltrim_whitespace(texts) if name.startswith(" ") else texts)
    table = pa.table(columns, [name.strip(' "') if name.startswith(" ") else name.strip() for name in names])
    return table, separator


_TAIL_BYTES = 64


def _check_swallowed(table: pa.Table, number: int, path: int, separator: str) -> None:
    """Raise SourceError if a value of column `number` holds rows, because its quote is only closed by the opening quote
    of a later row. Rows are recognized by their path, in column `path`, if it has the suffix of an image."""
    texts = table.column(number)
    has_break = pc.match_substring(texts, "\n")
    for row, text in zip(np.flatnonzero(has_break.to_numpy()), python_values(texts.filter(has_break)), strict=True):
        first, *_, last = (line.split(separator) for line in text.split("\n"))
        # The first line ends with the rest of its own row, and the last one begins a later row.
        if not number < len(last) <= table.num_columns or (path > number and len(first) < table.num_columns - number):
            continue
        if claims_to_be_an_image((last[path] if path < number else first[path - table.num_columns]).strip()):
            raise _unclosed(int(row), table.column_names[number], text)


def _unclosed(row: int, name: str, value: str) -> SourceError:
    begin = one_line(value.partition("\n")[0])
    return SourceError(
        f"column {name!r} in row {row + 1} after the header has a line break after {begin!r}: expected a closing "
        'quote there; close the quote, or double a quote that belongs to the value ("")'
    )


def _wrong_row(row: pa.csv.InvalidRow, separator: str) -> SourceError:
    """Return the error for a row with too many or too few values. Messages count the header as row 0."""
    if row.actual_columns < row.expected_columns:
        fix = f"an empty value also needs its {separator!r}, and a value with a line break needs quotes"
    elif row.text.endswith(separator):
        fix = f"also end the header with {separator!r}"
    else:
        fix = f'put quotes around a value that contains {separator!r}: "a{separator}b"'
    return SourceError(
        f"row {row.number - 1:,} has {plural(row.actual_columns, 'value')}, but the header has "
        f"{plural(row.expected_columns, 'column')}: {one_line(repr(row.text))}; {fix}"
    )


def _read_list(file: BinaryIO, types: Types, fits: Fits = None) -> pa.Table:
    """Read one path per line, each with or without a label: after a tab, or after a name with the suffix of an image
    format, as in ``cats/1.jpg 3``. Labels become numbers if all are whole numbers without leading zeros.

    If the first path has no such suffix, or follows a number, another reading of the lines is used if its first path
    refers to a file.
    """
    text = pa.array([file.read().decode("utf-8-sig")], pa.large_string())
    lines = pc.utf8_trim_whitespace(pc.split_pattern(text, "\n").flatten())
    lines = lines.filter(pc.match_substring_regex(lines, _NO_COMMENT))
    table = None
    with suppress(SourceError):
        table = _listed(lines, types)
    first = "" if table is None or not len(table) else table.column("path")[0].as_py()
    if fits is not None and len(lines) and (re.match(_NUMBER, first) or not re.search(IMAGE_NAMES, first)):
        for some, labelled in _readings(lines):
            with suppress(SourceError):
                other = _listed(some, types, labelled)
                if len(other) and fits(other.column("path")[0].as_py()):
                    table = other
                    break
    table = _listed(lines, types) if table is None else table  # raises its error again
    _check_one_label(table, types)
    return table


def _readings(lines: pa.Array) -> Iterator[tuple[pa.Array, str]]:
    """Yield readings of a list: its lines, also without a count above or numbers in front, each with the regular
    expression that splits off the labels."""
    for some in (lines, lines[1:]) if lines[0].as_py() == str(len(lines) - 1) else (lines,):
        numbers = pc.struct_field(pc.extract_regex(some, _NUMBER), "number")
        numbered = pc.count_distinct(numbers, mode="all").as_py() == len(some) and numbers.null_count == 0
        for each in (some, pc.replace_substring_regex(some, _NUMBER, "")) if numbered else (some,):
            yield each, _LABEL
            yield each, _WORD_LABEL


def _listed(lines: pa.Array, types: Types, labelled: str = _LABEL) -> pa.Table:
    lines = pc.replace_substring_regex(lines, _QUOTED_PATH, r"\1\2")
    with_tabs = pc.any(pc.match_substring(lines, "\t")).as_py()
    fields = pc.extract_regex(lines, _TAB_LABEL if with_tabs else labelled)
    if not with_tabs:  # "a photo 1.jpg" has a space and no label
        fields = pc.if_else(pc.match_substring_regex(lines, IMAGE_NAMES), pa.scalar(None, fields.type), fields)
    if fields.null_count == len(lines):
        return pa.table({"path": lines})
    if fields.null_count:
        first, other = lines.filter(fields.is_null())[0].as_py(), lines.filter(fields.is_valid())[0].as_py()
        raise SourceError(
            f"{fields.null_count} of {len(lines)} lines have no label, such as {one_line(repr(first))}, and others "
            f"have one, such as {one_line(repr(other))}; expected a label in each line or in none; comments begin with "
            "#, and a table with a header is CSV"
        )
    labels = unquoted(pc.struct_field(fields, "label"), "\t" if with_tabs else ",;")
    labels = labels if types is None or "label" in types else whole_numbers(labels)
    return pa.table({"path": pc.struct_field(fields, "path"), "label": labels})


def _check_one_label(table: pa.Table, types: Types) -> None:
    """Raise SourceError if all labels of a list are several values, as in a table without a header."""
    if types is None or "label" in types or "label" not in table.column_names:
        return
    labels = table.column("label")
    if pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type):
        if pc.all(pc.match_substring_regex(labels, _SEVERAL)).as_py():
            first = " ".join(str(table.column(name)[0]) for name in ("path", "label"))
            raise SourceError(
                f"each line has several values after its path, such as {one_line(repr(first))}; expected one label; "
                "save columns as CSV, with a header such as path,label,x, or keep them as one string: --column-type "
                "label:text"
            )


def _read_json(file: BinaryIO, _: Types) -> pa.Table:
    # Python's parser: pyarrow's turns strings into dates and large numbers into floats, and reads [null, 1] as a list
    # that ends outside its values (apache/arrow#51305, still in 26.0.1).
    tables: list[pa.Table] = []
    with io.TextIOWrapper(file, "utf-8-sig", newline="\n") as text:
        lines = enumerate(text, 1)
        while block := list(islice(lines, JSON_ROWS_AT_ONCE)):
            rows = [_json_row(number, line) for number, line in block if not line.isspace()]
            tables.append(rows_table(rows, rows_above=sum(len(table) for table in tables)))
    return joined(tables)


def _json_row(number: int, line: str) -> dict[str, Any]:
    fix = "; expected one object per line, as jq -c '.[]' makes from an array"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        is_begin = number == 1 and line.lstrip().startswith(("[", "{"))
        raise SourceError(
            f"line {number} is not JSON: {getattr(error, 'msg', error)}{fix if is_begin else ''}"
        ) from None
    if not isinstance(row, dict):
        raise SourceError(f"line {number} is not a JSON object{fix}")
    return row


def _read_parquet(file: BinaryIO, _: Types) -> pa.Table:
    # read_table would add columns from the names of folders. No threads: now and then, Arrow 26.0 aborts a process that
    # ends soon after a threaded read ("terminate called without an active exception", 5 of 180 under load).
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


def _path_name(names: Sequence[str]) -> str | None:
    """Return the name of the column of paths, or None. Raises SourceError if several match and none is called path."""
    given = [name for name in PATH_NAMES if name in names] or [name for name in ID_NAMES if name in names]
    if len(given) > 1 and "path" not in given:
        raise SourceError(f"it has the columns {' and '.join(map(repr, given))}; rename the one with the paths to path")
    return given[0] if given else None


def _with_path(table: pa.Table) -> pa.Table:
    names = table.column_names
    given = _path_name(names)
    if given is None:
        if {"images", "annotations"} <= {*names}:
            raise SourceError(
                "it is a COCO annotation file, one object for all images; expected one object per image, each on its "
                "own line: docs/imports.md shows how to make such a table"
            )
        if any(map(claims_to_be_an_image, names)):
            raise SourceError(
                f"its first line is not a header: {one_line(', '.join(names))!r}; expected the names of the columns, "
                "such as path,label"
            )
        some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise SourceError(
            f"it has no path column (called {', '.join(PATH_NAMES[:-1])} or {PATH_NAMES[-1]}); it has "
            f"{some[:200] or 'none'}; rename the column of the paths to path"
        )
    return table.rename_columns(["path" if name == given else name for name in names])


def _check_columns(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1 and not name:
            raise SourceError(f"it has {names.count(name)} columns with values but without a name; name them")
        if names.count(name) > 1:
            raise SourceError(f"it has the column {name!r} more than once")
        if name in INDEX_COLUMNS and name != "path":
            raise SourceError(f"the index needs the column name {name!r}; rename yours")


def _check_named(paths: pa.ChunkedArray, column: str | None) -> None:
    if not pa.types.is_large_string(paths.type):
        what = "the path column" if column == "path" else f"column {column!r}, used for the paths,"
        raise SourceError(f"{what} holds {one_line(paths.type)}, expected strings")
    unnamed = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(paths), ""), True)
    if pc.any(unnamed).as_py():
        raise SourceError(
            f"{pc.sum(unnamed).as_py()} of {len(paths)} rows have no path; the first is row "
            f"{pc.index(unnamed, True).as_py() + 1}"
        )


def _relative(paths: pa.ChunkedArray, root: str | os.PathLike[str] | None) -> pa.ChunkedArray:
    """Return paths below `root` as relative ones, and without the leading ``./`` of `find`. Others are unchanged."""
    for folder in {os.path.abspath(root), os.path.realpath(root)} if root else ():
        prefix = os.path.join(folder, "")
        if is_utf8(prefix):
            inside = pc.starts_with(paths, prefix)
            paths = pc.if_else(inside, pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    return pc.replace_substring_regex(paths, r"(?s)^(?:\./+)+(.)", r"\1")


def _looked_up(table: pa.Table, files: SourceFiles, column: str | None) -> pa.Table:
    """Put paths, sizes and times of files first. Raises SourceError unless all paths, from `column`, refer to files."""
    refused, first = 0, ""

    def refuse(_: int, path: str, reason: RefusedFile) -> None:
        nonlocal refused, first
        refused, first = refused + 1, first or f"{path!r} {reason}{files.hint(path)}"

    texts = table.column("path").combine_chunks().dictionary_encode()
    found, facts = files.look_up_spelled(pa.chunked_array([texts.dictionary]), refuse)
    if refused:
        why = f"; no column is called path, so {column!r} was used" if column in ID_NAMES else ""
        raise SourceError(
            f"{refused} of its {len(found)} paths cannot be used, the first: {first} (source {str(files.base)!r}){why}"
        )
    known = pa.table({"path": found, "source_nbytes": facts[:, 0], "source_mtime_ns": facts[:, 1]}).take(texts.indices)
    others = table.drop_columns("path")
    return pa.table([*known.columns, *others.columns], [*known.column_names, *others.column_names])


def _without_repeats(table: pa.Table, repeated: Repeated) -> pa.Table:
    paths = table.column("path").combine_chunks().dictionary_encode()
    counts = np.bincount(paths.indices)
    if repeated == "list":  # one row for each path, in order of first occurrence
        codes = paths.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        firsts = pa.array(order[np.cumsum(counts) - counts])
        others = [name for name in table.column_names if name not in INDEX_COLUMNS]
        # A single row without values, such as a join writes for an image without objects, makes empty lists.
        is_listed = counts[codes] > 1
        for name in others:
            is_listed |= table.column(name).is_valid().to_numpy()
        order = order[is_listed[order]]
        ends = np.append(0, np.cumsum(np.bincount(codes[order], minlength=len(counts))))
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if name in others:
                columns[name] = pa.LargeListArray.from_arrays(ends, column.take(pa.array(order)).combine_chunks())
            else:
                columns[name] = column.take(firsts)
        return pa.table(columns)
    many = np.flatnonzero(counts > 1)
    if len(many):
        first = paths.dictionary[many[0]].as_py()
        raise SourceError(
            f"{plural(len(many), 'path is', 'paths are')} listed more than once; the first is {first!r}, "
            f"{counts[many[0]]} times; "
            "--repeated list makes the rows of a path one sample, whose other columns are lists"
        )
    return table


def _whole_labels(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    labels = label_texts(labels)
    missing = labels.null_count
    if pa.types.is_large_string(labels.type):
        missing += pc.sum(pc.equal(labels, pa.scalar("", labels.type))).as_py() or 0
    if missing:
        raise SourceError(f"{missing} of {len(labels)} rows have no label; leave them out, or rename the column")
    return labels
