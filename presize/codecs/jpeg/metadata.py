"""A JPEG's metadata, removed or inserted. Pure: no pixel is decoded, and no byte of image data changes. Thread-safe."""

from __future__ import annotations

import struct

from presize.codecs.jpeg.segments import (
    APP0,
    APP1,
    APP2,
    APP14,
    COM,
    EOI,
    EXIF,
    MARKER_AFTER_SCAN,
    MPF,
    SOS,
    XMP,
    is_adobe,
    is_jfif,
    segments,
)
from presize.errors import ImageError

MAX_EXIF = 65_527
"""The most EXIF bytes that fit into one segment beside their identifier."""


MAX_XMP = 65_502
"""The most XMP bytes in one segment, as the XMP specification (part 3) has it."""


MAX_COMMENT = 65_533
"""The most bytes in one comment segment."""


def strip(data: bytes, keep_metadata: bool = False) -> bytes:
    """`data` without its metadata, up to the end of its image; compressed pixels are unchanged.

    What decoders need stays: a JFIF segment (less its thumbnail) and an Adobe segment. Everything after the end marker
    is removed: further frames (MPO), the video of a motion photo. With `keep_metadata` all metadata stays but MPF, an
    index of the frames that are removed.
    """
    return strip_and_count(data, keep_metadata)[0]


def strip_and_count(data: bytes, keep_metadata: bool) -> tuple[bytes, int]:
    """What strip gives, and the number of its scans."""
    scans = 0
    view = memoryview(data)  # an image is copied once, when all is joined
    pieces: list[bytes | memoryview] = [data[:2]]
    position = 2
    while True:
        for marker, begin, end in segments(data, position):
            if APP0 <= marker <= 0xEF or marker == COM:
                pieces.append(_kept_metadata(data, marker, begin, end, keep_metadata))
            else:
                pieces.append(data[begin:end])
            scans += marker == SOS
            position = end
        found = MARKER_AFTER_SCAN.search(data, position)
        if found is None:
            raise ImageError("truncated JPEG: no end marker")
        pieces.append(view[position : found.start()])
        position = found.start()
        if data[position + 1] == EOI:
            pieces.append(b"\xff\xd9")
            return b"".join(pieces), scans


def bare(data: bytes) -> bytes:
    """`data` without the metadata before its first scan, for decoders that fail on it.

    Like strip, but all that follows the first scan's header stays, valid or not.
    """
    pieces = [data[:2]]
    position = 2
    for marker, begin, end in segments(data):
        if APP0 <= marker <= 0xEF or marker == COM:
            pieces.append(_kept_metadata(data, marker, begin, end, keep_metadata=False))
        else:
            pieces.append(data[begin:end])
        position = end
    return b"".join((*pieces, data[position:]))


def with_metadata(
    data: bytes, exif: bytes | None = None, xmp: bytes | None = None, comment: bytes | None = None
) -> bytes:
    """`data`, a JPEG, with these segments inserted after its start (and its JFIF segment, if it has one).

    Those that do not fit into a segment are left out: more than MAX_EXIF, MAX_XMP, MAX_COMMENT bytes.
    """
    at = 2
    if data[2:4] == b"\xff\xe0":
        at = 4 + int.from_bytes(data[4:6], "big")
    pieces = [data[:at]]
    if exif and len(exif) <= MAX_EXIF:
        pieces.append(_segment(APP1, EXIF + exif))
    if xmp and len(xmp) <= MAX_XMP:
        pieces.append(_segment(APP1, XMP + xmp))
    if comment and len(comment) <= MAX_COMMENT:
        pieces.append(_segment(COM, comment))
    pieces.append(data[at:])
    return b"".join(pieces)


def _kept_metadata(data: bytes, marker: int, begin: int, end: int, keep_metadata: bool) -> bytes:
    """What strip keeps of one APPn or comment segment."""
    if keep_metadata:
        is_index = marker == APP2 and data.startswith(MPF, begin + 4, end)
        return b"" if is_index else data[begin:end]
    if marker == APP0 and is_jfif(data, begin, end):
        return _segment(APP0, data[begin + 4 : begin + 16] + b"\0\0")
    if marker == APP14 and is_adobe(data, begin, end):
        return _segment(APP14, data[begin + 4 : begin + 16])
    return b""


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(payload)) + payload
