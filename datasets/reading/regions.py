"""Decoding of boxes of stored values into rows of a batch: cut_region or uncut_region, then read_region. Only the tiles
that a box needs are decoded, at 1/2, 1/4 or 1/8 of the size if the caller asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from presize.codecs.arrays import HEADER_BYTES, ArrayHeader, decode_array
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.segments import coded_size
from presize.codecs.jpeg.tiles import cut_jpeg
from presize.codecs.pillow_resize import Filter, Whole, installed_order, is_available, resize_as_installed
from presize.codecs.resize import Box as ResizeBox
from presize.codecs.resize import Target, resize
from presize.codecs.source_facts import are_rgb, unpack_facts
from presize.codecs.stored_value import check_shape, decode_value
from presize.errors import OptionError
from presize.formatting import plural
from presize.options import MAX_PIXELS, Color, Format, Size

Pixels = npt.NDArray[Any]

Box = tuple[int, int, int, int]
"""(top, left, height, width) in pixels."""


class Region(NamedTuple):
    format: Format
    data: bytes | memoryview  # a JPEG cut to the box, or the whole value
    top: int  # of the box in `data`
    left: int
    whole: bool  # whether `data` is the whole image
    box: Box  # in the image


def uncut_region(value: memoryview, format: Format, box: Box) -> Region:
    return Region(format, value, box[0], box[1], True, box)


def cut_region(value: bytes | memoryview, box: Box) -> Region:
    """Return a copy of what `box`, inside the image, needs of the JPEG `value`. Never raises, whatever the bytes."""
    top, left, _, _ = box
    part = cut_jpeg(value, *box)
    if part is None or part.data is value:
        return Region("jpeg", bytes(value), top, left, True, box)
    return Region("jpeg", *part, False, box)


class Sampling(NamedTuple):
    """Mapping from a box to a row. Without a window, the box is resized to the row. With one, (height, width, top,
    left) in pixels, the whole image is resized to (height, width), and the row begins at (top, left) in it."""

    filter: Filter = "bilinear"
    window: tuple[int, int, int, int] | None = None


class View(NamedTuple):
    """A part of an image and its output row: C-contiguous uint8 or uint16 (height, width, 1, 3 or 4)."""

    out: Pixels
    box: Box  # in the image
    flip: bool = False
    sampling: Sampling = Sampling()


def read_region(views: Sequence[View], region: Region, shape: tuple[int, int], scale: int = 1) -> None:
    """Decode the box of `region`, of an image of `shape`, once at 1/scale, and resize each view to its `out`. Boxes are
    multiples of `scale`: 1, 2, 4 or 8. Thread-safe. Raises one of DAMAGE (presize.codecs.stored_value)."""
    top, left, _, _ = region.box
    pixels = _decoded(region, shape, views[0].out, scale)
    for out, (y, x, height, width), flip, (filter, window) in views:
        part = ((y - top) // scale, (x - left) // scale, height // scale, width // scale)
        whole = None if window is None else Whole(shape, (y, x), window[:2], window[2:])
        resample(_part(pixels, part), out, flip, filter, whole)


def read_values(views: Sequence[View], region: Region, shape: tuple[int, int], scale: int = 1) -> None:  # noqa: ARG001
    """Read like read_region, but one view of a mask, by nearest neighbour: (height, width) or (height, width, 3)."""
    (view,) = views
    values = decode_value(memoryview(region.data), region.format, "exact", shape, _limit(shape))
    if values.shape[2:] != view.out.shape[2:]:
        raise ValueError(f"it has shape {values.shape}, which differs from the index")
    if values.itemsize > view.out.itemsize:
        raise ValueError(f"it has {values.itemsize * 8} bits, but the manifest says {view.out.itemsize * 8}")
    nearest(values, view, shape, view.out)


def mask_channels(data: Any) -> tuple[int, ...]:
    """Return (3,) if all masks of a companion are RGB, and () if each has one channel. Raises OptionError otherwise."""
    is_rgb = are_rgb(data.numbers("source_facts"))
    if is_rgb.any() and not is_rgb.all():
        raise OptionError(
            f"companions: {is_rgb.sum():,} of {plural(len(is_rgb), 'mask')} of {data.companion_name!r} in {data.root} "
            "are RGB, the others have one channel, and they cannot be stacked; read without a crop, or name the "
            "companions to read: companions=(...)"
        )
    return (3,) if is_rgb.any() else ()


def nearest(values: Pixels, view: View, shape: tuple[int, int], out: Pixels) -> None:
    """Fill `out`, (height, width) or (height, width, channels), from `values` as `view` says, by nearest neighbour."""
    height, width = out.shape[:2]
    window = view.sampling.window
    if window is None:
        part = resize(values, Target(ResizeBox(*view.box), Size(height, width)), "nearest", "pillow")
    else:
        resized = resize(values, Target(ResizeBox(0, 0, *shape), Size(*window[:2])), "nearest", "pillow")
        part = resized[window[2] : window[2] + height, window[3] : window[3] + width]
    out[...] = part[:, ::-1] if view.flip else part


def like_images(data: Any, samples: Sequence[int] | slice = slice(None)) -> npt.NDArray[np.bool_]:
    """Return whether each array of a companion (see Dataset.companion) has the height and width of its image."""
    return np.asarray(unpack_facts(data.numbers("source_facts")[samples], "like_image") == 1)


@dataclass(frozen=True)
class ArrayRows:
    """A function that fills rows with arrays, called like read_region. Thread-safe. `shape`: of each array, but without
    height and width if arrays are cropped with their images. Raises OptionError for an array of another shape or
    type."""

    name: str  # of the companion, for messages
    root: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_cropped: bool

    @classmethod
    def of(cls, data: Any) -> Self:
        """Create it for a companion from the index and the first record. Raises OptionError if the arrays differ."""
        for _, value in data.values([0]):
            try:
                header = ArrayHeader.of(value)
            except ValueError as error:
                raise data.damage(0, error) from None
        are_cropped = like_images(data)
        heights, widths = (data.numbers(name).astype(np.int64) for name in ("height", "width"))
        nbytes = data.numbers("nbytes") - HEADER_BYTES
        is_cropped, sizes = bool(are_cropped[0]), heights * widths
        alike = (are_cropped == is_cropped).all() and (nbytes * sizes[0] == nbytes[0] * sizes).all()
        if not alike or not (is_cropped or ((heights == heights[0]).all() and (widths == widths[0]).all())):
            raise _differ(data.companion_name, data.root)
        dtype, shape = header.dtype.newbyteorder("="), header.shape[2 if is_cropped else 0 :]
        return cls(data.companion_name, str(data.root), dtype, shape, is_cropped)

    def __call__(self, views: Sequence[View], region: Region, shape: tuple[int, int], scale: int) -> None:  # noqa: ARG002
        (view,) = views
        values = decode_array(region.data)
        if self.is_cropped and values.shape[:2] != shape:
            raise ValueError(f"it has shape {values.shape}, which differs from the index")
        expected = (*shape, *self.shape) if self.is_cropped else self.shape
        if values.dtype != self.dtype or values.shape != expected:
            kinds = f" ({self.dtype} {expected} and {values.dtype} {values.shape})"
            raise _differ(self.name, self.root, kinds)
        out = view.out.view(self.dtype)
        if self.is_cropped:
            nearest(values, view, shape, out)
        else:
            out[...] = values


def _differ(name: str, root: object, kinds: str = "") -> OptionError:
    return OptionError(
        f"companions: the arrays of {name!r} in {root} differ in shape or type{kinds} and cannot be stacked; read "
        "without a crop, or name the companions to read: companions=(...)"
    )


def _decoded(region: Region, shape: tuple[int, int], out: Pixels, scale: int) -> Pixels:
    """Decode the box of `region` at 1/scale, with type and channels of `out`; the thread's next call may reuse it."""
    channels, depth = out.shape[2], 8 * out.itemsize
    if region.format == "jpeg":
        pixels = jpeg_box(region, shape, channels, scale)
    elif region.format == "raw":
        # A view, not a copy of the whole image.
        pixels = _part(np.frombuffer(region.data, f"<u{out.itemsize}").reshape(*shape, -1), region.box)
    else:
        color = _COLORS[channels]
        value = memoryview(region.data)
        pixels = _part(decode_value(value, region.format, color, shape, _limit(shape), depth), region.box)
    if channels == 3 and (pixels.ndim == 2 or pixels.shape[2] == 1):
        pixels = np.repeat(pixels.reshape(*region.box[2:], 1), 3, axis=2)
    if pixels.size != pixels.shape[0] * pixels.shape[1] * channels or not pixels.size:
        # OpenCV would silently write elsewhere.
        raise ValueError(f"expected {channels} channel{'s' if channels > 1 else ''}, got shape {pixels.shape}")
    return pixels


_COLORS: dict[int, Color] = {1: "gray", 3: "rgb", 4: "rgba"}


def jpeg_box(region: Region, shape: tuple[int, int], channels: int, scale: int = 1, *, lasting: bool = False) -> Pixels:
    """Decode the box of `region`, a JPEG of an image of `shape`, at 1/scale to uint8 (height, width, channels). Unless
    `lasting`, the thread's next call reuses the memory. Raises one of DAMAGE."""
    memory: Callable[[int], Pixels] = partial(np.empty, dtype=np.uint8) if lasting else _scratch
    box = region.box
    height, width = box[2:]
    mode: jpeg_decoder.Mode = "RGB" if channels == 3 else "GRAY"
    part = (box[0] // scale, box[1] // scale, height // scale, width // scale)
    if region.whole and jpeg_decoder.is_available():
        # A damaged index may contain huge sizes, and no photograph has more pixels a byte.
        if height * width <= 128 * len(region.data):
            buffer = memory(part[2] * part[3] * channels)
            pixels = jpeg_decoder.decode(region.data, mode, shape, part, buffer, scale)
            if pixels is not None:
                return pixels
        region = cut_region(region.data, box)
    _, data, top, left, whole, _ = region
    coded_height, coded_width, _ = coded_size(data)
    if whole:
        check_shape((coded_height, coded_width), shape)
    elif coded_height > shape[0] or coded_width > shape[1]:
        raise ValueError(f"its tiles are {coded_width} x {coded_height} pixels, the image only {shape[1]} x {shape[0]}")
    buffer = memory(coded_height * coded_width * channels)
    pixels = jpeg_decoder.decode_with_libjpeg(
        data, mode, (coded_height, coded_width), scale, buffer, max_pixels=_limit(shape), strict=not whole
    )
    return _part(pixels, (top // scale, left // scale, *part[2:]))


def _limit(shape: tuple[int, int]) -> int:
    """Return the pixel limit for decoders, above the default only if the dataset's own limit is."""
    return max(MAX_PIXELS, shape[0] * shape[1])


_local = threading.local()


def _scratch(nbytes: int) -> Pixels:
    """Return at least `nbytes` of memory, kept for each thread, since new pages cost more than writing the pixels."""
    buffer: Pixels | None = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _local.buffer = np.empty(nbytes, np.uint8)
    return buffer


def _part(pixels: Pixels, box: Box) -> Pixels:
    top, left, height, width = box
    if pixels.shape[0] < top + height or pixels.shape[1] < left + width:
        raise ValueError(f"it is {pixels.shape[0]} pixels high and {pixels.shape[1]} wide, less than the index says")
    return pixels[top : top + height, left : left + width]


# ---- resizing: 8 bits like the installed Pillow; 16 bits like torch in float32, since Pillow has only one channel

_MODES = {1: "L", 3: "RGB", 4: "RGBX"}
"""Pillow's modes by the number of channels. RGBX, because Pillow would multiply the colours of RGBA by alpha."""


def resample(pixels: Pixels, out: Pixels, flip: bool, filter: Filter = "bilinear", whole: Whole | None = None) -> None:
    """Resize `pixels`, uint8 or uint16 (height, width[, channels]), to `out`, C-contiguous. They may be a part of a
    `whole` image if resizes_parts(their type)."""
    pixels = pixels.reshape(*pixels.shape[:2], out.shape[2])
    if whole is not None and whole.shape == whole.size:
        pixels, whole = _window(pixels, out, whole.corner[0] - whole.start[0], whole.corner[1] - whole.start[1]), None
    if whole is None and pixels.shape == out.shape:
        np.copyto(out, pixels)
    elif resize_as_installed(pixels, out.shape[:2], filter, flip=flip, out=out, whole=whole) is not None:
        return
    elif whole is None:
        _by_library(pixels, out, filter)
    else:
        resized = np.empty((*whole.size, out.shape[2]), out.dtype)
        _by_library(pixels, resized, filter)
        np.copyto(out, _window(resized, out, *whole.corner))
    if flip:
        cv2.flip(out, 1, dst=out)


def resizes_parts(dtype: npt.DTypeLike) -> bool:
    """Return whether a part of a resized image can be made from a part of the image: Pillow only resizes whole ones."""
    return dtype == np.uint8 and installed_order() != "another" and is_available()


def _window(pixels: Pixels, out: Pixels, top: int, left: int) -> Pixels:
    return pixels[top : top + out.shape[0], left : left + out.shape[1]]


def _by_library(pixels: Pixels, out: Pixels, filter: Filter) -> None:
    if pixels.dtype == np.uint8:
        by_pillow(pixels, out, filter)
    elif filter == "bilinear":
        _by_torch(pixels, out)
    else:  # Pillow resizes floats, but no 16-bit colours
        for channel in range(out.shape[2]):
            image = Image.fromarray(pixels[:, :, channel].astype(np.float32))
            resized = np.asarray(image.resize(out.shape[1::-1], Image.Resampling[filter.upper()]))
            out[:, :, channel] = resized.round().clip(0, np.iinfo(out.dtype).max)


def by_pillow(pixels: Pixels, out: Pixels, filter: Filter = "bilinear") -> None:
    height, width, channels = out.shape
    source = (pixels.shape[1], pixels.shape[0])
    image = Image.frombuffer(_MODES[channels], source, np.ascontiguousarray(pixels), "raw", _MODES[channels], 0, 1)
    np.copyto(out, np.asarray(image.resize((width, height), Image.Resampling[filter.upper()])).reshape(out.shape))


def _by_torch(pixels: Pixels, out: Pixels) -> None:
    result = np.empty(out.shape, np.float32)
    views = [torch.from_numpy(array).permute(2, 0, 1).unsqueeze(0) for array in (pixels.astype(np.float32), result)]
    # torch.nn.functional.interpolate calls this, but takes no `out`.
    torch.ops.aten._upsample_bilinear2d_aa.out(views[0], list(out.shape[:2]), False, None, None, out=views[1])
    np.copyto(out, result.round(), casting="unsafe")  # weighted means: none is out of range
