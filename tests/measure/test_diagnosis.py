"""What is said about measured times: verdict, advice, predictions. No clock is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browsers import Watched
from pages import parsed
from presize.errors import OptionError
from presize.measure.bench_options import DiagnoseOptions
from presize.measure.diagnosis import WORTH_WHILE, Alternative, Diagnosis, Loading
from presize.measure.diagnosis_report import diagnosis_page, diagnosis_text, difference
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


# The cores are so few that up to 8 workers are simulated: loading here only waits, and needs none of them.
def diagnosis(step_s: float = 0.02, trained_s: float = 0.06, **changes: Any) -> Diagnosis:
    known: dict[str, Any] = {
        "loading": loading(), "step": Times(step_s), "step_cores": 0.0, "copied_s": step_s, "trained_s": trained_s,
        "batches": 100, "warmup_steps": 1, "cores": 0.8, "device": "cpu",
    }  # fmt: skip
    return Diagnosis(**known | changes)


def another(name: str, loading: Loading, step_s: float = 0.02) -> Alternative:
    return Alternative(name, loading, Times(step_s))


def test_a_loader_that_is_too_slow_is_named_with_its_slowest_part_and_the_fewest_workers_that_suffice() -> None:
    found = diagnosis()
    assert found.verdict.startswith("Loading is the bottleneck: the training step is busy 33% of the time. ")
    assert "Preparing batches stalls training 67% of the time" in found.verdict
    assert "A worker takes 60 ms per batch, 67% of it for decoding." in found.verdict
    best = found.advice[0]
    assert best.what == "Use 3 workers instead of 1."
    assert best.gain == pytest.approx(3, rel=0.02)
    assert best.images_per_s == pytest.approx(32 / 0.02, rel=0.02)


def test_another_loader_is_advised_with_what_it_would_give_compared_by_images() -> None:
    found = diagnosis(
        alternatives=(another("A", loading(0.015)), another("B", loading(0.030, images=64.0), 0.04)), cores=1.0
    )
    advice = {advice.what: advice for advice in found.advice}
    assert advice["A with 1 worker."].gain == pytest.approx(3, rel=0.02)
    assert advice["B with 1 worker."].images_per_s == pytest.approx(advice["A with 1 worker."].images_per_s)


def test_another_loader_counts_with_what_the_step_takes_on_its_batches() -> None:
    found = diagnosis(alternatives=(another("Quick", loading(0.005), step_s=0.01),), trained_s=0.06)
    assert found.advice[0].what == "Quick with 1 worker."
    assert found.advice[0].images_per_s == pytest.approx(32 / 0.01, rel=0.02)
    assert found.known()["alternatives"]["Quick"]["resident_s"] == 0.01
    alone = diagnosis(alternatives=(another("Quick", loading(0.005)),))
    assert alone.advice[0].split == "" and "from the layout" not in diagnosis_text(alone)


def test_the_gain_of_another_loader_is_split_into_loading_and_the_layout_of_its_batches() -> None:
    quick = another("Quick", loading(0.005), step_s=0.016)
    found = diagnosis(step_s=0.02, trained_s=0.022, loading=loading(0.022), alternatives=(quick,))
    assert found.verdict.startswith("Loading and compute are balanced: the training step is busy 91% of the time.")
    best = found.advice[0]
    assert best.loading_gain * best.step_gain == pytest.approx(best.gain)
    assert best.loading_gain == pytest.approx(1.1, rel=0.02)
    assert best.step_gain == pytest.approx(1.25, rel=0.02)
    words = "1.10 × from loading, 1.25 × from the layout of its batches"
    assert words in found.verdict and words in diagnosis_text(found) and words in diagnosis_page(found, "RAW")
    assert found.known()["advice"][0]["step_gain"] == best.step_gain


def test_where_compute_is_the_bottleneck_a_faster_step_alone_is_advised() -> None:
    busy = diagnosis(step_s=0.1, trained_s=0.1)
    assert busy.verdict.startswith("Compute is the bottleneck: the training step is busy 100% of the time.")
    assert busy.advice == () and diagnosis_text(busy).startswith("Compute is the bottleneck")
    found = diagnosis(step_s=0.1, trained_s=0.1, alternatives=(another("Quick", loading(0.005), step_s=0.08),))
    assert found.known()["bottleneck"] == "compute"
    assert [advice.what for advice in found.advice] == ["Quick with 1 worker."]
    assert found.advice[0].gain == pytest.approx(1.25, rel=0.02)


def test_the_animation_says_as_much_of_waiting_as_was_measured_or_why_it_does_not() -> None:
    assert difference(diagnosis()) == ""
    # Both want the only core: the step takes longer beside the loader, which the animation shows as training.
    slowed = diagnosis(
        trained_s=0.08, cores=1.0, step_cores=1.0, load_slowdown=1.25, step_slowdown=2.0, loading=loading(cores=1.0)
    )
    shown = slowed.picture[0][1]
    said = difference(slowed)
    assert said.startswith(f"The animation shows it waiting {shown.stall:.0%} of the time, not 75%: a step takes ")
    assert said.endswith(" and 20 ms alone.")
    assert said in diagnosis_page(slowed, "RAW")


def test_advice_that_helps_little_is_not_given() -> None:
    found = diagnosis(step_s=0.055, trained_s=0.06)
    assert all(advice.gain >= WORTH_WHILE for advice in found.advice)
    slower = diagnosis(alternatives=(another("Slower", loading(0.2, chosen=False)),), loading=loading(chosen=False))
    assert slower.advice == ()
    assert "Nothing that was simulated would make it more than 5% faster" in slower.verdict
    assert diagnosis(loading=loading(chosen=False)).advice == (), "its workers cannot be changed"


def test_pinned_memory_is_advised_where_it_was_faster() -> None:
    found = diagnosis(device="cuda", copied_s=0.022, unpinned_s=0.03, loading=loading(chosen=False))
    assert found.advice[0].what == "Pin memory: pin_memory=True."
    assert found.advice[0].gain == pytest.approx(0.06 / 0.052)
    assert replace(found, pinned=True).advice == ()


def saturated(rate: float, **changes: Any) -> Loading:
    """Loading that keeps a core busy, of which two workers at once made `rate` batches/s."""
    return loading(cores=1.0, saturation=(2, rate), **changes)


def test_cores_that_are_none_are_not_counted() -> None:
    # One worker makes a batch in 60 ms; two of them should make 33 a second, and made 25.
    found = diagnosis(trained_s=0.06, cores=2.0, loading=saturated(25))
    assert found.free_cores == pytest.approx(2 * 25 * 0.06 / 2)
    assert found.by_workers[2] == pytest.approx(32 * 25, rel=0.02)
    assert diagnosis(cores=8.0).free_cores == 8.0
    assert diagnosis(loading=saturated(2 / 0.06), cores=8.0).free_cores == pytest.approx(8)


@pytest.mark.parametrize(
    ("changes", "workers", "cycle_s", "agreement"),
    [
        # 60 ms of a core for loading and 20 for the step: on one core that is 80.
        (
            {"trained_s": 0.08, "step_cores": 1.0, "cores": 1.0, "load_slowdown": 1.25, "step_slowdown": 1.5}
            | {"loading": loading(cores=1.0)},
            2, 0.08, pytest.approx(1, rel=0.2),
        ),
        # Loading takes half as long again while training runs, though there are cores enough.
        ({"trained_s": 0.09, "load_slowdown": 1.5}, 2, 0.045, pytest.approx(1, rel=0.02)),
        # Something that is not known makes training twice as slow as loading: predictions are corrected by that.
        ({"trained_s": 0.12}, 1, 0.12, pytest.approx(2, rel=0.02)),
        # Without workers, loading is simulated between steps.
        ({"trained_s": 0.08, "loading": loading(workers=0)}, 0, 0.08, pytest.approx(1, rel=0.02)),
    ],
    ids=["shared cores", "slower for no known reason", "a simulation that is off", "no workers"],
)  # fmt: skip
def test_predictions_go_by_what_was_measured_of_training(
    changes: dict[str, Any], workers: int, cycle_s: float, agreement: Any
) -> None:
    found = diagnosis(**changes)
    assert found.agreement == agreement
    assert found.predict(found.pipeline(workers=workers)) == pytest.approx(32 / cycle_s, rel=0.05)


def test_no_prediction_is_faster_than_the_step_alone() -> None:
    found = diagnosis(trained_s=0.03)  # faster than was measured of its loader
    assert found.predict(found.pipeline(workers=8)) <= 32 / 0.02


def test_all_that_is_known_is_json() -> None:
    found = diagnosis(alternatives=(another("Other", loading(0.01)),), notes=("A note.",), storage_images_per_s=900.0)
    known = json.loads(json.dumps(found.known()))
    assert known["utilisation"] == pytest.approx(1 / 3)
    assert known["images_per_s"] == pytest.approx(32 / 0.06)
    assert known["possible_images_per_s"] == pytest.approx(32 / 0.02)
    assert known["advice"][0]["gain"] == pytest.approx(3, rel=0.02)
    assert set(known["workers"]) >= {"0", "1", "8"}


def test_the_text_says_the_verdict_first_then_what_to_do_then_why() -> None:
    text = diagnosis_text(diagnosis(storage_images_per_s=900.0, notes=("It was late.",)))
    order = ["Loading is the bottleneck", "stalls training", "What to do", "3.0 ×", "disk  ", "by workers", "It was"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert max(map(len, text.splitlines())) <= 100


def test_the_page_says_the_same_needs_nothing_else_and_escapes_what_it_is_told() -> None:
    hostile = "<script>alert(1)</script>"
    found = diagnosis(alternatives=(another(hostile, loading(0.001)),), notes=(hostile,))
    page = diagnosis_page(found, hostile)
    assert found.headline in page and found.explanation.split(". ")[0] in page
    assert hostile not in page and "&lt;script&gt;alert(1)" in page
    assert not re.search(r"(src|href)=.?https?:", page)


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", -1), ("batch", 0), ("crop", 0), ("steps", 2), ("seconds", 0), ("model", "vgg"), ("device", "tpu")],
)
def test_options_that_cannot_be_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name):
        DiagnoseOptions(**{name: value})


def test_the_page_plays_what_is_and_what_could_be(watch: Callable[..., Watched], tmp_path: Path) -> None:
    found = diagnosis()
    (tmp_path / "page.html").write_text(diagnosis_page(found, "RAW"), "utf-8")
    page = watch(tmp_path / "page.html").page
    assert page.locator(".variant h3").all_inner_texts() == ["as it is", "Use 3 workers instead of 1"]
    page.keyboard.press("Space")  # which scrolls: the picture does not have the focus
    page.locator(".picture").focus()
    page.keyboard.press("End")
    done = [int(text) for text in page.locator(".variant .batches").all_inner_texts()]
    assert done == [timeline.batches for _, timeline in found.picture]


def test_a_notebook_shows_the_verdict_the_advice_and_the_evidence() -> None:
    found = diagnosis(notes=("<b>slow</b>",))
    shown = " ".join(parsed(found._repr_html_()).text)
    for words in (found.headline, found.explanation, "<b>slow</b>", *(advice.what for advice in found.advice)):
        assert words in shown
    for what, how in found.evidence():
        assert what.strip() in shown
        assert how in shown
