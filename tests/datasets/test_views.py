"""Several views of one image: the results of each way to read them, and how often a record is read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from zlib_ng import zlib_ng

from builds import SERIAL
from presize.builder.run import build_dataset
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomCrop, RandomResizedCrop, Resize
from presize.datasets.reading import batch_reader as batches
from presize.datasets.reading.batch_reader import BatchReader
from presize.datasets.reading.draws import uniform
from presize.errors import DatasetError, OptionError
from presize.options import BuildOptions, ImageOptions, Size
from presize.store.dataset import Dataset
from tampering import flip_record

TWO = [RandomResizedCrop(24), RandomResizedCrop(24)]
DINO = [RandomResizedCrop(32, scale=(0.4, 1.0))] * 2 + [RandomResizedCrop(12, scale=(0.05, 0.4))] * 8
FORMATS = ("jpeg", "png", "raw")
EXACT = RandomResizedCrop(16, (1.0, 1.0), exact=True)


@pytest.fixture(scope="module")
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset)


@pytest.fixture(scope="module")
def stored(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Build the same images in each format; the JPEGs are large enough for boxes that are decoded at 1/2 and 1/4."""
    folder, found = tmp_path_factory.mktemp("stored"), {}
    for name in FORMATS:
        image = ImageOptions(sizes=(Size(160, 160),), format=name)  # type: ignore[arg-type]
        build_dataset(raw, folder / name, BuildOptions(image), SERIAL)
        found[name] = Dataset(folder / name)
    return found


def by_itself(data: Dataset, crop: Any, view: int, numbers: Any, seed: int) -> Any:
    """Read `crop` alone with the draws of `view`."""
    reader = BatchReader(data, crop, 0.5)
    out = np.empty((len(numbers), *reader.shapes[0]), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "uniform", lambda *arguments: uniform(*arguments[:4], view))
        reader.read([out], numbers, seed, 3, numbers)
    return out


@pytest.mark.parametrize("decoder", ["ours", "libjpeg"])
@pytest.mark.parametrize("format", FORMATS)
def test_each_view_equals_the_result_of_its_crop_alone(
    format: str, decoder: str, stored: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder == "libjpeg":
        monkeypatch.setattr(jpeg_decoder, "compiled", replace(jpeg_decoder.compiled, module=None))
    data = stored[format]
    crops = [*DINO, RandomResizedCrop(16), RandomResizedCrop(8), RandomCrop(20), CenterCrop(18), Resize((9, 50))]
    reader = BatchReader(data, crops, 0.5)
    numbers = np.arange(12)[::-1].copy()
    out = [np.empty((len(numbers), *shape), np.uint8) for shape in reader.shapes]
    assert reader.read(out, numbers, 7, 3, numbers) == []
    for view, crop in enumerate(crops):
        assert np.array_equal(out[view], by_itself(data, crop, view, numbers, 7)), crop


@given(seed=st.integers(0, 2**32), views=st.lists(st.integers(4, 40), min_size=2, max_size=5))
def test_views_of_any_sizes_equal_those_of_their_own_boxes(stored: Any, seed: int, views: list[int]) -> None:
    data, numbers = stored["jpeg"], np.arange(6)
    reader = BatchReader(data, [RandomResizedCrop(side) for side in views], 0.5)
    out = [np.empty((6, *shape), np.uint8) for shape in reader.shapes]
    reader.read(out, numbers, seed, 3, numbers)
    for view, side in enumerate(views):
        assert np.array_equal(out[view], by_itself(data, RandomResizedCrop(side), view, numbers, seed))


def test_only_a_random_resized_crop_that_is_not_exact_is_decoded_at_reduced_size(stored: dict[str, Dataset]) -> None:
    data, numbers = stored["jpeg"], np.arange(12)
    whole = RandomResizedCrop(16, (1.0, 1.0))
    plain, exact, resized = (by_itself(data, crop, 0, numbers, 1) for crop in (whole, EXACT, Resize(16)))
    assert (plain != exact).any() and np.abs(plain.astype(int) - exact).mean() < 3
    for at, pixels in data.pixels(numbers.tolist()):
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
        expected = torch.nn.functional.interpolate(image, (16, 16), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        assert (
            min(np.abs(mirrored - expected.numpy()).max() for mirrored in (resized[at], resized[at][:, ::-1])) <= 1.01
        )


def test_view_0_equals_a_single_crop(data: LMDBDataset) -> None:
    how: dict[str, Any] = {"flip": 0.5, "shuffle": True, "seed": 4, "num_workers": 0}
    one = [images for images, _ in Loader(data, 8, crop=RandomResizedCrop(24), **how)]
    two = [views[0] for views, _ in Loader(data, 8, crop=TWO, **how)]
    assert all(map(torch.equal, one, two)) and len(one) == len(two)


def test_views_are_drawn_independently() -> None:
    keys = np.arange(20_000)
    first, second = (uniform(3, 1, keys, 3, view) for view in (0, 1))
    correlations = np.corrcoef(first.T, second.T)[:3, 3:]
    assert np.abs(correlations).max() < 0.03, "five standard deviations"


def test_a_record_is_read_and_checked_once_for_all_views(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset(dataset)
    checked = []
    crc32 = zlib_ng.crc32
    monkeypatch.setattr(zlib_ng, "crc32", lambda value: checked.append(1) or crc32(value))
    requested = []
    values = data.values
    monkeypatch.setattr(data, "values", lambda samples, *more: requested.extend(samples) or values(samples, *more))
    reader, numbers = BatchReader(data, DINO), np.arange(12)
    reader.read([np.empty((12, *shape), np.uint8) for shape in reader.shapes], numbers, 0, 0, numbers)
    assert len(checked) == 12 and sorted(requested) == list(range(12))


@pytest.mark.parametrize("decode", ["pil", "numpy", "tensor"])
def test_a_sample_is_a_tuple_of_images_in_every_form(decode: Any, dataset: Path) -> None:
    images = LMDBDataset(dataset, crop=[CenterCrop(20), CenterCrop(30)], decode=decode)
    (first, second), label = images[3]
    assert label == images.targets[3]
    kind = {"pil": Image.Image, "numpy": np.ndarray, "tensor": torch.Tensor}[decode]
    assert isinstance(first, kind) and isinstance(second, kind)
    alone = LMDBDataset(dataset, crop=CenterCrop(30), decode=decode)[3][0]
    assert np.array_equal(np.asarray(second), np.asarray(alone))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_workers_normalize_each_view(dtype: torch.dtype, data: LMDBDataset) -> None:
    normalize = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in normalize)
    options: dict[str, Any] = {"crop": DINO, "flip": 0.5, "shuffle": True, "seed": 0, "num_workers": 1}
    with Loader(data, 8, **options) as plain, Loader(data, 8, normalize=normalize, dtype=dtype, **options) as loader:
        for (pixels, _), (views, _) in zip(plain, loader, strict=True):
            assert all(map(torch.equal, views, [((each / 255 - mean) / std).to(dtype) for each in pixels]))
            assert all(view.is_contiguous(memory_format=torch.channels_last) for view in views)


def test_a_damaged_sample_is_skipped_in_every_view(dataset: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(dataset, tmp_path / "damaged"))
    flip_record(copied, 2)
    whole = LMDBDataset(copied)
    with Loader(whole, 6, crop=TWO, seed=0, num_workers=0, on_error="skip") as loader:
        views, targets = next(iter(loader))
    assert loader.skipped == 1 and len(targets) == 5
    assert [len(view) for view in views] == [5, 5]
    numbers = np.array([0, 1, 3, 4, 5])
    reader = BatchReader(whole.data, TWO)
    expected = [np.empty((5, *shape), np.uint8) for shape in reader.shapes]
    reader.read(expected, numbers, 0, 0, numbers)
    for view, pixels in zip(views, expected, strict=True):
        assert np.array_equal(view.permute(0, 2, 3, 1).numpy(), pixels)


def test_a_too_large_view_is_named_with_its_sample(data: LMDBDataset) -> None:
    loader = Loader(data, 4, crop=[CenterCrop(20), CenterCrop(500)], num_workers=0)
    with pytest.raises(DatasetError) as raised:
        next(iter(loader))
    message = str(raised.value)
    assert "sample 0 (" in message and "too small for view 1, CenterCrop(size=500)" in message and "\n" not in message


@pytest.mark.parametrize("crop", [[], (), [CenterCrop(9), 9], [[CenterCrop(9)]]])
def test_invalid_lists_of_crops_are_refused(crop: Any, dataset: Path) -> None:
    with pytest.raises(OptionError, match=r"^crop: expected "):
        LMDBDataset(dataset, crop=crop)


def test_shared_memory_is_computed_for_all_views(dataset: Path) -> None:
    images = LMDBDataset(dataset, crop=[CenterCrop(20), CenterCrop(10)], decode="numpy")
    assert images.dev_shm_bytes(4) == 4 * (3 * 20 * 20 + 3 * 10 * 10 + 8)
    assert LMDBDataset(dataset, crop=TWO, decode="tensor").dev_shm_bytes(4) == 4 * 8
