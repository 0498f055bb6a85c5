"""Compares some of a build's images with an exact resize of their sources: PSNR, SSIM, and pictures of both.

The reference uses none of the build's back-ends and shortcuts: the whole source is decoded at full size, and Pillow
resizes each channel in floating point, without rounding or compression. The choice of images depends only on sample
numbers, and their number is limited for builds of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from presize.codecs import decode, encode, pillow_decoder, resize
from presize.codecs.resize import Target
from presize.codecs.source_facts import unpack_facts
from presize.codecs.stored_value import DAMAGE, decode_value
from presize.errors import ImageError
from presize.options import Filter, ImageOptions, Size
from presize.pages.html import Pixels, flattened, jpeg_of, thumbnail
from presize.store.dealing import mix

Values = npt.NDArray[np.float64]

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_LUMA = (0.299, 0.587, 0.114)


def reference(pixels: npt.NDArray[np.uint8], target: Target, filter: Filter) -> Values:
    """Resize uint8 `pixels`, (height, width, 3) or (height, width), to `target`: float64 of the same rank, from 0 to
    255. Antialiased: the filter's support grows with the reduction."""
    box, size, canvas = target
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    how = Image.Resampling[filter.upper()]

    def resized(channel: npt.NDArray[np.uint8]) -> Values:
        image = Image.fromarray(channel.astype(np.float32)).resize((size.width, size.height), how, corners)
        return np.asarray(image, np.float64).clip(0, 255)

    exact = resized(pixels) if pixels.ndim == 2 else np.stack([resized(pixels[:, :, k]) for k in range(3)], axis=-1)
    if canvas is None:
        return exact
    padded = np.zeros((*canvas, *pixels.shape[2:]))
    top, left = (canvas.height - size.height) // 2, (canvas.width - size.width) // 2
    padded[top : top + size.height, left : left + size.width] = exact
    return padded


def psnr(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Return the peak signal-to-noise ratio in dB, over all channels, of two images of the same shape with values from
    0 to 255: 10 log10(255² / mean squared error). Infinite if they are equal."""
    error = float(np.square(np.subtract(a, b, dtype=np.float64)).mean())
    return 10 * math.log10(255**2 / error) if error else math.inf


def ssim(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Return the structural similarity of the luma (ITU-R 601) of two images of one shape, 0 to 255: at most 1.

    Defined by Wang et al. (Image quality assessment: from error visibility to structural similarity, 2004), with
    K1 = 0.01, K2 = 0.03, as the mean over all windows inside the image. Images with a side of less than 11 pixels are
    mirrored at their edges instead.
    """
    x, y = luma(a), luma(b)

    def mean(values: Values) -> Values:  # over the window around each pixel
        return np.asarray(cv2.GaussianBlur(values, (_WINDOW, _WINDOW), _SIGMA, borderType=cv2.BORDER_REFLECT))

    mean_x, mean_y = mean(x), mean(y)
    variance_x, variance_y = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2
    covariance = mean(x * y) - mean_x * mean_y
    similarity = ((2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)) / (
        (mean_x**2 + mean_y**2 + _C1) * (variance_x + variance_y + _C2)
    )
    edge = _WINDOW // 2 if min(x.shape) >= _WINDOW else 0
    return float(similarity[edge : x.shape[0] - edge, edge : x.shape[1] - edge].mean())


def luma(pixels: npt.NDArray[Any]) -> Values:
    """Return the luma of (height, width, 3) pixels as float64 (height, width); grey is only converted to float64."""
    values = np.asarray(pixels, np.float64)
    return values if values.ndim == 2 else values @ _LUMA


MOST_IMAGES = 48
# Limit on all compared images, about 8 of 12 megapixels. A source pixel counts once, a stored pixel 4 times, as it is
# compared in double precision.
MOST_PIXELS = 100_000_000
MOST_PIXELS_EACH = 50_000_000  # limit on a compared image: larger ones would take more than 2 GB of memory
_S_A_PIXEL = 31e-9  # seconds of one core per pixel (November 2026): 3 seconds for MOST_PIXELS
_THREADS = 2

THUMBNAIL = 384  # pixels of the longer side: a 3:2 photograph stored at 256 px, the default, is not reduced
DETAIL = 256
DIFFERENCE_GAIN = 8


@dataclass(frozen=True)
class Comparison:
    """One stored image and its source."""

    path: str
    source: Size
    stored: Size
    source_nbytes: int
    nbytes: int
    psnr: float  # in dB against reference(); infinite if they are equal
    ssim: float  # of luma, against reference()
    before: bytes  # the source as a JPEG of at most THUMBNAIL pixels a side
    after: bytes  # the stored image, likewise
    detail: tuple[bytes, bytes, bytes]
    """The part that differs most, as JPEGs of at most DETAIL pixels a side: the reference, the stored image, and
    DIFFERENCE_GAIN times their difference on grey."""
    leaner_nbytes: int | None = None
    """Bytes at the lower quality that was tried; None if none was tried, or the file is stored unchanged."""


class Failure(NamedTuple):
    """An image that could not be compared, and why."""

    path: str
    reason: str


def choose(samples: npt.NDArray[np.int64], pixels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions in `samples` (distinct) of the images to compare, in random order: up to MOST_IMAGES, or
    fewer if they are large. `pixels` is the size of each sample."""
    # Sample numbers mixed once choose the shards (presize.store.dealing); mixed twice, they choose from all shards.
    hashes = mix(mix(samples.astype(np.uint64)))
    count = min(len(samples), 10 * MOST_IMAGES)
    found = np.argpartition(hashes, count - 1)[:count]
    found = found[np.argsort(hashes[found])]
    found = found[pixels[found] <= MOST_PIXELS_EACH]
    return found[np.cumsum(pixels[found]) <= MOST_PIXELS][:MOST_IMAGES]


def seconds(images: int, pixels: float) -> float:
    """Estimate the seconds that compare() takes for `images` of `pixels` each, counted as for MOST_PIXELS."""
    count = min(images, MOST_IMAGES, MOST_PIXELS / max(pixels, 1)) if pixels <= MOST_PIXELS_EACH else 0
    return count * pixels * _S_A_PIXEL / _THREADS


def compare(
    image: ImageOptions,
    size: Size,
    index: pa.Table,
    read_source: Callable[[dict[str, Any]], bytes],
    value_of: Callable[[dict[str, Any]], bytes],
    leaner: int | None = None,
) -> tuple[list[Comparison], list[Failure]]:
    """Compare some images of the dataset of one size, selected by choose(), with their sources. `leaner` is a lower
    quality to try. `read_source` and `value_of` return the source's bytes and the stored value of a row of the index;
    they are called from several threads.

    Returns the comparisons, and the images that cannot be compared because of an ImageError. Other errors are raised,
    so the page depends only on the stored images and the sources.
    """
    samples = index.column("sample").to_numpy()
    columns = ("source_height", "source_width", "height", "width")
    source_height, source_width, height, width = (index.column(name).to_numpy().astype(np.int64) for name in columns)
    pixels = source_height * source_width + 4 * height * width
    rows = index.take(pa.array(choose(samples, pixels))).to_pylist()

    def compared(row: dict[str, Any]) -> Comparison | Failure:
        try:
            return _compare(read_source(row), value_of(row), row, image, size, leaner)
        except ImageError as error:
            return Failure(row["path"], str(error))

    # OpenCV's own threads would persist, and a child forked later would hang if it used OpenCV.
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(compared, rows))
    finally:
        cv2.setNumThreads(threads)
    return [one for one in found if isinstance(one, Comparison)], [one for one in found if isinstance(one, Failure)]


def _compare(
    data: bytes, value: bytes, row: dict[str, Any], image: ImageOptions, size: Size, leaner: int | None
) -> Comparison:
    stored_size = Size(row["height"], row["width"])
    try:
        value_pixels = decode_value(memoryview(value), image.format, image.color, stored_size, depth=image.depth)
    except DAMAGE as error:
        raise ImageError(f"the stored record is damaged: {error}") from None
    # Alpha is composited on black in both, which gives the same result before and after resizing.
    stored = flattened(value_pixels, 0)
    wanted = pillow_decoder.Wanted(image.color, image.depth, image.icc)
    source = flattened(decode.decode(data, wanted, image.max_pixels).pixels, 0)
    source_size = Size(*source.shape[:2])
    exact = reference(source, resize.target(source_size, size, image.fit, image.upscale), image.filter)
    if exact.shape != stored.shape:
        raise ImageError("the stored image does not have the shape that its source would give")
    leaner_nbytes = None
    is_unchanged = source_size == stored_size and bool(unpack_facts(np.array(row["source_facts"]), "kept"))
    if leaner is not None and not is_unchanged:
        tried = encode.encode(np.ascontiguousarray(exact.round(), np.uint8), replace(image, quality=leaner))
        leaner_nbytes = min(row["nbytes"], len(tried))
    return Comparison(
        path=row["path"],
        source=source_size,
        stored=stored_size,
        source_nbytes=row["source_nbytes"],
        nbytes=row["nbytes"],
        psnr=psnr(exact, stored),
        ssim=ssim(exact, stored),
        before=jpeg_of(thumbnail(source, THUMBNAIL)),
        after=jpeg_of(thumbnail(stored, THUMBNAIL)),
        detail=_detail(exact, stored),
        leaner_nbytes=leaner_nbytes,
    )


def _detail(exact: Values, stored: Pixels) -> tuple[bytes, bytes, bytes]:
    difference = stored - exact
    error = cv2.blur(np.square(luma(difference)), (31, 31))
    at = np.unravel_index(int(error.argmax()), error.shape)
    corner = [min(max(int(at[k]) - DETAIL // 2, 0), max(error.shape[k] - DETAIL, 0)) for k in range(2)]
    window = tuple(slice(begin, begin + DETAIL) for begin in corner)
    amplified = (128 + DIFFERENCE_GAIN * difference[window]).clip(0, 255)
    parts = (exact[window].round(), stored[window], amplified.round())
    reference, kept, differs = (jpeg_of(np.ascontiguousarray(part, np.uint8), 85, "444") for part in parts)
    return reference, kept, differs
