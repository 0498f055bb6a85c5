"""Targets: what comes beside the images of a dataset, one column of its index or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.datasets.collate import AsList
from presize.datasets.columns import (
    FlipPairs,
    MultiHotColumn,
    Records,
    Shown,
    TargetColumn,
    ValueColumn,
    numbered,
    with_objects,
)
from presize.datasets.crops import CropGeometry
from presize.datasets.joined import Data
from presize.datasets.reading.batch_reader import BatchReader
from presize.errors import DatasetError, OptionError
from presize.store.dataset import Dataset

Target = str | Sequence[str] | Mapping[str, str] | None
"""One column; several, which give a tuple; or the columns of a dict, by its keys."""

Vocabulary = Mapping[str, Sequence[Any] | None]
"""For some columns the values that their numbers stand for; None for the sorted values of the column."""


class Targets:
    """Reads targets; arguments as in LMDBDataset. `moves`: whether a target depends on what is shown of its image;
    `vocabulary`: the values that numbers of a column stand for; `as_list`: for collate_targets."""

    def __init__(
        self,
        data: Data,
        target: Target,
        vocabulary: Vocabulary,
        multi_hot: Sequence[str],
        flip_pairs: FlipPairs = (),
        tv_tensors: bool = False,
    ) -> None:
        names = target_columns(target)
        for option, its in (("vocabulary", vocabulary), ("multi_hot", multi_hot)):
            others = [name for name in its if name not in names]
            if others:
                raise OptionError(f"{option}: {others[0]!r} is no column of target={target!r}")
        self.vocabulary: dict[str, list[Any]] = {}
        columns: list[TargetColumn] = []
        for name in names:
            numbers = None
            if name in vocabulary or name in multi_hot:
                numbers, self.vocabulary[name] = numbered(data, name, vocabulary.get(name))
            if name in multi_hot:
                columns.append(MultiHotColumn(name, numbers, len(self.vocabulary[name])))
            else:
                columns.append(ValueColumn(data, name, numbers))
        self._columns = with_objects(data, columns, flip_pairs, tv_tensors)
        self.moves = any(column.moves for column in self._columns)
        # As torch's default collate has it: a list of columns for a tuple, and texts as a list within a dict alone.
        self._join: Any = tuple
        self._join_batch: Any = list
        self._texts: type = tuple
        if isinstance(target, str):
            self._join = self._join_batch = itemgetter(0)
        elif isinstance(target, Mapping):
            self._join = self._join_batch = lambda values: dict(zip(target, values, strict=True))
            self._texts = list
        as_list = [column.as_list for column in self._columns]
        self.as_list: AsList = self._join(as_list) if any(as_list) else False

    def at(self, i: int, shown: CropGeometry | None = None) -> Any:
        """The target of record `i`, of whose image `shown` is to be seen; None for all of it."""
        return self._join([column.at(i, shown) for column in self._columns])

    def batch(self, records: Records, shown: Shown | None = None) -> Any:
        """The targets of many records, as presize.datasets.collate combines them."""
        return self._join_batch([column.batch(records, self._texts, shown) for column in self._columns])

    def array(self, records: Records) -> npt.NDArray[Any]:
        """The values of a single column, in a new array; of objects where they are not numbers."""
        return self._columns[0].array(records)

    def check_reader(self, reader: BatchReader) -> None:
        """Raise OptionError for several views of images whose targets move with a crop."""
        if self.moves and reader.has_views:
            raise OptionError("crop: boxes and keypoints move with one crop, got several; choose one, or other targets")

    def shown(self, reader: BatchReader, records: Records, seed: int, epoch: int, keys: npt.NDArray[np.int64]) -> Shown:
        """What `reader` shows of each of `records`, for batch(); None where no target depends on it."""
        return reader.shown(records, seed, epoch, keys) if self.moves else [None] * len(records)


def target_columns(target: Target) -> list[str]:
    """The columns of a target, in its order."""
    if target is None:
        return []
    if isinstance(target, str):
        return [target]
    return list(target.values() if isinstance(target, Mapping) else target)


def chosen_target(data: Dataset, target: Target) -> Target:
    """`target`, and None for the label of a dataset without one."""
    if target == "label" and "label" not in data.index.schema.names:
        return None
    return dict(target) if isinstance(target, Mapping) else target


def find_split(data: Data, rows: Records | None, name: Any, column: str) -> Records:
    """Which of the samples, `rows` of `data` or all of it, have the value `name` in a column: ascending positions."""
    values = data.column(column)
    data.check_column(column)
    try:
        found = np.asarray(pc.fill_null(pc.equal(values, pa.scalar(name, values.type)), False))
    except (pa.ArrowException, OverflowError):  # of another type, or of one without equality
        found = np.zeros(len(values), np.bool_)
    positions = np.flatnonzero(found if rows is None else found[rows])
    if not len(positions):
        others = ", ".join(map(repr, find_splits(data, rows, column)[:8]))
        raise OptionError(
            f"split: no sample of {data.root} has {name!r} in column {column!r}; it has {others or 'none'}"
        )
    return positions


def find_splits(data: Data, rows: Records | None, column: str = "split") -> list[Any]:
    """The values of a column of text or whole numbers, sorted; none for any other, or where there is none."""
    try:
        values = data.column(column)
    except DatasetError:
        return []
    if not (pa.types.is_large_string(values.type) or pa.types.is_integer(values.type)):
        return []
    data.check_column(column)
    values = (values if rows is None else values.take(pa.array(rows))).unique().drop_null()
    return sorted(values.to_pylist())
