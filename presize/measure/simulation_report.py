"""Simulated timelines -> text for a terminal, an animation to embed in pages, and a page of its own. Pure.

A page that embeds the animation needs `picture(variants)` in its body, and `picture_policy()` as its content security
policy, which lets the animation's script run and no other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import fill
from typing import Any

from markupsafe import Markup

from presize.formatting import factor_text, plural, rate_text, seconds_text
from presize.measure.simulation import Pipeline, Timeline, Times, fewest_workers
from presize.measure.stages import COMPUTE_BOUND, bottleneck, bottleneck_words
from presize.pages.html import asset, template

SHOWN_STEPS, SHOWN_LOADS = 1500, 3000
"""Of all variants together, so that an animation embeds less than 300 kB."""

_WIDTH = 100


@dataclass(frozen=True)
class PictureVariant:
    """A timeline to show.

    Attributes:
        title: Its title, which may be hostile.
        timeline: What was simulated.
        batch: Images in a batch; None if not known.
        sentence: A sentence in place of its verdict.
        utilisation: What was measured, to show in place of what was simulated.
    """

    title: str
    timeline: Timeline
    batch: int | None = None
    sentence: str | None = None
    utilisation: float | None = None

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of the time that training works, and that it waits."""
        if self.utilisation is None:
            return self.timeline.utilisation, self.timeline.stall
        return self.utilisation, 1 - self.utilisation


@dataclass(frozen=True)
class SweepLine:
    """A row of the table of a sweep: the rate with so many workers, without the start."""

    workers: int
    batches_per_s: float
    utilisation: float


def sweep_lines(timelines: Mapping[int, Timeline]) -> list[SweepLine]:
    lines = []
    for number, timeline in timelines.items():
        rate = timeline.batches_per_s(warmup_steps=max(1, number))
        lines.append(SweepLine(number, rate, min(1.0, rate * timeline.pipeline.step.mean_s)))
    return lines


def described(pipeline: Pipeline) -> str:
    """A pipeline in a few words.

    >>> described(Pipeline(Times(2.0), Times(0.1), workers=7))
    '7 workers, 2 s per batch'
    """
    return f"{plural(pipeline.workers, 'worker')}, {seconds_text(pipeline.load.mean_s)} per batch"


def verdict(timeline: Timeline) -> str:
    """The bottleneck of a pipeline, and what would remove it, in a sentence or two."""
    return f"{_words(timeline)}: {_reason(timeline)}"


def _words(timeline: Timeline) -> str:
    """The bottleneck in a few words."""
    pipeline, stall = timeline.pipeline, "Loading"
    if timeline.stall < 1 - COMPUTE_BOUND:
        stall = "Copying" if pipeline.copy.mean_s else "A lack of cores"
    elif _is_pinning(pipeline):
        stall = "Pinning"
    return bottleneck_words(timeline.utilisation, stall)


def _reason(timeline: Timeline) -> str:
    """Why that is the bottleneck, and what would remove it."""
    pipeline, stall = timeline.pipeline, f"training stalls {timeline.stall:.0%} of the time"
    if bottleneck(timeline.utilisation) == "compute":
        return f"training works {timeline.utilisation:.0%} of the time."
    if pipeline.workers == 0:
        return f"{stall}, as it loads each batch itself. Workers load while it trains."
    if timeline.stall < 1 - COMPUTE_BOUND:
        return (
            f"training works {timeline.utilisation:.0%} of the time, and waits for a batch {timeline.stall:.0%} of it."
        )
    loaded, trained = _most_loaded(pipeline), 1 / (pipeline.step.mean_s + pipeline.copy.mean_s)
    rates = f"load at most {rate_text(loaded)} batches/s, and training could take {rate_text(trained)}"
    if loaded > 0.98 * trained:
        return (
            f"{stall}, waiting for the next batch in order, although workers {rates}: load times are uneven. More "
            "workers or more prefetch even that out."
        )
    if _is_pinning(pipeline):
        return (
            f"{stall}. One thread pins at most {rate_text(loaded)} batches/s, and training could take "
            f"{rate_text(trained)}."
        )
    needed = math.ceil(trained * pipeline.load.mean_s * (1 - 1e-9))
    cores = pipeline.cores or math.inf
    if needed * pipeline.load_cores <= cores:
        fix = f"{needed:,} workers, or loading {factor_text(trained / loaded)} times as fast, would keep up"
    else:
        faster = trained * pipeline.load.mean_s * pipeline.load_cores / cores
        fix = (
            f"{needed:,} workers would keep up, but {plural(cores, 'core')} are too few for them, so loading has to "
            f"become {factor_text(faster)} times as fast"
        )
    return f"{stall}. The workers {rates}; {fix}."


def _is_pinning(pipeline: Pipeline) -> bool:
    """Whether the pinning thread is slower than the workers and training."""
    slowest = 1 / pipeline.pin.mean_s if pipeline.workers and pipeline.pin.mean_s else math.inf
    return slowest == _most_loaded(pipeline) < 0.98 / (pipeline.step.mean_s + pipeline.copy.mean_s)


def _most_loaded(pipeline: Pipeline) -> float:
    """Batches per second that the workers and the pinning thread deliver at most."""
    at_work = float(pipeline.workers)
    if pipeline.cores is not None and pipeline.load_cores:
        at_work = min(at_work, pipeline.cores / pipeline.load_cores)
    loaded = at_work / pipeline.load.mean_s
    return min(loaded, 1 / pipeline.pin.mean_s) if pipeline.pin.mean_s else loaded


def facts(variant: PictureVariant) -> list[tuple[str, str]]:
    """A timeline as a whole, as (name, value) in words."""
    timeline, pipeline = variant.timeline, variant.timeline.pipeline
    loading = f"{plural(pipeline.workers, 'worker')}, {_times(pipeline.load)} per batch"
    if pipeline.workers:
        order = "in order" if pipeline.in_order else "out of order"
        loading += f", up to {plural(pipeline.prefetch, 'batch', 'batches')} ahead per worker, {order}"
        if pipeline.cores is not None:
            loading += f", on {plural(pipeline.cores, 'core')}"
        if pipeline.stagger_s:
            loading += f", started {seconds_text(pipeline.stagger_s)} apart"
    training = f"{_times(pipeline.step)} per step"
    for name, part in (("pinning", pipeline.pin), ("copying", pipeline.copy)):
        training += f", {name} {_times(part)}" if part.mean_s else ""
    images = f", {rate_text(timeline.batches_per_s() * variant.batch)} images/s" if variant.batch else ""
    batches = f"{plural(timeline.batches, 'batch', 'batches')} in {seconds_text(timeline.seconds)}"
    found = [
        ("loading", loading),
        ("training", training),
        ("done", f"{batches}, {rate_text(timeline.batches_per_s())} batches/s{images}"),
        ("utilisation", f"{timeline.utilisation:.1%}"),
        ("stall", f"{timeline.stall:.1%} of the time, waiting for a batch"),
    ]
    if pipeline.workers:
        slots = pipeline.workers * pipeline.prefetch
        found.append(("queue", f"{timeline.queue_mean():.1f} finished batches on average, at most {slots:,}"))
    every = timeline.stops_every()
    if every:
        stop = median(wait for wait in timeline.waits_s[1:] if wait > max(timeline.waits_s[1:]) / 2)
        found.append(("stops", f"about {seconds_text(stop)} before every {_ordinal(every)} batch"))
    return found


def comparison(variants: Sequence[PictureVariant]) -> str | None:
    """How much faster the last variant is than the first; None if there is only one."""
    if len(variants) < 2 or not variants[0].timeline.batches:
        return None
    before, after = variants[0].timeline.batches_per_s(), variants[-1].timeline.batches_per_s()
    gain = f"Training would be {factor_text(after / before)} times as fast"
    return f"{gain}: {rate_text(after)} instead of {rate_text(before)} batches/s"


def simulation_text(variants: Sequence[PictureVariant], sweep: Mapping[int, Timeline] | None = None) -> str:
    """Facts and verdict of each variant, their comparison, and the table of a sweep, for a terminal."""
    lines = []
    for variant in variants:
        lines += [f"{variant.title}:", ""] if len(variants) > 1 else []
        lines += [f"{name.ljust(12)} {what}" for name, what in facts(variant)]
        lines += ["", fill(verdict(variant.timeline), _WIDTH), ""]
    compared = comparison(variants)
    if compared:
        lines += [f"{compared}.", ""]
    if sweep:
        lines += [f"{variants[-1].title}, with other numbers of workers:", ""] if len(variants) > 1 else []
        lines.append("workers  batches/s  utilisation")
        for line in sweep_lines(sweep):
            lines.append(f"{line.workers:7,}  {rate_text(line.batches_per_s):>9}  {line.utilisation:11.1%}")
        lines += ["", fewest(sweep), ""]
    return "\n".join(lines[:-1])


def fewest(sweep: Mapping[int, Timeline]) -> str:
    """How many workers are enough, in a sentence."""
    number = fewest_workers(dict(sweep))
    workers = plural(number, "worker")
    if number == max(sweep) and sweep_lines(sweep)[-1].utilisation < COMPUTE_BOUND:
        return f"{workers}: the fastest of these; more may be faster still."
    return f"{workers}: the fewest within 5% of the fastest."


def picture(variants: Sequence[PictureVariant], *, whole_page: bool = False) -> Markup:
    """The animation as a piece of HTML with its data and script. All variants run by one clock, side by side. Keys work
    inside of it, or with `whole_page` anywhere."""
    shown_variants = [_embedded(variant, len(variants)) for variant in variants]
    html = template("picture.html").render(
        variants=[
            {
                "title": variant.title,
                "sentence": verdict(variant.timeline) if variant.sentence is None else variant.sentence,
                "workers": variant.timeline.pipeline.workers,
                "in_order": variant.timeline.pipeline.in_order,
                "batch": variant.batch,
                "shares": variant.shares,
                "cut": _cut(variant, one["seconds"], len(one["steps"])) if one["cut"] else None,
            }
            for variant, one in zip(variants, shown_variants, strict=True)
        ],
        data=_json({"variants": shown_variants}),
        script=Markup(asset("picture.js")),
        whole_page=whole_page,
    )
    return Markup(html)


def picture_policy() -> str:
    """The content security policy of a page with animations: no request, and no script but theirs."""
    digest = base64.b64encode(hashlib.sha256(asset("picture.js").encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def simulation_html(variants: Sequence[PictureVariant], sweep: Mapping[int, Timeline] | None = None) -> str:
    """A page with the animation and all that simulation_text says. Equal timelines give equal pages."""
    return template("simulation.html").render(
        headline=comparison(variants) or _bound(variants[0].timeline),
        policy=picture_policy(),
        picture=picture(variants, whole_page=True),
        titles=[variant.title for variant in variants],
        rows=_rows(variants),
        sweep=sweep_lines(sweep) if sweep else [],
        rate=rate_text,
        advice=fewest(sweep) if sweep else "",
    )


def _bound(timeline: Timeline) -> str:
    if not timeline.utilisation:
        return "Training gets no batch in this time"
    what = "loading and copying" if timeline.pipeline.copy.mean_s else "loading"
    return f"If {what} cost nothing, training would be {factor_text(1 / timeline.utilisation)} times as fast"


def _rows(variants: Sequence[PictureVariant]) -> list[list[str]]:
    """A row for each fact: its name, and a column for each variant."""
    found = [dict(facts(variant)) for variant in variants]
    names = dict.fromkeys(name for one in found for name in one)
    return [[name, *(one.get(name, "") for one in found)] for name in names]


def _embedded(variant: PictureVariant, variants: int) -> dict[str, Any]:
    """The data of one variant, times in seconds to the microsecond; of a long timeline only the beginning."""
    timeline = variant.timeline
    loads, steps = timeline.loads, timeline.steps
    most_steps, most_loads = SHOWN_STEPS // variants, max(SHOWN_LOADS // variants, timeline.pipeline.workers + 1)
    until = [timeline.seconds]
    until += [steps[most_steps].taken_s] if len(steps) > most_steps else []
    until += [loads[most_loads].begin_s] if len(loads) > most_loads else []
    end = min(until)

    def by_then(at: float | None) -> float | None:
        return None if at is None or at > end else round(at, 6)

    return {
        "batch": variant.batch,
        "seconds": round(end, 6),
        "cut": end < timeline.seconds,
        "workers": timeline.pipeline.workers,
        "prefetch": timeline.pipeline.prefetch,
        "inOrder": timeline.pipeline.in_order,
        "loads": [
            [load.worker, load.batch, round(load.begin_s, 6), round(load.work_s, 6), by_then(load.end_s)]
            for load in loads
            if load.begin_s < end
        ],
        "ready": [[round(at, 6), batch] for at, batch in timeline.ready if at <= end],
        "steps": [
            [step.batch, round(step.taken_s, 6), by_then(step.begin_s), by_then(step.end_s)]
            for step in steps
            if step.taken_s < end or end == timeline.seconds
        ],
    }


def _cut(variant: PictureVariant, seconds: float, steps: int) -> str:
    whole = variant.timeline
    of = f"{seconds_text(whole.seconds)}, {steps:,} of {whole.batches:,} batches"
    return f"The animation shows the first {seconds_text(seconds)} of {of}."


def _json(data: object) -> Markup:
    """JSON that is safe inside a script element: nothing in it can close that."""
    text = json.dumps(data, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _times(times: Times) -> str:
    return seconds_text(times.mean_s) + (f" ± {times.cv:.0%}" if times.cv else "")


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"
