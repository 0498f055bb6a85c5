"""Generated ICC profiles."""

from __future__ import annotations

import struct

from PIL import ImageCms


def profile(space: bytes, tags: dict[bytes, bytes], kind: bytes = b"mntr", pcs: bytes = b"XYZ ") -> bytes:
    """Return an ICC profile, version 2, with these tags."""
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061)
    name = b"made for a test\0"
    tags = {b"desc": b"desc" + bytes(4) + struct.pack(">I", len(name)) + name + bytes(78), b"wtpt": white, **tags}
    table, body = struct.pack(">I", len(tags)), b""
    for tag, value in tags.items():
        table += tag + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(body), len(value))
        body += value + bytes(-len(value) % 4)
    head = b"\0\0\0\0lcms" + bytes([2, 16, 0, 0]) + kind + space + pcs + bytes(12) + b"acsp" + bytes(28)
    head += struct.pack(">3i", 63190, 65536, 54061)
    head = head.ljust(128, b"\0")
    return struct.pack(">I", 128 + len(table) + len(body)) + head[4:] + table + body


def curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)


_PRIMARIES = [(0.4360, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)]


def display_profile(gamma: float, order: tuple[int, int, int] = (0, 1, 2)) -> bytes:
    """Return a profile of sRGB's primaries, in this order, with a plain gamma."""
    colors = [b"XYZ " + bytes(4) + struct.pack(">3i", *(round(v * 65536) for v in _PRIMARIES[i])) for i in order]
    tags = dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), colors, strict=True))
    return profile(b"RGB ", {**tags, **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve(gamma))})


def black_only_profile() -> bytes:
    """Return a CMYK profile in which cyan, magenta and yellow inks are invisible."""
    straight = bytes(range(256))
    corners = b"".join(bytes((0 if black else 255, 128, 128)) for _ in range(8) for black in (0, 1))
    matrix = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    table = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + matrix + straight * 4 + corners + straight * 3
    return profile(b"CMYK", {b"A2B0": table}, b"prtr", b"Lab ")


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
LINEAR = display_profile(1.0)
SWAPPED = display_profile(2.2, (2, 1, 0))
GRAY_LINEAR = profile(b"GRAY", {b"kTRC": curve(1.0)})
