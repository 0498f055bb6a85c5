"""Index columns as targets: a sample's value as a Python object, and which columns become tensors in a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.datasets.crops import Place
from presize.datasets.joined import JoinedData
from presize.store.dataset import Dataset


class TargetColumn:
    """An index column whose values come as plain Python objects.

    Attributes:
        name: of the column.
        values: an array over the mapped index, for numbers without nulls; else the Arrow column.
        stays: whether the values of a batch stay a list of Python objects: they have nulls, are lists of uneven length,
            or of a type that torch cannot stack. It holds for the column, so that all batches have one type.
        moves: whether the value depends on the crop of the image (presize.datasets.objects).
    """

    moves = False

    def __init__(self, data: Dataset | JoinedData, name: str) -> None:
        column = data.column(name)
        self.name = name
        self.values: Any = column
        if column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            self.values = data.numbers(name)
        else:
            data.check_column(name)
        self.stays = column.null_count > 0 or not (_is_plain(column.type) or _is_even(column))

    def __getitem__(self, i: int) -> Any:
        return self.values.item(i) if isinstance(self.values, np.ndarray) else self.values[i].as_py()

    def at(self, i: int, place: Place) -> Any:  # noqa: ARG002
        """The value of a sample of which `place` is shown."""
        return self[i]

    def objects(self, samples: Iterable[int]) -> npt.NDArray[Any]:
        """The values of `samples`, in a new array of Python objects."""
        values = [self[i] for i in samples]
        array = np.empty(len(values), object)  # np.array() would make a matrix of lists of one length
        array[:] = values
        return array


def _is_plain(kind: pa.DataType) -> bool:
    """Whether torch's default collate takes values of this type."""
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    return any(test(kind) for test in tests)


def _is_even(column: Any) -> bool:
    """Whether a column has lists of one length, of values that torch's default collate takes."""
    types = pa.types
    is_list = types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
    if not is_list or not _is_plain(column.type.value_type):
        return False
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if any(chunk.flatten().null_count for chunk in chunks):
        return False
    return len({int(length) for chunk in chunks for length in np.unique(np.asarray(chunk.value_lengths()))}) < 2
