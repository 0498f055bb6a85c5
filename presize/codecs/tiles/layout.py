"""How the scan of a tile-indexed JPEG divides into tiles. Pure: a function of its header."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

TAG = b"presize\0\1"
"""What the payload of the APP9 segment with the index begins with: an identifier, and the version of the format."""

SOF0, DHT, SOS, DRI, APP9 = 0xC0, 0xC4, 0xDA, 0xDD, 0xE9
OF_AC = 0x10
"""The class of Huffman tables for AC coefficients, in the byte before a table."""

_FIXED_BYTES = 2 + len(TAG)  # what the length of the segment includes besides the tiles
_MAX_TILES = (0xFFFF - _FIXED_BYTES) // 2
MARKERS = b"".join(bytes((0xFF, 0xD0 + i)) for i in range(8)) * (_MAX_TILES // 8 + 1)
"""That end the tiles of a scan, except its last."""

# Tables and metadata. Beside one frame and one interval, any other segment before the scan makes a JPEG none of ours.
_HARMLESS = frozenset((DHT, 0xDB, 0xFE, *range(0xE0, 0xF0)))
_CACHED_HEADER_BYTES = 2048


class Layout(NamedTuple):
    """How a scan divides into tiles.

    Attributes:
        size_at: offset of the height in the frame header; the width follows it.
        margin: (rows, columns) of pixels around a box that influence it: 1 where chroma is interpolated.
        mcu: (height, width) of an MCU in pixels.
        shape: (rows of MCUs, MCUs in a row).
        interval: the MCUs of a tile; the last may have fewer.
        markers: that end the tiles, 2 bytes each.
        blank: the bits of an MCU without detail, as "0" and "1"; empty where rows are whole numbers of tiles.
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
    """The layout from `header` (all before the scan but the index); None if it is not one of ours."""
    # Cached but for large headers, whose metadata no two images share.
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


def _blank_mcu(header: bytes, segments: list[tuple[int, int, int]], luma_blocks: int) -> str:
    """The bits of an MCU whose blocks repeat the mean of the last one; "" where a table lacks a code for that."""
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
    """The code of symbol 0, in bits; "" if there is none. It is no difference for DC, and the end of a block for AC."""
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


def header_segments(data: bytes) -> list[tuple[int, int, int]] | None:
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
        if marker == SOS:
            return segments if end <= len(data) else None
    return None


def huffman_tables(payload: bytes) -> Iterator[bytes]:
    """Each table of a DHT segment, beginning with its class and number."""
    while payload:
        nbytes = 17 + sum(payload[1:17])
        yield payload[:nbytes]
        payload = payload[nbytes:]
