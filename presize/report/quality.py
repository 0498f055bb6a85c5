"""How similar stored pixels are to an exact resize of their source: a floating-point reference, PSNR, SSIM. Pure.

The reference knows nothing of the build's back-ends and shortcuts: the whole source, decoded at full
size, each channel resampled by Pillow's floating-point resize, never rounded, never compressed.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from presize.codecs.resize import Target
from presize.options import Filter

Values = npt.NDArray[np.float64]

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_LUMA = (0.299, 0.587, 0.114)


def reference(pixels: npt.NDArray[np.uint8], target: Target, filter: Filter) -> Values:
    """`pixels` (height, width, 3) or (height, width), uint8, as `target` says: float64 of the same rank,
    from 0 to 255. Antialiased: the filter's support grows with the reduction."""
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
    """Peak signal-to-noise ratio in dB, over all channels, of two images of one shape with values from 0 to
    255: 10 log10(255² / mean squared error). Infinite when they are equal."""
    error = float(np.square(np.subtract(a, b, dtype=np.float64)).mean())
    return 10 * math.log10(255**2 / error) if error else math.inf


def ssim(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Structural similarity of the luma (ITU-R 601) of two images of one shape, values from 0 to 255: at most 1.

    As Wang, Bovik, Sheikh and Simoncelli define it (Image quality assessment: from error visibility to
    structural similarity, IEEE Transactions on Image Processing 13(4), 2004): a Gaussian window of 11 x 11,
    sigma 1.5, K1 = 0.01, K2 = 0.03, the mean over all windows that lie inside the image. Images with
    a side of less than 11 pixels are mirrored at their edges instead.
    """
    x, y = luma(a), luma(b)
    mean_x, mean_y = _mean(x), _mean(y)
    variance_x = _mean(x * x) - mean_x**2
    variance_y = _mean(y * y) - mean_y**2
    covariance = _mean(x * y) - mean_x * mean_y
    similarity = ((2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)) / (
        (mean_x**2 + mean_y**2 + _C1) * (variance_x + variance_y + _C2)
    )
    edge = _WINDOW // 2 if min(x.shape) >= _WINDOW else 0
    return float(similarity[edge : x.shape[0] - edge, edge : x.shape[1] - edge].mean())


def luma(pixels: npt.NDArray[Any]) -> Values:
    """(height, width) float64: the luma of (height, width, 3), or grey as it is."""
    values = np.asarray(pixels, np.float64)
    return values if values.ndim == 2 else values @ _LUMA


def _mean(values: Values) -> Values:
    """Under the window, at each pixel."""
    return np.asarray(cv2.GaussianBlur(values, (_WINDOW, _WINDOW), _SIGMA, borderType=cv2.BORDER_REFLECT))
