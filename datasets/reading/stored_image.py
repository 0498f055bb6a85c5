"""Stored images as PIL images that do their work late: StoredImage, and Record, the stored JPEG behind it."""

from __future__ import annotations

import io
import math
import numbers
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, JpegImagePlugin

from presize.codecs import pillow_resize
from presize.codecs.jpeg.segments import coded_size
from presize.codecs.stored_value import DAMAGE, check_pixels, check_shape
from presize.datasets.reading.regions import Box, jpeg_box, uncut_region
from presize.errors import DatasetError
from presize.options import StoredColor

Pixels = npt.NDArray[np.uint8]


class Record:
    """A stored JPEG, decoded as far as the images made of it need it. Thread-safe.

    The first part that is asked for is decoded alone. Whoever asks for a second one may ask for many, as several views
    of an image do, so all of it is then decoded and kept.

    Args:
        value: the JPEG; a copy, so that the dataset may be closed.
        color: that the dataset was built for.
        shape: (height, width) in pixels, as the index says.
        max_pixels: that height x width may not exceed.
        damage: makes the error that is raised for pixels that cannot be decoded.

    Attributes:
        mode: "RGB" or "L".

    Raises:
        ValueError, ImageError: the header is damaged, or not that of an image of `shape`.
    """

    def __init__(
        self,
        value: bytes,
        color: StoredColor,
        shape: tuple[int, int],
        max_pixels: int,
        damage: Callable[[Exception], DatasetError],
    ) -> None:
        check_pixels(shape, max_pixels)
        height, width, is_gray = coded_size(value)
        check_shape((height, width), shape)
        self.mode = "L" if color == "gray" or (color == "keep" and is_gray) else "RGB"
        self.box: Box = (0, 0, height, width)
        self._value = value
        self._damage = damage
        self._is_used = False
        self._whole: Pixels | None = None
        self._file: JpegImagePlugin.JpegImageFile | None = None

    def part(self, box: Box, *, lasting: bool) -> Pixels:
        """Return the pixels in `box`, (height, width, 3) or (height, width), which must not be written to.

        Args:
            box: inside the image.
            lasting: False if the thread's next call may overwrite them.

        Raises:
            DatasetError: they are damaged.
        """
        whole = self._whole
        if whole is None and not self._is_used:
            self._is_used = True
            pixels = self._decode(box, lasting)
            if lasting and box == self.box:
                self._whole = pixels
            return pixels
        if whole is None:
            whole = self._whole = self._decode(self.box, True)
        top, left, height, width = box
        return whole[top : top + height, left : left + width]

    def _decode(self, box: Box, lasting: bool) -> Pixels:
        region = uncut_region(memoryview(self._value), "jpeg", box)
        try:
            pixels = jpeg_box(region, self.box[2:], len(self.mode), lasting=lasting)
        except DAMAGE as error:
            raise self._damage(error) from None
        return pixels[:, :, 0] if self.mode == "L" else pixels

    @property
    def file(self) -> JpegImagePlugin.JpegImageFile:
        """What Pillow reads from the header."""
        if self._file is None:
            try:
                self._file = JpegImagePlugin.JpegImageFile(io.BytesIO(self._value))
            except (SyntaxError, OSError, ValueError) as error:
                raise self._damage(error) from None
        return self._file


class Part(NamedTuple):
    """A part of a record that is not decoded yet."""

    record: Record
    box: Box


class StoredImage(Image.Image):
    """A stored image as a PIL image that does its work late: equal to a plain one in pixels, attributes and errors.

    Nothing is decoded by crop() and copy(). Decoding what the image shows, and no more, is left to resize(),
    transpose(), tobytes() and NumPy, whose results keep their pixels as arrays. Everything else, `im` included, works
    on ordinary pixels of Pillow, made at the first such use and this image's own: arrays, which images share, are never
    written to. Images outlive their dataset, may be used by several threads, and are decoded when they are pickled.

    Args:
        source: a record, or pixels that nobody writes to: uint8, (height, width, 3) RGB, (height, width, 4) RGBA or
            (height, width) grey.

    Raises (any use):
        DatasetError: the stored image is damaged.
    """

    _im: Any = None
    _info: dict[str | tuple[int, int], Any] | None = None
    _source: Part | Pixels | None = None
    _record: Record | None = None
    """Whose header `info` is read from."""

    def __init__(self, source: Record | Pixels) -> None:
        self._begin(Part(source, source.box) if isinstance(source, Record) else source)
        if isinstance(source, Record):
            del self._info
            self._record = source
            self.format, self.format_description = "JPEG", JpegImagePlugin.JpegImageFile.format_description

    def _begin(self, late: Part | Pixels) -> None:
        super().__init__()
        del self._im
        self._source = late
        height, width = late.box[2:] if isinstance(late, Part) else late.shape[:2]
        self._size = width, height
        self._mode = late.record.mode if isinstance(late, Part) else _MODES[late.shape[2:]]

    def _derived(self, late: Part | Pixels) -> StoredImage:
        """An image made of this one, as by Image._new."""
        image = StoredImage.__new__(StoredImage)
        image._begin(late)
        if self._info is None:
            del image._info
            image._record = self._record
        else:
            image._info = _copied(self._info)
        return image

    def __getattr__(self, name: str) -> Any:
        """Only called for what is missing."""
        if name in _OF_FILES and self.format is not None and self._record is not None:
            return getattr(self._record.file, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- what Pillow's methods use ----

    @property
    def info(self) -> dict[str | tuple[int, int], Any]:
        """What Pillow reads from the header of the file, read when it is first asked for."""
        info = self._info
        if info is None:
            read = {} if self._record is None else self._record.file.info
            info = vars(self).setdefault("_info", _copied(read))  # of two threads one is first
        return info

    @info.setter
    def info(self, info: dict[str | tuple[int, int], Any]) -> None:
        self._info = info

    @property
    def im(self) -> Any:
        """The pixels as Pillow has them, decoded if need be."""
        if "_im" not in vars(self):
            self.load()
        return super().im

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im
        self._source = None

    @property
    def _late(self) -> Part | Pixels | None:
        """The pixels as long as Pillow has none, which may change its own in place."""
        return None if "_im" in vars(self) else self._source

    def load(self) -> Any:
        """Decode the image, unless it is."""
        late = self._late
        if late is not None:
            self._load(_pixels(late, lasting=False))
        return super().load()

    def _load(self, pixels: Pixels) -> None:
        vars(self).setdefault("_im", plain_image(pixels).im)  # of two threads one is first
        self._source = None

    def decode(self) -> StoredImage:
        """Decode the image now, so that damage is noticed. Returns itself."""
        late = self._late
        if isinstance(late, Part):
            self._source = _pixels(late, lasting=True)
        return self

    def close(self) -> None:
        """Forget the pixels, as any image does."""
        super().close()
        self._source = None

    # ---- what is done without Pillow's pixels ----

    def copy(self) -> Image.Image:
        """As of any image."""
        late = self._late
        return super().copy() if late is None else self._derived(late)

    __copy__ = copy

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image.Image:
        """As of any image. Decodes nothing where the box lies inside."""
        late = self._late
        if late is None:
            return super().crop(box)
        if box is None or box == (0, 0, *self.size):
            return self.copy()
        try:
            left, top, right, bottom = map(int, map(round, box))  # of NumPy's numbers, too
        except (TypeError, ValueError, OverflowError):
            return super().crop(box)
        is_inside = 0 <= left < right <= self.width and 0 <= top < bottom <= self.height
        if not is_inside or (right - left) * (bottom - top) > (Image.MAX_IMAGE_PIXELS or math.inf):
            return super().crop(box)  # which fills, warns and raises
        if isinstance(late, Part):
            y, x, _, _ = late.box
            return self._derived(Part(late.record, (y + top, x + left, bottom - top, right - left)))
        return self._derived(late[top:bottom, left:right])

    def resize(
        self,
        size: Any,
        resample: int | None = None,
        box: tuple[float, float, float, float] | None = None,
        reducing_gap: float | None = None,
    ) -> Image.Image:
        """As of any image."""
        late = self._late
        asked = None if late is None else _asked(self, size, resample, box, reducing_gap)
        if late is None or asked is None:
            return super().resize(size, resample, box, reducing_gap)
        if asked.size == self.size and asked.box == (0, 0, *self.size):
            return self.copy()
        pixels = _pixels(late, lasting=False)
        is_late = pillow_resize.installed_order() == "vertical when it shrinks more"
        shape = asked.size[1], asked.size[0]
        resized = pillow_resize.resize(pixels, shape, asked.filter, asked.box, vertical_first=is_late)
        if resized is None:
            self._load(pixels)
            return super().resize(size, resample, box, reducing_gap)
        return self._derived(resized)

    def transpose(self, method: Image.Transpose) -> Image.Image:
        """As of any image."""
        late = self._late
        if late is None or not isinstance(method, int) or method not in _TURNED:
            return super().transpose(method)
        return self._derived(_TURNED[method](_pixels(late, lasting=False)))

    def convert(self, mode: str | None = None, *args: Any, **options: Any) -> Image.Image:
        """As of any image."""
        late = self._late
        if late is None or args or options or mode not in (None, "", self.mode, "RGB"):
            return super().convert(mode, *args, **options)
        if not mode or mode == self.mode:
            return self.copy()
        if self.mode != "L" or "transparency" in (self._info or ()):
            return super().convert(mode)
        return self._derived(_array(cv2.cvtColor(_pixels(late, lasting=False), cv2.COLOR_GRAY2RGB)))

    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        """As of any image."""
        late = self._late
        if late is None or encoder_name != "raw" or args not in ((), (self.mode,)):
            return super().tobytes(encoder_name, *args)
        return self._kept(late).tobytes()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """As of any image, but its data is read-only memory that is not copied."""
        late = self._late
        if late is None:
            return super().__array_interface__
        pixels = self._kept(late)
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": pixels.data.toreadonly()}

    def _kept(self, late: Part | Pixels) -> Pixels:
        """The pixels, side by side in memory, for this image to keep."""
        pixels = self._source = np.ascontiguousarray(_pixels(late, lasting=True))
        return pixels

    def __getstate__(self) -> list[Any]:
        palette = self.getpalette() if self._late is None else None
        return [self.info, self.mode, self.size, palette, self.tobytes(), self.format]

    def __setstate__(self, state: list[Any]) -> None:
        *plain, self.format = state
        super().__setstate__(plain)

    def __eq__(self, other: object) -> bool:
        """As of a plain image of these pixels: Pillow compares classes, too."""
        if isinstance(other, StoredImage):
            other = Image.Image.copy(other)
        return Image.Image.copy(self) == other

    __hash__ = None  # type: ignore[assignment]  # as Pillow's


def plain_image(pixels: npt.NDArray[Any]) -> Image.Image:
    """An ordinary PIL image with a copy of `pixels`, which Image.fromarray would copy twice."""
    if pixels.dtype == np.uint16:
        return Image.fromarray(pixels)
    height, width = pixels.shape[:2]
    return Image.frombytes(_MODES[pixels.shape[2:]], (width, height), np.ascontiguousarray(pixels))


_MODES = {(): "L", (3,): "RGB", (4,): "RGBA"}

_OF_FILES = frozenset(("app", "applist", "bits", "get_format_mimetype", "icclist", "layer", "layers", "quantization"))
"""What files have beside what all images have."""


def _copied(info: dict[str | tuple[int, int], Any]) -> dict[str | tuple[int, int], Any]:
    """As Image._copy_info."""
    return {name: value.copy() if isinstance(value, list) else value for name, value in info.items()}


def _pixels(late: Part | Pixels, *, lasting: bool) -> Pixels:
    return late.record.part(late.box, lasting=lasting) if isinstance(late, Part) else late


def _array(pixels: Any) -> Pixels:
    """The result of OpenCV, whose types say less."""
    return np.asarray(pixels, np.uint8)


_TURNED: dict[Any, Callable[[Pixels], Pixels]] = {
    Image.Transpose.FLIP_LEFT_RIGHT: lambda pixels: _array(cv2.flip(pixels, 1)),
    Image.Transpose.FLIP_TOP_BOTTOM: lambda pixels: _array(cv2.flip(pixels, 0)),
    Image.Transpose.ROTATE_90: lambda pixels: _array(cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE)),
    Image.Transpose.ROTATE_180: lambda pixels: _array(cv2.rotate(pixels, cv2.ROTATE_180)),
    Image.Transpose.ROTATE_270: lambda pixels: _array(cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE)),
    Image.Transpose.TRANSPOSE: lambda pixels: _array(cv2.transpose(pixels)),
    Image.Transpose.TRANSVERSE: lambda pixels: _array(cv2.transpose(cv2.rotate(pixels, cv2.ROTATE_180))),
}
"""Each makes a new array."""


_FILTERS: dict[int, pillow_resize.Filter] = {
    Image.Resampling.BOX: "box",
    Image.Resampling.BILINEAR: "bilinear",
    Image.Resampling.HAMMING: "hamming",
    Image.Resampling.BICUBIC: "bicubic",
    Image.Resampling.LANCZOS: "lanczos",
}


class _Asked(NamedTuple):
    """A resize that needs no Pillow.

    Attributes:
        size: (width, height) of the result.
        filter: its name.
        box: (left, top, right, bottom) of what is resized.
    """

    size: tuple[int, int]
    filter: pillow_resize.Filter
    box: tuple[float, float, float, float]


def _asked(image: Image.Image, size: Any, resample: Any, box: Any, reducing_gap: Any) -> _Asked | None:
    """What the arguments of resize() ask for; None for what Pillow refuses, makes in two steps, or makes as fast."""
    if image.mode not in ("RGB", "L") or not pillow_resize.is_available():
        return None
    try:
        width, height = map(operator.index, size)
        filter = _FILTERS[Image.Resampling.BICUBIC if resample is None else operator.index(resample)]
        left, top, right, bottom = (0, 0, *image.size) if box is None else map(_real, box)
        gap = math.inf if reducing_gap is None else _real(reducing_gap)
    except (TypeError, ValueError, KeyError):
        return None
    is_box = 0 <= left < right <= image.width and 0 <= top < bottom <= image.height
    if not is_box or not (width > 0 and height > 0 and width * height <= _MOST_PIXELS and gap >= 1):
        return None
    is_reduced_before = int((right - left) / width / gap) > 1 or int((bottom - top) / height / gap) > 1
    if is_reduced_before or pillow_resize.installed_order() == "another":
        return None
    return _Asked((width, height), filter, (left, top, right, bottom))


def _real(number: Any) -> float:
    if not isinstance(number, numbers.Real):
        raise TypeError
    return float(number)


_MOST_PIXELS = 1 << 28
"""Larger results are for Pillow to make or to refuse."""
