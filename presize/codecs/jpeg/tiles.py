"""Tile-indexed JPEG: an ordinary baseline JPEG that can be cropped without decoding it. Pure, thread-safe.

Its restart interval divides the scan into independent tiles of k MCUs, and an APP9 segment lists their lengths in bytes
(docs/format.md specifies both). A cut contains the tiles under the crop, and decodes to the same pixels, bit for bit.
If a row of MCUs is not a whole number of tiles, the cut is as wide as the image, and blank tiles of a few bytes replace
the tiles outside the crop."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.segments import (
    APP0,
    APP9,
    APP15,
    COM,
    DHT,
    DQT,
    DRI,
    EOI,
    SOF0,
    Segment,
    header_segments,
    segment,
)

TAG = b"presize\0\1"
"""First bytes of the payload of the APP9 segment with the index: an identifier, and the version of the format."""

OF_AC = 0x10
"""Class of Huffman tables for AC coefficients, in the byte before a table."""

_FIXED_BYTES = 2 + len(TAG)  # the length of the segment without the lengths of the tiles
_MAX_TILES = (0xFFFF - _FIXED_BYTES) // 2
MARKERS = b"".join(bytes((0xFF, 0xD0 + i)) for i in range(8)) * (_MAX_TILES // 8 + 1)
"""Markers at the end of each tile of a scan, except the last."""

# Tables and metadata. Apart from one frame and one interval, no other segment may precede the scan.
_HARMLESS = frozenset((DHT, DQT, COM, *range(APP0, APP15 + 1)))
_CACHED_HEADER_BYTES = 2048


class Layout(NamedTuple):
    """Division of a scan into tiles.

    Attributes:
        height, width: size of the image in pixels.
        size_at: byte offset of the height in the header; the width follows it.
        margin: (rows, columns) of pixels around a box that influence it: 1 where chroma is interpolated.
        mcu: (height, width) of an MCU in pixels.
        shape: (rows of MCUs, MCUs in a row).
        interval: MCUs per tile; the last may have fewer.
        markers: the markers at the ends of the tiles, 2 bytes each.
        blank: the bits of a blank MCU, as "0" and "1"; empty if rows are whole numbers of tiles.
    """

    height: int
    width: int
    size_at: int
    margin: tuple[int, int]
    mcu: tuple[int, int]
    shape: tuple[int, int]
    interval: int
    markers: bytes
    blank: str


def layout_of(header: bytes) -> Layout | None:
    """Parse the layout from `header` (everything before the scan except the index); None without usable tiles."""
    # Large headers are not cached: no two images share their metadata.
    return _cached(header) if len(header) <= _CACHED_HEADER_BYTES else _parsed(header)


def _parsed(header: bytes) -> Layout | None:
    segments = header_segments(header)
    if segments is None or segments[-1][2] != len(header):
        return None
    frame = interval = b""
    size_at = 0
    for marker, begin, end in segments[:-1]:
        if marker == SOF0 and not frame:
            frame, size_at = header[begin + 4 : end], begin + 5
        elif marker == DRI and not interval:
            interval = header[begin + 4 : end]
        elif marker not in _HARMLESS:
            return None
    scan = header[segments[-1][1] + 4 :]
    count = frame[5] if len(frame) >= 9 else 0
    factors, ids = frame[7::3], frame[6::3]
    if count not in (1, 3) or len(frame) != 6 + 3 * count or frame[0] != 8 or len(interval) != 2:
        return None
    # One scan of all components, in order, with complete coefficients, as in baseline.
    if len(scan) != 4 + 2 * count or scan[0] != count or scan[1:-3:2] != ids or scan[-3:] != b"\0\x3f\0":
        return None
    # Chroma at half or full resolution, horizontally and vertically; grey must be 1 x 1.
    across, down = factors[0] >> 4, factors[0] & 15
    if across not in (1, 2) or down not in (1, 2) or factors[1:] not in (b"", b"\x11\x11"):
        return None
    if count == 1 and factors != b"\x11":
        return None
    height, width = struct.unpack_from(">HH", frame, 1)
    columns, rows = -(-width // (8 * across)), -(-height // (8 * down))
    k = int.from_bytes(interval, "big")
    if rows * columns == 0 or not 1 <= k <= columns or (k == 1 and columns > 1):
        return None
    tiles = -(-rows * columns // k)
    if tiles > _MAX_TILES:
        return None
    blank = _blank_mcu(header, segments, across * down) if columns % k else ""
    if columns % k and not blank:
        return None
    markers = MARKERS[: 2 * (tiles - 1)] + b"\xff\xd9"
    margin = int(down == 2), int(across == 2)
    return Layout(height, width, size_at, margin, (8 * down, 8 * across), (rows, columns), k, markers, blank)


_cached = lru_cache(maxsize=1024)(_parsed)


def _blank_mcu(header: bytes, segments: tuple[Segment, ...], luma_blocks: int) -> str:
    """Return the bits of an MCU whose blocks all repeat the preceding DC coefficient; "" if a table lacks a code."""
    tables: dict[int, bytes] = {}
    for marker, begin, end in segments:
        if marker == DHT:
            tables |= {table[0]: table for table in huffman_tables(header[begin + 4 : end])}
    bits = ""
    for component, at in enumerate(header[segments[-1][1] + 6 : -3 : 2]):
        dc, ac = _code_of_0(tables.get(at >> 4)), _code_of_0(tables.get(OF_AC | at & 15))
        if not dc or not ac:
            return ""
        bits += (dc + ac) * (1 if component else luma_blocks)
    return bits


def _code_of_0(table: bytes | None) -> str:
    """Return the code of symbol 0 (no difference for DC, end of block for AC), in bits; "" if it has none."""
    place = -1 if table is None else table.find(0, 17)
    if table is None or place < 0:
        return ""
    code, first = 0, 17
    for length in range(1, 17):
        if place < first + table[length]:
            break
        first += table[length]
        code = (code + table[length]) << 1
    return f"{code + place - first:0{length}b}"


def huffman_tables(payload: bytes) -> Iterator[bytes]:
    """Yield each table of a DHT segment, beginning with its class and number."""
    while payload:
        nbytes = 17 + sum(payload[1:17])
        yield payload[:nbytes]
        payload = payload[nbytes:]


def restart_interval(mcus_in_row: int) -> int:
    """Return the width of a tile in MCUs, for rows of `mcus_in_row` (at least 1): the first of 4, 5, 3 and 2 that
    divides them evenly; otherwise 4, or the whole row if it is shorter."""
    # Tiles of one MCU could make a cut 4 pixels wide, for which libjpeg does not interpolate chroma.
    return next((k for k in (4, 5, 3, 2) if mcus_in_row % k == 0), min(mcus_in_row, 4))


def with_index(data: bytes) -> bytes:
    """Add a segment with the lengths of the tiles before the scan of `data`, a JPEG.

    Return `data` itself if `cut_jpeg` could not use the index: `data` has several scans, is not baseline, has no
    restart interval from 2 MCUs to a whole row, already has an index, is damaged, or has more or longer tiles than an
    index can list; or tiles span rows and the Huffman tables have no code for blank blocks."""
    segments = header_segments(data)
    if segments is None:
        return data
    _, sos, scan = segments[-1]
    layout = layout_of(data[:scan])
    if TAG[:-1] in data[:sos] or layout is None:
        return data
    lengths = jpeg_decoder.tile_lengths(data, scan, len(layout.markers) // 2)
    if lengths is None:
        return data
    return b"".join((data[:sos], segment(APP9, TAG + lengths), data[sos:]))


def recoded(data: bytes) -> bytes:
    """Recode `data`, a JPEG, in tiles with an index. The coefficients stay the same, so no pixel changes.

    Return `data` itself if the C code refuses it, or if with_index would not add an index. Raises OptionError without
    the C code."""
    segments = header_segments(data)
    frame = None if segments is None else next((begin for marker, begin, _ in segments if marker == SOF0), None)
    if segments is None or frame is None or frame + 12 > len(data) or TAG[:-1] in data[: segments[-1][1]]:
        return data
    width, across = data[frame + 7] << 8 | data[frame + 8], data[frame + 11] >> 4
    if not width or across not in (1, 2):
        return data
    interval = restart_interval(-(-width // (8 * across)))
    header = _header_in_tiles(data, segments, interval)
    layout = layout_of(header)
    scan = None if layout is None else jpeg_decoder.recode_scan(data, interval, len(layout.markers) // 2)
    return data if scan is None else with_index(header + scan)


def _header_in_tiles(data: bytes, segments: tuple[Segment, ...], interval: int) -> bytes:
    """Return the header of `data` with this restart interval and the tables of the new DC codes."""
    pieces = [data[:2]]
    for marker, begin, end in segments[:-1]:
        if marker == DHT:
            tables = huffman_tables(data[begin + 4 : end])
            pieces += (segment(DHT, table) for table in tables if table[0] & OF_AC)
        elif marker != DRI:
            pieces.append(data[begin:end])
    _, sos, scan = segments[-1]
    for number in sorted({tables >> 4 for tables in data[sos + 6 : scan - 3 : 2]}):
        pieces.append(segment(DHT, bytes((number, *_DC_COUNTS[number > 0], *range(12)))))
    pieces += segment(DRI, struct.pack(">H", interval)), data[sos:scan]
    return b"".join(pieces)


_DC_COUNTS = (
    (0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0),
    (0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0),
)
"""Number of codes of each length in T.81's tables K.3 and K.4."""

_NEAR = 1024  # a header without metadata has about 640 bytes
_CYCLE = np.frombuffer(MARKERS, np.uint8)[1::2].copy()  # the second bytes of markers


class Cut(NamedTuple):
    """JPEG that covers a box, and the position of the box in it, in pixels. `data` is the input if all of it is needed,
    otherwise a view of new memory."""

    data: bytes | memoryview
    top: int
    left: int


def cut_jpeg(data: bytes | memoryview, top: int, left: int, height: int, width: int) -> Cut | None:
    """Cut `data` to a JPEG with the tiles that a decoder needs for the box of `height` x `width` pixels at (top, left).

    Decoded at full size, the box at `Cut.top` and `Cut.left` equals the same box of the whole decoded image, bit for
    bit. At 1/2, 1/4 or 1/8 this holds, with all numbers divided, if the four edges of the box are multiples of 2, 4 or
    8 (or edges of the image).

    Returns:
        None if `data` must be decoded whole: it has no valid index, or the box is empty or not inside the image.
        `data` itself if the box needs all of it, otherwise fewer bytes. Never raises, and trusts none of the bytes;
        only the decoder detects whether the pixels can be decoded.
    """
    # APP9 lies directly before the scan's header, so everything before it is the same in all images of one size, and
    # parsed only once.
    near = bytes(data[:_NEAR])
    at = near.find(TAG) - 4
    if at < 0:
        if header_segments(near) is not None:  # the header is complete and has no index
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

    # Native integers: NumPy is slow with big-endian ones.
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

    # A wrong index is detected here: its tiles do not end in the expected markers.
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
    values[-1] = EOI
    return Cut(memoryview(result), top - y, left - x)


class _Area(NamedTuple):
    """Rows top..bottom and columns left..right of MCUs."""

    top: int
    left: int
    bottom: int
    right: int


def _mcus_under(layout: Layout, top: int, left: int, bottom: int, right: int) -> _Area:
    """Return the MCUs that a box of pixels needs."""
    (height, width), (margin_y, margin_x) = layout.mcu, layout.margin
    return _Area(
        max(top - margin_y, 0) // height,
        max(left - margin_x, 0) // width,
        min((bottom - 1 + margin_y) // height + 1, layout.shape[0]),
        min((right - 1 + margin_x) // width + 1, layout.shape[1]),
    )


class _Part(NamedTuple):
    """Tiles of a cut: whether it needs every tile (then the rest does not matter), the first and the end of the wanted
    tiles, the area that its tiles fill, and these in order, with their lengths including a marker."""

    needs_all: bool
    first: int
    stop: int
    area: _Area
    pieces: list[bytes | memoryview]
    lengths: npt.NDArray[np.intp]


def _in_rows(
    data: bytes | memoryview, layout: Layout, wanted: _Area, lengths: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> _Part:
    """Return the part with the MCUs `wanted`, for rows of whole tiles, from the lengths and ends of all tiles."""
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
    """Cut like _in_rows if tiles extend from one row into the next: the part is as wide as the image, with blank tiles
    in place of unwanted ones. None if the blank tiles are longer, which only malicious Huffman codes cause."""
    (rows, columns), k = layout.shape, layout.interval
    period = k // math.gcd(k, columns)  # every so many rows, a tile begins in the first column
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
    """Return a tile of `count` MCUs of these bits, with a marker."""
    bits = mcu * count
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0") + b"\xff\xd0"
