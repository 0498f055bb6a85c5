"""Formulas of a benchmark: shares that sum up, bounds, break-even, and their text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.measure.stages import Stages, bottleneck, break_even_epochs, percentile, verdict

SECONDS = st.floats(1e-6, 1e4)
PARTS = ("utilisation", "copy", "preparation", "fetch")


def shares(stages: Stages) -> list[float]:
    return [getattr(stages.stalls, part) for part in PARTS]


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_each_stall_is_the_difference_to_the_previous_stage(
    step: float, copy: float, preparation: float, fetch: float
) -> None:
    stages = Stages(step, step + copy, step + copy + preparation, step + copy + preparation + fetch)
    total = step + copy + preparation + fetch
    assert shares(stages) == pytest.approx([part / total for part in (step, copy, preparation, fetch)], abs=1e-9)
    assert stages.bound == pytest.approx(total / step)
    assert Stages(step, step, step + copy).stalls.fetch == 0
    assert stages.disagreement == 0


def test_a_faster_stage_that_does_more_counts_as_equal_and_is_reported() -> None:
    stages = Stages(resident_s=1.0, copied_s=0.9, warm_s=2.0)
    assert shares(stages) == [0.5, 0, 0.5, 0]
    assert stages.disagreement == pytest.approx(0.05)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_after_the_break_even_both_ways_have_taken_the_same_time(build: float, before: float, after: float) -> None:
    epochs = break_even_epochs(build, before, after)
    assert epochs >= 0
    if epochs == math.inf:
        assert after >= before or build / (before - after) == math.inf
    else:
        assert build + epochs * after == pytest.approx(epochs * before)


@given(st.lists(SECONDS, min_size=1, max_size=50), st.integers(1, 100))
def test_a_percentile_equals_numpys(seconds: list[float], percent: int) -> None:
    assert percentile(seconds, percent) == np.percentile(seconds, percent, method="inverted_cdf")


@pytest.mark.parametrize(
    ("utilisation", "expected"),
    [(0.01, "loading"), (0.799, "loading"), (0.8, "balanced"), (0.949, "balanced"), (0.95, "compute"), (1, "compute")],
)
def test_the_bottleneck_follows_from_the_utilisation(utilisation: float, expected: str) -> None:
    assert bottleneck(utilisation) == expected


@pytest.mark.parametrize(
    ("share", "words", "bound"),
    [(0.97, "Compute is the bottleneck", "1.03"), (0.91, "Loading and compute are balanced", "1.10")],
)
def test_a_bottleneck_is_reported_with_the_bound_and_its_source(share: float, words: str, bound: str) -> None:
    said = verdict(Stages(0.1, 0.1, 0.1 / share), 64)
    assert said.startswith(f"{words}: the training step is busy {share:.0%} of the time. ")
    assert f"at most {bound} times as fast" in said and "100 ms, 640 images/s" in said
    assert ("stalls training" in said) == (share < 0.95)


@pytest.mark.parametrize(
    ("stages", "words", "stall"),
    [
        (Stages(0.1, 0.4, 0.5), "Copying to the device is the bottleneck", "Copying to the device stalls training 60%"),
        (Stages(0.1, 0.11, 0.5), "Loading is the bottleneck", "Preparing batches stalls training 78%"),
        (Stages(0.1, 0.11, 0.2, 0.5), "The disk is the bottleneck", "Fetching from disk stalls training 60%"),
        (Stages(0.1, 0.1, 0.5), "Loading is the bottleneck", "Preparing batches stalls training 80% of the time. "),
    ],
)
def test_the_verdict_names_the_largest_stall(stages: Stages, words: str, stall: str) -> None:
    said = verdict(stages, 10)
    assert said.startswith(f"{words}: the training step is busy 20% of the time. {stall}")
    assert "all stalls together 80%" in said or stages.stalls.copy == stages.stalls.fetch == 0
    assert "at most 5.0 times as fast" in said
