"""Boxes and keypoints of one sample, from its columns, in pixels of its stored image. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from presize.options import Coordinates

MOST_MARKS = 300
"""Of a sample; more would hide the image, and make pages large."""


@dataclass(frozen=True)
class MarkedBox:
    """From its upper left corner, with what the sample's other columns say of it."""

    x: float
    y: float
    width: float
    height: float
    name: str


@dataclass(frozen=True)
class Marks:
    """What is drawn over an image.

    Attributes:
        boxes: those of which something is left.
        points: (x, y) of each keypoint that is visible.
        columns: the columns that they come from.
    """

    boxes: tuple[MarkedBox, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    columns: frozenset[str] = frozenset()


def marks_of(row: Mapping[str, Any], options: Mapping[str, Any]) -> Marks:
    """The marks of a sample.

    Args:
        row: its columns.
        options: of the build, as the manifest records them. Both may be hostile: what is no box or keypoint is left
            out.
    """
    boxes: list[MarkedBox] = []
    points: list[tuple[float, float]] = []
    of_boxes = _places(options.get("boxes"), Coordinates.parse_boxes)
    of_keypoints = _places(options.get("keypoints"), Coordinates.parse_keypoints)
    for place in of_boxes:
        found = _numbers(row.get(place.column), 4)
        names = _names(row, len(found), place.column)
        for (left, top, right, bottom), name in zip(found, names, strict=True):
            if right > left and bottom > top:
                boxes.append(MarkedBox(left, top, right - left, bottom - top, name))
    for place in of_keypoints:
        step = len(place.numbers)
        for numbers in _numbers(row.get(place.column), None):
            for at in range(0, len(numbers) - step + 1, step):
                if step == 2 or numbers[at + 2]:
                    points.append((numbers[at], numbers[at + 1]))
    columns = frozenset(place.column for place in (*of_boxes, *of_keypoints))
    return Marks(tuple(boxes[:MOST_MARKS]), tuple(points[:MOST_MARKS]), columns)


def _places(texts: object, parse: Callable[[str], Coordinates]) -> list[Coordinates]:
    """Those of an option; none where it is not recorded as a build does."""
    if not isinstance(texts, list):
        return []
    return [parse(text) for text in texts if isinstance(text, str) and ":" in text]


def _numbers(lists: object, length: int | None) -> list[list[float]]:
    """The lists that hold finite numbers alone, `length` of them; of others an empty list or NaNs."""
    if not isinstance(lists, list):
        return []
    return [
        list(map(float, one)) if _are_finite(one) and length in (None, len(one)) else [math.nan] * (length or 0)
        for one in lists
    ]


def _are_finite(one: object) -> bool:
    return isinstance(one, list) and all(isinstance(n, int | float) and math.isfinite(n) for n in one)


def _names(row: Mapping[str, Any], count: int, column: str) -> list[str]:
    """What the first other column with a text or a number for each of `count` objects says of them."""
    for name, values in row.items():
        if name != column and isinstance(values, list) and len(values) == count:
            if all(isinstance(value, str | int) for value in values):
                return list(map(str, values))
    return [""] * count
