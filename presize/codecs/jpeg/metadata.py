"""Removal and insertion of JPEG metadata, without decoding or changing any image data. Pure, thread-safe."""

from __future__ import annotations

from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.jpeg.segments import APP1, APP2, COM, EOI, EXIF, MPF, SOS, XMP, segment
from presize.errors import ImageError

MAX_EXIF, MAX_XMP, MAX_COMMENT = 65_527, 65_502, 65_533
"""Largest payload of one segment in bytes, without its identifier; for XMP, the limit of its specification (part 3)."""


def strip(data: bytes, keep_metadata: bool = False) -> tuple[bytes, int]:
    """Remove the metadata from `data`, and everything after the end marker, such as further frames (MPO) and the video
    of a motion photo. Return the rest and the number of scans.

    Segments that decoders need stay: JFIF (without its thumbnail) and Adobe. With `keep_metadata`, all metadata stays
    except MPF, the index of the removed frames."""
    scans = 0
    view = memoryview(data)  # so that image data is copied only once, by the join
    pieces: list[bytes | memoryview] = [data[:2]]
    position = 2
    while True:
        for marker, begin, end in jpeg_segments.segments(data, position):
            if not (keep_metadata and jpeg_segments.is_metadata(marker)):
                pieces.append(jpeg_segments.needed(data, marker, begin, end))
            elif not (marker == APP2 and data.startswith(MPF, begin + 4, end)):
                pieces.append(data[begin:end])
            scans += marker == SOS
            position = end
        found = jpeg_segments.MARKER_AFTER_SCAN.search(data, position)
        if found is None:
            raise ImageError("truncated JPEG: no end marker")
        pieces.append(view[position : found.start()])
        position = found.start()
        if data[position + 1] == EOI:
            pieces.append(b"\xff\xd9")
            return b"".join(pieces), scans


def bare(data: bytes) -> bytes:
    """Remove the metadata before the first scan; everything after it stays, valid or not."""
    found = list(jpeg_segments.segments(data))
    return b"".join((data[:2], *(jpeg_segments.needed(data, *each) for each in found), data[found[-1][2] :]))


def with_metadata(
    data: bytes, exif: bytes | None = None, xmp: bytes | None = None, comment: bytes | None = None
) -> bytes:
    """Insert these segments after the start of a JPEG and its JFIF segment, if it has one. Values that do not fit into
    one segment (MAX_EXIF, MAX_XMP, MAX_COMMENT) are left out."""
    at = 2
    if data[2:4] == b"\xff\xe0":
        at = 4 + int.from_bytes(data[4:6], "big")
    kinds = ((APP1, EXIF, exif, MAX_EXIF), (APP1, XMP, xmp, MAX_XMP), (COM, b"", comment, MAX_COMMENT))
    added = (segment(marker, name + value) for marker, name, value, most in kinds if value and len(value) <= most)
    return b"".join((data[:at], *added, data[at:]))
