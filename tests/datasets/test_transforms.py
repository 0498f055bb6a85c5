"""Transforms of any library return exactly the same for stored images as for Pillow's files."""

from __future__ import annotations

import io
import operator
import pickle
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image, ImageFilter

from builds import build_images
from pictures import noisy_image
from presize.datasets import LMDBDataset
from presize.options import BuildOptions, ImageOptions, Size
from torchvisions import torchvision_or_skip

SIDES = [(96, 96), (96, 150), (130, 96), (300, 400), (211, 240)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build noisy images of many sizes, in colour and grey, stored unchanged; read only."""
    images = {f"{number}.png": noisy_image(height, width, number) for number, (height, width) in enumerate(SIDES)}
    options = BuildOptions(ImageOptions(sizes=(Size(600, 600),)))
    return build_images(tmp_path_factory.mktemp("transforms"), images, options)


def files(out: Path) -> list[Image.Image]:
    """Return the images of ImageFolder."""
    values = LMDBDataset(out, decode="bytes", target=None)
    return [Image.open(io.BytesIO(value)).convert("RGB") for value in values]


def equal(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return torch.equal(ours, theirs) and ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
    if isinstance(theirs, np.ndarray):
        return np.array_equal(ours, theirs) and ours.dtype == theirs.dtype
    if isinstance(theirs, Image.Image):
        return (ours.mode, ours.size, ours.tobytes()) == (theirs.mode, theirs.size, theirs.tobytes())
    return len(ours) == len(theirs) and all(map(equal, ours, theirs))


def check(transform: Callable[[Any], Any], out: Path) -> None:
    def seeded(image: Any) -> Any:
        """Seed by the size of an image."""
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(image.width * 1000 + image.height)
        return [transform(image) for _ in range(3)]

    found = list(LMDBDataset(out, transform=seeded, target=None))
    assert len(found) == len(SIDES) and equal(found, list(map(seeded, files(out)))), transform


def torchvision_transforms() -> dict[str, Any]:
    v1, v2 = torchvision_or_skip()
    to_tensor = [v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    to_image = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    modes = v1.InterpolationMode
    jitter = [v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), v1.RandomGrayscale(0.2)]
    made = {
        "classic": v1.Compose([v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), *to_tensor]),
        "evaluation": v1.Compose([v1.Resize(72), v1.CenterCrop(64), *to_tensor]),
        "centre crop that pads": v1.Compose([v1.CenterCrop(200), v1.PILToTensor()]),
        "padded crop": v1.RandomCrop(80, padding=4, padding_mode="reflect"),
        "flips first": v1.Compose([v1.RandomVerticalFlip(), v1.RandomHorizontalFlip(), v1.RandomResizedCrop(50)]),
        "five crops": v1.FiveCrop(60),
        "jitter": v1.Compose([v1.RandomResizedCrop(64), *jitter, v1.RandomHorizontalFlip(), *to_tensor]),
        "RandAugment": v1.Compose([v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.RandAugment(), *to_tensor]),
        "TrivialAugment": v1.Compose([v1.TrivialAugmentWide(), v1.Resize((64, 80)), v1.PILToTensor()]),
        "AutoAugment": v1.Compose([v1.AutoAugment(), v1.PILToTensor()]),
        "AugMix": v1.AugMix(),
        "geometry": v1.Compose([v1.RandomRotation(20), v1.RandomPerspective(p=1), v1.RandomAffine(9, (0.1, 0.1))]),
        "colours": v1.Compose([v1.RandomPosterize(3), v1.RandomSolarize(99), v1.RandomEqualize(), v1.RandomInvert()]),
        "blur": lambda image: image.filter(ImageFilter.GaussianBlur(1.3)),
        "grey": v1.Compose([v1.Grayscale(), v1.Resize(50), v1.ToTensor()]),
        "v2": v2.Compose([v2.RandomResizedCrop(64, antialias=True), v2.RandomHorizontalFlip(), *to_image]),
        "v2 of a tensor": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(64, antialias=True)]),
        "v2 zoomed": v2.Compose([v2.RandomZoomOut(p=1), v2.RandomShortestSize(60), v2.PILToTensor()]),
        "v2 scaled": v2.Compose([v2.ScaleJitter((70, 70)), v2.RandomPhotometricDistort(p=1), v2.PILToTensor()]),
        "v2 RandAugment": v2.Compose([v2.RandomResizedCrop(64), v2.RandAugment(), v2.PILToTensor()]),
    }
    for mode in (modes.NEAREST, modes.BOX, modes.HAMMING, modes.BICUBIC, modes.LANCZOS):
        made[f"resized by {mode.value}"] = v1.Compose([v1.RandomResizedCrop((60, 90), interpolation=mode), *to_tensor])
    return made


def test_transforms_of_torchvision_return_the_same(out: Path) -> None:
    for transform in torchvision_transforms().values():
        check(transform, out)


def test_transforms_of_timm_return_the_same(out: Path) -> None:
    torchvision_or_skip()
    data = pytest.importorskip("timm.data")
    for options in (
        {"is_training": True},
        {"is_training": True, "auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.5, "interpolation": "bicubic"},
        {"is_training": True, "use_prefetcher": True, "color_jitter": None, "hflip": 0.3, "vflip": 0.5},
        {"is_training": False, "crop_pct": 0.9, "interpolation": "bicubic"},
        {"is_training": False, "crop_mode": "border", "use_prefetcher": True},
    ):
        check(data.create_transform((3, 64, 64), **options), out)


class TwoViews:
    """Views of an image, like the classes of scripts."""

    def __init__(self, *views: Any) -> None:
        self.views = views

    def __call__(self, image: Any) -> list[Any]:
        return [view(image) for view in self.views]


class Blur:
    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2)))


def colour_transforms() -> dict[str, Any]:
    """Return transforms whose operations on colours presize computes."""
    v1, _ = torchvision_or_skip()
    to_tensor = [v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    jitter = v1.ColorJitter(0.4, (0.1, 1.9), 0.7, 0.5)
    view = v1.Compose([v1.RandomApply([jitter], p=0.8), v1.RandomGrayscale(0.5), Blur(), *to_tensor])
    sharpness = v1.RandomAdjustSharpness(1.7, p=1)
    return {
        **torchvision_transforms(),
        "only jitter": jitter,
        "views": TwoViews(view, v1.Compose([sharpness, v1.Grayscale(3), *to_tensor])),
        "of a class of its own": v1.Compose([Blur(), view]),
        "a choice": v1.RandomChoice([jitter, sharpness]),
        "in any order": v1.RandomOrder([jitter, sharpness, v1.RandomPosterize(3)]),
        "applied by a ModuleList": v1.RandomApply(torch.nn.ModuleList([jitter]), p=1),
        "shears": v1.Compose([v1.RandAugment(5, 20, fill=[7, 8, 9]), v1.ToTensor()]),
        "tensor": v1.ToTensor(),
        "normalized by one number": v1.Compose([v1.ToTensor(), v1.Normalize([0.5], torch.tensor([0.25]))]),
        "normalized later": v1.Compose([v1.ToTensor(), v1.RandomHorizontalFlip(), to_tensor[1]]),
        "grey tensor": v1.Compose([v1.Grayscale(), v1.ToTensor(), v1.Normalize([0.3], [0.2], inplace=True)]),
    }


def seeded(read: Callable[[], Any]) -> Any:
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    return [read() for _ in range(4)]


def test_operations_on_colours_equal_torchvisions_exactly(out: Path) -> None:
    images = files(out)
    for name, transform in colour_transforms().items():
        data = LMDBDataset(out, transform=transform, target=None)
        for number, image in enumerate(images):
            ours, theirs = seeded(lambda: data[number]), seeded(lambda: transform(image))  # noqa: B023
            assert equal(ours, theirs), (name, number)


def test_an_invalid_normalize_fails_like_torchvisions(out: Path) -> None:
    v1, _ = torchvision_or_skip()
    for mean, std in (([0.5, 0.5], [1, 1]), ([0.5], [0.0])):
        transform = v1.Compose([v1.ToTensor(), v1.Normalize(mean, std)])
        raised = []
        for read in (lambda: LMDBDataset(out, transform=transform)[0], lambda: transform(files(out)[0])):  # noqa: B023
            with pytest.raises((RuntimeError, ValueError)) as caught:
                read()
            raised.append(str(caught.value))
        assert raised[0] == raised[1]


def test_a_changed_transform_is_called_with_its_changes(out: Path) -> None:
    v1, _ = torchvision_or_skip()
    image, steps = files(out)[0], [v1.ColorJitter((0.5, 0.5)), v1.ToTensor()]
    transform = v1.Compose(steps)
    data = LMDBDataset(out, transform=transform, target=None)
    before = data[0]
    steps[0].brightness = (0.1, 0.1)
    assert equal(data[0], transform(image)) and not equal(data[0], before)
    steps.append(v1.Normalize([0.5], [0.5]))
    assert equal(data[0], transform(image))
    steps[2].mean = [0.1]
    assert equal(data[0], transform(image))
    steps[2].register_forward_hook(lambda _module, _inputs, output: output + 1)
    assert equal(data[0], transform(image))
    steps[0].register_forward_hook(lambda _module, _inputs, output: output.rotate(90))
    assert equal(data[0], transform(image))


def test_transforms_of_albumentations_return_the_same(out: Path) -> None:
    library = pytest.importorskip("albumentations")
    pipeline = library.Compose([library.RandomCrop(64, 64), library.HorizontalFlip(), library.Normalize()], seed=0)
    pipelines = [pipeline, pickle.loads(pickle.dumps(pipeline))]
    data = LMDBDataset(out, transform=lambda image: pipelines[0](image=np.asarray(image))["image"], target=None)
    expected = [pipelines[1](image=np.asarray(image))["image"] for image in files(out)]
    assert equal(list(data), expected)


# ---- batches ----


def batched(transform: Callable[[Any], Any], out: Path, workers: int = 0) -> tuple[Any, Any]:
    """Return the second batch of a DataLoader, and torch's stack of the same samples."""

    class Seeded(LMDBDataset):
        def __getitems__(self, indices: Any) -> Any:
            torch.manual_seed(int(indices[0]))
            return super().__getitems__(indices)

    data, indices = Seeded(out, transform=transform, target=None), [0, 1, 2, 3, 4] * 2
    torch.manual_seed(0)
    expected = torch.utils.data.default_collate([data[index] for index in indices[:5]])
    loader = torch.utils.data.DataLoader(data, 5, sampler=indices, num_workers=workers)
    return list(loader)[1], expected


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_of_a_batch_equal_torchs_stack(workers: int, out: Path) -> None:
    v1, _ = torchvision_or_skip()
    names = "classic", "evaluation", "jitter", "RandAugment"
    for transform in (torchvision_transforms()[name] for name in names):
        assert equal(*batched(transform, out, workers)), transform
    views = [v1.Compose([v1.RandomResizedCrop(side), v1.ToTensor()]) for side in (64, 64, 32)]
    twice = v1.Compose([v1.CenterCrop(50), v1.ToTensor(), v1.RandomErasing(p=1)])
    for transform in (TwoViews(*views), twice):
        assert equal(*batched(transform, out, workers)), transform


def test_tensors_go_to_their_batch_without_a_copy(out: Path) -> None:
    data = LMDBDataset(out, transform=torchvision_transforms()["classic"], target=None)
    samples = [data.__getitems__([0, 1, 2]) for _ in range(2)][1]
    assert torch.utils.data.default_collate(samples).data_ptr() == samples[0].data_ptr()


@pytest.mark.parametrize("how", ["function", "Lambda", "hook"])
def test_a_tensor_kept_by_a_transform_is_not_part_of_the_batch(how: str, out: Path) -> None:
    v1, _ = torchvision_or_skip()
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    step = {"function": keep, "Lambda": v1.Lambda(keep), "hook": v1.Normalize([0.5], [0.5])}[how]
    if how == "hook":
        step.register_forward_hook(lambda _module, _inputs, output: keep(output))
    data = LMDBDataset(out, transform=v1.Compose([v1.Resize((40, 40)), v1.ToTensor(), step]), target=None)
    for _ in range(2):
        torch.utils.data.default_collate(data.__getitems__([0, 1])).zero_()
    assert len(kept) == 4 and all(tensor.any() for tensor in kept)


def test_tensors_that_are_not_stacked_keep_no_batch_alive(out: Path) -> None:
    v1, _ = torchvision_or_skip()
    data = LMDBDataset(out, transform=v1.Compose([v1.Resize((40, 40)), v1.ToTensor()]), target=None)
    loader = torch.utils.data.DataLoader(data, 5, sampler=[0, 1, 2, 3, 4] * 2, num_workers=1, collate_fn=list)
    for images in loader:
        assert equal(images, [data[number] for number in range(5)])
        assert {image.untyped_storage().nbytes() for image in images} == {3 * 40 * 40 * 4}


def test_an_image_that_a_sample_holds_twice_is_in_two_batches(out: Path) -> None:
    v1, _ = torchvision_or_skip()
    data = LMDBDataset(out, transform=v1.Compose([v1.Resize((40, 40)), v1.ToTensor()]), target=None)
    for _ in range(2):
        first, second = torch.utils.data.default_collate([(image, image) for image in data.__getitems__([0, 1])])
        first.zero_()
    assert second.any()


# ---- images that are kept ----


def cropped(image: Image.Image) -> Image.Image:
    return image.crop((10, 10, 90, 80))


to_bytes = operator.methodcaller("tobytes")
kept: list[Image.Image] = []
"""For a forked process, which gets them without a pickle."""


def bytes_of_kept() -> list[bytes]:
    return list(map(to_bytes, kept))


@pytest.mark.slow
@pytest.mark.slow
def test_images_outlive_their_dataset_and_go_to_other_processes(out: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(out, tmp_path / "copied")
    dataset = LMDBDataset(copied, transform=cropped, target=None)
    images = list(dataset)
    del dataset
    shutil.rmtree(copied)
    expected = [cropped(image).tobytes() for image in files(out)]
    kept.extend(images)
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(1, get_context(method)) as pool:
            assert list(pool.map(to_bytes, images, timeout=60)) == expected
            if method == "fork":
                assert pool.submit(bytes_of_kept).result(60) == expected
    assert list(map(to_bytes, images)) == expected
