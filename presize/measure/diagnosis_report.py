"""A diagnosis -> text for a terminal, and a page. Pure."""

from __future__ import annotations

import textwrap
from functools import partial

from presize.formatting import duration, factor_text, plural, rate_text, seconds_text
from presize.measure.diagnosis import WORDS, Diagnosis
from presize.measure.profile import PARTS
from presize.measure.simulation import Timeline
from presize.measure.simulation_report import PictureVariant, picture, picture_policy
from presize.measure.stages import interval_text
from presize.pages import charts
from presize.pages.html import template

_ALIKE = 0.05
"""Shares of the time that differ by less count as the same."""


def result(found: Diagnosis) -> str:
    """What loading costs, in plain words, without a full stop.

    The bottleneck and the share of the time that the step is busy (`found.headline`) are its reason.
    """
    hardly = "Training hardly waits: if loading cost nothing, it" if found.stages.bottleneck == "compute" else ""
    return f"{hardly or 'If loading cost nothing, training'} would be {factor_text(found.stages.bound)} times as fast"


def explanation(found: Diagnosis) -> str:
    """Return what the result rests on: the bottleneck, what stalls training, and the best advice."""
    faster = ""
    if found.advice and found.advice[0].gain.low > found.stages.bound:
        faster = " That is more than loading costs, since a step on its batches is faster, too."
    return f"{found.headline}. {found.explanation}{faster}"


def diagnosis_text(found: Diagnosis, width: int = 100) -> str:
    """The result, why, what to do and its gain, and the evidence, in lines of at most `width` characters."""
    lines = [f"{result(found)}.", "", *textwrap.wrap(explanation(found), width), ""]
    if found.advice:
        lines.append("What to do (gains do not add up):")
        for advice in found.advice:
            rate, gain = interval_text(advice.images_per_s, rate_text), interval_text(advice.gain, factor_text)
            lines.append(f"  {rate:>12} images/s, {gain:>10} ×   {advice.what}")
        lines.append("")
    known = list(found.evidence())
    column = max(len(what) for what, _ in known)
    lines += [f"{what.ljust(column)}  {how}" for what, how in known]
    if found.by_workers:
        gains = "   ".join(f"{workers}: {factor_text(gain)}" for workers, gain in found.by_workers.items())
        lines += textwrap.wrap(
            f"{'by workers'.ljust(column)}  {gains} times as fast, simulated", width,
            subsequent_indent=" " * (column + 2),
        )  # fmt: skip
    if found.notes:
        lines += ["", *(line for note in found.notes for line in textwrap.wrap(note, width))]
    lines += ["", f"The diagnosis took {duration(found.seconds)}."]
    return "\n".join(lines)


def pictured(found: Diagnosis) -> list[PictureVariant]:
    """The pipeline as it is, and with the best advice: simulated, with the figures that were measured."""
    measured = [found.images_per_s, *(advice.images_per_s for advice in found.advice[:1])]
    sentences = [f"As measured: {interval_text(found.images_per_s, rate_text)} images/s."]
    sentences += [
        f"As tried: {interval_text(advice.images_per_s, rate_text)} images/s, "
        f"{interval_text(advice.gain, factor_text)} times the present rate."
        for advice in found.advice[:1]
    ]
    variants = []
    for (name, timeline), rate, sentence in zip(found.picture, measured, sentences, strict=True):
        utilisation = min(rate.value * timeline.pipeline.step.mean_s / found.loading.images, 1.0)
        said = f"{sentence} {difference(timeline, utilisation)}".rstrip()
        variants.append(PictureVariant(name, timeline, round(found.loading.images), said, utilisation))
    return variants


def difference(shown: Timeline, utilisation: float) -> str:
    """Return what a simulated pipeline shows of another utilisation than was measured, in a sentence; empty where it is
    about the same."""
    if abs(shown.utilisation - utilisation) < _ALIKE:
        return ""
    return f"In the animation, which is simulated, training works {shown.utilisation:.0%} of the time."


def diagnosis_page(found: Diagnosis, of: str) -> str:
    """A self-contained page. `of` names what was diagnosed; it is escaped, like all text."""
    loaders = {"now": found.loading, **{other.name: other.loading for other in found.alternatives}}
    spent = {
        name: {WORDS[part]: loading.parts.get(part, 0.0) for part in PARTS}
        for name, loading in loaders.items()
        if loading.parts
    }
    found_charts: list[charts.Lines] = []
    if spent:
        totals = {name: seconds_text(sum(parts.values())) for name, parts in spent.items()}
        found_charts.append(charts.shares("What one worker does for a batch", spent, totals))
    gains = {plural(count, "worker"): (gain, gain, gain) for count, gain in found.by_workers.items()}
    if gains:
        found_charts.append(charts.bars("Training, times as fast as now, simulated", gains))
    return template("diagnosis.html").render(
        found=found,
        result=result(found),
        explanation=explanation(found),
        of=of,
        policy=picture_policy(),
        picture=picture(pictured(found)),
        good=found.stages.bottleneck == "compute",
        evidence=list(found.evidence()),
        charts=found_charts,
        took=duration(found.seconds),
        rate=partial(interval_text, number=rate_text),
        factor=partial(interval_text, number=factor_text),
    )
