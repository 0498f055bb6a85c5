"""presize simulate: what it prints, writes and refuses, and that its documentation shows what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browsers import chromium
from presize.cli import main
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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[object, str, str]]:
    """presize simulate in this process: exit code, standard output, standard error."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(*args: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as exit, pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.simplefilter", lambda *_: None)
            main(["simulate", *map(str, args)])
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    return run


Run = Callable[..., tuple[object, str, str]]


def test_json_is_one_object_with_the_whole_timeline(run: Run) -> None:
    code, out, err = run(*SEVEN, "--seconds", 30, "--json")
    found = json.loads(out)
    known = simulate(Pipeline(Times(2.0), Times(0.1), 7), seconds=30).known()
    assert (code, err) == (0, "")
    assert found == json.loads(json.dumps(known)) | {"page": None}
    assert (found["batches"], found["utilisation"], found["stops_every"]) == (98, pytest.approx(98 / 300), 7)


def test_the_documentation_names_every_value_of_the_json(run: Run) -> None:
    _, out, _ = run(*SEVEN, "--json", "--sweep", 2, "--then-workers", 8)
    page = (ROOT / "docs" / "simulate.md").read_text("utf-8")
    assert [name for name in json.loads(out) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", ["docs/bottleneck.md", "docs/simulate.md"])
def test_the_documentation_shows_what_is_printed(run: Run, page: str) -> None:
    assert f"```\n{run(*SEVEN, '--seconds', 30)[1]}```\n" in (ROOT / page).read_text("utf-8")


def test_options_reach_the_simulation(run: Run) -> None:
    options = {
        "--prefetch": 3, "--cv": 0.3, "--pin-ms": 20, "--copy-ms": 30, "--cores": 4, "--stagger-ms": 250, "--seed": 5,
    }  # fmt: skip
    _, out, _ = run(*SEVEN, *sum(options.items(), ()), "--out-of-order", "--seconds", 20, "--json")
    pipeline = Pipeline(
        Times(2.0, 0.3), Times(0.1), 7, 3, Times(0.02), Times(0.03), in_order=False, stagger_s=0.25, cores=4
    )
    assert json.loads(out)["steps"] == simulate(pipeline, seconds=20, seed=5).known()["steps"]


def test_two_pipelines_are_compared(run: Run) -> None:
    _, out, _ = run(*SEVEN, "--then-load-ms", 350, "--then-workers", 5, "--json")
    found = json.loads(out)
    assert (found["batches"], found["workers"]) == (98, 7)
    assert found["then"] == simulate(Pipeline(Times(0.35), Times(0.1), 5), seconds=30).known()
    _, text, _ = run(*SEVEN, "--then-load-ms", 350)
    assert "before: 7 workers, 2 s per batch:\n" in text
    assert "3.0 times as fast: 9.87 instead of 3.27 batches/s.\n" in text


def test_a_sweep_says_how_many_workers_are_enough(run: Run) -> None:
    _, out, _ = run(*SEVEN, "--sweep", 24, "--json")
    found = json.loads(out)
    assert found["fewest_workers"] == 19
    assert found["sweep"][7] == {"workers": 7, "batches_per_s": pytest.approx(3.5), "utilisation": pytest.approx(0.35)}
    _, text, _ = run(*SEVEN, "--sweep", 24)
    assert text.endswith("19 workers: the fewest within 5% of the fastest.\n")
    assert run(*SEVEN, "--sweep", 9)[1].endswith("9 workers: the fastest of these; more may be faster still.\n")


def test_a_page_is_written(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = run(*SEVEN, "-o", page)
    assert code == 0
    assert out.endswith(f"\npage: {page}\n")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert json.loads(run(*SEVEN, "-o", page, "--json")[1])["page"] == str(page)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--load-ms", 0), "--load-ms: expected milliseconds above 0 up to 1e9, got 0"),
        (("--load-ms", -5), "--load-ms: expected milliseconds above 0 up to 1e9, got -5"),
        (("--load-ms", "nan"), "--load-ms: expected milliseconds above 0 up to 1e9, got nan"),
        (("--step-ms", 0), "--step-ms: expected milliseconds above 0 up to 1e9, got 0"),
        (("--pin-ms", -1), "--pin-ms: expected milliseconds from 0 up to 1e9, got -1"),
        (("--then-load-ms", 0), "--then-load-ms: expected milliseconds above 0 up to 1e9, got 0"),
        (("--then-workers", -1), "--then-workers: expected a whole number from 0 to 1024, got -1"),
        (("--workers", -1), "--workers: expected a whole number from 0 to 1024, got -1"),
        (("--prefetch", 0), "--prefetch: expected a whole number from 1 to 1024, got 0"),
        (("--seconds", 0), "--seconds: expected a number above 0, got 0.0"),
        (("--seconds", "inf"), "--seconds: expected a number above 0, got inf"),
        (("--cv", -1), "--cv: expected a number from 0 to 100, got -1.0"),
        (("--cores", 0), "--cores: expected a number above 0, got 0.0"),
        (("--seed", -1), "--seed: expected a whole number from 0 to"),
        (("--sweep", 0), "--sweep: expected a whole number from 1 to 1024, got 0"),
        (("--load-ms", "slow"), "Invalid value for '--load-ms'"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_option(run: Run, args: tuple[object, ...], message: str) -> None:
    code, out, err = run(*SEVEN, *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"presize: error: {message}")
    assert err.count("\n") == 1


def test_a_page_that_cannot_be_written_is_a_failure(run: Run, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    code, out, err = run(*SEVEN, "-o", tmp_path / "page.html")
    assert (code, out) == (2, "")
    assert err.startswith(f"presize: error: -o: {tmp_path / 'page.html'} is a folder; give the name of a file.")


def test_a_page_in_no_folder_is_wrong_use(run: Run, tmp_path: Path) -> None:
    code, out, err = run(*SEVEN, "-o", tmp_path / "none" / "page.html")
    assert (code, out) == (2, "")
    assert f"-o: {tmp_path / 'none'} is not a folder" in err


# Verdicts


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        (Pipeline(Times(0.3), Times(0.1), 4), "Compute is the bottleneck: training works 99% of the time."),
        (Pipeline(Times(2.0), Times(0.1), 7), "20 workers, or loading 2.9 times as fast, would keep up."),
        (
            Pipeline(Times(2.0), Times(0.1), 7, cores=8),
            "but 8 cores are too few for them, so loading has to become 2.5 times as fast.",
        ),
        (Pipeline(Times(0.3), Times(0.1), 0), "as it loads each batch itself."),
        (
            Pipeline(Times(0.7, 0.5), Times(0.1), 7),
            "load times are uneven. More workers or more prefetch even",
        ),
        (Pipeline(Times(0.1), Times(0.1), 8, pin=Times(0.5)), "Pinning is the bottleneck: training stalls"),
        (Pipeline(Times(0.1), Times(0.1), 8, copy=Times(0.05)), "Copying is the bottleneck: training works 6"),
    ],
)
def test_the_verdict_says_what_holds_training_up(pipeline: Pipeline, said: str) -> None:
    assert said in verdict(simulate(pipeline, seconds=60))


def test_images_are_told_where_the_batch_is_known() -> None:
    variant = PictureVariant("a", simulate(Pipeline(Times(0.3), Times(0.1), 4), batches=50), 64)
    assert "images/s" in dict(facts(variant))["done"]
    assert "images/s" not in simulation_text([PictureVariant("a", variant.timeline)])


# The page as text


class Elements(HTMLParser):
    """All tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_refers_to_nothing_outside_and_names_its_script() -> None:
    html = simulation_html([PictureVariant("a", simulate(Pipeline(Times(0.3), Times(0.1), 4), batches=5))])
    parser = Elements()
    parser.feed(html)
    assert not [attrs for _, attrs in parser.found if {"src", "href", "srcset", "action"} & set(attrs)]
    assert "url(" not in html
    policies = [attrs["content"] for _, attrs in parser.found if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [picture_policy()]
    assert "default-src 'none'" in picture_policy()


def test_the_page_is_the_same_for_the_same_timelines() -> None:
    pages = {
        simulation_html([PictureVariant("a", simulate(Pipeline(Times(1), Times(1), 2), seconds=9))]) for _ in range(2)
    }
    assert len(pages) == 1


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_a_browser_pages_are_skipped_but_not_in_ci(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="apt-get install chromium"), chromium():
        pass
