"""Diagnosis of real loaders and steps with known times, because they sleep, and of some that fail."""

from __future__ import annotations

import cProfile
import importlib
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import count, islice
from statistics import geometric_mean
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from presize.datasets import diagnose, make_loader
from presize.datasets.timing.bench_run import memory_errors
from presize.datasets.timing.epochs import Clock, NoModel, copied_s, resident_s, time_epoch
from presize.datasets.timing.models import small_cnn
from presize.errors import BenchError, DiagnosisError, OptionError
from presize.measure.stages import Stages

SOON: dict[str, Any] = {"seconds": 0.3, "device": "cpu"}


class Time:
    """A clock that advances only by sleeping, so that measurements do not depend on the load of the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 0.0

    thread_time = process_time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def our_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    for module in ("diagnose", "loading", "epochs"):
        monkeypatch.setattr(importlib.import_module(f"presize.datasets.timing.{module}"), "time", found)
    return found


class Sleeping(Dataset[torch.Tensor]):
    """Batches of 4 images with a fixed loading time."""

    def __init__(self, load_s: float, batches: int = 1000, time: Any = time) -> None:
        self.load_s, self.batches, self.time = load_s, batches, time

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.batches:
            raise IndexError(index)
        self.time.sleep(self.load_s)
        return torch.zeros(4, 3, 8, 8)


def sleeping(load_s: float, workers: int) -> DataLoader[Any]:
    return DataLoader(Sleeping(load_s), None, num_workers=workers)


def step_of(seconds: float, time: Any = time) -> Any:
    return lambda _: time.sleep(seconds)


def generated(load_s: float, time: Any) -> Iterator[list[int]]:
    while True:
        time.sleep(load_s)
        yield [0] * 4


def generated_ahead(load_s: float, time: Time) -> Iterator[list[int]]:
    """Yield batches; loading the next one starts when the previous one is taken."""
    while True:
        done = time.now + load_s
        yield [0] * 4
        time.now = max(time.now, done)


class LateClock(Clock):
    """Clock of a device that works asynchronously: a mark is the moment when it has finished all earlier work."""

    def __init__(self, time: Time) -> None:
        super().__init__(torch.device("cpu"))
        self.time = time
        self.busy_until = 0.0

    def add(self, seconds: float) -> None:
        self.busy_until = self.mark() + seconds

    def mark(self) -> float:
        return max(self.busy_until, self.time.now)

    def wait(self) -> None:
        self.time.now = self.mark()


@pytest.fixture
def late(our_time: Time, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Any]:
    """Return a factory of steps that return at once, and finish later."""
    clock = LateClock(our_time)
    monkeypatch.setattr("presize.datasets.timing.diagnose.Clock", lambda _: clock)
    return lambda seconds: lambda _: clock.add(seconds)


class SleepingStep(NoModel):
    def __init__(self, time: Time) -> None:
        super().__init__(torch.device("cpu"))
        self.time = time

    def place(self, batch: Any) -> Any:
        self.time.sleep(1)
        return batch

    def __call__(self, placed: Any) -> None:  # noqa: ARG002
        self.time.sleep(2)


@pytest.mark.parametrize(
    ("loader", "warm", "expected"),
    [(generated, 3, (2 / 8, 1 / 8, 3 / 8, 2 / 8)), (generated_ahead, 2, (2 / 5, 1 / 5, 0, 2 / 5))],
    ids=["one thing after the other", "loaded during the step"],
)
def test_the_stalls_of_epochs_with_warm_and_with_cold_files_are_found(
    loader: Any, warm: int, expected: tuple[float, ...], our_time: Time
) -> None:
    step = SleepingStep(our_time)
    epochs_s = [time_epoch(islice(loader(load, our_time), 8), step).window_s / 7 for load in (warm, 5)]
    stages = Stages(resident_s(step, [0]), copied_s(step, [0]), *epochs_s)
    assert tuple(stages.stalls) == pytest.approx(expected)


def test_a_slow_loader_is_found_and_its_work_between_steps(our_time: Time) -> None:
    found = diagnose(generated(0.03, our_time), step_of(0.01, our_time), **SOON)
    assert found.loading.load.mean_s == pytest.approx(0.03)
    assert found.step.mean_s == pytest.approx(0.01)
    assert found.trained_s == pytest.approx(0.04)
    assert found.stages.stalls.utilisation == pytest.approx(0.25)
    assert found.disagreement == pytest.approx(0, abs=1e-6)
    assert (found.loading.workers, found.loading.chosen) == (0, False)
    assert any("between steps" in note for note in found.notes)
    ahead = diagnose(generated_ahead(0.03, our_time), step_of(0.02, our_time), **SOON)
    assert (ahead.loading.workers, ahead.trained_s) == (1, pytest.approx(0.03))
    assert any("during steps" in note for note in ahead.notes)


def test_a_slow_step_leaves_no_speed_up_with_any_clock(our_time: Time, request: Any) -> None:
    def check(step: Any) -> None:
        found = diagnose(generated_ahead(0.01, our_time), step, **SOON)
        assert (found.step.mean_s, found.trained_s) == pytest.approx((0.04, 0.04))
        assert found.verdict.startswith("Compute is the bottleneck")

    check(step_of(0.04, our_time))
    late = request.getfixturevalue("late")
    check(late(0.04))
    # It works while the next batch is loaded; only the end waits for it.
    waits = diagnose(generated(0.04, our_time), late(0.01), **SOON | {"seconds": 10})
    assert waits.step.mean_s == pytest.approx(0.01)
    assert waits.trained_s == pytest.approx(0.04, rel=0.05)
    assert waits.stages.stalls.utilisation == pytest.approx(0.25, rel=0.05)


@pytest.mark.slow
def test_loading_without_workers_and_alternatives_are_measured_like_any_other() -> None:
    others = {"The other": sleeping(0.005, 1), "An iterator": iter([[0] * 4] * 1000)}
    found = diagnose(sleeping(0.03, 0), step_of(0.01), alternatives=others, **SOON)
    assert (found.loading.workers, found.loading.images, found.loading.chosen) == (0, 4, True)
    assert found.loading.in_process.mean_s >= 0.03
    assert found.trained_s >= 0.04
    assert found.by_workers[0] == pytest.approx(1)
    name, other, step = found.alternatives[0]
    assert (name, other.workers, other.chosen, found.alternatives[1].loading.images) == ("The other", 1, True, 4)
    assert other.load.mean_s >= 0.005
    assert step.mean_s >= 0.01


@pytest.mark.parametrize(
    ("images", "image_s", "note"),
    [(8, 0.01, ""), (4, 0.008, "Other: a step on its batches takes 32 ms instead of 40 ms.")],
    ids=["larger", "quicker"],
)
def test_the_step_is_measured_on_a_batch_of_each_loader_and_differences_are_reported(
    images: int, image_s: float, note: str, our_time: Time
) -> None:
    def batches_of(images: int, image_s: float) -> Iterator[list[float]]:
        while True:
            our_time.sleep(0.1)
            yield [image_s] * images

    others = {"Other": batches_of(images, image_s)}
    given = SOON | {"seconds": 5, "alternatives": others}
    found = diagnose(batches_of(4, 0.01), lambda batch: our_time.sleep(sum(batch)), **given)
    assert found.step.mean_s == pytest.approx(0.04)
    assert found.alternatives[0].step.mean_s == pytest.approx(images * image_s)
    assert [said for said in found.notes if "Other" in said] == [note] * bool(note)


def test_a_machine_that_slows_down_during_training_also_slows_the_step_alone(our_time: Time) -> None:
    paces = count(100)
    found = diagnose(generated(0.0, our_time), lambda _: our_time.sleep(next(paces) * 1e-5), **SOON | {"seconds": 3})
    assert found.step.mean_s == pytest.approx(found.trained_s, rel=0.15), "within a run it slows down by a third"


def test_a_step_that_is_slower_alone_than_in_training_counts_as_fast_as_in_training(our_time: Time) -> None:
    seen: list[Any] = []

    def step(batch: list[int]) -> None:
        our_time.sleep(0.012 if seen and seen[-1] is batch else 0.01)
        seen.append(batch)

    found = diagnose(generated(0.0, our_time), step, **SOON)
    assert found.step.mean_s == pytest.approx(0.01)
    assert found.stages.stalls.utilisation == pytest.approx(1.0)
    assert found.images_per_s.value == pytest.approx(found.possible_images_per_s)


def test_helpful_changes_are_tried_and_their_gain_is_the_measured_one() -> None:
    found = diagnose(sleeping(0.02, 1), step_of(0.01), **SOON)
    (trial,) = [one for one in found.tried if one.change.options.get("num_workers")]
    assert trial.change.options["num_workers"] >= 2
    assert len(trial.rates) == len(found.rates) >= 1
    assert 0 < geometric_mean(trial.rates) <= found.possible_images_per_s * (1 + 1e-9)


@pytest.mark.slow
def test_a_loader_of_bursts_is_measured_by_whole_bursts() -> None:
    found = diagnose(sleeping(0.3, 2), step_of(0.005), seconds=1, device="cpu")
    assert found.images_per_s.value == pytest.approx(2 * 4 / 0.3, rel=0.1)


def test_an_epoch_with_a_slow_start_only_tries_persistent_workers() -> None:
    few = DataLoader([torch.zeros(3, 8, 8)] * 5, 2, num_workers=2)  # type: ignore[arg-type]
    found = diagnose(few, step_of(0.001), seconds=2, device="cpu")
    assert found.epoch_batches == 3
    assert found.start_share > 0.3
    assert {"persistent_workers": True} in [dict(trial.change.options) for trial in found.tried]
    assert not [trial for trial in found.tried if trial.change.options.keys() & {"in_order", "prefetch_factor"}]
    assert "of an epoch passes before its first batch" in found.verdict


def test_a_step_that_is_faster_in_channels_last_memory_is_reported_without_another_loader(our_time: Time) -> None:
    def step(batch: torch.Tensor) -> None:
        our_time.sleep(0.02 if batch.is_contiguous(memory_format=torch.channels_last) else 0.03)

    def images() -> Iterator[torch.Tensor]:
        while True:
            our_time.sleep(0.001)
            yield torch.zeros(4, 3, 8, 8)

    found = diagnose(images(), step, **SOON)
    assert found.stages.bottleneck == "compute"
    (advice,) = found.advice
    assert "torch.channels_last" in advice.what
    assert advice.gain.value == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_are_measured_alone_and_together_and_the_loader_is_restored(workers: int) -> None:
    loader = DataLoader(Sleeping(0.02), None, num_workers=workers, persistent_workers=True)
    before, processes = dict(vars(loader)), set(torch.multiprocessing.active_children())
    found = diagnose(loader, step_of(0.001), **SOON)
    assert found.loading.workers == len(found.loading.worker_s) == workers
    assert found.loading.chosen
    assert found.loading.load.mean_s >= 0.02
    assert min(found.loading.worker_s) >= 0.02
    assert vars(loader) == before
    assert not set(torch.multiprocessing.active_children()) - processes


def busy_between(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.slow
def test_work_of_the_training_loop_between_steps_is_named() -> None:
    def step(_: Any) -> None:
        time.sleep(0.005)
        busy_between(0.01)

    found = diagnose([[0] * 4] * 40, step, **SOON)
    assert found.own_python is not None
    own_s, name = found.own_python
    assert own_s >= 0.01
    assert name.endswith("test_diagnose.py:busy_between")
    batch = torch.zeros(8, 3, 64, 64)
    model = small_cnn(2)
    assert diagnose([batch] * 40, lambda images: model(images).sum().backward(), **SOON).own_python is None


@pytest.mark.parametrize(("others", "tried", "rounds"), [(1, 1, 3), (5, 2, 2)])
def test_a_diagnosis_keeps_to_its_seconds_and_tries_fewer_changes_for_longer_with_slow_batches(
    others: int, tried: int, rounds: int, our_time: Time
) -> None:
    slow = {f"Number {number}": generated(0.4, our_time) for number in range(others)}
    found = diagnose(generated(0.5, our_time), step_of(0.01, our_time), seconds=60, device="cpu", alternatives=slow)
    assert 30 < our_time.now < 66
    assert len(found.rates) >= rounds
    assert len(found.tried) == tried
    assert found.batches >= 6


class Listed:
    """A loader with a fixed number of batches per epoch."""

    def __init__(self, batches: int, time: Time) -> None:
        self.batches, self.time = batches, time

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.batches):
            self.time.sleep(0.001)
            yield [0] * 4


def test_short_epochs_are_trained_on_completely_and_an_iterator_that_ends_is_reported(our_time: Time) -> None:
    found = diagnose(Listed(5, our_time), step_of(0.01, our_time), **SOON | {"seconds": 3})
    assert (found.batches % 5, found.epoch_batches) == (0, 5)
    ended = diagnose(iter(Listed(15, our_time)), step_of(0.01, our_time), **SOON)
    assert any(note.startswith("A loader ended") for note in ended.notes)


def test_the_order_and_the_random_numbers_are_restored() -> None:
    loader = make_loader(Sleeping(0.0, 64), 2, shuffle=True, num_workers=0)
    first = next(iter(loader))
    state, numbers = loader.state_dict(), torch.get_rng_state()
    diagnose(loader, lambda _: torch.rand(3), **SOON)
    assert loader.state_dict() == state
    assert torch.equal(torch.get_rng_state(), numbers)
    assert first.shape == (2, 4, 3, 8, 8)


class Failing(Sleeping):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise ValueError("no such photograph\nand more")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_fails_is_an_error_that_says_where_and_why(workers: int) -> None:
    said = "loader: failed after 5 batches: ValueError: no such photograph"
    with pytest.raises(DiagnosisError, match=said) as raised:
        diagnose(DataLoader(Failing(0.001), None, num_workers=workers), step_of(0.001), **SOON | {"seconds": 3})
    assert isinstance(raised.value.__cause__, ValueError)
    assert "\n" not in str(raised.value)
    traceback.clear_frames(raised.value.__cause__.__traceback__)  # a frame holds the iterator, and so its workers


def step_that_fails_at(number: int) -> Any:
    count = iter(range(10_000))

    def step(_: Any) -> None:
        if next(count) == number:
            raise RuntimeError("it diverged")

    return step


@pytest.mark.parametrize(
    ("loader", "step", "message"),
    [
        ([[0] * 4] * 99, step_that_fails_at(0), "step: failed after 0 steps on one batch: RuntimeError: it diverged"),
        # two to warm up, two hundred on one batch
        ([[0] * 4] * 99, step_that_fails_at(205), "step: failed after 3 steps: RuntimeError: it diverged"),
        ([], step_of(0), "loader: expected at least one batch, got none"),
        (iter([[0] * 4] * 8), step_of(0), "loader: expected .* got none"),
        ([1, 2, 3], step_of(0), "with a first part that has one, got int"),
    ],
)
@pytest.mark.usefixtures("our_time")
def test_pipelines_that_cannot_be_diagnosed_are_an_error_that_says_where_and_why(
    loader: Any, step: Any, message: str
) -> None:
    with pytest.raises(DiagnosisError, match=message):
        diagnose(loader, step, **SOON)


def test_another_profiler_is_an_error_that_says_so() -> None:
    with cProfile.Profile(), pytest.raises(DiagnosisError, match="another profiler is active; run the script without"):
        diagnose([[0] * 4] * 99, step_of(0), **SOON)


def test_invalid_options_are_refused() -> None:
    for options, message in (({"seconds": float("nan")}, "seconds"), ({"device": "cuda:77"}, "device")):
        with pytest.raises(OptionError, match=message):
            diagnose([[0] * 4], step_of(0.001), **SOON | options)


def test_a_lack_of_memory_in_a_diagnosis_says_what_to_choose() -> None:
    def step(_: Any) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    with pytest.raises(BenchError, match="choose a smaller --batch or --crop"), memory_errors("small", 4, 8, "cpu"):
        diagnose([[0] * 4] * 9, step, **SOON)
    with pytest.raises(DiagnosisError, match="got none"), memory_errors("small", 4, 8, "cpu"):
        diagnose([], step_of(0.001), **SOON)  # any other failure is raised unchanged
