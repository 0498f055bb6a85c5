"""Scales boxes and keypoints of the label table to the pixels of the stored images.
Coordinates are continuous: x = 0 is the left edge of the first pixel, x = width the right edge of the last one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.codecs.resize import target
from presize.errors import SourceError, warn
from presize.formatting import plural, printable
from presize.options import BoxFormat, BuildOptions, Coordinates, ImageOptions, KeypointFormat, Size
from presize.sources.contents import OFFSET_OF, PLACE_COLUMNS
from presize.store.index import COMPANION_COLUMNS, INDEX_COLUMNS

Numbers = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SHARE_LIMIT = 2.0
"""Boxes and points with all numbers below this count as fractions. It is above 1, as boxes may exceed their image."""
TOLERANCE = 1.0
"""Pixels by which a box may extend beyond its image and still count as good, because annotations are rounded."""


class Rows(NamedTuple):
    """A column of lists of lists: the number of lists of each sample, of numbers in each list, and all numbers."""

    lengths: Ints
    inner: Ints
    numbers: Numbers

    @property
    def samples(self) -> Ints:
        """Return the sample that each list belongs to, (lists,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def fours(self) -> Numbers:
        """Return the lists of four numbers, (n, 4)."""
        return np.asarray(self.numbers[np.repeat(self.inner == 4, self.inner)].reshape(-1, 4))

    def counted(self, table: pa.Table, bad: npt.NDArray[np.bool_]) -> tuple[str, str, str]:
        """Return the counts of bad boxes and of their images, as text, and the path of the first image."""
        images = np.unique(self.samples[bad])
        first = printable(table.column("path")[int(images[0])].as_py())
        return plural(int(bad.sum()), "box", "boxes"), plural(len(images), "image"), first


def check_annotations(table: pa.Table, options: BuildOptions) -> None:
    """Raise SourceError unless `table` has the declared columns in their units. Warn about boxes below a pixel."""
    for place in options.boxes:
        rows, boxes = _boxes(table, place)
        if len(rows.inner) and not (rows.inner == 4).any():
            some = ", ".join(map(str, np.unique(rows.inner)[:5].tolist()))
            raise SourceError(f"column {place.column!r}: expected four numbers for each box, got lists of {some}")
        _check_unit(place, rows.fours)
        small = _has_area(boxes) & (boxes[:, 2:] - boxes[:, :2] < 1).all(axis=1)
        if not place.in_shares and small.any():
            found, images, first = rows.counted(table, small)
            warn(
                f"column {place.column!r} has {found} smaller than a pixel, in {images}, the first '{first}'; if these "
                f"are fractions of the image, convert them: {place.format} means pixels in the whole column"
            )
    for place in options.keypoints:
        points = _points(table, place)[1]
        _check_unit(place, points[:, :, :2].reshape(-1, 2))


def _check_unit(place: Coordinates, numbers: Numbers) -> None:
    """Raise SourceError if most boxes or points, (n, 4 or 2), are in the other unit. All-zero rows are ignored."""
    numbers = numbers[np.isfinite(numbers).all(axis=1) & (numbers > 0).any(axis=1)]
    near = int((np.abs(numbers) < _SHARE_LIMIT).all(axis=1).sum())
    option = _option(place)
    what = "points" if option == "--keypoints" else "boxes"
    if not place.in_shares and near > len(numbers) - near:
        raise SourceError(
            f"column {place.column!r}: {near:,} of {len(numbers):,} {what} have only numbers below {_SHARE_LIMIT:g}: "
            f"expected pixels of the source image; for fractions of its width and height, give {option} {place}%"
        )
    if place.in_shares and near < len(numbers) - near:
        raise SourceError(
            f"column {place.column!r}: {len(numbers) - near:,} of {len(numbers):,} {what} have numbers of "
            f"{_SHARE_LIMIT:g} or more: expected fractions of the width and height, 0 to 1; for pixels, give {option} "
            f"{place.column}:{place.numbers}; divide percentages by 100"
        )


def _option(place: Coordinates) -> str:
    return "--keypoints" if place.format in get_args(KeypointFormat) else "--boxes"


def scaled(table: pa.Table, options: BuildOptions, size: Size, heights: Ints, widths: Ints) -> pa.Table:
    """Return `table` with boxes (x1, y1, x2, y2, clipped; empty ones stay) and keypoints in pixels of the stored
    images. `heights` and `widths`, (samples,), are the sizes of the upright sources."""
    if not options.boxes and not options.keypoints:
        return table
    heights, widths = heights.astype(np.int64), widths.astype(np.int64)
    moves, frames = _moves(options.image, size, heights, widths)
    for place in options.boxes:
        rows, boxes = _boxes(table, place, heights, widths)
        samples = rows.samples
        boxes[~_has_area(boxes)] = 0
        boxes = np.clip(boxes, 0, np.stack((widths, heights) * 2, axis=1)[samples])
        boxes = boxes * np.tile(moves[samples, :2], 2) + np.tile(moves[samples, 2:], 2)
        boxes = np.clip(boxes, 0, np.tile(frames[samples], 2))
        table = _replaced(table, place.column, rows, boxes, 4)
    for place in options.keypoints:
        rows, points = _points(table, place)
        samples = rows.samples
        if place.in_shares:
            points[:, :, :2] *= np.stack((widths, heights), axis=1)[samples, np.newaxis]
        points[:, :, :2] = points[:, :, :2] * moves[samples, np.newaxis, :2] + moves[samples, np.newaxis, 2:]
        table = _replaced(table, place.column, rows, points, points[0].size if len(points) else 0)
    return table


def warn_of_bad_boxes(table: pa.Table, options: BuildOptions, heights: Ints, widths: Ints) -> None:
    """Warn once per column about clipped boxes. The arguments are those of scaled()."""
    for place in options.boxes:
        rows, stays, bad = _bad_boxes(table, place, heights, widths)
        if not bad.any():
            continue
        found, images, first = rows.counted(table, bad)
        others = [Coordinates(place.column, each) for each in get_args(BoxFormat) if ("%" in each) == place.in_shares]
        fitting = [str(each) for each in others if not _bad_boxes(table, each, heights, widths)[2].any()]
        hint = f"; all boxes would fit with --boxes {' or '.join(fitting)}: check the format" if fitting else ""
        warn(
            f"column {place.column!r}: clipped {found} of {images}: boxes extend beyond the image, have no area or are "
            f"not four numbers ({(~stays).sum():,} will be dropped when reading); the first image is '{first}'; "
            f"--bad-boxes reject leaves such images out{hint}"
        )


def _bad_boxes(
    table: pa.Table, place: Coordinates, heights: Ints, widths: Ints
) -> tuple[Rows, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the rows of boxes, and for each box whether it has an area in its image, and whether it is bad."""
    rows, boxes = _boxes(table, place, heights, widths)
    heights, widths, has_area = heights[rows.samples], widths[rows.samples], _has_area(boxes)
    stays = has_area & _has_area(np.clip(boxes, 0, np.stack((widths, heights) * 2, axis=1)))
    return rows, stays, ~(has_area & _within(boxes, heights, widths))


def extents(table: pa.Table, options: BuildOptions) -> Numbers | None:
    """Return the bounding boxes of each sample's boxes in pixels and of those in fractions, (samples, 2, 4): NaN if one
    is invalid, infinite without boxes. Returns None unless bad boxes reject their image."""
    if not options.boxes or options.bad_boxes == "clip":
        return None
    around = np.tile([np.inf, np.inf, -np.inf, -np.inf], (len(table), 2, 1))
    for place in options.boxes:
        rows, boxes = _boxes(table, place)
        samples = rows.samples
        boxes[~_has_area(boxes)] = np.nan
        np.minimum.at(around[:, int(place.in_shares), :2], samples, boxes[:, :2])
        np.maximum.at(around[:, int(place.in_shares), 2:], samples, boxes[:, 2:])
    return around


def may_stay(
    table: pa.Table, options: BuildOptions, index: pa.RecordBatch, matched: Ints
) -> npt.NDArray[np.bool_] | np.bool_:
    """Return True for each sample that its current boxes do not reject. `matched` is its row in the index; a number
    outside the index means that the sample is not stored."""
    around = extents(table, options)
    if around is None:
        return np.True_
    stored = (matched >= 0) & (matched < len(index))
    rows = np.where(stored, matched, 0)
    heights, widths = (index.column(f"source_{side}").to_numpy()[rows] for side in ("height", "width"))
    shares = around[:, 1] * np.stack((widths, heights) * 2, axis=1)
    return ~stored | (_within(around[:, 0], heights, widths) & _within(shares, heights, widths))


def _within(boxes: Numbers, heights: Ints, widths: Ints) -> npt.NDArray[np.bool_]:
    limits = np.stack((widths, heights), axis=1) + TOLERANCE
    return np.asarray((boxes[:, :2] >= -TOLERANCE).all(axis=1) & (boxes[:, 2:] <= limits).all(axis=1))


def _has_area(boxes: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1))


def _rows(table: pa.Table, place: Coordinates) -> Rows:
    if place.column not in table.column_names:
        ours, of_files = {*INDEX_COLUMNS, *PLACE_COLUMNS, "label"}, tuple(f"_{name}" for name in COMPANION_COLUMNS)
        others = [
            name
            for name in table.column_names
            if not (name in ours or name.startswith(OFFSET_OF) or name.endswith(of_files))
        ]
        known = f"the columns are {', '.join(others)}" if others else "give a --labels table that has it"
        raise SourceError(f"{_option(place)} {place}: there is no column {place.column!r}; {known}")
    column: Any = table.column(place.column).combine_chunks()
    inner = column.flatten() if pa.types.is_large_list(column.type) else None
    if inner is None or not (pa.types.is_large_list(inner.type) or pa.types.is_null(inner.type)):
        raise _no_lists(column, place)
    lengths = _lengths(column)
    if pa.types.is_null(inner.type):
        return Rows(lengths, np.zeros(len(inner), np.int64), np.empty(0))
    numbers = inner.flatten()
    kind = numbers.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise _no_lists(column, place)
    return Rows(lengths, _lengths(inner), np.array(numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)))


def _no_lists(column: Any, place: Coordinates) -> SourceError:
    return SourceError(
        f"column {place.column!r} holds {column.type}, expected lists of lists of numbers for {place}, such as "
        "[[10, 20, 50, 60]]; JSON lines and Parquet have such columns"
    )


def _lengths(lists: Any) -> Ints:
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), np.int64)


def _boxes(
    table: pa.Table, place: Coordinates, heights: Ints | None = None, widths: Ints | None = None
) -> tuple[Rows, Numbers]:
    """Return all boxes as x1, y1, x2, y2, NaN unless four numbers; in pixels if sizes of upright sources are given."""
    rows = _rows(table, place)
    boxes = np.full((len(rows.inner), 4), np.nan)
    boxes[rows.inner == 4] = rows.fours
    first, second = boxes[:, :2].copy(), boxes[:, 2:].copy()
    if place.numbers == "xywh":
        boxes[:, 2:] = first + second
    elif place.numbers == "cxcywh":
        boxes[:, :2], boxes[:, 2:] = first - second / 2, first + second / 2
    if place.in_shares and heights is not None and widths is not None:
        boxes *= np.stack((widths, heights) * 2, axis=1)[rows.samples]
    return rows, boxes


def _points(table: pa.Table, place: Coordinates) -> tuple[Rows, Numbers]:
    """Return the keypoints of all samples, (objects, points, 2 or 3)."""
    rows = _rows(table, place)
    step = len(place.numbers)
    found = np.unique(rows.inner)
    if len(found) > 1 or (found % step).any() or (found == 0).any():
        some = ", ".join(map(str, found[:5].tolist()))
        raise SourceError(
            f"column {place.column!r}: expected the same number of points for each object, and "
            f"{' '.join(place.numbers)} of each point, got lists of {some} numbers"
        )
    return rows, rows.numbers.reshape(len(rows.inner), -1 if len(found) else 1, step)


def _moves(image: ImageOptions, size: Size, heights: Ints, widths: Ints) -> tuple[Numbers, Numbers]:
    """Return scale factors and offsets of x and y, (samples, 4), and stored widths and heights, (samples, 2)."""
    shapes, which = np.unique(np.stack((heights, widths), axis=1), axis=0, return_inverse=True)
    moves, frames = np.empty((len(shapes), 4)), np.empty((len(shapes), 2))
    for at, (height, width) in enumerate(shapes.tolist()):
        box, resized, canvas = target(Size(height, width), size, image.fit, image.upscale)
        frame = canvas or resized
        x, y = resized.width / box.width, resized.height / box.height
        left, top = (frame.width - resized.width) // 2, (frame.height - resized.height) // 2
        moves[at] = x, y, left - box.left * x, top - box.top * y
        frames[at] = frame.width, frame.height
    return moves[which.ravel()], frames[which.ravel()]


def _replaced(table: pa.Table, name: str, rows: Rows, values: Numbers, width: int) -> pa.Table:
    flat = pa.array(values.astype(np.float32).ravel())
    lists = pa.FixedSizeListArray.from_arrays(flat, width) if width else pa.array([], pa.list_(pa.float32(), 2))
    ends = np.concatenate(([0], np.cumsum(rows.lengths)))
    column = pa.LargeListArray.from_arrays(ends, lists)
    return table.set_column(table.column_names.index(name), name, column)
