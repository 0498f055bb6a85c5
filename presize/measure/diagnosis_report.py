"""A diagnosis -> text for a terminal, and a page. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

import numpy as np

from presize.measure.diagnosis import WORDS, Diagnosis, seconds_shown, workers_shown
from presize.measure.profile import PARTS
from presize.measure.simulation_report import PictureVariant, picture, picture_policy
from presize.measure.stages import NO_GAIN, Quantiles, shown
from presize.report import charts
from presize.report.html import template


def headline(found: Diagnosis) -> str:
    """The verdict in a few words."""
    utilisation = found.stages.stalls.utilisation
    where = "GPU" if found.device == "cuda" else "training step"
    if utilisation >= NO_GAIN:
        return f"No gain to be had: the {where} is busy {utilisation:.0%} of the time"
    return f"Data-bound: the {where} is busy {utilisation:.0%} of the time"


def evidence(found: Diagnosis) -> Iterator[tuple[str, str]]:
    """(what, how much), in the order in which a reader wants it."""
    loading = found.loading
    yield "now", f"{shown(found.images_per_s)} images/s with {workers_shown(loading.workers)}"
    possible = f"{shown(loading.images / found.step.mean_s)} images/s: {seconds_shown(found.step.mean_s)} a step"
    yield "the step alone", f"{possible}, {seconds_shown(found.trained_s)} with the loader"
    alone = f"{shown(loading.images * loading.batches_per_s)} images/s"
    yield "the loader alone", f"{alone}; the first batch after {seconds_shown(loading.first_batch_s)}"
    load = f"{seconds_shown(loading.load.mean_s)} for a batch of {loading.images:.0f}"
    yield "one worker", f"{load}, varying by {loading.load.cv:.0%}, {loading.cores:.0%} of it on a core"
    if loading.load.samples_s:
        times = Quantiles.of(loading.load.samples_s)
        yield (
            "  each batch",
            (
                f"{seconds_shown(times.p50_s)} or less in half the cases, {seconds_shown(times.p95_s)} in 95 %, "
                f"{seconds_shown(times.p99_s)} in 99 %"
            ),
        )
    for part, seconds in sorted(loading.parts.items(), key=lambda pair: -pair[1]):
        if seconds >= 0.005 * loading.load.mean_s:
            yield f"  {WORDS[part]}", f"{seconds / loading.load.mean_s:.0%}, {seconds_shown(seconds)}"
    if loading.worker_s and len(loading.worker_s) > 1:
        yield "each worker", ", ".join(map(seconds_shown, loading.worker_s)) + " for a batch with all at work"
    if found.unpinned_s is not None:
        pinned, unpinned = (seconds_shown(max(s - found.step.mean_s, 0)) for s in (found.copied_s, found.unpinned_s))
        yield "copying", f"{pinned} a batch from page-locked memory, {unpinned} from other"
    elif found.device == "cpu":
        yield "copying", "none: training is on the CPU, where page-locked memory does not help"
    if found.storage_images_per_s is not None:
        yield "the disk", f"{shown(found.storage_images_per_s)} images/s when nothing is in the page cache"
    cores = f"{found.cores:g}"
    if loading.saturation is not None:
        workers, rate = loading.saturation
        cores += f": {shown(loading.images * rate)} images/s without training by {workers_shown(workers)}"
        cores += f", as if there were {found.free_cores:.1f}"
    yield "cores", cores
    yield (
        "simulated",
        f"{shown(loading.images * found.simulated.batches_per_s(found.warmup_steps))} images/s for what is now",
    )


def diagnosis_text(found: Diagnosis, width: int = 100) -> str:
    """The verdict, what to do with its gain, and the evidence."""
    lines = [f"{headline(found)}.", "", *textwrap.wrap(found.verdict, width), ""]
    if found.advice:
        lines.append("What to do, each by itself:")
        for advice in found.advice:
            lines.append(f"  {shown(advice.images_per_s):>7} images/s, {advice.gain:.2f} ×   {advice.what}")
        lines.append("")
    known = list(evidence(found))
    column = max(len(what) for what, _ in known)
    lines += [f"{what.ljust(column)}  {how}" for what, how in known]
    rates = (f"{workers}: {shown(rate)}" for workers, rate in found.by_workers.items())
    lines += textwrap.wrap(
        f"{'by workers'.ljust(column)}  {'   '.join(rates)} images/s", width, subsequent_indent=" " * (column + 2)
    )
    if found.notes:
        lines += ["", *(line for note in found.notes for line in textwrap.wrap(note, width))]
    lines += ["", f"Diagnosing took {found.seconds:.0f} s."]
    return "\n".join(lines)


def diagnosis_page(found: Diagnosis, of: str) -> str:
    """A page that needs nothing else. of: what was diagnosed, escaped like all text in it."""
    variants = {"now": found.loading, **{other.name: other.loading for other in found.alternatives}}
    spent = {
        name: tuple(1e3 * loading.parts.get(part, 0.0) for part in PARTS)
        for name, loading in variants.items()
        if loading.parts
    }
    found_charts: list[charts.Lines] = []
    if spent:
        names = tuple(WORDS[part] for part in PARTS)
        found_charts.append(charts.sums("Milliseconds of a worker for a batch", "ms", names, spent))
    rates = {workers_shown(count): (rate, rate, rate) for count, rate in found.by_workers.items()}
    found_charts.append(charts.bars("Images a second of training, simulated", rates))
    loads_ms = 1e3 * np.array(found.loading.load.samples_s or [found.loading.load.mean_s])
    finest = 10.0 ** math.floor(math.log10(max(float(np.ptp(loads_ms)), 1e-3) / 10))
    return template("diagnosis.html").render(
        loads=charts.linear("Milliseconds of one worker, of each batch", "ms", {"batches": loads_ms}, finest),
        found=found,
        of=of,
        policy=picture_policy(),
        picture=picture(
            [PictureVariant(name, timeline, round(found.loading.images)) for name, timeline in found.picture]
        ),
        headline=headline(found),
        good=found.stages.stalls.utilisation >= NO_GAIN,
        evidence=list(evidence(found)),
        charts=found_charts,
        shown=shown,
    )
