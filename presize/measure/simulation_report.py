"""Simulated timelines -> text for a terminal, an animation to embed in pages, and a complete page. Pure.

A page that embeds the animation needs the content security policy `picture_policy()`.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import fill
from typing import Any

from presize.formatting import factor_text, ordinal, plural, rate_text, seconds_text
from presize.measure.simulation import SimulatedBatch, Timeline, Times, fewest_workers
from presize.measure.stages import COMPUTE_BOUND, bottleneck, bottleneck_words
from presize.pages.html import asset, template

SHOWN_STEPS, SHOWN_LOADS = 1500, 3000  # for all variants together; keeps the data of an animation below 300 kB


@dataclass(frozen=True)
class PictureVariant:
    """Timeline to show."""

    title: str  # untrusted
    timeline: Timeline
    batch: int | None = None  # images per batch; None if not known
    sentence: str | None = None  # to show instead of the simulated verdict
    utilisation: float | None = None  # measured, to show instead of the simulated one


def verdict(timeline: Timeline) -> str:
    pipeline, utilisation = timeline.pipeline, timeline.utilisation
    works, stalls = f"training works {utilisation:.0%} of the time", f"training stalls {timeline.stall:.0%} of the time"
    if bottleneck(utilisation) == "compute":
        return f"{bottleneck_words(utilisation)}: {works}."
    if timeline.stall < 1 - COMPUTE_BOUND:
        other = "Copying" if pipeline.copy.mean_s else "A lack of cores"
        return f"{bottleneck_words(utilisation, other)}: {works}, and waits for a batch {timeline.stall:.0%} of it."
    words = bottleneck_words(utilisation, "Loading")
    if pipeline.workers == 0:
        return f"{words}: {stalls}, because it loads each batch itself. Workers would load during training."
    cores = pipeline.cores or math.inf
    at_work = min(pipeline.workers, cores / pipeline.load_cores if pipeline.load_cores else math.inf)
    loaded, trained = at_work / pipeline.load.mean_s, 1 / (pipeline.step.mean_s + pipeline.copy.mean_s)
    pinned = 1 / pipeline.pin.mean_s if pipeline.pin.mean_s else math.inf
    could = f"training could take {rate_text(trained)}"
    loading = rate_text(min(loaded, pinned))
    if min(loaded, pinned) > 0.98 * trained:
        start_s = timeline.waits_s[0] if timeline.steps else timeline.seconds
        if start_s > timeline.stall * timeline.seconds / 2:
            return (
                f"{words}: {stalls}, most of it before the first batch. After that, workers can load {loading} "
                f"batches/s, and {could}: simulate a longer time."
            )
        order = " in order" if pipeline.in_order else ""
        return (
            f"{words}: {stalls}, waiting for the next batch{order}, although workers can load {loading} batches/s, "
            f"and {could}: load times are uneven. More workers or more prefetch even that out."
        )
    if pinned <= loaded:
        words = bottleneck_words(utilisation, "Pinning")
        return f"{words}: {stalls}. One thread pins at most {rate_text(pinned)} batches/s, and {could}."
    needed = math.ceil(trained * pipeline.load.mean_s * (1 - 1e-9))
    if needed * pipeline.load_cores <= cores:
        fix = f"{needed:,} workers, or loading {factor_text(trained / loaded)} times as fast, would keep up"
    else:
        faster = trained * pipeline.load.mean_s * pipeline.load_cores / cores
        fix = (
            f"{needed:,} workers would keep up, but are too many for {plural(cores, 'core')}, so loading has to "
            f"become {factor_text(faster)} times as fast"
        )
    return f"{words}: {stalls}. The workers load at most {loading} batches/s, and {could}; {fix}."


def facts(variant: PictureVariant) -> dict[str, str]:
    timeline, pipeline = variant.timeline, variant.timeline.pipeline
    loading = f"{plural(pipeline.workers, 'worker')}, {_times(pipeline.load)} per batch"
    if pipeline.workers:
        order = "in order" if pipeline.in_order else "out of order"
        loading += f", up to {plural(pipeline.prefetch, 'batch', 'batches')} ahead per worker, {order}"
        loading += f", on {plural(pipeline.cores, 'core')}" if pipeline.cores is not None else ""
        loading += f", started {seconds_text(pipeline.stagger_s)} apart" if pipeline.stagger_s else ""
    training = f"{_times(pipeline.step)} per step"
    for name, part in (("pinning", pipeline.pin), ("copying", pipeline.copy)):
        training += f", {name} {_times(part)}" if part.mean_s else ""
    rate = timeline.batches_per_s()
    images = f", {rate_text(rate * variant.batch)} images/s" if variant.batch else ""
    batches = f"{plural(timeline.batches, 'batch', 'batches')} in {seconds_text(timeline.seconds)}"
    found = {
        "loading": loading,
        "training": training,
        "done": f"{batches}, {rate_text(rate)} batches/s{images}",
        "utilisation": f"{timeline.utilisation:.1%}",
        "stall": f"{timeline.stall:.1%} of the time, waiting for a batch",
    }
    if pipeline.workers:
        slots = pipeline.workers * pipeline.prefetch
        found["queue"] = f"{timeline.queue_mean():.1f} finished batches on average, at most {slots:,}"
    every, waits_s = timeline.stops_every(), timeline.waits_s[1:]
    if every:
        stop_s = median(wait for wait in waits_s if wait > max(waits_s) / 2)
        found["stops"] = f"about {seconds_text(stop_s)} before every {ordinal(every)} batch"
    return found


def _times(times: Times) -> str:
    return seconds_text(times.mean_s) + (f" ± {times.cv:.0%}" if times.cv else "")


def comparison(variants: Sequence[PictureVariant]) -> str | None:
    """Return the speed-up of the last variant over the first, in words; None for one, or if the first has no batch."""
    if len(variants) < 2 or not variants[0].timeline.batches:
        return None
    before, after = variants[0].timeline.batches_per_s(), variants[-1].timeline.batches_per_s()
    gain = f"Training would be {factor_text(after / before)} times as fast"
    return f"{gain}: {rate_text(after)} instead of {rate_text(before)} batches/s"


def sweep_rows(sweep: Mapping[int, Timeline]) -> list[dict[str, Any]]:
    """Return a row per number of workers, as plain values of JSON. Rates leave out the start."""
    rows = []
    for number, timeline in sweep.items():
        rate = timeline.batches_per_s(max(number, 1))
        utilisation = min(1.0, rate * timeline.pipeline.step.mean_s)
        rows.append({"workers": number, "batches_per_s": rate, "utilisation": utilisation})
    return rows


def fewest(sweep: Mapping[int, Timeline]) -> str:
    number = fewest_workers(dict(sweep))
    if number == max(sweep) and sweep_rows(sweep)[-1]["utilisation"] < COMPUTE_BOUND:
        return f"{plural(number, 'worker')}: the fastest of these; more may be faster still."
    return f"{plural(number, 'worker')}: the fewest within 5% of the fastest."


def simulation_text(variants: Sequence[PictureVariant], sweep: Mapping[int, Timeline] | None = None) -> str:
    """Return the facts and verdict of each variant, their comparison, and the table of a sweep, for a terminal."""
    lines = []
    for variant in variants:
        lines += [f"{variant.title}:", ""] if len(variants) > 1 else []
        lines += [f"{name.ljust(12)} {what}" for name, what in facts(variant).items()]
        lines += ["", fill(verdict(variant.timeline), 100), ""]
    compared = comparison(variants)
    lines += [f"{compared}.", ""] if compared else []
    if sweep:
        lines += [f"{variants[-1].title}, with other numbers of workers:", ""] if len(variants) > 1 else []
        lines.append("workers  batches/s  utilisation")
        for row in sweep_rows(sweep):
            lines.append(f"{row['workers']:7,}  {rate_text(row['batches_per_s']):>9}  {row['utilisation']:11.1%}")
        lines += ["", fewest(sweep), ""]
    return "\n".join(lines[:-1])


def simulation_html(variants: Sequence[PictureVariant], sweep: Mapping[int, Timeline] | None = None) -> str:
    """Return a page with the animation and the content of simulation_text. Equal timelines give equal pages."""
    found = [facts(variant) for variant in variants]
    return template("simulation.html").render(
        headline=comparison(variants) or _bound(variants[0].timeline),
        policy=picture_policy(),
        picture=picture(variants, whole_page=True),
        titles=[variant.title for variant in variants],
        names=dict.fromkeys(name for one in found for name in one),
        found=found,
        sweep=sweep_rows(sweep) if sweep else [],
        rate=rate_text,
        advice=fewest(sweep) if sweep else "",
    )


def _bound(timeline: Timeline) -> str:
    if not timeline.utilisation:
        return "Training gets no batch in this time"
    what = "loading and copying" if timeline.pipeline.copy.mean_s else "loading"
    return f"If {what} cost nothing, training would be {factor_text(1 / timeline.utilisation)} times as fast"


def picture(variants: Sequence[PictureVariant], *, whole_page: bool = False) -> str:
    """Return the animation as HTML with its data and script. All variants run side by side on one clock. Keys work
    inside the animation or, with `whole_page`, anywhere."""
    data = [_embedded(variant, len(variants)) for variant in variants]
    sentences = [verdict(one.timeline) if one.sentence is None else one.sentence for one in variants]
    cuts = [_cut(variant.timeline, one) for variant, one in zip(variants, data, strict=True)]
    return template("picture.html").render(
        variants=list(zip(variants, sentences, cuts, strict=True)),
        data=data,
        script=asset("picture.js"),
        whole_page=whole_page,
    )


def picture_policy() -> str:
    """Return the content security policy of a page with animations: no requests, and no other scripts."""
    digest = base64.b64encode(hashlib.sha256(asset("picture.js").encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _embedded(variant: PictureVariant, variants: int) -> dict[str, Any]:
    """Return the data of one variant, with times in seconds, rounded to microseconds. A long timeline is cut."""
    timeline, pipeline = variant.timeline, variant.timeline.pipeline
    later = [step.taken_s for step in timeline.steps[SHOWN_STEPS // variants :]]
    later += [load.begin_s for load in timeline.loads[max(SHOWN_LOADS // variants, pipeline.workers + 1) :]]
    cut_s = min(later, default=math.inf)

    def line(one: SimulatedBatch) -> list[float | None]:
        moments = (one.loaded_s, one.ready_s, one.taken_s, one.copied_s, one.done_s)
        known = [round(at, 6) if at < cut_s else None for at in moments]
        return [one.worker, one.number, round(one.begin_s, 6), round(one.load_s, 6), *known]

    return {
        "batch": variant.batch,
        "seconds": round(min(timeline.seconds, cut_s), 6),
        "cut": cut_s < timeline.seconds,
        "workers": pipeline.workers,
        "prefetch": pipeline.prefetch,
        "inOrder": pipeline.in_order,
        "loads": [line(one) for one in timeline.loads if one.begin_s < cut_s],
    }


def _cut(whole: Timeline, shown: Mapping[str, Any]) -> str:
    if not shown["cut"]:
        return ""
    steps = sum(taken is not None for _, _, _, _, _, _, taken, _, _ in shown["loads"])
    of = f"{seconds_text(whole.seconds)}, {steps:,} of {whole.batches:,} batches"
    return f"The animation shows the first {seconds_text(shown['seconds'])} of {of}."
