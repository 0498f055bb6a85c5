"""Boxes, keypoints and masks as torchvision's tensors, and crops fused from its transforms."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builds import build_images
from presize.datasets import LMDBDataset, Resize, collate
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size
from torchvisions import torchvision_or_skip

transforms, v2 = torchvision_or_skip()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build four images with a white rectangle, and its box, mask and two keypoints."""
    images, rows = {}, []
    for number in range(4):
        mask = np.zeros((64, 64), np.uint8)
        mask[10 + number : 40, 8:30] = 1
        images |= {f"{number}.png": np.repeat(mask[:, :, None] * 255, 3, axis=2), f"masks/{number}.png": mask}
        box = [8, 10 + number, 30, 40]
        rows.append({"path": f"{number}.png", "bbox": [box], "points": [box]})
    options = BuildOptions(
        ImageOptions(sizes=(Size(64, 64),), format="png"),
        companions=(Companion("mask", "masks/{name}"),),
        boxes=(Coordinates("bbox", "xyxy"),),
        keypoints=(Coordinates("points", "xy"),),
    )
    return build_images(tmp_path_factory.mktemp("scene"), images, options, rows)


@pytest.mark.parametrize("crop", [None, Resize(64)])
def test_transforms_move_each_according_to_its_type(crop: Any, scene: Path) -> None:
    kinds = importlib.import_module("torchvision.tv_tensors")
    data = LMDBDataset(
        scene, target={"boxes": "bbox", "points": "points"}, decode="tensor", crop=crop, tv_tensors=True
    )  # fmt: skip
    (image, mask), target = v2.RandomHorizontalFlip(1.0)(*data[1])
    assert mask[:, 56:].sum() == 0 and mask[20, 34:56].all()  # mirrored
    assert isinstance(mask, kinds.Mask) and isinstance(target["boxes"], kinds.BoundingBoxes)
    assert target["boxes"].tolist() == [[34, 11, 56, 40]] and target["boxes"].canvas_size == (64, 64)
    assert torch.equal(mask, (image[0] > 127).to(torch.uint8))
    if hasattr(kinds, "KeyPoints"):
        assert target["points"].tolist() == [[[55, 11], [33, 40]]]  # torchvision counts pixels, while boxes have edges


def test_they_pass_through_a_dataloader(scene: Path) -> None:
    data = LMDBDataset(scene, target={"boxes": "bbox"}, decode="tensor", crop=Resize(32), tv_tensors=True)
    for workers in (0, 1):
        loader = torch.utils.data.DataLoader(data, 4, num_workers=workers, collate_fn=collate)
        (((images, masks), targets),) = loader
        assert images.shape == (4, 3, 32, 32) and masks.shape == (4, 32, 32)
        assert [tuple(boxes.shape) for boxes in targets["boxes"]] == [(1, 4)] * 4


def test_a_crop_fused_from_a_transform_moves_masks_and_boxes(scene: Path) -> None:
    transform = transforms.Compose(
        [transforms.CenterCrop(32), transforms.RandomHorizontalFlip(1.0), transforms.ToTensor()]
    )
    data = LMDBDataset(scene, transform, target="bbox", fuse=True)
    (image, mask), boxes = data[0]
    assert image.shape == (3, 32, 32) and boxes.tolist() == [[18, 0, 32, 24]]
    assert torch.equal(image[0].to(torch.uint8), mask)
