"""StoredImage, a PIL image that decodes only the pixels that are used, and StoredJpeg, the JPEG behind it."""

from __future__ import annotations

import io
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFilter, JpegImagePlugin

from presize.codecs import pillow_color, pillow_resize
from presize.codecs.jpeg.segments import coded_size
from presize.codecs.sniff import check_size
from presize.codecs.stored_value import DAMAGE, check_shape
from presize.datasets.reading.regions import Box, jpeg_box, uncut_region
from presize.errors import DatasetError, OptionError
from presize.options import StoredColor, check_choice

Pixels = npt.NDArray[np.uint8]


class StoredJpeg:
    """A copy of a stored JPEG, shared by the images that are made from it. Thread-safe. The first request decodes only
    its box; the second decodes and keeps the whole image. Raises one of DAMAGE (presize.codecs.stored_value) for a
    wrong header, and for damaged pixels the error that `damage` returns."""

    def __init__(
        self,
        value: bytes,
        color: StoredColor,
        shape: tuple[int, int],
        max_pixels: int,
        damage: Callable[[Exception], DatasetError],
    ) -> None:
        check_size(*shape, max_pixels)
        height, width, is_gray = coded_size(value)
        check_shape((height, width), shape)
        self.mode = "L" if color == "gray" or (color == "keep" and is_gray) else "RGB"
        self.box: Box = (0, 0, height, width)
        self._value = value
        self._damage = damage
        self._is_used = False
        self._whole: Pixels | None = None

    def part(self, box: Box, *, lasting: bool) -> Pixels:
        """Return the pixels in `box`. Do not write to them; unless `lasting`, the thread's next call may do so."""
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

    @cached_property
    def file(self) -> JpegImagePlugin.JpegImageFile:
        try:
            return JpegImagePlugin.JpegImageFile(io.BytesIO(self._value))
        except (SyntaxError, OSError, ValueError) as error:
            raise self._damage(error) from None


class JpegPart(NamedTuple):
    record: StoredJpeg
    box: Box


class StoredImage(Image.Image):
    """A PIL image that decodes only the pixels that are used. Pixels, attributes and errors equal a plain PIL image's.

    crop() and copy() decode nothing. The other methods below decode only the pixels of this image, and their results
    hold arrays, which images share and never change. Any other method converts the pixels to Pillow's, which belong to
    this image alone. An image stays valid without its dataset, and threads can share it; pickling decodes it. Decoding
    raises DatasetError for a damaged image. `source`: a record, or pixels that never change: uint8 (height, width[, 3
    or 4]).
    """

    _im: Any = None
    _info: dict[str | tuple[int, int], Any] | None = None
    """None until the header is read."""
    _source: JpegPart | Pixels | None = None
    _record: StoredJpeg | None = None

    def __init__(self, source: StoredJpeg | Pixels) -> None:
        self._begin(JpegPart(source, source.box) if isinstance(source, StoredJpeg) else source)
        if isinstance(source, StoredJpeg):
            del self._info
            self._record = source
            self.format, self.format_description = "JPEG", JpegImagePlugin.JpegImageFile.format_description

    def _begin(self, late: JpegPart | Pixels) -> None:
        super().__init__()
        del self._im
        self._source = late
        height, width = late.box[2:] if isinstance(late, JpegPart) else late.shape[:2]
        self._size = width, height
        self._mode = late.record.mode if isinstance(late, JpegPart) else _MODES[late.shape[2:]]

    def _derived(self, late: JpegPart | Pixels) -> StoredImage:
        """Return a new image with a copy of `info`, as Image._new does."""
        image = StoredImage.__new__(StoredImage)
        image._begin(late)
        if self._info is None:
            del image._info
            image._record = self._record
        else:
            image._info = _copied(self._info)
        return image

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FILES and self.format is not None and self._record is not None:
            return getattr(self._record.file, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- attributes that Pillow's methods use ----

    @property
    def info(self) -> dict[str | tuple[int, int], Any]:
        """The metadata of the stored file, read at first use."""
        info = self._info
        if info is None:
            read = {} if self._record is None else self._record.file.info
            info = vars(self).setdefault("_info", _copied(read))  # the first of several threads wins
        return info

    @info.setter
    def info(self, info: dict[str | tuple[int, int], Any]) -> None:
        self._info = info

    @property
    def im(self) -> Any:
        """Pillow's pixels, decoded at first use."""
        if "_im" not in vars(self):
            self.load()
        return super().im

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im
        self._source = None

    @property
    def _late(self) -> JpegPart | Pixels | None:
        """The source of the pixels; None once they are Pillow's."""
        return None if "_im" in vars(self) else self._source

    def load(self) -> Any:
        late = self._late
        if late is not None:
            self._load(_pixels(late, lasting=False))
        return super().load()

    def _load(self, pixels: Pixels) -> None:
        vars(self).setdefault("_im", plain_image(pixels).im)  # the first of several threads wins
        self._source = None

    def decode(self) -> StoredImage:
        """Decode now, so that damage is noticed, and return this image."""
        late = self._late
        if isinstance(late, JpegPart):
            self._source = _pixels(late, lasting=True)
        return self

    def close(self) -> None:
        super().close()
        self._source = None

    # ---- methods that do not need Pillow's pixels ----

    def copy(self) -> Image.Image:
        late = self._late
        return super().copy() if late is None else self._derived(late)

    __copy__ = copy

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image.Image:
        late = self._late
        if late is None or isinstance(box, np.ndarray):
            return super().crop(box)
        if box is None or box == (0, 0, *self.size):
            return self.copy()
        try:
            left, top, right, bottom = map(int, map(round, box))  # also NumPy's numbers
        except (TypeError, ValueError, OverflowError):
            return super().crop(box)
        is_inside = 0 <= left < right <= self.width and 0 <= top < bottom <= self.height
        if not is_inside or (right - left) * (bottom - top) > (Image.MAX_IMAGE_PIXELS or math.inf):
            return super().crop(box)  # fills, warns or raises
        if isinstance(late, JpegPart):
            y, x, _, _ = late.box
            return self._derived(JpegPart(late.record, (y + top, x + left, bottom - top, right - left)))
        return self._derived(late[top:bottom, left:right])

    def resize(
        self,
        size: Any,
        resample: int | None = None,
        box: tuple[float, float, float, float] | None = None,
        reducing_gap: float | None = None,
    ) -> Image.Image:
        """Return a resized copy with the installed Pillow's bytes, by presize's C code where that gives the same."""
        late = self._late
        request = None if late is None else _request(self, size, resample, box, reducing_gap)
        if late is None or request is None:
            return super().resize(size, resample, box, reducing_gap)
        new_size, filter, area = request
        if new_size == self.size and area == (0, 0, *self.size):
            return self.copy()
        pixels = _pixels(late, lasting=False)
        resized = pillow_resize.resize_as_installed(pixels, new_size[::-1], filter, area)
        if resized is None:
            self._load(pixels)
            return super().resize(size, resample, box, reducing_gap)
        return self._derived(resized)

    def transpose(self, method: Image.Transpose) -> Image.Image:
        late = self._late
        if late is None or not isinstance(method, int) or method not in _TURNED:
            return super().transpose(method)
        return self._derived(_TURNED[method](_pixels(late, lasting=False)))

    def convert(self, mode: str | None = None, *args: Any, **options: Any) -> Image.Image:
        late = self._late
        if late is None or args or options or mode not in (None, "", self.mode, "RGB", "L"):
            return super().convert(mode, *args, **options)
        if not mode or mode == self.mode:
            return self.copy()
        if "transparency" in (self._info or ()):
            return super().convert(mode)
        if (self.mode, mode) == ("L", "RGB"):
            return self._derived(_array(cv2.cvtColor(_pixels(late, lasting=False), cv2.COLOR_GRAY2RGB)))
        return self.made("gray") or super().convert(mode)

    def made(self, operation: pillow_color.Name, *arguments: Any) -> StoredImage | None:
        """Return the result of a colour operation; None if only Pillow can do it."""
        pixels = self.pixels()
        made = None if pixels is None else pillow_color.run(operation, pixels, *arguments)
        return None if made is None else self._derived(made)

    def pixels(self) -> Pixels | None:
        """Return uint8 (height, width[, 3]), not to be written to; None for RGBA, or once the pixels are Pillow's."""
        late = self._late
        return None if late is None or self.mode == "RGBA" else self._kept(late)

    def point(self, lut: Any, mode: str | None = None) -> Image.Image:
        pixels = None if mode is not None or isinstance(lut, Image.ImagePointHandler) else self.pixels()
        if pixels is None:
            return super().point(lut, mode)
        return self._derived(_array(cv2.LUT(pixels, _table(lut, self.mode))))

    def filter(self, filter: Any) -> Image.Image:
        made = None
        if type(filter) is ImageFilter.GaussianBlur:
            radius: Any = filter.radius
            radii = (radius, radius) if isinstance(radius, (int, float)) else radius
            if type(radii) is tuple and len(radii) == 2 and all(isinstance(each, (int, float)) for each in radii):
                made = self.made("blur", radii)
        return made or super().filter(filter)

    def transform(
        self, size: Any, method: Any, data: Any = None, resample: Any = 0, fill: int = 1, fillcolor: Any = None
    ) -> Image.Image:
        made = None
        if isinstance(method, int) and method == Image.Transform.AFFINE and resample == Image.Resampling.NEAREST:
            matrix = tuple(data[:6]) if isinstance(data, (list, tuple)) else ()
            is_matrix = len(matrix) == 6 and all(isinstance(each, (int, float)) for each in matrix)
            sides = tuple(size) if isinstance(size, (list, tuple)) else ()
            if is_matrix and len(sides) == 2 and all(type(side) is int for side in sides):
                made = self.made("affine", sides, matrix, fillcolor)
        return made or super().transform(size, method, data, resample, fill, fillcolor)

    def histogram(self, mask: Image.Image | None = None, extrema: tuple[float, float] | None = None) -> list[int]:
        pixels = self.pixels() if mask is None and self.width * self.height < 1 << 24 else None  # exact in float32
        if pixels is None:
            return super().histogram(mask, extrema)
        counts = [cv2.calcHist([pixels], [channel], None, [256], [0, 256]) for channel in range(len(self.mode))]
        return np.concatenate(counts).astype(np.int64).ravel().tolist()

    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        late = self._late
        if late is None or encoder_name != "raw" or args not in ((), (self.mode,)):
            return super().tobytes(encoder_name, *args)
        return self._kept(late).tobytes()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        late = self._late
        if late is None:
            return super().__array_interface__
        pixels = self._kept(late)
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": pixels.data.toreadonly()}

    def _kept(self, late: JpegPart | Pixels) -> Pixels:
        pixels = self._source = np.ascontiguousarray(_pixels(late, lasting=True))
        return pixels

    def __getstate__(self) -> list[Any]:
        palette = self.getpalette() if self._late is None else None
        return [self.info, self.mode, self.size, palette, self.tobytes(), self.format]

    def __setstate__(self, state: list[Any]) -> None:
        *plain, self.format = state
        super().__setstate__(plain)

    def __eq__(self, other: object) -> bool:
        """Compare as a plain image would: Pillow also compares classes."""
        if isinstance(other, StoredImage):
            other = Image.Image.copy(other)
        return Image.Image.copy(self) == other

    __hash__ = None  # type: ignore[assignment]  # as Pillow's


def _table(lut: Any, mode: str) -> Pixels:
    try:
        if isinstance(lut, list) and len(lut) == 256 * len(mode):
            return np.frombuffer(bytes(lut), np.uint8).reshape(len(mode), 256).T.reshape(1, 256, *_SHAPES[mode])
    except (TypeError, ValueError):
        pass  # numbers that are not bytes
    ramp = np.arange(256, dtype=np.uint8).repeat(len(mode)).reshape(1, 256, *_SHAPES[mode])
    return np.asarray(plain_image(ramp).point(lut))


def plain_image(pixels: npt.NDArray[Any]) -> Image.Image:
    """Return a plain PIL image with a copy of `pixels`, which Image.fromarray would copy twice."""
    if pixels.dtype == np.uint16:
        return Image.fromarray(pixels)
    height, width = pixels.shape[:2]
    return Image.frombytes(_MODES[pixels.shape[2:]], (width, height), np.ascontiguousarray(pixels))


_MODES = {(): "L", (3,): "RGB", (4,): "RGBA"}
_SHAPES = {mode: shape for shape, mode in _MODES.items()}

_OF_FILES = frozenset(("app", "applist", "bits", "get_format_mimetype", "icclist", "layer", "layers", "quantization"))
"""Attributes of Pillow's JPEG files that other images lack."""


def _copied(info: dict[str | tuple[int, int], Any]) -> dict[str | tuple[int, int], Any]:
    return {name: value.copy() if isinstance(value, list) else value for name, value in info.items()}


def _pixels(late: JpegPart | Pixels, *, lasting: bool) -> Pixels:
    return late.record.part(late.box, lasting=lasting) if isinstance(late, JpegPart) else late


def _array(pixels: Any) -> Pixels:
    """Return a result of OpenCV, whose stubs do not declare the type."""
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
"""Each returns a new array."""

_FILTERS: dict[int, pillow_resize.Filter] = {
    Image.Resampling[name.upper()]: name for name in get_args(pillow_resize.Filter)
}


_Request = tuple[tuple[int, int], pillow_resize.Filter, tuple[float, float, float, float]]
"""A valid resize: (width, height) of the result, filter, and (left, top, right, bottom) of the part to resize."""


def _request(image: Image.Image, size: Any, resample: Any, box: Any, reducing_gap: Any) -> _Request | None:
    """Return the arguments of a resize if presize's C code can do it, otherwise None."""
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
    if int((right - left) / width / gap) > 1 or int((bottom - top) / height / gap) > 1:
        return None
    return (width, height), filter, (left, top, right, bottom)


def _real(number: Any) -> float:
    if not isinstance(number, numbers.Real):
        raise TypeError
    return float(number)


_MOST_PIXELS = 1 << 28
"""Larger results are left to Pillow, which may refuse them."""


# ---- the image types that a dataset returns ----

Decode = Literal["pil", "numpy", "tensor", "bytes"]


def check_decode(decode: str, is_cropped: bool = False) -> None:
    check_choice("decode", decode, Decode)
    if decode == "bytes" and is_cropped:
        raise OptionError("decode: bytes are not decoded, so they cannot be cropped or flipped; choose another")


def to_output(pixels: npt.NDArray[Any], decode: Decode) -> Any:
    """Return `pixels`, uint8 or uint16 (height, width[, 3 or 4]), as a PIL image, an array, or a tensor (channels,
    height, width)."""
    if decode == "pil":
        return plain_image(pixels) if pixels.dtype == np.uint16 else StoredImage(pixels)
    if decode == "numpy":
        return pixels
    tensor = torch.from_numpy(pixels)
    return tensor.permute(2, 0, 1) if pixels.ndim == 3 else tensor.unsqueeze(0)


def images_of(batch: torch.Tensor, decode: Decode) -> Sequence[Any]:
    """Return the images of a batch as to_output() does. PIL images are copies: a view would keep the whole batch."""
    if decode == "tensor":
        return batch.unbind()
    pixels = (batch.permute(0, 2, 3, 1) if batch.ndim == 4 else batch).numpy()
    squeezed = pixels[:, :, :, 0] if pixels.shape[3:] == (1,) else pixels
    return [to_output(image.copy() if decode == "pil" else image, decode) for image in squeezed]
