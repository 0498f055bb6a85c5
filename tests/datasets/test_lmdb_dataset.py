"""LMDBDataset in the place of ImageFolder: what it delivers, and through which loaders."""

from __future__ import annotations

import copy
import json
import multiprocessing
import operator
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    Subset,
    random_split,
)

from builds import SERIAL
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, RandomCrop, RandomResizedCrop, Resize
from presize.errors import DatasetError, OptionError
from presize.options import BuildOptions, ImageOptions, Size, SourceOptions
from presize.store.dataset import Dataset
from processes import run_python
from tampering import change_offset, read_table, with_value, write_table

CLASSES = {"ant": 11, "bee": 3, "cow": 10}
SQUARES = BuildOptions(ImageOptions(sizes=(Size(32, 32),), fit="crop", quality=60), shard_samples=5)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures in three classes, one of which has folders in it, and one class without pictures."""
    folder = tmp_path_factory.mktemp("photos")
    for name, images in CLASSES.items():
        for i in range(images):
            path = folder / name / ("z" if i % 3 else "a" if i % 2 else "") / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(smooth_image(40, 48, seed=sum(map(ord, name)) + i)).save(path)
    return folder


@pytest.fixture(scope="module")
def squares(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` as 32 x 32 JPEGs in five shards; read only."""
    out = tmp_path_factory.mktemp("squares") / "32"
    build_dataset(photos, out, SQUARES, SERIAL)
    return out


@pytest.fixture(scope="module")
def expected(squares: Path) -> list[tuple[bytes, int]]:
    """What has to come out, read in the plainest way: the bytes and the label of each sample."""
    data = Dataset(squares)
    return [(data.value(i), label) for i, label in enumerate(data.numbers("label").tolist())]


@pytest.fixture
def copied(squares: Path, tmp_path: Path) -> Path:
    """A copy of `squares`, to be changed at will."""
    return Path(shutil.copytree(squares, tmp_path / "copied"))


def image_folder(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """The classes and samples of torchvision's ImageFolder(root), by its own algorithm."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            samples += [(os.path.join(folder, file), number) for file in sorted(files)]
    return classes, samples


# --- as ImageFolder ---


def test_classes_samples_and_targets_are_those_of_image_folder(photos: Path, squares: Path) -> None:
    classes, samples = image_folder(photos)
    ds = LMDBDataset(squares)
    assert ds.classes == classes
    assert ds.class_to_idx == {name: i for i, name in enumerate(classes)}
    assert [(str(photos / path), label) for path, label in ds.samples] == samples
    assert ds.targets.tolist() == [label for _, label in samples]
    assert len(ds) == len(samples)


def test_a_class_without_images_keeps_its_number(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "bat").mkdir()
    build_dataset(tmp_path / "photos", tmp_path / "OUT", SQUARES, SERIAL)
    ds = LMDBDataset(tmp_path / "OUT")
    assert ds.classes == ["ant", "bat", "bee", "cow"]
    assert set(ds.targets.tolist()) == {0, 2, 3}


def test_targets_are_copied_once_into_an_array_that_torch_takes_without_a_warning(squares: Path) -> None:
    ds = LMDBDataset(squares)
    assert ds.targets.dtype == np.int64, "as torch's losses need them"
    assert ds.targets is ds.targets
    weights = 1.0 / torch.bincount(torch.from_numpy(ds.targets))
    assert torch.equal(weights[torch.as_tensor(ds.targets)], weights[torch.tensor(ds.targets)])
    before = ds[0][1]
    ds.targets[0] += 1
    assert ds[0][1] == before, "what samples come with stays"
    assert pickle.loads(pickle.dumps(ds)).targets[0] == before


def test_numbers_share_the_mapped_index(squares: Path) -> None:
    ds = LMDBDataset(squares)
    before = pa.total_allocated_bytes()
    assert not ds.numbers("label").flags.owndata
    assert pa.total_allocated_bytes() == before


def test_a_label_is_a_plain_int(squares: Path) -> None:
    ds = LMDBDataset(squares, decode="bytes")
    assert {type(label) for _, label in ds} == {int}
    assert {type(label) for _, label in ds.samples} == {int}


def test_transforms_get_the_image_and_the_target(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    ds = LMDBDataset(squares, len, str, decode="bytes")
    assert list(ds) == [(len(value), str(label)) for value, label in expected]


def test_transforms_can_be_set_later(squares: Path) -> None:
    ds = LMDBDataset(squares, decode="bytes")
    ds.transform = ds.target_transform = type
    assert ds[0] == (bytes, int)


def test_transforms_are_called_sample_by_sample_in_the_order_asked_for(squares: Path) -> None:
    calls: list[int] = []
    ds = LMDBDataset(squares, len, calls.append, decode="bytes")
    order = [23, 0, 12, 5, 11, 14]
    ds.__getitems__(order)
    assert calls == [ds.targets[i] for i in order]


def test_what_a_transform_raises_reaches_the_caller(squares: Path) -> None:
    ds = LMDBDataset(squares, partial(operator.truediv, 1))
    for read in (lambda: ds[0], lambda: ds.__getitems__([0, 1])):
        with pytest.raises(TypeError, match="unsupported operand"):
            read()
    ds.transform = None
    assert len(ds[0]) == 2


# --- what it delivers ---


def test_pil_images_have_the_stored_pixels(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    image, label = LMDBDataset(squares)[7]
    assert isinstance(image, Image.Image)
    assert (image.mode, image.size, label) == ("RGB", (32, 32), expected[7][1])
    assert np.array_equal(np.asarray(image), LMDBDataset(squares, decode="numpy")[7][0])


def test_arrays_are_rows_by_columns_by_colours(squares: Path) -> None:
    array, _ = LMDBDataset(squares, decode="numpy")[7]
    assert (array.shape, array.dtype) == ((32, 32, 3), np.uint8)
    array[:] = 0
    assert LMDBDataset(squares, decode="numpy")[7][0].any(), "it is the caller's own"


def test_tensors_are_colours_by_rows_by_columns(squares: Path) -> None:
    tensor, _ = LMDBDataset(squares, decode="tensor")[7]
    array, _ = LMDBDataset(squares, decode="numpy")[7]
    assert (tuple(tensor.shape), tensor.dtype) == ((3, 32, 32), torch.uint8)
    assert tensor.unsqueeze(0).is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(tensor.permute(1, 2, 0).numpy(), array)


def test_bytes_are_the_stored_ones(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    assert list(LMDBDataset(squares, decode="bytes")) == expected


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "raw"])
def test_grey_images_have_one_channel(photos: Path, tmp_path: Path, format: Any) -> None:
    options = BuildOptions(ImageOptions(sizes=(Size(16, 16),), fit="crop", format=format, color="gray"))
    build_dataset(photos, tmp_path / "OUT", options, SERIAL)
    pil, numpy, tensor = (LMDBDataset(tmp_path / "OUT", decode=decode)[3][0] for decode in ("pil", "numpy", "tensor"))
    assert (pil.mode, pil.size) == ("L", (16, 16))
    assert (numpy.shape, tuple(tensor.shape)) == ((16, 16), (1, 16, 16))
    assert np.array_equal(np.asarray(pil), numpy)
    assert np.array_equal(tensor[0].numpy(), numpy)
    tensor[0, 0, 0] = 7  # raw pixels are no view of the file


def test_another_decode_is_refused(squares: Path) -> None:
    with pytest.raises(OptionError, match="decode: expected one of pil, numpy, tensor, bytes, got 'torch'"):
        LMDBDataset(squares, decode="torch")  # type: ignore[arg-type]


def test_it_says_what_it_is(squares: Path) -> None:
    assert repr(LMDBDataset(squares)) == f"LMDBDataset('{squares}', 24 samples, target='label', decode='pil')"


# --- indices ---


@given(i=st.integers(-40, 40), kind=st.sampled_from([int, np.int64, torch.tensor]))
def test_an_index_means_what_it_means_for_a_list(
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
def test_a_batch_is_its_samples_in_the_order_asked_for(
    squares: Path, expected: list[tuple[bytes, int]], indices: list[int]
) -> None:
    assert LMDBDataset(squares, decode="bytes").__getitems__(indices) == [expected[i] for i in indices]


@pytest.mark.parametrize("index", [1.0, "1", None, slice(0, 2)])
def test_what_is_no_index_is_a_type_error(squares: Path, index: Any) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        LMDBDataset(squares)[index]


@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
def test_a_sample_asked_for_twice_comes_as_two_objects(squares: Path, decode: Any) -> None:
    (first, _), (second, _), _ = LMDBDataset(squares, decode=decode).__getitems__([4, 4, -20])
    assert first is not second
    if decode == "numpy":
        assert not np.shares_memory(first, second)
    if decode == "tensor":
        assert first.data_ptr() != second.data_ptr()


class Doubled(LMDBDataset):
    """What people write to change what a dataset delivers."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index), super().__getitem__(index)


def test_a_subclass_with_its_own_getitem_is_asked_for_batches_too(
    squares: Path, expected: list[tuple[bytes, int]]
) -> None:
    ds = Doubled(squares, decode="bytes")
    assert ds.__getitems__([2, 1]) == [(expected[i], expected[i]) for i in (2, 1)]


# --- targets ---

LABELS = {
    "path": [f"{i}.png" for i in range(4)],
    "label": ["cat", "dog", "ant", "cat"],
    "score": [0.5, 1.5, 2.5, 3.5],
    "count": [3, None, 1, 0],
    "caption": ["a cat", "a dog", "", "été"],
    "good": [True, False, True, True],
    "box": [[1, 2], [], [3], [4, 5]],
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures with the label table LABELS; read only."""
    folder = tmp_path_factory.mktemp("labelled")
    (folder / "photos").mkdir()
    for i in range(4):
        Image.fromarray(smooth_image(20, 20, seed=i)).save(folder / "photos" / f"{i}.png")
    rows = [dict(zip(LABELS, row, strict=True)) for row in zip(*LABELS.values(), strict=True)]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    options = BuildOptions(ImageOptions(sizes=(Size(16, 16),)))
    build_dataset(
        folder / "photos", folder / "OUT", options, SERIAL, samples=SourceOptions(labels=folder / "labels.jsonl")
    )
    return folder / "OUT"


@pytest.mark.parametrize(
    ("target", "values", "kind"),
    [
        ("label", [1, 2, 0, 1], int),
        ("score", [0.5, 1.5, 2.5, 3.5], float),
        ("count", [3, None, 1, 0], None),
        ("caption", LABELS["caption"], str),
        ("good", LABELS["good"], bool),
        ("box", LABELS["box"], list),
        ("path", LABELS["path"], str),
        ("width", [16] * 4, int),
    ],
)
def test_any_column_can_be_the_target(labelled: Path, target: str, values: list[Any], kind: type | None) -> None:
    ds = LMDBDataset(labelled, target=target, decode="bytes")
    delivered = [value for _, value in ds]
    assert delivered == values
    assert list(ds.targets) == values
    assert [value for _, value in ds.samples] == values
    assert kind is None or {type(value) for value in delivered} == {kind}


def test_several_columns_are_delivered_as_a_tuple(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=["label", "caption"], decode="bytes")
    assert [target for _, target in ds] == [(1, "a cat"), (2, "a dog"), (0, ""), (1, "été")]
    assert ds.samples[1] == ("1.png", (2, "a dog"))
    assert [target for _, target in pickle.loads(pickle.dumps(ds))] == [target for _, target in ds]


def test_without_a_target_the_image_comes_alone(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=None, decode="numpy")
    assert ds[0].shape == (16, 16, 3)
    assert ds.samples[0] == ("0.png", None)
    assert not hasattr(ds, "targets"), "as code asks that works with and without"


def test_without_labels_the_image_comes_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    Image.fromarray(smooth_image(20, 20)).save(tmp_path / "photos" / "0.png")
    build_dataset(tmp_path / "photos", tmp_path / "OUT", BuildOptions(), SERIAL)
    ds = LMDBDataset(tmp_path / "OUT", decode="numpy")
    assert ds[-1].shape == (20, 20, 3)
    assert (ds.classes, ds.class_to_idx) == (None, {})
    assert not hasattr(ds, "targets")


def test_several_targets_are_no_one_array(labelled: Path) -> None:
    ds = LMDBDataset(labelled, target=("label", "score"))
    with pytest.raises(AttributeError, match="targets needs one column"):
        _ = ds.targets


def test_a_target_that_is_no_column_is_named_beside_the_columns(labelled: Path) -> None:
    with pytest.raises(DatasetError, match=r"has no column 'lable'; it has path, .*, label, .*, box"):
        LMDBDataset(labelled, target="lable")


# --- crops ---


def pixels_of(image: Any) -> np.ndarray:
    """An image of any kind but "bytes" as uint8 (height, width, 3)."""
    return image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)


def test_a_source_of_chroma_subsampling_4_4_1_is_stored_as_it_is_and_read(tmp_path: Path) -> None:
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(smooth_image(16, 16)), colorsubsampling="420")
    (tmp_path / "raw").mkdir()
    # One MCU of 4:2:0 has as many blocks as one of 4:4:1, of other pixels.
    odd = data.replace(struct.pack(">HHBBB", 16, 16, 3, 1, 0x22), struct.pack(">HHBBB", 32, 8, 3, 1, 0x14))
    (tmp_path / "raw" / "odd.jpg").write_bytes(odd)
    build_dataset(tmp_path / "raw", tmp_path / "out", SQUARES, SERIAL)
    dataset = LMDBDataset(tmp_path / "out", decode="numpy", target=None)
    np.testing.assert_array_equal(dataset[0], simplejpeg.decode_jpeg(odd))
    cropped = LMDBDataset(tmp_path / "out", decode="numpy", target=None, crop=RandomCrop(8))
    assert cropped[0].shape == (8, 8, 3)


@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
@pytest.mark.parametrize("crop", [RandomResizedCrop, RandomCrop, CenterCrop, Resize])
def test_a_crop_gives_images_of_its_size(crop: Any, decode: Any, squares: Path) -> None:
    ds = LMDBDataset(squares, crop=crop(Size(12, 20)), flip=0.5, decode=decode)
    for image, label in (ds[7], ds[-17], *ds.__getitems__([7, 7])):
        assert label == ds.targets[7]
        assert pixels_of(image).shape == (12, 20, 3) and pixels_of(image).dtype == np.uint8


def test_every_decode_gives_the_pixels_of_the_same_crop(squares: Path) -> None:
    found = []
    for decode in ("pil", "numpy", "tensor"):
        torch.manual_seed(3)
        ds = LMDBDataset(squares, crop=RandomResizedCrop(16), flip=0.5, decode=decode)  # type: ignore[arg-type]
        found.append([pixels_of(image).tobytes() for image, _ in ds.__getitems__([*range(24)])])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
def test_crops_follow_torchs_seed_and_differ_from_call_to_call(decode: Any, squares: Path) -> None:
    ds = LMDBDataset(squares, crop=RandomResizedCrop(16), flip=0.5, decode=decode)
    torch.manual_seed(3)
    first = [pixels_of(ds[7][0]).tobytes() for _ in range(8)]
    torch.manual_seed(3)
    assert [pixels_of(ds[7][0]).tobytes() for _ in range(8)] == first
    assert len(set(first)) > 6
    assert len({pixels_of(image).tobytes() for image, _ in ds.__getitems__([7] * 8)}) > 6, "nor within a batch"


def test_a_flip_mirrors_as_often_as_it_says(squares: Path) -> None:
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


def test_each_cropped_image_is_the_callers_own(squares: Path) -> None:
    (one, _), (other, _) = LMDBDataset(squares, crop=CenterCrop(16), decode="numpy").__getitems__([7, 7])
    one[:] = 0
    assert other.any()


def test_a_batch_of_no_samples_is_a_list_of_none(squares: Path) -> None:
    assert LMDBDataset(squares, crop=CenterCrop(16), decode="tensor").__getitems__([]) == []


@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
def test_grey_images_are_cropped_to_one_channel(decode: Any, photos: Path, tmp_path: Path) -> None:
    options = BuildOptions(ImageOptions(sizes=(Size(24, 24),), fit="crop", color="gray"))
    build_dataset(photos, tmp_path / "OUT", options, SERIAL)
    image, _ = LMDBDataset(tmp_path / "OUT", crop=CenterCrop(16), decode=decode)[3]
    assert np.shape(image) == ((1, 16, 16) if decode == "tensor" else (16, 16))
    assert not isinstance(image, Image.Image) or image.mode == "L"


@pytest.mark.parametrize("options", [{"crop": CenterCrop(16)}, {"flip": 0.5}])
def test_bytes_are_not_cropped(options: dict[str, Any], squares: Path) -> None:
    with pytest.raises(OptionError, match="decode: bytes are not decoded, so they cannot be cropped or flipped"):
        LMDBDataset(squares, decode="bytes", **options)


def test_a_crop_that_is_none_is_refused(squares: Path) -> None:
    for options, said in [({"crop": 16}, "crop: expected one of presize.datasets' crops"), ({"flip": 2}, "flip: ")]:
        with pytest.raises(OptionError, match=said):
            LMDBDataset(squares, **options)  # type: ignore[arg-type]


def test_a_crop_larger_than_an_image_names_the_image(squares: Path) -> None:
    ds = LMDBDataset(squares, crop=CenterCrop(40))
    with pytest.raises(DatasetError, match=r"sample 7 \(.*\) of .* is 32 pixels high and 32 wide, too small for"):
        ds[7]


def test_a_subclass_with_its_own_getitem_gets_crops(squares: Path) -> None:
    ds = Doubled(squares, crop=CenterCrop(16), decode="tensor")
    (one, other), _ = batch = ds.__getitems__([2, 1])
    assert type(batch) is list and one[0].shape == other[0].shape == (3, 16, 16)


def test_parts_of_a_cropped_dataset_are_cropped(squares: Path) -> None:
    ds = LMDBDataset(squares, crop=CenterCrop(16), decode="numpy")
    train, _ = random_split(ds, [20, 4], torch.Generator().manual_seed(0))
    both = ConcatDataset([ds, ds])
    some = Subset(ds, [3, 1])
    for got, i in [(some[1], 1), (some.__getitems__([1])[0], 1), (both[24 + 5], 5), (train[0], train.indices[0])]:
        assert np.array_equal(got[0], ds[i][0]) and got[1] == ds[i][1]


def test_a_pickled_dataset_crops_the_same(squares: Path) -> None:
    ds = LMDBDataset(squares, crop=RandomResizedCrop(16), flip=0.5, decode="numpy")
    found = []
    for each in (ds, pickle.loads(pickle.dumps(ds)), copy.deepcopy(ds)):
        torch.manual_seed(0)
        found.append([image.tobytes() for image, _ in each.__getitems__([5, 1, 20])])
    assert found[0] == found[1] == found[2]


# --- what is not a dataset ---


def test_a_dataset_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not exist; expected a folder that presize build has made"):
        LMDBDataset(tmp_path / "nowhere")


def test_of_several_sizes_one_has_to_be_opened(photos: Path, tmp_path: Path) -> None:
    sizes = (Size(32, 32), Size(16, 16))
    build_dataset(photos, tmp_path / "OUT", BuildOptions(ImageOptions(sizes=sizes)), SERIAL)
    with pytest.raises(DatasetError, match=r"holds the datasets 16, 32; open one of them, such as .*/OUT/16"):
        LMDBDataset(tmp_path / "OUT")
    assert len(LMDBDataset(tmp_path / "OUT" / "16")) == 24


def test_a_folder_of_presized_images_is_for_the_other_class(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "OUT", BuildOptions(ImageOptions(), layout="folder"), SERIAL)
    with pytest.raises(DatasetError, match="is a folder of image files; read it with FolderDataset"):
        LMDBDataset(tmp_path / "OUT")


def test_classes_without_labels_are_damage(copied: Path) -> None:
    write_table(copied, read_table(copied).drop_columns(["label"]))
    with pytest.raises(DatasetError, match="is damaged: expected one column label"):
        LMDBDataset(copied)


def test_text_outside_the_index_is_found_before_it_is_read(labelled: Path, tmp_path: Path) -> None:
    shutil.copytree(labelled, tmp_path / "OUT")
    change_offset(tmp_path / "OUT", "caption", 2, 10**12)
    assert len(LMDBDataset(tmp_path / "OUT")) == 4, "nobody asked for captions"
    with pytest.raises(DatasetError, match=r"column 'caption' of .* is damaged: "):
        LMDBDataset(tmp_path / "OUT", target="caption")


def test_a_damaged_image_says_which_it_is(copied: Path) -> None:
    table = read_table(copied)
    write_table(copied, with_value(table, "row", 6, table.column("row")[7].as_py() + 1000))
    ds = LMDBDataset(copied)
    with pytest.raises(DatasetError, match=r"has no row \d+"):
        ds[6]
    write_table(copied, with_value(table, "nbytes", 6, 5))
    ds = LMDBDataset(copied)
    path = ds.data.path(6)
    with pytest.raises(DatasetError, match=rf"sample 6 \({path}\) of .* is damaged: "):
        ds.__getitems__([5, 6])


# --- loaders ---


def read_through(loader: DataLoader[Any]) -> list[tuple[bytes, int]]:
    """The samples of an epoch of batches of (tensors of stored bytes, labels)."""
    return [
        (pixels.numpy().tobytes(), label)
        for images, labels in loader
        for pixels, label in zip(images, labels.tolist(), strict=True)
    ]


@pytest.fixture(scope="module")
def expected_pixels(squares: Path) -> list[tuple[bytes, int]]:
    return [(tensor.numpy().tobytes(), label) for tensor, label in LMDBDataset(squares, decode="tensor")]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_delivers_every_sample_in_order(
    squares: Path, expected_pixels: list[tuple[bytes, int]], workers: int
) -> None:
    ds = LMDBDataset(squares, decode="tensor")
    _ = ds[0], ds[20]  # the parent has read already
    loader = DataLoader(ds, batch_size=7, num_workers=workers, multiprocessing_context="fork" if workers else None)
    assert read_through(loader) == expected_pixels


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver"))]
)
def test_four_workers_of_any_start_method_deliver_every_sample(
    squares: Path, expected_pixels: list[tuple[bytes, int]], method: str
) -> None:
    ds = LMDBDataset(squares, decode="tensor")
    _ = ds[0], ds[20]
    loader = DataLoader(
        ds, batch_size=5, num_workers=4, multiprocessing_context=method, persistent_workers=True, pin_memory=True
    )
    assert [read_through(loader) for _ in range(2)] == [expected_pixels] * 2
    assert read_through(DataLoader(ds, batch_size=24)) == expected_pixels, "and the parent reads on"


def test_workers_say_which_image_is_damaged(copied: Path) -> None:
    write_table(copied, with_value(read_table(copied), "nbytes", 6, 5))
    ds = LMDBDataset(copied, decode="tensor")
    batches = iter(DataLoader(ds, batch_size=24, num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(DatasetError, match=r"sample 6 \(.*\) of .* is damaged"):
        next(batches)
    assert list(batches) == []  # which ends the worker; left to the garbage collector it takes 5 s


def test_parts_of_a_dataset_are_its_samples(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    ds = LMDBDataset(squares, decode="bytes")
    train, val = random_split(ds, [20, 4], torch.Generator().manual_seed(0))
    some = Subset(ds, [3, 1, 4, 1, 5])
    assert [some[i] for i in range(5)] == some.__getitems__([0, 1, 2, 3, 4]) == [expected[i] for i in (3, 1, 4, 1, 5)]
    assert sorted([*train, *val]) == sorted(expected)
    both = ConcatDataset([ds, LMDBDataset(squares, decode="bytes")])
    assert [both[i] for i in range(48)] == expected * 2


def test_ranks_share_out_the_samples(squares: Path, expected_pixels: list[tuple[bytes, int]]) -> None:
    ds = LMDBDataset(squares, decode="tensor")
    found = []
    for rank in range(3):
        sampler: DistributedSampler[Any] = DistributedSampler(ds, num_replicas=3, rank=rank)
        found += read_through(DataLoader(ds, batch_size=4, sampler=sampler))
    assert sorted(found) == sorted(expected_pixels)


# --- copies and processes ---


def test_a_pickled_dataset_reads_the_same(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    ds = LMDBDataset(squares, bytes, int, target="label", decode="bytes")
    _ = ds[0]
    for copied in (pickle.loads(pickle.dumps(ds)), copy.deepcopy(ds), copy.copy(ds)):
        assert list(copied) == expected
        assert (repr(copied), copied.classes) == (repr(ds), ds.classes)
        assert copied.transform is bytes
    assert list(ds) == expected


def test_its_pickled_size_does_not_depend_on_its_length(photos: Path, squares: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "ant", tmp_path / "few" / "ant", ignore=shutil.ignore_patterns("[1-9].png", "1?.png"))
    build_dataset(tmp_path / "few", tmp_path / "OUT", SQUARES, SERIAL)
    roots = (squares, tmp_path / "OUT")
    assert [len(LMDBDataset(root)) for root in roots] == [24, 1]
    large, small = (len(pickle.dumps(LMDBDataset(root))) - 2 * len(str(root)) for root in roots)
    assert abs(large - small) < 10
    assert large < 600


def test_several_datasets_read_one_folder_at_once(squares: Path, expected: list[tuple[bytes, int]]) -> None:
    several = [LMDBDataset(squares, decode="bytes") for _ in range(4)]
    assert [[ds[i] for ds in several] for i in range(24)] == [[sample] * 4 for sample in expected]


def test_threads_share_a_dataset(squares: Path, expected_pixels: list[tuple[bytes, int]]) -> None:
    ds = LMDBDataset(squares, decode="numpy")

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(24, size=50).tolist()
        return all(
            np.array_equal(image.transpose(2, 0, 1).tobytes(), expected_pixels[i][0])
            for i, (image, _) in zip(order, ds.__getitems__(order), strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(24)))


def test_a_child_that_was_forked_reads_what_its_parent_has_not(
    squares: Path, expected: list[tuple[bytes, int]]
) -> None:
    ds = LMDBDataset(squares, decode="bytes")
    _ = ds[3]
    with multiprocessing.get_context("fork").Pool(2, _inherit, (ds,)) as pool:
        assert pool.map(_read_inherited, range(24)) == expected


_inherited: Any = None


def _inherit(ds: LMDBDataset) -> None:
    global _inherited
    _inherited = ds


def _read_inherited(i: int) -> Any:
    return _inherited[i]


WORKER_MEMORY = """
    import gc, os, sys
    from pathlib import Path
    from presize.datasets import CenterCrop, LMDBDataset, RandomCrop, RandomResizedCrop, Resize

    ds = LMDBDataset(sys.argv[1], decode="tensor")

    def private_kib():
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))

    def read(times):
        for k in range(times):
            ds[k % len(ds)]
            ds.__getitems__([k % len(ds), (7 * k) % len(ds)])

    read(24)
    child = os.fork()
    if child == 0:
        read(300)
        gc.collect()  # which writes into every object that the parent made, once
        before = private_kib()
        read(3000)
        print(private_kib() - before, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
def test_a_forked_worker_keeps_nothing_of_what_it_read(squares: Path) -> None:
    grown_kib = int(run_python(WORKER_MEMORY, squares))
    assert grown_kib < 400, "9000 samples read"
