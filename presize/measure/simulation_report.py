"""Simulated timelines -> text for a terminal, a moving picture to put into pages, and a page of its own. Pure.

A page that holds a picture needs three things: `picture(variants)` in its body, `picture.css` in its style (after
`style.css`), and `picture_policy()` as its content security policy, which lets the picture's script run and no other.
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

from presize.measure.simulate import Pipeline, Timeline, Times, fewest_workers
from presize.measure.stages import NO_GAIN, shown
from presize.report.html import asset, template

SHOWN_STEPS, SHOWN_LOADS = 1500, 3000
"""Of all pictures of a page together: what is embedded stays below 300 kB."""


_WIDTH = 100


@dataclass(frozen=True)
class PictureVariant:
    """A timeline, what it is called, and how many images a batch has, where that is known. The title may be hostile:
    it comes out as text."""

    title: str
    timeline: Timeline
    batch: int | None = None


@dataclass(frozen=True)
class SweepLine:
    """A line of the table of a sweep: what so many workers come to once they are under way."""

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
    """The pipeline in a few words.

    >>> described(Pipeline(Times(2.0), Times(0.1), workers=7))
    '7 workers, 2 s a batch'
    """
    return f"{_count(pipeline.workers, 'worker')}, {_time(pipeline.load.mean_s)} a batch"


def verdict(timeline: Timeline) -> str:
    """What holds the pipeline up, and what would help, in a sentence or two."""
    pipeline = timeline.pipeline
    load_s, step_s = pipeline.load.mean_s, pipeline.step.mean_s
    if timeline.utilisation >= NO_GAIN:
        return f"No gain to be had: training works {timeline.utilisation:.0%} of the time."
    waits = f"Training waits {timeline.stall:.0%} of the time"
    if pipeline.workers == 0:
        return f"{waits}: it loads each batch itself. One worker or more load while it trains."
    if timeline.stall < 1 - NO_GAIN:
        return "Training hardly waits for batches; copies, or too few cores, take the rest of the time."
    makes, takes = _makes(pipeline), 1 / (step_s + pipeline.copy.mean_s)
    rates = f"the workers make at most {shown(makes)} batches a second, and training takes {shown(takes)}"
    if makes > 0.98 * takes:
        return (
            f"{waits}, although {rates}: batches take unequally long, and it waits for the next in turn. More "
            "workers or more prefetch even that out."
        )
    needed = math.ceil(takes * load_s * (1 - 1e-9))
    cores = pipeline.cores or math.inf
    if pipeline.pin.mean_s and makes == 1 / pipeline.pin.mean_s:
        cure = "pinning, which one thread does, is what is slow"
    elif needed * pipeline.load_cores <= cores:
        cure = f"it takes {needed:,} workers, or loading that is {takes / makes:.1f} times as fast"
    else:
        faster = takes * load_s * pipeline.load_cores / cores
        cure = (
            f"it would take {needed:,} workers, for which {_count_of(cores, 'core')} do not suffice, so loading has to "
            f"become {faster:.1f} times as fast"
        )
    return f"{waits}: {rates}; {cure}."


def _makes(pipeline: Pipeline) -> float:
    """Batches a second that loading and pinning make at most."""
    at_work = float(pipeline.workers)
    if pipeline.cores is not None and pipeline.load_cores:
        at_work = min(at_work, pipeline.cores / pipeline.load_cores)
    makes = at_work / pipeline.load.mean_s
    return min(makes, 1 / pipeline.pin.mean_s) if pipeline.pin.mean_s else makes


def facts(variant: PictureVariant) -> list[tuple[str, str]]:
    """What there is to tell of the whole of a timeline: names, and what they are."""
    timeline, pipeline = variant.timeline, variant.timeline.pipeline
    loading = f"{_count(pipeline.workers, 'worker')}, {_times(pipeline.load)} a batch"
    if pipeline.workers:
        order = "in order" if pipeline.in_order else "out of order"
        loading += f", up to {_count(pipeline.prefetch, 'batch', 'batches')} ahead each, {order}"
        if pipeline.cores is not None:
            loading += f", on {_count_of(pipeline.cores, 'core')}"
        if pipeline.stagger_s:
            loading += f", begun {_time(pipeline.stagger_s)} after each other"
    training = f"{_times(pipeline.step)} a step"
    for name, part in (("pinning", pipeline.pin), ("copying", pipeline.copy)):
        training += f", {name} {_times(part)}" if part.mean_s else ""
    images = f", {shown(timeline.batches_per_s() * variant.batch)} images/s" if variant.batch else ""
    batches = _count(timeline.batches, "batch", "batches")
    told = [
        ("loading", loading),
        ("training", training),
        ("done", f"{batches} in {_time(timeline.seconds)}, {shown(timeline.batches_per_s())} a second{images}"),
        ("utilisation", f"{timeline.utilisation:.1%}"),
        ("stall", f"{timeline.stall:.1%} of the time training waits for a batch"),
    ]
    if pipeline.workers:
        slots = pipeline.workers * pipeline.prefetch
        told.append(("queue", f"{timeline.queue_mean():.1f} finished batches on average, of at most {slots:,}"))
    every = timeline.stops_every()
    if every:
        stop = median(wait for wait in timeline.waits_s[1:] if wait > max(timeline.waits_s[1:]) / 2)
        told.append(("stops", f"of about {_time(stop)} before every {_ordinal(every)} batch"))
    return told


def comparison(variants: Sequence[PictureVariant]) -> str | None:
    """How much faster the last is than the first; None where there is one only."""
    if len(variants) < 2 or not variants[0].timeline.batches:
        return None
    before, after = variants[0].timeline.batches_per_s(), variants[-1].timeline.batches_per_s()
    return f"{after / before:.2f} times as many batches a second: {shown(after)} instead of {shown(before)}"


def simulation_text(variants: Sequence[PictureVariant], sweep: Mapping[int, Timeline] | None = None) -> str:
    """What the timelines tell, one after the other, and the table of a sweep, for a terminal."""
    lines = []
    for variant in variants:
        lines += [f"{variant.title}:", ""] if len(variants) > 1 else []
        lines += [f"{name.ljust(12)} {what}" for name, what in facts(variant)]
        lines += ["", fill(verdict(variant.timeline), _WIDTH), ""]
    compared = comparison(variants)
    if compared:
        lines += [f"{compared}.", ""]
    if sweep:
        lines += [f"{variants[-1].title}, and with other numbers of workers:", ""] if len(variants) > 1 else []
        lines.append("workers  batches/s  utilisation")
        for line in sweep_lines(sweep):
            lines.append(f"{line.workers:7,}  {shown(line.batches_per_s):>9}  {line.utilisation:11.1%}")
        lines += ["", fewest(sweep), ""]
    return "\n".join(lines[:-1])


def fewest(sweep: Mapping[int, Timeline]) -> str:
    """The advice of a sweep, in a sentence."""
    number = fewest_workers(dict(sweep))
    workers = _count(number, "worker")
    if number == max(sweep):
        return f"{workers}: the fastest of these; more may be faster still."
    return f"{workers}: within 5 % of the fastest of these."


def picture(variants: Sequence[PictureVariant], *, whole_page: bool = False) -> Markup:
    """The moving picture as a piece of HTML, with its data and its script: one clock for all variants, side by side
    where there is room. whole_page: whether it listens to keys wherever they are pressed, not only inside it."""
    shown_variants = [_embedded(variant, len(variants)) for variant in variants]
    html = template("picture.html").render(
        variants=[
            {
                "title": variant.title,
                "sentence": verdict(variant.timeline),
                "workers": variant.timeline.pipeline.workers,
                "in_order": variant.timeline.pipeline.in_order,
                "batch": variant.batch,
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
    """For the content security policy of a page with pictures: no request, and no script but the picture's."""
    digest = base64.b64encode(hashlib.sha256(asset("picture.js").encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def simulation_html(variants: Sequence[PictureVariant], sweep: Mapping[int, Timeline] | None = None) -> str:
    """The page: the picture, and all that simulation_text tells. The same for the same timelines."""
    first = variants[0].timeline
    batches = f"{_count(first.batches, 'batch', 'batches')} in {_time(first.seconds)}"
    headline = comparison(variants) or f"{batches}: training works {first.utilisation:.0%} of the time"
    return template("simulation.html").render(
        headline=headline,
        policy=picture_policy(),
        picture=picture(variants, whole_page=True),
        titles=[variant.title for variant in variants],
        rows=_rows(variants),
        sweep=sweep_lines(sweep) if sweep else [],
        shown=shown,
        advice=fewest(sweep) if sweep else "",
    )


def _rows(variants: Sequence[PictureVariant]) -> list[list[str]]:
    """A line for each fact, one column a variant."""
    told = [dict(facts(variant)) for variant in variants]
    names = dict.fromkeys(name for one in told for name in one)
    return [[name, *(one.get(name, "") for one in told)] for name in names]


def _embedded(variant: PictureVariant, variants: int) -> dict[str, Any]:
    """What the picture is drawn from, in seconds to the microsecond; of a long timeline the beginning. Steps carry
    the seconds of training that were done by their end."""
    timeline = variant.timeline
    loads, steps = timeline.loads, timeline.steps
    most_steps, most_loads = SHOWN_STEPS // variants, max(SHOWN_LOADS // variants, timeline.pipeline.workers + 1)
    until = [timeline.seconds]
    until += [steps[most_steps].taken_s] if len(steps) > most_steps else []
    until += [loads[most_loads].begin_s] if len(loads) > most_loads else []
    end = min(until)

    def by_then(at: float | None) -> float | None:
        return None if at is None or at > end else round(at, 6)

    worked, step_lines = 0.0, []
    for step in (step for step in steps if step.taken_s < end or end == timeline.seconds):
        if step.begin_s is not None and step.begin_s <= end:
            worked += step.work_s if step.end_s is not None else 0.0
            if step.end_s is None:
                worked = timeline.step_work_s
            elif step.end_s > end:
                worked -= step.work_s * (step.end_s - end) / (step.end_s - step.begin_s)
        line = [step.batch, step.taken_s, by_then(step.begin_s), by_then(step.end_s), worked]
        step_lines.append([value if value is None else round(value, 6) for value in line])
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
        "steps": step_lines,
    }


def _cut(variant: PictureVariant, seconds: float, steps: int) -> str:
    whole = variant.timeline
    of = f"{_time(whole.seconds)}, {steps:,} of {whole.batches:,} batches"
    return f"The picture shows the first {_time(seconds)} of {of}."


def _json(data: object) -> Markup:
    """JSON that can stand in a script element: nothing in it ends that."""
    text = json.dumps(data, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms"


def _times(times: Times) -> str:
    return _time(times.mean_s) + (f" ± {times.cv:.0%}" if times.cv else "")


def _count(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _count_of(number: float, one: str) -> str:
    return f"{number:.2g} {one if number == 1 else one + 's'}"


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"
