"""Conclusions from measured times: verdict, advice, predictions. No clock is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browsers import Watched
from pages import parsed
from presize.measure.diagnosis import Alternative, Diagnosis, Loading, diagnosis_page, diagnosis_text, pictured
from presize.measure.simulation import Times

PARTS: Any = {"read": 0.01, "decode": 0.04, "augment": 0.006, "collate": 0.002, "other": 0.002}


def loading(load_s: float = 0.06, workers: int = 1, **changes: Any) -> Loading:
    known: dict[str, Any] = {
        "images": 32.0, "load": Times(load_s), "in_process": Times(load_s), "handover_s": 0.0, "cores": 0.0,
        "workers": workers, "prefetch": 2, "in_order": True,
        "chosen": True, "batches_per_s": max(workers, 1) / load_s, "first_batch_s": 0.2, "parts": PARTS,
        "functions": (("<imdecode>", "decode", 0.6),),
    }  # fmt: skip
    return Loading(**known | changes)


# 0.8 cores limit simulations to 8 workers, because loading only waits in these tests.
def diagnosis(step_s: float = 0.02, trained_s: float = 0.06, **changes: Any) -> Diagnosis:
    known: dict[str, Any] = {
        "loading": loading(), "step": Times(step_s), "step_cores": 0.0, "copied_s": step_s,
        "rates": (32 / trained_s,) * 3, "batches": 100, "start_s": 0.2, "epoch_batches": None, "cores": 0.8,
        "device": "cpu",
    }  # fmt: skip
    return Diagnosis(**known | changes)


def another(name: str, loading: Loading, step_s: float = 0.02) -> Alternative:
    return Alternative(name, loading, Times(step_s))


def tried(found: Diagnosis, *factors: float) -> Diagnosis:
    """Return a diagnosis with all of its changes tried, in rounds with these speed-ups."""
    given = factors or (2.0, 2.0, 2.0)
    rates = tuple(factor * now for factor, now in zip(given, found.rates, strict=True))
    return found.with_trials((change, rates, 0.0) for change in found.changes())


def options(found: Diagnosis) -> list[dict[str, Any]]:
    return [dict(change.options) for change in found.changes()]


def test_a_slow_loader_is_named_with_its_slowest_part() -> None:
    found = diagnosis()
    assert found.verdict.startswith("Loading is the bottleneck: the training step is busy 33% of the time. ")
    assert "Preparing batches stalls training 67% of the time" in found.verdict
    assert "A worker takes 60 ms per batch, 67% of it for decoding." in found.verdict


def test_the_smallest_sufficient_number_of_workers_is_tried() -> None:
    (change,) = diagnosis().changes()
    assert (change.what, change.options) == ("Use 3 workers instead of 1.", {"num_workers": 3})
    assert diagnosis().simulated(change.pipeline) == pytest.approx(32 / 0.02, rel=0.02)
    found = diagnosis(trained_s=0.03)  # faster than its measured loader
    assert found.simulated(found.pipeline(workers=8)) <= 32 / 0.02, "none is faster than the step alone"


def test_another_loader_is_always_tried_with_as_many_workers_as_it_needs() -> None:
    quick = another("Quick", loading(0.015))
    found = diagnosis(alternatives=(quick, another("Unknown", loading(0.03, chosen=False))), cores=1.0)
    changes = {change.what: change for change in found.changes()}
    assert changes["Quick with 1 worker."].alternative == 0
    assert changes["Unknown."].options == {}
    busy = diagnosis(step_s=0.1, trained_s=0.1, alternatives=(quick,))
    assert [change.what for change in busy.changes()] == ["Quick with 1 worker."]


def test_changes_without_effect_in_the_simulation_are_not_tried() -> None:
    even = loading(0.04, workers=2)  # two of them load as fast as the step trains
    assert options(diagnosis(loading=even, trained_s=0.03)) == []
    uneven = loading(workers=4, load=Times(0.06, 1.0), in_process=Times(0.06, 1.0))
    assert {"in_order": False} in options(diagnosis(loading=uneven, trained_s=0.03))
    assert options(diagnosis(loading=loading(chosen=False))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"device": "cuda"}, {"pin_memory": True}),
        ({"epoch_batches": 10, "loading": loading(persistent=False)}, {"persistent_workers": True}),
    ],
)
def test_changes_outside_the_simulation_are_tried_if_they_can_help(
    changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert expected in options(diagnosis(**changes))
    pinned = replace(loading(), pinned=True, persistent=True)
    assert expected not in options(diagnosis(**changes | {"loading": pinned}))


def test_advice_lists_tried_changes_with_gain_and_error() -> None:
    (advice,) = tried(diagnosis(), 2.0, 2.1, 1.9).advice
    assert advice.gain.value == pytest.approx(2, rel=0.01)
    assert 0.1 < advice.gain.error < 0.25
    assert advice.gain.low < 1.9 and advice.gain.high > 2.1
    assert "images/s, 2.0 ± 17% times the present 533." in tried(diagnosis(), 2.0, 2.1, 1.9).verdict


def test_gains_that_may_be_chance_are_not_advised_and_varying_ones_are_a_range() -> None:
    assert tried(diagnosis(), 1.5, 0.9, 1.4).advice == ()
    assert tried(diagnosis(), 1.04, 1.04, 1.04).advice == ()
    assert "No change that was tried made training more than 5% faster" in tried(diagnosis(), 1.0, 1.0, 1.0).verdict
    assert tried(replace(diagnosis(), rates=(500.0,)), 1.2).advice == (), "a single round may be off by a quarter"
    assert "1.44 to 3.5 times the present" in tried(diagnosis(), 2.0, 2.6, 2.2).verdict
    vague = tried(diagnosis(), 1.0, 1.6, 1.3)
    assert vague.advice == ()
    assert "Too few batches to measure these changes: Use 3 workers instead of 1. Measure" in vague.verdict


def test_rates_that_agree_by_chance_have_the_error_of_everything_that_was_measured() -> None:
    found = tried(diagnosis(noise=0.15), 1.2, 1.2, 1.2)
    assert found.images_per_s.error == pytest.approx(0.15 * math.sqrt(4 / 3))
    (trial,) = found.tried
    assert (trial.images_per_s.error, trial.gain.error) == (found.images_per_s.error, 0.02)


def test_variation_within_a_round_widens_the_error() -> None:
    found = tried(diagnosis(within=0.05))
    assert found.images_per_s.error == pytest.approx(0.116, abs=0.001)
    assert [advice.gain.error for advice in found.advice] == [pytest.approx(0.116, abs=0.001)]


def test_the_slow_code_and_a_late_start_of_an_epoch_are_named() -> None:
    found = diagnosis(own_python=(0.01, "./project/train.py:log"))
    said = "10 ms of a step of 20 ms is CPU time of Python in the training loop, most of it in ./project/train.py:log"
    assert said in found.verdict
    mine = loading(parts={"other": 0.06}, frames={"./project/train.py:augment": 0.9})
    assert "100% of it for other code, most of it in ./project/train.py:augment." in diagnosis(loading=mine).verdict
    installed = loading(
        parts={"other": 0.06},
        functions=(("<built-in method torch.randint>", "other", 0.6), ("torch/storage.py:fill", "other", 0.4)),
    )
    assert ", most of it in <built-in method torch.randint>." in diagnosis(loading=installed).verdict
    scattered = loading(parts={"other": 0.06}, functions=(("torch/storage.py:fill", "other", 0.4),))
    assert "100% of it for other code." in diagnosis(loading=scattered).verdict
    late = diagnosis(epoch_batches=10, trained_s=0.08)
    assert late.start_share == pytest.approx(0.25)
    assert "25% of an epoch passes before its first batch." in late.verdict
    assert late.simulated_now == pytest.approx(320 / (0.2 + 10 * 0.06), rel=0.02)


def test_with_compute_as_the_bottleneck_advice_is_about_the_step() -> None:
    busy = tried(diagnosis(step_s=0.1, trained_s=0.1, layout_step=Times(0.08)), 1.2, 1.2, 1.2)
    assert busy.known()["bottleneck"] == "compute"
    assert [trial.change.options for trial in busy.tried] == [{"channels_last": True}]
    assert "The step itself can become faster. Give the step batches in channels-last memory" in busy.verdict


def test_the_animation_shows_the_measurements_and_names_differences() -> None:
    (alike,), (slower,) = pictured(diagnosis()), pictured(diagnosis(trained_s=0.12))  # slow, reason unknown
    assert (alike.utilisation, slower.utilisation) == (pytest.approx(1 / 3), pytest.approx(1 / 6))
    assert str(alike.sentence).endswith("± 2% images/s.")
    said = "In the animation, which is simulated, training works 33% of the time."
    assert str(slower.sentence).endswith(f"± 2% images/s. {said}")


@pytest.mark.parametrize(
    ("trained_s", "result"),
    [
        (0.06, "If loading cost nothing, training would be 3.0 times as fast"),
        (0.02, "Training hardly waits: if loading cost nothing, it would be 1.00 times as fast"),
    ],
)
def test_its_title_is_the_result_in_plain_words(trained_s: float, result: str) -> None:
    found = diagnosis(trained_s=trained_s)
    page = diagnosis_page(found, "RAW")
    assert f">{result}</h1>" in page and f"<title>presize: {result}</title>" in page
    assert diagnosis_text(found).startswith(f"{result}.\n")


def test_the_evidence_says_how_far_the_simulation_is_from_the_measurement() -> None:
    found = diagnosis(trained_s=0.12)  # twice as slow as simulated, without a known reason
    assert found.disagreement == pytest.approx(math.log(2), rel=0.02)
    assert found.simulated(found.pipeline(workers=3)) == pytest.approx(32 / 0.02, rel=0.02), "it is not corrected"
    assert found.by_workers[1] == pytest.approx(1)
    assert found.by_workers[3] == pytest.approx(3, rel=0.02)
    assert "69% from the measured rate" in diagnosis_text(found)


def test_workers_and_the_step_share_the_cores() -> None:
    # 60 ms of a core for loading and 20 for the step: 80 ms on one core.
    found = diagnosis(trained_s=0.08, step_cores=1.0, cores=1.0, loading=loading(cores=1.0))
    assert found.simulated(found.pipeline(workers=2)) == pytest.approx(32 / 0.08, rel=0.05)


def test_everything_is_in_the_json() -> None:
    found = diagnosis(alternatives=(another("Other", loading(0.01)),), notes=("A note.",), storage_images_per_s=900.0)
    known = json.loads(json.dumps(tried(found).known()))
    assert known["utilisation"] == pytest.approx(1 / 3)
    assert known["images_per_s"] == {"value": pytest.approx(32 / 0.06), "error": 0.02}
    assert known["possible_images_per_s"] == pytest.approx(32 / 0.02)
    assert known["advice"][0]["gain"]["value"] == pytest.approx(2)
    assert set(known["workers"]) >= {"0", "1", "8"}


def test_the_text_has_the_verdict_first_then_the_advice_then_the_evidence() -> None:
    text = diagnosis_text(tried(diagnosis(storage_images_per_s=900.0, notes=("It was late.",))))
    order = "If loading cost nothing; Loading is the bottleneck; What to do; 2.0 ± 2% ×; disk  ; by workers; It was"
    places = [text.index(words) for words in order.split("; ")]
    assert places == sorted(places)
    assert max(map(len, text.splitlines())) <= 100


def test_the_page_has_the_same_content_is_self_contained_and_escapes_its_input() -> None:
    hostile = "<script>alert(1)</script>"
    found = tried(diagnosis(alternatives=(another(hostile, loading(0.001)),), notes=(hostile,)))
    page = diagnosis_page(found, hostile)
    assert found.headline in page and found.explanation.split(". ")[0] in page
    assert hostile not in page and "&lt;script&gt;alert(1)" in page
    assert not re.search(r"(src|href)=.?https?:", page)


@pytest.mark.slow
def test_the_page_plays_the_present_and_the_possible_pipeline(watch: Callable[..., Watched], tmp_path: Path) -> None:
    found = tried(diagnosis())
    (tmp_path / "page.html").write_text(diagnosis_page(found, "RAW"), "utf-8")
    page = watch(tmp_path / "page.html").page
    assert page.locator(".variant h3").all_inner_texts() == ["as it is", "Use 3 workers instead of 1"]
    clock = page.locator(".clock")
    begin = clock.get_attribute("data-value")
    for key in ("Space", "ArrowRight"):  # keys that scroll: the picture does not have the focus
        page.keyboard.press(key)
    assert clock.get_attribute("data-value") == begin
    page.locator(".picture").focus()
    page.keyboard.press("End")
    done = [int(text) for text in page.locator(".variant .batches").all_inner_texts()]
    assert done == [shown.timeline.batches for shown in pictured(found)]


def test_a_notebook_shows_the_verdict_the_advice_and_the_evidence() -> None:
    found = tried(diagnosis(notes=("<b>slow</b>",)))
    shown = " ".join(parsed(found._repr_html_()).text)
    for words in (found.headline, found.explanation, "<b>slow</b>", *(advice.what for advice in found.advice)):
        assert words in shown
    for what, how in found.evidence():
        assert what.strip() in shown
        assert how in shown
