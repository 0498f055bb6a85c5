"""Old formats: TGA, which has no signature, and ICO, which holds several images. Pure."""

from __future__ import annotations

import struct

from presize.errors import ImageError

_PNG = b"\x89PNG\r\n\x1a\n"


def largest_icon(data: bytes) -> tuple[bytes, str]:
    """The largest image of an ICO, by its own header: a PNG, or an ICO that holds it alone; and the format of that.

    Raises:
        ImageError: an image lies outside the file, or there is none.
    """
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
    entry = struct.pack("<BBBBHHII", width % 256, height % 256, *data[-at + 2 : -at + 4], 1, bits, len(image), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + image, "ico"


def _icon_size(image: bytes) -> tuple[int, int]:
    if image.startswith(_PNG):
        width, height = struct.unpack_from(">II", image.ljust(24, b"\0"), 16)
        return height, width
    if len(image) < 40 or int.from_bytes(image[:4], "little") != 40:
        return 0, 0
    width, doubled = struct.unpack_from("<ii", image, 4)  # it counts the mask below the image, too
    return max(doubled // 2, 0), max(width, 0)


def is_tga(data: bytes) -> bool:
    """Whether the header is that of a TGA, and either its footer follows or exactly the pixels that it announces."""
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
    """Where the packets of so many pixels end; -1 where they do not."""
    while pixels > 0 and position < len(data):
        count = (data[position] & 127) + 1
        position += 1 + pixel * (1 if data[position] & 128 else count)
        pixels -= count
    return -1 if pixels else position
