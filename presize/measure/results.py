"""Measurements of a benchmark -> a row per run and a summary per kind of run, as text for a terminal, a page, CSV and
JSON, each with the conditions of the benchmark."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from presize.formatting import factor_text, plural, rate_text, seconds_text
from presize.measure.bench_options import READS, VARIANTS, Run, Variant
from presize.measure.stages import Spread, Stages, break_even_epochs, verdict
from presize.pages import charts
from presize.pages.html import template

_RUN_COLUMNS = ("variant", "model", "device", "workers", "pin_memory", "cold", "prefetch", "batch", "crop")

Row = dict[str, Any]
"""A run as one flat row: options and measurements."""


@dataclass(frozen=True)
class Results:
    conditions: Mapping[str, str]  # machine, versions and storage, name -> words
    options: Mapping[str, Any]
    notes: tuple[str, ...]  # sentences to read with the figures
    images: int  # samples that all variants read
    build_s: Mapping[str, float]  # seconds of the builds of "presized" and "lmdb" that the benchmark made
    planned: int  # number of runs
    rows: tuple[Row, ...] = ()  # one per finished run


def row_of(run: Run, repeat: int, resident_share: float, measured: Mapping[str, Any]) -> Row:
    """Return the row of a run. `repeat`: from 0. `resident_share`: of its files, in the page cache. `measured`: its
    answer. Rates and times exclude the first epoch, unless it is the only one; first_epoch_images_per_s is of that
    epoch, including the start of workers."""
    epochs = measured["epochs"]
    first, later = epochs[0], epochs[1:] or epochs
    window_images = sum(epoch["window_images"] for epoch in later)
    window_s = sum(epoch["window_s"] for epoch in later)
    return {
        "repeat": repeat,
        **{name: getattr(run, name) for name in _RUN_COLUMNS},
        "epochs": len(epochs),
        "images": first["images"],
        "resident_share": round(resident_share, 4),
        "images_per_s": window_images / window_s,
        "step_s": run.batch * window_s / window_images,
        "resident_s": measured["resident_s"],
        "copied_s": measured["copied_s"],
        "first_epoch_images_per_s": first["images"] / first["seconds"],
        "first_batch_s": median(epoch["first_batch_s"] for epoch in later),
        "cpu_s_per_image": sum(epoch["cpu_s"] for epoch in later) / sum(epoch["images"] for epoch in later),
        "model_of": measured["model_of"],
    }


MODEL_WORDS = {"none": "no model, loader only", "small": "small CNN", "resnet50": "ResNet-50"}


class Kind(NamedTuple):
    """Options that all runs of one table share. The runs differ in their variants."""

    model: str
    device: str
    workers: int
    pin_memory: bool
    cold: bool
    batch: int

    def __str__(self) -> str:
        words = [
            MODEL_WORDS[self.model],
            f"on {self.device}" if self.model != "none" or self.device != "cpu" else "",
            f"batches of {self.batch}",
            plural(self.workers, "worker"),
            "pinned memory" if self.pin_memory else "",
            "first epoch, files not in the page cache" if self.cold else "files in the page cache",
        ]
        return ", ".join(filter(None, words))


@dataclass(frozen=True)
class Summary:
    variant: Variant
    images_per_s: Spread
    speedup: float  # median rate, divided by that of the first variant of this kind
    stages: Stages | None  # None without a model, and for cold runs without warm ones
    break_even: float | None  # epochs, compared with the raw folder; None if not known, or if raw is compute-bound
    first_batch_s: float  # median
    cpu_s_per_image: float  # median


def summarise(results: Results) -> dict[Kind, list[Summary]]:
    """Return the summaries of each kind of run. Kinds are sorted by model (as in the options), workers, pinning and
    cold; variants are in the order of VARIANTS."""
    groups: dict[Kind, dict[Variant, list[Row]]] = {}
    for row in results.rows:
        kind = Kind(*(row[name] for name in Kind._fields))
        groups.setdefault(kind, {}).setdefault(row["variant"], []).append(row)
    models = list(results.options.get("models", ()))
    order = sorted(groups, key=lambda kind: (models.index(kind.model), kind.workers, kind.pin_memory, kind.cold))
    return {kind: _summaries(results, groups[kind], groups.get(kind._replace(cold=False), {})) for kind in order}


def _summaries(results: Results, rows: dict[Variant, list[Row]], warm: dict[Variant, list[Row]]) -> list[Summary]:
    variants = [variant for variant in VARIANTS if variant in rows]
    rates = {variant: Spread.of([row["images_per_s"] for row in rows[variant]]) for variant in variants}
    stages = {variant: _stages(rows[variant], warm.get(variant, [])) for variant in variants}
    raw = stages.get("raw")
    can_gain = "raw" in rows and (raw is None or raw.bottleneck != "compute")
    summaries = []
    for variant in variants:
        build_s, break_even = results.build_s.get(READS[variant]), None
        if build_s is not None and can_gain and variant != "raw":
            epoch_s = (results.images / rates[one].median for one in ("raw", variant))
            break_even = break_even_epochs(build_s, *epoch_s)
        speedup = rates[variant].median / rates[variants[0]].median
        first_batch_s, cpu_s = (_median(rows[variant], name) for name in ("first_batch_s", "cpu_s_per_image"))
        summaries.append(Summary(variant, rates[variant], speedup, stages[variant], break_even, first_batch_s, cpu_s))
    return summaries


def _stages(rows: Sequence[Row], warm: Sequence[Row]) -> Stages | None:
    """Return the stages of a variant. T_resident and T_h2d are medians over warm and cold runs, on its own batches."""
    alike = [*rows, *warm]
    resident_s, copied_s = _median(alike, "resident_s"), _median(alike, "copied_s")
    if not warm or resident_s is None or copied_s is None:
        return None
    return Stages(resident_s, copied_s, _median(warm, "step_s"), _median(rows, "step_s") if rows[0]["cold"] else None)


def _median(rows: Sequence[Row], name: str) -> Any:
    values = [row[name] for row in rows if row[name] is not None]
    return median(values) if values else None


def to_csv(results: Results) -> str:
    """Return a line per run, with numbers to six significant digits and the conditions in the last columns."""
    text = io.StringIO()
    if results.rows:
        writer = csv.DictWriter(text, [*results.rows[0], *results.conditions], lineterminator="\n")
        writer.writeheader()
        for row in results.rows:
            short = {name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in row.items()}
            writer.writerow(short | dict(results.conditions))
    return text.getvalue()


def to_json(results: Results) -> str:
    """Return conditions, options, notes, all runs and the summaries."""
    summary = [
        {"kind": kind._asdict(), "variants": list(map(_plain, found))} for kind, found in summarise(results).items()
    ]
    return json.dumps(asdict(results) | {"summary": summary}, indent=1, ensure_ascii=False) + "\n"


def _plain(one: Summary) -> dict[str, Any]:
    values = asdict(one)
    if one.stages is not None:
        told = {name: getattr(one.stages, name) for name in ("bottleneck", "bound", "disagreement")}
        values["stages"] |= one.stages.stalls._asdict() | told
    if one.break_even == math.inf:
        values["break_even"] = None  # JSON has no infinity
    return values


NAMES = {
    "pil": "raw folder, PIL", "raw": "raw folder", "presized": "presized folder", "lmdb": "LMDBDataset",
    "loader": "Loader",
}  # fmt: skip


def _rate(one: Summary) -> str:
    spread = one.images_per_s
    if spread.runs == 1:
        return rate_text(spread.median)
    return f"{rate_text(spread.median)} ({rate_text(spread.min)}–{rate_text(spread.max)})"


def _share(one: Summary, part: str) -> str | None:
    """Return the cell of a stall; None for an impossible one: copies on the CPU, the disk in a warm run."""
    stages = one.stages
    if stages is None or (part == "copy" and stages.copied_s == stages.resident_s):
        return None
    return None if part == "fetch" and stages.cold_s is None else f"{getattr(stages.stalls, part):.0%}"


def _break_even(one: Summary) -> str | None:
    if one.break_even is None:
        return None
    return "never" if math.isinf(one.break_even) else f"{one.break_even:.1f}"


COLUMNS: dict[str, tuple[Callable[[Summary], str | None], str]] = {
    "images/s": (_rate, "median of the runs (min–max), from the epochs after the first"),
    "speed-up": (lambda one: f"{factor_text(one.speedup)} ×", "times as fast as the first row"),
    "step": (
        partial(_share, part="utilisation"),
        "share of the time that the training step itself takes; 100% if loading cost nothing",
    ),
    "copy": (partial(_share, part="copy"), "share of the time that copying to the device adds"),
    "loading": (partial(_share, part="preparation"), "share that reading, decoding, cropping and collating add"),
    "disk": (partial(_share, part="fetch"), "share that the disk adds"),
    "CPU ms": (lambda one: f"{one.cpu_s_per_image * 1e3:,.2f}", "CPU time per image of all processes, with training"),
    "start s": (lambda one: f"{one.first_batch_s:,.2f}", "seconds to the first batch of an epoch"),
    "break-even": (_break_even, "epochs after which the build breaks even, compared with the raw folder"),
}
"""Heading -> function that returns its cell, None if not known, and its meaning."""


def table_of(variants: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Return the headings of all columns that are not empty, and a row per variant that begins with its name."""
    cells = {heading: [text(one) for one in variants] for heading, (text, _) in COLUMNS.items()}
    known = {heading: [text or "" for text in texts] for heading, texts in cells.items() if any(texts)}
    names = [NAMES[one.variant] for one in variants]
    return list(known), list(map(list, zip(names, *known.values(), strict=True)))


def headline(results: Results) -> str:
    """Return the result in one line: for each model, the speed-up of the fastest variant over the first."""
    said: dict[str, str] = {}
    for kind, variants in summarise(results).items():
        said.setdefault(kind.model, _compared(kind, variants))  # of the first kind with this model
    result = "; ".join(said.values()) or "no runs yet"
    return f"{result[0].upper()}{result[1:]}"


def _fastest(variants: Sequence[Summary]) -> Summary:
    return max(variants, key=lambda one: one.images_per_s.median)


def _compared(kind: Kind, variants: Sequence[Summary]) -> str:
    first, fastest = variants[0], _fastest(variants)
    names = [f"the {name}" if "folder" in name else name for name in (NAMES[first.variant], NAMES[fastest.variant])]
    trains = "" if kind.model == "none" else f"{MODEL_WORDS[kind.model]} trains "
    if len(variants) == 1:
        rate = f"{rate_text(first.images_per_s.median)} images/s"
        return f"{trains}at {rate} from {names[0]}" if trains else f"{names[0]} reads {rate}"
    if fastest.images_per_s.min <= first.images_per_s.max:
        if trains:
            return f"{trains}no faster from any other variant than from {names[0]}"
        return f"nothing reads faster than {names[0]}"
    gain = f"{factor_text(fastest.speedup)} times as fast"
    return f"{trains}{gain} from {names[1]}" if trains else f"{names[1]} reads {gain} as {names[0]}"


def verdicts(kind: Kind, variants: Sequence[Summary]) -> list[str]:
    """Return verdicts on the first variant and on the fastest."""
    said, steps_s = [], []
    for variant, stages in {one.variant: one.stages for one in (variants[0], _fastest(variants))}.items():
        name = NAMES[variant]
        if stages is None:
            continue
        steps_s.append(stages.resident_s)
        said.append(f"{name}: {verdict(stages, kind.batch)}")
        if stages.disagreement > 0.05:
            said.append(
                f"{name}: noisy: a step with more work was {stages.disagreement:.0%} faster than one with less. Use "
                "more --repeats and an idle machine."
            )
    if steps_s and max(steps_s) > 1.05 * min(steps_s):
        said.append(
            f"A step on the batches of {name} takes {seconds_text(steps_s[1])} instead of {seconds_text(steps_s[0])}, "
            "because their memory layout differs."
        )
    return said


def bench_text(results: Results) -> str:
    """Return the headline of a benchmark, a table for each kind of measurement, and the notes, as ``presize bench``
    prints them."""
    lines = [f"{headline(results)}.", ""]
    for kind, variants in summarise(results).items():
        columns, rows = table_of(variants)
        cells = [["", *columns], *rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [f"{kind}:", ""]
        for row in cells:
            texts = [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join([f"  {row[0].ljust(widths[0])}", *texts]).rstrip())
        said = [line for sentence in verdicts(kind, variants) for line in _wrapped(sentence, "  ")]
        lines += ["", *said, *[""] * bool(said)]
    lines += _progress(results)
    lines += [*(line for note in (*results.notes, _measured(results)) for line in _wrapped(note)), ""]
    width = max(map(len, results.conditions), default=0)
    lines += [f"{name.ljust(width)}  {what}" for name, what in results.conditions.items()]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent)


def _progress(results: Results) -> list[str]:
    done, planned = len(results.rows), results.planned
    return [f"Partial results: {done} of {planned} runs."] if done < planned else []


def _measured(results: Results) -> str:
    options = results.options
    steps = "" if options["steps"] is None else f" of {plural(options['steps'], 'batch', 'batches')}"
    return (
        f"Medians of {plural(options['repeats'], 'run')} of {plural(options['epochs'], 'epoch')}{steps}, each in a "
        f"separate process, in random order; {plural(results.images, 'image')}, crops of {options['crop']} px."
    )


def bench_page(results: Results) -> str:
    """Return report.html. Equal results give equal pages; all text is escaped."""
    parts = []
    for kind, variants in summarise(results).items():
        columns, rows = table_of(variants)
        rates = {NAMES[one.variant]: one.images_per_s for one in variants}
        spent = {NAMES[one.variant]: one.stages.stalls for one in variants if one.stages is not None}
        found = [charts.bars("Images/s", {name: (s.median, s.min, s.max) for name, s in rates.items()})]
        if spent:
            stalls = {
                name: {"training step": s.utilisation, "copying": s.copy, "loading": s.preparation, "disk": s.fetch}
                for name, s in spent.items()
            }
            busy = {name: f"step {s.utilisation:.0%}" for name, s in spent.items()}
            found.append(charts.shares("Where the time goes", stalls, busy))
        parts.append((kind, columns, rows, verdicts(kind, variants), found))
    shown = {heading for _, columns, *_ in parts for heading in columns}
    builds = {f"build of {name}": f"{seconds:.1f} s" for name, seconds in results.build_s.items()}
    return template("bench.html").render(
        results=results,
        headline=headline(results),
        parts=parts,
        progress=_progress(results),
        measured=_measured(results),
        explained=[(heading, meaning) for heading, (_, meaning) in COLUMNS.items() if heading in shown],
        conditions=[*results.conditions.items(), *builds.items()],
    )
