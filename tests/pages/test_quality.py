"""The reference filter and the quality measures, compared with plain loops over their definitions."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from pictures import smooth_image
from presize.codecs import resize
from presize.options import Size
from presize.pages import comparison as quality


def brute_ssim(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Compute SSIM by Wang et al. 2004, window by window."""
    offsets = np.arange(11) - 5
    gauss = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(gauss, gauss) / gauss.sum() ** 2
    c1, c2 = 2.55**2, 7.65**2
    found = []
    for top in range(x.shape[0] - 10):
        for left in range(x.shape[1] - 10):
            a, b = x[top : top + 11, left : left + 11], y[top : top + 11, left : left + 11]
            mean_a, mean_b = (window * a).sum(), (window * b).sum()
            variances = (window * (a - mean_a) ** 2).sum() + (window * (b - mean_b) ** 2).sum()
            covariance = (window * (a - mean_a) * (b - mean_b)).sum()
            found.append(
                (2 * mean_a * mean_b + c1) * (2 * covariance + c2) / ((mean_a**2 + mean_b**2 + c1) * (variances + c2))
            )
    return float(np.mean(found))


def brute_bicubic(values: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.float64]:
    """Resample the first axis by the cubic convolution with a = -0.5, stretched by the reduction."""
    scale = len(values) / size
    stretch = max(scale, 1)
    rows = []
    for i in range(size):
        distance = np.abs((np.arange(len(values)) + 0.5 - (i + 0.5) * scale) / stretch)
        near = 1.5 * distance**3 - 2.5 * distance**2 + 1
        far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
        weights = np.where(distance < 1, near, np.where(distance < 2, far, 0))
        rows.append(np.tensordot(weights / weights.sum(), values, 1))
    return np.array(rows)


@pytest.mark.parametrize(("height", "width"), [(11, 11), (14, 20), (25, 12)])
def test_ssim_matches_its_definition(height: int, width: int) -> None:
    rng = np.random.default_rng(height)
    x = rng.integers(0, 256, (height, width)).astype(np.float64)
    y = (x + rng.normal(0, 20, x.shape)).clip(0, 255)
    assert quality.ssim(x, y) == pytest.approx(brute_ssim(x, y), abs=1e-9)


def test_ssim_of_colours_is_that_of_their_luma() -> None:
    a, b = smooth_image(30, 40, seed=1), smooth_image(30, 40, seed=2)
    luma_a, luma_b = (0.299 * p[..., 0] + 0.587 * p[..., 1] + 0.114 * p[..., 2] for p in (a, b))
    assert quality.ssim(a, b) == pytest.approx(brute_ssim(luma_a, luma_b), abs=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (10, 10), (40, 50), (40, 50, 3)])
def test_an_image_is_identical_to_itself(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape)
    assert quality.ssim(pixels, pixels) == 1
    assert quality.psnr(pixels, pixels) == math.inf


def test_psnr_matches_its_definition() -> None:
    a, b = smooth_image(20, 30, seed=1), smooth_image(20, 30, seed=2)
    error = sum((int(x) - int(y)) ** 2 for x, y in zip(a.ravel(), b.ravel(), strict=True)) / a.size
    assert quality.psnr(a, b) == pytest.approx(20 * math.log10(255) - 10 * math.log10(error))


@pytest.mark.parametrize("size", [Size(20, 30), Size(13, 41), Size(70, 90)])
def test_the_reference_matches_the_definition_of_the_filter(size: Size) -> None:
    pixels = np.random.default_rng(5).integers(60, 200, (61, 83, 3)).astype(np.uint8)
    target = resize.Target(resize.Box(0, 0, 61, 83), size)
    exact = brute_bicubic(brute_bicubic(pixels.astype(np.float64), size.height).swapaxes(0, 1), size.width)
    found = quality.reference(pixels, target, "bicubic")
    assert found.shape == (*size, 3)
    assert np.abs(found - exact.swapaxes(0, 1).clip(0, 255)).max() < 1e-3
    assert np.abs(found - found.round()).max() > 0.4, "nothing was rounded"


@pytest.mark.parametrize("fit", ["shorter", "longer", "stretch", "crop", "pad"])
@pytest.mark.parametrize(
    "filter", ["bilinear", "hamming", "bicubic", "lanczos"]
)  # box has ties, whose rounding is arbitrary
def test_the_build_resizes_like_the_reference(fit: str, filter: str) -> None:
    pixels = smooth_image(97, 131, seed=7)
    target = resize.target(Size(97, 131), Size(40, 48), fit, upscale=False)  # type: ignore[arg-type]
    exact = quality.reference(pixels, target, filter)  # type: ignore[arg-type]
    made = resize.resize(pixels, target, filter, "presize")  # type: ignore[arg-type]
    assert np.abs(made - exact).max() < 1.1
