"""A JPEG's metadata, removed or inserted. Pure: no pixel is decoded, and no byte of image data changes. Thread-safe."""

from __future__ import annotations

from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.jpeg.segments import APP1, APP2, COM, EOI, EXIF, MPF, SOS, XMP, segment
from presize.errors import ImageError

MAX_EXIF, MAX_XMP, MAX_COMMENT = 65_527, 65_502, 65_533
"""The most bytes in one segment beside their identifier; of XMP, as its specification (part 3) has it."""


def strip(data: bytes, keep_metadata: bool = False) -> tuple[bytes, int]:
    """`data` without its metadata, up to the end of its image, and the number of its scans.

    What decoders need stays: a JFIF segment (less its thumbnail) and an Adobe segment. Everything after the end marker
    is removed: further frames (MPO), the video of a motion photo. With `keep_metadata` all metadata stays but MPF, an
    index of the frames that are removed.
    """
    scans = 0
    view = memoryview(data)  # an image is copied once, when all is joined
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
    """`data` without the metadata before its first scan; all that follows stays, valid or not."""
    found = list(jpeg_segments.segments(data))
    return b"".join((data[:2], *(jpeg_segments.needed(data, *each) for each in found), data[found[-1][2] :]))


def with_metadata(
    data: bytes, exif: bytes | None = None, xmp: bytes | None = None, comment: bytes | None = None
) -> bytes:
    """`data`, a JPEG, with these segments inserted after its start (and its JFIF segment, if it has one), but for those
    that do not fit into one: of more than MAX_EXIF, MAX_XMP, MAX_COMMENT bytes."""
    at = 2
    if data[2:4] == b"\xff\xe0":
        at = 4 + int.from_bytes(data[4:6], "big")
    kinds = ((APP1, EXIF, exif, MAX_EXIF), (APP1, XMP, xmp, MAX_XMP), (COM, b"", comment, MAX_COMMENT))
    added = (segment(marker, name + value) for marker, name, value, most in kinds if value and len(value) <= most)
    return b"".join((data[:at], *added, data[at:]))
