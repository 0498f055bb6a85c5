"""A diagnosis -> text for a terminal, and a page. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from statistics import fmean

import numpy as np

from presize.formatting import duration, factor_text, plural, rate_text, seconds_text
from presize.measure.diagnosis import Diagnosis
from presize.measure.loader_alone import WORDS
from presize.measure.profile import PARTS
from presize.measure.simulation_report import PictureVariant, picture, picture_policy
from presize.measure.stages import Quantiles
from presize.pages import charts
from presize.pages.html import template

_ALIKE = 0.05
"""Shares of the time that differ by less count as the same."""


def evidence(found: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yield (what, how much), what matters most first."""
    loading = found.loading
    yield "training now", f"{rate_text(found.images_per_s)} images/s with {plural(loading.workers, 'worker')}"
    possible = f"{rate_text(loading.images / found.step.mean_s)} images/s: {seconds_text(found.step.mean_s)} per step"
    yield "step alone", f"{possible}, {seconds_text(found.trained_s)} with the loader"
    alone = f"{rate_text(loading.images * loading.batches_per_s)} images/s"
    yield "loader alone", f"{alone}; first batch after {seconds_text(loading.first_batch_s)}"
    load = f"{seconds_text(loading.load.mean_s)} ± {loading.load.cv:.0%} per batch of {loading.images:.0f}"
    yield "one worker", f"{load}, {loading.cores:.0%} of it on a core"
    if loading.load.samples_s:
        times = Quantiles.of(loading.load.samples_s)
        yield (
            "  percentiles",
            f"p50 {seconds_text(times.p50_s)}, p95 {seconds_text(times.p95_s)}, p99 {seconds_text(times.p99_s)}",
        )
    for part, seconds in sorted(loading.parts.items(), key=lambda pair: -pair[1]):
        if seconds >= 0.005 * loading.load.mean_s:
            yield f"  {WORDS[part]}", f"{seconds / loading.load.mean_s:.0%}, {seconds_text(seconds)}"
    if loading.worker_s and len(loading.worker_s) > 1:
        yield "each worker", ", ".join(map(seconds_text, loading.worker_s)) + " per batch while all of them work"
    if found.unpinned_s is not None:
        pinned, unpinned = (seconds_text(max(s - found.step.mean_s, 0)) for s in (found.copied_s, found.unpinned_s))
        yield "copying", f"{pinned} per batch from pinned memory, {unpinned} from pageable memory"
    elif found.device == "cpu":
        yield "copying", "none: training runs on the CPU, where pinned memory does not help"
    if found.storage_images_per_s is not None:
        yield "disk", f"{rate_text(found.storage_images_per_s)} images/s with nothing in the page cache"
    cores = f"{found.cores:g}"
    if loading.saturation is not None:
        workers, rate = loading.saturation
        cores += f": {plural(workers, 'worker')} load {rate_text(loading.images * rate)} images/s without training"
        cores += f", as {found.free_cores:.1f} cores would"
    yield "cores", cores
    simulated = loading.images * found.simulated.batches_per_s(found.warmup_steps)
    yield "simulated", f"{rate_text(simulated)} images/s for the pipeline as it is"


def diagnosis_text(found: Diagnosis, width: int = 100) -> str:
    """The verdict, what to do and its gain, and the evidence, in lines of at most `width` characters."""
    lines = [f"{found.headline}.", "", *textwrap.wrap(found.explanation, width), ""]
    if found.advice:
        lines.append("What to do (gains do not add up):")
        for advice in found.advice:
            gain = f"{factor_text(advice.gain):>4} ×"
            lines.append(f"  {rate_text(advice.images_per_s):>7} images/s, {gain}   {advice.what}")
            lines += [f"{'':29}{advice.split}"] if advice.split else []
        lines.append("")
    known = list(evidence(found))
    column = max(len(what) for what, _ in known)
    lines += [f"{what.ljust(column)}  {how}" for what, how in known]
    rates = (f"{workers}: {rate_text(rate)}" for workers, rate in found.by_workers.items())
    lines += textwrap.wrap(
        f"{'by workers'.ljust(column)}  {'   '.join(rates)} images/s", width, subsequent_indent=" " * (column + 2)
    )
    if found.notes:
        lines += ["", *(line for note in found.notes for line in textwrap.wrap(note, width))]
    lines += ["", f"The diagnosis took {duration(found.seconds)}."]
    return "\n".join(lines)


def diagnosis_fragment(found: Diagnosis) -> str:
    """A piece of HTML, such as a notebook shows: as diagnosis_text() without the rates by workers."""
    advice = [
        (advice.what, f"{rate_text(advice.images_per_s)} images/s, {factor_text(advice.gain)} ×")
        for advice in found.advice
    ]
    facts = [found.explanation, *found.notes]
    rows = [*advice, *evidence(found)]
    return template("notebook.html").render(title=found.headline, facts=facts, rows=rows, cards=[])


def pictured(found: Diagnosis) -> list[PictureVariant]:
    """The pipeline as it is, with what was measured of it, and with the best advice, with what that should give."""
    sentences = [f"As measured, {found.headline[0].lower()}{found.headline[1:]}. {difference(found)}".rstrip()]
    sentences += [
        f"Predicted: {rate_text(advice.images_per_s)} images/s, {factor_text(advice.gain)} times the present rate."
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
    if abs(found.agreement - 1) >= _ALIKE:
        reasons.append(f"the simulation is {factor_text(found.agreement)} times as fast as the measurement")
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
    rates = {plural(count, "worker"): (rate, rate, rate) for count, rate in found.by_workers.items()}
    found_charts.append(charts.bars("Training, images/s, simulated", rates))
    loads_ms = 1e3 * np.array(found.loading.load.samples_s or [found.loading.load.mean_s])
    finest = 10.0 ** math.floor(math.log10(max(float(np.ptp(loads_ms)), 1e-3) / 10))
    return template("diagnosis.html").render(
        loads=charts.linear("Load times of one worker, ms per batch", " ms", {"batches": loads_ms}, finest),
        found=found,
        of=of,
        policy=picture_policy(),
        picture=picture(pictured(found)),
        good=found.stages.bottleneck == "compute",
        evidence=list(evidence(found)),
        charts=found_charts,
        took=duration(found.seconds),
        rate=rate_text,
        factor=factor_text,
    )
