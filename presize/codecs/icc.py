"""ICC colour profiles: detection of sRGB, and conversion to it by Little CMS. For profiles of three curves and a matrix
(displays, cameras), OpenCV is five times as fast, and is checked against Little CMS. Pure, thread-safe."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

if TYPE_CHECKING:
    from PIL import ImageCms

Pixels = npt.NDArray[np.uint8]

# From linear sRGB to the XYZ of profiles: the primaries of IEC 61966-2-1, adapted to D50 (Bradford).
_SRGB_TO_XYZ: Final = ((0.43607, 0.38515, 0.14307), (0.22249, 0.71687, 0.06061), (0.01392, 0.09708, 0.71410))
_MAX_TAGS: Final = 100  # as in Little CMS
_STRIP: Final = 1 << 14  # pixels: few enough to stay in the cache, and too few for OpenCV to start threads


def is_srgb(icc: bytes) -> bool:
    """Return whether pixels with this ICC profile need no conversion: it is sRGB, equivalent to sRGB, or unusable."""
    return all(to_srgb(icc, mode) is None for mode in ("RGB", "L", "CMYK"))


@lru_cache(maxsize=64)
def to_srgb(icc: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the conversion to sRGB of pixels of `mode` (L, RGB, CMYK) with this profile. None if none is needed: the
    profile is for another colour space, is broken, or makes no difference."""
    from PIL import ImageCms

    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        if profile.profile.xcolor_space != {"L": "GRAY", "RGB": "RGB ", "CMYK": "CMYK"}[mode]:
            return None
        intent, flags = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
        srgb = ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(profile, srgb, mode, "RGB", intent, flags | ImageCms.Flags.NOCACHE)
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    try:
        named = "srgb" in (profile.profile.profile_description or "").lower()
    except ValueError:  # the name is not valid Unicode
        named = False
    if mode == "CMYK":
        return transform
    steps = np.linspace(0, 255, 256 if mode == "L" else 9).round().astype(np.uint8)
    grid = steps[np.newaxis] if mode == "L" else np.stack(np.meshgrid(steps, steps, steps), -1).reshape(1, -1, 3)
    converted = np.asarray(transform.apply(Image.fromarray(grid)), np.int16)
    change = np.abs(converted - (grid[:, :, np.newaxis] if mode == "L" else grid)).max()
    # Apple's "sRGB Profile", with its plain gamma of 2.2, is off by up to 6; a linear "sRGB" by much more.
    return None if change <= (8 if named else 2) else transform


def _shaped(curves: npt.NDArray[np.uint16], matrix: npt.NDArray[np.float32], pixels: Pixels) -> Pixels:
    """Convert `pixels`, (height, width, 3), to sRGB, in a new array. `curves`, (1, 256, 3), or (1, 256) if all three
    are equal, map to linear light; `matrix`, (3, 3), maps that to the linear light of sRGB."""
    import cv2  # slow, and needed only for such profiles

    result = np.empty(pixels.shape, np.uint8)
    rows = max(1, _STRIP // pixels.shape[1])
    for top in range(0, len(pixels), rows):
        linear = cv2.transform(cv2.LUT(pixels[top : top + rows], curves), matrix)
        cv2.LUT(linear, _encoding(), result[top : top + rows])
    return result


@lru_cache(maxsize=64)
def matrix_shaper(icc: bytes) -> Callable[[Pixels], Pixels] | None:
    """Return the fast conversion to sRGB of RGB pixels with this profile; None if the profile needs no conversion, has
    no valid curves and matrix, or if any result for all greys and a grid of 17 x 17 x 17 colours differs from to_srgb's
    by more than 1 level."""
    transform = to_srgb(icc, "RGB")
    if transform is None:
        return None
    import cv2

    steps, greys = np.linspace(0, 255, 17).round(), np.arange(256).repeat(3).reshape(-1, 3)
    colors = np.concatenate((np.stack(np.meshgrid(steps, steps, steps), -1).reshape(-1, 3), greys))
    samples = colors.astype(np.uint8)[np.newaxis]
    try:
        shaper = partial(_shaped, *_parse(icc))
        converted = shaper(samples)
    # Broken tags raise these, and an old OpenCV has no 16-bit tables.
    except (ValueError, KeyError, ArithmeticError, struct.error, cv2.error):
        return None
    exact = np.asarray(transform.apply(Image.fromarray(samples)), np.int16)
    return shaper if np.abs(converted - exact).max() <= 1 else None


def _parse(icc: bytes) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32]]:
    """Parse the curves and the matrix of a profile, by ICC.1:2010: 7.2 (header), 7.3 (tags), F.3 (the model)."""
    (count,) = struct.unpack_from(">I", icc, 128)
    if icc[16:24] != b"RGB XYZ " or count > _MAX_TAGS:
        raise ValueError("the profile has no matrix")
    entries = [struct.unpack_from(">4sII", icc, 132 + 12 * i) for i in reversed(range(count))]
    tags = {name: memoryview(icc)[begin : begin + size] for name, begin, size in entries}
    if any(name[:3] in (b"A2B", b"D2B") for name in tags):
        raise ValueError("the profile has tables, which take precedence")
    curves = [_curve(tags[name]) for name in (b"rTRC", b"gTRC", b"bTRC")]
    # XYZType (10.31) has its values, s15Fixed16, after 8 bytes.
    colorants = np.array([struct.unpack_from(">3i", tags[name], 8) for name in (b"rXYZ", b"gXYZ", b"bXYZ")]).T / 65536
    table = np.stack(curves, -1)[np.newaxis]
    if np.abs(table - 0.5).max() > 0.501:
        raise ValueError("the curves exceed the range of 16 bits")
    if (table == table[:, :, :1]).all():
        table = table[:, :, 0]
    matrix = np.linalg.inv(_SRGB_TO_XYZ) @ colorants
    return (table.clip(0, 1) * 65535).round().astype(np.uint16), matrix.astype(np.float32)


def _curve(tag: memoryview) -> npt.NDArray[np.float64]:
    """Return linear light, (256,) float64, of a channel's values: curveType (10.5), parametricCurveType (10.15)."""
    x = np.linspace(0, 1, 256)
    if bytes(tag[:4]) == b"curv":
        (count,) = struct.unpack_from(">I", tag, 8)
        if count > 1:
            points = np.frombuffer(tag, ">u2", count, 12) / 65535
            return np.interp(x, np.linspace(0, 1, count), points)
        gamma = struct.unpack_from(">H", tag, 12)[0] / 256 if count else 1.0
        return np.asarray(x**gamma)
    (kind,) = struct.unpack_from(">H", tag, 8)
    if bytes(tag[:4]) != b"para" or kind > 4:
        raise ValueError("unknown type of curve")
    values = struct.unpack_from(f">{(1, 3, 4, 5, 7)[kind]}i", tag, 12)
    g, a, b, c, d, e, f = np.array((*values, *(0, 65536, 0, 0, 0, 0, 0)[len(values) :])) / 65536
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        if kind in (1, 2):  # 0 (type 1) or c (type 2) where a x + b is negative
            c, d, e, f = 0.0, -b / a, c, c
        return np.asarray(np.where(x >= d, np.maximum(a * x + b, 0) ** g + e, c * x + f))


@lru_cache(maxsize=1)
def _encoding() -> Pixels:
    """Return the sRGB value of each 16-bit linear light, (1, 65536) uint8, by IEC 61966-2-1."""
    light = np.linspace(0, 1, 65536)
    value = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return (value * 255).round().astype(np.uint8)[np.newaxis]
