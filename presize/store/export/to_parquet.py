"""A dataset as Parquet files, as Hugging Face's datasets has them: an image is a struct of its bytes and its path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from presize.store.export.exported import Exported, ImageFiles
from presize.system.files import new_files

GROUP_BYTES = 16 << 20
FILE_BYTES = 32 * GROUP_BYTES
"""Of the images in a row group, which is held in memory, and in a file: a little more than Hugging Face's 500 MB."""

_IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def write_parquet(exported: Exported, out: Path, on_image: Callable[[], None]) -> None:
    """Write ``out/NAME-00000-of-00002.parquet`` and so on, where NAME is that of `out`: one row a sample, in dataset
    order.

    ``image`` and the companions, with ``_`` behind a name that the label table has, come before the columns of that.
    Labels with a class list are a ClassLabel.

    Raises:
        OSError: a file cannot be written.
        DatasetError: a record is damaged.
    """
    schema = _schema(exported)
    numbers_of_group = _numbers(exported, GROUP_BYTES)
    numbers_of_file = _numbers(exported, FILE_BYTES)
    files = list(_runs(numbers_of_file))
    out.mkdir(parents=True, exist_ok=True)
    with new_files(out) as new_file:
        for number, (first, end) in enumerate(files):
            name = f"{out.name}-{number:05d}-of-{len(files):05d}.parquet"
            with (
                new_file(name).open("wb") as file,  # by Python: Arrow takes no name that is not UTF-8
                pyarrow.parquet.ParquetWriter(file, schema, **_writing(exported)) as writer,
            ):
                for low, high in _runs(numbers_of_group[first:end]):
                    writer.write_batch(_batch(exported, schema, range(first + low, first + high), on_image))


def _schema(exported: Exported) -> pa.Schema:
    images = exported.all_files(exported.columns)
    fields = dict.fromkeys(images, _IMAGE) | {n: exported.dataset.column(n).type for n in exported.columns}
    features: dict[str, Any] = {name: {"_type": "Image"} for name in images}
    if exported.dataset.manifest.classes is not None:
        fields["label"] = pa.int64()
        features["label"] = {"names": list(exported.dataset.manifest.classes), "_type": "ClassLabel"}
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": features}})})


def _writing(exported: Exported) -> dict[str, Any]:
    """How columns are encoded: images neither compressed nor looked through for statistics."""
    others = list(exported.columns)
    return {"compression": "none", "use_dictionary": others, "write_statistics": others}


def _numbers(exported: Exported, nbytes: int) -> npt.NDArray[np.int64]:
    """For each sample the number of its part, where parts of about `nbytes` each follow one another."""
    lengths = exported.dataset.numbers("nbytes")
    return np.asarray((np.cumsum(lengths) - lengths) // nbytes)


def _runs(numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where each run of equal numbers begins and ends."""
    return pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)])


def _batch(exported: Exported, schema: pa.Schema, samples: range, on_image: Callable[[], None]) -> pa.RecordBatch:
    columns = [_image_column(files, samples) for files in (exported.images, *exported.companions.values())]
    columns += (exported.dataset.column(name).slice(samples.start, len(samples)) for name in exported.columns)
    for _ in samples:
        on_image()
    typed = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=schema)


def _image_column(files: ImageFiles, samples: range) -> pa.StructArray:
    values = [b""] * len(samples)
    for position, content in files.contents(samples):
        values[position] = content
    names = files.names.slice(samples.start, len(samples)).to_pylist()
    return pa.StructArray.from_arrays([pa.array(values, pa.binary()), pa.array(names, pa.string())], fields=[*_IMAGE])
