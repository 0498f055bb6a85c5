"""One sample -> what a page shows of it: pictures of the source, the stored image and its companions, boxes, texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from presize.codecs import sixteen
from presize.errors import DatasetError, ImageError
from presize.options import Coordinates
from presize.pages.html import jpeg_of, thumbnail
from presize.pages.opened import ViewedDataset

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


Pixels = npt.NDArray[np.uint8]

_MOST_CLASS_NUMBERS = 64
"""A mask with more different values is taken for a depth map, and shown in shades of grey."""
_MOST_TEXT, _MOST_TEXTS = 300, 12
_MASK_SHARE = 0.6


@dataclass(frozen=True)
class Picture:
    """A JPEG, or why there is none.

    Attributes:
        what: "source", "stored", or the name of a companion.
        jpeg: empty where there is none.
        problem: why there is none.
    """

    what: str
    jpeg: bytes
    problem: str = ""


@dataclass(frozen=True)
class Card:
    """A sample as a page shows it.

    Attributes:
        sample: its number.
        path: in the source.
        label: its class; None without classes.
        stored, source: (height, width).
        nbytes, source_nbytes: of the stored image, and of the source file.
        pictures: the stored image, with its source before it and its companions behind it, where there are any.
        marks: in pixels of the stored image.
        texts: (column, value) of the label table.
    """

    sample: int
    path: str
    label: str | None
    stored: tuple[int, int]
    source: tuple[int, int]
    nbytes: int
    source_nbytes: int
    pictures: tuple[Picture, ...]
    marks: Marks
    texts: tuple[tuple[str, str], ...]


def cards_of(opened: ViewedDataset, samples: Iterable[int], side: int, jobs: int) -> list[Card]:
    """The cards of `samples`, in their order. A picture that cannot be shown says why.

    Args:
        opened: the dataset.
        samples: their numbers.
        side: of the pictures, in pixels, at most.
        jobs: how many threads decode.

    Raises:
        DatasetError: the columns of a sample are damaged.
    """
    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(lambda sample: card_of(opened, sample, side), samples))


def card_of(opened: ViewedDataset, sample: int, side: int) -> Card:
    """As cards_of()."""
    row, manifest = opened.row(sample), opened.manifest
    marks = marks_of(row, manifest.identity["options"])
    classes, label = manifest.classes or (), row.get("label", -1)
    return Card(
        sample,
        row["path"],
        classes[label] if classes and 0 <= label < len(classes) else None,
        (row["height"], row["width"]),
        (row["source_height"], row["source_width"]),
        row["nbytes"],
        row["source_nbytes"],
        tuple(_pictures(opened, sample, side)),
        marks,
        tuple(_texts(opened, row, marks)),
    )


def _pictures(opened: ViewedDataset, sample: int, side: int) -> Iterable[Picture]:
    if opened.raw is not None:
        yield _picture("source", lambda: thumbnail(opened.source(sample, side), side))
    stored: list[Pixels] = []

    def small() -> Pixels:
        stored.append(thumbnail(seen(opened.pixels(sample)), side))
        return stored[0]

    yield _picture("stored", small)
    for companion in opened.manifest.companions if stored else ():

        def beside(name: str = companion.name) -> Pixels:
            values = opened.companion(name, sample)
            return masked(stored[0], values) if _is_mask(values) else thumbnail(seen(values), side)

        yield _picture(companion.name, beside)


def _picture(what: str, pixels: Callable[[], Pixels]) -> Picture:
    try:
        return Picture(what, jpeg_of(pixels()))
    except (DatasetError, ImageError) as error:
        return Picture(what, b"", str(error))


def seen(pixels: npt.NDArray[Any]) -> Pixels:
    """Pixels of any dataset as a page shows them: 8 bits, alpha composed on white, other values than colours as
    shades from the smallest to the largest; uint8 (height, width, 3) or (height, width)."""
    if pixels.dtype == np.uint16 and pixels.ndim == 2:
        low, high = int(pixels.min()), int(pixels.max())
        return np.asarray((pixels.astype(np.float32) - low) * (255 / max(high - low, 1)), np.uint8)
    if pixels.dtype == np.uint16:
        pixels = sixteen.rounded(pixels)
    if pixels.shape[2:] == (4,):
        opacity = pixels[:, :, 3:] / 255
        pixels = (pixels[:, :, :3] * opacity + 255 * (1 - opacity)).round().astype(np.uint8)
    return np.asarray(pixels)


def _is_mask(values: npt.NDArray[Any]) -> bool:
    return values.ndim == 2 and len(np.unique(values)) <= _MOST_CLASS_NUMBERS


def masked(picture: Pixels, mask: npt.NDArray[Any]) -> Pixels:
    """`picture` with a colour over it for each number of a mask; 0, the background, stays as it is.

    Args:
        picture: uint8 (height, width, 3) or (height, width).
        mask: whole numbers (height, width), of any size.
    """
    height, width = picture.shape[:2]
    small = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST)
    base = picture if picture.ndim == 3 else np.repeat(picture[:, :, np.newaxis], 3, axis=2)
    colors = _PALETTE[np.bitwise_and(small, 255)]
    blended = cv2.addWeighted(base, 1 - _MASK_SHARE, colors, _MASK_SHARE, 0)
    return np.asarray(np.where((small == 0)[:, :, np.newaxis], base, blended), np.uint8)


def _palette() -> Pixels:
    """256 colours; those of numbers near to each other differ: hues go on by the golden angle."""
    hues = np.arange(256) * 137.508 % 360
    tones = np.stack((hues / 2, np.full(256, 190), np.full(256, 245)), axis=1).round().astype(np.uint8)
    return np.asarray(cv2.cvtColor(tones[np.newaxis], cv2.COLOR_HSV2RGB)[0], np.uint8)


_PALETTE = _palette()


def _texts(opened: ViewedDataset, row: dict[str, Any], marks: Marks) -> Iterable[tuple[str, str]]:
    """The label columns that are not drawn; a list of lists of texts, as several captions are, line by line."""
    names = [name for name in opened.label_columns if name not in marks.columns and row[name] not in (None, "", [])]
    for name in names[:_MOST_TEXTS]:
        value = row[name]
        plain = isinstance(value, list) and all(isinstance(one, str | int | float) for one in value)
        text = ", ".join(map(str, value)) if plain else str(value)
        yield name, text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "…"
