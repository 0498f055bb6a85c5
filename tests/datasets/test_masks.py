"""Companions of images: they are returned with them, with the same crops and flips."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchvision_like
from builds import SERIAL, build_images
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomCrop, RandomResizedCrop, Resize, make_loader
from presize.datasets.reading.batch_reader import BatchReader
from presize.errors import DatasetError, OptionError, PresizeWarning
from presize.options import BuildOptions, Companion, ImageOptions, Size, SourceOptions
from presize.store.dataset import Dataset

CLASSES = np.array([0, 7, 21, 255], np.uint8)
COLORS = np.array([[20, 20, 20], [230, 30, 30], [30, 230, 30], [30, 30, 230]], np.uint8)
"""Colours of each class in the image."""
SAMPLES = 20
ROWS = [{"path": f"{'ab'[i % 2]}/{i:02d}.png", "label": "ab"[i % 2]} for i in range(SAMPLES)]
"""A table of the images; their masks are in the same folder."""
CROPS = {
    "random": RandomResizedCrop(40, scale=(0.2, 1.0)),
    "reduced": RandomResizedCrop(16, scale=(0.5, 1.0)),
    "place": RandomCrop(48),
    "whole": Resize(Size(50, 70)),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build 20 images in two classes, each with a palette mask, a map of 16 bits, and a copy of the image as JPEG."""
    rng = np.random.default_rng(0)
    images: dict[str, Any] = {}
    for number in range(SAMPLES):
        coarse = rng.integers(0, 4, (6, 8)) if number else np.zeros((6, 8), np.int64)
        numbers = np.kron(coarse, np.ones((16, 20), np.int64))
        name = f"{'ab'[number % 2]}/{number:02d}.png"
        mask = Image.fromarray(CLASSES[numbers])
        mask.putpalette(rng.integers(0, 256, 768).astype(np.uint8).tobytes())
        images |= {name: COLORS[numbers], f"again/{name}": COLORS[numbers], f"masks/{name}": mask}
        images[f"far/{name}"] = CLASSES[numbers].astype(np.uint16) * 257
    options = BuildOptions(
        ImageOptions(sizes=(Size(64, 64),)),
        companions=(
            Companion("mask", "masks/{dir}/{stem}.png"),
            Companion("far", "far/{dir}/{stem}.png"),
            Companion("again", "again/{dir}/{name}", format="jpeg", filter="bicubic"),
        ),
    )
    return build_images(tmp_path_factory.mktemp("pairs"), images, options, ROWS)


def nearest(values: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int], flip: bool) -> np.ndarray:
    """Return the pixel under the centre of each target pixel, one by one."""
    top, left, height, width = box
    found = np.empty(size, values.dtype)
    for y in range(size[0]):
        for x in range(size[1]):
            row, column = top + (2 * y + 1) * height // (2 * size[0]), left + (2 * x + 1) * width // (2 * size[1])
            found[y, size[1] - 1 - x if flip else x] = values[row, column]
    return found


@pytest.mark.parametrize("name", CROPS)
def test_a_cropped_mask_has_the_nearest_stored_pixel_everywhere(name: str, pairs: Path) -> None:
    data = LMDBDataset(pairs, decode="numpy", crop=CROPS[name], flip=0.5, companions=("mask", "far"), target=None)
    stored = dict(data.data.companion("mask").pixels(range(SAMPLES)))
    loader = Loader(data, SAMPLES, shuffle=True, seed=2, num_workers=0)
    ((_, masks, far),) = loader
    samples = loader.sampler.order.samples(0, np.arange(SAMPLES))
    reader = BatchReader(data.data, CROPS[name], 0.5)
    shown = reader.shown(samples, 2, 0, loader.sampler.order.keys(0, np.arange(SAMPLES)))
    assert {one.flip for one in shown} == {False, True}
    for at, (sample, one) in enumerate(zip(samples.tolist(), shown, strict=True)):
        expected = nearest(stored[sample], *one)
        assert np.array_equal(masks[at].numpy(), expected)
        assert np.array_equal(far[at].numpy(), expected.astype(np.uint16) * 257)


@pytest.mark.parametrize("name", CROPS)
def test_after_a_crop_a_mask_still_fits_its_image(name: str, pairs: Path) -> None:
    data = LMDBDataset(pairs, decode="tensor", crop=CROPS[name], flip=0.5, target=None)
    agreeing = []
    for image, again, _, mask in data:
        distances = (image[None].float() - torch.from_numpy(COLORS)[:, :, None, None].float()).pow(2).sum(dim=1)
        seen = torch.from_numpy(CLASSES)[distances.argmin(dim=0)]
        agreeing.append((seen == mask).float().mean().item())
        assert (image.int() - again.int()).abs().float().mean() < 12
    assert np.mean(agreeing) > 0.9 and min(agreeing) > 0.75  # all but pixels on an edge


def test_all_companions_are_returned_in_the_order_of_their_names_with_the_target(pairs: Path) -> None:
    data = LMDBDataset(pairs)
    assert data.companions == ("again", "far", "mask")
    (image, again, far, mask), label = data[11]
    assert (image.mode, again.mode, far.mode, mask.mode, label) == ("RGB", "RGB", "I;16", "L", 1)
    assert image.size == again.size == far.size == mask.size
    forms: tuple[tuple[Any, Any], ...] = ("numpy", np), ("tensor", torch)
    for decode, of in forms:
        parts = LMDBDataset(pairs, decode=decode, target=None)[11]
        assert [part.dtype for part in parts] == [of.uint8, of.uint8, of.uint16, of.uint8]
        assert [part.ndim for part in parts] == [3, 3, 2, 2]
    values = LMDBDataset(pairs, decode="bytes", target=None)[11]
    assert values[3] == data.data.companion("mask").value(11)
    image, label = LMDBDataset(pairs, decode="numpy", companions=())[3]
    assert image.shape == (64, 106, 3) and label == 1


def test_the_transform_is_called_with_the_image_only(pairs: Path) -> None:
    data = LMDBDataset(pairs, lambda image: image.size, companions=("mask",), crop=CenterCrop(32))
    (size, mask), _ = data[0]
    assert size == (32, 32) and mask.size == (32, 32)


def draws(batches: Any) -> list[Any]:
    found = []
    for parts, targets in batches:
        assert len(parts[0]) == len(targets)
        found += list(zip(*([row.numpy().tobytes() for row in part] for part in parts), targets.tolist(), strict=True))
    return found


def test_normalization_leaves_masks_unchanged(pairs: Path) -> None:
    data = LMDBDataset(pairs, decode="tensor", crop=Resize(32), companions=("again", "mask"), target=None)
    ((images, again, masks),) = Loader(data, SAMPLES, num_workers=0)
    loader = Loader(data, SAMPLES, num_workers=1, normalize=((0.5,) * 3, (0.25,) * 3))
    with loader:
        ((normalized, same, others),) = loader
    assert torch.allclose(normalized, (images / 255 - 0.5) / 0.25, atol=1e-6)
    assert torch.equal(same, again) and torch.equal(others, masks)


def test_a_subset_a_sum_and_a_copy_keep_their_companions(pairs: Path) -> None:
    data = LMDBDataset(pairs, decode="tensor", crop=Resize(32))
    whole = draws(Loader(data, SAMPLES, num_workers=0))
    parts = [LMDBDataset(pairs, decode="tensor", crop=Resize(32)) for _ in range(2)]
    both = torch.utils.data.ConcatDataset([parts[0].subset(range(5, SAMPLES)), parts[1].subset(range(5))])
    assert draws(Loader(both, SAMPLES, num_workers=0)) == whole[5:] + whole[:5]
    assert draws(Loader(pickle.loads(pickle.dumps(data)), SAMPLES, num_workers=0)) == whole


def test_a_damaged_mask_also_skips_its_image(pairs: Path, tmp_path: Path) -> None:
    shutil.copytree(pairs, tmp_path / "copy")
    value = Dataset(pairs).companion("mask").value(3)
    shards = {path: path.read_bytes() for path in (tmp_path / "copy" / "shards").glob("mask-*.lmdb")}
    ((shard, content),) = [(path, content) for path, content in shards.items() if value in content]
    shard.write_bytes(content.replace(value, value[:-20] + bytes([value[-20] ^ 4]) + value[-19:]))
    damaged = LMDBDataset(tmp_path / "copy", decode="tensor", crop=Resize(32), companions=("mask",))
    with pytest.raises(DatasetError, match=r"sample 3 \(.*\) of .* is damaged"):
        list(Loader(damaged, SAMPLES, num_workers=0))
    loader = Loader(damaged, SAMPLES, num_workers=0, on_error="skip")
    (((images, masks), targets),) = loader
    assert len(images) == len(masks) == len(targets) == SAMPLES - 1 and loader.skipped == 1
    (((expected, whole), labels),) = Loader(
        LMDBDataset(pairs, decode="tensor", crop=Resize(32), companions=("mask",)), SAMPLES, num_workers=0
    )
    left = [i for i in range(SAMPLES) if i != 3]
    assert torch.equal(images, expected[left]) and torch.equal(masks, whole[left])
    assert torch.equal(targets, labels[left])


def test_unknown_companions_and_several_views_are_refused(pairs: Path) -> None:
    with pytest.raises(DatasetError, match="no companion 'depth'"):
        LMDBDataset(pairs, companions=("depth",))
    views = [CenterCrop(8), CenterCrop(9)]
    with pytest.raises(OptionError, match="crop: companions come with one view of their image, got 2"):
        LMDBDataset(pairs, crop=views)
    assert len(LMDBDataset(pairs, crop=views, companions=())[0][0]) == 2


class TwoCrops:
    """A transform like MoCo's TwoCropsTransform."""

    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        return [self.base_transform(x), self.base_transform(x)]


def test_nothing_is_fused_of_several_views_of_an_image_with_companions(pairs: Path) -> None:
    steps = [torchvision_like.CenterCrop(24), torchvision_like.RandomHorizontalFlip(1.0), torchvision_like.ToTensor()]
    transform = TwoCrops(torchvision_like.Compose(steps))
    with pytest.warns(PresizeWarning, match="companions come with one view of their image"):
        fused = LMDBDataset(pairs, transform, fuse=True, companions=("mask",))
    assert (fused.crop, fused.flip) == (None, 0.0)
    ours, theirs = (data[1][0] for data in (fused, LMDBDataset(pairs, transform, companions=("mask",))))
    assert all(map(torch.equal, ours[0], theirs[0])) and np.array_equal(ours[1], theirs[1])


def test_rgb_masks_are_cropped_like_others(pairs: Path, tmp_path: Path) -> None:
    options = replace(
        BuildOptions(ImageOptions(sizes=(Size(64, 64),))), companions=(Companion("copy", "again/{dir}/{name}"),)
    )
    build_dataset(
        pairs.parent / "raw", tmp_path / "out", options, SERIAL, SourceOptions(labels=pairs.parent / "table.jsonl")
    )
    (_, copy), _ = LMDBDataset(tmp_path / "out", decode="tensor")[0]
    assert copy.shape == (3, 64, 106)
    (_, part), _ = LMDBDataset(tmp_path / "out", crop=CenterCrop(8), flip=1.0, decode="tensor")[0]
    assert torch.equal(part, copy[:, 28:36, 49:57].flip(2))
    (images, masks), _ = next(iter(Loader(LMDBDataset(tmp_path / "out"), 2, crop=CenterCrop(8), num_workers=0)))
    assert images.shape == masks.shape == (2, 3, 8, 8) and torch.equal(masks[0], copy[:, 28:36, 49:57])


def test_grey_masks_among_rgb_masks_are_warned_of_and_refused_with_a_crop(tmp_path: Path) -> None:
    for name, mode in (("a", "L"), ("b", "RGB"), ("c", "L")):
        for folder in ("raw", "raw/masks"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.new(mode, (40, 40), 7 if mode == "L" else (7, 8, 9)).save(tmp_path / folder / f"{name}.png")
    options = BuildOptions(ImageOptions(sizes=(Size(32, 32),)), companions=(Companion("mask", "masks/{name}"),))
    with pytest.warns(PresizeWarning, match="mask: 1 of 3 masks are RGB, and the others have one channel"):
        build_dataset(tmp_path / "raw", tmp_path / "out", options, SERIAL, SourceOptions(labels="none"))
    _, mask = LMDBDataset(tmp_path / "out", decode="numpy")[1]
    assert mask.shape == (32, 32, 3)
    with pytest.raises(OptionError, match="companions: 1 of 3 masks of 'mask'"):
        LMDBDataset(tmp_path / "out", crop=CenterCrop(8))


def test_parts_with_grey_and_with_rgb_masks_are_not_read_as_one(tmp_path: Path) -> None:
    parts = []
    for name, mode in (("a", "L"), ("b", "RGB")):
        for number in range(2):
            mask_path = tmp_path / name / "masks" / f"{number}.png"
            mask_path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40)).save(tmp_path / name / f"{number}.png")
            Image.new(mode, (40, 40), 7 if mode == "L" else (7, 8, 9)).save(mask_path)
        options = BuildOptions(ImageOptions(sizes=(Size(32, 32),)), companions=(Companion("mask", "masks/{name}"),))
        build_dataset(tmp_path / name, tmp_path / f"{name}-out", options, SERIAL, SourceOptions(labels="none"))
        parts.append(LMDBDataset(tmp_path / f"{name}-out", crop=CenterCrop(8), decode="tensor"))
    both = torch.utils.data.ConcatDataset(parts)
    with pytest.raises(OptionError, match="companions: 2 of 4 masks of 'mask'"):
        Loader(both, 4, num_workers=0)
    ((_, masks),) = make_loader(both, 4, num_workers=0)
    assert [tuple(mask.shape) for mask in masks] == [(8, 8), (8, 8), (3, 8, 8), (3, 8, 8)]
