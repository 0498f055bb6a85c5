"""Index columns as targets: a sample's values as Python objects, those of a batch as tensors or lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from presize.datasets.collate import AsList, collate_targets
from presize.datasets.crops import CropGeometry
from presize.datasets.joined import JoinedData
from presize.datasets.objects import FlipPairs, with_objects
from presize.datasets.reading.batches import BatchReader
from presize.errors import DatasetError, OptionError
from presize.options import check_type
from presize.store.dataset import Dataset

Target = str | Sequence[str] | Mapping[str, str] | None
"""One column; several, which give a tuple; or the columns of a dict, by its keys."""

Vocabulary = Mapping[str, Sequence[Any] | None]
"""For some columns the values that their numbers stand for; None for the sorted values of the column."""

Records = npt.NDArray[np.int64]


class Targets:
    """What comes beside the images.

    Args:
        data: the dataset.
        target: the columns.
        vocabulary: columns whose values become numbers.
        multi_hot: columns of lists that become vectors of 0 and 1.
        flip_pairs, tv_tensors: as in LMDBDataset.

    Attributes:
        moves: whether a target depends on what is shown of its image (presize.datasets.objects).
        vocabulary: for each column of numbers that stand for values, these values.
        as_list: for collate_targets.

    Raises:
        DatasetError: there is no such column, or it is damaged.
        OptionError: an option does not fit the columns.
    """

    def __init__(
        self,
        data: Dataset | JoinedData,
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
        columns: list[TargetColumn | MultiHotColumn] = []
        for name in names:
            numbers = None
            if name in vocabulary or name in multi_hot:
                numbers, self.vocabulary[name] = _numbered(data, name, vocabulary.get(name))
            if name in multi_hot:
                columns.append(MultiHotColumn(name, numbers, len(self.vocabulary[name])))
            else:
                columns.append(TargetColumn(data, name, numbers))
        self._columns: list[Any] = with_objects(data, columns, flip_pairs, tv_tensors)
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

    def __getitem__(self, i: int) -> Any:
        """The target of record `i`."""
        return self._join([column[i] for column in self._columns])

    def at(self, i: int, shown: CropGeometry | None) -> Any:
        """The target of record `i`, of whose image `shown` is to be seen; None for all of it."""
        return self._join([column.at(i, shown) if column.moves and shown else column[i] for column in self._columns])

    def check_reader(self, reader: BatchReader) -> None:
        """Raise OptionError for several views of images whose targets move with a crop."""
        if self.moves and reader.has_views:
            raise OptionError("crop: boxes and keypoints move with one crop, got several; choose one, or other targets")

    def shown(
        self, reader: BatchReader, records: Records, seed: int, epoch: int, keys: npt.NDArray[np.int64]
    ) -> Sequence[CropGeometry | None]:
        """What `reader` shows of each of `records`, for batch(); None where no target depends on it."""
        return reader.shown(records, seed, epoch, keys) if self.moves else [None] * len(records)

    def batch(self, records: Records, shown: Sequence[CropGeometry | None] | None = None) -> Any:
        """The targets of many records, as presize.datasets.collate combines them."""
        if shown is None or not self.moves:
            return self._join_batch([column.batch(records, self._texts) for column in self._columns])
        visits = list(zip(records.tolist(), shown, strict=True))
        return self._join_batch(
            [
                [column.at(i, shown) for i, shown in visits] if column.moves else column.batch(records, self._texts)
                for column in self._columns
            ]
        )

    def array(self, records: Records) -> npt.NDArray[Any]:
        """The values of a single column, in a new array; of objects where they are not numbers."""
        values: npt.NDArray[Any] = self._columns[0].array(records)
        return values


class TargetColumn:
    """An index column whose values come as plain Python objects.

    Args:
        data: the dataset.
        name: the column.
        numbers: what to give in place of its values; None for themselves.

    Attributes:
        type: Arrow's, of the values.
        as_list: whether the values of a batch stay a list of Python objects: they have nulls, are lists of uneven
            length, or such as torch cannot stack. It holds for the column, so that all batches have one type.
        moves: whether the value depends on the crop of the image (presize.datasets.objects).
    """

    moves = False

    def __init__(self, data: Dataset | JoinedData, name: str, numbers: pa.Array | None = None) -> None:
        column = data.column(name) if numbers is None else numbers
        self.name = name
        self.type = column.type
        self._values: Any = column
        self._numbers: npt.NDArray[Any] | None = None
        if column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            self._numbers = data.numbers(name) if numbers is None else numbers.to_numpy()
        elif numbers is None:
            data.check_column(name)
        is_huge = pa.types.is_uint64(column.type) and (pc.max(column).as_py() or 0) >= 2**63
        self.as_list = column.null_count > 0 or is_huge or not (_is_plain(column.type) or _is_even(column))

    def __getitem__(self, i: int) -> Any:
        return self._values[i].as_py() if self._numbers is None else self._numbers.item(i)

    def batch(self, records: Records, texts: type) -> Any:
        """As collate_targets combines them: numbers become int64 or float64 (n,), strings `texts`, a list or tuple."""
        kind = "" if self._numbers is None else self._numbers.dtype.kind
        if self._numbers is not None and kind in "if":
            return torch.from_numpy(self._numbers[records].astype(np.int64 if kind == "i" else np.float64))
        return collate_targets(texts(self[i] for i in records.tolist()), self.as_list)

    def array(self, records: Records) -> npt.NDArray[Any]:
        """In a new array: numbers, with int64 for whole ones as in a batch, or read-only Python objects."""
        if self._numbers is not None:
            values = np.asarray(self._numbers[records])
            is_whole = values.dtype.kind in "iu" and np.can_cast(values.dtype, np.int64)
            return values.astype(np.int64) if is_whole else values
        array = np.empty(len(records), object)  # np.array() would make a matrix of lists of one length
        array[:] = [self[i] for i in records.tolist()]
        array.flags.writeable = False  # made anew at each use, so that changes would be lost
        return array


class MultiHotColumn:
    """A column of lists as vectors: float32 (width,), 1 at the numbers that a list holds and 0 elsewhere.

    Args:
        name: the column.
        numbers: lists of numbers below `width`; a null is an empty list.
        width: the length of the vectors.
    """

    as_list = False
    moves = False

    def __init__(self, name: str, numbers: Any, width: int) -> None:
        if not _is_list(numbers.type):
            raise OptionError(f"multi_hot: column {name!r} holds no lists; leave it out, it needs a vocabulary alone")
        self.name = name
        self.type = pa.list_(pa.float32(), width)
        self._ends = numbers.offsets.to_numpy()
        self._places = numbers.values.to_numpy()
        self._width = width

    def __getitem__(self, i: int) -> torch.Tensor:
        return self._rows([i])[0]

    def batch(self, records: Records, _: type) -> torch.Tensor:
        """float32 (n, width)."""
        return self._rows(records.tolist())

    def array(self, records: Records) -> npt.NDArray[Any]:
        """float32 (n, width)."""
        return self._rows(records.tolist()).numpy()

    def _rows(self, records: Sequence[int]) -> torch.Tensor:
        rows = np.zeros((len(records), self._width), np.float32)
        for row, i in zip(rows, records, strict=True):
            row[self._places[self._ends[i] : self._ends[i + 1]]] = 1
        return torch.from_numpy(rows)


def target_columns(target: Target) -> list[str]:
    """The columns of a target, in its order."""
    if target is None:
        return []
    if isinstance(target, str):
        return [target]
    return list(target.values() if isinstance(target, Mapping) else target)


def _numbered(
    data: Dataset | JoinedData, name: str, values: Sequence[Any] | None
) -> tuple[pa.Array | pa.ChunkedArray, list[Any]]:
    """A column, or the lists in it, with the position of each value in `values`, and these. A null stays one."""
    column = data.column(name)
    data.check_column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    inner = column.flatten() if _is_list(column.type) else column
    if pa.types.is_null(inner.type):
        inner = inner.cast(pa.large_string())
    if not (pa.types.is_integer(inner.type) or pa.types.is_large_string(inner.type)):
        raise OptionError(
            f"vocabulary: column {name!r} holds {column.type}, expected text, whole numbers, or lists of them"
        )
    known = _known(name, values, inner)
    numbers = pc.index_in(inner, known)
    unknown = inner.filter(pc.is_null(numbers))
    if not _is_list(column.type):
        unknown = unknown.drop_null()
    if len(unknown):
        raise OptionError(
            f"vocabulary: {len(unknown):,} of the values of column {name!r} in {data.root} are not in it, such as "
            f"{unknown[0].as_py()!r}"
        )
    if _is_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        numbers = pa.LargeListArray.from_arrays(ends, numbers, mask=column.is_null())
    return numbers, known.to_pylist()


def _known(name: str, values: Sequence[Any] | None, inner: pa.Array) -> pa.Array:
    """The values of a vocabulary in the type of the column."""
    if values is None:
        return inner.unique().drop_null().sort()
    check_type("vocabulary", values, Sequence)
    try:
        known = pa.array([] if isinstance(values, str) else list(values), inner.type)
    except (pa.ArrowException, OverflowError):
        raise OptionError(f"vocabulary: column {name!r} holds {inner.type}, and the values given are not") from None
    if not len(known) or known.null_count or len(known.unique()) < len(known):
        raise OptionError(f"vocabulary: for column {name!r} expected a list of different values, got {values!r:.100}")
    return known


def _is_plain(kind: pa.DataType) -> bool:
    """Whether torch's default collate takes values of this type."""
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _is_even(column: Any) -> bool:
    """Whether a column has lists of one length, of values that torch's default collate takes."""
    if not _is_list(column.type) or not _is_plain(column.type.value_type):
        return False
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if any(chunk.flatten().null_count for chunk in chunks):
        return False
    return len({int(length) for chunk in chunks for length in np.unique(np.asarray(chunk.value_lengths()))}) < 2


def chosen_target(data: Dataset, target: Target) -> Target:
    """`target`, and None for the label of a dataset without one."""
    if target == "label" and "label" not in data.index.schema.names:
        return None
    return dict(target) if isinstance(target, Mapping) else target


def find_split(data: Dataset | JoinedData, rows: Records | None, name: Any, column: str) -> Records:
    """Which of the samples, `rows` of `data` or all of it, have the value `name` in a column: ascending positions.

    Raises:
        DatasetError: there is no such column.
        OptionError: there are no such samples.
    """
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


def find_splits(data: Dataset | JoinedData, rows: Records | None, column: str = "split") -> list[Any]:
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
