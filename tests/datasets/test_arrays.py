"""Arrays stored with images: cropped and mirrored if they have the shape of their image, and unchanged otherwise."""

from __future__ import annotations

import importlib
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from builds import SERIAL
from paired import mask_of
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomCrop, RandomResizedCrop, Resize, make_loader
from presize.errors import OptionError
from presize.options import BuildOptions, Companion, ImageOptions, Size, SourceOptions
from torchvisions import torchvision_or_skip

SAMPLES = 8
KINDS = {"depth": "f4", "normals": "f2", "wide": "u4", "other": "i8", "flags": "b1"}
"""Arrays of these types with the numbers of the mask; normals have three channels, each with another offset."""
CROPS = [RandomResizedCrop(20, scale=(0.2, 1.0)), RandomCrop(24), Resize(Size(30, 17)), CenterCrop(24)]


def array(name: str, mask: np.ndarray) -> np.ndarray:
    """Return the array of a name for this mask."""
    return (np.stack((mask, mask + 1, mask + 2), axis=2) if name == "normals" else mask).astype(KINDS[name])


def write_source(folder: Path, shape: tuple[int, int] = (40, 50)) -> Path:
    for number in range(SAMPLES):
        mask = mask_of(*shape, number, (0, 7, 21, 200)).astype(np.uint8)
        files = {f"{name}/{number}.npy": array(name, mask) for name in KINDS}
        files |= {
            f"masks/{number}.png": mask,
            f"image/{number}.png": smooth_image(*shape, number),
            f"embedding/{number}.npy": np.full(12, number, ">f8"),
            f"features/{number}.npy": np.full((2, 3, 4), number, "f4"),
            f"points/{number}.npy": np.full((number, 2), number, "i4"),
        }
        for path, values in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if path.endswith(".npy"):
                np.save(folder / path, values)
            else:
                Image.fromarray(values).save(folder / path)
    return folder


OPTIONS = BuildOptions(
    ImageOptions(sizes=(Size(32, 32),)),
    companions=(
        Companion("mask", "masks/{stem}.png"),
        *(Companion(name, f"{name}/{{stem}}.npy") for name in (*KINDS, "embedding", "features", "points")),
    ),
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    build_dataset(write_source(folder / "raw"), folder / "out", OPTIONS, SERIAL, SourceOptions(labels="none"))
    return folder / "out"


ALL = (*KINDS, "embedding", "features", "mask")


def check(mask: np.ndarray, parts: dict[str, Any], channels_first: bool) -> None:
    """Assert that the arrays of a sample or a batch match its mask, for any crop."""
    for name in KINDS:
        values = np.asarray(parts[name])
        if name == "normals" and channels_first:
            values = np.moveaxis(values, -3, -1)
        expected = np.stack((mask, mask + 1, mask + 2), axis=-1) if name == "normals" else mask
        assert values.dtype == KINDS[name] and np.array_equal(values, expected.astype(KINDS[name])), name


@pytest.mark.parametrize("crop", [None, *CROPS], ids=str)
@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
def test_a_sample_has_its_arrays_cropped_like_its_image(decode: Any, crop: Any, stored: Path) -> None:
    data = LMDBDataset(stored, decode=decode, crop=crop, flip=0.5 if crop else 0.0, companions=ALL, target=None)
    for number in range(SAMPLES):
        _, *others = data[number]
        parts = dict(zip(ALL, others, strict=True))
        kind = torch.Tensor if decode == "tensor" else np.ndarray
        assert all(isinstance(part, kind) for name, part in parts.items() if name != "mask")
        check(np.asarray(parts["mask"]), parts, decode == "tensor")
        embedding, features = (np.asarray(parts[name]) for name in ("embedding", "features"))
        assert embedding.dtype == np.float64 and np.array_equal(embedding, np.full(12, number))
        assert np.array_equal(features, np.full((2, 3, 4), number))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("maker", [Loader, make_loader])
def test_a_batch_has_them_stacked(maker: Any, workers: int, stored: Path) -> None:
    data = LMDBDataset(stored, decode="tensor", crop=CROPS[0], flip=0.5, companions=ALL, target=None)
    numbers = []
    for _, *others in maker(pickle.loads(pickle.dumps(data)), 4, shuffle=True, seed=1, num_workers=workers):
        parts = dict(zip(ALL, others, strict=True))
        check(parts["mask"].numpy(), parts, channels_first=True)
        assert parts["embedding"].shape == (4, 12) and parts["features"].shape == (4, 2, 3, 4)
        assert torch.equal(parts["embedding"][:, 0].float(), parts["features"][:, 1, 2, 3])
        numbers += parts["embedding"][:, 5].int().tolist()
    assert sorted(numbers) == list(range(SAMPLES))


def test_arrays_of_several_shapes_are_a_list_in_a_batch_without_a_crop(stored: Path) -> None:
    data = LMDBDataset(stored, decode="tensor", companions=("depth", "points"), target=None)
    ((images, depth, points),) = make_loader(data, SAMPLES, num_workers=0)
    assert images.shape == (SAMPLES, 3, 32, 40) and depth.shape == (SAMPLES, 32, 40)
    assert isinstance(points, list) and [tuple(one.shape) for one in points] == [(i, 2) for i in range(SAMPLES)]


def test_arrays_of_several_shapes_are_refused_in_cropped_batches(stored: Path) -> None:
    said = "companions: the arrays of 'points' in .* differ in shape or type .*; read without a crop, or name"
    with pytest.raises(OptionError, match=said):
        LMDBDataset(stored, crop=CenterCrop(8), companions=("points",))


@pytest.mark.parametrize("odd", [np.zeros((40, 50), np.int32), np.zeros((40, 50, 1), np.float32)], ids=["type", "axis"])
def test_an_array_of_another_type_than_the_first_is_refused_in_a_batch(odd: np.ndarray, tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw")
    np.save(source / "depth" / "5.npy", odd)
    options = replace(OPTIONS, companions=(Companion("depth", "depth/{stem}.npy"),))
    keep = SourceOptions(tmp_path / "table.csv")
    (tmp_path / "table.csv").write_text("path\n" + "".join(f"image/{i}.png\n" for i in range(SAMPLES)))
    build_dataset(source, tmp_path / "out", options, SERIAL, keep)
    data = LMDBDataset(tmp_path / "out", decode="tensor", crop=CenterCrop(8), target=None)
    said = r"the arrays of 'depth' in .* differ in shape or type \(float32 \(32, 40\) and .*\) and cannot be stacked"
    for workers in (0, 1):  # not skipped either, since it is not damaged
        with pytest.raises(OptionError, match=said):
            list(Loader(data, SAMPLES, num_workers=workers, on_error="skip"))
    assert LMDBDataset(tmp_path / "out", decode="numpy", target=None)[5][1].dtype == odd.dtype
    whole = LMDBDataset(tmp_path / "out", decode="tensor", target=None)
    ((_, depths),) = make_loader(whole, SAMPLES, num_workers=0)
    kinds = [torch.float32] * 5 + [torch.from_numpy(odd).dtype] + [torch.float32] * 2
    assert [depth.dtype for depth in depths] == kinds


def test_tv_tensors_are_masks_if_arrays_have_the_shape_of_their_image(stored: Path) -> None:
    torchvision_or_skip()
    tv_tensors = importlib.import_module("torchvision.tv_tensors")
    for crop in (None, CenterCrop(8)):
        data = LMDBDataset(
            stored, decode="tensor", crop=crop, companions=("depth", "embedding"), target=None, tv_tensors=True
        )
        _, depth, embedding = data[1]
        assert isinstance(depth, tv_tensors.Mask) and type(embedding) is torch.Tensor
