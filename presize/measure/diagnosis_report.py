"""A diagnosis -> text for a terminal, and a page. Pure."""

from __future__ import annotations

import math
import textwrap
from functools import partial
from statistics import fmean

import numpy as np

from presize.formatting import duration, factor_text, plural, rate_text, seconds_text
from presize.measure.diagnosis import WORDS, Diagnosis
from presize.measure.profile import PARTS
from presize.measure.simulation_report import PictureVariant, picture, picture_policy
from presize.measure.stages import interval_text
from presize.pages import charts
from presize.pages.html import template

_ALIKE = 0.05
"""Shares of the time that differ by less count as the same."""


def diagnosis_text(found: Diagnosis, width: int = 100) -> str:
    """The verdict, what to do and its gain, and the evidence, in lines of at most `width` characters."""
    lines = [f"{found.headline}.", "", *textwrap.wrap(found.explanation, width), ""]
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
    """The pipeline as it is, with what was measured of it, and with the best advice, with what that should give."""
    sentences = [f"As measured, {found.headline[0].lower()}{found.headline[1:]}. {difference(found)}".rstrip()]
    sentences += [
        f"Simulated. When tried: {interval_text(advice.images_per_s, rate_text)} images/s, "
        f"{interval_text(advice.gain, factor_text)} times the present rate."
        for advice in found.advice[:1]
    ]
    return [
        PictureVariant(name, timeline, round(found.loading.images), sentence)
        for (name, timeline), sentence in zip(found.picture, sentences, strict=True)
    ]


def difference(found: Diagnosis) -> str:
    """Why training waits for another share of the time in the animation of the pipeline as it is than was measured, in
    a sentence; empty if for about the same."""
    measured, shown = 1 - found.stages.stalls.utilisation, found.picture[0][1]
    if abs(shown.stall - measured) < _ALIKE:
        return ""
    spans = [step.end_s - step.begin_s for step in shown.steps if step.begin_s is not None and step.end_s is not None]
    alone_s, copy_s = found.step.mean_s, shown.pipeline.copy.mean_s
    reasons = []
    if spans and fmean(spans) > (1 + _ALIKE) * alone_s:
        reasons.append(
            f"a step takes {seconds_text(fmean(spans))} beside the loader, all of which counts as training there, and "
            f"{seconds_text(alone_s)} alone"
        )
    if copy_s >= _ALIKE * found.trained_s:
        reasons.append(f"copying a batch, {seconds_text(copy_s)}, is not waiting there")
    if found.disagreement >= _ALIKE:
        factor = found.simulated_now / found.images_per_s.value
        reasons.append(f"the simulation is {factor_text(factor)} times as fast as the measurement")
    why = "; ".join(reasons) or "it includes the start"
    return f"The animation shows it waiting {shown.stall:.0%} of the time, not {measured:.0%}: {why}."


def diagnosis_page(found: Diagnosis, of: str) -> str:
    """A self-contained page. `of` names what was diagnosed; it is escaped, like all text."""
    variants = {"now": found.loading, **{other.name: other.loading for other in found.alternatives}}
    spent = {
        name: tuple(1e3 * loading.parts.get(part, 0.0) for part in PARTS)
        for name, loading in variants.items()
        if loading.parts
    }
    found_charts: list[charts.Lines] = []
    if spent:
        names = tuple(WORDS[part] for part in PARTS)
        found_charts.append(charts.sums("Milliseconds per batch of one worker", "ms", names, spent))
    gains = {plural(count, "worker"): (gain, gain, gain) for count, gain in found.by_workers.items()}
    if gains:
        found_charts.append(charts.bars("Training, times as fast as now, simulated", gains))
    loads_ms = 1e3 * np.array(found.loading.load.samples_s or [found.loading.load.mean_s])
    finest = 10.0 ** math.floor(math.log10(max(float(np.ptp(loads_ms)), 1e-3) / 10))
    return template("diagnosis.html").render(
        loads=charts.linear("Load times of one worker, ms per batch", " ms", {"batches": loads_ms}, finest),
        found=found,
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
