"""Parquet files as sources: lists their rows as samples."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError
from presize.options import Companion, SourceOptions
from presize.sources.columns import all_types, plain_table
from presize.sources.contents import Contents, field_name
from presize.sources.parquet_rows import first_line, is_bytes, is_image, open_parquet
from presize.sources.source_files import GROUP_ROWS, Container
from presize.store.filenames import unsafe_paths
from presize.system.file_version import FileVersion

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def list_parquet(path: str, name: str, options: SourceOptions, _: Sequence[Companion] = ()) -> Contents:
    """List the samples of a Parquet file, in its order. ``keys`` chooses among several image columns. Images and their
    sizes are not read: ``source_nbytes`` is the mean of the row group."""
    try:
        version = FileVersion.at(path)
        file = open_parquet(path)
        schema = file.schema_arrow
        image = _image_column(schema, options.keys)
        # Binary values are images, sounds or pickles, but not labels.
        with_bytes = {one.name for one in schema if any(is_bytes(kind) for kind, _ in all_types(one.type))}
        others = [name for name in schema.names if name not in with_bytes and schema.names.count(name) == 1]
        has_names = is_image(schema.field(image).type) and schema.field(image).type.get_field_index("path") >= 0
        # A table without columns has no rows, so the metadata below gives their number.
        table = file.read(columns=[*others, *([f"{image}.path"] if has_names else [])])
        names = table.column(image).combine_chunks().field("path") if has_names else None
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        sizes = [_mean_bytes(group, image) for group in groups]
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error, "no reason given")
        raise SourceError(f"it cannot be read as Parquet: {reason}") from error
    rows = np.array([group.num_rows for group in groups], np.int64)
    number = np.repeat(np.arange(len(rows)), rows)
    row = np.arange(len(number)) - np.repeat(np.cumsum(rows) - rows, rows)
    left_out: Counter[str] = Counter(
        {field_name(one.name): len(number) for one in schema if one.name not in others and one.name != image}
    )
    if names is None and "path" in others and any(is_text(schema.field("path").type) for is_text in _TEXTS):
        names = table.column("path").combine_chunks()
        others.remove("path")
    fields = plain_table(table.select(others).rename_columns(_field_names(others)), left_out)
    samples = {
        "path": _paths(names, len(number), os.path.splitext(name)[0]),
        "source_nbytes": pa.array(np.repeat(np.array(sizes, np.int64), rows)),
        "offset": pa.array(number * GROUP_ROWS + row),
        "run": pa.array(number),
    }
    columns = samples | dict(zip(fields.column_names, fields.columns, strict=True))
    return Contents(Container(name, version, column=image), pa.table(columns), _class_names(schema), left_out=left_out)


def _field_names(names: Sequence[str]) -> list[str]:
    """Return the columns' names as fields, with more underscores if the file has a column of that name."""
    fields = []
    for name in names:
        field = field_name(name)
        while field != name and field in names:
            field += "_"
        fields.append(field)
    return fields


def _image_column(schema: pa.Schema, asked: str | None) -> str:
    images, plain = ([str(one.name) for one in schema if fits(one.type)] for fits in (is_image, is_bytes))
    names = (images or plain) if asked is None else [asked]
    if len(names) == 1 and schema.names.count(names[0]) == 1 and names[0] in (*images, *plain):
        return names[0]
    has = ", ".join(f"{one.name} ({one.type})" for one in schema)[:400]
    if asked is not None:
        raise SourceError(f"--keys {asked} is not an image column ({{bytes, path}} or binary); it has {has}")
    if names:
        raise SourceError(f"it has {len(names)} image columns; choose one, such as --keys {names[0]}")
    raise SourceError(f"it has no image column ({{bytes, path}} or binary); it has {has}")


def _mean_bytes(group: pq.RowGroupMetaData, image: str) -> int:
    columns = map(group.column, range(group.num_columns))
    leaves = (image, f"{image}.bytes")
    nbytes = sum(int(column.total_uncompressed_size) for column in columns if column.path_in_schema in leaves)
    return nbytes // max(1, int(group.num_rows))


def _paths(names: pa.Array | None, rows: int, stem: str) -> pa.Array:
    """Return the paths of rows: their names, or ``STEM/NUMBER`` where a name is missing, unsafe or repeated."""
    numbers = pc.utf8_lpad(pa.array(np.arange(rows)).cast(pa.large_string()), 8, "0")
    folder, slash = (pa.scalar(text, pa.large_string()) for text in (stem, "/"))
    numbered = pc.binary_join_element_wise(folder, numbers, slash)
    if names is None:
        return numbered
    given = names.cast(pa.large_string())
    usable = np.zeros(rows, np.bool_)
    codes = pc.fill_null(given.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
    usable[np.unique(codes, return_index=True)[1]] = True
    usable &= ~pc.fill_null(unsafe_paths(given), True).to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(usable), given, numbered)


def _class_names(schema: pa.Schema) -> tuple[str, ...] | None:
    """Return the names of Hugging Face's ClassLabel in the column ``label``, or None if there are none."""
    try:
        features: Any = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        label = features["label"]
        names = label["names"] if label["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(one, str) for one in names) else None
