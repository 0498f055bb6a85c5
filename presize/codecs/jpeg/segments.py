"""JPEG segments: parsing of the header, counting of scans. Pure, thread-safe.

Nothing outside `data` is read. Bytes that are not a valid JPEG raise ImageError with a one-line reason."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

import simplejpeg

from presize.codecs.source_facts import Colors, Facts, Process
from presize.codecs.tiff import orientation_of
from presize.errors import ImageError
from presize.options import Size

Segment = tuple[int, int, int]
"""(marker, begin, end): byte offsets; `begin` is the offset of the marker, and the payload is at begin + 4."""
Colorspace = Literal["gray", "YCbCr", "RGB", "CMYK", "YCCK", "other"]

JFIF = b"JFIF\0"
ADOBE = b"Adobe"
EXIF = b"Exif\0\0"
XMP = b"http://ns.adobe.com/xap/1.0/\0"
ICC = b"ICC_PROFILE\0"
MPF = b"MPF\0"

SOF0, DHT, SOI, EOI, SOS, DQT, DRI = 0xC0, 0xC4, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD
APP0, APP1, APP2, APP9, APP14, APP15, COM = 0xE0, 0xE1, 0xE2, 0xE9, 0xEE, 0xEF, 0xFE
NO_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))  # TEM and the restart markers have no payload
FRAMES: dict[int, Process] = {
    0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive", 0xC3: "lossless",
    0xC9: "arithmetic", 0xCA: "arithmetic", 0xCB: "arithmetic", 0xC5: "hierarchical", 0xC6: "hierarchical",
    0xC7: "hierarchical", 0xCD: "hierarchical", 0xCE: "hierarchical", 0xCF: "hierarchical",
}  # fmt: skip
_MARKER = re.compile(rb"\xff[^\x00\xff]")
MARKER_AFTER_SCAN = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")

_SCAN = re.compile(rb"\xff\xda")
MAX_SCANS = 100


class JpegHeader(NamedTuple):
    """Contents of a JPEG header.

    Attributes:
        height, width: coded size in pixels, before applying `orientation`; each from 1 to 65535.
        precision: bits per sample, usually 8.
        sampling: (horizontal, vertical) sampling factors of each component, each from 1 to 4.
        colorspace: colour space of the components, by libjpeg's rules (JFIF and Adobe segments, component ids).
        orientation: EXIF orientation from 1 (upright) to 8; 1 if missing or invalid.
        exif: the bytes of a TIFF file.
        icc: the whole profile; None if a part of it is missing.
        quality: the IJG quality, 1 to 100, whose luma table is nearest to the table of the first component; 0 if that
            is missing.
        several: whether the file has an index of further pictures (MPO).
        segments: all segments to the end of the first scan's header (see segments).
        bare: whether these include no metadata, so that jpeg_metadata.bare removes nothing.
    """

    height: int
    width: int
    precision: int
    process: Process
    colorspace: Colorspace
    sampling: tuple[tuple[int, int], ...]
    orientation: int
    icc: bytes | None
    exif: bytes | None
    xmp: bytes | None
    comment: bytes | None
    quality: int
    several: bool
    segments: tuple[Segment, ...]
    bare: bool

    @property
    def upright_size(self) -> Size:
        """Return the size after applying `orientation`."""
        return Size(self.width, self.height) if self.orientation >= 5 else Size(self.height, self.width)

    @property
    def facts(self) -> Facts:
        colors: Colors = "RGB"
        if self.colorspace == "gray":
            colors = "grey"
        elif self.colorspace in ("CMYK", "YCCK"):
            colors = "CMYK"
        deep = self.precision > 8
        return Facts("jpeg", colors, self.orientation, self.process, self.quality, deep=deep, several=self.several)


def parse(data: bytes) -> JpegHeader:
    """Parse the header of the JPEG in `data`, up to its first scan."""
    frame = data.find(_BASELINE, 2, _USUAL_BYTES)
    scan = data.find(_SCAN_MARKER, frame + 1, _USUAL_BYTES + 2)
    if 0 < frame <= scan - 9:
        known = _known(data[: frame + 5], data[frame + 9 : scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")])
        height, width = struct.unpack_from(">HH", data, frame + 5)
        if known is not None and height and width:
            return JpegHeader(height, width, *known[2:])
    return parse_afresh(data)


_BASELINE, _SCAN_MARKER = b"\xff\xc0", b"\xff\xda"
_USUAL_BYTES = 2048
"""More than a usual header without metadata has before its first scan."""


@functools.lru_cache(64)  # images from one encoder have few distinct headers
def _known(before: bytes, behind: bytes) -> JpegHeader | None:
    """Return the header of all JPEGs that begin with `before`, a height, a width and `behind`, with a size of 1 x 1.
    None if `behind` is not exactly the bytes between the size and the end of the first scan's header."""
    try:
        header = parse_afresh(before + b"\0\1\0\1" + behind)
    except ImageError:
        return None
    has_frame = any(begin == len(before) - 5 for marker, begin, _ in header.segments if marker in FRAMES)
    return header if has_frame and header.segments[-1][2] == len(before) + 4 + len(behind) else None


def parse_afresh(data: bytes) -> JpegHeader:
    frame: bytes | None = None
    process: Process = "baseline"
    jfif = several = False
    adobe: int | None = None
    tables: list[bytes] = []
    exif = xmp = comment = None
    icc_parts: list[bytes] = []
    found = tuple(segments(data))
    bare, position = True, 2
    for marker, begin, end in found:
        bare = bare and begin == position and needed(data, marker, begin, end) == data[begin:end]
        position = end
        if marker in FRAMES:
            if frame is not None:
                raise ImageError("broken JPEG: two frame headers")
            frame, process = data[begin + 4 : end], FRAMES[marker]
        elif marker == APP1:
            if exif is None and data.startswith(EXIF, begin + 4, end):
                exif = data[begin + 10 : end]
            elif xmp is None and data.startswith(XMP, begin + 4, end):
                xmp = data[begin + 4 + len(XMP) : end]
        elif marker == DQT:
            tables.append(data[begin + 4 : end])
        elif marker == APP2:
            if data.startswith(ICC, begin + 4, end):
                icc_parts.append(data[begin + 4 + len(ICC) : end])
            else:
                several = several or data.startswith(MPF, begin + 4, end)
        elif marker == APP0:
            jfif = jfif or is_jfif(data, begin, end)
        elif marker == APP14 and is_adobe(data, begin, end):
            adobe = data[begin + 15]
        elif marker == COM and comment is None:
            comment = data[begin + 4 : end]
    if frame is None:
        raise ImageError("broken JPEG: a scan without a frame header")
    precision, height, width, ids, sampling = _frame(frame)
    return JpegHeader(
        height,
        width,
        precision,
        process,
        _colorspace(ids, jfif, adobe),
        sampling,
        orientation_of(exif) if exif is not None else 1,
        _joined(icc_parts) if icc_parts else None,
        exif,
        xmp,
        comment,
        _quality(b"".join(tables), frame[8]),
        several,
        found,
        bare,
    )


def check_scans(data: bytes | memoryview, pixels: int, max_pixels: int) -> None:
    """Raise ImageError if a JPEG would take a decoder unreasonably long: if it has more than MAX_SCANS scans, or if
    scans times pixels exceed ten times `max_pixels`.

    Each scan is a pass over all `pixels` of the image, however few bytes it has: 400 scans in 44 kB take seconds.
    libjpeg's own progressive script has 10 scans. Searching 1 MB takes about 1 ms."""
    scans = len(_SCAN.findall(data))
    if scans > MAX_SCANS or scans * pixels > 10 * max_pixels:  # count again without a thumbnail in the metadata
        scans = len(_SCAN.findall(data, parse(bytes(data)).segments[-1][1]))
    if scans > MAX_SCANS or scans * pixels > 10 * max_pixels:
        raise ImageError(
            f"{scans} scans of {pixels} pixels each, more than allowed (at most {MAX_SCANS} scans, and "
            f"{10 * max_pixels} pixels in all)"
        )


def coded_size(data: bytes | memoryview) -> tuple[int, int, bool]:
    """Return the coded height and width, and whether the JPEG is grey, faster than parse. Raises ValueError or
    ImageError if the header is invalid."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except KeyError:  # simplejpeg has no name for 4:4:1
        header = parse(bytes(data))
        return header.height, header.width, header.colorspace == "gray"
    return height, width, colorspace == "Gray"


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(payload)) + payload


def header_segments(data: bytes) -> tuple[Segment, ...] | None:
    """Return each segment up to the first scan's header, or None if there are other bytes between segments."""
    scan = data.find(_SCAN_MARKER, 2, _USUAL_BYTES)
    end = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    return (_segments_of(data[:end]) if scan > 0 else None) or _segments_of.__wrapped__(data)


@functools.lru_cache(64)  # like _known
def _segments_of(data: bytes) -> tuple[Segment, ...] | None:
    try:
        found = tuple(segments(data))
    except ImageError:
        return None
    ends = [2, *(end for _, _, end in found)]
    return found if all(begin == end for (_, begin, _), end in zip(found, ends, strict=False)) else None


def segments(data: bytes, position: int = 2) -> Iterator[Segment]:
    """Yield each segment from `position`, up to and including the next scan's header or, after the first scan, up to
    the end marker. Like libjpeg, skip stray bytes between segments."""
    if position == 2 and data[:2] != b"\xff\xd8":
        raise ImageError("not a JPEG: it does not begin with FF D8")
    size = len(data)
    first = position == 2
    while True:
        # The pattern is slower than these two checks, which suffice for ordinary files.
        if position + 4 <= size and data[position] == 0xFF and 0xC0 <= data[position + 1] <= 0xFE:
            begin = position
        else:
            found = _MARKER.search(data, position)
            if found is None:
                raise ImageError("truncated JPEG: it ends within its header")
            begin = found.start()
        marker = data[begin + 1]
        if marker in NO_LENGTH:
            position = begin + 2
            continue
        if marker == EOI:
            if first:
                raise ImageError("broken JPEG: no image data")
            return
        if marker == SOI:
            raise ImageError("broken JPEG: a second start marker in its header")
        if begin + 4 > size:
            raise ImageError("truncated JPEG: it ends within its header")
        length = data[begin + 2] << 8 | data[begin + 3]
        position = begin + 2 + length
        if length < 2:
            raise ImageError(f"broken JPEG: a segment (FF {marker:02X}) of length {length}")
        if position > size:
            raise ImageError(f"truncated JPEG: it ends within a segment (FF {marker:02X})")
        yield marker, begin, position
        if marker == SOS:
            return


def _frame(payload: bytes) -> tuple[int, int, int, bytes, tuple[tuple[int, int], ...]]:
    """Parse a frame header into precision, height, width, component ids and sampling factors."""
    if len(payload) < 9 or len(payload) != 6 + 3 * payload[5]:
        raise ImageError("broken JPEG: a frame header of the wrong length")
    precision, height, width = struct.unpack_from(">BHH", payload)
    if height == 0:
        raise ImageError("the header lacks the height of the image; such JPEGs are not supported")
    if width == 0:
        raise ImageError("broken JPEG: its width is 0")
    sampling = tuple((factors >> 4, factors & 15) for factors in payload[7::3])
    for horizontal, vertical in sampling:
        if not (1 <= horizontal <= 4 and 1 <= vertical <= 4):
            raise ImageError(f"broken JPEG: sampling factors {horizontal}x{vertical}")
    return precision, height, width, payload[6::3], sampling


# Table K.1 of ITU-T T.81; libjpeg scales it by the quality.
_LUMA = (
    16, 11, 10, 16, 24, 40, 51, 61,
    12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77,
    24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip


@functools.cache
def _sums() -> dict[int, int]:
    """Return the sum of the IJG luma table at each quality (jpeg_set_quality in libjpeg's jcparam.c, for baseline)."""
    scales = {quality: 5000 // quality if quality < 50 else 200 - 2 * quality for quality in range(1, 101)}
    return {
        quality: sum(min(max((value * scale + 50) // 100, 1), 255) for value in _LUMA)
        for quality, scale in scales.items()
    }


@functools.lru_cache(64)  # a dataset has few distinct tables
def _quality(tables: bytes, wanted: int) -> int:
    """Return the quality whose sum is nearest to that of table `wanted` in the DQT payloads; 0 if it is missing."""
    position, found = 0, 0
    while position < len(tables):
        wide, number = tables[position] >> 4, tables[position] & 15
        end = position + 1 + (128 if wide else 64)
        if number == wanted and end <= len(tables):
            values = tables[position + 1 : end]
            found = 256 * sum(values[::2]) + sum(values[1::2]) if wide else sum(values)
        position = end
    sums = _sums()
    return min(sums, key=lambda quality: abs(sums[quality] - found)) if found else 0


def _colorspace(ids: bytes, jfif: bool, adobe: int | None) -> Colorspace:
    """Return the colour space that libjpeg assumes (default_decompress_parms in its jdapimin.c)."""
    if len(ids) == 1:
        return "gray"
    if len(ids) == 3:
        if jfif:
            return "YCbCr"
        if adobe is not None:
            return "RGB" if adobe == 0 else "YCbCr"
        return "RGB" if ids == b"RGB" else "YCbCr"
    if len(ids) == 4:
        return "YCCK" if adobe else "CMYK"
    return "other"


def is_metadata(marker: int) -> bool:
    return APP0 <= marker <= APP15 or marker == COM


def needed(data: bytes, marker: int, begin: int, end: int) -> bytes:
    """Return the part of a segment that decoders need: all of a table, frame or scan header, but of metadata only what
    JFIF (without its thumbnail) and Adobe specify; empty if nothing is needed."""
    if marker == APP0 and is_jfif(data, begin, end):
        return segment(APP0, data[begin + 4 : begin + 16] + b"\0\0")  # no thumbnail
    if marker == APP14 and is_adobe(data, begin, end):
        return segment(APP14, data[begin + 4 : begin + 16])
    return b"" if is_metadata(marker) else data[begin:end]


def is_jfif(data: bytes, begin: int, end: int) -> bool:
    return end - begin >= 18 and data.startswith(JFIF, begin + 4, end)


def is_adobe(data: bytes, begin: int, end: int) -> bool:
    return end - begin >= 16 and data.startswith(ADOBE, begin + 4, end)


def _joined(parts: list[bytes]) -> bytes | None:
    """Join the numbered parts (number, total, bytes) of a profile; None if they are inconsistent."""
    parts = sorted(parts, key=lambda part: part[:1])
    if [part[:2] for part in parts] != [bytes((i, len(parts) & 0xFF)) for i in range(1, len(parts) + 1)]:
        return None
    return b"".join(part[2:] for part in parts)
