"""Generated pictures, and files of them."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def smooth_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return a smooth random picture, uint8 (height, width, 3), which codecs change little."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        128
        + 100
        * np.sin(
            rng.uniform(0.5, 3) * 2 * np.pi * (y / height * rng.uniform() + x / width * rng.uniform())
            + rng.uniform(0, 6)
        )
        for _ in range(3)
    ]
    return np.stack(waves, axis=-1).round().astype(np.uint8)


def noisy_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return waves, noise over the whole range, and a flat area, uint8 (height, width, 3), in which every pixel
    matters."""
    rng = np.random.default_rng(seed)
    noisy = smooth_image(height, width, seed).astype(int) + rng.integers(-90, 90, (height, width, 3))
    noisy[height // 2 :, : width // 3] = rng.integers(0, 256, 3)
    return noisy.clip(0, 255).astype(np.uint8)


def saved(image: Image.Image | np.ndarray, kind: str, **options: Any) -> bytes:
    """Return a file of `image`, written by Pillow from copies, because saving changes an image."""
    buffer = io.BytesIO()
    if "append_images" in options:
        options["append_images"] = [each.copy() for each in options["append_images"]]
    (image.copy() if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def opened(data: bytes | memoryview) -> Image.Image:
    return Image.open(io.BytesIO(data))


def oriented(value: int, maker: str | None = None) -> bytes:
    """Return EXIF with this orientation and maker."""
    exif = Image.Exif()
    exif[0x0112] = value
    if maker:
        exif[0x010F] = maker
    return exif.tobytes()


def difference(one: np.ndarray, other: np.ndarray) -> int:
    """Return the maximal difference of two arrays of the same shape."""
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other).max())


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def with_chunk(png: bytes, kind: bytes, payload: bytes) -> bytes:
    """Insert a chunk after the header of `png`."""
    return png[:33] + png_chunk(kind, payload) + png[33:]


def gray_png(numbers: np.ndarray, bits: int, *chunks: bytes) -> bytes:
    """Return a grey PNG of 1, 2, 4 or 8 bits, which Pillow does not write, with these chunks before its pixels."""
    rows = b""
    for row in numbers.astype(np.uint8):
        packed = np.unpackbits(row[:, np.newaxis], axis=1)[:, -bits:]
        rows += b"\0" + np.packbits(packed.reshape(-1)).tobytes()
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", numbers.shape[1], numbers.shape[0], bits, 0, 0, 0, 0))
    pixels = png_chunk(b"IDAT", zlib.compress(rows))
    return b"".join((b"\x89PNG\r\n\x1a\n", header, *chunks, pixels, png_chunk(b"IEND", b"")))


def save_image(path: Path, height: int = 40, width: int = 50, seed: int = 0, **options: Any) -> Path:
    """Save a smooth random picture in the format of the suffix. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(smooth_image(height, width, seed)).save(path, **options)
    return path
