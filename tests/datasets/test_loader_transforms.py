"""Transforms that a Loader calls in its workers: their inputs, results and errors."""

from __future__ import annotations

import copy
import multiprocessing
import random
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from builds import build_images
from presize.datasets import CenterCrop as Crop
from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, collate, fuse, make_loader
from presize.datasets.reading.generators import seeded
from presize.errors import DatasetError, OptionError, PresizeWarning
from presize.options import BuildOptions, Companion, ImageOptions, Size
from torchvision_like import CenterCrop, Compose, Normalize, RandomHorizontalFlip, ToTensor, noisy

HOW: dict[str, dict[str, Any]] = {
    "this thread": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "mode": "threads"},
}
NORMALIZE = ((0.5, 0.4, 0.3), (0.2, 0.2, 0.3))


@pytest.fixture(params=HOW.values(), ids=list(HOW))
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param  # type: ignore[no-any-return]


def negative(image: torch.Tensor) -> torch.Tensor:
    return -image


def to_tensor(image: Image.Image) -> torch.Tensor:
    assert isinstance(image, Image.Image)
    return ToTensor()(image)


def from_array(image: Any) -> torch.Tensor:
    assert isinstance(image, np.ndarray) and image.dtype == np.uint8
    return torch.from_numpy(image[::2].astype(np.int16))


def from_tensor(image: Any) -> torch.Tensor:
    assert image.dtype == torch.uint8 and image.shape == (3, 24, 24)
    return image.flip(0)


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


# --- inputs and results ---

FORMS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "pil": ("pil", to_tensor),
    "numpy": ("numpy", from_array),
    "tensor": ("tensor", from_tensor),
}


@pytest.mark.parametrize("own", [True, False], ids=["the dataset's", "the loader's"])
@pytest.mark.parametrize(("decode", "transform"), FORMS.values(), ids=list(FORMS))
def test_it_is_called_with_the_crop_as_in_a_dataset(
    decode: Any, transform: Any, own: bool, how: dict[str, Any], dataset: Path
) -> None:
    expected = LMDBDataset(dataset, transform, decode=decode, crop=Crop(24))
    data = expected if own else LMDBDataset(dataset, decode=decode)
    options = {} if own else {"transform": transform, "crop": Crop(24)}
    with Loader(data, 16, **options, **how) as loader:
        same(list(loader), list(DataLoader(expected, 16, collate_fn=collate)))
        kept = list(loader)  # keeping them would reveal reused memory
        same(kept, list(loader))
        assert loader.transform is options.get("transform")


RESULTS: dict[str, Callable[[Any], Any]] = {
    "a dict": lambda image: {"pixels": image.float(), "mean": image.float().mean().item(), "size": image.shape[1]},
    "nested lists": lambda image: [image, [image[0, 0], image.sum()]],
    "an array": lambda image: image.numpy().transpose(0, 2, 1),
    "a number": lambda image: int(image.sum()),
    "a truth": lambda image: bool(image.sum() % 2),
    "half precision": lambda image: image.to(torch.bfloat16),
    "channels last": lambda image: image.permute(1, 2, 0).contiguous().float().permute(2, 0, 1),
    "an empty tensor": lambda image: image[:, :0],
}


@pytest.mark.parametrize("give", RESULTS.values(), ids=list(RESULTS))
def test_results_are_stacked_as_a_dataloader_does(give: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, give, decode="tensor", crop=Crop(24)).subset(range(20))
    same(list(Loader(data, 8, num_workers=0)), list(DataLoader(data, 8)))


def test_returned_images_become_tensors(dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=Crop(24)).subset(range(8))
    for give, form in (("RGB", (3, 24, 24)), ("L", (1, 24, 24))):
        images, _ = next(iter(Loader(data, 8, transform=lambda image, mode=give: image.convert(mode), num_workers=0)))
        assert images.shape == (8, *form) and images.dtype == torch.uint8
        expected = np.asarray(data[3][0].convert(give)).reshape(24, 24, -1)
        assert np.array_equal(images[3].permute(1, 2, 0), expected)


def test_each_view_is_transformed(how: dict[str, Any], dataset: Path) -> None:
    data = LMDBDataset(dataset, to_tensor, crop=[Crop(24), Crop(12)])
    with Loader(data, 16, **how) as loader:
        batches = list(loader)
    same(batches, list(DataLoader(data, 16, collate_fn=collate)))
    assert type(batches[0][0]) is tuple


def test_companions_are_returned_with_the_transformed_image(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = {f"{number}.png": rng.integers(0, 256, (64, 64, 3), np.uint8) for number in range(6)}
    images |= {f"masks/{name}": image[:, :, 0] for name, image in images.items()}
    options = BuildOptions(ImageOptions(sizes=(Size(64, 64),)), companions=(Companion("mask", "masks/{name}"),))
    root = build_images(tmp_path, images, options, [{"path": f"{n}.png", "label": 0} for n in range(6)])
    data = LMDBDataset(root, negative, decode="tensor", crop=RandomResizedCrop(24), flip=0.5)
    plain = LMDBDataset(root, decode="tensor", crop=RandomResizedCrop(24), flip=0.5)
    how: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": 0}
    for ((image, mask), label), ((untouched, same_mask), same_label) in zip(
        Loader(data, 4, **how), Loader(plain, 4, **how), strict=True
    ):
        same((image, mask, label), (-untouched, same_mask, same_label))


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=str)
def test_normalized_images_are_tensors_when_it_is_called(dtype: torch.dtype | None, dataset: Path) -> None:
    how: dict[str, Any] = {"crop": Crop(24), "normalize": NORMALIZE, "dtype": dtype, "num_workers": 0}
    data = LMDBDataset(dataset)
    for (images, _), (plain, _) in zip(
        Loader(data, 16, transform=negative, **how), Loader(data, 16, **how), strict=True
    ):
        same(images, -plain)


def test_it_is_called_for_parts_and_sums(how: dict[str, Any], dataset: Path) -> None:
    data = LMDBDataset(dataset, to_tensor, crop=Crop(24))
    parts = ConcatDataset([Subset(data, range(9)), data.subset([3])])
    with Loader(parts, 4, **how) as loader:
        same(list(loader), list(DataLoader(parts, 4, collate_fn=collate)))
    with Loader(parts, 4, transform=noisy, **how) as loader:
        assert next(iter(loader))[0].shape == (4, 6)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_of_every_start_method_call_it(context: str, dataset: Path) -> None:
    data = LMDBDataset(dataset, noisy, crop=Crop(24))
    with Loader(data, 16, seed=1, num_workers=2, multiprocessing_context=context) as loader:
        same(list(loader), list(Loader(data, 16, seed=1, num_workers=0)))


# --- the rest after fuse ---


def pipeline(*rest: Any) -> Compose:
    return Compose([CenterCrop(24), RandomHorizontalFlip(1), ToTensor(), Normalize(*NORMALIZE), *rest])


class TwoViews:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second

    def __call__(self, image: Any) -> Any:
        return [self.first(image), self.second(image)]


PIPELINES: dict[str, Any] = {
    "the end of one": pipeline(negative),
    "all after the crop": Compose([CenterCrop(24), to_tensor, Normalize(*NORMALIZE)]),
    "views that differ": TwoViews(pipeline(negative), Compose([CenterCrop(12), RandomHorizontalFlip(1), to_tensor])),
    "views of which one is whole": TwoViews(
        Compose([CenterCrop(24), ToTensor()]), Compose([CenterCrop(24), to_tensor])
    ),
}


@pytest.mark.parametrize("transform", PIPELINES.values(), ids=list(PIPELINES))
def test_the_rest_of_a_fused_pipeline_is_called(transform: Any, how: dict[str, Any], dataset: Path) -> None:
    data = LMDBDataset(dataset, transform, fuse=True)
    assert data.fused is not None and data.fused.crop is not None and data.fused.rest is not None
    with Loader(data, 16, **how) as loader:
        same(list(loader), list(DataLoader(data, 16, collate_fn=collate)))
    waiting = LMDBDataset(dataset, fuse=True)
    with Loader(waiting, 16, transform=transform, **how) as loader:
        same(list(loader), list(DataLoader(data, 16, collate_fn=collate)))
    assert waiting.transform is None


def test_the_fused_parts_can_be_given_one_by_one(dataset: Path) -> None:
    transform = pipeline(negative)
    fused = fuse(transform)
    data = LMDBDataset(dataset, transform, fuse=True)
    parts: Any = {"crop": fused.crop, "flip": fused.flip, "normalize": fused.normalize, "transform": fused.rest}
    same(list(Loader(LMDBDataset(dataset), 16, **parts, num_workers=0)), list(DataLoader(data, 16)))


# --- random numbers ---


def draws(loader: Any) -> list[list[float]]:
    return [numbers for images, _ in loader for numbers in images.tolist()]


def test_random_numbers_belong_to_the_visit_of_a_sample(dataset: Path) -> None:
    data = LMDBDataset(dataset, noisy, crop=RandomResizedCrop(24), flip=0.5)
    how: dict[str, Any] = {"shuffle": True, "seed": 3}
    loader = Loader(data, 8, num_workers=0, **how)
    first, second = draws(loader), draws(loader)
    assert len({tuple(numbers) for numbers in first + second}) == 2 * len(data), "no number repeats"
    for column in np.transpose(first)[:5]:
        assert len(set(column)) == len(data)
    loads: tuple[Any, ...] = (Loader, make_loader)
    for load, (workers, size) in product(loads, ((0, 7), (1, 5), (2, 8))):
        other = load(data, size, num_workers=workers, **how)
        assert [draws(other), draws(other)] == [first, second]
    for load in loads:
        other = load(data, 8, num_workers=1, **how)
        batches = iter(other)
        read = draws(islice(batches, 3))
        state = other.state_dict()
        batches.close()  # type: ignore[attr-defined]
        resumed = load(data, 7, num_workers=2, **how)
        resumed.load_state_dict(state)
        assert read + draws(resumed) == first


def test_random_numbers_of_transforms_are_the_same_in_every_release() -> None:
    expected = [
        (0.10785508155822754, 0.6835476473862292, 0.5821135887229667),
        (0.9994756579399109, 0.2710406318412295, 0.6760320499486429),
    ]
    with seeded((3, 1, np.array([5, 6]))) as seed_at:
        for position, numbers in enumerate(expected):
            seed_at(position)
            assert (torch.rand(()).item(), np.random.random(), random.random()) == numbers


def test_a_sample_drawn_twice_is_transformed_twice(dataset: Path) -> None:
    loader = Loader(LMDBDataset(dataset, noisy), 8, sampler=[3] * 8, crop=Crop(24), num_workers=0)
    assert len({tuple(numbers) for numbers in draws(loader)}) == 8


def test_generators_of_the_program_are_not_changed(how: dict[str, Any], dataset: Path) -> None:
    if how.get("mode") == "threads":
        pytest.skip("threads draw from them")

    def drawn() -> tuple[Any, ...]:
        return torch.rand(3).tolist(), np.random.random(3).tolist(), [random.random() for _ in range(3)]

    def seeded() -> None:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    seeded()
    expected = drawn()
    seeded()
    with Loader(LMDBDataset(dataset, noisy), 16, seed=0, crop=Crop(24), **how) as loader:
        list(loader)
        assert drawn() == expected


def test_threads_transform_each_sample_once(dataset: Path) -> None:
    with Loader(LMDBDataset(dataset, noisy), 16, crop=Crop(24), num_workers=2, mode="threads") as loader:
        found = draws(loader)
    expected = draws(Loader(LMDBDataset(dataset, noisy), 16, crop=Crop(24), num_workers=0))
    assert [numbers[5] for numbers in found] == [numbers[5] for numbers in expected]


# --- errors ---


class FailAt:
    """A transform that fails at the image with this sum of pixels."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, image: Image.Image) -> Any:
        if np.asarray(image).sum() == self.total:
            raise KeyError("no such colour")
        return to_tensor(image)


def test_its_error_reaches_the_caller_with_the_sample(how: dict[str, Any], dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=Crop(24))
    data.transform = FailAt(int(np.asarray(data[13][0]).sum()))
    with Loader(data, 4, **how) as loader:
        for _ in range(2):
            batches = iter(loader)
            assert [len(next(batches)[0]) for _ in range(3)] == [4] * 3
            with pytest.raises(KeyError, match="no such colour") as raised:
                next(batches)
            said = f"{raised.value}{getattr(raised.value, '__notes__', '')}"
            assert f"in the transform of sample 13 ({data.data.path(13)}) of {dataset}" in said
            assert not how["num_workers"] or "__call__" in said, "the worker's traceback"


def sized(image: Image.Image) -> torch.Tensor:
    return torch.zeros(3 + int(np.asarray(image).sum() % 2))


BAD: dict[str, tuple[Any, str]] = {
    "text": (
        repr,
        "transform: returns str; a Loader batches only tensors, arrays, images and numbers; use make_loader",
    ),
    "None": (lambda _: None, "transform: returns NoneType; "),
    "nothing": (lambda _: {}, "transform: returns dict; "),
    "other shapes": (
        sized,
        r"transform: returns float32 \([34],\) for sample .*, and float32 \([34],\) for the first sample; ",
    ),
    "another structure": (
        lambda image: [to_tensor(image)] * (1 + int(np.asarray(image).sum() % 2)),
        r"transform: returns float32 .* for sample .*; a Loader needs one shape .*; use make_loader for others$",
    ),
}


@pytest.mark.parametrize(("transform", "said"), BAD.values(), ids=list(BAD))
def test_results_that_cannot_be_stacked_are_one_line_errors(
    transform: Any, said: str, how: dict[str, Any], dataset: Path
) -> None:
    with Loader(LMDBDataset(dataset, transform, crop=Crop(24)), 8, **how) as loader:
        with pytest.raises(OptionError, match=f"^{said}") as raised:
            list(loader)
    assert "\n" not in str(raised.value)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bytes": ({"decode": "bytes"}, {"transform": len, "crop": Crop(24)}, "decode: bytes are not decoded"),
    "no crop": (
        {"transform": len},
        {},
        "crop: the images of .*; a Loader calls the transform with crops: give the Loader crop=",
    ),
    "no crop taken over": (
        {"transform": Compose([to_tensor]), "fuse": True},
        {},
        r"calls the transform with crops \(function is not one of torchvision's transforms\): give the Loader crop=",
    ),
    "fewer crops than views": (
        {"transform": PIPELINES["views that differ"], "fuse": True},
        {"crop": Crop(24)},
        "crop: expected one for each of 2 views of the transform, got 1",
    ),
}


@pytest.mark.filterwarnings("ignore:fuse. nothing was fused")
@pytest.mark.parametrize(("given", "options", "said"), REFUSED.values(), ids=list(REFUSED))
def test_an_unusable_transform_is_refused(
    given: dict[str, Any], options: dict[str, Any], said: str, dataset: Path
) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        Loader(LMDBDataset(dataset, **given), 4, num_workers=0, **options)
    assert "\n" not in str(raised.value)


def test_damaged_samples_are_skipped_or_an_error(how: dict[str, Any], damaged: Path, dataset: Path) -> None:
    options: dict[str, Any] = {"transform": to_tensor, "crop": Crop(24), **how}
    with (
        pytest.raises(DatasetError, match=r"sample 20 .* is damaged"),
        Loader(LMDBDataset(damaged), 8, **options) as loader,
    ):
        list(loader)
    for order in ([20, 3, 5, 20, 1], [*range(16, 24)]):
        with Loader(LMDBDataset(damaged), 4, sampler=order, on_error="skip", **options) as loader:
            found = list(loader)
            assert loader.skipped == order.count(20)
        left = [number for number in order if number != 20]
        expected, _ = next(iter(Loader(LMDBDataset(dataset), len(left), sampler=left, **options)))
        same(torch.cat([images for images, _ in found]), expected)
    with pytest.raises(DatasetError, match=r"sample 20 .* is damaged"):
        list(Loader(LMDBDataset(damaged), 4, sampler=[20, 20], on_error="skip", **options))


# --- changes between epochs ---


@pytest.mark.parametrize("kind", ["itself", "Subset", "ConcatDataset", "the loader's"])
def test_a_new_transform_of_a_dataset_applies_from_the_next_epoch(
    kind: str, how: dict[str, Any], dataset: Path
) -> None:
    data = LMDBDataset(dataset, crop=Crop(24))
    given = {"Subset": Subset(data, range(8)), "ConcatDataset": ConcatDataset([data, data])}.get(kind, data)
    with Loader(given, 4, **how) as loader:
        batches = iter(loader)
        plain, _ = next(batches)
        target = loader.dataset if kind == "the loader's" else data
        target.transform = to_tensor
        assert next(batches)[0].dtype == torch.uint8
        same(next(iter(loader))[0], plain / 255)
        target.transform = lambda image: to_tensor(image)[:, :9]
        assert next(iter(loader))[0].shape == (4, 3, 9, 24)
        target.transform = None
        same(next(iter(loader))[0], plain)


def test_a_loaders_own_transform_is_independent_of_the_dataset(dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=Crop(24))
    with Loader(data, 4, transform=to_tensor, num_workers=1) as loader:
        first = next(iter(loader))
        data.transform, data.target_transform = len, str
        images, targets = next(iter(loader))
        same(images, first[0])
        assert targets == tuple(map(str, first[1].tolist()))


def test_a_fused_transform_changed_in_place_is_checked_again(dataset: Path) -> None:
    transform = pipeline(negative)
    loader = Loader(LMDBDataset(dataset, fuse=True), 8, transform=transform, num_workers=0)
    assert next(iter(loader))[0].shape == (8, 3, 24, 24)
    transform.transforms[0] = CenterCrop(18)
    expected = LMDBDataset(dataset, copy.copy(transform), fuse=True)
    same(next(iter(loader))[0], next(iter(DataLoader(expected, 8)))[0])


class Brighter:
    def __init__(self, by: float) -> None:
        self.by, self.calls = by, 0

    def __call__(self, image: Image.Image) -> torch.Tensor:
        self.calls += 1  # in a worker, or to determine the shape
        return to_tensor(image) + self.by


def test_a_called_transform_changed_in_place_applies_from_the_next_epoch(how: dict[str, Any], dataset: Path) -> None:
    transform = Brighter(0)
    with Loader(LMDBDataset(dataset, transform, crop=Crop(24)), 4, **how) as loader:
        first, _ = next(iter(loader))
        list(loader)
        workers = multiprocessing.active_children()
        list(loader)
        assert multiprocessing.active_children() == workers
        transform.by = 2
        same(next(iter(loader))[0], first + 2)


def test_an_empty_share_of_an_epoch_has_no_batches(dataset: Path) -> None:
    data = LMDBDataset(dataset, to_tensor, crop=Crop(24))
    assert list(Loader(data, 8, sampler=[], num_workers=1)) == []
    with pytest.warns(PresizeWarning, match="an epoch has no batch"):
        assert list(Loader(data, 64, drop_last=True, num_workers=1)) == []
