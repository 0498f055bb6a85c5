"""The animation in a browser: it plays, pauses and steps, and shows the numbers of the JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from browsers import Watched, colors, contrast
from presize.measure.simulation import Pipeline, Timeline, Times, simulate
from presize.measure.simulation_report import PictureVariant, picture, simulation_html

SEVEN = Pipeline(Times(2.0), Times(0.1), workers=7)
Watch = Callable[..., Watched]


class Picture:
    """A page with a picture, and the actions and observations of a user."""

    def __init__(self, watched: Watched) -> None:
        self.page = watched.page

    @property
    def at(self) -> float:
        return float(self.page.locator(".clock").get_attribute("data-value") or "nan")

    def number(self, of: str, variant: int = 0) -> float:
        return float(self.page.locator(f".variant >> nth={variant} >> .{of}").get_attribute("data-value") or "nan")

    def text(self, of: str, variant: int = 0) -> str:
        return self.page.locator(f".variant >> nth={variant} >> {of}").inner_text()

    def run(self, seconds: float) -> None:
        """Advance the page's clock."""
        self.page.clock.run_for(seconds * 1000)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture
def show(watch: Watch, tmp_path: Path) -> Callable[..., Picture]:
    def show(*timelines: Timeline, title: str = "a pipeline", batch: int | None = None, **options: object) -> Picture:
        page = tmp_path / "page.html"
        page.write_text(simulation_html([PictureVariant(title, one, batch) for one in timelines]), "utf-8")
        return Picture(watch(page, **options))

    return show


Show = Callable[..., Picture]


@pytest.mark.slow
def test_it_starts_paused_plays_at_the_chosen_speed_pauses_and_ends(show: Show) -> None:
    seen = show(simulate(SEVEN, seconds=30))
    begin = seen.at
    seen.run(1)
    assert seen.at == begin
    seen.page.get_by_role("button", name="Play").click()
    seen.run(1)
    played = seen.at
    assert played - begin == pytest.approx(1, abs=0.3)  # of the page's own clock: the default speed is 1 ×
    seen.page.get_by_role("button", name="Pause").click()
    seen.run(1)
    assert seen.at == played
    seen.press("Home")
    seen.page.get_by_label("Speed").select_option("20")
    seen.page.get_by_role("button", name="Play").click()
    seen.run(1)
    assert seen.at == pytest.approx(20, abs=2)
    seen.run(1)
    assert seen.at == 30
    assert seen.page.get_by_role("button", name="Play").is_visible()


def test_it_starts_in_a_wait_of_all_variants_or_after_a_quarter(show: Show) -> None:
    quick = simulate(replace(SEVEN, load=Times(0.3)), batches=90)
    seen = show(simulate(SEVEN, batches=90), quick)
    assert 0 < seen.at < quick.seconds
    assert seen.text(".training").startswith("waits for batch ")
    assert seen.text(".training", 1).startswith("trains on batch ")
    assert seen.page.get_by_role("slider").input_value() == pytest.approx(str(seen.at))
    assert show(quick).at == pytest.approx(quick.seconds / 4, rel=1e-4)


@pytest.mark.slow
def test_it_works_by_keyboard_and_every_control_is_reachable_and_labelled(show: Show) -> None:
    seen = show(simulate(SEVEN, seconds=30))
    # Loaders are done, and training takes the first batch; then that batch is done.
    for keys, at in (("Home ArrowRight", 2.0), ("ArrowRight", 2.1), ("ArrowLeft ArrowLeft", 0), ("End", 30)):
        seen.press(*keys.split())
        assert seen.at == at
    seen.press("Home", "Space")
    seen.run(2)
    seen.press("Space")
    played = seen.at
    assert played > 0
    seen.run(2)
    assert seen.at == played
    seen.press("Home")
    reached = []
    for _ in range(5):
        seen.press("Tab")
        reached.append(seen.page.evaluate("document.activeElement.tagName"))
        assert seen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert reached == ["BUTTON", "BUTTON", "BUTTON", "SELECT", "INPUT"]
    for name in ("Play", "Previous event", "Next event"):
        assert seen.page.get_by_role("button", name=name).count() == 1
    assert seen.page.get_by_role("slider", name="Time").get_attribute("aria-valuetext") == "0.0 of 30.0 s"


PIPELINES = {
    "seven": SEVEN,
    "varying": Pipeline(Times(0.7, 0.5), Times(0.1, 0.3), workers=4, prefetch=3),
    "without workers": Pipeline(Times(0.2, 0.3), Times(0.1), workers=0),
    "out of order": Pipeline(Times(0.7, 0.9), Times(0.1), workers=4, in_order=False, pin=Times(0.01)),
    "copies": Pipeline(Times(0.4), Times(0.1), workers=4, copy=Times(0.05), stagger_s=0.1),
    "few cores": Pipeline(Times(0.3, 0.4), Times(0.1, 0.2), workers=4, cores=2, step_cores=1),
}


@pytest.mark.parametrize("seconds", [7.3, None], ids=["time is up", "batches are done"])
@pytest.mark.parametrize("name", ["copies", *(pytest.param(name, marks=pytest.mark.slow) for name in PIPELINES)])
def test_at_any_event_and_the_end_its_numbers_equal_the_json(show: Show, name: str, seconds: float | None) -> None:
    pipeline = PIPELINES[name]
    timeline = simulate(pipeline, seconds=seconds, batches=None if seconds else 25)
    seen = show(timeline)
    known = timeline.known()
    seen.press("Home")
    for _ in range(16):
        seen.press("ArrowRight")
        at = seen.at + 1e-6
        assert seen.number("batches") == sum(step[4] is not None and step[4] <= at for step in known["steps"])
        if pipeline.workers:
            waiting = [length for begin, length in known["queue"] if begin <= at][-1]
            assert seen.page.locator(".queue .ready").count() == waiting
    seen.press("End")
    assert seen.number("batches") == known["batches"]
    assert seen.number("utilisation") == pytest.approx(known["utilisation"], abs=1e-5)
    assert seen.number("waited") == pytest.approx(known["stall"], abs=1e-5)
    assert seen.text(".utilisation") == f"{known['utilisation']:.1%}"
    if pipeline.workers:
        count = known["queue"][-1][1]
        assert seen.text(".queued").startswith("no" if count == 0 else f"{count} finished batch")


def test_loaders_fill_and_training_names_what_it_waits_for(show: Show) -> None:
    seen = show(simulate(SEVEN, seconds=30))
    seen.page.get_by_role("slider").fill("1")
    assert seen.text(".loaders li >> nth=6") == "7\nbatch 7\n50%"
    assert seen.text(".training") == "waits for batch 1\nworker 1 has loaded 50% of it"
    seen.page.get_by_role("slider").fill("2.05")
    assert seen.text(".training") == "trains on batch 1\nbatch 2 is next"
    assert seen.text(".queued") == "6 finished batches"


def test_batches_out_of_turn_visibly_wait(show: Show) -> None:
    seen = show(simulate(Pipeline(Times.measured([0.1, 5.0]), Times(0.01), workers=3), batches=30, seed=3))
    texts = []
    seen.press("Home")
    for _ in range(60):
        seen.press("ArrowRight")
        texts.append(seen.text(".training"))
        if " queued behind it" in texts[-1]:
            first, *others = seen.page.locator(".queue li").all()
            assert "making" in str(first.get_attribute("class"))
            assert any("ready" in str(other.get_attribute("class")) for other in others)
            return
    pytest.fail("\n".join(texts))


def test_two_variants_share_a_clock_and_have_separate_numbers(show: Show) -> None:
    before = simulate(replace(SEVEN, workers=4), batches=40)
    after = simulate(replace(SEVEN, workers=4, load=Times(0.3)), batches=40)
    seen = show(before, after, batch=64)
    assert seen.page.locator(".controls").count() == 1
    seen.press("End")
    assert seen.at == pytest.approx(before.seconds)
    for number, timeline in enumerate((before, after)):
        assert seen.number("batches", number) == 40
        assert seen.number("utilisation", number) == pytest.approx(timeline.utilisation, abs=1e-5)
        assert seen.text(".images", number) == "2,560 images"
    assert seen.text(".training strong", 1) == f"done after {after.seconds:.2f} s"


HOSTILE_TITLE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}<!--"


def test_a_hostile_title_is_shown_as_text(show: Show) -> None:
    seen = show(simulate(SEVEN, seconds=3), title=HOSTILE_TITLE)
    assert seen.text("h3") == HOSTILE_TITLE
    seen.press("End")
    assert seen.number("batches") == 7


def test_a_foreign_script_does_not_run(watch: Watch, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    html = simulation_html([PictureVariant("a pipeline", simulate(SEVEN, seconds=3))])
    page.write_text(html.replace("<h1>", "<script>document.title = 'harm'</script><h1>"), "utf-8")
    watched = watch(page)
    assert watched.page.title().startswith("presize: ")
    assert ["Content Security Policy" in complaint for complaint in watched.complaints] == [True]
    watched.complaints.clear()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_it_fits_into_the_window_and_is_readable(show: Show, width: int, scheme: str) -> None:
    timelines = [simulate(SEVEN, seconds=30)] * 2
    seen = show(*timelines, title="word " * 30, viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert seen.page.evaluate("document.documentElement.scrollWidth") == width
    boxes = [variant.bounding_box() for variant in seen.page.locator(".variant").all()]
    assert (boxes[0]["y"] == boxes[1]["y"]) == (width == 1280)  # type: ignore[index]
    seen.page.get_by_role("slider").fill("2.05")
    for selector in (".variant h3", ".lane .said", ".lane .share", ".slot.ready", ".training .said", ".play", ".note"):
        assert contrast(*colors(seen.page, selector)) >= 4.5, selector


def test_it_prints_a_telling_moment(show: Show) -> None:
    seen = show(simulate(SEVEN, seconds=30))
    seen.page.emulate_media(media="print")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.text(".training strong").startswith("waits for batch ")
    assert not seen.page.locator(".controls").is_visible()
    assert seen.page.locator(".still").inner_text().endswith(" s after the start.")


def test_reduced_motion_shows_stills(show: Show) -> None:
    seen = show(simulate(SEVEN, seconds=30), reduced_motion="reduce")
    seen.page.get_by_role("button", name="Play").click()
    moments = set()
    for _ in range(40):
        seen.run(0.05)
        moments.add(seen.at)
    assert 2 <= len(moments) <= 6


def test_only_the_beginning_of_a_long_timeline_is_embedded(show: Show) -> None:
    timeline = simulate(replace(SEVEN, load=Times(0.35, 0.3)), seconds=600)
    assert all(len(picture([PictureVariant("long", timeline)] * count)) < 300_000 for count in (1, 2))
    seen = show(timeline)
    assert "The animation shows the first 1" in seen.text("> p.note")
    seen.press("End")
    assert 1490 <= seen.number("batches") <= 1500
    assert seen.number("utilisation") == pytest.approx(timeline.utilisation, abs=0.01)
