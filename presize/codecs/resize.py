"""The target of an image for each --fit, and the back-ends that resample it. Pure.

All back-ends antialias: the filter's support grows with the reduction, as in Pillow and in
torchvision's ``antialias=True``. "bicubic" is the cubic convolution with a = -0.5 (Catmull-Rom).
"nearest" takes pixels as they are, those that Pillow takes, and is the same whatever the back-end.

Which back-end is the default was measured: see BACKENDS.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import cykooz_resizer
import numpy as np
import numpy.typing as npt
from PIL import Image

from presize.options import KEEP, Filter, Fit, ResizeBackend, Size

Pixels = npt.NDArray[Any]


class Box(NamedTuple):
    """A part of an image, in pixels from its top left corner; fractions are parts of a pixel."""

    top: float
    left: float
    height: float
    width: float


class Target(NamedTuple):
    """How one image is brought to one target size.

    Attributes:
        box: the part of the source that is used.
        size: (height, width) that the box is resampled to.
        canvas: (height, width) of the black canvas that the result is centred on; None for none.
    """

    box: Box
    size: Size
    canvas: Size | None = None

    @property
    def is_whole_image(self) -> bool:
        """Whether every source pixel is kept as it is and none is added."""
        return self.canvas is None and self.box == (0, 0, *self.size)

    @property
    def reduction(self) -> float:
        """Source pixels for each stored pixel, along the axis that is reduced least."""
        return min(self.box.height / self.size.height, self.box.width / self.size.width)


def target(source: Size, wanted: Size, fit: Fit, upscale: bool) -> Target:
    """How an upright image of size `source` is brought to `wanted`, both (height, width) in pixels, or to KEEP.

    shorter: the image covers `wanted` and keeps its shape; for N that makes its shorter side N and its
        longer side ``int(N * long / short)``, as torchvision's Resize computes it.
    longer: the image lies inside `wanted` and keeps its shape.
    stretch: exactly `wanted`, whatever the shape.
    crop: exactly `wanted`, covered, the surplus cut off evenly at both ends.
    pad: exactly `wanted`, inside, black bars around it.

    Without `upscale` no axis grows: shorter, longer and pad then use the image as it is, stretch
    shrinks just the axes that are too long, and crop cuts what is there to cut. So crop and stretch
    give less than `wanted` for a small image; pad always gives exactly `wanted`.
    """
    height, width = source
    whole = Box(0, 0, height, width)
    if wanted == KEEP:
        return Target(whole, source)
    if fit == "stretch":
        shrunk = Size(min(wanted.height, height), min(wanted.width, width))
        return Target(whole, wanted if upscale else shrunk)
    if fit == "crop":
        return _crop(source, wanted, upscale)
    # Compared across, not divided: no rounding decides which side meets its target.
    height_meets = wanted.height * width >= wanted.width * height
    if fit != "shorter":
        height_meets = wanted.height * width <= wanted.width * height
    if height_meets:
        size = Size(wanted.height, max(1, wanted.height * width // height))
    else:
        size = Size(max(1, wanted.width * height // width), wanted.width)
    grows = size.height >= height if height_meets else size.width >= width
    if grows and not upscale:
        size = source
    return Target(whole, size, wanted if fit == "pad" and size != wanted else None)


def _crop(source: Size, wanted: Size, upscale: bool) -> Target:
    height, width = source
    if not upscale and (wanted.height >= height or wanted.width >= width):
        size = Size(min(wanted.height, height), min(wanted.width, width))
        return Target(Box((height - size.height) // 2, (width - size.width) // 2, *size), size)
    if wanted.height * width >= wanted.width * height:
        used = wanted.width * height / wanted.height
        return Target(Box(0, (width - used) / 2, height, used), wanted)
    used = wanted.height * width / wanted.width
    return Target(Box((height - used) / 2, 0, used, width), wanted)


def resize(pixels: Pixels, target: Target, filter: Filter, backend: ResizeBackend, alpha: bool = False) -> Pixels:
    """`pixels` (height, width, 3), (height, width, 4) or (height, width), C-contiguous, as `target` says. Thread-safe.

    Args:
        pixels: uint8 or uint16. "nearest" takes any number of channels, and int32.
        target: what to make of them.
        filter: how to resample.
        backend: the library that does.
        alpha: whether the fourth channel is alpha: colours then count as much as they cover. Otherwise all channels are
            treated alike, and four of 8 bits are resized without a copy.

    Returns:
        A C-contiguous array of the same rank and type; `pixels` itself when there is nothing to do.
    """
    box, size, canvas = target
    if box[2:] == size:  # nothing to resample, at most to cut
        half = 0.5 if filter == "nearest" else 0  # the pixel under the centre of the first
        top, left = int(box.top + half), int(box.left + half)
        pixels = pixels[top : top + size.height, left : left + size.width]
    else:
        height, width = pixels.shape[:2]  # by rounding, a box may end past them
        inside = Box(box.top, box.left, min(box.height, height - box.top), min(box.width, width - box.left))
        resample = _nearest if filter == "nearest" else BACKENDS[backend]
        pixels = resample(pixels, inside, size, filter, alpha)
    if canvas is None:
        return np.ascontiguousarray(pixels)
    padded = np.zeros((*canvas, *pixels.shape[2:]), pixels.dtype)
    top, left = (canvas.height - size.height) // 2, (canvas.width - size.width) // 2
    padded[top : top + size.height, left : left + size.width] = pixels
    return padded


def _nearest(pixels: Pixels, box: Box, size: Size, _filter: Filter, _alpha: bool) -> Pixels:
    height, width = pixels.shape[:2]
    rows = _centres(box.top, box.height, size.height, pixels.dtype).astype(np.intp)
    columns = _centres(box.left, box.width, size.width, pixels.dtype).astype(np.intp)
    taken: Pixels = pixels.take(np.minimum(rows, height - 1), axis=0).take(np.minimum(columns, width - 1), axis=1)
    return taken


def _centres(begin: float, length: float, count: int, dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """The centres of `count` pixels that share `length` from `begin`, computed as Pillow does: where a centre lies
    between two pixels, that decides. Its boxes are float32; it multiplies the steps of 16 bits, and adds up others."""
    first, last = np.float32(begin), np.float32(begin + length)
    step = np.float64(last - first) / count
    if dtype == np.uint16:
        return step * (np.arange(count) + 0.5) + np.float64(first)
    steps = np.full(count, step)
    steps[0] = np.float64(first) + step / 2
    return np.cumsum(steps)


def _cykooz(pixels: Pixels, box: Box, size: Size, filter: Filter, alpha: bool) -> Pixels:
    if filter == "hamming":  # the one filter it does not have
        return _pillow(pixels, box, size, filter, alpha)
    height, width = pixels.shape[:2]
    options = _cykooz_options(filter, alpha)
    if box != (0, 0, height, width):
        options = options.copy()
        options.crop_box = cykooz_resizer.CropBox(box.left, box.top, box.width, box.height)
    if not hasattr(_scratch, "resizer"):
        _scratch.resizer = cykooz_resizer.Resizer()
    resizer = _scratch.resizer
    kind = _CYKOOZ_KINDS.get((pixels.dtype.itemsize, pixels.shape[2:], alpha))
    if kind is None:
        resized = np.empty((*size, 4), np.uint8)
        into = _four_bytes(resized)
        into.readonly = 0  # or Pillow would write to a copy
        resizer.resize_pil(_four_bytes(pixels), into, options)
        return resized
    source = cykooz_resizer.ImageData(width, height, kind, pixels.tobytes())
    result = cykooz_resizer.ImageData(size.width, size.height, kind)
    resizer.resize(source, result, options)
    return np.frombuffer(result.get_buffer(), pixels.dtype).reshape(*size, *pixels.shape[2:])


_CYKOOZ_KINDS = {
    (1, (), False): cykooz_resizer.PixelType.U8,
    (1, (3,), False): cykooz_resizer.PixelType.U8x3,
    (1, (4,), True): cykooz_resizer.PixelType.U8x4,
    (2, (), False): cykooz_resizer.PixelType.U16,
    (2, (3,), False): cykooz_resizer.PixelType.U16x3,
    (2, (4,), True): cykooz_resizer.PixelType.U16x4,
}
"""By the bytes of a channel, the shape of a pixel, and whether it has alpha."""


def _four_bytes(pixels: Pixels) -> Image.Image:
    """A Pillow image over the memory of `pixels` (height, width, 4). CMYK, so that no band is taken for alpha."""
    height, width = pixels.shape[:2]
    return Image.frombuffer("CMYK", (width, height), pixels, "raw", "CMYK", 0, 1)


_scratch = threading.local()


@functools.cache
def _cykooz_options(filter: Filter, alpha: bool) -> Any:
    kernel = {"box": "box", "bilinear": "bilinear", "bicubic": "catmull_rom", "lanczos": "lanczos3"}[filter]
    algorithm = cykooz_resizer.ResizeAlg.convolution(cykooz_resizer.FilterType[kernel])
    return cykooz_resizer.ResizeOptions(algorithm, use_alpha=alpha)


def _pillow(pixels: Pixels, box: Box, size: Size, filter: Filter, alpha: bool) -> Pixels:
    if pixels.dtype == np.uint16:
        return _pillow_16(pixels, box, size, filter, alpha)
    is_bgrx = pixels.shape[2:] == (4,) and not alpha
    return _by_pillow(_four_bytes(pixels) if is_bgrx else Image.fromarray(pixels), box, size, filter)


def _by_pillow(image: Image.Image, box: Box, size: Size, filter: Filter) -> Pixels:
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    return np.asarray(image.resize((size.width, size.height), Image.Resampling[filter.upper()], corners))


def _pillow_16(pixels: Pixels, box: Box, size: Size, filter: Filter, alpha: bool) -> Pixels:
    """16 bits in floating point, channel by channel."""
    channels = np.atleast_3d(pixels).astype(np.float32)
    if alpha:
        channels[:, :, :3] *= channels[:, :, 3:] / 65535
    planes = [Image.fromarray(channels[:, :, k]) for k in range(channels.shape[2])]
    resized = np.stack([_by_pillow(plane, box, size, filter) for plane in planes], axis=-1)
    if alpha:
        cover = resized[:, :, 3:].clip(0, 65535)
        resized[:, :, :3] *= np.divide(65535, cover, out=np.zeros_like(cover), where=cover >= 0.5)
    rounded: Pixels = resized.round().clip(0, 65535).astype(np.uint16)
    return rounded.reshape(*size, *pixels.shape[2:])


BACKENDS: dict[ResizeBackend, Callable[[Pixels, Box, Size, Filter, bool], Pixels]] = {
    "cykooz": _cykooz,
    "pillow": _pillow,
}
"""Each takes pixels, the box of them to use, the (height, width) to make of it, the filter, and whether the fourth
channel is alpha.

benchmarks/transcoding/results/resizers.csv (2026-11-25) compares them with what is not offered. From array to array,
for photographs to 256 px, cykooz.resizer was 5.7 times as fast as Pillow 13, about as fast as pillow-simd's AVX2 build,
and as near to exact arithmetic as either (57.1 dB); unlike pillow-simd it comes as a wheel and leaves Pillow's decoders
as they are. OpenCV is no back-end: its linear and cubic interpolations alias when they shrink (33 to 38 dB), and its
area interpolation is another filter (42 dB) and slower. The output depends on the back-end, so the machine has no say
in it.
"""
