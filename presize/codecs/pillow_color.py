"""Pillow's colour operations on 8-bit images, byte for byte, in a fraction of the time, if _pillow_color.c is compiled.
At its first use in a process, each operation is compared with the installed Pillow's. If they differ, callers use
Pillow."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance, ImageFilter

from presize.codecs.compiled import Compiled
from presize.codecs.pillow_resize import noise

try:
    from presize.codecs import _pillow_color
except ImportError:
    _pillow_color = None  # type: ignore[assignment]

Pixels = npt.NDArray[np.uint8]
Name = Literal["gray", "saturate", "blend", "sharpen", "hue", "blur", "affine"]

_MAX_SIDE = 4096
_MAX_FACTOR = 1e4


class Operation(NamedTuple):
    """Operation on an RGB or L image. `ours` takes the module, C-contiguous pixels and arguments, and returns None if
    only Pillow can do it; `pillows` takes an image and arguments. The two are compared for the arguments `tried`."""

    ours: Callable[..., Pixels | None]
    pillows: Callable[..., Image.Image]
    tried: tuple[tuple[Any, ...], ...]


def run(name: Name, pixels: Pixels, *arguments: Any) -> Pixels | None:
    """Return Pillow's result for an image, uint8 (height, width, 3) or (height, width). None without the compiled code,
    and for pixels or arguments that only Pillow supports. Thread-safe; releases the GIL."""
    module = compiled.trusted()
    if module is None or pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (3,)) or not pixels.size:
        return None
    if max(pixels.shape) > _MAX_SIDE or not _is_pillows(name):
        return None
    return OPERATIONS[name].ours(module, np.ascontiguousarray(pixels), *arguments)


def planes(pixels: Pixels, tables: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> bool:
    """Fill `out`, float32 (channels, height, width), with `tables[channel, value]` for each value of `pixels`, uint8;
    `tables` is float32 (channels, 256). Return False, with `out` unchanged, without the compiled code."""
    module = compiled.trusted()
    if module is not None:
        module.planes(np.ascontiguousarray(pixels), out, np.ascontiguousarray(tables), len(tables))
    return module is not None


@functools.cache
def _is_pillows(name: Name) -> bool:
    """Return whether our bytes and those of the installed Pillow are equal for images of noise."""
    module, (ours, pillows, tried) = compiled.trusted(), OPERATIONS[name]
    for pixels in (noise((97, 61, 3)), noise((41, 64))):
        for arguments in tried:
            made = ours(module, pixels, *arguments)
            if made is not None and made.tobytes() != pillows(Image.fromarray(pixels), *arguments).tobytes():
                return False
    return True


def _filled(fill: Callable[..., None], pixels: Pixels, *numbers: Any) -> Pixels:
    out = np.empty_like(pixels)
    fill(pixels, out, *numbers)
    return out


def _gray(module: ModuleType, pixels: Pixels) -> Pixels | None:
    if pixels.ndim != 3:
        return None
    out = np.empty(pixels.shape[:2], np.uint8)
    module.gray(pixels, out)
    return out


def _saturate(module: ModuleType, pixels: Pixels, factor: float) -> Pixels | None:
    if pixels.ndim != 3 or not abs(factor) < _MAX_FACTOR:
        return None
    return _filled(module.saturate, pixels, factor)


def _blend(module: ModuleType, pixels: Pixels, value: int, factor: float) -> Pixels | None:
    return _filled(module.blend, pixels, value, factor) if abs(factor) < _MAX_FACTOR else None


def _sharpen(module: ModuleType, pixels: Pixels, factor: float) -> Pixels | None:
    if min(pixels.shape[:2]) < 3 or not abs(factor) < _MAX_FACTOR:
        return None
    return _filled(module.sharpen, pixels, *_shape(pixels), factor)


def _shape(pixels: Pixels) -> tuple[int, ...]:
    return pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)


def _blur(module: ModuleType, pixels: Pixels, radii: tuple[float, float]) -> Pixels | None:
    across, down = map(_box_radius, radii)
    if across is None or down is None:
        return None
    rows = np.asarray(cv2.transpose(pixels), np.uint8)
    turned = np.asarray(cv2.transpose(_filled(module.blur_columns, rows, len(rows), across)), np.uint8)
    return _filled(module.blur_columns, turned, len(turned), down)


def _box_radius(deviation: float) -> float | None:
    """Return the radius of the three box blurs with which Pillow approximates a Gaussian blur, in single precision like
    Pillow. None unless 0 <= deviation < 100."""
    if not 0 <= deviation < 100:
        return None
    variance = np.float32(deviation) * np.float32(deviation) / np.float32(3)
    length = np.float32(math.sqrt(12.0 * float(variance) + 1.0))
    whole = np.float32(math.floor((float(length) - 1.0) / 2.0))
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) * (whole + 1)))
    radius = float(whole + part)
    return radius if radius >= 0 else None


def _hue(module: ModuleType, pixels: Pixels, shift: int) -> Pixels | None:
    return _filled(module.hue, pixels, shift, *_hue_tables()) if pixels.ndim == 3 else None


@functools.cache
def _hue_tables() -> tuple[Pixels, Pixels, Pixels]:
    """Return Pillow's hues, saturations and smallest colours for _pillow_color.c, each indexed by two numbers."""
    by = np.arange(256, dtype=np.uint8)
    most, first, second = (np.broadcast_to(each, (256, 256)) for each in (np.uint8(255), 255 - by[:, None], 255 - by))
    hues = [_converted(colors, "RGB", "HSV")[0] for colors in (
        (most, first, second), (first, most, second), (first, second, most)
    )]  # fmt: skip
    value, less = np.broadcast_to(by[:, None], (256, 256)), np.broadcast_to(by, (256, 256))
    least = np.where(less > value, 0, value - less).astype(np.uint8)
    saturations = _converted((value, least, least), "RGB", "HSV")[1]
    smallest = _converted((np.zeros_like(least), value, less), "HSV", "RGB")[2]
    return np.stack(hues), saturations, smallest


def _converted(bands: tuple[Pixels, Pixels, Pixels], mode: str, to: str) -> list[Pixels]:
    image = Image.frombytes(mode, (256, 256), np.stack(bands, axis=-1).tobytes()).convert(to)
    return [np.asarray(band) for band in image.split()]


def pillows_hue(image: Image.Image, shift: int) -> Image.Image:
    """Shift the hue by `shift`/256 of the circle, as torchvision does with Pillow."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    moved = Image.fromarray(np.asarray(hue) + np.uint8(shift % 256))
    return Image.merge("HSV", (moved, saturation, value)).convert("RGB")


def _affine(
    module: ModuleType, pixels: Pixels, size: tuple[int, int], matrix: tuple[float, ...], fill: Any
) -> Pixels | None:
    width, height = size
    if not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE and all(abs(number) < 8000 for number in matrix)):
        return None
    a, b, c, d, e, f = matrix
    corners = [(x, y) for x in (0, width) for y in (0, height)]
    if not all(abs(end) < 8000 for x, y in corners for end in (a * x + b * y + c, d * x + e * y + f)):
        return None  # Pillow's fixed-point coordinates overflow at 32768
    out = np.empty((height, width, *pixels.shape[2:]), np.uint8)
    outside = Image.new("RGB" if pixels.ndim == 3 else "L", (1, 1), 0 if fill is None else fill)
    out[:] = np.asarray(outside)[0, 0]
    module.affine(pixels, out, *_shape(pixels), height, width, tuple(matrix))
    return out


_TURN = (0.9848077530122081, 0.17364817766693033, -3.5, -0.17364817766693033, 0.9848077530122081, 7.25)

OPERATIONS: dict[Name, Operation] = {
    "gray": Operation(_gray, lambda image: image.convert("L"), ((),)),
    "saturate": Operation(
        _saturate,
        lambda image, factor: ImageEnhance.Color(image).enhance(factor),
        ((0.1,), (0.6,), (0.9,), (1.3,), (1.7,), (-0.5,)),
    ),
    "blend": Operation(
        _blend,
        lambda image, value, factor: Image.blend(Image.new("L", image.size, value).convert(image.mode), image, factor),
        ((0, 0.1), (0, 1.4), (117, 0.6), (200, 1.7), (9, -0.5), (255, 1.0)),
    ),
    "sharpen": Operation(
        _sharpen, lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor), ((0.0,), (0.1,), (0.7,), (1.9,))
    ),
    "hue": Operation(_hue, pillows_hue, ((0,), (13,), (-25,), (128,))),
    "blur": Operation(
        _blur,
        lambda image, radii: image.filter(ImageFilter.GaussianBlur(radii)),
        (((0.1, 0.1),), ((1.1, 1.9),), ((5.0, 40.0),)),
    ),
    "affine": Operation(
        _affine,
        lambda image, size, matrix, fill: image.transform(size, Image.Transform.AFFINE, matrix, fillcolor=fill),
        (((60, 70), _TURN, 5), ((61, 97), (1.0, 0.0, 9.0, 0.0, 1.0, -11.5), None), ((50, 50), (1, 0.3, 0, 0, 1, 0), 0)),
    ),
}


compiled = Compiled(_pillow_color, lambda _: None, "colour operations", "Pillow computes the colours")
