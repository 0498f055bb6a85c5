"""Recognition of image formats, the bytes to give to a decoder, and the limit on image size. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterator
from typing import Final

from presize.errors import ImageError

_SIGNATURES: Final = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    (b"\xff\x0a", "jxl"),
    (b"DDS \x7c\0\0\0", "dds"),
)
NPY, EXR = b"\x93NUMPY", b"v/1\x01"
"""First bytes of array files."""
_BMP_HEADER_BYTES: Final = (12, 40, 52, 56, 64, 108, 124)
_HEIC_BRANDS: Final = frozenset((b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"))


def sniff(data: bytes) -> str | None:
    """Return the image format of `data`, by its first bytes, or None."""
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADER_BYTES:
        return "bmp"
    if re.match(rb"P[1-6][ \t\r\n#]", data):
        return "ppm"
    if data[4:8] == b"ftyp":
        brands = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
        found = {brands[i : i + 4] for i in range(0, len(brands), 4)}
        if found & {b"avif", b"avis"}:
            return "avif"
        if found & _HEIC_BRANDS:
            return "heic"
    return next((name for name, matches in _HEADERS.items() if matches(data)), None)


def is_known(data: bytes) -> bool:
    """Return whether `data` begins like an image, or like an array that may accompany one."""
    return data.startswith((NPY, EXR)) or sniff(data) is not None


def _is_ico(data: bytes) -> bool:
    """Return whether `data` has the directory of an ICO and its first image. .NET writes 255 to the reserved byte."""
    if data[:4] != b"\0\0\1\0" or len(data) < 22:
        return False
    count, reserved = int.from_bytes(data[4:6], "little"), data[9]
    nbytes, begin = struct.unpack_from("<II", data, 14)
    return 0 < count < 256 and reserved in (0, 255) and 6 + 16 * count <= begin < begin + nbytes <= len(data)


def _is_sgi(data: bytes) -> bool:
    if len(data) < 512 or data[:2] != b"\x01\xda":
        return False
    storage, channel_bytes, dimensions = struct.unpack_from(">BBH", data, 2)
    return bool(storage <= 1 and 1 <= channel_bytes <= 2 and 1 <= dimensions <= 3)


def _is_pcx(data: bytes) -> bool:
    if len(data) < 128 or data[0] != 10 or data[1] not in (0, 2, 3, 4, 5) or data[2] != 1 or data[64] != 0:
        return False
    left, top, right, bottom = struct.unpack_from("<HHHH", data, 4)
    line_bytes = int.from_bytes(data[66:68], "little")
    bits, planes = data[3], data[65]
    needed = -(-(right - left + 1) * bits // 8)
    return left <= right and top <= bottom and bits in (1, 2, 4, 8) and planes in (1, 3, 4) and line_bytes >= needed


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Raise ImageError if an image has more than `max_pixels` pixels."""
    if height * width > max_pixels:
        raise ImageError(f"{width} x {height} pixels, more than max_pixels allows ({max_pixels})")


def webp_size(data: bytes) -> tuple[int, int]:
    """Return (height, width) from the first chunk of a WebP; (0, 0) without one: the decoder then refuses the file."""
    head = data[12:30].ljust(18, b"\0")
    if head[:4] == b"VP8X":
        return int.from_bytes(head[15:18], "little") + 1, int.from_bytes(head[12:15], "little") + 1
    if head[:4] == b"VP8L":
        bits = int.from_bytes(head[9:13], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if head[:4] == b"VP8 ":
        return int.from_bytes(head[16:18], "little") & 0x3FFF, int.from_bytes(head[14:16], "little") & 0x3FFF
    return 0, 0


def has_several(data: bytes, name: str) -> bool:
    """Return whether a GIF or PNG is an animation of several frames, counted up to the first damage."""
    if name == "gif":
        return _gif_frames(data, most=2) > 1
    return name == "png" and any(kind == b"fdAT" for kind, _, _ in png_chunks(data))  # frames besides the default image


def _gif_frames(data: bytes, most: int) -> int:
    """Count the frames of a GIF block by block, up to `most`."""
    frames, size = 0, len(data)
    position = 13 + _gif_colors(data, 10)
    while position < size and frames < most:
        if data[position] == 0x2C:
            frames += 1
            position += 11 + _gif_colors(data, position + 9)
        elif data[position] == 0x21:
            position += 2
        else:
            break
        while position < size and data[position]:
            position += 1 + data[position]
        position += 1
    return frames


def _gif_colors(data: bytes, at: int) -> int:
    """Return the length in bytes of the colour table declared by the flags at `at`."""
    flags = data[at] if at < len(data) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, begin, end) for each chunk of a PNG, up to IEND or the first truncated chunk."""
    kind, end = b"", 8
    while kind != b"IEND" and end + 12 <= len(data):
        begin, kind = end, data[end + 4 : end + 8]
        end += 12 + int.from_bytes(data[begin : begin + 4], "big")
        if end > len(data):
            return
        yield kind, begin, end


def png_of(data: bytes, kinds: Collection[bytes]) -> bytes:
    """Reduce a PNG to its chunks of `kinds`."""
    return b"".join((data[:8], *(data[begin:end] for kind, begin, end in png_chunks(data) if kind in kinds)))


_PNG = b"\x89PNG\r\n\x1a\n"
PNG_BITS = 24
"""Byte offset of the bits of a sample in a PNG."""
PNG_IMAGE: Final = frozenset((b"IHDR", b"IDAT", b"IEND"))
"""Chunks that every PNG must have."""


def bmp_with_palette(data: bytes) -> bytes:
    """Return a BMP, or its part from the bitmap's header on without "BM", with a palette that Pillow reads with the
    bits of the image: it takes black and white for 1 bit, and the greys 0, 1, 2 and so on of 4 bits for 8 bits."""
    at = 14 if data[:2] == b"BM" else 0
    header_bytes, bits, used = (
        int.from_bytes(data[at + i : at + i + n], "little") for i, n in ((0, 4), (14, 2), (32, 4))
    )
    used = used or 1 << min(bits, 8)
    if header_bytes < 40 or used > {4: 16, 8: 2}.get(bits, 0):
        return data
    more = max(1, 3 - used)
    added, end, begin = b"\xff\xff\xff\0" * more, at + header_bytes + 4 * used, data[:at]
    offset = int.from_bytes(data[10:14], "little") if at else 0
    if offset >= end:
        begin = data[:10] + (offset + len(added)).to_bytes(4, "little")
    elif offset not in (0, at + header_bytes):  # pixels follow the palette if one of these is given
        return data
    colors = (used + more).to_bytes(4, "little")
    return b"".join((begin, data[at : at + 32], colors, data[at + 36 : end], added, data[end:]))


def largest_icon(data: bytes) -> tuple[bytes, str]:
    """Return the largest image of an ICO, by its own header, as a PNG or as an ICO of one image, and its format."""
    (count,) = struct.unpack_from("<H", data, 4)
    found = []
    for at in range(6, 6 + 16 * count, 16):
        if at + 16 > len(data):
            break
        bits, nbytes, begin = struct.unpack_from("<HII", data, at + 6)
        image = data[begin : begin + nbytes]
        height, width = _icon_size(image)
        if height and width:
            found.append((height * width, bits, -at, image, height, width))
    if not found:
        raise ImageError("broken ICO: it holds no image")
    _, bits, at, image, height, width = max(found)
    if image.startswith(_PNG):
        return image, "png"
    if max(height, width) > 256:
        raise ImageError(f"broken ICO: a bitmap of {width} x {height} pixels")
    image = bmp_with_palette(image)
    entry = struct.pack("<BBBBHHII", width % 256, height % 256, *data[-at + 2 : -at + 4], 1, bits, len(image), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + image, "ico"


def _icon_size(image: bytes) -> tuple[int, int]:
    if image.startswith(_PNG):
        width, height = struct.unpack_from(">II", image.ljust(24, b"\0"), 16)
        return height, width
    header_bytes = int.from_bytes(image[:4], "little")
    if header_bytes not in _BMP_HEADER_BYTES or len(image) < header_bytes:
        return 0, 0
    # The height includes the mask below the image, and is negative if the first row is the top one.
    width, doubled = struct.unpack_from("<HH" if header_bytes == 12 else "<ii", image, 4)
    return abs(doubled) // 2, max(width, 0)


def is_tga(data: bytes) -> bool:
    """Return whether `data` has a valid TGA header, and either a TGA footer or exactly the announced pixels."""
    if len(data) < 18:
        return False
    id_bytes, has_map, kind, _, map_length, map_bits, _, _, width, height, depth, flags = struct.unpack_from(
        "<BBBHHBHHHHBB", data
    )
    depths = {1: (8,), 2: (16, 24, 32), 3: (8, 16)}.get(kind & 7, ())
    if kind & ~11 or has_map > 1 or has_map != (kind & 7 == 1) or depth not in depths or flags & 0xC0:
        return False
    if not width or not height:
        return False
    if data.endswith(b"TRUEVISION-XFILE.\0"):
        return True
    begin = 18 + id_bytes + map_length * -(-map_bits // 8)
    pixel = depth // 8
    end = _run_length_end(data, begin, pixel, width * height) if kind & 8 else begin + width * height * pixel
    return end == len(data)


def _run_length_end(data: bytes, position: int, pixel: int, pixels: int) -> int:
    """Return the end of the packets of `pixels` pixels; -1 if `data` ends first, or the last packet has too many."""
    while pixels > 0 and position < len(data):
        count = (data[position] & 127) + 1
        position += 1 + pixel * (1 if data[position] & 128 else count)
        pixels -= count
    return -1 if pixels else position


_HEADERS: Final[dict[str, Callable[[bytes], bool]]] = {"ico": _is_ico, "sgi": _is_sgi, "pcx": _is_pcx, "tga": is_tga}
"""Formats without a signature, recognized by valid headers."""
