"""Loads what pages show of a sample: pictures of its source, stored image and companions; boxes, points and texts."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.codecs.decode import decode
from presize.codecs.stored_value import DAMAGE, decode_value
from presize.errors import DatasetError, ImageError, OptionError
from presize.options import MAX_PIXELS, Coordinates
from presize.pages.html import Pixels, flattened, jpeg_of, thumbnail
from presize.store.dataset import Dataset
from presize.store.filenames import is_safe
from presize.store.index import index_columns, read_index
from presize.store.manifest import Manifest, read_manifest
from presize.store.rejects_file import Rejects, read_rejects
from presize.system.files import expanded, is_url, open_at_once

_MAX_BYTES = 1 << 30
_FIT_SCALES = (8, 4, 2)


@dataclass(frozen=True, eq=False)
class ViewedDataset:
    """A dataset opened for pages. `data` reads its shards; it is None for a folder of image files. Sources are shown if
    `raw`, the folder that it was built from, is given. Thread-safe."""

    root: Path
    manifest: Manifest
    index: pa.RecordBatch
    raw: Path | None = None
    data: Dataset | None = None
    _checked: set[str] = field(default_factory=set, init=False, repr=False)
    _companions: dict[str, Dataset] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, root: str | os.PathLike[str], raw: str | os.PathLike[str] | None = None) -> ViewedDataset:
        """Open a dataset. Raises DatasetError if missing, damaged or a URL, OptionError if `raw` is not a folder."""
        name = root = expanded(root)
        raw = None if raw is None else expanded(raw)
        if is_url(name):
            raise DatasetError(
                f"{name} is a URL, but a page shows samples from nearly all shards; "
                f"run `presize fetch {name} DIR`, then view DIR"
            )
        if raw is not None and not os.path.isdir(raw):
            raise OptionError(
                f"raw: {os.fspath(raw)!r} is not a folder; expected the folder that the dataset was built from"
            )
        source = None if raw is None else Path(os.path.realpath(raw))
        manifest = read_manifest(root)
        if manifest.layout == "folder":
            return cls(Path(os.path.realpath(root)), manifest, read_index(root, manifest), source)
        data = Dataset(root, readahead=False)
        return replace(cls.reading(data), raw=source)

    @classmethod
    def reading(cls, data: Dataset) -> ViewedDataset:
        """View a Dataset that is already open."""
        return cls(data.root, data.manifest, data.index, data=data)

    def check_sources(self) -> None:
        """Raise OptionError if the raw folder has none of the sources of several samples: it is the wrong folder."""
        last = self.manifest.samples - 1
        paths = [self.row(sample)["path"] for sample in sorted({0, last // 4, last // 2, last})]
        if self.raw is not None and not any(is_safe(path) and os.path.lexists(self.raw / path) for path in paths):
            raise OptionError(
                f"raw: {str(self.raw)!r} has neither {paths[0]!r} nor the other sources that were tried; "
                "expected the folder of files that the dataset was built from"
            )

    @cached_property
    def rejects(self) -> Rejects:
        return read_rejects(self.root / self.manifest.rejects.file)

    @cached_property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the label table, without ``label`` if it numbers the classes."""
        own = index_columns(self.manifest.layout, True, [companion.name for companion in self.manifest.companions])
        classes = {"label"} if self.manifest.classes is not None else set()
        schema = self.index.schema
        is_one = {name: schema.get_field_index(name) >= 0 for name in schema.names}  # -1 for duplicates
        return tuple(name for name in schema.names if is_one[name] and name not in {*own, *classes})

    @cached_property
    def text_columns(self) -> tuple[str, ...]:
        """The path and the text columns of the label table."""
        texts = (pa.string(), pa.large_string())
        return ("path", *(name for name in self.label_columns if self.index.schema.field(name).type in texts))

    def column(self, name: str) -> pa.Array:
        """Return a column, validated once so that Arrow can compute with it. Raises DatasetError if it is damaged."""
        column = self.index.column(self.index.schema.get_field_index(name))
        if name not in self._checked:
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                what = str(error).partition("\n")[0]
                raise DatasetError(f"column {name!r} of {self.root} is damaged: {what}") from None
            self._checked.add(name)
        return column

    def row(self, sample: int) -> dict[str, Any]:
        """Return all columns of one sample. Raises DatasetError if they are damaged."""
        row = self.index.slice(sample, 1)
        try:
            row.validate(full=True)
            return dict(row.to_pylist()[0])
        except (ValueError, OverflowError) as error:  # such as a date in the year 10,000
            raise self._damage(sample, str(error).partition("\n")[0]) from None

    def pixels(self, sample: int) -> npt.NDArray[Any]:
        """Return the stored image, as Dataset.pixels does. Raises DatasetError if it is damaged."""
        if self.data is not None:
            return next(pixels for _, pixels in self.data.pixels([sample]))
        manifest, row = self.manifest, self.row(sample)
        try:
            value = memoryview(_read(self.root, row["file"]))
            shape = row["height"], row["width"]
            return decode_value(value, manifest.format, manifest.color, shape, MAX_PIXELS, manifest.depth)
        except DAMAGE as error:
            raise self._damage(sample, str(error)) from None

    def companion(self, name: str, sample: int) -> npt.NDArray[Any]:
        """Return the sample's image in a companion, such as its mask; see Dataset.companion."""
        if self.data is None:
            raise DatasetError(f"{self.root} is a folder of image files, which has no companions")
        if name not in self._companions:
            self._companions[name] = self.data.companion(name)
        return next(pixels for _, pixels in self._companions[name].pixels([sample]))

    def source(self, sample: int, side: int) -> npt.NDArray[Any]:
        """Return the source image: upright, 8-bit RGB, (height, width, 3). It is scaled down if that is fast, but its
        longer side keeps at least `side` pixels. Raises ImageError if the file is missing or not an image."""
        row = self.row(sample)
        if self.raw is None:
            raise ImageError("no raw folder was given")
        longer = max(row["source_height"], row["source_width"])
        scale = next((scale for scale in _FIT_SCALES if longer >= side * scale), 1)
        return decode(_read(self.raw, row["path"]), scale=scale).pixels

    def _damage(self, sample: int, what: str) -> DatasetError:
        return DatasetError(f"sample {sample} of {self.root} is damaged: {what or 'out of memory'}")


def _read(folder: Path, path: str) -> bytes:
    """Return the content of a file below `folder`. Raises ImageError if it cannot be read."""
    if not is_safe(path):
        raise ImageError("its path leads out of the folder")
    try:
        with open(folder / path, "rb", opener=open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ImageError("it is not a regular file")
            if status.st_size > _MAX_BYTES:
                raise ImageError(f"it has {status.st_size} bytes; at most {_MAX_BYTES} are read")
            return file.read()
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from None


MOST_MARKS = 300  # limit on boxes, and on points, per sample: more would hide the image and make pages large


class Marks(NamedTuple):
    """Boxes (left, top, width, height, name) and visible keypoints (x, y) drawn over an image, and their columns."""

    boxes: list[tuple[float, float, float, float, str]]
    points: list[tuple[float, float]]
    columns: set[str]


def marks_of(row: Mapping[str, Any], options: Mapping[str, Any]) -> Marks:
    """Return the marks of a sample from its columns `row` and the recorded options of its build. Both may be hostile:
    anything but boxes and keypoints is ignored."""
    marks = Marks([], [], set())
    for column in _coordinates(options.get("boxes"), Coordinates.parse_boxes):
        marks.columns.add(column.column)
        corners = _lists(row.get(column.column))
        for box, name in zip(corners, _names(row, len(corners), column.column), strict=True):
            if len(box) == 4 and box[2] > box[0] and box[3] > box[1]:
                marks.boxes.append((box[0], box[1], box[2] - box[0], box[3] - box[1], name))
    for column in _coordinates(options.get("keypoints"), Coordinates.parse_keypoints):
        marks.columns.add(column.column)
        step = len(column.numbers)
        for numbers in _lists(row.get(column.column)):
            for at in range(0, len(numbers) - step + 1, step):
                if step == 2 or numbers[at + 2]:
                    marks.points.append((numbers[at], numbers[at + 1]))
    return Marks(marks.boxes[:MOST_MARKS], marks.points[:MOST_MARKS], marks.columns)


def _coordinates(texts: object, parse: Callable[[str], Coordinates]) -> list[Coordinates]:
    """Parse the columns of a recorded option; ignore values that no build records."""
    listed = texts if isinstance(texts, list) else []
    return [parse(text) for text in listed if isinstance(text, str) and ":" in text]


def _lists(lists: object) -> list[list[float]]:
    """Return lists of finite numbers; any other value becomes an empty list."""

    def are_finite(one: object) -> bool:
        return isinstance(one, list) and all(isinstance(n, int | float) and math.isfinite(n) for n in one)

    return [list(map(float, one)) if are_finite(one) else [] for one in lists] if isinstance(lists, list) else []


def _names(row: Mapping[str, Any], count: int, column: str) -> list[str]:
    """Return the names of `count` objects: the first other column with a text or a number for each of them."""
    for name, values in row.items():
        if name != column and isinstance(values, list) and len(values) == count:
            if all(isinstance(value, str | int) for value in values):
                return list(map(str, values))
    return [""] * count


_MOST_CLASS_NUMBERS = 64  # a mask with more is shown in shades of grey, like a depth map
_MOST_TEXT, _MOST_TEXTS = 300, 12
_MASK_SHARE = 0.6


class Picture(NamedTuple):
    """A picture on a card: "source", "stored", or a companion's name. If it cannot be shown, `problem` says why."""

    what: str
    jpeg: bytes
    problem: str = ""


class Card(NamedTuple):
    """A sample as a page shows it: its row of the index, the name of its class, pictures, marks in pixels of the stored
    image, and texts (column, value) of the label table."""

    sample: int
    row: dict[str, Any]
    label: str | None
    pictures: list[Picture]
    marks: Marks
    texts: list[tuple[str, str]]

    @property
    def path(self) -> str:
        return str(self.row["path"])


def cards_of(viewed: ViewedDataset, samples: Iterable[int], side: int, jobs: int) -> list[Card]:
    """Return the cards of `samples`, in order, decoded in `jobs` threads; see card_of()."""
    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(lambda sample: card_of(viewed, sample, side), samples))


def card_of(viewed: ViewedDataset, sample: int, side: int) -> Card:
    """Return the card of a sample, with pictures of at most `side` pixels. A picture that cannot be shown says why.
    Raises DatasetError if the columns of the sample are damaged."""
    row, manifest = viewed.row(sample), viewed.manifest
    marks = marks_of(row, manifest.identity["options"])
    classes, label = manifest.classes or (), row.get("label", -1)
    name = classes[label] if classes and 0 <= label < len(classes) else None
    return Card(sample, row, name, list(_pictures(viewed, sample, side)), marks, _texts(viewed, row, marks))


def _pictures(viewed: ViewedDataset, sample: int, side: int) -> Iterable[Picture]:
    stored: Pixels | None = None

    def shown(name: str) -> Pixels:
        if name == "source":
            return thumbnail(viewed.source(sample, side), side)
        if name == "stored":
            return thumbnail(flattened(viewed.pixels(sample), 255), side)
        pixels = viewed.companion(name, sample)
        if stored is not None and _is_mask(pixels):
            return masked(stored, pixels)
        return thumbnail(seen(pixels), side)

    companions = [companion.name for companion in viewed.manifest.companions]
    for name in ([] if viewed.raw is None else ["source"]) + ["stored", *companions]:
        try:
            pixels = shown(name)
        except (DatasetError, ImageError) as error:
            yield Picture(name, b"", str(error))
            if name == "stored":
                return
        else:
            yield Picture(name, jpeg_of(pixels))
            stored = pixels if name == "stored" else stored


def seen(pixels: npt.NDArray[Any]) -> Pixels:
    """Convert the pixels of any companion to uint8 (height, width, 3) or (height, width). Alpha is composited on white;
    numbers that are not colours are scaled from smallest to largest. Raises ImageError for other arrays."""
    if pixels.ndim == 1 or pixels.shape[2:] not in ((), (3,), (4,)) or not pixels.size or pixels.dtype.kind == "c":
        raise ImageError(f"an array of {' x '.join(map(str, pixels.shape))} {pixels.dtype}")
    if pixels.dtype == np.uint8 or (pixels.dtype == np.uint16 and pixels.ndim == 3):
        return flattened(pixels, 255)
    numbers = np.nan_to_num(pixels[:, :, :3] if pixels.ndim == 3 else pixels, posinf=0, neginf=0).astype(np.float64)
    low, high = numbers.min(), numbers.max()
    return np.asarray((numbers - low) * (255 / (high - low or 1)), np.uint8)


def _is_mask(values: npt.NDArray[Any]) -> bool:
    is_image = values.ndim == 2 and values.dtype in (np.uint8, np.uint16)
    return is_image and len(np.unique(values)) <= _MOST_CLASS_NUMBERS


def masked(picture: Pixels, mask: npt.NDArray[Any]) -> Pixels:
    """Return `picture` with a colour over each number of `mask`, (height, width), except 0, the background. Their sizes
    may differ."""
    height, width = picture.shape[:2]
    small = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST)
    base = picture if picture.ndim == 3 else np.repeat(picture[:, :, np.newaxis], 3, axis=2)
    colors = _PALETTE[np.bitwise_and(small, 255)]
    blended = cv2.addWeighted(base, 1 - _MASK_SHARE, colors, _MASK_SHARE, 0)
    return np.asarray(np.where((small == 0)[:, :, np.newaxis], base, blended), np.uint8)


# Hues advance by the golden angle, so that the colours of close numbers differ.
_HUES = np.arange(256) * 137.508 % 360 / 2
_TONES = np.stack((_HUES, np.full(256, 190), np.full(256, 245)), axis=1).round().astype(np.uint8)
_PALETTE = np.asarray(cv2.cvtColor(_TONES[np.newaxis], cv2.COLOR_HSV2RGB)[0], np.uint8)


def _texts(viewed: ViewedDataset, row: dict[str, Any], marks: Marks) -> list[tuple[str, str]]:
    """Return the label columns that are not drawn, as text."""
    found = []
    names = [name for name in viewed.label_columns if name not in marks.columns and row[name] not in (None, "", [])]
    for name in names[:_MOST_TEXTS]:
        value = row[name]
        plain = isinstance(value, list) and all(isinstance(one, str | int | float) for one in value)
        text = ", ".join(map(str, value)) if plain else str(value)
        found.append((name, text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "…"))
    return found
