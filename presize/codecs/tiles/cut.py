"""A tile-indexed JPEG -> another JPEG of the part that a crop needs.

It is made of the tiles under the crop, and decodes to the same pixels, bit for bit. Where rows of MCUs are no whole
numbers of tiles, it is as wide as the image, and tiles without detail, of a few bytes, take the place of those beside
the crop.

Pure: bytes in, bytes out, no codec. All functions are thread-safe and read nothing outside `data`.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from presize.codecs.tiles.layout import APP9, MARKERS, TAG, Layout, header_segments, layout_of

_NEAR = 1024  # a header without metadata has about 640 bytes
_CYCLE = np.frombuffer(MARKERS, np.uint8)[1::2].copy()  # the second bytes of markers
_EOI = 0xD9


class Cut(NamedTuple):
    """A JPEG that covers a box, and where (in its own pixels) the box begins.

    Attributes:
        data: the input where the box needs all of it, otherwise a view of new memory.
        top, left: of the box in it.
    """

    data: bytes | memoryview
    top: int
    left: int


def cut(data: bytes | memoryview, top: int, left: int, height: int, width: int) -> Cut | None:
    """The part of `data` that a decoder needs for the box of `height` x `width` pixels at (top, left).

    Decoded at full size, rows top..top+height and columns left..left+width of the result are, bit for bit, the same box
    of the whole image decoded. The same holds at 1/2, 1/4 or 1/8 for a box whose four edges are multiples of 2, 4 or 8
    (or the image's own), all divided by as much.

    Returns:
        None if `data` has to be decoded whole: it has no valid index, or the box is empty or not inside the image.
        `data` itself if the box needs all of it, otherwise fewer bytes. Never raises, whatever the bytes, and trusts
        none of them; only the decoder finds out whether the pixels can be decoded.
    """
    # APP9 lies directly before the scan's header, so that all before it is the same in all images of one
    # size, and parsed once.
    near = bytes(data[:_NEAR])
    at = near.find(TAG) - 4
    if at < 0:
        if header_segments(near) is not None:  # the header ends here, without an index
            return None
        at = bytes(data).find(TAG) - 4
        if at < 0:
            return None
    lengths_at = at + 4 + len(TAG)
    sos = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    if sos + 4 > len(data):
        return None
    scan = sos + 2 + int.from_bytes(data[sos + 2 : sos + 4], "big")
    header = bytes(data[:at]) + data[sos:scan]
    layout = layout_of(header)
    if layout is None:
        return None
    tiles = len(layout.markers) // 2
    if data[at] != 0xFF or data[at + 1] != APP9 or sos - lengths_at != 2 * tiles:
        return None
    bottom, right = top + height, left + width
    if not (0 <= top < bottom <= layout.height and 0 <= left < right <= layout.width):
        return None

    # As native integers: numpy is slow on the stored ones.
    lengths = np.frombuffer(data, ">u2", tiles, lengths_at).astype(np.intp)
    ends = lengths.cumsum()
    if ends[-1] != len(data) - scan:
        return None
    ends += scan
    wanted = _mcus_under(layout, top, left, bottom, right)
    part = (_across_rows if layout.blank else _in_rows)(data, layout, wanted, lengths, ends)
    if part is None:
        return None
    if part.needs_all:
        return Cut(data, top, left)

    # A false index is detected here: its tiles would not end in the expected markers.
    checked = slice(max(part.first - 1, 0), part.stop)
    pairs = np.ndarray(len(data) - 1, ">u2", data, strides=1)
    if pairs[ends[checked] - 2].tobytes() != layout.markers[2 * checked.start : 2 * checked.stop]:
        return None

    y, x = part.area.top * layout.mcu[0], part.area.left * layout.mcu[1]
    size = struct.pack(
        ">HH",
        min(part.area.bottom * layout.mcu[0], layout.height) - y,
        min(part.area.right * layout.mcu[1], layout.width) - x,
    )
    result = bytearray().join((header[: layout.size_at], size, header[layout.size_at + 4 :], *part.pieces))
    marks = part.lengths.cumsum()
    marks += len(header) - 1
    values = np.frombuffer(result, np.uint8)
    values[marks] = _CYCLE[: len(marks)]
    values[-1] = _EOI
    return Cut(memoryview(result), top - y, left - x)


class _Area(NamedTuple):
    """Rows top..bottom and columns left..right of MCUs."""

    top: int
    left: int
    bottom: int
    right: int


def _mcus_under(layout: Layout, top: int, left: int, bottom: int, right: int) -> _Area:
    """The MCUs that a box of pixels needs."""
    (height, width), (margin_y, margin_x) = layout.mcu, layout.margin
    return _Area(
        max(top - margin_y, 0) // height,
        max(left - margin_x, 0) // width,
        min((bottom - 1 + margin_y) // height + 1, layout.shape[0]),
        min((right - 1 + margin_x) // width + 1, layout.shape[1]),
    )


class _Part(NamedTuple):
    """What a cut consists of.

    Attributes:
        needs_all: whether every tile is wanted; the other attributes do not matter then.
        first, stop: the first tile that is wanted, and the one behind the last.
        area: that the tiles fill.
        pieces: the tiles, in order, each with any marker.
        lengths: of each tile in bytes, with its marker.
    """

    needs_all: bool
    first: int
    stop: int
    area: _Area
    pieces: list[bytes | memoryview]
    lengths: npt.NDArray[np.intp]


def _in_rows(
    data: bytes | memoryview, layout: Layout, wanted: _Area, lengths: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> _Part:
    """The part with the MCUs `wanted`, where rows are whole numbers of tiles.

    Args:
        lengths: of all tiles in bytes.
        ends: where they end in `data`.
    """
    k = layout.interval
    in_row, left, right = layout.shape[1] // k, wanted.left // k, -(-wanted.right // k)
    first, stop = wanted.top * in_row + left, (wanted.bottom - 1) * in_row + right
    # The wanted tiles of one row are adjacent.
    row_starts, row_ends = (ends - lengths)[first:stop:in_row], ends[first + right - left - 1 : stop : in_row]
    pieces = [data[start:end] for start, end in zip(row_starts.tolist(), row_ends.tolist(), strict=True)]
    return _Part(
        needs_all=stop - first == len(lengths),
        first=first,
        stop=stop,
        area=wanted._replace(left=left * k, right=right * k),
        pieces=pieces,
        lengths=lengths.reshape(-1, in_row)[wanted.top : wanted.bottom, left:right],
    )


def _across_rows(
    data: bytes | memoryview, layout: Layout, wanted: _Area, lengths: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> _Part | None:
    """As _in_rows, where tiles reach from one row into the next: as wide as the image, with tiles without detail in the
    place of those that are not wanted. None where these are longer, as in no image but one of hostile codes."""
    (rows, columns), k = layout.shape, layout.interval
    period = k // math.gcd(k, columns)  # in the first column of each of so many rows a tile begins
    top, bottom = wanted.top // period * period, min(-(-wanted.bottom // period) * period, rows)
    begin, end = top * columns // k, -(-bottom * columns // k)
    is_wanted = np.zeros(end - begin, bool)
    spans, at = [], begin
    for row in range(wanted.top * columns, wanted.bottom * columns, columns):
        first, stop = max(at, (row + wanted.left) // k), (row + wanted.right - 1) // k + 1
        spans.append((first, stop))
        is_wanted[first - begin : stop - begin] = True
        at = stop
    blank = _blank_tile(layout.blank, k)
    sizes = np.where(is_wanted, lengths[begin:end], len(blank))
    last = b""
    if at < end:
        last = _blank_tile(layout.blank, min(bottom * columns, end * k) - (end - 1) * k)
        sizes[-1] = len(last)
    if sizes.sum() > lengths.sum():
        return None
    pieces: list[bytes | memoryview] = []
    behind = begin
    for first, stop in spans:
        pieces += [blank * (first - behind), data[ends[first] - lengths[first] : ends[stop - 1]]]
        behind = stop
    if last:
        pieces += [blank * (end - at - 1), last]
    return _Part(
        needs_all=bool(is_wanted.sum() == len(lengths)),
        first=(wanted.top * columns + wanted.left) // k,
        stop=at,
        area=_Area(top, 0, bottom, columns),
        pieces=pieces,
        lengths=sizes,
    )


def _blank_tile(mcu: str, count: int) -> bytes:
    """A tile of `count` MCUs of these bits, with a marker."""
    bits = mcu * count
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0") + b"\xff\xd0"
