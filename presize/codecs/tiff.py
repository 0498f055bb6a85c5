"""TIFF: its directories, the choice of the main image, and one-directory files for decoders. EXIF is a TIFF, and so is
a camera raw file, mostly with a small preview first and the sensor's values in a sub-image. Pure, thread-safe."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from presize.errors import ImageError

SUBFILE, OLD_SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 254, 255, 256, 257, 258, 259, 262
FILL_ORDER, STRIPS, ORIENTATION, SAMPLES, STRIP_ROWS, STRIP_BYTES, PLANAR = 266, 273, 274, 277, 278, 279, 284
PREDICTOR, COLOR_MAP, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 317, 320, 322, 323, 324, 325
SUB_IMAGES, EXTRA_SAMPLES, SAMPLE_FORMAT = 330, 338, 339

SHORT, LONG, LONG8 = 3, 4, 16
_TYPES: Final = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}
"""Types of unsigned integers, with their letters in struct; 13 and 18 are offsets of directories."""
_TYPE_BYTES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 18: 8}

_SINGLE: Final = frozenset((
    WIDTH, HEIGHT, COMPRESSION, PHOTOMETRIC, FILL_ORDER, SAMPLES, STRIP_ROWS, PLANAR, PREDICTOR,
    TILE_WIDTH, TILE_HEIGHT,
))  # fmt: skip
_LISTS: Final = frozenset(
    (BITS, STRIPS, STRIP_BYTES, 292, 293, COLOR_MAP, TILES, TILE_BYTES, EXTRA_SAMPLES, SAMPLE_FORMAT, 347)
) | frozenset(range(512, 533))
_BLOBS: Final = frozenset((700, 34675))  # XMP, ICC profile
_OURS: Final = frozenset((SUBFILE, OLD_SUBFILE, ORIENTATION, SUB_IMAGES))
"""Tags that this module reads and hides from decoders."""

_MAX_FIELDS: Final = 4096
"""The limit of libtiff."""
_MAX_DIRECTORIES: Final = 64
_MAX_PAGES: Final = 8
"""Limit on directories if the first is not a reduced image: a raw file has fewer, a stack may have thousands."""

_NONE: Final[Mapping[int, Sequence[int]]] = MappingProxyType({})

_REDUCED: Final = 1
_ASIDE: Final = _REDUCED | 4 | 8
"""Bits of SUBFILE: a reduced version of another image, a mask, a depth map."""
_RAW: Final = (32803, 34892)
"""Values of PHOTOMETRIC for a camera's sensor: colour filter array, and linear raw."""


class Field(NamedTuple):
    """Field of a directory: the type of its values, their number, and their byte offset in the file."""

    kind: int
    length: int
    at: int


Fields = Mapping[int, Field]


class Directory(NamedTuple):
    """Directory of a TIFF, for one image: its fields by tag, and the offset of the next directory, 0 after the last."""

    fields: Fields
    next: int


class Tiff:
    """Reader of the bytes of a TIFF or BigTIFF."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.order = "<" if data[:2] == b"II" else ">"
        self.big = 43 in data[2:4]
        self.place, self.counter, self.inline = ("Q", "Q", 8) if self.big else ("I", "H", 4)
        self.field = struct.Struct(f"{self.order}HH{self.place}{self.inline}s")
        self.first = self.read(self.place, 8 if self.big else 4)  # offset of the first directory; None if truncated

    def directory(self, at: int) -> Directory | None:
        """Read the directory at an offset, without fields with values outside the file; None if it lies outside."""
        count = self.read(self.counter, at)
        if count is None:
            return None
        begin = at + struct.calcsize(self.order + self.counter)
        size = self.field.size
        fields: dict[int, Field] = {}
        total_bytes = 0
        for entry in range(begin, min(begin + min(count, _MAX_FIELDS) * size, len(self.data) - size + 1), size):
            tag, kind, values, value = self.field.unpack_from(self.data, entry)
            nbytes = values * _TYPE_BYTES.get(kind, 0)
            known = tag in _SINGLE or tag in _LISTS or tag in _OURS or (tag in _BLOBS and kind in (1, 7))
            if not known or tag in fields or nbytes == 0:
                continue
            place = entry + size - self.inline
            if nbytes > self.inline:
                (place,) = struct.unpack(self.order + self.place, value)
                total_bytes += nbytes
                if place + nbytes > len(self.data) or total_bytes > len(self.data) or tag in _SINGLE:
                    continue
            fields[tag] = Field(kind, 1 if tag in _SINGLE else values, place)  # some writers repeat the single value
        return Directory(fields, self.read(self.place, begin + count * size) or 0)

    def image(self, at: int) -> Directory | None:
        """Read the directory at an offset; None if it does not describe an image."""
        found = self.directory(at)
        return found if found is not None and WIDTH in found.fields else None

    def numbers(self, fields: Fields, tag: int) -> tuple[int, ...]:
        """Return the unsigned integers of a field; () if the field is missing or has another type."""
        field = fields.get(tag)
        letter = _TYPES.get(field.kind) if field is not None else None
        if field is None or letter is None:
            return ()
        return struct.unpack_from(f"{self.order}{field.length}{letter}", self.data, field.at)

    def number(self, fields: Fields, tag: int, default: int) -> int:
        return next(iter(self.numbers(fields, tag)), default)

    def alone(self, fields: Fields, changes: Mapping[int, Sequence[int]] = _NONE, appended: bytes = b"") -> bytes:
        """Return a TIFF of one directory with only the fields that decoders need: others make Pillow and libtiff warn.
        `changes` replaces the numbers of fields; an empty sequence removes the field. `appended` begins at the offset
        where this file ends."""
        tail = [appended]
        end = len(self.data) + len(appended)
        entries = []
        for tag in sorted({*fields, *changes} - _OURS):
            if tag in changes:
                numbers = changes[tag]
                if not numbers:
                    continue
                kind = SHORT if max(numbers) < 1 << 16 else LONG if max(numbers) < 1 << 32 else LONG8
                count, at = len(numbers), end
                value = struct.pack(f"{self.order}{count}{_TYPES[kind]}", *numbers)
                if len(value) > self.inline:
                    tail.append(value)
                    end += len(value)
            else:
                kind, count, at = fields[tag]
                value = self.data[at : at + min(count * _TYPE_BYTES[kind], self.inline + 1)]
            if len(value) > self.inline:
                value = struct.pack(self.order + self.place, at)
            entries.append(self.field.pack(tag, kind, count, value))
        header = 8 if self.big else 4
        start = struct.pack(self.order + self.place, end)
        number = struct.pack(self.order + self.counter, len(entries))
        after = bytes(len(start))
        rest = memoryview(self.data)[header + len(start) :]
        return b"".join((self.data[:header], start, rest, *tail, number, *entries, after))

    def read(self, letter: str, at: int) -> int | None:
        """Read a number of the struct type `letter`; None if it lies outside the file."""
        nbytes = struct.calcsize(self.order + letter)
        whole = at + nbytes <= len(self.data)
        return int.from_bytes(self.data[at : at + nbytes], "little" if self.order == "<" else "big") if whole else None


class Found(NamedTuple):
    """Main image of a TIFF: the fields of its directory, its orientation, whether the file has `several` pages, and
    whether the first directory is not this image but a preview."""

    tiff: Tiff
    fields: Fields
    orientation: int
    several: bool
    previewed: bool


def find_image(data: bytes) -> Found:
    """Find the main image of a TIFF: its first page, not a preview or mask of it. Raises ImageError for a raw file.

    If the first directory is marked as reduced, the result is the largest image that is not. Otherwise it is the first
    image or a larger sub-image of it, never a further page, whatever its size."""
    tiff = Tiff(data)
    first = None if tiff.first is None else tiff.directory(tiff.first)
    if first is None:
        raise ImageError("broken TIFF: its directory lies outside the file")
    reduced = _subfile(tiff, first) & _REDUCED != 0
    pages, missing = [first], False
    places = {tiff.first, 0}
    most = _MAX_DIRECTORIES if reduced else _MAX_PAGES
    while pages[-1].next not in places and len(pages) < most and not missing:
        places.add(pages[-1].next)
        page = tiff.image(pages[-1].next)
        missing = page is None
        pages += [page] if page is not None else []
    offsets = tiff.numbers(first.fields, SUB_IMAGES)[:_MAX_DIRECTORIES]
    sub_images = [each for each in map(tiff.image, offsets) if each is not None]
    missing = missing or len(sub_images) < len(offsets)

    def whole(directories: list[Directory]) -> list[Directory]:
        return [each for each in directories if not _subfile(tiff, each) & _ASIDE]

    # The header of a CR2 has 16 bytes; other TIFFs may have pixels after 8 bytes.
    if (data[8:11] == b"CR\2" and tiff.first == 16) or any(
        tiff.number(each.fields, PHOTOMETRIC, 0) in _RAW for each in whole(pages + sub_images)
    ):
        raise ImageError("a camera raw file; develop it and save it as TIFF, PNG or JPEG")
    candidates = whole((pages if reduced else [first]) + sub_images)
    image = max(candidates, key=lambda each: _area(tiff, each), default=first)
    if reduced and missing and image is first:
        raise ImageError("broken TIFF: its image lies outside the file; only its preview is intact")
    alike = pages if reduced and image is first else whole(pages)
    orientation = _orientation(tiff, image) or _orientation(tiff, first) or 1
    return Found(tiff, image.fields, orientation, len(alike) > 1, image is not first)


def _subfile(tiff: Tiff, directory: Directory) -> int:
    """Return the bits of SUBFILE, or the equivalent bits of OLD_SUBFILE."""
    old = {2: _REDUCED}.get(tiff.number(directory.fields, OLD_SUBFILE, 0), 0)
    return tiff.number(directory.fields, SUBFILE, old)


def _area(tiff: Tiff, directory: Directory) -> int:
    return tiff.number(directory.fields, WIDTH, 0) * tiff.number(directory.fields, HEIGHT, 0)


def _orientation(tiff: Tiff, directory: Directory) -> int:
    """Return the orientation, 1 to 8; 0 if it is missing or invalid."""
    field = directory.fields.get(ORIENTATION)
    if field is None or field.kind not in (SHORT, LONG) or field.length != 1:
        return 0
    value = tiff.number(directory.fields, ORIENTATION, 0)
    return value if 1 <= value <= 8 else 0


def orientation_of(exif: bytes) -> int:
    """Return the orientation in EXIF (the bytes of a TIFF file), 1 to 8; 1 if it is missing or invalid."""
    found = _orientation_field(exif)
    if found is None:
        return 1
    order, at = found
    kind, count = struct.unpack_from(order + "HI", exif, at + 2)
    if kind not in (SHORT, LONG) or count != 1:
        return 1
    value: int = struct.unpack_from(order + _TYPES[kind], exif, at + 8)[0]
    return value if 1 <= value <= 8 else 1


def with_orientation_reset(exif: bytes) -> bytes:
    """Set the orientation in `exif` to upright. Its length and all other bytes stay the same."""
    found = _orientation_field(exif)
    if found is None:
        return exif
    order, at = found
    return exif[: at + 2] + struct.pack(order + "HIHH", SHORT, 1, 1, 0) + exif[at + 12 :]


def _orientation_field(exif: bytes) -> tuple[str, int] | None:
    """Return the byte order, as in struct, and the offset of the 12-byte orientation field of IFD0. Reads nothing else,
    since every photograph has EXIF."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 8:
        return None
    (at,) = struct.unpack_from(order + "I", exif, 4)
    if at + 2 > len(exif):
        return None
    (count,) = struct.unpack_from(order + "H", exif, at)
    tag = struct.pack(order + "H", ORIENTATION)
    fields = range(at + 2, min(at + 2 + 12 * count, len(exif) - 11), 12)
    return next(((order, field) for field in fields if exif.startswith(tag, field)), None)
