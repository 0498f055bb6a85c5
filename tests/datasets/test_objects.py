"""Boxes and keypoints, moved with the crop of their image."""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from builds import SERIAL, build_images
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomCrop, RandomResizedCrop, Resize
from presize.errors import DatasetError, OptionError
from presize.options import BuildOptions, Coordinates, ImageOptions, Size, SourceOptions
from tampering import overwrite_value, read_table, write_table

BOXES = [Coordinates("bbox", "xywh")]
SIDE = 96
CROPS = {
    "random": RandomResizedCrop(48, scale=(0.3, 1.0)),
    "exact": RandomResizedCrop(48, scale=(0.3, 1.0), exact=True),
    "place": RandomCrop(64),
    "whole": Resize(Size(50, 70)),
}
TARGET = ("bbox", "color", "name", "points")


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build 24 black images of 144×96, each with up to 3 rectangles, red, green and blue, whose boxes are in the table.

    Each object has two keypoints, the middles of its left and right edges.
    """
    rng = np.random.default_rng(0)
    images, rows = {}, []
    for number in range(24):
        pixels = np.zeros((SIDE, 144, 3), np.uint8)
        row: dict[str, Any] = {"path": f"{number:02d}.png", "whole": [1], "bbox": [], "color": [], "name": []}
        for k in range(number % 4):
            x, y = 48 * k + int(rng.integers(0, 10)), int(rng.integers(0, 50))
            w, h = int(rng.integers(12, 36)), int(rng.integers(12, 44))
            pixels[y : y + h, x : x + w, k] = 255
            row["bbox"].append([x, y, w, h])
            row["color"].append(k)
            row["name"].append(f"color {k}")
        row["points"] = [[x, y + h / 2, 2, x + w, y + h / 2, 2] for x, y, w, h in row["bbox"]]
        images[row["path"]] = pixels
        rows.append(row)
    options = BuildOptions(
        ImageOptions(sizes=(Size(SIDE, SIDE),), format="png"),
        boxes=tuple(BOXES),
        keypoints=(Coordinates("points", "xyv"),),
    )
    return build_images(tmp_path_factory.mktemp("objects"), images, options, rows)


def seen(image: torch.Tensor, color: int) -> list[int]:
    """Return the box of a colour, to a pixel, because resizing blurs its edges."""
    rows, columns = torch.nonzero(image[color] > 127, as_tuple=True)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


@pytest.mark.parametrize("name", CROPS)
def test_boxes_mark_their_objects_after_a_crop_and_a_flip(name: str, painted: Path) -> None:
    crop = CROPS[name]
    data = LMDBDataset(painted, target=TARGET, decode="tensor", crop=crop, flip=0.5)
    clipped = 0
    for _ in range(3):
        for image, (boxes, colors, names, _) in data:
            assert boxes.shape == (len(colors), 4) and boxes.dtype == torch.float32 and colors.dtype == torch.int64
            assert names == [f"color {color}" for color in colors.tolist()]
            height, width = image.shape[1:]
            for (x1, y1, x2, y2), color in zip(boxes.tolist(), colors.tolist(), strict=True):
                assert 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height
                clipped += x1 == 0 or x2 == width
                if x2 - x1 > 5 and y2 - y1 > 5:
                    assert np.allclose(seen(image, color), [x1, y1, x2, y2], atol=1.01), color
    assert clipped or name == "whole"


def test_every_visible_object_has_its_box(painted: Path) -> None:
    data = LMDBDataset(painted, target=("color", "bbox"), decode="tensor", crop=RandomCrop(40))
    for image, (colors, _) in [data[i] for i in range(len(data)) for _ in range(3)]:
        assert {color for color in range(3) if image[color].any()} == set(colors.tolist())


def test_keypoints_move_with_their_object_and_swap_when_mirrored(painted: Path) -> None:
    sides: dict[float, list[torch.Tensor]] = {}
    for flip in (0.0, 1.0):
        data = LMDBDataset(painted, target=TARGET, decode="tensor", crop=Resize(SIDE), flip=flip, flip_pairs=[(0, 1)])
        sides[flip] = [points for _, (boxes, _, _, points) in data if len(boxes)]
        for _, (boxes, _, _, points) in data:
            assert points.shape == (len(boxes), 2, 3)
            assert torch.allclose(points[:, :, 0], boxes[:, [0, 2]])  # the left point is left in both
            assert torch.allclose(points[:, :, 1], boxes[:, [1, 3]].mean(dim=1, keepdim=True).expand(-1, 2))
            assert (points[:, :, 2] == 2).all()
    assert not torch.equal(sides[0.0][0], sides[1.0][0])


@pytest.mark.parametrize("pairs", [zip([0], [1], strict=True), np.array([[0, 1], [1, 0]])], ids=["iterator", "array"])
def test_copies_swap_the_same_pairs(pairs: Any, painted: Path) -> None:
    def left_and_right(data: LMDBDataset) -> list[list[float]]:
        return [points[:, :, 0].tolist() for _, points in data]

    how: Any = {"target": "points", "crop": Resize(SIDE), "flip": 1.0}
    data = LMDBDataset(painted, flip_pairs=pairs, **how)
    expected = left_and_right(LMDBDataset(painted, flip_pairs=[(0, 1)], **how))
    assert left_and_right(data) == left_and_right(copy.copy(data)) == expected


def test_without_pairs_a_keypoint_keeps_its_index(painted: Path) -> None:
    data = LMDBDataset(painted, target=TARGET, decode="tensor", crop=Resize(SIDE), flip=1.0)
    for _, (boxes, _, _, points) in data:
        assert torch.allclose(points[:, :, 0], boxes[:, [2, 0]])


def test_keypoints_outside_the_crop_are_not_visible(painted: Path) -> None:
    data = LMDBDataset(painted, target=TARGET, decode="tensor", crop=RandomCrop(30))
    points = torch.cat([sample[1][3] for sample in [data[i] for _ in range(4) for i in range(len(data))]])
    hidden = points[:, :, 2] == 0
    assert hidden.any() and not hidden.all()
    assert (points[hidden] == 0).all()
    assert (points[~hidden][:, :2] >= 0).all() and (points[~hidden][:, :2] <= 30).all()


def test_keypoints_without_boxes_lose_no_object(painted: Path) -> None:
    data = LMDBDataset(painted, target="points", decode="tensor", crop=RandomCrop(20))
    assert [len(points) for _, points in data] == [i % 4 for i in range(24)]


def test_whole_images_have_their_boxes_in_every_form(painted: Path) -> None:
    for decode in ("pil", "numpy", "tensor", "bytes"):
        data = LMDBDataset(painted, target=("bbox", "color"), decode=decode)
        assert [len(boxes) for _, (boxes, _) in data] == [i % 4 for i in range(24)]
    assert np.allclose(data[1][1][0], LMDBDataset(painted, target="bbox", crop=Resize((SIDE, 144)))[1][1])


def draws(batches: Any) -> list[Any]:
    return [
        (image.numpy().tobytes(), boxes.tolist(), colors.tolist(), points.tolist())
        for images, targets in batches
        for image, boxes, colors, points in zip(images, *targets, strict=True)
    ]


def test_a_subset_and_a_sum_keep_their_boxes(painted: Path) -> None:
    data = LMDBDataset(painted, target=("bbox", "color", "points"), decode="tensor", crop=Resize(SIDE))
    whole = draws(Loader(data, 24, num_workers=0))
    parts = torch.utils.data.ConcatDataset([data.subset(range(5, 24)), LMDBDataset(
        painted, target=("bbox", "color", "points"), decode="tensor", crop=Resize(SIDE)
    ).subset(range(5))])  # fmt: skip
    assert draws(Loader(parts, 24, num_workers=0)) == whole[5:] + whole[:5]


def test_a_crop_of_background_has_empty_boxes(painted: Path) -> None:
    data = LMDBDataset(painted, target=("bbox", "color", "name", "points"), decode="tensor", crop=CenterCrop(8))
    boxes, colors, names, points = next(target for _, target in data if not len(target[0]))
    assert boxes.shape == (0, 4) and colors.shape == (0,) and names == [] and points.shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": ("bbox", "whole")}, "00.png has 1 in 'whole' and 0 in 'bbox'; leave one of them out"),
        ({"target": ("bbox",), "flip_pairs": [(0, 1)]}, "flip_pairs: target has no column of keypoints"),
        ({"target": "points", "flip_pairs": [(1, 2)]}, r"flip_pairs: \(1, 2\) are not two of the 2 points"),
        (
            {"target": "points", "flip_pairs": (0, 1)},
            r"flip_pairs: expected pairs of keypoint numbers, .* got \(0, 1\)",
        ),
        (
            {"target": "points", "flip_pairs": ["ab"]},
            r"flip_pairs: expected pairs of keypoint numbers, .* got \['ab'\]",
        ),
        ({"target": "points", "flip_pairs": [(0, 1), (1, 1)]}, "flip_pairs: expected each point in one pair"),
        ({"target": "bbox", "crop": [CenterCrop(8), CenterCrop(9)]}, "crop: boxes and keypoints move with one crop"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str, painted: Path) -> None:
    with pytest.raises(OptionError, match=said):
        LMDBDataset(painted, **options)
    if "crop" in options:
        with pytest.raises(OptionError, match=said):
            Loader(LMDBDataset(painted, target="bbox"), 4, crop=options["crop"])


def test_lists_without_boxes_stay_complete(painted: Path) -> None:
    data = LMDBDataset(painted, target=("color", "name"), crop=CenterCrop(8))
    assert [len(colors) for _, (colors, _) in data] == [i % 4 for i in range(24)]


def test_the_target_transform_gets_the_moved_boxes(painted: Path) -> None:
    count: Callable[[Any], int] = len
    data = LMDBDataset(painted, target_transform=count, target="bbox", decode="tensor", crop=CenterCrop(8))
    (batch,) = Loader(data, 24, num_workers=0)
    assert batch[1].tolist() == [data[i][1] for i in range(24)]


def test_boxes_match_when_damaged_images_are_skipped(painted: Path, tmp_path: Path) -> None:
    options = BuildOptions(ImageOptions(sizes=(Size(SIDE, SIDE),)), boxes=tuple(BOXES))
    table = SourceOptions(labels=painted.parent / "table.jsonl")
    build_dataset(painted.parent / "raw", tmp_path / "whole", options, SERIAL, table)
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    overwrite_value(tmp_path / "damaged", 5)

    def read(name: str) -> dict[str, Any]:
        data = LMDBDataset(tmp_path / name, target=("bbox", "path"), decode="tensor", crop=CROPS["exact"], flip=0.5)
        loader = Loader(data, 24, shuffle=True, seed=1, num_workers=0, on_error="skip")
        return {path: boxes for _, (boxes, paths) in loader for path, boxes in zip(paths, boxes, strict=True)}

    expected, found = read("whole"), read("damaged")
    assert found.keys() == expected.keys() - {"05.png"}
    assert all(torch.equal(boxes, expected[path]) for path, boxes in found.items())


@pytest.mark.parametrize("change", ["type", "null", "width"])
def test_a_damaged_column_of_boxes_is_an_error(change: str, painted: Path, tmp_path: Path) -> None:
    shutil.copytree(painted, tmp_path / "out")
    table = read_table(tmp_path / "out")
    kinds = {"type": pa.large_list(pa.large_list(pa.float32())), "width": pa.large_list(pa.list_(pa.float32(), 3))}
    wrong = {"type": [[1, 2, 3, 4]], "null": [[1, None, 3, 4]], "width": [[1, 2, 3]]}
    column = pa.array([wrong[change]] * len(table), kinds.get(change, table.schema.field("bbox").type))
    write_table(tmp_path / "out", table.set_column(table.column_names.index("bbox"), "bbox", column))
    with pytest.raises(DatasetError, match="is damaged"):
        LMDBDataset(tmp_path / "out", target="bbox")


def test_tv_tensors_without_torchvision_are_refused(painted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.tv_tensors", None)
    with pytest.raises(OptionError, match="tv_tensors: needs torchvision, which is not installed"):
        LMDBDataset(painted, target="bbox", tv_tensors=True)
