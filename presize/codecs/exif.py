"""EXIF's orientation: found, and reset. Pure, thread-safe."""

from __future__ import annotations

import struct

_ORIENTATION = 0x0112


_SHORT, _LONG = 3, 4


def orientation_of(exif: bytes) -> int:
    """The orientation in EXIF (the bytes of a TIFF file), from 1 to 8; 1 if it is missing or invalid."""
    found = _orientation_field(exif)
    if found is None:
        return 1
    order, at = found
    kind, count = struct.unpack_from(order + "HI", exif, at + 2)
    if kind not in (_SHORT, _LONG) or count != 1:
        return 1
    value: int = struct.unpack_from(order + ("H" if kind == _SHORT else "I"), exif, at + 8)[0]
    return value if 1 <= value <= 8 else 1


def with_orientation_reset(exif: bytes) -> bytes:
    """`exif` with the orientation set to upright; its length, and all else in it, is unchanged."""
    found = _orientation_field(exif)
    if found is None:
        return exif
    order, at = found
    return exif[: at + 2] + struct.pack(order + "HIHH", _SHORT, 1, 1, 0) + exif[at + 12 :]


def _orientation_field(exif: bytes) -> tuple[str, int] | None:
    """The byte order, as in struct, and the offset of the 12-byte orientation field of IFD0."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 8:
        return None
    (at,) = struct.unpack_from(order + "I", exif, 4)
    if at + 2 > len(exif):
        return None
    (count,) = struct.unpack_from(order + "H", exif, at)
    last = min(at + 2 + 12 * count, len(exif) - 11)
    tag = struct.pack(order + "H", _ORIENTATION)
    for field in range(at + 2, last, 12):
        if exif.startswith(tag, field):
            return order, field
    return None
