"""The formulas of a benchmark: shares that sum up, bounds, break-even, and what is said about them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import OptionError
from presize.measure.stages import COMPUTE_BOUND, Quantiles, Spread, Stages, break_even_epochs, verdict

SECONDS = st.floats(1e-6, 1e4)
STAGES = st.builds(Stages, SECONDS, SECONDS, SECONDS, st.none() | SECONDS)
PARTS = ("utilisation", "copy", "preparation", "fetch")


def shares(stages: Stages) -> list[float]:
    return [getattr(stages.stalls, part) for part in PARTS]


@given(STAGES)
def test_utilisation_and_stalls_sum_up_to_one(stages: Stages) -> None:
    assert sum(shares(stages)) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares(stages))


@given(STAGES, st.floats(0.01, 100))
def test_shares_do_not_depend_on_the_unit(stages: Stages, factor: float) -> None:
    scaled = Stages(*(time * factor for time in stages.measured))
    assert shares(scaled) == pytest.approx(shares(stages), abs=1e-9)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_each_stall_is_what_its_stage_takes_more_than_the_one_before(
    step: float, copy: float, preparation: float, fetch: float
) -> None:
    stages = Stages(step, step + copy, step + copy + preparation, step + copy + preparation + fetch)
    total = step + copy + preparation + fetch
    assert shares(stages) == pytest.approx([part / total for part in (step, copy, preparation, fetch)], abs=1e-9)
    assert stages.disagreement == 0


@given(STAGES)
def test_no_stall_is_fetched_from_a_disk_that_was_not_measured(stages: Stages) -> None:
    warm = Stages(stages.resident_s, stages.copied_s, stages.warm_s)
    assert warm.stalls.fetch == 0


@given(STAGES)
def test_the_bound_times_the_utilisation_is_one(stages: Stages) -> None:
    assert stages.bound * stages.stalls.utilisation == pytest.approx(1)
    assert stages.bound >= 1


def test_a_faster_stage_that_does_more_counts_as_equal_and_is_owned_up_to() -> None:
    stages = Stages(resident_s=1.0, copied_s=0.9, warm_s=2.0)
    assert shares(stages) == [0.5, 0, 0.5, 0]
    assert stages.disagreement == pytest.approx(0.05)


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_stage_that_takes_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(OptionError, match="copied_s: expected seconds above 0"):
        Stages(1, seconds, 1)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_after_the_break_even_both_ways_have_taken_the_same_time(build: float, before: float, after: float) -> None:
    epochs = break_even_epochs(build, before, after)
    assert epochs >= 0
    if epochs == math.inf:
        assert after >= before or build / (before - after) == math.inf
    else:
        assert build + epochs * after == pytest.approx(epochs * before)


def test_a_negative_time_has_no_break_even() -> None:
    with pytest.raises(OptionError, match="after_s: expected seconds from 0 up, got -1"):
        break_even_epochs(1, 2, -1)


@given(st.lists(SECONDS, min_size=1, max_size=50))
def test_quantiles_are_steps_that_occurred_and_in_order(seconds: list[float]) -> None:
    found = Quantiles.of(seconds)
    assert {found.p50_s, found.p95_s, found.p99_s} <= set(seconds)
    assert found.p50_s <= found.p95_s <= found.p99_s
    assert sum(time <= found.p50_s for time in seconds) >= len(seconds) / 2


def test_quantiles_of_a_hundred_steps() -> None:
    assert Quantiles.of([float(i) for i in range(100, 0, -1)]) == Quantiles(50, 95, 99)


@given(st.lists(SECONDS, min_size=1))
def test_a_spread_encloses_its_median(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.min <= spread.median <= spread.max
    assert spread.runs == len(values)


@pytest.mark.parametrize("kind", [Spread, Quantiles])
def test_nothing_has_no_distribution(kind: type[Spread] | type[Quantiles]) -> None:
    with pytest.raises(OptionError, match="expected at least one"):
        kind.of([])


def test_that_no_speed_up_is_possible_is_said_with_the_bound_and_where_it_comes_from() -> None:
    said = verdict(Stages(0.1, 0.1, 0.1 / 0.97), 64)
    assert said.startswith("No speed-up possible: U is 0.97")
    assert "at most 1.03 times as fast" in said
    assert "100 ms, 640 images/s" in said


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (Stages(0.1, 0.4, 0.5), "Copying to the device is the bottleneck: it stalls training 60% of the time, all"),
        (Stages(0.1, 0.11, 0.5), "Preparing batches is the bottleneck: it stalls training 78% of the time, all"),
        (Stages(0.1, 0.11, 0.2, 0.5), "The disk is the bottleneck: it stalls training 60% of the time, all"),
        (Stages(0.1, 0.1, 0.5), "Preparing batches is the bottleneck: it stalls training 80% of the time. U is 0.20"),
    ],
)
def test_the_verdict_names_the_largest_stall(stages: Stages, words: str) -> None:
    said = verdict(stages, 10)
    assert said.startswith(words)
    assert "all stalls together 80%. U is 0.20" in said or stages.stalls.copy == stages.stalls.fetch == 0
    assert "up to 5.0 times as fast" in said


@given(STAGES)
def test_the_verdict_says_that_no_speed_up_is_possible_exactly_when_utilisation_is_about_one(stages: Stages) -> None:
    said = verdict(stages, 32)
    assert said.startswith("No speed-up") == (stages.stalls.utilisation >= COMPUTE_BOUND)
