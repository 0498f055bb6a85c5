"""A diagnosis -> text for a terminal, and a page. Pure."""

from __future__ import annotations

import textwrap
from functools import partial

from presize.formatting import duration, factor_text, plural, rate_text, seconds_text
from presize.measure.diagnosis import WORDS, Diagnosis
from presize.measure.profile import PARTS
from presize.measure.simulation import simulate
from presize.measure.simulation_report import PictureVariant, picture, picture_policy
from presize.measure.stages import interval_text
from presize.pages import charts
from presize.pages.html import template

_BATCHES = 60  # that are animated
_ALIKE = 0.05  # shares of the time that differ by less count as the same


def diagnosis_text(found: Diagnosis, width: int = 100) -> str:
    """The result, why, what to do and its gain, and the evidence, in lines of at most `width` characters."""
    lines = [f"{found.result}.", "", *textwrap.wrap(found.verdict, width), ""]
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
    shown = [("as it is", found.pipeline(), found.images_per_s, "As measured", "")]
    for one in found.advice[:1]:
        gain = f", {interval_text(one.gain, factor_text)} times the present rate"
        shown.append((one.what[:-1], one.change.pipeline, one.images_per_s, "As tried", gain))
    variants = []
    for name, pipeline, rate, how, gain in shown:
        timeline = simulate(pipeline, batches=_BATCHES)
        utilisation = min(rate.value * pipeline.step.mean_s / found.loading.images, 1.0)
        said = f"{how}: {interval_text(rate, rate_text)} images/s{gain}."
        if abs(timeline.utilisation - utilisation) >= _ALIKE:
            said += f" In the animation, which is simulated, training works {timeline.utilisation:.0%} of the time."
        variants.append(PictureVariant(name, timeline, round(found.loading.images), said, utilisation))
    return variants


def diagnosis_page(found: Diagnosis, of: str) -> str:
    """A self-contained page. `of` names what was diagnosed; it is escaped, like all text."""
    loaders = {"now": found.loading, **{other.name: other.loading for other in found.alternatives}}
    spent = {
        name: {WORDS[part]: loading.parts.get(part, 0.0) for part in PARTS}
        for name, loading in loaders.items()
        if loading.parts
    }
    found_charts = []
    if spent:
        totals = {name: seconds_text(sum(parts.values())) for name, parts in spent.items()}
        found_charts.append(charts.shares("What one worker does for a batch", spent, totals))
    if gains := {plural(count, "worker"): (gain, gain, gain) for count, gain in found.by_workers.items()}:
        found_charts.append(charts.bars("Training, times as fast as now, simulated", gains))
    return template("diagnosis.html").render(
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
