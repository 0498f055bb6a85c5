"""presize simulate: what it prints, writes and refuses, and that its documentation shows what it prints."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from browsers import chromium
from commands import Ran
from pages import parsed
from presize.measure.simulation import Pipeline, Times, simulate
from presize.measure.simulation_report import (
    PictureVariant,
    facts,
    picture_policy,
    simulation_html,
    simulation_text,
    verdict,
)

ROOT = Path(__file__).parents[2]
SEVEN = ("--workers", "7", "--load-ms", "2000", "--step-ms", "100")
Run = Callable[..., Ran]


@pytest.fixture
def run(presize: Run) -> Run:
    return functools.partial(presize, "simulate", *SEVEN)


def test_json_is_one_object_with_the_whole_timeline(run: Run) -> None:
    ran = run("--seconds", 30, "--json")
    found = json.loads(ran.out)
    known = simulate(Pipeline(Times(2.0), Times(0.1), 7), seconds=30).known()
    assert (ran.code, ran.err) == (0, "")
    assert found == json.loads(json.dumps(known)) | {"page": None}
    assert (found["batches"], found["utilisation"], found["stops_every"]) == (98, pytest.approx(98 / 300), 7)


def test_the_documentation_names_every_value_of_the_json_and_shows_what_is_printed(run: Run) -> None:
    found = json.loads(run("--json", "--sweep", 2, "--then-workers", 8).out)
    pages = [(ROOT / "docs" / name).read_text("utf-8") for name in ("simulate.md", "bottleneck.md")]
    assert [name for name in found if f"`{name}`" not in pages[0]] == []
    assert all(f"```\n{run('--seconds', 30).out}```\n" in page for page in pages)


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


def test_a_page_is_written_where_it_can_be(run: Run, tmp_path: Path) -> None:
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
            "but 8 cores are too few for them, so loading has to become 2.5 times as fast.",
        ),
        (Pipeline(Times(0.3), Times(0.1), 0), "as it loads each batch itself."),
        (Pipeline(Times(0.7, 0.5), Times(0.1), 7), "load times are uneven. More workers or more prefetch even"),
        (Pipeline(Times(0.1), Times(0.1), 8, pin=Times(0.5)), "Pinning is the bottleneck: training stalls"),
        (Pipeline(Times(0.1), Times(0.1), 8, copy=Times(0.05)), "Copying is the bottleneck: training works 6"),
    ],
)
def test_the_verdict_says_what_holds_training_up(pipeline: Pipeline, said: str) -> None:
    assert said in verdict(simulate(pipeline, seconds=60))


def test_images_are_told_where_the_batch_is_known() -> None:
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
def test_a_page_has_the_result_for_its_title_and_refers_to_nothing_outside(
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
