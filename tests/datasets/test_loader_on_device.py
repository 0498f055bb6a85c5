"""A Loader whose batches go to a device, which here is one of tests' own, and crops that grow from epoch to epoch."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from late_cuda import LateCuda

from builds import build_images
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from presize.errors import OptionError
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size

NORMALIZE = ((0.5,) * 3, (0.2,) * 3)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> LateCuda:
    return LateCuda(monkeypatch)


@pytest.fixture(params=[0, 2], ids=["this thread", "processes"])
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"num_workers": request.param}


def thirds(image: Any) -> Any:
    return {"small": torch.tensor(np.asarray(image)[::3] / 255.0), "mean": float(np.asarray(image).mean())}


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


KINDS: dict[str, dict[str, Any]] = {
    "uint8": {},
    "threads": {"mode": "threads"},
    "views": {"crop": [RandomResizedCrop(24), RandomResizedCrop(12)]},
    "a transform": {"transform": thirds},
    "a transform of normalized images": {"transform": torch.neg, "normalize": NORMALIZE},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_batches_on_a_device_are_those_on_the_cpu(
    kind: dict[str, Any], how: dict[str, Any], cuda: LateCuda, dataset: Path
) -> None:
    options: dict[str, Any] = {"crop": RandomResizedCrop(24), "flip": 0.5, "shuffle": True, "seed": 5, **kind}
    data = LMDBDataset(dataset)
    with Loader(data, 8, device="cuda", **options, **how) as loader:
        found = list(loader)  # kept, so that memory that was used again would show
        assert sum(cuda.pinned.values()) and cuda.copies >= 7 and loader.pin_memory
    same(found, list(Loader(data, 8, **options, num_workers=0)))
    del found
    gc.collect()
    assert cuda.problems == [] and not cuda.pinned


def grown(loader: Loader, other: Loader, crop: Any, epoch: int) -> list[Any]:
    """An epoch of `loader` with another crop, which is what `other`, made with that, gives."""
    loader.crop = crop
    other.set_epoch(epoch)
    batches = list(loader)
    same(batches, list(other))
    return batches


CROPS: list[Any] = [RandomResizedCrop(40), [RandomResizedCrop(48), CenterCrop(12)], RandomResizedCrop(20)]


@pytest.mark.parametrize(
    "options", [{}, {"normalize": NORMALIZE}, {"transform": thirds}], ids=["uint8", "float", "rest"]
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_crop_grows_and_shrinks_from_epoch_to_epoch(
    device: str, options: dict[str, Any], how: dict[str, Any], cuda: LateCuda, dataset: Path
) -> None:
    data = LMDBDataset(dataset)
    options = {"flip": 0.5, "shuffle": True, "seed": 5, **options}
    with Loader(data, 8, crop=RandomResizedCrop(24), device=device, **options, **how) as loader:
        kept = list(loader)
        for epoch, crop in enumerate(CROPS, 1):
            grown(loader, Loader(data, 8, crop=crop, num_workers=0, **options), crop, epoch)
        same(kept, list(Loader(data, 8, crop=RandomResizedCrop(24), num_workers=0, **options)))
    del kept, loader
    gc.collect()
    assert cuda.problems == [] and not cuda.pinned


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images with a mask and two boxes."""
    rng = np.random.default_rng(0)
    names = [f"{number}.png" for number in range(12)]
    images = {name: np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8) for name in names}
    images |= {f"masks/{name}": images[name][:, :, 0] // 64 for name in names}
    rows = [{"path": name, "label": 0, "bbox": [[4, 8, 30, 20], [20, 20, 40, 40]]} for name in names]
    options = BuildOptions(
        ImageOptions(sizes=(Size(64, 64),)),
        boxes=(Coordinates("bbox", "xywh"),),
        companions=(Companion("mask", "masks/{name}"),),
    )
    return build_images(tmp_path_factory.mktemp("objects"), images, options, rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_boxes_and_companions_follow_a_crop_that_grows(
    device: str, how: dict[str, Any], cuda: LateCuda, objects: Path
) -> None:
    data = LMDBDataset(objects, target={"boxes": "bbox", "label": "label"})
    options: dict[str, Any] = {"flip": 0.5, "shuffle": True, "seed": 5}
    with Loader(data, 4, crop=RandomResizedCrop(16), device=device, **options, **how) as loader:
        for number, ((image, mask), target) in enumerate(loader):
            assert image.shape[2:] == mask.shape[1:] == (16, 16)
            assert max(boxes.max().item() for boxes in target["boxes"] if len(boxes)) <= 16
            if number == 1:
                loader.crop = RandomResizedCrop(48)  # of the next epoch
        for epoch, side in ((1, 48), (2, 32)):
            crop = RandomResizedCrop(side)
            found = grown(loader, Loader(data, 4, crop=crop, num_workers=0, **options), crop, epoch)
            assert {batch[0][1].shape[1:] for batch in found} == {(side, side)}
        with pytest.raises(OptionError, match="crop: companions come with one view of their image, got 2"):
            loader.crop = [crop, crop]
        assert loader.crop == crop and len(list(loader)) == 3
    assert cuda.problems == []


def test_an_epoch_goes_on_with_the_crop_that_it_began_with(how: dict[str, Any], cuda: LateCuda, dataset: Path) -> None:
    data = LMDBDataset(dataset)
    options: dict[str, Any] = {"shuffle": True, "seed": 5}
    with Loader(data, 8, crop=RandomResizedCrop(24), device="cuda", **options, **how) as loader:
        batches = iter(loader)
        found = [next(batches)]
        for side in (64, 8, 40):
            loader.crop = RandomResizedCrop(side)
            found.append(next(batches))
        found += batches
        same(found, list(Loader(data, 8, crop=RandomResizedCrop(24), num_workers=0, **options)))
        assert next(iter(loader))[0].shape == (8, 3, 40, 40)
    assert cuda.problems == []


def test_an_epoch_that_is_left_early_leaves_no_copy_on_its_way(
    how: dict[str, Any], cuda: LateCuda, dataset: Path
) -> None:
    data = LMDBDataset(dataset)
    loader = Loader(data, 8, crop=RandomResizedCrop(24), device="cuda", **how)
    for side in (24, 56, 16):
        loader.crop = RandomResizedCrop(side)
        for images, _ in loader:
            assert images.shape[2] == side
            break
    loader.close()
    del images
    gc.collect()
    assert cuda.problems == [] and not cuda.pinned
