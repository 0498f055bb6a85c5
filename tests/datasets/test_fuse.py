"""fuse: fused transforms have torchvision's boxes, flips, pixels and numbers, and the others stay unchanged."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from builds import build_images
from pictures import smooth_image
from presize.datasets import CenterCrop, EpochSampler, LMDBDataset, Loader, RandomResizedCrop, Shuffled, fuse
from presize.datasets.reading.draws import uniform
from presize.errors import OptionError, PresizeWarning
from presize.options import BuildOptions, ImageOptions, Size
from presize.store.dataset import Dataset
from torchvisions import torchvision_or_skip

v1, v2 = torchvision_or_skip()
timm = pytest.importorskip("timm.data.transforms")
from torchvision.transforms._presets import ImageClassification  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_LEVEL = 1 / 255 / min(STD) + 1e-6
"""One grey level, normalized."""
ROUNDING = 2e-6
"""ToDtype multiplies, while presize divides."""

SIDES = [(96, 96), (96, 150), (130, 96), (400, 300), (96, 97), (211, 240), (260, 520), (101, 99)]


def photograph(height: int, width: int, seed: int) -> np.ndarray:
    """Return a picture with edges and noise, on which resampling shows."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(-40, 41, (height, width, 3))
    stripes = 40 * (np.arange(width) // 7 % 2)[None, :, None]
    return np.clip(smooth_image(height, width, seed).astype(int) + noise + stripes, 0, 255).astype(np.uint8)


def built(out: Path, sides: list[tuple[int, int]], image: ImageOptions) -> Path:
    images = {f"class-{n % 2}/{n}.png": photograph(height, width, n) for n, (height, width) in enumerate(sides)}
    return build_images(out, images, BuildOptions(image))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build images of many sizes, stored unchanged; read only."""
    return built(tmp_path_factory.mktemp("stored"), SIDES, ImageOptions(sizes=(Size(600, 600),)))


@pytest.fixture(scope="module")
def at_96(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build images whose shorter side is 96; read only."""
    return built(tmp_path_factory.mktemp("at_96"), SIDES, ImageOptions(sizes=(Size(96, 96),), upscale=True))


def names(steps: tuple[str, ...]) -> list[str]:
    return [step.partition("(")[0] for step in steps]


def training(version: Any, size: int = 64) -> list[Any]:
    """Return the transforms of a training script."""
    to_float = [v1.ToTensor()] if version is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return [version.RandomResizedCrop(size), version.RandomHorizontalFlip(), *to_float, version.Normalize(MEAN, STD)]


def test_a_training_script_is_fused_completely() -> None:
    for version in (v1, v2):
        fused = fuse(version.Compose(training(version)))
        assert fused.crop == RandomResizedCrop(Size(64, 64), exact=True)
        assert (fused.flip, fused.normalize, fused.rest, fused.decode) == (0.5, (MEAN, STD), None, "tensor")
        assert fused.stays == () and fused.reason == ""


class OwnFlip(v1.RandomHorizontalFlip):  # type: ignore[misc, name-defined]
    pass


class Preset:
    """A preset like those of torchvision's references."""

    def __init__(self, *steps: Any) -> None:
        self.transforms = v1.Compose(list(steps))

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class Holder(torch.nn.Module):
    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.steps = torch.nn.Sequential(*steps)

    def forward(self, image: Any) -> Any:
        return self.steps(image)


@pytest.mark.parametrize("kind", [Preset, Holder])
def test_an_object_that_only_calls_its_compose_is_treated_as_that_compose(kind: Any, at_96: Path) -> None:
    preset = kind(v2.CenterCrop(64), v2.RandomHorizontalFlip(0), v2.GaussianBlur(3), v2.PILToTensor())
    dataset = LMDBDataset(at_96, transform=preset, fuse=True)
    assert names(dataset.fused.stays) == ["GaussianBlur", "PILToTensor"]  # type: ignore[union-attr]
    assert dataset[0][0].shape == (3, 64, 64)
    if kind is Preset:
        preset.transforms = v1.Compose([v1.CenterCrop(32), v1.PILToTensor()])
        assert dataset[0][0].shape == (3, 32, 32)
    else:
        preset.register_forward_hook(lambda *_: "hooked")
        assert fuse(preset).crop is None


class OwnCompose(v2.Compose):  # type: ignore[misc, name-defined]
    pass


def double(image: Any) -> Any:
    return image


def fixed(transform: Any, **attributes: Any) -> Any:
    """Return a transform with attributes set, such as its own random generator."""
    vars(transform).update(attributes)
    return transform


FLOAT = v2.ToDtype(torch.float32, scale=True)
STAYS: list[tuple[str, Any, list[str], str]] = [
    ("another transform", [*training(v1), v1.RandomErasing()], ["RandomErasing"], "does not fuse RandomErasing"),
    ("a function", [v1.CenterCrop(9), double, v1.ToTensor()], ["<function double", "ToTensor"], "function is not one"),
    ("a subclass", [v1.CenterCrop(9), OwnFlip()], ["OwnFlip"], "OwnFlip is a subclass of RandomHoriz"),
    ("a generator", [v1.CenterCrop(9), fixed(v1.RandomHorizontalFlip(), generator=torch.Generator())],
     ["RandomHorizontalFlip"], "RandomHorizontalFlip has generator, which presize does not know"),
    ("a replaced method", [v2.CenterCrop(9), fixed(v2.RandomHorizontalFlip(), forward=double)],
     ["RandomHorizontalFlip"], "has forward, which presize does not know"),
    ("a second crop", [v1.RandomResizedCrop(9), v1.RandomCrop(4)], ["RandomCrop"], "a second crop"),
    ("a second flip", [v1.CenterCrop(9), v1.RandomHorizontalFlip(0.1), v1.RandomHorizontalFlip(0.9)],
     ["RandomHorizontalFlip"], "a second RandomHorizontalFlip"),
    ("half precision", [v2.CenterCrop(9), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)], ["ToDtype"],
     "dtype=torch.float16"),
    ("float without scaling", [v2.CenterCrop(9), v2.ToImage(), v2.ToDtype(torch.float32)], ["ToDtype"], "scale=False"),
    ("a flip of an array", [v1.CenterCrop(9), timm.ToNumpy(), v1.RandomHorizontalFlip()], ["RandomHorizontalFlip"],
     "RandomHorizontalFlip comes after ToNumpy"),
    ("Normalize of negative std", [v1.CenterCrop(9), v1.ToTensor(), v1.Normalize([0], [-1])], ["Normalize"],
     "std above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("transforms", "stays", "reason"), [row[1:] for row in STAYS], ids=[row[0] for row in STAYS])
def test_unknown_transforms_stay_with_all_later_ones(transforms: Any, stays: list[str], reason: str) -> None:
    fused = fuse(v1.Compose(transforms))
    assert fused.crop is not None and names(fused.stays)[0].startswith(stays[0]) and len(fused.stays) == len(stays)
    assert reason in fused.reason
    assert fused.rest.transforms[-len(stays) :] == transforms[-len(stays) :]  # type: ignore[union-attr]
    for word in ("fused: ", "stays: ", f"because: {fused.reason}"):
        assert word in repr(fused)


NOTHING: list[tuple[str, Any, str]] = [
    ("no crop", v1.Compose([v1.ToTensor()]), "the transform has no crop"),
    ("a flip before the crop", v1.Compose([v1.RandomHorizontalFlip(), v1.RandomResizedCrop(9)]), "before the crop"),
    ("nearest", v2.RandomResizedCrop(9, interpolation=v2.InterpolationMode.NEAREST), "interpolation=nearest"),
    ("nearest by number", v2.RandomResizedCrop(9, interpolation=0), "interpolation=0"),
    ("a crop after Resize", v1.Compose([v1.Resize(96), v1.RandomCrop(9)]), "comes after Resize(96)"),
    ("Resize to less than the crop", v1.Compose([v1.Resize(64), v1.CenterCrop(96)]), "images that Resize(64) makes"),
    ("two Resizes", v1.Compose([v1.Resize(96), v1.Resize(64), v1.CenterCrop(9)]), "a second Resize"),
    ("filters of tensors", v2.Compose([v2.ToImage(), v2.RandomResizedCrop(9, interpolation=1)]), "gets tensors"),
    ("aliased tensors", v2.Compose([v2.ToImage(), v2.RandomResizedCrop(9, antialias=False)]), "antialias=False"),
    ("floats resized", v2.Compose([v2.ToImage(), FLOAT, v2.RandomResizedCrop(9)]), "after the conversion to float"),
    ("a size set later", fixed(v1.RandomResizedCrop(9), size=20), "has size=20, expected (height, width)"),
    ("padding", v1.RandomCrop(9, padding=4), "padding=4"),
    ("padding if needed", v2.RandomCrop(9, pad_if_needed=True), "pad_if_needed=True"),
    ("max_size", v2.Resize(90, max_size=100), "max_size=100"),
    ("a share above 1", v1.RandomResizedCrop(9, scale=(0.5, 1.5)), "RandomResizedCrop: scale: expected two fractions"),
    ("a class of one's own", OwnCompose([v2.CenterCrop(9), FLOAT]), "OwnCompose is a subclass of Compose"),
    ("a function", double, "function is not one of torchvision's transforms"),
    ("another library", timm.CenterCropOrPad(9), "presize does not fuse CenterCropOrPad"),
]


@pytest.mark.parametrize(("transform", "reason"), [row[1:] for row in NOTHING], ids=[row[0] for row in NOTHING])
def test_nothing_is_fused_unless_the_crop_is(transform: Any, reason: str) -> None:
    fused = fuse(transform)
    assert (fused.crop, fused.flip, fused.normalize, fused.decode) == (None, 0.0, None, "pil")
    assert fused.rest is transform and fused.taken == () and reason in fused.reason


def test_nested_compositions_are_fused_as_one() -> None:
    inner = v2.Compose(
        [v2.RandomResizedCrop(9), torch.nn.Sequential(v2.RandomHorizontalFlip(0.25), v2.GaussianBlur(3))]
    )
    fused = fuse(v2.Compose([v2.ToImage(), inner, FLOAT]), decode="tensor")
    assert fused.flip == 0.25 and names(fused.taken) == ["ToImage", "RandomResizedCrop", "RandomHorizontalFlip"]
    assert names(fused.stays) == ["GaussianBlur", "ToDtype"]


@contextmanager
def draws(numbers: np.ndarray) -> Iterator[None]:
    """Make torchvision draw these 22 numbers from [0, 1)."""
    tries = iter(np.stack((numbers[:10], numbers[10:20]), axis=1).ravel())
    places = iter(numbers[20:])

    def uniform_(low: Any, high: Any) -> torch.Tensor:
        return torch.tensor([float(low) + (float(high) - float(low)) * next(tries)], dtype=torch.float64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *_: SimpleNamespace(uniform_=uniform_))
        patch.setattr(torch, "randint", lambda _, high, **__: torch.tensor(int(high * next(places))))
        yield


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize(("height", "width"), [(480, 640), (1200, 900), (30, 2000), (2000, 30), (256, 256), (9, 7)])
def test_a_random_resized_crop_has_torchvisions_box_for_the_same_numbers(version: Any, height: int, width: int) -> None:
    transform = version.RandomResizedCrop(32, scale=(0.05, 0.9), ratio=(0.5, 1.5))
    random = uniform(1, 2, np.arange(200), 22)
    sides = np.full(len(random), height), np.full(len(random), width)
    boxes = fuse(transform).crop.boxes(*sides, random)  # type: ignore[union-attr]
    image = Image.new("L", (width, height))
    for numbers, box in zip(random, boxes.tolist(), strict=True):
        with draws(numbers):
            if version is v1:
                assert list(transform.get_params(image, transform.scale, transform.ratio)) == box
            else:
                assert list(transform.make_params([image]).values()) == box


BICUBIC = v2.InterpolationMode.BICUBIC


@pytest.mark.parametrize("size", [24, 64, 333], ids=["shrunk", "resized", "enlarged"])
@pytest.mark.parametrize(
    ("decode", "interpolation"),
    [("pil", v2.InterpolationMode.BILINEAR), ("tensor", v2.InterpolationMode.BILINEAR), ("pil", BICUBIC)],
)
def test_pixels_are_torchvisions_and_within_one_grey_level_for_tensors(
    decode: Any, interpolation: Any, size: int, stored: Path
) -> None:
    functional = v2.functional
    steps = training(v2, size)
    steps[0] = v2.RandomResizedCrop(size, interpolation=interpolation)
    if decode == "tensor":
        steps = [steps[2], *steps[:2], *steps[3:]]
    fused = LMDBDataset(stored, transform=v2.Compose(steps), decode=decode, fuse=True)
    plain = LMDBDataset(stored, decode=decode)
    for index, box, flip, image, _ in drawn(fused):
        theirs = functional.resized_crop(plain[index][0], *box, [size, size], interpolation)
        theirs = functional.horizontal_flip(theirs) if flip else theirs
        for step in (v2.ToImage(), *steps[-2:]):
            theirs = step(theirs)
        assert (image - theirs).abs().max() <= (GREY_LEVEL if decode == "tensor" else ROUNDING)


def test_timms_arrays_are_fused(at_96: Path, tmp_path: Path) -> None:
    from timm.data.loader import fast_collate

    transform = v1.Compose([v1.Resize(72), v1.CenterCrop(64), timm.ToNumpy()])
    grey = built(tmp_path, SIDES, ImageOptions(sizes=(Size(96, 96),), upscale=True, color="gray"))
    for root in (at_96, grey):
        dataset, plain = (LMDBDataset(root, transform=transform, fuse=fused) for fused in (True, False))
        assert dataset.fused.stays == () and dataset.fused.decode == "tensor"  # type: ignore[union-attr]
        images = [image for image, _ in pickle.loads(pickle.dumps(dataset))]
        for image, (theirs, _) in zip(images, plain, strict=True):
            assert type(image) is np.ndarray and np.array_equal(image, theirs)
            assert image.dtype == theirs.dtype and image.strides == theirs.strides and image.flags.writeable
        with Loader(dataset, len(dataset), num_workers=0) as loader:
            ((batch, _),) = loader
        assert batch.dtype == torch.uint8 and torch.equal(batch, torch.from_numpy(np.stack(images)))
    stacked, labels = fast_collate(dataset.__getitems__(range(8)))
    assert stacked.shape == (8, 1, 64, 64) and len(labels) == 8
    transform.transforms.append(np.ascontiguousarray)
    assert names(dataset.fused.stays) == ["<built-in function ascontiguousarray>"]  # type: ignore[union-attr]
    assert all(np.array_equal(ours[0], theirs[0]) for ours, theirs in zip(dataset, plain, strict=True))


def test_a_random_interpolation_is_one_of_timms_two(stored: Path) -> None:
    own = timm.RandomResizedCropAndInterpolation(64, interpolation="random")
    fused = LMDBDataset(stored, transform=v1.Compose([own, timm.MaybePILToTensor()]), fuse=True)
    assert fused.fused.rest is None  # type: ignore[union-attr]
    plain = LMDBDataset(stored)
    seen = []
    for index, box, _, image, random in drawn(fused):
        how = own.interpolation[int(random >= 0.5)]
        theirs = v1.functional.pil_to_tensor(v1.functional.resized_crop(plain[index][0], *box, [64, 64], how))
        assert torch.equal(image, theirs)
        seen.append(how)
    assert len(set(seen)) == 2


def drawn(fused: LMDBDataset) -> Iterator[tuple[int, list[int], bool, Any, float]]:
    """Yield the number, box, flip, image and last random number of each sample, as drawn in an epoch."""
    visits = list(EpochSampler(Shuffled(len(fused), seed=5)))
    crop: Any = fused.crop
    random = uniform(5, 0, np.array([visit.key for visit in visits]), 1 + crop.draws)
    sides = [fused.data.numbers(name)[visits].astype(np.int64) for name in ("height", "width")]
    boxes, flips = crop.boxes(*sides, random[:, 1:]).tolist(), (random[:, 0] < fused.flip).tolist()
    images = [image for image, _ in fused.__getitems__(visits)]
    assert len(set(flips)) == (2 if fused.flip else 1)
    return zip(visits, boxes, flips, images, random[:, -1].tolist(), strict=True)


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
def test_an_evaluation_script_yields_torchvisions_numbers(version: Any, at_96: Path) -> None:
    steps = [version.Resize(96), version.CenterCrop((64, 96)), *training(version)[2:]]
    fused = LMDBDataset(at_96, transform=version.Compose(steps), fuse=True)
    assert fused.crop == CenterCrop(Size(64, 96)) and fused.fused.rest is None
    plain = LMDBDataset(at_96, transform=version.Compose(steps))
    for (ours, label), (theirs, expected) in zip(fused, plain, strict=True):  # type: ignore[call-overload]
        assert label == expected
        assert torch.equal(ours, theirs) if version is v1 else (ours - theirs).abs().max() < 1e-6


EVALUATIONS: list[tuple[str, Any]] = [
    ("bilinear", [v1.Resize(80), v1.CenterCrop(64)]),
    ("enlarged", [v1.Resize(123), v1.CenterCrop(123)]),
    ("not square", [v2.Resize(90), v2.CenterCrop((31, 90))]),
    ("bicubic", [v1.Resize(71, interpolation=v1.InterpolationMode.BICUBIC), v1.CenterCrop(64)]),
    ("lanczos", [v2.Resize([71], interpolation=v2.InterpolationMode.LANCZOS), v2.CenterCrop(64)]),
    ("all at once", [v1.Resize((50, 80))]),
    ("all at bicubic", [v1.Resize((50, 80), interpolation=v1.InterpolationMode.BICUBIC)]),
    ("of weights", [ImageClassification(crop_size=64, resize_size=72, interpolation=v1.InterpolationMode.BICUBIC)]),
]


@pytest.mark.parametrize("steps", [row[1] for row in EVALUATIONS], ids=[row[0] for row in EVALUATIONS])
def test_an_evaluation_resizes_stored_images_of_any_size(steps: list[Any], stored: Path) -> None:
    most = GREY_LEVEL if isinstance(steps[0], ImageClassification) else 0
    transform = v1.Compose([*steps, *([] if most else [v1.PILToTensor()])])
    fused, plain = (LMDBDataset(stored, transform=transform, fuse=fuses) for fuses in (True, False))
    assert fused.fused.rest is None  # type: ignore[union-attr]
    for (ours, _), (theirs, _) in zip(fused, plain, strict=True):
        assert (ours.float() - theirs.float()).abs().max() <= most


def test_a_crop_larger_than_a_stored_image_stays(stored: Path) -> None:
    fused = fuse(v1.CenterCrop(100), data=Dataset(stored))
    assert fused.crop is None and "5 of 8 stored images are smaller than 100 x 100" in fused.reason


def test_grey_images_among_others_are_left_to_torchvision(tmp_path: Path) -> None:
    out = built(tmp_path, SIDES[:2], ImageOptions(sizes=(Size(96, 96),), color="keep"))
    assert "--color keep" in fuse(v1.CenterCrop(64), data=Dataset(out)).reason


def test_normalization_that_does_not_fit_the_channels_stays(tmp_path: Path) -> None:
    out = built(tmp_path, SIDES[:2], ImageOptions(sizes=(Size(96, 96),), color="gray"))
    steps = [v1.CenterCrop(64), v1.ToTensor()]
    fused = fuse(v1.Compose([*steps, v1.Normalize(MEAN, STD)]), data=Dataset(out))
    assert names(fused.stays) == ["Normalize"] and "expected 1 of each" in fused.reason
    one = LMDBDataset(out, transform=v1.Compose([*steps, v1.Normalize(0.5, 0.5)]), fuse=True)
    assert torch.equal(one[0][0], v1.Normalize(0.5, 0.5)(v1.ToTensor()(CENTER(LMDBDataset(out)[0][0]))))


CENTER = v1.CenterCrop(64)


class TwoCrops:
    """A transform like MoCo's TwoCropsTransform."""

    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class MultiCrop:
    """A transform like DINO's DataAugmentationDINO."""

    def __init__(self, large: Any, small: Any) -> None:
        self.large, self.small, self.local_crops_number = large, small, 3

    def __call__(self, image: Any) -> Any:
        crops = []
        crops.append(self.large(image))
        for _ in range(self.local_crops_number):
            crops.append(self.small(image))
        return crops


class Chooses(TwoCrops):
    def __call__(self, x: Any) -> Any:
        return [self.base_transform(x), self.base_transform(x) if torch.rand(()) < 2 else x]


class Chains(TwoCrops):
    def __call__(self, x: Any) -> Any:
        return [self.base_transform(x), self.base_transform(self.base_transform(x))]


class Reuses(TwoCrops):
    def __call__(self, x: Any) -> Any:
        view = self.base_transform(x)
        return [view, view]


class Discards(TwoCrops):
    def __call__(self, x: Any) -> Any:
        self.base_transform(x)
        return [self.base_transform(x), self.base_transform(x)]


class Reverses(TwoCrops):
    def __call__(self, x: Any) -> Any:
        first, second = self.base_transform(x), self.base_transform(x)
        return [second, first]


class FallsBack(TwoCrops):
    def __call__(self, x: Any) -> Any:
        try:
            return [self.base_transform(x), self.base_transform(x)]
        except:  # noqa: E722
            return [x, x]


class Remembers(TwoCrops):
    def __init__(self, base_transform: Any) -> None:
        super().__init__(base_transform)
        self.seen: Any = []

    def __call__(self, x: Any) -> Any:
        self.seen.append(x)
        return [self.base_transform(x), self.base_transform(x)]


class RemembersTheLast(Remembers):
    def __init__(self, base_transform: Any) -> None:
        super().__init__(base_transform)
        self.seen = deque(maxlen=1)


def jittered(size: int, *, flip: Any = None) -> Any:
    flips = [v1.RandomHorizontalFlip()] if flip is None else flip
    return v1.Compose([v1.RandomResizedCrop(size, interpolation=BICUBIC), *flips, v1.ColorJitter(0.4), v1.ToTensor()])


@pytest.mark.parametrize(
    ("transform", "sizes"),
    [
        (TwoCrops(jittered(32)), [32, 32]),
        (MultiCrop(jittered(48), jittered(16)), [48, 16, 16, 16]),
        (MultiCrop(jittered(48), jittered(16, flip=[])), [48, 16, 16, 16]),
    ],
    ids=["MoCo", "DINO", "flips that differ"],
)
def test_the_crops_of_several_views_are_fused(transform: Any, sizes: list[int], stored: Path) -> None:
    dataset = LMDBDataset(stored, transform=transform, fuse=True)
    assert [crop.size for crop in dataset.crop] == [(size, size) for size in sizes]  # type: ignore[union-attr]
    batches, _ = next(iter(DataLoader(dataset, 4)))
    assert [tuple(batch.shape) for batch in batches] == [(4, 3, size, size) for size in sizes]
    assert not torch.equal(batches[-1], batches[-2])
    plain = LMDBDataset(stored, transform=transform)[0][0]
    assert len(plain) == len(sizes) and len(dataset[0][0]) == len(sizes)


def test_the_reason_names_the_remaining_step_of_the_views() -> None:
    assert fuse(TwoCrops(jittered(32))).reason == "presize does not fuse ColorJitter"
    views = v1.Compose([v1.CenterCrop(9), v1.ToTensor()]), v1.Compose([v1.CenterCrop(9), v1.PILToTensor()])
    assert fuse(MultiCrop(*views)).reason == "the views have different transforms after their crops"


@pytest.mark.parametrize("first", range(3))
def test_views_with_different_conversions_before_their_crops_stay_different(first: int, stored: Path) -> None:
    steps = [v1.ToTensor(), v1.Normalize(MEAN, STD)], [v1.ToTensor()], [v1.PILToTensor()]
    views = [v1.Compose([*each, v1.CenterCrop(32)]) for each in (steps[first], steps[first - 1])]
    transform = MultiCrop(*views)
    with pytest.warns(PresizeWarning, match="nothing was fused: the views are of different kinds"):
        fused = LMDBDataset(stored, transform=transform, fuse=True)
    for ours, theirs in zip(fused[3][0], LMDBDataset(stored, transform=transform)[3][0], strict=True):
        assert ours.dtype == theirs.dtype and torch.allclose(ours.float(), theirs.float(), atol=ROUNDING)


def test_views_have_the_pixels_of_their_boxes(stored: Path) -> None:
    each = v1.Compose([v1.CenterCrop(64), v1.RandomHorizontalFlip(1.0), v1.PILToTensor()])
    at = v1.Compose([v1.Resize(70), v1.CenterCrop(48), v1.RandomHorizontalFlip(1.0), v1.RandomInvert(1.0)])
    transform = MultiCrop(each, at)
    fused, plain = LMDBDataset(stored, transform=transform, fuse=True), LMDBDataset(stored, transform=transform)
    for ours, theirs in zip(fused[3][0], plain[3][0], strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_a_number_of_views_changed_in_place_is_followed(stored: Path) -> None:
    transform = MultiCrop(jittered(48), jittered(16))
    dataset = LMDBDataset(stored, transform=transform, fuse=True)
    transform.local_crops_number = 5
    assert len(dataset[0][0]) == 6


MORE = [Chooses, Chains, Reuses, Discards, Reverses, FallsBack, Remembers, RemembersTheLast]


@pytest.mark.parametrize("kind", MORE)
def test_an_object_that_does_more_than_call_its_transforms_stays(kind: Any) -> None:
    fused = fuse(kind(jittered(32)))
    assert fused.crop is None and "is not one of torchvision's" in fused.reason


@pytest.mark.parametrize("kind", [*MORE[2:], TwoCrops])
def test_an_object_that_calls_transforms_is_called_as_it_is_written(kind: Any, stored: Path) -> None:
    ours, theirs = (kind(jittered(32)) for _ in range(2))
    torch.manual_seed(4)
    views, _ = LMDBDataset(stored, ours)[3]
    torch.manual_seed(4)
    expected = theirs(LMDBDataset(stored)[3][0])
    assert [torch.equal(*pair) for pair in zip(views, expected, strict=True)] == [True, True]
    assert len(getattr(ours, "seen", [])) == len(getattr(theirs, "seen", []))


class Recorder:
    """The rest of a transform, which records its inputs."""

    def __init__(self) -> None:
        self.got: list[type] = []

    def __call__(self, image: Any) -> Any:
        self.got.append(type(image))
        return image


REST: list[tuple[list[Any], str]] = [
    ([v1.CenterCrop(9), v1.RandomHorizontalFlip()], "Image"),
    ([v1.CenterCrop(9), v1.PILToTensor()], "Tensor"),
    ([v1.CenterCrop(9), v1.ToTensor(), v1.Normalize(MEAN, STD)], "Tensor"),
    ([v2.CenterCrop(9), v2.ToImage(), FLOAT], "tv_tensors._image.Image"),
    ([v2.CenterCrop(9), v2.ToImage(), FLOAT, v2.ToPureTensor()], "Tensor"),
]


@pytest.mark.parametrize(("steps", "kind"), REST, ids=["pil", "uint8", "float", "tv_tensor", "pure tensor"])
def test_the_rest_gets_the_same_input_as_from_torchvision(steps: list[Any], kind: str, at_96: Path) -> None:
    ours, theirs = Recorder(), Recorder()
    LMDBDataset(at_96, transform=v2.Compose([*steps, ours]), fuse=True)[0]
    LMDBDataset(at_96, transform=v2.Compose([*steps, theirs]))[0]
    assert ours.got == theirs.got and f"{ours.got[0].__module__}.{ours.got[0].__qualname__}".endswith(kind)


def test_a_plain_dataloader_and_loader_yield_the_same_batches(stored: Path) -> None:
    dataset = LMDBDataset(stored, transform=v2.Compose(training(v2)), fuse=True)
    sampler = EpochSampler(Shuffled(len(dataset), seed=5))
    plain = next(iter(DataLoader(dataset, 8, sampler=sampler, num_workers=1)))
    alone = next(iter(DataLoader(dataset, 8, sampler=EpochSampler(Shuffled(len(dataset), seed=5)))))
    with Loader(dataset, 8, shuffle=True, seed=5, num_workers=1) as loader:
        theirs = next(iter(loader))
    for images, labels in (plain, alone, theirs):
        assert type(images) is torch.Tensor and images.dtype == torch.float32
        assert torch.equal(images, plain[0]) and torch.equal(labels, plain[1])


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a crop as well", {"transform": CENTER, "crop": CenterCrop(9)}, "fuse: crop and flip come from the transform"),
    ("a flip as well", {"transform": CENTER, "flip": 0.5}, "fuse: crop and flip come from the transform"),
    ("arrays", {"transform": CENTER, "decode": "numpy"}, "fuse: .* got 'numpy'"),
    ("no bool", {"transform": CENTER, "fuse": "yes"}, "fuse: expected"),
]


@pytest.mark.parametrize(("options", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_options_that_contradict_fuse_are_refused(options: dict[str, Any], said: str, at_96: Path) -> None:
    with pytest.raises(OptionError, match=said):
        LMDBDataset(at_96, **{"fuse": True, **options})


def test_a_loader_normalizes_several_views_like_the_transform_does_one(at_96: Path) -> None:
    steps = [v1.CenterCrop(64), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    dataset = LMDBDataset(at_96, transform=v1.Compose(steps), fuse=True)
    views, _ = next(iter(Loader(dataset, 4, crop=[CenterCrop(64), CenterCrop(32)], num_workers=0)))
    images, _ = next(iter(DataLoader(dataset, 4)))
    assert torch.equal(views[0], images) and torch.equal(views[1], images[:, :, 16:48, 16:48])


def test_shared_memory_is_computed_for_floats_unless_batches_stay_whole(at_96: Path) -> None:
    steps = [v1.CenterCrop(64), v1.ToTensor()]
    whole, erasing = (
        LMDBDataset(at_96, transform=v1.Compose([*steps, *rest]), fuse=True) for rest in ([], [v1.RandomErasing()])
    )
    assert whole.dev_shm_bytes(4) == 4 * 8
    assert erasing.dev_shm_bytes(4) == 4 * (64 * 64 * 3 * 4 + 8)


def test_to_tensor_is_not_fused_for_a_default_dtype_other_than_float32() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert names(fuse(v1.Compose([v1.CenterCrop(9), v1.ToTensor()])).stays) == ["ToTensor"]
    finally:
        torch.set_default_dtype(torch.float32)
