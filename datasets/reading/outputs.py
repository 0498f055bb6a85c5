"""The forms in which a dataset gives an image."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.segments import coded_size
from presize.codecs.stored_value import DAMAGE, check_pixels, check_shape, decode_value
from presize.errors import DatasetError, OptionError
from presize.options import StoredColor, check_choice
from presize.store.manifest import Manifest

Decode = Literal["pil", "numpy", "tensor", "bytes"]


def check_decode(decode: str, is_cropped: bool = False) -> None:
    """Raise OptionError unless `decode` is one of the choices, and goes with a crop where there is one."""
    check_choice("decode", decode, Decode)
    if decode == "bytes" and is_cropped:
        raise OptionError("decode: bytes are not decoded, so they cannot be cropped or flipped; choose another")


def check_pil(decode: Decode, manifest: Manifest) -> None:
    """Raise OptionError where `decode` is "pil" and the images are such as PIL does not have."""
    if decode == "pil" and manifest.depth == 16 and manifest.color not in ("gray", "exact"):
        raise OptionError("decode: PIL has no colour images of 16 bits; choose numpy or tensor")


def to_output(pixels: npt.NDArray[Any], decode: Decode) -> Any:
    """`pixels`, uint8 or uint16 (height, width, 3), (height, width, 4) or (height, width), as a PIL image, an array, or
    a tensor (channels, height, width) over the same memory."""
    if decode == "pil":
        return _pil(pixels)
    if decode == "numpy":
        return pixels
    tensor = torch.from_numpy(pixels)
    return tensor.permute(2, 0, 1) if pixels.ndim == 3 else tensor.unsqueeze(0)


def _pil(pixels: npt.NDArray[Any]) -> Image.Image:
    """A PIL image with a copy of `pixels`, which Image.fromarray would copy twice."""
    if pixels.dtype == np.uint16:
        return Image.fromarray(pixels)
    height, width = pixels.shape[:2]
    mode = {(3,): "RGB", (4,): "RGBA"}.get(pixels.shape[2:], "L")
    return Image.frombytes(mode, (width, height), np.ascontiguousarray(pixels))


class LazyImage(Image.Image):
    """A stored JPEG as a PIL image that is decoded when its pixels are first needed, as those of Image.open are.

    The first crop() of it decodes only what lies under the box.

    Args:
        value: the JPEG.
        color: that the dataset was built for.
        shape: (height, width) in pixels, as the index says.
        max_pixels: that height x width may not exceed.
        damage: makes the error that is raised for pixels that cannot be decoded.

    Raises:
        ValueError: the header is damaged, or not that of an image of `shape`.
    """

    _value: bytes | None = None
    _is_cropped = False

    def __init__(
        self,
        value: bytes,
        color: StoredColor,
        shape: tuple[int, int],
        max_pixels: int,
        damage: Callable[[Exception], DatasetError],
    ) -> None:
        super().__init__()
        check_pixels(shape, max_pixels)
        height, width, is_gray = coded_size(value)
        check_shape((height, width), shape)
        self._mode = "L" if color == "gray" or (color == "keep" and is_gray) else "RGB"
        self._size = width, height
        self._value = value
        self._max_pixels = max_pixels
        self._damage = damage

    def load(self) -> Any:
        """Decode the image, unless it is."""
        if self._im is None and self._value is not None:
            color: StoredColor = "gray" if self._mode == "L" else "rgb"
            shape = self._size[1], self._size[0]
            try:
                pixels = self._decoded((0, 0, *shape))
                if pixels is None:
                    pixels = decode_value(memoryview(self._value), "jpeg", color, shape, self._max_pixels)
            except DAMAGE as error:
                raise self._damage(error) from None
            self._im = _pil(pixels).im
            self._value = None
        return super().load()

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image.Image:
        """As of any image. The first one is decoded alone; whoever takes several may need all of the image."""
        if self._value is None or self._is_cropped or box is None:
            return super().crop(box)
        self._is_cropped = True
        left, top, right, bottom = map(round, box)
        if not (0 <= left < right <= self.width and 0 <= top < bottom <= self.height):
            return super().crop(box)
        pixels = self._decoded((top, left, bottom - top, right - left))
        return super().crop(box) if pixels is None else _pil(pixels)

    def _decoded(self, box: tuple[int, int, int, int]) -> npt.NDArray[np.uint8] | None:
        """The pixels in `box`, in memory that the thread's next call uses again, or None where that is for libjpeg."""
        value = self._value or b""
        height, width = box[2:]
        if height * width > 128 * len(value):  # as no photograph has
            return None
        mode: jpeg_decoder.Mode = "GRAY" if self._mode == "L" else "RGB"
        shape = self._size[1], self._size[0]
        return jpeg_decoder.decode(value, mode, shape, box, _scratch(height * width * len(self._mode)))

    def __eq__(self, other: object) -> bool:
        """As of a plain image of these pixels, which Pillow compares by its class."""
        if isinstance(other, LazyImage):
            other = other.copy()
        return self.copy() == other

    __hash__ = None  # type: ignore[assignment]  # as PIL's


_local = threading.local()


def _scratch(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory for pixels, kept for each thread."""
    buffer: npt.NDArray[np.uint8] | None = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _local.buffer = np.empty(nbytes, np.uint8)
    return buffer
