"""Reads label tables as checked Arrow columns, and class lists."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError
from presize.formatting import plural
from presize.options import Repeated, ValueType
from presize.sources.table_files import PATH_NAMES, one_line, read_file
from presize.sources.text_columns import are_no_texts, as_type, label_texts, no_text
from presize.sources.walk import is_utf8
from presize.store.index import INDEX_COLUMNS
from presize.store.manifest import read_manifest

_ROWS_AT_ONCE = 65536
_DEEPEST = 32
"""Arrow writes no column of more than 64 types in one another."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_UNSAFE_PATH = r"^$|^/|//|/$|(^|/)\.\.?(/|$)|\x00"


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
    table = _with_path(read_file(os.fspath(path), types))
    _check_columns(table.column_names)
    if len(table) == 0:
        raise SourceError("it lists no samples")
    table = pa.table({name: plain_column(name, table.column(name)) for name in table.column_names})
    table = with_types(table, types)
    columns = {name: table.column(name) for name in table.column_names}
    if root is not None:
        columns["path"] = _relative(columns["path"], root)
    _check_paths(columns["path"])
    if "label" in columns:
        columns["label"] = label_texts(columns["label"])
        _check_labels(columns["label"])
    return _without_repeats(pa.table(columns), repeated)


def read_paths(path: str | os.PathLike[str]) -> list[str]:
    """The paths that a file lists, of any kind that read_table takes; other columns do not matter.

    Raises:
        SourceError: the file cannot be read, or has no paths.
    """
    paths = plain_column("path", _with_path(read_file(os.fspath(path))).column("path")).drop_null()
    if len(paths) == 0 or not pa.types.is_large_string(paths.type):
        raise SourceError("it lists no paths")
    return list(paths.to_pylist())


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Prefix each SourceError with `what` it is about."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{what}: {error}") from None


def _with_path(table: pa.Table) -> pa.Table:
    """The table with its column of paths named ``path``."""
    names = table.column_names
    found = [name for name in PATH_NAMES if name in names]
    if not found:
        some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise SourceError(
            f"it has no path column (called {', '.join(PATH_NAMES[:-1])} or {PATH_NAMES[-1]}); it has "
            f"{some[:200] or 'none'}; rename the column of the paths to path"
        )
    if "path" not in found and len(found) > 1:
        raise SourceError(f"it has the columns {' and '.join(map(repr, found))}; rename the one of the paths to path")
    return table.rename_columns(["path" if name == found[0] else name for name in names])


def _check_columns(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"it has the column {name!r} more than once")
        if name in INDEX_COLUMNS and name != "path":
            raise SourceError(f"the index has a column {name!r} of its own; rename yours")


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
            for start in range(0, len(plain), _ROWS_AT_ONCE):
                plain.slice(start, _ROWS_AT_ONCE).to_pylist()
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
        column = plain_column(name, as_type(name, table.column(name), kind))
        table = table.set_column(table.column_names.index(name), name, column)
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


def _check_paths(paths: pa.ChunkedArray) -> None:
    if not pa.types.is_large_string(paths.type):
        raise SourceError(f"the path column holds {one_line(paths.type)}, expected strings")
    if paths.null_count:
        raise SourceError(f"{paths.null_count} of {len(paths)} rows have no path")
    unsafe = paths.filter(pc.match_substring_regex(paths, _UNSAFE_PATH))
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


def class_labels(
    labels: pa.ChunkedArray, classes: Sequence[str] | None, by_value: bool = False
) -> tuple[pa.ChunkedArray, tuple[str, ...]]:
    """String labels as int32 positions in the class list, which is `classes` or else the sorted labels.

    Args:
        labels: the labels.
        classes: the class list to use.
        by_value: sort labels that are all whole numbers by their values, 2 before 10.

    Raises:
        SourceError: a label is not in `classes`, or is no text.
    """
    found = labels.unique()
    known = tuple(classes) if classes is not None else tuple(sorted(found.to_pylist()))
    strange = found.filter(are_no_texts(found))
    if classes is None and len(strange):
        raise no_text(strange[0].as_py().encode())
    if classes is None and by_value and all(_WHOLE.fullmatch(name) for name in known):
        known = tuple(sorted(known, key=lambda name: (int(name), name)))
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
