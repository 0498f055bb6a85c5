"""A dataset as tar files in WebDataset's layout: files that share a name up to its first dot are one sample."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import DatasetError
from presize.store.dealing import mix
from presize.store.export.exported import Exported
from presize.system.files import new_files

_BATCH = 256


def write_tars(exported: Exported, out: Path, on_image: Callable[[], None]) -> None:
    """Write ``out/NAME-000000.tar`` and so on, one for each shard, where NAME is that of `out`; and ``classes.txt``.

    WebDataset reads a tar from beginning to end and shuffles a few thousand samples at a time. So a tar has the samples
    of one shard, which are a random part of the dataset, in random order. A sample is its image, its companions (as
    ``.mask.png``), its label if that is a whole number (``.cls``), and its other columns (``.json``, in which NaN and
    infinities are null).

    Raises:
        OSError: a file cannot be written.
        DatasetError: a record is damaged, or a column or a class name cannot be written as text.
    """
    dataset = exported.dataset
    classes = _class_list(exported)
    number_labels = "label" in exported.columns and pa.types.is_integer(dataset.column("label").type)
    in_json = [name for name in exported.columns if not (number_labels and name == "label")]
    for name in in_json:
        if not _fits_json(kind := dataset.column(name).type):
            raise DatasetError(f"export: JSON cannot hold the column {name!r} ({kind}); choose --to parquet")
    keys = sample_keys(exported.images.names)
    shard_of = dataset.numbers("shard")
    order = np.lexsort((mix(np.arange(len(shard_of), dtype=np.uint64)), shard_of))
    bounds = [0, *(np.flatnonzero(np.diff(shard_of[order])) + 1).tolist(), len(order)]

    def fields(samples: pa.Array) -> Iterator[list[tuple[str, bytes]]]:
        """For each sample the names and contents of its files."""
        columns = [dataset.column(name).take(samples).to_pylist() for name in exported.columns]
        for row, (sample, key) in enumerate(zip(samples.to_pylist(), keys.take(samples).to_pylist(), strict=True)):
            values = {name: column[row] for name, column in zip(exported.columns, columns, strict=True)}
            found = [(key + exported.images.suffix, exported.images.content(sample))]
            found += ((f"{key}.{name}{c.suffix}", c.content(sample)) for name, c in exported.companions.items())
            if number_labels:
                found.append((f"{key}.cls", str(values.pop("label")).encode()))
            if in_json:
                found.append((f"{key}.json", _json(values)))
            yield found

    out.mkdir(parents=True, exist_ok=True)
    with new_files(out) as new_file:
        for number, (first, end) in enumerate(pairwise(bounds)):
            with tarfile.open(new_file(f"{out.name}-{number:06d}.tar"), "w", format=tarfile.PAX_FORMAT) as tar:
                for start in range(first, end, _BATCH):
                    for files in fields(pa.array(order[start : min(start + _BATCH, end)])):
                        for name, content in files:
                            _add(tar, name, content)
                        on_image()
                    tar.members.clear()  # type: ignore[attr-defined]  # which it keeps for readers
        if classes:
            new_file("classes.txt").write_bytes(classes)


def sample_keys(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """What WebDataset calls the samples of files with these `names`: the names without their suffix, and without any
    other dot in their last part, since a key ends there. A key that would be there twice ends with the sample's number.
    """
    keys = pc.replace_substring_regex(names, r"\.[^./]*$", "")
    dot = r"\.([^./]*)$"
    while pc.any(pc.match_substring_regex(keys, dot)).as_py():
        keys = pc.replace_substring_regex(keys, dot, r"_\1")
    numbers = pa.array(np.arange(len(keys))).cast(keys.type)
    while pc.count_distinct(keys).as_py() < len(keys):
        counts = keys.value_counts()
        repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
        numbered = pc.binary_join_element_wise(keys, numbers, pa.scalar("-", keys.type))
        keys = pc.if_else(pc.is_in(keys, value_set=repeated), numbered, keys)
    return keys


def _class_list(exported: Exported) -> bytes:
    """The class names, one a line, as ``presize build --classes`` reads them; empty without classes."""
    names = exported.dataset.manifest.classes or ()
    for name in names:
        if "\n" in name or "\r" in name:
            raise DatasetError(f"export: classes.txt cannot hold the class name {name!r}; choose --to parquet")
    return "".join(f"{name}\n" for name in names).encode()


def _fits_json(kind: pa.DataType) -> bool:
    """Whether the values of a column of this type can be JSON. Dates and times become text, as ISO 8601 has it."""
    if pa.types.is_nested(kind):
        return all(_fits_json(kind.field(i).type) for i in range(kind.num_fields))
    return any(is_one(kind) for is_one in _JSON_TYPES)


_JSON_TYPES = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string,
    pa.types.is_large_string, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp,
)  # fmt: skip


def _json(values: dict[str, Any]) -> bytes:
    encode = partial(json.dumps, ensure_ascii=False, allow_nan=False, default=lambda moment: moment.isoformat())
    try:
        return encode(values).encode()
    except ValueError:
        return encode(_with_null(values)).encode()


def _with_null(value: Any) -> Any:
    """`value` with null where it has what JSON has no number for: NaN and the infinities."""
    if isinstance(value, dict):
        return {name: _with_null(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_null(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file. What TarInfo does not get is the same everywhere: time 0, owner 0, mode 0644."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
