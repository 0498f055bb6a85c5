"""LMDBDataset instead of ImageFolder: its samples, and the loaders that read it."""

from __future__ import annotations

import copy
import operator
import pickle
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from builds import SERIAL, build_images, image_folder
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, RandomCrop, RandomResizedCrop, Resize
from presize.errors import DatasetError, OptionError
from presize.options import BuildOptions, ImageOptions, Size
from presize.store.dataset import Dataset
from tampering import read_table, with_value, write_table

CLASSES = {"ant": 11, "bee": 3, "cow": 10}
SQUARES = BuildOptions(ImageOptions(sizes=(Size(32, 32),), fit="crop", quality=60), shard_samples=5)


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build 24 JPEGs of 32×32 in five shards and three classes, one of them with subfolders, and a class without
    images; read only."""
    images = {}
    for name, count in CLASSES.items():
        for i in range(count):
            path = Path(name, "z" if i % 3 else "a" if i % 2 else "", f"{i}.png")
            images[str(path)] = smooth_image(40, 48, seed=sum(map(ord, name)) + i)
    folder = tmp_path_factory.mktemp("squares")
    (folder / "raw" / "bat").mkdir(parents=True)
    return build_images(folder, images, SQUARES)


@pytest.fixture(scope="module")
def photos(squares: Path) -> Path:
    """Return the source of `squares`."""
    return squares.parent / "raw"


@pytest.fixture(scope="module")
def expected(squares: Path) -> list[tuple[bytes, int]]:
    """Return the expected bytes and label of each sample, read in the simplest way."""
    data = Dataset(squares)
    return [(data.value(i), label) for i, label in enumerate(data.numbers("label").tolist())]


# --- like ImageFolder ---


def test_classes_samples_and_targets_are_those_of_image_folder(photos: Path, squares: Path) -> None:
    classes, samples = image_folder(photos)
    ds = LMDBDataset(squares)
    assert ds.classes == classes == ["ant", "bat", "bee", "cow"], "a class without images keeps its number"
    assert ds.class_to_idx == {name: i for i, name in enumerate(classes)}
    assert [(str(photos / path), label) for path, label in ds.samples] == samples
    assert ds.targets.tolist() == [label for _, label in samples]
    assert len(ds) == len(samples)
    assert repr(ds) == f"LMDBDataset('{squares}', 24 samples, target='label', decode='pil')"


def test_transforms_are_called_sample_by_sample_in_the_requested_order(
    squares: Path, expected: list[tuple[bytes, int]]
) -> None:
    calls: list[int] = []
    ds = LMDBDataset(squares, len, calls.append, decode="bytes")
    order = [23, 0, 12, 5, 11, 14]
    assert ds.__getitems__(order) == [(len(expected[i][0]), None) for i in order]
    assert calls == [expected[i][1] for i in order]


def test_an_exception_of_a_transform_reaches_the_caller(squares: Path) -> None:
    ds = LMDBDataset(squares, partial(operator.truediv, 1))
    for read in (lambda: ds[0], lambda: ds.__getitems__([0, 1])):
        with pytest.raises(TypeError, match="unsupported operand"):
            read()


# --- samples ---


def test_each_decode_yields_the_stored_image_in_its_form(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    pil, array, tensor = (LMDBDataset(squares, decode=decode)[7][0] for decode in ("pil", "numpy", "tensor"))
    assert list(LMDBDataset(squares, decode="bytes")) == expected
    assert isinstance(pil, Image.Image) and (pil.mode, pil.size) == ("RGB", (32, 32))
    assert (array.shape, array.dtype) == ((32, 32, 3), np.uint8)
    assert (tuple(tensor.shape), tensor.dtype) == ((3, 32, 32), torch.uint8)
    assert tensor.unsqueeze(0).is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(np.asarray(pil), array) and np.array_equal(tensor.permute(1, 2, 0).numpy(), array)


@pytest.mark.parametrize("crop", [None, CenterCrop(12)])
@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "raw"])
def test_grey_images_have_one_channel(crop: Any, tmp_path: Path, format: Any) -> None:
    image = ImageOptions(sizes=(Size(16, 16),), fit="crop", format=format, color="gray")
    root = build_images(tmp_path, {"0.png": smooth_image(20, 24)}, BuildOptions(image))
    pil, array, tensor = (LMDBDataset(root, decode=decode, crop=crop)[0] for decode in ("pil", "numpy", "tensor"))
    side = 12 if crop else 16
    assert (pil.mode, pil.size) == ("L", (side, side))
    assert (array.shape, tuple(tensor.shape)) == ((side, side), (1, side, side))
    assert np.array_equal(np.asarray(pil), array) and np.array_equal(tensor[0].numpy(), array)
    tensor[0, 0, 0] = 7  # raw pixels are not a view of the file


def test_a_source_of_chroma_subsampling_4_4_1_is_stored_unchanged_and_read(tmp_path: Path) -> None:
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(smooth_image(16, 16)), colorsubsampling="420")
    (tmp_path / "raw").mkdir()
    # One MCU of 4:2:0 has as many blocks as one of 4:4:1, in another layout.
    odd = data.replace(struct.pack(">HHBBB", 16, 16, 3, 1, 0x22), struct.pack(">HHBBB", 32, 8, 3, 1, 0x14))
    (tmp_path / "raw" / "odd.jpg").write_bytes(odd)
    build_dataset(tmp_path / "raw", tmp_path / "out", SQUARES, SERIAL)
    dataset = LMDBDataset(tmp_path / "out", decode="numpy", target=None)
    np.testing.assert_array_equal(dataset[0], simplejpeg.decode_jpeg(odd))
    cropped = LMDBDataset(tmp_path / "out", decode="numpy", target=None, crop=RandomCrop(8))
    assert cropped[0].shape == (8, 8, 3)


def test_a_damaged_image_names_itself(squares: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(squares, tmp_path / "copied"))
    write_table(copied, with_value(read_table(copied), "nbytes", 6, 5))
    ds = LMDBDataset(copied)
    with pytest.raises(DatasetError, match=rf"sample 6 \({ds.data.path(6)}\) of .* is damaged: "):
        ds.__getitems__([5, 6])


# --- indices ---


@given(i=st.integers(-40, 40), kind=st.sampled_from([int, np.int64, torch.tensor]))
def test_an_index_works_like_that_of_a_list(
    squares: Path, expected: list[tuple[bytes, int]], i: int, kind: Callable[[int], Any]
) -> None:
    ds = LMDBDataset(squares, decode="bytes")
    if -24 <= i < 24:
        assert ds[kind(i)] == expected[i]
        assert ds.__getitems__([kind(i)]) == [expected[i]]
    else:
        for read in (lambda: ds[kind(i)], lambda: ds.__getitems__([0, kind(i)])):
            with pytest.raises(IndexError, match=rf"sample {i} of .*: expected from -24 to 23"):
                read()


@given(indices=st.lists(st.integers(-24, 23), max_size=40))
def test_a_batch_has_its_samples_in_the_requested_order(
    squares: Path, expected: list[tuple[bytes, int]], indices: list[int]
) -> None:
    assert LMDBDataset(squares, decode="bytes").__getitems__(indices) == [expected[i] for i in indices]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (1.0, "got 1.0"),
        ("1", "got '1'"),
        (None, "got None"),
        (slice(0, 2), r"got slice\(0, 2, None\); for several samples use torch.utils.data.Subset"),
    ],
)
def test_an_invalid_index_is_a_type_error(squares: Path, index: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^index: expected a whole number, {said}$"):
        LMDBDataset(squares)[index]


@pytest.mark.parametrize("crop", [None, CenterCrop(16)])
@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
def test_each_image_belongs_to_the_caller(squares: Path, decode: Any, crop: Any) -> None:
    (first, _), (second, _), _ = LMDBDataset(squares, decode=decode, crop=crop).__getitems__([4, 4, -20])
    assert first is not second
    if decode != "pil":
        first[:] = 0
        assert second.any() and LMDBDataset(squares, decode=decode, crop=crop)[4][0].any()


class Doubled(LMDBDataset):
    """A typical subclass that changes the samples of a dataset."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index), super().__getitem__(index)


def test_a_subclass_with_its_own_getitem_is_also_used_for_batches(
    squares: Path, expected: list[tuple[bytes, int]]
) -> None:
    ds = Doubled(squares, decode="bytes")
    assert ds.__getitems__([2, 1]) == [(expected[i], expected[i]) for i in (2, 1)]
    ds = Doubled(squares, crop=CenterCrop(16), decode="tensor")
    (one, other), _ = batch = ds.__getitems__([2, 1])
    assert type(batch) is list and one[0].shape == other[0].shape == (3, 16, 16)


# --- crops ---


def pixels_of(image: Any) -> np.ndarray:
    """Return an image of any kind except "bytes" as uint8 (height, width, 3)."""
    return image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)


@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
@pytest.mark.parametrize("crop", [RandomResizedCrop, RandomCrop, CenterCrop, Resize])
def test_a_crop_yields_images_of_its_size(crop: Any, decode: Any, squares: Path) -> None:
    ds = LMDBDataset(squares, crop=crop(Size(12, 20)), flip=0.5, decode=decode)
    for image, label in (ds[7], ds[-17], *ds.__getitems__([7, 7])):
        assert label == ds.targets[7]
        assert pixels_of(image).shape == (12, 20, 3) and pixels_of(image).dtype == np.uint8


def test_crops_follow_torchs_seed_and_differ_from_call_to_call(squares: Path) -> None:
    found = []
    for decode in ("pil", "numpy", "tensor"):
        ds = LMDBDataset(squares, crop=RandomResizedCrop(16), flip=0.5, decode=decode)  # type: ignore[arg-type]
        torch.manual_seed(3)
        found.append([pixels_of(ds[7][0]).tobytes() for _ in range(8)])
        found[-1] += [pixels_of(image).tobytes() for image, _ in ds.__getitems__([7] * 8)]
        assert len(set(found[-1][:8])) > 6 and len(set(found[-1][8:])) > 6, "nor within a batch"
    assert found[0] == found[1] == found[2]


def test_a_flip_mirrors_with_its_probability(squares: Path) -> None:
    whole = pixels_of(LMDBDataset(squares)[7][0])
    for flip in (0.0, 1.0):
        ds = LMDBDataset(squares, crop=CenterCrop(32), flip=flip, decode="numpy")
        assert np.array_equal(ds[7][0], whole[:, ::-1] if flip else whole)
    half = LMDBDataset(squares, flip=0.5, decode="numpy")  # images of one size need no crop
    mirrored = [np.array_equal(image, whole[:, ::-1]) for image, _ in half.__getitems__([7] * 200)]
    assert 60 < sum(mirrored) < 140


def test_a_crop_comes_before_the_transform(squares: Path) -> None:
    ds = LMDBDataset(squares, operator.attrgetter("size"), crop=CenterCrop(Size(12, 20)))
    assert [image for image, _ in ds.__getitems__([3, 1])] == [(20, 12)] * 2 == [ds[3][0], ds[1][0]]
    assert LMDBDataset(squares, crop=CenterCrop(16), decode="tensor").__getitems__([]) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decode": "torch"}, "decode: expected one of pil, numpy, tensor, bytes, got 'torch'"),
        ({"decode": "bytes", "crop": CenterCrop(16)}, "decode: bytes are not decoded, so they cannot be cropped or fl"),
        ({"decode": "bytes", "flip": 0.5}, "decode: bytes are not decoded, so they cannot be cropped or flipped"),
        ({"crop": 16}, "crop: expected one of presize.datasets' crops"),
        ({"crop": CenterCrop}, "crop: expected one of presize.datasets' crops"),
        ({"flip": 2}, "flip: expected a probability from 0 to 1, got 2"),
        ({"transform": 224}, "^transform: expected a function, got 224$"),
        ({"transform": 224, "fuse": True}, "^transform: expected a function, got 224$"),
        ({"target_transform": "int"}, "^target_transform: expected a function, got 'int'$"),
        ({"target": 5}, "^target: expected a column, or a list or dict of columns, got 5$"),
        ({"target": b"label"}, "^target: expected a column, or a list or dict of columns, got b'label'$"),
        ({"target": ["label", 5]}, "^target: expected str, got 5$"),
        ({"target": {"a": 5}}, "^target: expected str, got 5$"),
        ({"multi_hot": 5}, "^multi_hot: expected a list of names, got 5$"),
        ({"companions": "mask"}, "^companions: expected a list of names, got 'mask'$"),
        ({"companions": 5}, "^companions: expected a list of names, got 5$"),
        ({"root": None}, "^expected a path or a URL, got None$"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(options: dict[str, Any], said: str, squares: Path) -> None:
    with pytest.raises(OptionError, match=said):
        LMDBDataset(**{"root": squares} | options)


# --- loaders, copies and processes ---


@pytest.fixture(scope="module")
def expected_pixels(squares: Path) -> list[tuple[bytes, int]]:
    return [(tensor.numpy().tobytes(), label) for tensor, label in LMDBDataset(squares, decode="tensor")]


def test_a_copy_of_a_dataset_reads_the_same_samples(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    ds = LMDBDataset(squares, bytes, int, decode="bytes")
    cropped = LMDBDataset(squares, crop=RandomResizedCrop(16), flip=0.5, decode="numpy")
    _ = ds[0]
    crops = []
    for made in (copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given)), lambda given: given):
        copied = made(ds)
        assert list(copied) == expected
        assert (repr(copied), copied.classes, copied.transform) == (repr(ds), ds.classes, bytes)
        torch.manual_seed(0)
        crops.append([image.tobytes() for image, _ in made(cropped).__getitems__([5, 1, 20])])
    assert all(found == crops[0] for found in crops)


def test_its_pickled_size_does_not_depend_on_its_length(squares: Path, tmp_path: Path) -> None:
    few = build_images(tmp_path, {"ant/0.png": smooth_image(40, 48)}, SQUARES)
    assert [len(LMDBDataset(root)) for root in (squares, few)] == [24, 1]
    large, small = (len(pickle.dumps(LMDBDataset(root))) - 2 * len(str(root)) for root in (squares, few))
    assert abs(large - small) < 10
    assert large < 600


def test_threads_share_a_dataset_and_several_read_one_folder(
    squares: Path, expected_pixels: list[tuple[bytes, int]]
) -> None:
    several = [LMDBDataset(squares, decode="numpy") for _ in range(2)]

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(24, size=50).tolist()
        found = [image.transpose(2, 0, 1).tobytes() for image, _ in several[seed % 2].__getitems__(order)]
        return found == [expected_pixels[i][0] for i in order]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(24)))
