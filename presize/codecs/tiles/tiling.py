"""A JPEG -> the same in tiles, with their index. Pure: bytes in, bytes out."""

from __future__ import annotations

import struct

from presize.codecs import jpeg_decoder
from presize.codecs.tiles.layout import APP9, DHT, DRI, OF_AC, SOF0, TAG, header_segments, huffman_tables, layout_of


def restart_interval(mcus_in_row: int) -> int:
    """The width of a tile in MCUs, for rows of `mcus_in_row` (at least 1): 4, 5, 3 or 2, the first that divides them
    evenly; 4 if none does, or all of a shorter row.

    >>> [restart_interval(n) for n in (16, 22, 30, 43, 1)]
    [4, 2, 5, 4, 1]
    """
    # Tiles of one MCU could leave a cut 4 pixels wide, where libjpeg interpolates no chroma.
    return next((k for k in (4, 5, 3, 2) if mcus_in_row % k == 0), min(mcus_in_row, 4))


def with_index(data: bytes) -> bytes:
    """`data`, a JPEG, with the lengths of its tiles in a segment before its scan.

    `data` itself where `cut` could not use them: it has several scans, is not baseline, has no restart interval from 2
    MCUs to a row of them, has an index already, is damaged, has more than 32,762 tiles (one segment holds no more), or
    a tile of more than 65,535 bytes; and where tiles reach across rows, but blocks without detail have no code.
    """
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
    return b"".join((data[:sos], _segment(APP9, TAG + lengths), data[sos:]))


def recoded(data: bytes) -> bytes:
    """`data`, a JPEG, in tiles, with their index. Its entropy-coded data is coded again; the coefficients stay as they
    are, so the pixels do, too.

    `data` itself where _jpeg_decoder.c does not take its header, its tables or its codes (it is progressive or damaged,
    say), and where with_index would make none for it. Raises OptionError where that is not compiled.
    """
    segments = header_segments(data)
    frame = None if segments is None else next((begin for marker, begin, _ in segments if marker == SOF0), None)
    if segments is None or frame is None or frame + 12 > len(data) or TAG[:-1] in data[: segments[-1][1]]:
        return data
    width, across = data[frame + 7] << 8 | data[frame + 8], data[frame + 11] >> 4
    if not width or across not in (1, 2):
        return data
    interval = restart_interval(-(-width // (8 * across)))
    header, scan_header = _header_in_tiles(data, segments, interval), data[segments[-1][1] : segments[-1][2]]
    layout = layout_of(header + scan_header)
    if layout is None:
        return data
    tiles = len(layout.markers) // 2
    scan = jpeg_decoder.recode_scan(data, interval, tiles)
    lengths = None if scan is None else jpeg_decoder.tile_lengths(scan, 0, tiles)
    if scan is None or lengths is None:
        return data
    return b"".join((header, _segment(APP9, TAG + lengths), scan_header, scan))


def _header_in_tiles(data: bytes, segments: list[tuple[int, int, int]], interval: int) -> bytes:
    """The header of `data` up to that of its scan, with this restart interval and the tables of the new DC codes."""
    pieces = [data[:2]]
    for marker, begin, end in segments[:-1]:
        if marker == DHT:
            tables = huffman_tables(data[begin + 4 : end])
            pieces += (_segment(DHT, table) for table in tables if table[0] & OF_AC)
        elif marker != DRI:
            pieces.append(data[begin:end])
    _, sos, scan = segments[-1]
    for number in sorted({tables >> 4 for tables in data[sos + 6 : scan - 3 : 2]}):
        pieces.append(_segment(DHT, bytes((number, *_DC_COUNTS[number > 0], *range(12)))))
    pieces.append(_segment(DRI, struct.pack(">H", interval)))
    return b"".join(pieces)


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(payload)) + payload


_DC_COUNTS = (
    (0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0),
    (0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0),
)
"""How many codes of each length there are in T.81's tables K.3 and K.4."""
