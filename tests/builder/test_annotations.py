"""Boxes and keypoints of the label table, in pixels of the stored images."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from builds import UPDATE, Builder
from presize.builder.annotations import check_annotations, scaled
from presize.codecs.resize import target
from presize.datasets import LMDBDataset
from presize.errors import OptionError, PresizeWarning, SourceError
from presize.options import BuildOptions, Coordinates, Fit, ImageOptions, Size, SourceOptions

BOXES = BuildOptions(ImageOptions(sizes=(Size(32, 32),)), boxes=(Coordinates("bbox", "xyxy"),))
sides = st.integers(1, 90)


def options_of(fit: Fit, upscale: bool, *sizes: Size) -> BuildOptions:
    return replace(BOXES, image=ImageOptions(sizes=sizes, fit=fit, upscale=upscale))


def slowly(box: list[int], source: Size, wanted: Size, fit: Fit, upscale: bool) -> list[float]:
    """Transform a box corner by corner, in exact arithmetic."""
    used, size, canvas = target(source, wanted, fit, upscale)
    height, width = canvas or size
    out = []
    for corner, (start, length, new, whole, limit) in zip(
        box,
        2 * [
            (used.left, used.width, size.width, width, source.width),
            (used.top, used.height, size.height, height, source.height),
        ],
        strict=True,
    ):  # fmt: skip
        place = (min(max(corner, 0), limit) - Fraction(start)) / Fraction(length) * new + (whole - new) // 2
        out.append(float(min(max(place, Fraction(0)), Fraction(whole))))
    return out


@given(st.data(), st.sampled_from(["shorter", "longer", "stretch", "crop", "pad"]), st.booleans(), sides, sides)
def test_boxes_are_scaled_like_a_slow_reference(
    data: st.DataObject, fit: Fit, upscale: bool, height: int, width: int
) -> None:
    sources = data.draw(st.lists(st.tuples(sides, sides), min_size=1, max_size=5))
    corners = st.tuples(st.integers(-5, 90), st.integers(-5, 90), st.integers(1, 60), st.integers(1, 60))
    boxes = [[[x, y, x + w, y + h] for x, y, w, h in data.draw(st.lists(corners, max_size=4))] for _ in sources]
    heights, widths = np.array(sources, np.int64).T
    table = pa.table({"bbox": pa.array(boxes, pa.large_list(pa.large_list(pa.int64())))})
    wanted = Size(height, width)
    found = scaled(table, options_of(fit, upscale, wanted), wanted, heights, widths).column("bbox").to_pylist()
    expected = [
        [slowly(box, Size(*source), wanted, fit, upscale) for box in some]
        for some, source in zip(boxes, sources, strict=True)
    ]
    assert [len(some) for some in found] == [len(some) for some in expected]
    assert np.allclose([box for some in found for box in some], [box for some in expected for box in some], atol=1e-3)


def painted(path: Path, height: int, width: int, box: list[int]) -> None:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    Image.fromarray(pixels).save(path)


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    """Return builds of three black PNGs with a white rectangle each, one of them rotated by EXIF."""
    folder = tmp_path / "raw"
    folder.mkdir()
    painted(folder / "a.png", 60, 100, [20, 10, 60, 40])
    painted(folder / "b.png", 100, 60, [5, 30, 25, 90])
    upright = np.zeros((60, 100, 3), np.uint8)
    upright[10:40, 20:60] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(upright)).save(folder / "c.jpg", exif=exif, quality=95, subsampling=0)
    return Builder(folder, BOXES)


def write_rows(build: Builder, rows: list[dict[str, Any]]) -> None:
    """Make builds read this label table."""
    build.samples = SourceOptions(build.out.with_name("table.jsonl"))
    build.out.with_name("table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


PAINTED = [
    {"path": "a.png", "bbox": [[20, 10, 60, 40]], "points": [[20, 10, 60, 40]]},
    {"path": "b.png", "bbox": [[5, 30, 25, 90]], "points": [[5, 30, 25, 90]]},
    {"path": "c.jpg", "bbox": [[20, 10, 60, 40]], "points": [[20, 10, 60, 40]]},
]


def in_shares(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in fractions of the upright images."""
    sides = {"a.png": (100, 60), "b.png": (60, 100), "c.jpg": (100, 60)}
    names = ("bbox", "points")
    return [
        {"path": row["path"]}
        | {name: (np.array(row[name]) / (sides[row["path"]] * 2)).tolist() for name in names}
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["", "%"])
@pytest.mark.parametrize("fit", ["shorter", "longer", "stretch", "crop", "pad"])
def test_a_box_marks_its_object_in_every_stored_size(fit: Fit, unit: str, build: Builder) -> None:
    sizes = Size(40, 40), Size(72, 50)
    write_rows(build, in_shares(PAINTED) if unit else PAINTED)
    build.options = BuildOptions(
        ImageOptions(sizes=sizes, fit=fit, format="png"),
        boxes=(Coordinates("bbox", f"xyxy{unit}"),),
        keypoints=(Coordinates("points", f"xy{unit}"),),
    )
    build()
    for size in sizes:
        data = build.data(f"out/{size}")
        boxes, points = data.column("bbox").to_pylist(), data.column("points").to_pylist()
        for sample, pixels in data.pixels(range(3)):
            rows, columns = np.nonzero(pixels[:, :, 0] > 127)
            seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.allclose(boxes[sample], seen, atol=1.01), sample
            height, width = pixels.shape[:2]
            assert np.allclose(np.clip(points[sample], 0, [width, height] * 2), boxes[sample], atol=1e-4)


@pytest.mark.parametrize(
    ("format", "box"),
    [
        ("xywh", [20, 10, 40, 30]),
        ("cxcywh", [40, 25, 40, 30]),
        ("xyxy%", [0.2, 1 / 6, 0.6, 2 / 3]),
        ("xywh%", [0.2, 1 / 6, 0.4, 0.5]),
        ("cxcywh%", [0.4, 2.5 / 6, 0.4, 0.5]),
    ],
)
def test_all_formats_give_the_same_boxes(format: str, box: list[float]) -> None:
    def boxes_of(options: BuildOptions, box: list[float]) -> Any:
        table = pa.table({"bbox": pa.array([[box]], pa.large_list(pa.large_list(pa.float64())))})
        return scaled(table, options, Size(32, 32), np.array([60]), np.array([100])).column("bbox").to_pylist()

    other = replace(BOXES, boxes=(Coordinates("bbox", format),))
    assert np.allclose(boxes_of(other, box), boxes_of(BOXES, [20, 10, 60, 40]))


SHARES = [[0.1, 0.2, 0.5, 0.9], [0.5, 0.5, 0.3, 0.3]]


def checked(boxes: list[list[float]], format: str) -> None:
    table = pa.table({"path": ["a"], "bbox": pa.array([boxes], pa.large_list(pa.large_list(pa.float64())))})
    check_annotations(table, replace(BOXES, boxes=(Coordinates("bbox", format),)))


@pytest.mark.parametrize(
    ("boxes", "format", "said"),
    [
        (SHARES * 10, "cxcywh", "20 of 20 boxes have only numbers below 2: expected pixels of the source"),
        ([*SHARES * 9, [0, 0, 1.000001, 1]], "xyxy", "19 of 19 boxes .* give --boxes bbox:xyxy%$"),
        ([*SHARES * 9, [-0.1, 0, 1.3, 1], [10, 20, 50, 60]], "xyxy", "19 of 20 boxes have only numbers below 2"),
        ([[10, 20, 50, 60]] * 3, "xyxy%", "3 of 3 boxes have numbers of 2 or more: .* pixels, give --boxes b"),
        (
            [[0, 0.5, 0.5, 0.2, 0.2], [1, 0.5, 0.5, 0.2, 0.2]],
            "cxcywh%",
            "^column 'bbox': expected four numbers for each box, got lists of 5$",
        ),
        ([], "xyxy", ""),
        ([[0, 0, 0, 0]] * 5 + [[10, 20, 50, 60]], "xyxy", ""),
        ([[0, 0, 2, 2], [0, 1, 1, 2], [1, 1, 2, 2], [0, 0, 1, 1]], "xyxy", ""),
        ([[-1, -1, -1, -1]] * 5 + [[10, 20, 50, 60]], "xyxy", ""),
        ([*SHARES * 3, [0.5, 0.5, 4, 3]], "cxcywh%", ""),
    ],
)
def test_the_majority_of_boxes_decides_whether_a_column_is_in_pixels_or_shares(
    boxes: list[list[float]], format: str, said: str
) -> None:
    with pytest.raises(SourceError, match=said) if said else nullcontext():
        checked(boxes, format)


@pytest.mark.parametrize("missing", [0, -1, float("nan")])
def test_missing_points_do_not_look_like_shares(missing: float) -> None:
    points = pa.array([[[50, 60, *[missing] * 6]]], pa.large_list(pa.large_list(pa.float64())))
    options = replace(BOXES, boxes=(), keypoints=(Coordinates("points", "xy"),))
    check_annotations(pa.table({"path": ["a"], "points": points}), options)


def test_boxes_smaller_than_a_pixel_are_reported() -> None:
    with pytest.warns(
        PresizeWarning, match=r"^column 'bbox' has 2 boxes smaller than a pixel, in 1 image, the first 'a'"
    ):
        checked([*SHARES[:1] * 2, *[[10, 20, 50, 60]] * 3], "xyxy")


def test_keypoints_in_shares_are_not_taken_for_pixels(build: Builder) -> None:
    options = replace(BOXES, boxes=(), keypoints=(Coordinates("points", "xyv"),))
    write_rows(build, [{"path": "a.png", "points": [[0.5, 0.25, 2, 0, 0, 0]]}])
    with pytest.raises(SourceError, match=r"points have only numbers below 2: .* give --keypoints points:xyv%"):
        build(options=options)
    build(options=replace(options, keypoints=(Coordinates("points", "xyv%"),)))
    assert np.allclose(build.data().column("points").to_pylist(), [[[26.5, 8, 2, 0, 0, 0]]])
    _, points = LMDBDataset(build.out, target="points")[0]
    assert points.shape == (1, 2, 3)


BAD: list[dict[str, Any]] = [
    {"path": "a.png", "bbox": [[20, 10, 60, 40], [90, 10, 130, 40]]},
    {"path": "b.png", "bbox": [[25, 30, 5, 90], [0, 0, 60.5, 100.4], None]},
    {"path": "c.jpg", "bbox": None},
]


BAD_SHARES = [
    {"path": "a.png", "bbox": [[0.2, 1 / 6, 0.6, 2 / 3], [0.9, 1 / 6, 1.3, 2 / 3]]},
    {"path": "b.png", "bbox": [[0.5, 0.3, 0.1, 0.9], [0, 0, 1.008, 1.004]]},
    {"path": "c.jpg", "bbox": [[0, 0, 1.008, 1.004]]},
]


def test_bad_boxes_are_clipped_reported_once_and_keep_their_place(build: Builder) -> None:
    write_rows(build, BAD)
    with pytest.warns(PresizeWarning) as said:
        build()
    (warning,) = said
    assert str(warning.message) == (
        "column 'bbox': clipped 3 boxes of 2 images: boxes extend beyond the image, have no area or are "
        "not four numbers (2 will be dropped when reading); "
        "the first image is 'a.png'; --bad-boxes reject leaves such images out"
    )
    first, second, third = build.data().column("bbox").to_pylist()
    assert np.allclose(first, np.array([[20, 10, 60, 40], [90, 10, 100, 40]]) * 32 / 60, atol=0.4)
    assert second[0] == second[2] == [0, 0, 0, 0] and np.allclose(second[1], [0, 0, 32, 53])
    assert third == []


@pytest.mark.parametrize(("unit", "scale"), [("", 1), ("%", 100)])
def test_a_warning_about_bad_boxes_names_another_format_that_all_boxes_fit(
    unit: str, scale: int, build: Builder
) -> None:
    boxes = np.array([[80, 40, 20, 15], [5, 5, 60, 10]]) / scale
    build.options = replace(BOXES, boxes=(Coordinates("bbox", f"xyxy{unit}"),))
    write_rows(build, [{"path": "a.png", "bbox": boxes.tolist()}])
    with pytest.warns(PresizeWarning, match=rf"; all boxes would fit with --boxes bbox:xywh{unit}: check the format$"):
        build()


@pytest.mark.parametrize("unit", ["", "%"])
def test_bad_boxes_reject_their_image_on_request_and_an_update_equals_a_build_from_scratch(
    unit: str, build: Builder
) -> None:
    build.options = replace(BOXES, boxes=(Coordinates("bbox", f"xyxy{unit}"),), bad_boxes="reject")
    write_rows(build, BAD_SHARES if unit else BAD)
    result = build()
    assert (result.stored, result.rejected) == (1, 2)
    assert [(line["path"], line["reason"]) for line in build.rejects()] == [
        ("a.png", "boxes: they reach from (20, 10) to (130, 40), outside the image of 100 x 60 pixels"),
        ("b.png", "boxes: one has no area, or is not four numbers"),
    ]
    last = {"path": "c.jpg", "bbox": [[0.01, 0.01, 1.015, 0.1] if unit else [1, 1, 101.5, 5]]}
    write_rows(build, [*(in_shares(PAINTED) if unit else PAINTED)[:2], last])
    result = build(run=UPDATE)
    assert (result.stored, result.rejected) == (2, 1)
    build("new")
    updated, new = build.data(), build.data("new")
    assert updated.column("bbox").to_pylist() == new.column("bbox").to_pylist()
    assert [(updated.path(i), updated.value(i)) for i in range(2)] == [(new.path(i), new.value(i)) for i in range(2)]


@pytest.mark.parametrize(
    ("column", "option", "said"),
    [
        ({}, "bbox:xyxy", "--boxes bbox:xyxy: there is no column 'bbox'; give a --labels table that has it"),
        ({"bbox": [1, 2, 3, 4]}, "bbox:xyxy", "holds large_list<item: int64>, expected lists of lists of numbers"),
        ({"bbox": [["a", "b", "c", "d"]]}, "bbox:xyxy", "expected lists of lists of numbers"),
        ({"bbox": "1 2 3 4"}, "bbox:xyxy", "expected lists of lists of numbers"),
        ({"bbox": [[0.1, 0.2, 0.5, 1]]}, "bbox:cxcywh", "fractions .* give --boxes bbox:cxcywh%"),
        ({"bbox": [[1, 2, 3, 4], [1, 2]]}, "bbox:xy", "the same number of points .*got lists of 2, 4"),
        ({"bbox": [[1, 2, 3, 4]]}, "bbox:xyv", "x y v of each point, got lists of 4"),
    ],
)
def test_a_column_without_such_lists_is_refused_before_anything_is_built(
    column: dict[str, Any], option: str, said: str, build: Builder
) -> None:
    name = "keypoints" if option.endswith(("xy", "xyv")) and "xyxy" not in option else "boxes"
    parse = {"boxes": Coordinates.parse_boxes, "keypoints": Coordinates.parse_keypoints}[name]
    write_rows(build, [{"path": "a.png", **column}])
    with pytest.raises(SourceError, match=said):
        build(options=replace(BOXES, **{"boxes": (), name: (parse(option),)}))
    assert not build.out.exists()


def test_images_without_any_box_are_stored(build: Builder) -> None:
    write_rows(build, [{"path": "a.png", "bbox": [], "points": []}, {"path": "b.png"}])
    build(options=replace(BOXES, keypoints=(Coordinates("points", "xyv"),), bad_boxes="reject"))
    assert build.data().column("bbox").to_pylist() == build.data().column("points").to_pylist() == [[], []]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Coordinates.parse_boxes("bbox"), "boxes: expected COLUMN:FORMAT, such as bbox:xyxy, got 'bbox'"),
        (lambda: replace(BOXES, boxes=(Coordinates("b", "yxyx"),)), "boxes: b: expected one of xyxy, xywh, cxcywh"),
        (lambda: replace(BOXES, boxes=("bbox:xyxy",)), "boxes: expected Coordinates"),
        (lambda: replace(BOXES, keypoints=(Coordinates("bbox", "xy"),)), "expected each column once"),
        (lambda: replace(BOXES, bad_boxes="drop"), "bad_boxes: expected one of clip, reject, got 'drop'"),
    ],
)
def test_invalid_options_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()
