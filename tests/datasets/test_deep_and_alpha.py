"""Datasets with 16 bits and with alpha, from source files to samples and batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset

from builds import SERIAL
from commands import Ran
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, Loader, Resize, make_loader
from presize.errors import OptionError
from presize.options import KEEP, BuildOptions, Color, Format, ImageOptions, Size
from presize.store.manifest import read_manifest
from presize.store.verify import VerifyResult, verify_dataset

COUNT = 6


def deep_image(seed: int) -> np.ndarray:
    """Return RGB, uint16 (48, 60, 3), with low bytes that 8 bits would lose."""
    return smooth_image(48, 60, seed).astype(np.uint16) * 251 + seed


def cutout(seed: int) -> np.ndarray:
    """Return RGBA, uint8 (48, 60, 4): opaque on the left, transparent on the right."""
    alpha = np.repeat(np.linspace(255, 0, 60).round().astype(np.uint8)[np.newaxis], 48, axis=0)
    return np.dstack((smooth_image(48, 60, seed), alpha))


Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return a function that builds a dataset of `images`, saved without loss."""

    def build(images: list[np.ndarray], size: Size = KEEP, **options: Any) -> Path:
        raw = tmp_path / "raw"
        raw.mkdir()
        for i, pixels in enumerate(images):
            order = [2, 1, 0, 3][: pixels.shape[2]] if pixels.ndim == 3 else None
            cv2.imwrite(str(raw / f"{i}.png"), pixels if order is None else pixels[:, :, order])
        build_dataset(raw, tmp_path / "out", BuildOptions(ImageOptions(sizes=(size,), **options)), SERIAL)
        return tmp_path / "out"

    return build


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (deep_image(0), {"depth": 16}),
        (deep_image(0)[:, :, 0], {"depth": 16, "color": "gray"}),
        (cutout(0), {"color": "rgba"}),
        (smooth_image(48, 60, 0), {"color": "gray"}),
        (smooth_image(48, 60, 0), {}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_shared_memory_is_computed_from_the_bytes_of_a_pixel(
    image: np.ndarray, options: dict[str, Any], build: Build
) -> None:
    data = LMDBDataset(build([image] * 2, format="png", **options), decode="numpy")
    assert data.dev_shm_bytes(1) == data[0].nbytes + 8


@pytest.mark.parametrize("format", ["png", "raw"])
@pytest.mark.parametrize("color", ["rgb", "keep"])
def test_16_bits_are_returned_exactly(build: Build, format: Format, color: Color) -> None:
    images = [deep_image(seed) for seed in range(COUNT)]
    root = build(images, depth=16, format=format, color=color)
    ds = LMDBDataset(root, decode="numpy")
    for found, expected in zip(ds, images, strict=True):
        assert found.dtype == np.uint16 and np.array_equal(found, expected)
    tensor = LMDBDataset(root, decode="tensor")[1]
    assert tensor.dtype == torch.uint16 and np.array_equal(tensor.permute(1, 2, 0).numpy(), images[1])
    assert read_manifest(root).depth == 16
    assert verify_dataset(root) == VerifyResult(COUNT)


def test_grey_of_16_bits_may_be_a_pil_image_and_colours_may_not(build: Build) -> None:
    root = build([deep_image(1)], depth=16, format="png", color="gray")
    image = LMDBDataset(root)[0]
    assert image.mode == "I;16" and image.size == (60, 48)
    colour = root.parent / "colour"
    options = BuildOptions(ImageOptions(sizes=(KEEP,), depth=16, format="raw"))
    build_dataset(root.parent / "raw", colour, options, SERIAL)
    with pytest.raises(OptionError, match=r"^decode: PIL has no 16-bit colour images"):
        LMDBDataset(colour)


@pytest.mark.parametrize("format", ["png", "raw"])
@pytest.mark.parametrize("decode", ["numpy", "tensor"])
def test_a_crop_of_16_bits_has_the_pixels_of_the_whole(build: Build, format: Format, decode: Any) -> None:
    root = build([deep_image(seed) for seed in range(COUNT)], depth=16, format=format)
    for crop in (CenterCrop(20), [CenterCrop(20), CenterCrop(20)]):
        found = LMDBDataset(root, decode=decode, crop=crop).__getitems__([*range(COUNT)])
        for seed, image in enumerate(found):
            for view in image if isinstance(crop, list) else [image]:
                pixels = view.permute(1, 2, 0).numpy() if decode == "tensor" else view
                assert pixels.dtype == np.uint16
                assert np.array_equal(pixels, deep_image(seed)[14:34, 20:40])


@pytest.mark.parametrize("size", [Size(20, 30), Size(90, 80)])
def test_a_resized_image_of_16_bits_is_interpolated_in_16_bits(build: Build, size: Size) -> None:
    root = build([deep_image(3)], depth=16, format="png")
    found = LMDBDataset(root, decode="tensor", crop=Resize(size))[0]
    source = torch.from_numpy(deep_image(3).astype(np.float32)).permute(2, 0, 1)[None]
    exact = torch.nn.functional.interpolate(source, tuple(size), mode="bilinear", antialias=True)[0]
    assert found.dtype == torch.uint16
    assert (found.to(torch.float32) - exact).abs().max() <= 2


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_normalization_of_16_bits_is_refused_in_one_line(device: str, build: Build) -> None:
    root = build([deep_image(0)], depth=16, format="raw")
    with pytest.raises(
        OptionError, match=r"^normalize: expected 8-bit images, but .* has 16-bit images; normalize the batches"
    ):
        Loader(LMDBDataset(root, decode="tensor"), 1, num_workers=0, normalize=((0.5,) * 3, (0.5,) * 3), device=device)


@pytest.mark.parametrize("crop", [CenterCrop(48), [CenterCrop(48), CenterCrop(24)]], ids=["one view", "two views"])
def test_batches_of_16_bits_need_no_dev_shm(crop: Any, build: Build) -> None:
    root = build([deep_image(seed) for seed in range(COUNT)], depth=16, format="raw")
    dataset = LMDBDataset(root, decode="tensor", crop=crop)
    (plain,) = make_loader(dataset, batch_size=COUNT, shuffle=False, num_workers=0)
    (batch,) = make_loader(dataset, batch_size=COUNT, shuffle=False, num_workers=1)
    assert type(batch) is type(plain)
    views, expected = ((batch,), (plain,)) if isinstance(batch, torch.Tensor) else (batch, plain)
    assert all(map(torch.equal, (view.int() for view in views), (view.int() for view in expected)))
    assert not any(view.is_shared() for view in views)


@pytest.mark.parametrize("format", ["png", "raw"])
def test_transparency_is_returned_exactly(build: Build, format: Format) -> None:
    images = [cutout(seed) for seed in range(COUNT)]
    root = build(images, color="rgba", format=format)
    for found, expected in zip(LMDBDataset(root, decode="numpy"), images, strict=True):
        assert np.array_equal(found, expected)
    assert LMDBDataset(root)[0].mode == "RGBA"
    assert verify_dataset(root) == VerifyResult(COUNT)
    batch = next(iter(Loader(LMDBDataset(root, decode="tensor"), COUNT, shuffle=False, num_workers=0)))
    assert np.array_equal(batch.permute(0, 2, 3, 1), np.stack(images))


def test_opaque_images_among_transparent_ones_get_alpha(build: Build) -> None:
    root = build([smooth_image(48, 60), cutout(1)], color="rgba", format="webp")
    first, second = LMDBDataset(root, decode="numpy")
    assert (first[:, :, 3] == 255).all()
    assert np.array_equal(second[:, :, 3], cutout(1)[:, :, 3])


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ({"format": "png", "color": "rgba"}, 2),
        ({"format": "raw", "depth": 16}, 2),
        ({"format": "png", "icc": "ignore"}, 1),
        ({"format": "png"}, 1),
    ],
)
def test_the_format_is_version_2_only_if_version_1_would_misread_it(
    build: Build, options: dict[str, Any], version: int
) -> None:
    root = build([deep_image(0)], **options)
    assert f'"version": {version}' in (root / "manifest.json").read_text()


@pytest.mark.parametrize("options", [{"depth": 16}, {"color": "rgba"}], ids=["16 bits", "alpha"])
def test_raw_pixels_are_exported_unchanged(
    build: Build, options: dict[str, Any], presize: Callable[..., Ran], tmp_path: Path
) -> None:
    images = [deep_image(1)] if "depth" in options else [cutout(1)]
    assert presize("export", build(images, format="raw", **options), tmp_path / "files").code == 0
    found = cv2.imread(str(tmp_path / "files" / "0.png"), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(found[:, :, [2, 1, 0, 3][: found.shape[2]]], images[0])


def test_parts_of_another_depth_are_not_joined(build: Build, tmp_path: Path) -> None:
    root = build([deep_image(1)], depth=16, format="png")
    build_dataset(tmp_path / "raw", tmp_path / "eight", BuildOptions(ImageOptions(format="png")), SERIAL)
    parts = ConcatDataset([LMDBDataset(path, decode="tensor") for path in (root, tmp_path / "eight")])
    with pytest.raises(OptionError, match="must have the same depth, got 16 in"):
        Loader(parts, 1, num_workers=0)


@pytest.mark.parametrize("options", [{"depth": 16}, {"color": "rgba"}], ids=["16 bits", "alpha"])
def test_models_for_rgb_refuse_other_pixels_in_one_line(
    build: Build, options: dict[str, Any], presize: Callable[..., Ran]
) -> None:
    root = build([deep_image(1)], format="raw", **options)
    for command in (("bench", "--lmdb", root), ("diagnose", root)):
        ran = presize(*command)
        assert ran.code == 1
        assert f"presize: error: {command[0]} trains on 8-bit RGB" in ran.err
