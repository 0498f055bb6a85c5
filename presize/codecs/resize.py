"""Target geometry for each --fit, and the back-ends that resample. Pure.

Both back-ends antialias. "bicubic" is the cubic convolution with a = -0.5 (Catmull-Rom). "nearest" picks the same
pixels as Pillow, with both back-ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from presize.codecs import pillow_resize
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.options import KEEP, Filter, Fit, ResizeBackend, Size

Pixels = npt.NDArray[Any]


class Box(NamedTuple):
    """Part of an image, in pixels from its top left corner; may be fractional."""

    top: float
    left: float
    height: float
    width: float


class Target(NamedTuple):
    """Geometry of resizing one image to one target size.

    Attributes:
        box: the part of the source that is used.
        size: (height, width) to which the box is resampled.
        canvas: (height, width) of the black canvas on which the result is centred; None for no canvas.
    """

    box: Box
    size: Size
    canvas: Size | None = None

    @property
    def is_whole_image(self) -> bool:
        """Return whether every source pixel is kept unchanged and none is added."""
        return self.canvas is None and self.box == (0, 0, *self.size)

    @property
    def reduction(self) -> float:
        """Return the source pixels per stored pixel, along the axis that is reduced least."""
        return min(self.box.height / self.size.height, self.box.width / self.size.width)


def target(source: Size, wanted: Size, fit: Fit, upscale: bool) -> Target:
    """Return the geometry that resizes an upright image of size `source` to `wanted`, both (height, width) in pixels.
    `wanted` may be KEEP.

    shorter: the image covers `wanted` and keeps its aspect ratio. For a size N, the shorter side becomes N and the
        longer side ``int(N * long / short)``, as in torchvision's Resize.
    longer: the image fits inside `wanted` and keeps its aspect ratio.
    stretch: exactly `wanted`; the aspect ratio may change.
    crop: exactly `wanted`; the image covers it, and the excess is cut off evenly at both ends.
    pad: exactly `wanted`; the image fits inside, with black bars around it.

    Without `upscale` no axis grows: for a small image, crop and stretch return less than `wanted`; pad does not."""
    height, width = source
    whole = Box(0, 0, height, width)
    if wanted == KEEP:
        return Target(whole, source)
    if fit == "stretch":
        shrunk = Size(min(wanted.height, height), min(wanted.width, width))
        return Target(whole, wanted if upscale else shrunk)
    if fit == "crop":
        return _crop(source, wanted, upscale)
    # Cross-multiplied, so that no rounding decides which side meets its target.
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
    """Resize `pixels` to `target`. Return a C-contiguous array, `pixels` itself if nothing changes. Thread-safe.

    `pixels` are uint8 or uint16, (height, width, 3), (height, width, 4) or (height, width), C-contiguous; "nearest"
    also takes int32 and any number of channels. With `alpha`, the fourth channel is alpha, and colours are weighted by
    it; otherwise all channels are treated alike."""
    box, size, _ = target
    if box[2:] == size:  # crop without resampling
        half = 0.5 if filter == "nearest" else 0  # nearest takes the pixel under the centre of the first one
        top, left = int(box.top + half), int(box.left + half)
        pixels = pixels[top : top + size.height, left : left + size.width]
    else:
        inside = _inside(box, *pixels.shape[:2])
        if filter == "nearest":
            pixels = _nearest(pixels, inside, size)
        else:
            pixels = BACKENDS[backend](pixels, inside, size, filter, alpha)
    return _padded(pixels, target)


def decode_resized(
    data: bytes, mode: jpeg_decoder.Mode, shape: tuple[int, int], scale: int, targets: list[Target], filter: Filter
) -> list[Pixels]:
    """Return the result of resize() with backend "presize" for each target, resizing the rows of a JPEG of `shape` at
    1/scale as they are decoded.

    Return an empty list if that is not possible: for "nearest", if a target keeps the size of an axis, if the decoder
    refuses the JPEG, and without the compiled code."""
    height, width = -(-shape[0] // scale), -(-shape[1] // scale)
    keeps = any(target.box[2:] == target.size for target in targets)
    if keeps or filter == "nearest" or not jpeg_decoder.is_available():
        return []
    resized, sink = [], None
    for target in targets:
        out = np.empty((*target.size, *_MORE[mode]), np.uint8)
        corners = _corners(_inside(target.box, height, width))
        sink = pillow_resize.row_sink((height, width), out, filter, corners, sink)
        if sink is None:
            return []
        resized.append(out)
    if not jpeg_decoder.decode_into(data, mode, shape, scale, sink):
        return []
    return [_padded(out, target) for out, target in zip(resized, targets, strict=True)]


_MORE: dict[jpeg_decoder.Mode, tuple[int, ...]] = {"GRAY": (), "RGB": (3,), "BGRX": (4,)}


def _inside(box: Box, height: int, width: int) -> Box:
    """Limit `box` to the image: rounding may have moved its end past it."""
    return Box(box.top, box.left, min(box.height, height - box.top), min(box.width, width - box.left))


def _padded(pixels: Pixels, target: Target) -> Pixels:
    size, canvas = target.size, target.canvas
    if canvas is None:
        return np.ascontiguousarray(pixels)
    padded = np.zeros((*canvas, *pixels.shape[2:]), pixels.dtype)
    top, left = (canvas.height - size.height) // 2, (canvas.width - size.width) // 2
    padded[top : top + size.height, left : left + size.width] = pixels
    return padded


def _nearest(pixels: Pixels, box: Box, size: Size) -> Pixels:
    height, width = pixels.shape[:2]
    rows = _centres(box.top, box.height, size.height, pixels.dtype).astype(np.intp)
    columns = _centres(box.left, box.width, size.width, pixels.dtype).astype(np.intp)
    taken: Pixels = pixels.take(np.minimum(rows, height - 1), axis=0).take(np.minimum(columns, width - 1), axis=1)
    return taken


def _centres(begin: float, length: float, count: int, dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """Return the centres of `count` equal pixels over `length` from `begin`, rounded like Pillow's, which decides ties:
    its boxes are float32, and it multiplies the step for 16-bit pixels but sums it for others."""
    first, last = np.float32(begin), np.float32(begin + length)
    step = np.float64(last - first) / count
    if dtype == np.uint16:
        return step * (np.arange(count) + 0.5) + np.float64(first)
    steps = np.full(count, step)
    steps[0] = np.float64(first) + step / 2
    return np.cumsum(steps)


def _presize(pixels: Pixels, box: Box, size: Size, filter: pillow_resize.Filter, alpha: bool) -> Pixels:
    if pixels.dtype == np.uint16:
        return _in_planes(pixels, box, size, filter, alpha, _in_two_passes)
    resized = pillow_resize.resize(pixels, size, filter, _corners(box), alpha=alpha)
    if resized is None:
        image = Image.fromarray(pixels).convert("RGBa") if alpha else _image(pixels)
        image = _in_two_passes(image, box, size, filter)
        resized = np.asarray(image.convert("RGBA") if alpha else image)
    return resized


def _pillow(pixels: Pixels, box: Box, size: Size, filter: pillow_resize.Filter, alpha: bool) -> Pixels:
    if pixels.dtype == np.uint16:
        return _in_planes(pixels, box, size, filter, alpha, _in_one_call)
    return np.asarray(_in_one_call(Image.fromarray(pixels) if alpha else _image(pixels), box, size, filter))


def _image(pixels: Pixels) -> Image.Image:
    """Return a Pillow image of uint8 pixels. Four channels become CMYK, so that none is taken for alpha."""
    if pixels.shape[2:] != (4,):
        return Image.fromarray(pixels)
    return Image.frombuffer("CMYK", pixels.shape[1::-1], pixels, "raw", "CMYK", 0, 1)


def _corners(box: Box) -> pillow_resize.Box:
    return (box.left, box.top, box.left + box.width, box.top + box.height)


def _in_one_call(image: Image.Image, box: Box, size: Size, filter: pillow_resize.Filter) -> Image.Image:
    """Resize with the installed Pillow, in its order of passes."""
    return image.resize((size.width, size.height), Image.Resampling[filter.upper()], _corners(box))


def _in_two_passes(image: Image.Image, box: Box, size: Size, filter: pillow_resize.Filter) -> Image.Image:
    """Resize horizontally, then vertically. Versions of Pillow agree on the bytes of a single pass."""
    rows = _in_one_call(image, Box(0, box.left, image.height, box.width), Size(image.height, size.width), filter)
    return _in_one_call(rows, Box(box.top, 0, box.height, size.width), size, filter)


def _in_planes(
    pixels: Pixels,
    box: Box,
    size: Size,
    filter: pillow_resize.Filter,
    alpha: bool,
    resample: Callable[..., Image.Image],
) -> Pixels:
    """Resize 16-bit pixels in floating point, channel by channel."""
    channels = np.atleast_3d(pixels).astype(np.float32)
    if alpha:
        channels[:, :, :3] *= channels[:, :, 3:] / 65535
    planes = [Image.fromarray(channels[:, :, k]) for k in range(channels.shape[2])]
    resized = np.stack([np.asarray(resample(plane, box, size, filter)) for plane in planes], axis=-1)
    if alpha:
        cover = resized[:, :, 3:].clip(0, 65535)
        resized[:, :, :3] *= np.divide(65535, cover, out=np.zeros_like(cover), where=cover >= 0.5)
    rounded: Pixels = resized.round().clip(0, 65535).astype(np.uint16)
    return rounded.reshape(*size, *pixels.shape[2:])


BACKENDS: dict[ResizeBackend, Callable[[Pixels, Box, Size, pillow_resize.Filter, bool], Pixels]] = {
    "presize": _presize,
    "pillow": _pillow,
}
"""Functions of pixels, the box to use, its new size, the filter, and whether the fourth channel is alpha.

"presize" always makes Pillow's bytes with the horizontal pass first: in C, or by two calls of Pillow. "pillow" calls
the installed PIL, in its order of passes. OpenCV is not a back-end: its linear and cubic interpolations alias when
shrinking, and its area interpolation is a different filter."""
