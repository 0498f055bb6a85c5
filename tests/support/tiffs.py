"""TIFFs that Pillow does not write, with any bands, layouts and directories."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

RAW, DEFLATE = 1, 8
CHUNKY, PLANAR = 1, 2


@dataclass(frozen=True)
class Page:
    """A directory: its numbers by tag, its strips or tiles, and its sub-images."""

    tags: Mapping[int, Sequence[int]]
    pieces: Sequence[bytes] = ()
    inner: Sequence[Page] = field(default=())


def page(
    pixels: np.ndarray,
    photometric: int = 2,
    extra: Sequence[int] | None = None,
    *,
    order: str = "<",
    planar: int = CHUNKY,
    compression: int = RAW,
    predictor: int = 1,
    tile: int | None = None,
    rows: int = 7,
    inner: Sequence[Page] = (),
    **tags: Sequence[int],
) -> Page:
    """Return a page of `pixels`, uint8 or uint16 (height, width, bands), in tiles of side `tile`, or strips of
    `rows`."""
    height, width, bands = pixels.shape
    size = pixels.itemsize

    def coded(part: np.ndarray) -> bytes:
        if predictor == 2:
            part = np.diff(part, axis=1, prepend=np.zeros_like(part[:, :1]))
        data = part.astype(f"{order}u{size}").tobytes()
        return zlib.compress(data) if compression == DEFLATE else data

    layers = [pixels] if planar == CHUNKY else [pixels[:, :, k : k + 1] for k in range(bands)]
    pieces = []
    for layer in layers:
        if tile is None:
            pieces += [coded(layer[y : y + rows]) for y in range(0, height, rows)]
            continue
        padded = np.pad(layer, ((0, -height % tile), (0, -width % tile), (0, 0)))
        for y in range(0, height, tile):
            pieces += [coded(padded[y : y + tile, x : x + tile]) for x in range(0, width, tile)]
    found: dict[int, Sequence[int]] = {
        256: (width,),
        257: (height,),
        258: (8 * size,) * bands,
        259: (compression,),
        262: (photometric,),
        277: (bands,),
        284: (planar,),
        317: (predictor,),
        **({278: (rows,)} if tile is None else {322: (tile,), 323: (tile,)}),
        **({} if extra is None else {338: extra}),
        **{int(name[1:]): numbers for name, numbers in tags.items()},
    }
    return Page({tag: numbers for tag, numbers in found.items() if numbers}, pieces, inner)


def tiff(*pages: Page, order: str = "<", big: bool = False) -> bytes:
    """Return a TIFF or BigTIFF of `pages`."""
    place, counter = ("Q", "Q") if big else ("I", "H")
    data = bytearray((b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42))
    data += struct.pack(order + "HH", 8, 0) if big else b""
    link = len(data)
    data += bytes(struct.calcsize(place))

    def put(content: bytes) -> int:
        data.extend(bytes(-len(data) % 2))
        data.extend(content)
        return len(data) - len(content)

    def write(one: Page) -> tuple[int, int]:
        """Return the offsets of the directory and of its link to the next."""
        tags: dict[int, Sequence[int]] = dict(one.tags)
        if one.inner:
            tags[330] = [write(sub)[0] for sub in one.inner]
        if one.pieces:
            places, lengths = (324, 325) if 322 in tags else (273, 279)
            tags[places], tags[lengths] = [put(piece) for piece in one.pieces], [len(piece) for piece in one.pieces]
        entries = b""
        for tag, numbers in sorted(tags.items()):
            value = struct.pack(f"{order}{len(numbers)}I", *numbers)
            room = struct.calcsize(place)
            inline = value.ljust(room, b"\0") if len(value) <= room else struct.pack(order + place, put(value))
            entries += struct.pack(f"{order}HH{place}", tag, 4, len(numbers)) + inline
        at = put(struct.pack(order + counter, len(tags)) + entries + bytes(struct.calcsize(place)))
        return at, len(data) - struct.calcsize(place)

    for one in pages:
        at, following = write(one)
        struct.pack_into(order + place, data, link, at)
        link = following
    return bytes(data)


def gradient(height: int, width: int, bands: int, dtype: Any = np.uint8) -> np.ndarray:
    """Return (height, width, bands) of values that differ everywhere."""
    return np.random.default_rng(bands).integers(0, np.iinfo(dtype).max, (height, width, bands), dtype, endpoint=True)
