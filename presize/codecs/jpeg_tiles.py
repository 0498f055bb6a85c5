"""Tile-indexed JPEG: an ordinary baseline JPEG that can be cut to a crop without decoding it.

Its restart interval divides it into independent tiles, k MCUs wide and one MCU high, and an APP9 segment lists their
lengths in bytes (docs/format.md specifies both). A crop of it is another ordinary JPEG, made of the tiles under the
crop, and decodes to the same pixels, bit for bit.

Pure: bytes in, bytes out, no codec. All functions are thread-safe and read nothing outside `data`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from presize.codecs import jpeg_decoder

IDENTIFIER = b"presize\0"
"""What the payload of the APP9 segment begins with, before a version byte."""

VERSION = 1

_TAG = IDENTIFIER + bytes((VERSION,))
_FIXED_BYTES = 2 + len(_TAG)  # what the length of the segment includes besides the tiles
_MAX_TILES = (0xFFFF - _FIXED_BYTES) // 2

_RESTARTS = b"".join(bytes((0xFF, 0xD0 + i)) for i in range(8)) * (_MAX_TILES // 8 + 1)
_CYCLE = np.frombuffer(_RESTARTS, np.uint8)[1::2].copy()  # their second bytes
_SOF0, _DHT, _EOI, _SOS, _DRI, _APP9 = 0xC0, 0xC4, 0xD9, 0xDA, 0xDD, 0xE9
# Tables and metadata. Beside one frame and one interval, any other segment before the scan makes a JPEG none of ours.
_HARMLESS = frozenset((_DHT, 0xDB, 0xFE, *range(0xE0, 0xF0)))

_NEAR = 1024  # a header without metadata has about 640 bytes
_CACHED_HEADER_BYTES = 2048


class Cut(NamedTuple):
    """A JPEG that covers a box, and where (in its own pixels) the box begins.

    Attributes:
        data: the input where the box needs all of it, otherwise a view of new memory.
        top, left: of the box in it.
    """

    data: bytes | memoryview
    top: int
    left: int


class _Layout(NamedTuple):
    """How a scan divides into tiles; a pure function of the header.

    Attributes:
        size_at: offset of the height in the frame header; the width follows it.
        margin: (rows, columns) of pixels around a box that influence it: 1 where chroma is interpolated.
        shape: (rows of tiles, tiles in a row).
        markers: that end the tiles, 2 bytes each.
    """

    height: int
    width: int
    tile_height: int
    tile_width: int
    margin: tuple[int, int]
    size_at: int
    shape: tuple[int, int]
    markers: bytes


def restart_interval(mcus_in_row: int) -> int:
    """The width of a tile in MCUs: the divisor of `mcus_in_row` (at least 1) from 2 up that is nearest
    to 4, the larger on a tie. For a prime number it is the whole row.

    >>> [restart_interval(n) for n in (16, 22, 30, 43, 1)]
    [4, 2, 5, 43, 1]
    """
    # Tiles of one MCU could leave a cut 4 pixels wide, where libjpeg interpolates no chroma.
    divisors = [k for k in range(2, mcus_in_row + 1) if mcus_in_row % k == 0]
    return min(divisors, key=lambda k: (abs(k - 4), -k), default=1)


def with_index(data: bytes) -> bytes:
    """`data`, a JPEG, with the lengths of its tiles in a segment before its scan.

    `data` itself where `cut` could not use them: it has several scans, is not baseline, has no restart interval that
    divides its rows of MCUs evenly, has an index already, is damaged, has more than 32,762 tiles (one segment holds no
    more), or a tile of more than 65,535 bytes.
    """
    segments = _segments(data)
    if segments is None:
        return data
    _, sos, scan = segments[-1]
    layout = _layout(data[:scan])
    if IDENTIFIER in data[:sos] or layout is None:
        return data
    lengths = jpeg_decoder.tile_lengths(data, scan, len(layout.markers) // 2)
    if lengths is None:
        return data
    return b"".join((data[:sos], _segment(_APP9, _TAG + lengths), data[sos:]))


def recoded(data: bytes) -> bytes:
    """`data`, a JPEG, in tiles, with their index. Its entropy-coded data is coded again; the coefficients stay as they
    are, so the pixels do, too.

    `data` itself where _jpeg_decoder.c does not take it (it is progressive or damaged, say), and where an index has no
    room for its tiles. Raises OptionError where that is not compiled.
    """
    segments = _segments(data)
    frame = None if segments is None else next((begin for marker, begin, _ in segments if marker == _SOF0), None)
    if segments is None or frame is None or frame + 12 > len(data):
        return data
    width, across = data[frame + 7] << 8 | data[frame + 8], data[frame + 11] >> 4
    if not width or across not in (1, 2):
        return data
    interval = restart_interval(-(-width // (8 * across)))
    header, scan_header = _header_in_tiles(data, segments, interval), data[segments[-1][1] : segments[-1][2]]
    layout = _layout(header + scan_header)
    if layout is None:
        return data
    tiles = len(layout.markers) // 2
    scan = jpeg_decoder.recode_scan(data, interval, tiles)
    lengths = None if scan is None else jpeg_decoder.tile_lengths(scan, 0, tiles)
    if scan is None or lengths is None:
        return data
    return b"".join((header, _segment(_APP9, _TAG + lengths), scan_header, scan))


def _header_in_tiles(data: bytes, segments: list[tuple[int, int, int]], interval: int) -> bytes:
    """The header of `data` up to that of its scan, with this restart interval and the tables of the new DC codes."""
    pieces = [data[:2]]
    for marker, begin, end in segments[:-1]:
        if marker == _DHT:
            tables = _huffman_tables(data[begin + 4 : end])
            pieces += (_segment(_DHT, table) for table in tables if table[0] & _OF_AC)
        elif marker != _DRI:
            pieces.append(data[begin:end])
    _, sos, scan = segments[-1]
    for number in sorted({tables >> 4 for tables in data[sos + 6 : scan - 3 : 2]}):
        pieces.append(_segment(_DHT, bytes((number, *_DC_COUNTS[number > 0], *range(12)))))
    pieces.append(_segment(_DRI, struct.pack(">H", interval)))
    return b"".join(pieces)


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(payload)) + payload


_OF_AC = 0x10
_DC_COUNTS = (
    (0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0),
    (0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0),
)
"""How many codes of each length there are in T.81's tables K.3 and K.4."""


def _huffman_tables(payload: bytes) -> Iterator[bytes]:
    """Each table of a DHT segment, beginning with its class and number."""
    while payload:
        nbytes = 17 + sum(payload[1:17])
        yield payload[:nbytes]
        payload = payload[nbytes:]


def cut(data: bytes | memoryview, top: int, left: int, height: int, width: int) -> Cut | None:
    """The part of `data` that a decoder needs for the box of `height` x `width` pixels at (top, left).

    Decoded at full size, rows top..top+height and columns left..left+width of the result are, bit for bit, the same box
    of the whole image decoded. The same holds at 1/2, 1/4 or 1/8 for a box whose four edges are multiples of 2, 4 or 8
    (or the image's own), all divided by as much.

    Returns:
        None if `data` has to be decoded whole: it has no valid index, or the box is empty or not inside the image.
        `data` itself if the box needs all of it. Never raises, whatever the bytes, and trusts none of them; only the
        decoder finds out whether the pixels can be decoded.
    """
    # APP9 lies directly before the scan's header, so that all before it is the same in all images of one
    # size, and parsed once.
    near = bytes(data[:_NEAR])
    at = near.find(_TAG) - 4
    if at < 0:
        if _segments(near) is not None:  # the header ends here, without an index
            return None
        at = bytes(data).find(_TAG) - 4
        if at < 0:
            return None
    lengths_at = at + 4 + len(_TAG)
    sos = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    if sos + 4 > len(data):
        return None
    scan = sos + 2 + int.from_bytes(data[sos + 2 : sos + 4], "big")
    header = bytes(data[:at]) + data[sos:scan]
    layout = _layout(header)
    if layout is None:
        return None
    tiles = len(layout.markers) // 2
    if data[at] != 0xFF or data[at + 1] != _APP9 or sos - lengths_at != 2 * tiles:
        return None
    bottom, right = top + height, left + width
    if not (0 <= top < bottom <= layout.height and 0 <= left < right <= layout.width):
        return None

    # As native integers: numpy is slow on the stored ones.
    lengths = np.frombuffer(data, ">u2", tiles, lengths_at).astype(np.intp)
    ends = lengths.cumsum()
    if ends[-1] != len(data) - scan:
        return None
    row_count, column_count = layout.shape
    margin_y, margin_x = layout.margin
    first_row = max(top - margin_y, 0) // layout.tile_height
    first_column = max(left - margin_x, 0) // layout.tile_width
    last_row = min((bottom - 1 + margin_y) // layout.tile_height, row_count - 1)
    last_column = min((right - 1 + margin_x) // layout.tile_width, column_count - 1)
    if first_row == first_column == 0 and last_row == row_count - 1 and last_column == column_count - 1:
        return Cut(data, top, left)
    y, x = first_row * layout.tile_height, first_column * layout.tile_width
    size = struct.pack(
        ">HH",
        min((last_row + 1) * layout.tile_height, layout.height) - y,
        min((last_column + 1) * layout.tile_width, layout.width) - x,
    )

    # A false index is detected here: its tiles would not end in the expected markers.
    first, last = first_row * column_count + first_column, last_row * column_count + last_column
    ends += scan
    checked = slice(max(first - 1, 0), last + 1)
    pairs = np.ndarray(len(data) - 1, ">u2", data, strides=1)
    if pairs[ends[checked] - 2].tobytes() != layout.markers[2 * checked.start : 2 * checked.stop]:
        return None

    # The wanted tiles of one row are adjacent, each with the marker that ends it.
    row_ends = ends[first + last_column - first_column : last + 1 : column_count]
    row_starts = (ends - lengths)[first : last + 1 : column_count]
    if first_column == 0 and last_column == column_count - 1:
        row_starts, row_ends = row_starts[:1], row_ends[-1:]
    runs = [data[start:end] for start, end in zip(row_starts.tolist(), row_ends.tolist(), strict=True)]
    result = bytearray().join((header[: layout.size_at], size, header[layout.size_at + 4 :], *runs))
    wanted = lengths.reshape(layout.shape)[first_row : last_row + 1, first_column : last_column + 1]
    marks = wanted.cumsum()
    marks += len(header) - 1
    values = np.frombuffer(result, np.uint8)
    values[marks] = _CYCLE[: len(marks)]
    values[-1] = _EOI
    return Cut(memoryview(result), top - y, left - x)


def _layout(header: bytes) -> _Layout | None:
    """_parsed, cached but for large headers, whose metadata no two images share."""
    return _cached(header) if len(header) <= _CACHED_HEADER_BYTES else _parsed(header)


def _parsed(header: bytes) -> _Layout | None:
    """The layout from `header` (all before the scan but the index), or None if it is not one of ours."""
    segments = _segments(header)
    if segments is None or segments[-1][2] != len(header):
        return None
    frame = interval = b""
    size_at = 0
    for marker, begin, end in segments[:-1]:
        if marker == _SOF0 and not frame:
            frame, size_at = header[begin + 4 : end], begin + 5
        elif marker == _DRI and not interval:
            interval = header[begin + 4 : end]
        elif marker not in _HARMLESS:
            return None
    scan = header[segments[-1][1] + 4 :]
    count = frame[5] if len(frame) >= 9 else 0
    factors, ids = frame[7::3], frame[6::3]
    if count not in (1, 3) or len(frame) != 6 + 3 * count or frame[0] != 8 or len(interval) != 2:
        return None
    # One scan of all components, in order, and whole coefficients: what baseline is.
    if len(scan) != 4 + 2 * count or scan[0] != count or scan[1:-3:2] != ids or scan[-3:] != b"\0\x3f\0":
        return None
    # Chroma at half the resolution or the same, across and down; grey has no choice.
    across, down = factors[0] >> 4, factors[0] & 15
    if across not in (1, 2) or down not in (1, 2) or factors[1:] not in (b"", b"\x11\x11"):
        return None
    if count == 1 and factors != b"\x11":
        return None
    height, width = struct.unpack_from(">HH", frame, 1)
    mcus_in_row, mcu_rows = -(-width // (8 * across)), -(-height // (8 * down))
    k = int.from_bytes(interval, "big")
    if mcus_in_row * mcu_rows == 0 or k == 0 or mcus_in_row % k or (k == 1 and mcus_in_row > 1):
        return None
    shape = mcu_rows, mcus_in_row // k
    if shape[0] * shape[1] > _MAX_TILES:
        return None
    markers = _RESTARTS[: 2 * (shape[0] * shape[1] - 1)] + b"\xff\xd9"
    margin = int(down == 2), int(across == 2)
    return _Layout(height, width, 8 * down, 8 * across * k, margin, size_at, shape, markers)


_cached = lru_cache(maxsize=1024)(_parsed)


def _segments(data: bytes) -> list[tuple[int, int, int]] | None:
    """(marker, begin, end) of each segment of `data` up to its first scan's header, or None without one.

    No bytes may lie between them, unlike in jpeg_segments.parse.
    """
    if data[:2] != b"\xff\xd8":
        return None
    segments = []
    end = 2
    while end + 4 <= len(data) and data[end] == 0xFF:
        begin, marker = end, data[end + 1]
        # Behind a length below 2 there is no marker, since neither of its own bytes is FF.
        end += 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
        segments.append((marker, begin, end))
        if marker == _SOS:
            return segments if end <= len(data) else None
    return None
