"""Images that can be stored as they are: 8 bits a channel, in the colours of the options, upright, and without a
profile to convert. A JPEG must have its end marker, a WebP complete chunks, and a PNG correct checksums. Pixels are not
decoded; ``presize verify`` does that. Metadata is removed unless it is to be kept. Pure, thread-safe."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from presize.codecs import icc, sniff
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.source_facts import Colors, Facts
from presize.codecs.tiff import orientation_of
from presize.errors import ImageError
from presize.options import ImageOptions


class Unchanged(NamedTuple):
    """Bytes to store for an image, its size in pixels, and the facts of the source."""

    value: bytes
    height: int
    width: int
    facts: Facts


def unchanged(data: bytes, options: ImageOptions) -> Unchanged | None:
    """Return the bytes to store for `data` at its own size; None if it must be decoded, to be converted or refused."""
    name = sniff.sniff(data)
    find = _FINDERS.get(options.format)
    if name != options.format or find is None or options.depth != 8:
        return None
    try:
        found = find(data, options)
    except (ImageError, IndexError, struct.error, zlib.error):
        return None
    return None if found is None or found.height * found.width > options.max_pixels else found


def fits(header: jpeg_segments.JpegHeader, options: ImageOptions) -> bool:
    """Return whether a JPEG with this header can be stored unchanged: 8 bits, Huffman coded, YCbCr or grey, upright,
    without a profile to convert, and in the colours of `options`. Recompression would only lose quality."""
    return (
        options.format == "jpeg"
        and header.precision == 8
        and header.process in ("baseline", "extended", "progressive")
        and (header.colorspace == "gray" or (header.colorspace == "YCbCr" and options.color != "gray"))
        and header.orientation == 1
        and not (_changes_colors(header.icc) and options.icc == "convert")
    )


def _jpeg(data: bytes, options: ImageOptions) -> Unchanged | None:
    header = jpeg_segments.parse(data)
    if not fits(header, options):
        return None
    in_one_scan = header.process == "baseline" and data[header.segments[-1][1] + 4] == len(header.sampling)
    if in_one_scan and not header.several and not options.keep_metadata and data.endswith(b"\xff\xd9"):
        # Avoid searching the scan: it takes as long as everything else.
        value = data if header.bare else jpeg_metadata.bare(data)
    else:
        value, scans = jpeg_metadata.strip(data, options.keep_metadata)
        if scans > 1:
            jpeg_segments.check_scans(value, header.height * header.width, options.max_pixels)
    facts = header.facts._replace(profile=_changes_colors(header.icc), kept=True)
    return Unchanged(value, header.height, header.width, facts)


_PNG_COLORS: Final = {0: ("gray", "keep", "rgb", "rgba"), 2: ("keep", "rgb", "rgba"), 6: ("rgba",)}
"""Values of --color for which a PNG of a colour type is stored unchanged. Readers convert grey to RGB and add alpha."""
_PNG_ANIMATION: Final = frozenset((b"acTL", b"fcTL", b"fdAT"))


def _png(data: bytes, options: ImageOptions) -> Unchanged | None:
    chunks = list(sniff.png_chunks(data))
    kinds = {kind for kind, _, _ in chunks}
    width, height, bits, color, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    plain = chunks[0][0] == b"IHDR" and bits == 8 and not interlaced and options.color in _PNG_COLORS.get(color, ())
    if not plain or not kinds >= sniff.PNG_IMAGE or b"tRNS" in kinds or 0 in (width, height):
        return None
    view = memoryview(data)
    if any(zlib.crc32(view[begin + 4 : end - 4]).to_bytes(4) != data[end - 4 : end] for _, begin, end in chunks):
        return None
    payloads = {kind: data[begin + 8 : end - 4] for kind, begin, end in chunks if kind in (b"eXIf", b"iCCP")}
    profile = _changes_colors(_profile(payloads.get(b"iCCP", b"")))
    if orientation_of(payloads.get(b"eXIf", b"")) != 1 or (profile and options.icc == "convert"):
        return None
    left_out = _PNG_ANIMATION if options.keep_metadata else kinds - sniff.PNG_IMAGE
    value = b"".join((data[:8], *(data[begin:end] for kind, begin, end in chunks if kind not in left_out)))
    animated = b"fdAT" in kinds
    colors: Colors = "RGB" if color else "grey"
    facts = Facts("png", colors, transparent=color == 6, several=animated, profile=profile, kept=True)
    return Unchanged(value, height, width, facts)


_MAX_PROFILE_BYTES: Final = 1 << 20


def _profile(chunk: bytes) -> bytes:
    """Return the ICC profile of an iCCP chunk: a name, a NUL, the method, and the profile as a zlib stream."""
    _, _, compressed = chunk.partition(b"\0")
    return zlib.decompressobj().decompress(compressed[1:], _MAX_PROFILE_BYTES) if compressed else b""


def _changes_colors(profile: bytes | None) -> bool:
    return profile is not None and profile != b"" and not icc.is_srgb(profile)


_ANIMATION, _ALPHA = 0x02, 0x10


def _webp(data: bytes, options: ImageOptions) -> Unchanged | None:
    chunks = dict(_webp_chunks(data))
    kinds = chunks.keys() & {b"VP8 ", b"VP8L"}
    flags = chunks.get(b"VP8X", b"\0")[0]
    if len(kinds) != 1 or flags & _ANIMATION:
        return None
    (kind,) = kinds
    image = chunks[kind]
    value = _riff({kind: image})
    height, width = sniff.webp_size(value)
    transparent = image[4] & 0x10 != 0 if kind == b"VP8L" else b"ALPH" in chunks
    profile = _changes_colors(chunks.get(b"ICCP"))
    exif = chunks.get(b"EXIF", b"").removeprefix(b"Exif\0\0")
    if (
        (height, width) != sniff.webp_size(data)
        or 0 in (height, width)
        or options.color not in (("rgba",) if transparent else ("rgb", "rgba"))
        or orientation_of(exif) != 1
        or (profile and options.icc == "convert")
    ):
        return None
    if options.keep_metadata:
        value = data[: 8 + int.from_bytes(data[4:8], "little")]
    elif b"ALPH" in chunks:
        header = struct.pack("<I", _ALPHA) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        value = _riff({b"VP8X": header, b"ALPH": chunks[b"ALPH"], kind: image})
    return Unchanged(value, height, width, Facts("webp", "RGB", transparent=transparent, profile=profile, kept=True))


def _riff(chunks: dict[bytes, bytes]) -> bytes:
    body = b"WEBP"
    for kind, payload in chunks.items():
        body += kind + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) & 1)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _webp_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, payload) of each chunk. Raises ImageError for a truncated chunk."""
    position, end = 12, 8 + int.from_bytes(data[4:8], "little")
    while position + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, position)
        position += 8
        if position + length > min(end, len(data)):
            raise ImageError("broken WebP: it ends within a chunk")
        yield kind, data[position : position + length]
        position += length + (length & 1)


_FINDERS: Final[dict[str, Callable[[bytes, ImageOptions], Unchanged | None]]] = {
    "jpeg": _jpeg,
    "png": _png,
    "webp": _webp,
}
