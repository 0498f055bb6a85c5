"""Crops: the positions of boxes, before anything is read."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.datasets import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from presize.datasets.reading.draws import uniform
from presize.errors import OptionError
from presize.options import Size

sides = st.integers(1, 700)


def boxes_of(crop: Any, heights: list[int], widths: list[int], seed: int = 0) -> np.ndarray:
    numbers = uniform(seed, 0, np.arange(len(heights)), max(crop.draws, 1))[:, : crop.draws]
    return np.asarray(crop.boxes(np.array(heights), np.array(widths), numbers))


PLAIN = random.Random(0)


def one_after_the_other(height: int, width: int) -> tuple[float, float]:
    """Draw area and ratio of one crop like torchvision."""
    while True:  # ten tries always suffice for these images
        area = height * width * PLAIN.uniform(0.08, 1)
        ratio = math.exp(PLAIN.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h <= height and w <= width:
            return h * w / (height * width), w / h


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=20), st.integers(1, 300), st.integers(0, 2**40))
def test_a_random_resized_crop_is_inside_its_image(images: list[tuple[int, int]], size: int, seed: int) -> None:
    heights, widths = (list(side) for side in zip(*images, strict=True))
    top, left, height, width = boxes_of(RandomResizedCrop(size), heights, widths, seed).T
    assert (top >= 0).all() and (left >= 0).all() and (height > 0).all() and (width > 0).all()
    assert (top + height <= heights).all() and (left + width <= widths).all()


def test_a_random_resized_crop_has_the_requested_areas_ratios_and_positions() -> None:
    n, height, width = 20_000, 300, 400
    top, left, h, w = boxes_of(RandomResizedCrop(224), [height] * n, [width] * n).T
    areas, ratios = h * w / (height * width), w / h
    assert areas.min() == pytest.approx(0.08, abs=0.005) and areas.max() <= 1
    assert ratios.min() == pytest.approx(3 / 4, abs=0.02) and ratios.max() == pytest.approx(4 / 3, abs=0.02)
    plain = np.array([one_after_the_other(height, width) for _ in range(n)])
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert np.quantile(areas, quantile) == pytest.approx(np.quantile(plain[:, 0], quantile), abs=0.015)
        assert np.quantile(ratios, quantile) == pytest.approx(np.quantile(plain[:, 1], quantile), abs=0.015)
    free = (h < height) & (w < width)
    assert (top / np.maximum(height - h, 1))[free].mean() == pytest.approx(0.5, abs=0.015)
    assert (left / np.maximum(width - w, 1))[free].mean() == pytest.approx(0.5, abs=0.015)


def test_if_no_try_fits_the_centre_is_taken_with_the_nearest_ratio() -> None:
    assert boxes_of(RandomResizedCrop(32), [10, 1000], [1000, 10]).tolist() == [[0, 493, 10, 13], [493, 0, 13, 10]]


def test_boxes_decoded_at_reduced_size_are_aligned_to_its_pixels() -> None:
    boxes = boxes_of(RandomResizedCrop(50), [900] * 500, [1200] * 500)
    for scale in (2, 4, 8):
        larger = boxes[(boxes[:, 2:] >= 50 * scale).all(axis=1)]
        assert len(larger) > 10 and (larger % scale == 0).all()


def test_exact_boxes_differ_from_those_of_a_reduced_decode_only_by_their_rounding() -> None:
    sides = [900] * 500, [1200] * 500
    exact, rounded = (boxes_of(RandomResizedCrop(200, exact=exact), *sides) for exact in (True, False))
    assert ((exact - rounded) < 8).all() and (exact >= rounded).all() and (exact % 2).any(axis=0).all()
    small = (exact[:, 2:] < 400).any(axis=1)
    assert small.any() and (exact[small] == rounded[small]).all()


def test_a_random_crop_reaches_every_position_and_no_other() -> None:
    boxes = boxes_of(RandomCrop(Size(8, 6)), [10] * 2000, [9] * 2000)
    assert {tuple(box) for box in boxes.tolist()} == {(t, left, 8, 6) for t in range(3) for left in range(4)}


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(256, 340, [16, 58, 224, 224]), (224, 225, [0, 0, 224, 224]), (227, 229, [2, 2, 224, 224])],
)
def test_a_center_crop_matches_torchvisions(height: int, width: int, box: list[int]) -> None:
    assert box[:2] == [round((height - 224) / 2), round((width - 224) / 2)]
    assert boxes_of(CenterCrop(224), [height], [width]).tolist() == [box]


def test_resize_takes_the_whole_image() -> None:
    assert boxes_of(Resize(224), [10, 500], [20, 30]).tolist() == [[0, 0, 10, 20], [0, 0, 500, 30]]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomResizedCrop(0), "size: expected a whole number from 1 to 16383, got 0"),
        (lambda: CenterCrop("224"), "size: expected a whole number"),  # type: ignore[arg-type]
        (lambda: Resize((1, 2, 3)), "size: expected N or"),  # type: ignore[arg-type]
        (lambda: RandomCrop(Size(5, 0)), "size: expected a whole number from 1"),
        (lambda: CenterCrop([24, 24]), r"size: expected N or \(height, width\), got \[24, 24\]"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(8, scale=0.5), "scale: expected two fractions, .* got 0.5"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(8, scale=(0, 1)), "scale: expected two fractions"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 0.2)), "scale: expected two fractions"),
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), "ratio: expected two ratios"),
        (lambda: RandomResizedCrop(8, ratio=(1, math.nan)), "ratio: expected two ratios"),
    ],
)
def test_invalid_crops_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(1, 50))
def test_random_numbers_depend_only_on_their_visit(seed: int, epoch: int, count: int) -> None:
    keys = np.array([3, 2**48, 3, 0])
    together = uniform(seed, epoch, keys, count)
    assert together.shape == (4, count) and (together >= 0).all() and (together < 1).all()
    assert (together[0] == together[2]).all()
    assert (uniform(seed, epoch, keys[1:2], count) == together[1]).all()


def test_the_random_numbers_of_a_seed_never_change() -> None:
    """Or a run that is resumed after an upgrade would read other crops."""
    assert uniform(1, 2, np.array([0, 5]), 3).tolist() == [
        [0.2598672624968297, 0.9632819865597958, 0.23117945598991596],
        [0.12332960016500405, 0.26433665628822656, 0.3244846470638947],
    ]
    assert uniform(1, 2, np.array([5]), 2, view=1).tolist() == [[0.20311274450996097, 0.6789713140318189]]


def test_random_numbers_are_uniform_and_independent() -> None:
    numbers = uniform(7, 3, np.arange(50_000), 4)
    assert numbers.mean(axis=0) == pytest.approx([0.5] * 4, abs=0.006)
    assert numbers.var(axis=0) == pytest.approx([1 / 12] * 4, abs=0.002)
    others = np.concatenate([numbers, uniform(8, 3, np.arange(50_000), 2), uniform(7, 4, np.arange(50_000), 2)], axis=1)
    correlations = np.corrcoef(others.T) - np.eye(8)
    assert np.abs(correlations).max() < 0.02
    assert np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1] == pytest.approx(0, abs=0.02)
