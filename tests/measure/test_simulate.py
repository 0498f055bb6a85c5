"""Simulated pipelines: invariants of every timeline, the rules of torch's DataLoader, and the command."""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, pairwise, repeat
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from browsers import chromium
from commands import Ran
from pages import parsed
from presize.errors import OptionError
from presize.measure.simulation import NOTHING, Pipeline, Timeline, Times, fewest_workers, simulate, sweep
from presize.measure.simulation_report import (
    PictureVariant,
    facts,
    picture_policy,
    simulation_html,
    simulation_text,
    verdict,
)


def seven(load_s: float, cv: float = 0.0, **options: float) -> Pipeline:
    """Return a pipeline of seven loaders and a step of 100 ms, two batches ahead each."""
    return Pipeline(Times(load_s, cv), Times(0.1), workers=7, prefetch=2, **options)  # type: ignore[arg-type]


# Known figures: batches in 30 s


@pytest.mark.parametrize(("load_s", "cv", "batches"), [(2.0, 0.0, 98), (0.7, 0.2, 275), (0.35, 0.0, 295)])
def test_seven_loaders_yield_the_known_number_of_batches(load_s: float, cv: float, batches: int) -> None:
    for seed in range(6):
        assert simulate(seven(load_s, cv), seconds=30, seed=seed).batches == pytest.approx(batches, rel=0.03)


def test_loaders_that_start_together_stall_training_regularly_until_they_spread() -> None:
    together = simulate(seven(2.0), seconds=120)
    assert together.stops_every() == 7
    for spread in (seven(2.0, 0.2), seven(2.0, stagger_s=2 / 7)):
        timeline = simulate(spread, seconds=120)
        assert timeline.stops_every() is None
        assert timeline.batches_per_s(warmup_steps=7) == pytest.approx(together.batches_per_s(7), rel=0.05)
    assert simulate(seven(0.35), seconds=30).stops_every() is None, "it never waits"


# Invariants of every timeline

SECONDS = st.floats(0.01, 3.0).map(lambda value: round(value, 3))
TIMES = st.one_of(
    SECONDS.map(Times),
    st.builds(Times, SECONDS, st.floats(0, 1.5)),
    st.lists(SECONDS, min_size=1, max_size=5).map(Times.measured),
)
MAYBE = st.one_of(st.just(NOTHING), TIMES)
PIPELINES = st.builds(
    Pipeline,
    load=TIMES,
    step=TIMES,
    workers=st.integers(0, 6),
    prefetch=st.integers(1, 3),
    pin=MAYBE,
    copy=MAYBE,
    in_order=st.booleans(),
    stagger_s=st.sampled_from([0.0, 0.3]),
    cores=st.sampled_from([None, 0.5, 1.0, 2.5]),
    load_cores=st.sampled_from([0.0, 0.5, 1.0]),
    step_cores=st.sampled_from([0.0, 1.0]),
)
RUNS = st.builds(
    simulate, PIPELINES, seconds=st.floats(0.1, 30), batches=st.integers(1, 60), seed=st.integers(0, 2**31)
)


@given(RUNS)
def test_every_timeline_satisfies_the_invariants(timeline: Timeline) -> None:
    pipeline, seconds, loads, steps = timeline.pipeline, timeline.seconds, timeline.loads, timeline.steps
    workers, limit = max(pipeline.workers, 1), max(pipeline.workers * pipeline.prefetch, 1)

    # Each batch is loaded once, then pinned, taken, copied and trained on.
    assert len({load.number for load in loads}) == len(loads)
    assert len({step.number for step in steps}) == len(steps)
    assert [step for step in steps if step not in loads] == []
    for load in loads:
        moments = [load.begin_s, load.loaded_s, load.ready_s, load.taken_s, load.copied_s, load.done_s]
        assert moments == sorted(moments)
        assert all(0 <= moment <= seconds * (1 + 1e-9) or moment == math.inf for moment in moments)
        assert (load.taken_s < math.inf) == (load in steps)

    # A worker, like training, does one thing at a time, and no more batches are in progress than were requested.
    for worker in range(workers):
        mine = [load for load in loads if load.worker == worker]
        assert all(before.loaded_s <= after.begin_s for before, after in pairwise(mine))
    assert all(before.done_s <= after.taken_s for before, after in pairwise(steps))
    for at in [load.begin_s for load in loads]:
        assert sum(load.begin_s <= at for load in loads) - sum(step.taken_s <= at for step in steps) <= limit

    # Batches are taken in order and loaded in turn, or taken as they arrive.
    if pipeline.in_order:
        assert [step.number for step in steps] == list(range(len(steps)))
        assert all(load.worker == load.number % workers for load in loads)
    else:
        assert [step.ready_s for step in steps] == sorted(load.ready_s for load in loads)[: len(steps)]

    # Shares of the time are between 0 and 1.
    copies_s = math.fsum(min(step.copied_s, seconds) - step.taken_s for step in steps)
    steps_s = math.fsum(min(step.done_s, seconds) - min(step.copied_s, seconds) for step in steps)
    assert 0 <= timeline.utilisation <= steps_s / seconds + 1e-9
    assert timeline.stall + (copies_s + steps_s) / seconds == pytest.approx(1, abs=1e-6)
    if pipeline.cores is None:
        assert timeline.utilisation == pytest.approx(steps_s / seconds, abs=1e-6)

    # The queue holds the batches that are ready and not taken.
    queue = timeline.queue()
    assert queue[-1][1] == sum(load.ready_s < math.inf for load in loads) - len(steps)
    assert all(before[0] <= after[0] and before[1] != after[1] for before, after in pairwise(queue))
    assert all(0 <= length <= limit for _, length in queue)
    assert 0 <= timeline.queue_mean() <= max(length for _, length in queue)


@given(PIPELINES, st.integers(0, 5))
def test_the_same_seed_gives_the_same_timeline(pipeline: Pipeline, seed: int) -> None:
    first, again = (simulate(pipeline, seconds=9, batches=30, seed=seed) for _ in range(2))
    assert first == again
    assert simulate(seven(0.7, 0.2), seconds=30) != simulate(seven(0.7, 0.2), seconds=30, seed=1)


@given(PIPELINES, st.integers(1, 40))
def test_a_longer_run_has_the_same_beginning(pipeline: Pipeline, batches: int) -> None:
    whole = simulate(pipeline, batches=batches)
    half = simulate(pipeline, seconds=max(whole.seconds / 2, 1e-6), batches=batches)
    assert [step.taken_s for step in half.steps] == [
        step.taken_s for step in whole.steps if step.taken_s <= half.seconds * (1 + 1e-12)
    ]


@given(PIPELINES.filter(lambda pipeline: pipeline.in_order), st.integers(1, 40))
def test_too_few_cores_make_nothing_faster(pipeline: Pipeline, batches: int) -> None:
    # Except for pinning: batches are pinned as they arrive, and an early one can delay the next one in order.
    pipeline = replace(pipeline, pin=NOTHING)
    free = simulate(replace(pipeline, cores=None), batches=batches)
    assert free.seconds <= simulate(pipeline, batches=batches).seconds * (1 + 1e-9)


def test_without_workers_loading_and_training_take_turns() -> None:
    timeline = simulate(Pipeline(Times(0.3), Times(0.1), workers=0), batches=10)
    assert timeline.seconds == pytest.approx(4.0)
    assert (timeline.utilisation, timeline.stall) == pytest.approx((0.25, 0.75))


# The recurrence of an ordered queue, as an oracle


@given(TIMES, TIMES, MAYBE, st.integers(1, 5), st.integers(1, 3), st.integers(1, 50), st.integers(0, 99))
def test_a_timeline_equals_the_recurrence(
    load: Times, step: Times, copy: Times, workers: int, prefetch: int, batches: int, seed: int
) -> None:
    timeline = simulate(Pipeline(load, step, workers, prefetch, copy=copy), batches=batches, seed=seed)
    begin, loaded, taken, free = {}, {}, {}, 0.0
    for k, batch in enumerate(timeline.steps):
        begin[k] = max(loaded.get(k - workers, 0.0), taken.get(k - workers * prefetch, 0.0))
        loaded[k] = begin[k] + batch.load_s
        taken[k] = max(loaded[k], free)
        free = taken[k] + batch.copy_s + batch.step_s
    assert [batch.begin_s for batch in timeline.steps] == pytest.approx(list(begin.values()))
    assert [batch.taken_s for batch in timeline.steps] == pytest.approx(list(taken.values()))
    assert timeline.seconds == pytest.approx(free)


# torch's DataLoader


class Sleeping:
    """Samples of which the first waits for a signal."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.come = multiprocessing.Event()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[int, int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        if number == 0:
            self.come.wait(timeout=30)
        return number, info.id


class FirstSlow(Times):
    """The first batch takes far longer than all others together."""

    def draws(self, random: np.random.Generator) -> Iterator[float]:  # noqa: ARG002
        return chain([10.0], repeat(0.001))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("in_order", [True, False])
def test_torchs_dataloader_takes_the_same_batches_from_the_same_workers(in_order: bool) -> None:
    dataset = Sleeping(9)
    loader = DataLoader(dataset, batch_size=None, num_workers=3, prefetch_factor=1, in_order=in_order)  # type: ignore[arg-type]
    if in_order:
        dataset.come.set()
    seen = []
    for number, worker in loader:
        seen.append((int(number), int(worker)))
        time.sleep(0.005)
        if len(seen) == 8:
            dataset.come.set()
    pipeline = Pipeline(FirstSlow(1.0), Times(0.005), workers=3, prefetch=1, in_order=in_order)
    timeline = simulate(pipeline, batches=9)
    predicted = [(step.number, step.worker) for step in timeline.steps]
    if in_order:
        assert seen == predicted == [(number, number % 3) for number in range(9)]
    else:
        assert seen[-1] == predicted[-1] == (0, 0)
        assert {worker for _, worker in seen[:-1]} == {worker for _, worker in predicted[:-1]} == {1, 2}


def test_out_of_order_the_worker_whose_batch_was_taken_gets_one_more_request() -> None:
    timeline = simulate(Pipeline(Times(1.0, 0.9), Times(0.4), workers=4, in_order=False), batches=80)
    changes = [(load.begin_s, 1, load.worker) for load in timeline.loads]
    changes += [(step.taken_s, -1, step.worker) for step in timeline.steps]
    waiting = dict.fromkeys(range(4), 0)
    for _, change, worker in sorted(changes):
        waiting[worker] += change
        assert 0 <= waiting[worker] <= 2


# How many workers


def test_a_sweep_finds_the_smallest_sufficient_number_of_workers() -> None:
    timelines = sweep(seven(2.0), range(33))
    assert list(timelines) == list(range(33))
    assert fewest_workers(timelines) == 19  # 9.5 a second; 20 do the 10 that the step can take
    assert fewest_workers(timelines, within=0) == 20
    hundreds = sweep(Pipeline(Times(60.0), Times(0.1), workers=1), [200, 300, 400])
    rates = [timeline.batches_per_s(warmup_steps=number) for number, timeline in hundreds.items()]
    assert rates == pytest.approx([10 / 3, 5, 20 / 3])


def test_more_workers_than_cores_do_not_help_and_slow_a_step_that_needs_cores() -> None:
    timelines = sweep(replace(seven(2.0), cores=4), range(1, 12))
    assert fewest_workers(timelines) == 4
    assert timelines[11].batches_per_s(warmup_steps=11) == pytest.approx(2, rel=0.01)
    shared = simulate(Pipeline(Times(0.1), Times(0.1), workers=2, cores=1, step_cores=1), batches=200)
    assert shared.batches_per_s() == pytest.approx(5, rel=0.02)
    assert shared.utilisation == pytest.approx(0.5, rel=0.02)


# Times


@given(st.floats(0.05, 2), st.integers(0, 99))
def test_drawn_times_have_their_mean_and_variation(cv: float, seed: int) -> None:
    drawn = np.fromiter(Times(3.0, cv).draws(np.random.default_rng(seed)), float, 20_000)
    assert drawn.mean() == pytest.approx(3, rel=0.08)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.15)


def test_times_can_be_drawn_from_measured_ones() -> None:
    times = Times.measured([1.0, 2.0, 6.0])
    draws = times.draws(np.random.default_rng(0))
    assert {next(draws) for _ in range(200)} == {1.0, 2.0, 6.0}
    assert times.mean_s == 3
    assert times.times(2).samples_s == (2.0, 4.0, 12.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Times(-1), "mean_s: expected a number from 0 to 1000000, got -1"),
        (lambda: Times(math.nan), "mean_s: expected a number from 0 to 1000000, got nan"),
        (lambda: Times(1, -0.1), "cv: expected a number from 0 to 100, got -0.1"),
        (lambda: Times.measured([]), "samples_s: expected at least one, got none"),
        (lambda: Times.measured([3.0, -1.0]), "samples_s: expected a number from 0 to 1000000, got -1.0"),
        (lambda: seven(0.0), "load: expected a time above 0, got 0 s"),
        (lambda: Pipeline(Times(1), NOTHING, 1), "step: expected a time above 0, got 0 s"),
        (lambda: Pipeline(Times(1), Times(1), -1), "workers: expected a whole number from 0 to 1024, got -1"),
        (lambda: Pipeline(Times(1), Times(1), 1, 0), "prefetch: expected a whole number from 1 to 1024, got 0"),
        (lambda: seven(1.0, stagger_s=-1), "stagger_s: expected a number from 0 to 1000000, got -1"),
        (lambda: seven(1.0, cores=0), "cores: expected a number above 0, got 0"),
        (lambda: simulate(seven(1.0)), "seconds: expected seconds or batches, got neither"),
        (lambda: simulate(seven(1.0), seconds=0), "seconds: expected a number above 0, got 0"),
        (lambda: simulate(seven(1.0), seconds=1e9), "seconds: expected at most 100000, a million steps, got"),
        (lambda: simulate(seven(1.0), batches=0), "batches: expected a whole number from 1 to 1000000, got 0"),
        (lambda: simulate(seven(1.0), seconds=1, seed=-1), "seed: expected a whole number from 0"),
    ],
)
def test_invalid_options_are_refused_by_name(make: object, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        make()  # type: ignore[operator]
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("cv", [1e-200, 1e-9, 100.0])
def test_the_smallest_and_the_largest_variation_can_be_simulated(cv: float) -> None:
    assert simulate(seven(1.0, cv), seconds=3, batches=50).utilisation <= 1


ROOT = Path(__file__).parents[2]
OPTIONS = ("--workers", "7", "--load-ms", "2000", "--step-ms", "100")
Run = Callable[..., Ran]


@pytest.fixture
def run(presize: Run) -> Run:
    return functools.partial(presize, "simulate", *OPTIONS)


def test_json_is_one_object_with_the_whole_timeline(run: Run) -> None:
    ran = run("--seconds", 30, "--json")
    found = json.loads(ran.out)
    known = simulate(Pipeline(Times(2.0), Times(0.1), 7), seconds=30).known()
    assert (ran.code, ran.err) == (0, "")
    assert found == json.loads(json.dumps(known)) | {"page": None}
    assert (found["batches"], found["utilisation"], found["stops_every"]) == (98, pytest.approx(98 / 300), 7)


def test_the_documentation_names_every_value_of_the_json_and_shows_the_output(run: Run) -> None:
    found = json.loads(run("--json", "--sweep", 2, "--then-workers", 8).out)
    page = (ROOT / "docs" / "simulate.md").read_text("utf-8")
    assert [name for name in found if f"`{name}`" not in page] == []
    assert f"```\n{run('--seconds', 30).out}```\n" in page


def test_options_reach_the_simulation(run: Run) -> None:
    options = {
        "--prefetch": 3, "--cv": 0.3, "--pin-ms": 20, "--copy-ms": 30, "--cores": 4, "--stagger-ms": 250, "--seed": 5,
    }  # fmt: skip
    out = run(*sum(options.items(), ()), "--out-of-order", "--seconds", 20, "--json").out
    pipeline = Pipeline(
        Times(2.0, 0.3), Times(0.1), 7, 3, Times(0.02), Times(0.03), in_order=False, stagger_s=0.25, cores=4
    )
    assert json.loads(out)["steps"] == simulate(pipeline, seconds=20, seed=5).known()["steps"]


def test_two_pipelines_are_compared(run: Run) -> None:
    found = json.loads(run("--then-load-ms", 350, "--then-workers", 5, "--json").out)
    assert (found["batches"], found["workers"]) == (98, 7)
    assert found["then"] == simulate(Pipeline(Times(0.35), Times(0.1), 5), seconds=30).known()
    text = run("--then-load-ms", 350).out
    assert "before: 7 workers, 2 s per batch:\n" in text
    assert "3.0 times as fast: 9.87 instead of 3.27 batches/s.\n" in text


def test_a_sweep_says_how_many_workers_are_enough(run: Run) -> None:
    found = json.loads(run("--sweep", 24, "--json").out)
    assert found["fewest_workers"] == 19
    assert found["sweep"][7] == {"workers": 7, "batches_per_s": pytest.approx(3.5), "utilisation": pytest.approx(0.35)}
    assert run("--sweep", 24).out.endswith("19 workers: the fewest within 5% of the fastest.\n")
    assert run("--sweep", 9).out.endswith("9 workers: the fastest of these; more may be faster still.\n")


def test_a_page_is_written_if_possible(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ran = run("-o", page)
    assert ran.code == 0
    assert ran.out.endswith(f"\npage: {page}\n")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert json.loads(run("-o", page, "--json").out)["page"] == str(page)


# Verdicts


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        (Pipeline(Times(0.3), Times(0.1), 4), "Compute is the bottleneck: training works "),
        (Pipeline(Times(2.0), Times(0.1), 7), "20 workers, or loading 2.9 times as fast, would keep up."),
        (
            Pipeline(Times(2.0), Times(0.1), 7, cores=8),
            "but are too many for 8 cores, so loading has to become 2.5 times as fast.",
        ),
        (Pipeline(Times(0.3), Times(0.1), 0), "because it loads each batch itself."),
        (Pipeline(Times(0.7, 0.5), Times(0.1), 7), "load times are uneven. More workers or more prefetch even"),
        (Pipeline(Times(0.1), Times(0.1), 8, pin=Times(0.5)), "Pinning is the bottleneck: training stalls"),
        (Pipeline(Times(0.1), Times(0.1), 8, copy=Times(0.05)), "Copying is the bottleneck: training works 6"),
    ],
)
def test_the_verdict_names_the_bottleneck(pipeline: Pipeline, said: str) -> None:
    assert said in verdict(simulate(pipeline, seconds=60))


def test_a_short_simulation_does_not_blame_uneven_load_times_for_its_start() -> None:
    found = verdict(simulate(Pipeline(Times(2.0), Times(0.1), 20), seconds=5))
    assert "stalls 40% of the time, most of it before the first batch" in found and "uneven" not in found
    assert "before the first batch" in verdict(simulate(Pipeline(Times(2.0), Times(0.1), 20), seconds=1))


def test_batches_that_are_taken_out_of_order_are_not_said_to_be_waited_for_in_order() -> None:
    pipeline = Pipeline(Times(0.7, 4.0), Times(0.1), 7, prefetch=1, in_order=False)
    assert "waiting for the next batch, although workers" in verdict(simulate(pipeline, seconds=60))


def test_images_are_reported_if_the_batch_size_is_known() -> None:
    variant = PictureVariant("a", simulate(Pipeline(Times(0.3), Times(0.1), 4), batches=50), 64)
    assert "images/s" in facts(variant)["done"]
    assert "images/s" not in simulation_text([PictureVariant("a", variant.timeline)])


@pytest.mark.parametrize(
    ("pipelines", "title"),
    [
        ([Pipeline(Times(2.0), Times(0.1), 7)], "If loading cost nothing, training would be 3.1 times as fast"),
        (
            [Pipeline(Times(0.1), Times(0.1), 8, copy=Times(0.05))],
            "If loading and copying cost nothing, training would be 1.51 times as fast",
        ),
        (
            [Pipeline(Times(2.0), Times(0.1), 7), Pipeline(Times(0.35), Times(0.1), 7)],
            "Training would be 3.0 times as fast: 9.87 instead of 3.27 batches/s",
        ),
        ([Pipeline(Times(60.0), Times(0.1), 7)], "Training gets no batch in this time"),
    ],
)
def test_a_page_has_the_result_as_its_title_and_refers_to_nothing_outside(
    pipelines: list[Pipeline], title: str
) -> None:
    page, again = (
        simulation_html([PictureVariant("a", simulate(pipeline, seconds=30)) for pipeline in pipelines])
        for _ in range(2)
    )
    assert page == again
    assert f"<h1>{title}</h1>" in page and f"<title>presize: {title}</title>" in page
    attributes = parsed(page).attributes
    assert not {"src", "href", "srcset", "action"} & {name for name, _ in attributes}
    assert "url(" not in page
    assert ("content", picture_policy()) in attributes
    assert "default-src 'none'" in picture_policy()


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_a_browser_pages_are_skipped_but_not_in_ci(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="apt-get install chromium"), chromium():
        pass
