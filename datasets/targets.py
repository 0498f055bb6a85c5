"""Targets: index columns returned with images: values, vectors, and boxes and keypoints, which move with a crop."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from operator import index, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from presize.datasets.collate import AsList, collate_targets
from presize.datasets.crops import CropGeometry
from presize.datasets.joined import Data
from presize.datasets.reading.batch_reader import BatchReader
from presize.errors import DatasetError, OptionError
from presize.options import Coordinates, check_list, check_type
from presize.store.dataset import Dataset

Target = str | Sequence[str] | Mapping[str, str] | None
"""One column, several for a tuple, or columns by key for a dict."""

Vocabulary = Mapping[str, Sequence[Any] | None]
"""Values by column: the number of a value is its position in the list. None for the column's sorted values."""

Records = npt.NDArray[np.int64]
FlipPairs = Sequence[tuple[int, int]]
"""Pairs of keypoint numbers to swap when an image is flipped, such as the left and the right eye."""

Shown = Sequence[CropGeometry | None]
"""Crop geometry of each sample; None for the whole image."""


class Targets:
    """A reader of targets, with the arguments of LMDBDataset. `moves`: a target moves with the crop; `as_list`: see
    collate."""

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
                raise OptionError(f"{option}: {others[0]!r} is not a column of target={target!r}")
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
        # As in torch's default collate: tuples become a list of columns, and strings a tuple, but in a dict a list.
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
        """Return the target of record `i`. `shown`: the crop of its image, None for the whole image."""
        return self._join([column.at(i, shown) for column in self._columns])

    def batch(self, records: Records, shown: Shown | None = None) -> Any:
        return self._join_batch([column.batch(records, self._texts, shown) for column in self._columns])

    def array(self, records: Records) -> npt.NDArray[Any]:
        """Return the values of a single column in a new array."""
        return self._columns[0].array(records)

    def check_reader(self, reader: BatchReader) -> None:
        if self.moves and reader.has_views:
            raise OptionError("crop: boxes and keypoints move with one crop, got several; choose one, or other targets")

    def shown(self, reader: BatchReader, records: Records, seed: int, epoch: int, keys: npt.NDArray[np.int64]) -> Shown:
        """Return the crop that `reader` makes of each of `records`; None for each if no target depends on it."""
        return reader.shown(records, seed, epoch, keys) if self.moves else [None] * len(records)


def checked_pairs(pairs: FlipPairs | None) -> tuple[tuple[int, int], ...]:
    """Return `flip_pairs` as pairs of int. Raises OptionError for anything else."""
    try:
        return tuple((index(first), index(second)) for first, second in (() if pairs is None else pairs))
    except (TypeError, ValueError):
        problem = f"flip_pairs: expected pairs of keypoint numbers, such as [(1, 2)], got {pairs!r}"
        raise OptionError(problem) from None


def target_columns(target: Target) -> list[str]:
    if target is None:
        return []
    if isinstance(target, str):
        return [target]
    return list(target.values() if isinstance(target, Mapping) else target)


def chosen_target(data: Dataset, target: Target) -> Target:
    """Return `target`, or None for "label" in a dataset without labels."""
    if not (target is None or isinstance(target, str)):
        columns = list(target.values()) if isinstance(target, Mapping) else target
        check_list("target", columns, "a column, or a list or dict of columns")
    if target == "label" and "label" not in data.index.schema.names:
        return None
    return dict(target) if isinstance(target, Mapping) else target


def find_split(data: Data, rows: Records | None, name: Any, column: str) -> Records:
    """Return the ascending positions of the samples (`rows` of `data`, or all) with the value `name` in a column."""
    try:
        values = data.column(column)
    except DatasetError as error:
        fix = "; presize build --split adds it, also with --update" if column == "split" else ""
        raise DatasetError(f"{error}{fix}") from None
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
    """Return the sorted values of a column of text or whole numbers; [] if it is missing or of another type."""
    try:
        values = data.column(column)
    except DatasetError:
        return []
    if not (pa.types.is_large_string(values.type) or pa.types.is_integer(values.type)):
        return []
    data.check_column(column)
    values = (values if rows is None else values.take(pa.array(rows))).unique().drop_null()
    return sorted(values.to_pylist())


class TargetColumn:
    """A column of a target. `as_list`: batches are lists of Python objects; `moves`: values depend on the crop."""

    moves = False

    def __init__(self, name: str, type: pa.DataType, as_list: bool) -> None:
        self.name, self.type, self.as_list = name, type, as_list

    def at(self, i: int, shown: CropGeometry | None = None) -> Any:
        """Return the value of record `i`, with `shown` as in Targets.at."""
        raise NotImplementedError

    def batch(self, records: Records, texts: type, shown: Shown | None = None) -> Any:
        """Return the values of `records`, combined as by collate_targets, strings in `texts`: a tuple or a list."""
        visits = zip(records.tolist(), repeat(None) if shown is None else shown, strict=False)
        return collate_targets(texts(self.at(*visit) for visit in visits), self.as_list)

    def array(self, records: Records) -> npt.NDArray[Any]:
        """Return the values in a new array: numbers, whole ones as int64, or Python objects in a read-only array."""
        array = np.empty(len(records), object)  # np.array() would make a matrix of equally long lists
        array[:] = [self.at(i) for i in records.tolist()]
        array.flags.writeable = False  # not cached, so that changes would be lost
        return array


class ValueColumn(TargetColumn):
    """A column that returns its values, or the `numbers` that replace them, as plain Python objects."""

    def __init__(self, data: Data, name: str, numbers: pa.Array | None = None) -> None:
        column = data.column(name) if numbers is None else numbers
        self._values: Any = column
        self._numbers: npt.NDArray[Any] | None = None
        if column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            self._numbers = data.numbers(name) if numbers is None else numbers.to_numpy()
        elif numbers is None:
            data.check_column(name)
        is_huge = pa.types.is_uint64(column.type) and (pc.max(column).as_py() or 0) >= 2**63
        as_list = column.null_count > 0 or is_huge or not (_is_plain(column.type) or _is_even(column))
        super().__init__(name, column.type, as_list)

    def at(self, i: int, _: CropGeometry | None = None) -> Any:
        return self._values[i].as_py() if self._numbers is None else self._numbers.item(i)

    def batch(self, records: Records, texts: type, shown: Shown | None = None) -> Any:
        kind = "" if self._numbers is None else self._numbers.dtype.kind
        if self._numbers is None or kind not in "if":
            return super().batch(records, texts, shown)
        return torch.from_numpy(self._numbers[records].astype(np.int64 if kind == "i" else np.float64))

    def array(self, records: Records) -> npt.NDArray[Any]:
        if self._numbers is None:
            return super().array(records)
        values = np.asarray(self._numbers[records])
        is_whole = values.dtype.kind in "iu" and np.can_cast(values.dtype, np.int64)
        return values.astype(np.int64) if is_whole else values


class MultiHotColumn(TargetColumn):
    """A column that returns lists of `numbers` as vectors: float32 (width,), 1 at these positions and 0 elsewhere."""

    def __init__(self, name: str, numbers: Any, width: int) -> None:
        if not is_list(numbers.type):
            raise OptionError(f"multi_hot: column {name!r} holds no lists; leave it out, and use only vocabulary")
        super().__init__(name, pa.list_(pa.float32(), width), as_list=False)
        self._ends = numbers.offsets.to_numpy()
        self._places = numbers.values.to_numpy()

    def at(self, i: int, _: CropGeometry | None = None) -> torch.Tensor:
        return torch.from_numpy(self.array(np.array([i]))[0])

    def batch(self, records: Records, texts: type, shown: Shown | None = None) -> torch.Tensor:  # noqa: ARG002
        return torch.from_numpy(self.array(records))

    def array(self, records: Records) -> npt.NDArray[Any]:
        rows = np.zeros((len(records), self.type.list_size), np.float32)
        for row, i in zip(rows, records.tolist(), strict=True):
            row[self._places[self._ends[i] : self._ends[i + 1]]] = 1
        return rows


class ListColumn(TargetColumn):
    """A column of lists with one value per object. Objects whose box in `box_column` becomes empty are left out."""

    moves = True

    def __init__(self, data: Data, name: str) -> None:
        column: Any = data.column(name)
        data.check_column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if not pa.types.is_large_list(column.type):
            raise OptionError(f"target: column {name!r} of {data.root} holds {column.type}, expected lists")
        super().__init__(name, column.type, as_list=True)
        self.box_column: BoxColumn | None = None
        self._values = column
        self._data = data
        self._offsets = np.asarray(column.offsets)
        self.lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))

    def at(self, i: int, shown: CropGeometry | None = None) -> Any:
        if shown is None:
            size = self._data.shape(i)
            shown = CropGeometry((0, 0, *size), size)
        return self._moved(i, shown)

    def _moved(self, i: int, shown: CropGeometry) -> Any:
        raise NotImplementedError

    def _numbers(self, what: str) -> npt.NDArray[np.float32]:
        lists: Any = self._values.values
        is_plain = pa.types.is_fixed_size_list(lists.type) and lists.type.value_type == pa.float32()
        if not is_plain or lists.null_count or lists.flatten().null_count or lists.type.list_size < 1:
            raise DatasetError(
                f"the index of {self._data.root} is damaged: column {self.name!r} holds {self.type}, not {what}"
            )
        numbers = lists.flatten().to_numpy(zero_copy_only=True)
        return np.asarray(numbers).reshape(-1, lists.type.list_size)


class BoxColumn(ListColumn):
    """A column of boxes: float32 (n, 4), x1, y1, x2, y2 in pixels. Drops empty boxes."""

    def __init__(self, data: Data, name: str, tv: Any = None) -> None:
        super().__init__(data, name)
        self._boxes = self._numbers("boxes")
        if self._boxes.shape[1] != 4:
            raise DatasetError(f"the index of {data.root} is damaged: boxes of {self._boxes.shape[1]} numbers")
        self._tv = tv

    def _moved(self, i: int, shown: CropGeometry) -> Any:
        moved = self._boxes_of(i, shown)
        kept = _have_area(moved) if self.box_column is None else self.box_column.kept(i, shown)
        boxes = torch.from_numpy(moved[kept])
        return (
            boxes
            if self._tv is None
            else self._tv.BoundingBoxes(boxes, format="XYXY", canvas_size=shown.size, device="cpu")
        )

    def kept(self, i: int, shown: CropGeometry) -> npt.NDArray[np.bool_]:
        return _have_area(self._boxes_of(i, shown))

    def _boxes_of(self, i: int, shown: CropGeometry) -> npt.NDArray[np.float32]:
        boxes = self._boxes[self._offsets[i] : self._offsets[i + 1]].astype(np.float64)
        height, width = shown.size
        _move(boxes[:, 0::2], boxes[:, 1::2], shown)
        np.clip(boxes, 0, (width, height, width, height), out=boxes)
        if shown.flip:
            boxes[:, 0::2] = boxes[:, 2::-2]
        return boxes.astype(np.float32)


class KeypointColumn(ListColumn):
    """A column of keypoints: float32 (objects, points, 2 or 3), x and y in pixels and perhaps visibility. If it has
    visibility, points that are outside the crop, or whose visibility is 0, become 0, 0, 0."""

    def __init__(self, data: Data, name: str, format: str, pairs: FlipPairs = (), tv: Any = None) -> None:
        super().__init__(data, name)
        numbers = self._numbers("keypoints")
        if numbers.shape[1] % len(format):
            raise DatasetError(f"the index of {data.root} is damaged: keypoints {format} of {numbers.shape[1]} numbers")
        self._points = numbers.reshape(len(numbers), -1, len(format))
        points = self._points.shape[1]
        self._mirrored = np.arange(points)
        for first, second in pairs if len(numbers) else ():
            if not (0 <= first < points and 0 <= second < points):
                raise OptionError(
                    f"flip_pairs: ({first}, {second}) are not two of the {points} points of each object in {name!r}, "
                    "numbered from 0"
                )
            self._mirrored[[first, second]] = second, first
        if (self._mirrored[self._mirrored] != np.arange(points)).any():
            raise OptionError(f"flip_pairs: expected each point in one pair, got {list(pairs)}")
        self._tv = tv if format == "xy" and hasattr(tv, "KeyPoints") else None

    def _moved(self, i: int, shown: CropGeometry) -> Any:
        points = self._points[self._offsets[i] : self._offsets[i + 1]].astype(np.float64)
        x, y = points[:, :, 0], points[:, :, 1]
        _move(x, y, shown)
        if shown.flip:
            points = points[:, self._mirrored]
        if points.shape[2] == 3:
            height, width = shown.size
            x, y = points[:, :, 0], points[:, :, 1]
            points[~((x >= 0) & (x <= width) & (y >= 0) & (y <= height) & (points[:, :, 2] != 0))] = 0
        if self.box_column is not None:
            points = points[self.box_column.kept(i, shown)]
        found = torch.from_numpy(points.astype(np.float32))
        return found if self._tv is None else self._tv.KeyPoints(found, canvas_size=shown.size, device="cpu")


class ObjectColumn(ListColumn):
    """A column with a value for each box that is not empty, such as its class. Numbers are returned as a tensor."""

    def __init__(self, data: Data, column: TargetColumn) -> None:
        super().__init__(data, column.name)
        self._column = column
        kind = column.type.value_type
        self._dtype: torch.dtype | None = None
        if pa.types.is_integer(kind):
            self._dtype = torch.int64
        elif pa.types.is_floating(kind):
            self._dtype = torch.float32

    def _moved(self, i: int, shown: CropGeometry) -> Any:
        values = self._column.at(i) or ()
        left = list(values if self.box_column is None else compress(values, self.box_column.kept(i, shown).tolist()))
        return left if self._dtype is None or None in left else torch.tensor(left, dtype=self._dtype, device="cpu")


def _have_area(boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    return np.asarray((boxes[:, 2:] > boxes[:, :2]).all(axis=1))


def _move(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], shown: CropGeometry) -> None:
    """Convert coordinates in the stored image to coordinates in the crop, in place."""
    (top, left, box_height, box_width), (height, width), flip = shown
    x -= left
    x *= width / box_width
    y -= top
    y *= height / box_height
    if flip:
        np.subtract(width, x, out=x)


def with_objects(
    data: Data, columns: Sequence[TargetColumn], flip_pairs: FlipPairs, tv_tensors: bool
) -> list[TargetColumn]:
    """Return `columns`, with boxes, keypoints and values of boxes replaced by columns that move with a crop."""
    boxes, points = declared(data, "boxes"), declared(data, "keypoints")
    tv = tv_tensors_module() if tv_tensors else None
    has_boxes = any(column.name in boxes for column in columns)
    found: list[TargetColumn] = []
    for column in columns:
        if column.name in boxes:
            column = BoxColumn(data, column.name, tv)
        elif column.name in points:
            column = KeypointColumn(data, column.name, points[column.name], flip_pairs, tv)
        elif has_boxes and pa.types.is_large_list(column.type):
            column = ObjectColumn(data, column)
        found.append(column)
    if flip_pairs and not any(isinstance(column, KeypointColumn) for column in found):
        raise OptionError("flip_pairs: target has no column of keypoints")
    box_columns = [column for column in found if isinstance(column, BoxColumn)]
    for column in found if box_columns else ():
        if isinstance(column, ListColumn):
            box_column = _box_column(data, column, box_columns)
            column.box_column = None if box_column is column else box_column
    return found


def _box_column(data: Data, column: ListColumn, box_columns: Sequence[BoxColumn]) -> BoxColumn:
    """Return the first column of boxes that has as many boxes per sample as `column` has values."""
    for box_column in box_columns:
        if np.array_equal(box_column.lengths, column.lengths):
            return box_column
    lengths, boxes = column.lengths, box_columns[0].lengths
    first = int((lengths != boxes).argmax())
    raise OptionError(
        f"target: lists next to boxes need one value per box, but {data.path(first)} has {lengths[first]} in "
        f"{column.name!r} and {boxes[first]} in {box_columns[0].name!r}; leave one of them out"
    )


def declared(data: Data, option: str) -> dict[str, str]:
    """Return the columns that the build declared as boxes or keypoints, and the format of their numbers."""
    found = data.manifest.identity["options"].get(option, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise DatasetError(f"the manifest of {data.root} is damaged: expected a list of {option}, got {found!r}")
    places = map(Coordinates.parse_keypoints if option == "keypoints" else Coordinates.parse_boxes, found)
    return {place.column: place.numbers for place in places}


def tv_tensors_module() -> Any:
    """Import torchvision.tv_tensors. Raises OptionError if torchvision is not installed."""
    try:
        return importlib.import_module("torchvision.tv_tensors")
    except ImportError:
        raise OptionError("tv_tensors: needs torchvision, which is not installed: pip install torchvision") from None


def numbered(data: Data, name: str, values: Sequence[Any] | None) -> tuple[pa.Array | pa.ChunkedArray, list[Any]]:
    """Return a column, or its lists, with each value replaced by its position in `values`, and `values`. Nulls stay."""
    column = data.column(name)
    data.check_column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    inner = column.flatten() if is_list(column.type) else column
    if pa.types.is_null(inner.type):
        inner = inner.cast(pa.large_string())
    if not (pa.types.is_integer(inner.type) or pa.types.is_large_string(inner.type)):
        raise OptionError(
            f"vocabulary: column {name!r} holds {column.type}, expected text, whole numbers, or lists of them"
        )
    known = _known(name, values, inner)
    numbers = pc.index_in(inner, known)
    unknown = inner.filter(pc.is_null(numbers))
    if not is_list(column.type):
        unknown = unknown.drop_null()
    if len(unknown):
        raise OptionError(
            f"vocabulary: lacks {len(unknown):,} of the values of column {name!r} in {data.root}, such as "
            f"{unknown[0].as_py()!r}"
        )
    if is_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        numbers = pa.LargeListArray.from_arrays(ends, numbers, mask=column.is_null())
    return numbers, known.to_pylist()


def _known(name: str, values: Sequence[Any] | None, inner: pa.Array) -> pa.Array:
    if values is None:
        return inner.unique().drop_null().sort()
    check_type("vocabulary", values, Sequence)
    try:
        known = pa.array([] if isinstance(values, str) else list(values), inner.type)
    except (pa.ArrowException, OverflowError):
        raise OptionError(
            f"vocabulary: column {name!r} holds {inner.type}, but the values given are of another type"
        ) from None
    if not len(known) or known.null_count or len(known.unique()) < len(known):
        raise OptionError(f"vocabulary: for column {name!r} expected a list of different values, got {values!r:.100}")
    return known


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _is_even(column: Any) -> bool:
    """Return whether a column has equally long lists of values that torch's default collate accepts."""
    if not is_list(column.type) or not _is_plain(column.type.value_type):
        return False
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if any(chunk.flatten().null_count for chunk in chunks):
        return False
    return len({int(length) for chunk in chunks for length in np.unique(np.asarray(chunk.value_lengths()))}) < 2
