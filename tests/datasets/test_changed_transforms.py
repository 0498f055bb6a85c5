"""Transforms assigned or changed after fuse=True has fused them: the images equal those of ImageFolder."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from presize.datasets import CenterCrop as Crop
from presize.datasets import LMDBDataset, Loader, make_loader
from presize.errors import OptionError, PresizeWarning
from torchvision_like import CenterCrop, Compose, LikeImageFolder, Normalize, RandomHorizontalFlip, ToTensor

WITHIN = 1e-5
"""Rounding of float32; a different crop, flip or normalization differs by far more."""


def training() -> Compose:
    return Compose([CenterCrop(24), RandomHorizontalFlip(1), ToTensor(), Normalize([0.4] * 3, [0.1, 0.2, 0.3])])


def evaluation() -> Compose:
    return Compose([CenterCrop(20), ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])


def negative(image: torch.Tensor) -> torch.Tensor:
    return -image


def to_corner(image: Any) -> Any:
    """Crop the corner: a transform that presize does not know."""
    return ToTensor()(image.crop((0, 0, 8, 8)))


@pytest.fixture(scope="module")
def pairs(dataset: Path) -> list[Any]:
    return list(LMDBDataset(dataset).subset(range(8)))


def assign(transform: Any) -> Callable[[Any], Any]:
    def script(data: Any) -> Any:
        data.transform = transform()
        return data

    return script


def in_place(change: Callable[[Any], object]) -> Callable[[Any], Any]:
    def script(data: Any) -> Any:
        change(data.transform)
        return data

    return script


def copied_by(copied: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def script(train: Any) -> Any:
        val = copied(train)
        val.transform = evaluation()
        return ConcatDataset([val, train])

    return script


def deep_copy_changed(train: Any) -> Any:
    val = copy.deepcopy(train)
    val.transform.transforms[0].size = (18, 18)
    return ConcatDataset([val, Subset(train, [0])])


def part_of_a_split(data: Any) -> Any:
    _, val = random_split(data, [3, 5], torch.Generator().manual_seed(0))
    val.dataset.transform = evaluation()
    return val


def copy_under_a_split(data: Any) -> Any:
    train, val = random_split(data, [3, 5], torch.Generator().manual_seed(0))
    val.dataset = copy.copy(data)
    val.dataset.transform = evaluation()
    return ConcatDataset([train, val])


def put_back(data: Any) -> Any:
    before, data.transform = data.transform, evaluation()
    _ = data[0]
    data.transform = before
    return data


def after_reading(data: Any) -> Any:
    _ = data[0]
    data.transform.transforms[1].p = 0
    return data


def changed_twice(data: Any) -> Any:
    for size in (16, 22):
        data.transform.transforms[0].size = (size, size)
        _ = data[0]
    return data


def nested(data: Any) -> Any:
    inner = Compose([CenterCrop(24), RandomHorizontalFlip(1)])
    data.transform = Compose([inner, ToTensor()])
    _ = data[0]
    inner.transforms[0] = CenterCrop(10)
    inner.transforms.pop()
    return data


def tensor_in_place(data: Any) -> Any:
    mean = torch.tensor([0.1, 0.2, 0.3])
    data.transform = Compose([CenterCrop(24), ToTensor(), Normalize(mean, [1.0] * 3)])
    _ = data[0]
    mean += 0.5
    return data


def pickled(data: Any) -> Any:
    data.transform.transforms[0].size = (18, 18)
    return pickle.loads(pickle.dumps(data))


def target_transform(data: Any) -> Any:
    data.target_transform = str
    return data


SCRIPTS: dict[str, Callable[[Any], Any]] = {
    "as it was": lambda data: data,
    "assigned": assign(evaluation),
    "assigned None, and another": lambda data: assign(evaluation)(assign(lambda: None)(data)),
    "assigned what is not understood": assign(lambda: to_corner),
    "assigned a part that stays": assign(lambda: Compose([CenterCrop(9), ToTensor(), negative])),
    "a shallow copy": copied_by(copy.copy),
    "a deep copy": copied_by(copy.deepcopy),
    "a deep copy changed in place": deep_copy_changed,
    "a part of random_split": part_of_a_split,
    "a copy under a part": copy_under_a_split,
    "put back": put_back,
    "another size": in_place(lambda transform: setattr(transform.transforms[0], "size", (18, 18))),
    "no flip": in_place(lambda transform: setattr(transform.transforms[1], "p", 0)),
    "no flip, after an image was read": after_reading,
    "another size twice": changed_twice,
    "another list of means": in_place(lambda transform: setattr(transform.transforms[3], "mean", [0.9] * 3)),
    "another mean in its list": in_place(lambda transform: transform.transforms[3].mean.__setitem__(0, 0.9)),
    "a tensor of means changed": tensor_in_place,
    "another first step": in_place(lambda transform: transform.transforms.__setitem__(0, CenterCrop(12))),
    "one more step": in_place(lambda transform: transform.transforms.append(negative)),
    "a step fewer": in_place(lambda transform: transform.transforms.pop()),
    "no crop any more": in_place(lambda transform: transform.transforms.pop(0)),
    "another list": in_place(lambda transform: setattr(transform, "transforms", evaluation().transforms)),
    "nested": nested,
    "pickled": pickled,
    "target_transform": target_transform,
}


@pytest.mark.filterwarnings("ignore:fuse. nothing was fused")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_yields_the_images_of_image_folder(
    script: Callable[[Any], Any], dataset: Path, pairs: list[Any]
) -> None:
    ours = script(LMDBDataset(dataset, training(), fuse=True).subset(range(8)))
    theirs = script(LikeImageFolder(pairs, training()))
    batches = iter(DataLoader(ours, 1))
    for images, targets in DataLoader(theirs, 1):
        our_images, our_targets = next(batches)
        assert our_images.shape == images.shape and (our_images - images).abs().max() < WITHIN
        assert our_targets == targets


def test_the_transform_is_the_given_or_assigned_one(dataset: Path) -> None:
    train, val = training(), evaluation()
    data = LMDBDataset(dataset, train, fuse=True)
    assert data.transform is train and data.fused.rest is None  # type: ignore[union-attr]
    data.transform = val
    assert data.transform is val and data.crop.size == (20, 20) and data.flip == 0  # type: ignore[union-attr]
    data.transform = None
    assert (data.transform, data.fused, data.crop, data.normalize, data.decode) == (None, None, None, None, "pil")
    with pytest.warns(PresizeWarning, match="nothing was fused: function is not one of torchvision's"):
        data.transform = to_corner


def test_a_given_crop_stays_for_any_transform(dataset: Path, pairs: list[Any]) -> None:
    data = LMDBDataset(dataset, crop=Crop(24))
    data.transform = RandomHorizontalFlip(1)
    cropped = CenterCrop(24)(pairs[0][0])
    assert data.crop == Crop(24) and data[0][0].tobytes() == RandomHorizontalFlip(1)(cropped).tobytes()
    data.transform = None
    assert data[0][0].tobytes() == cropped.tobytes()


class Module(torch.nn.Module):
    """A composition like those of torchvision's v2."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.transforms = list(steps)

    def forward(self, image: Any) -> Any:
        return Compose(self.transforms)(image)


Module.__module__, Module.__name__ = "torchvision.transforms.v2.like", "Compose"


def test_a_hook_added_to_a_composition_later_is_called(dataset: Path) -> None:
    module = Module(CenterCrop(24), ToTensor())
    data = LMDBDataset(dataset, module, fuse=True)
    before = data[0][0]
    module.register_forward_hook(lambda *given: -given[-1])
    with pytest.warns(PresizeWarning, match="nothing was fused"):
        assert torch.equal(data[0][0], -before)


class RandomResizedCrop:
    """A crop like torchvision's: an int sets the shorter side when assigned, and a square in the constructor."""

    def __init__(self, size: int) -> None:
        self.size: Any = (size, size)
        self.scale, self.ratio, self.interpolation = (0.08, 1.0), (3 / 4, 4 / 3), "bilinear"

    def __call__(self, image: Any) -> Any:
        return image.resize((self.size, self.size + 3) if isinstance(self.size, int) else self.size)


RandomResizedCrop.__module__ = "torchvision.transforms.like"


@pytest.mark.parametrize("size", [20, [20]])
def test_a_size_of_one_number_set_on_a_random_resized_crop_later_is_not_a_square(size: Any, dataset: Path) -> None:
    crop = RandomResizedCrop(24)
    data = LMDBDataset(dataset, Compose([crop]), fuse=True)
    assert data[0][0].size == (24, 24)
    crop.size = size
    with pytest.warns(PresizeWarning, match=r"nothing was fused: RandomResizedCrop has size="):
        assert data.crop is None
    crop.size = 20
    assert data[0][0].size == (20, 23)


def test_a_subclass_that_keeps_its_transform_in_an_attribute_calls_it(dataset: Path) -> None:
    @dataclass(eq=False)
    class Own(LMDBDataset):
        root: str
        transform: Any = None  # type: ignore[misc]

        def __post_init__(self) -> None:
            super().__init__(self.root, self.transform, decode="bytes")

    class Always(LMDBDataset):
        @property
        def transform(self) -> Any:
            return lambda image: ("always", image.size)

        @transform.setter
        def transform(self, transform: Any) -> None: ...

    data = Own(str(dataset), len)
    length = data[0][0]
    data.transform = str
    assert isinstance(length, int) and isinstance(data[0][0], str)
    for copied in (copy.copy(data), data.subset([0]), pickle.loads(pickle.dumps(LMDBDataset(dataset, str)))):
        copied.transform = type
        assert isinstance(copied[0][0], type) and isinstance(data[0][0], str)
    assert Always(dataset)[0][0][0] == "always"


# --- loaders ---


def first_images(loader: Any) -> torch.Tensor:
    images: torch.Tensor = next(iter(loader))[0]
    return images


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("load", [Loader, make_loader])
def test_a_loader_of_a_part_follows_changes_of_its_dataset(load: Any, workers: int, dataset: Path) -> None:
    data = LMDBDataset(dataset, training(), fuse=True)
    loader = load(Subset(data, [5, 3]), 2, num_workers=workers)
    assert first_images(loader).shape == (2, 3, 24, 24)
    data.transform, data.target_transform = evaluation(), str
    images, targets = next(iter(loader))
    assert images.shape == (2, 3, 20, 20) and list(targets) == [str(data.targets[i]) for i in (5, 3)]


def test_a_change_that_a_loader_cannot_follow_is_refused_each_time(dataset: Path) -> None:
    data = LMDBDataset(dataset, Compose([CenterCrop(24)]), fuse=True)
    loader = Loader(data, 4, num_workers=0, normalize=((0.5,) * 3, (0.5,) * 3))
    data.transform = training()
    for _ in range(2):
        with pytest.raises(OptionError, match="normalize: fuse=True took over the transform's normalization"):
            next(iter(loader))


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("load", [Loader, make_loader])
def test_a_loader_of_a_part_follows_a_replacement_of_its_indices(load: Any, in_place: bool, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=Crop(24), decode="tensor")
    part = Subset(data, [5, 3])
    loader = load(part, 2, num_workers=0)
    assert next(iter(loader))[1].tolist() == data.targets[[5, 3]].tolist()
    if in_place:
        part.indices[:] = [50, 1]  # type: ignore[index]
    else:
        part.indices = [50, 1]
    assert next(iter(loader))[1].tolist() == data.targets[[50, 1]].tolist()
    part.indices = [1]
    with pytest.raises(OptionError, match="has 1 samples now, but had 2 when this loader was made; make another"):
        next(iter(loader))


@pytest.mark.parametrize("load", [Loader, make_loader])
def test_indices_and_a_transform_may_change_together(load: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, training(), fuse=True)
    part = Subset(data, [5, 3])
    loader = load(part, 2, num_workers=0)
    next(iter(loader))
    part.indices = [50, 1]
    data.transform.transforms[1].p = 0  # type: ignore[union-attr]
    images, labels = next(iter(loader))
    expected = torch.stack([data[i][0] for i in (50, 1)])
    assert torch.allclose(images, expected, atol=WITHIN) and labels.tolist() == data.targets[[50, 1]].tolist()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("load", [Loader, make_loader])
def test_a_transform_assigned_to_a_loaders_dataset_stays_when_the_samples_change(
    load: Any, workers: int, dataset: Path
) -> None:
    part = Subset(LMDBDataset(dataset, crop=Crop(24), decode="tensor"), [5, 3])
    loader = load(part, 2, num_workers=workers)
    assert next(iter(loader))[1].tolist() == loader.dataset.targets.tolist()
    loader.dataset.target_transform = str
    for indices in ([5, 3], [50, 1], [7, 9]):
        part.indices = indices
        assert [*next(iter(loader))[1]] == [str(loader.dataset.targets[at]) for at in range(2)]


def test_parts_are_joined_if_the_rest_of_their_transforms_is_the_same(dataset: Path) -> None:
    parts = [LMDBDataset(dataset, training(), fuse=True) for _ in range(2)]
    joined = Loader(ConcatDataset(parts), 8, num_workers=0)
    assert torch.equal(first_images(joined), first_images(DataLoader(parts[0], 8)))
    parts[1].transform.transforms[1].p = 0  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="must have the same flip"):
        next(iter(joined))
