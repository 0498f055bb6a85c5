"""JPEGs that Pillow does not write, and damage to them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import strategies as st
from PIL import Image

from pictures import noisy_image, oriented, saved, smooth_image
from presize.codecs import pillow_resize
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.tiles import restart_interval, with_index

SAMPLINGS = {
    "4:4:4": (8, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    "4:2:2": (16, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422),
    "4:2:0": (16, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
    "4:4:0": (8, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440),
    "4:1:1": (32, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411),
    "grey": (8, None),
}
"""Width of an MCU in pixels, and OpenCV's name, by chroma subsampling."""
ORDINARY = [name for name in SAMPLINGS if name != "4:1:1"]
"""Subsamplings that the decoder accepts and tiles may have."""

compiled = pytest.mark.skipif(not jpeg_decoder.is_available(), reason="_jpeg_decoder.c is not compiled, or off")


def encoded(
    pixels: np.ndarray, sampling: str = "4:2:0", quality: int = 90, interval: int = 0, optimize: bool = False
) -> bytes:
    """Encode a JPEG with a restart marker after each `interval` MCUs."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    options += [cv2.IMWRITE_JPEG_OPTIMIZE, int(optimize)]
    factor = SAMPLINGS[sampling][1]
    if factor is not None:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
    elif pixels.ndim == 3:
        pixels = pixels[:, :, 0]
    return cv2.imencode(".jpg", pixels, options)[1].tobytes()


@lru_cache(maxsize=64)
def plain(height: int, width: int, sampling: str = "4:2:0", quality: int = 90, interval: int | None = None) -> bytes:
    """Return a JPEG in tiles of `interval` MCUs, or of all of a shorter row, without an index."""
    mcus = -(-width // SAMPLINGS[sampling][0])
    interval = restart_interval(mcus) if interval is None else min(interval, mcus)
    return encoded(noisy_image(height, width, width), sampling, quality, interval)


def tiled(height: int, width: int, sampling: str = "4:2:0", quality: int = 90, interval: int | None = None) -> bytes:
    """Return a JPEG in tiles with an index."""
    data = with_index(plain(height, width, sampling, quality, interval))
    assert data is not plain(height, width, sampling, quality, interval)
    return data


def by_libjpeg(data: bytes | memoryview, mode: str | None = None, scale: int = 1) -> np.ndarray:
    """Decode strictly, as for training: a stray or missing byte is an error."""
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    mode = mode or ("GRAY" if colorspace == "Gray" else "RGB")
    size = (-(-height // scale), -(-width // scale)) if scale > 1 else (0, 0)
    return simplejpeg.decode_jpeg(data, mode, min_height=size[0], min_width=size[1], min_factor=scale)


def without_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the compiled code, as if there were no compiler."""
    monkeypatch.setattr(jpeg_decoder, "compiled", replace(jpeg_decoder.compiled, module=None))
    monkeypatch.setattr(pillow_resize, "compiled", replace(pillow_resize.compiled, module=None))


LEVELS = ("plain", "AVX2", "AVX-512")


@contextmanager
def held_to(level: int) -> Iterator[None]:
    """Decode with instructions up to `level`, an index of LEVELS."""
    decoder = jpeg_decoder.compiled.trusted()
    assert decoder is not None
    decoder.limit(level)
    yield
    decoder.limit(LEVELS.index("AVX-512"))


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def with_bytes(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, begin: int = 0, within: int | None = None) -> bytes:
    """Draw a damaged copy of `whole`: bytes from `begin` to `within` are changed, lost or inserted; it may also be
    truncated."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(begin, max(begin, min(len(data), within or len(data)) - 1)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data[: draw(st.integers(begin, len(data)))] if draw(st.booleans()) else data)


PHOTO = smooth_image(40, 56)
JPEGS = {
    "baseline": saved(PHOTO, "JPEG", subsampling="4:2:0"),
    "progressive": saved(PHOTO, "JPEG", subsampling="4:4:4", progressive=True),
    "grey": saved(PHOTO[:, :, 0], "JPEG"),
    "RGB": saved(PHOTO, "JPEG", keep_rgb=True),
    "restart markers": encoded(PHOTO, interval=2),
    "progressive with restart markers": saved(PHOTO, "JPEG", progressive=True, restart_marker_blocks=3),
    "metadata": saved(PHOTO, "JPEG", exif=oriented(6), icc_profile=b"p" * 70_000, comment=b"c", xmp=b"<x/>"),
    "MPO": saved(PHOTO, "MPO", save_all=True, append_images=[Image.fromarray(PHOTO[::-1])]),
}
"""JPEGs of 40×56 pixels, as encoders write them."""


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int, step: int = 1) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) within an image; edges are multiples of `step` or edges of the image."""
    edges = []
    for side in (height, width):
        places = st.sampled_from([*range(0, side, step), side])
        edges.append(sorted(draw(st.lists(places, min_size=2, max_size=2, unique=True))))
    (top, bottom), (left, right) = edges
    return top, left, bottom - top, right - left
