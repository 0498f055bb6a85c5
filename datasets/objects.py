"""Boxes and keypoints as targets: moved, clipped and mirrored with the crop of their image."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from presize.datasets.crops import CropGeometry
from presize.datasets.joined import JoinedData
from presize.errors import DatasetError, OptionError
from presize.options import Coordinates
from presize.store.dataset import Dataset

FlipPairs = Sequence[tuple[int, int]]
"""Keypoints that change places when an image is mirrored, such as the left eye and the right one, by number."""


class _ListColumn:
    """An index column of lists, with what becomes of a sample's list where part of its image is shown.

    Attributes:
        name: of the column.
        as_list, moves: as of the other columns of a target (presize.datasets.columns).
    """

    as_list = True
    moves = True
    box_column: BoxColumn | None = None

    def __init__(self, data: Dataset | JoinedData, name: str) -> None:
        column: Any = data.column(name)
        data.check_column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        self._values = column
        self.name = name
        self._data = data
        if not pa.types.is_large_list(column.type):
            raise OptionError(f"target: column {name!r} of {data.root} holds {column.type}, expected lists")
        self.offsets = np.asarray(column.offsets)
        self.lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))

    def __getitem__(self, i: int) -> Any:
        height, width = self._data.shape(i)
        return self.at(i, CropGeometry((0, 0, height, width), (height, width)))

    def at(self, i: int, shown: CropGeometry) -> Any:
        """The value of sample `i`, of whose image `shown` is to be seen."""
        raise NotImplementedError

    def batch(self, records: npt.NDArray[np.int64], _: type = list) -> list[Any]:
        """The values of many samples, of whose images all is shown."""
        return [self[i] for i in records.tolist()]

    def array(self, records: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """In a new array of objects."""
        array = np.empty(len(records), object)
        array[:] = self.batch(records)
        array.flags.writeable = False
        return array

    def _numbers(self, what: str) -> npt.NDArray[np.float32]:
        """The numbers of all samples, float32 (lists, length of each)."""
        lists: Any = self._values.values
        is_plain = pa.types.is_fixed_size_list(lists.type) and lists.type.value_type == pa.float32()
        if not is_plain or lists.null_count or lists.flatten().null_count or lists.type.list_size < 1:
            raise DatasetError(
                f"the index of {self._data.root} is damaged: column {self.name!r} holds {self._values.type}, not {what}"
            )
        numbers = lists.flatten().to_numpy(zero_copy_only=True)
        return np.asarray(numbers).reshape(-1, lists.type.list_size)


class BoxColumn(_ListColumn):
    """A column of boxes: float32 (n, 4), x1, y1, x2, y2 in pixels, those alone of which something is left."""

    def __init__(self, data: Dataset | JoinedData, name: str, tv: Any = None) -> None:
        super().__init__(data, name)
        self._boxes = self._numbers("boxes")
        if self._boxes.shape[1] != 4:
            raise DatasetError(f"the index of {data.root} is damaged: boxes of {self._boxes.shape[1]} numbers")
        self._tv = tv

    def at(self, i: int, shown: CropGeometry) -> Any:
        moved = self._moved(i, shown)
        kept = _have_area(moved) if self.box_column is None else self.box_column.kept(i, shown)
        boxes = torch.from_numpy(moved[kept])
        return boxes if self._tv is None else self._tv.BoundingBoxes(boxes, format="XYXY", canvas_size=shown.size)

    def kept(self, i: int, shown: CropGeometry) -> npt.NDArray[np.bool_]:
        """Which of the boxes of a sample have an area."""
        return _have_area(self._moved(i, shown))

    def _moved(self, i: int, shown: CropGeometry) -> npt.NDArray[np.float32]:
        boxes = self._boxes[self.offsets[i] : self.offsets[i + 1]].astype(np.float64)
        height, width = shown.size
        _move(boxes[:, 0::2], boxes[:, 1::2], shown)
        np.clip(boxes, 0, (width, height, width, height), out=boxes)
        if shown.flip:
            boxes[:, 0::2] = boxes[:, 2::-2]
        return boxes.astype(np.float32)


class KeypointColumn(_ListColumn):
    """A column of keypoints: float32 (objects, points, 2 or 3), x and y in pixels, and the visibility of each.

    With a visibility, points outside of the crop, and those that were not visible before, are 0, 0, 0; without one
    they lie outside.
    """

    def __init__(
        self, data: Dataset | JoinedData, name: str, format: str, pairs: FlipPairs = (), tv: Any = None
    ) -> None:
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
        self._tv = tv if format == "xy" and hasattr(tv, "KeyPoints") else None

    def at(self, i: int, shown: CropGeometry) -> Any:
        points = self._points[self.offsets[i] : self.offsets[i + 1]].astype(np.float64)
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
        return found if self._tv is None else self._tv.KeyPoints(found, canvas_size=shown.size)


class ObjectColumn(_ListColumn):
    """A column with a value for each box, such as its class: of the boxes that are left. Numbers come as a tensor."""

    def __init__(self, data: Dataset | JoinedData, column: Any, box_column: BoxColumn) -> None:
        super().__init__(data, column.name)
        self._column = column
        self._boxes = box_column
        kind = column.type.value_type
        self._dtype: torch.dtype | None = None
        if pa.types.is_integer(kind):
            self._dtype = torch.int64
        elif pa.types.is_floating(kind):
            self._dtype = torch.float32

    def at(self, i: int, shown: CropGeometry) -> Any:
        values = self._column[i] or ()
        left = [value for value, kept in zip(values, self._boxes.kept(i, shown).tolist(), strict=True) if kept]
        return left if self._dtype is None or None in left else torch.tensor(left, dtype=self._dtype)


def _have_area(boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    return np.asarray((boxes[:, 2:] > boxes[:, :2]).all(axis=1))


def _move(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], shown: CropGeometry) -> None:
    """Bring coordinates of the stored image, in place, to those of what is shown of it."""
    (top, left, box_height, box_width), (height, width), flip = shown
    x -= left
    x *= width / box_width
    y -= top
    y *= height / box_height
    if flip:
        np.subtract(width, x, out=x)


def with_objects(
    data: Dataset | JoinedData, columns: Sequence[Any], flip_pairs: FlipPairs, tv_tensors: bool
) -> list[Any]:
    """`columns`, with those in their places that know boxes, keypoints, and lists that have a value for each box.

    Raises:
        OptionError: a list beside boxes has not a value for each of them, or `flip_pairs` are not of the keypoints.
    """
    boxes, points = declared(data, "boxes"), declared(data, "keypoints")
    tv = tv_tensors_module() if tv_tensors else None
    box_columns: list[BoxColumn] = []
    found: list[Any] = []
    for column in columns:
        if column.name in boxes:
            column = BoxColumn(data, column.name, tv)
            box_columns.append(column)
        elif column.name in points:
            column = KeypointColumn(data, column.name, points[column.name], flip_pairs, tv)
        found.append(column)
    if flip_pairs and not any(isinstance(column, KeypointColumn) for column in found):
        raise OptionError("flip_pairs: there is no column of keypoints in target")
    for at, column in enumerate(found if box_columns else ()):
        if isinstance(column, _ListColumn):
            box_column = _box_column(data, column, box_columns)
            column.box_column = None if box_column is column else box_column
        elif pa.types.is_large_list(column.type):
            lists = _ListColumn(data, column.name)
            found[at] = ObjectColumn(data, column, _box_column(data, lists, box_columns))
    return found


def _box_column(data: Dataset | JoinedData, column: _ListColumn, box_columns: Sequence[BoxColumn]) -> BoxColumn:
    """The first of the columns of boxes of which each has a value in `column`."""
    for box_column in box_columns:
        if np.array_equal(box_column.lengths, column.lengths):
            return box_column
    lengths, boxes = column.lengths, box_columns[0].lengths
    first = int((lengths != boxes).argmax())
    raise OptionError(
        f"target: lists beside boxes have one value a box, and of {data.path(first)} {column.name!r} has "
        f"{lengths[first]} where {box_columns[0].name!r} has {boxes[first]}; leave one of them out"
    )


def declared(data: Dataset | JoinedData, option: str) -> dict[str, str]:
    """The columns that the build declared as boxes or keypoints, and what their numbers are."""
    found = data.manifest.identity["options"].get(option, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise DatasetError(f"the manifest of {data.root} is damaged: expected a list of {option}, got {found!r}")
    places = map(Coordinates.parse_keypoints if option == "keypoints" else Coordinates.parse_boxes, found)
    return {place.column: place.numbers for place in places}


def tv_tensors_module() -> Any:
    """torchvision.tv_tensors. Raises OptionError where torchvision is not installed."""
    try:
        return importlib.import_module("torchvision.tv_tensors")
    except ImportError:
        raise OptionError(
            "tv_tensors: they are torchvision's, which is not installed: pip install torchvision"
        ) from None
