"""The results of a benchmark -> text for a terminal, and a page. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from presize.formatting import factor_text, plural, rate_text
from presize.measure.results import MODEL_WORDS, Kind, Results, Summary, summarise
from presize.measure.stages import Spread, verdict
from presize.pages import charts
from presize.pages.html import template

NAMES = {
    "pil": "raw folder, PIL", "raw": "raw folder", "presized": "presized folder", "lmdb": "LMDBDataset",
    "loader": "Loader",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        heading: Its heading.
        text: The cell of a variant; None if not known.
        meaning: The heading, explained.
    """

    heading: str
    text: Callable[[Summary], str | None]
    meaning: str


def _spread(spread: Spread) -> str:
    if spread.runs == 1:
        return rate_text(spread.median)
    return f"{rate_text(spread.median)} ({rate_text(spread.min)}–{rate_text(spread.max)})"


def _share(part: str) -> Callable[[Summary], str | None]:
    def text(one: Summary) -> str | None:
        return None if one.stages is None else f"{getattr(one.stages.stalls, part):.2f}"

    return text


def _fetch(one: Summary) -> str | None:
    return None if one.stages is None or one.stages.cold_s is None else f"{one.stages.stalls.fetch:.2f}"


def _break_even(one: Summary) -> str | None:
    if one.break_even is None:
        return None
    return "never" if math.isinf(one.break_even) else f"{one.break_even:.1f}"


def _scaled(name: str, factor: float, digits: int) -> Callable[[Summary], str | None]:
    def text(one: Summary) -> str | None:
        value = getattr(one, name)
        return None if value is None else f"{value * factor:,.{digits}f}"

    return text


COLUMNS = (
    Column(
        "images/s",
        lambda one: _spread(one.images_per_s),
        "median of the runs (min–max), from the epochs after the first",
    ),
    Column(
        "1st epoch",
        lambda one: rate_text(one.first_epoch_images_per_s),
        "images/s of the first epoch, the start of the workers included",
    ),
    Column("speed-up", lambda one: factor_text(one.speedup), "times as fast as the first row"),
    Column(
        "U",
        _share("utilisation"),
        "utilisation: share of the time that the training step itself takes; 1 if loading costs nothing",
    ),
    Column("copy", _share("copy"), "share of the time that copying to the device adds"),
    Column("prep.", _share("preparation"), "share that reading, decoding, cropping and collating add"),
    Column("fetch", _fetch, "share that the disk adds"),
    Column("start s", _scaled("first_epoch_first_batch_s", 1, 2), "seconds to the first batch of the first epoch"),
    Column("first s", _scaled("first_batch_s", 1, 3), "seconds to the first batch of later epochs"),
    Column("p50 ms", _scaled("p50_s", 1e3, 1), "median time of a step"),
    Column("p95 ms", _scaled("p95_s", 1e3, 1), "95th percentile of the time of a step"),
    Column("p99 ms", _scaled("p99_s", 1e3, 1), "99th percentile of the time of a step"),
    Column("CPU ms", _scaled("cpu_s_per_image", 1e3, 2), "CPU time per image, of all processes, training included"),
    Column("PSS MB", _scaled("worker_pss_bytes", 1e-6, 0), "memory of the largest worker; shared pages count in part"),
    Column("read MB", _scaled("read_bytes_per_epoch", 1e-6, 1), "read from storage in an epoch"),
    Column("GPU", _scaled("gpu_busy", 1, 2), "share of the time with any kernel running (NVML); no proof of full use"),
    Column("GPU MB", _scaled("gpu_memory_bytes", 1e-6, 0), "peak memory in use on the GPU"),
    Column("break-even", _break_even, "epochs after which the build breaks even, against the raw folder"),
)


def table_of(variants: Sequence[Summary]) -> tuple[list[Column], list[list[str]]]:
    """The columns of which anything is known, and a row for each variant, its name first."""
    columns = [column for column in COLUMNS if any(column.text(one) is not None for one in variants)]
    return columns, [[NAMES[one.variant], *(column.text(one) or "" for column in columns)] for one in variants]


def headline(results: Results) -> str:
    """The result in a line: for each model, how much faster the fastest variant is than the first."""
    said: dict[str, str] = {}
    for kind, variants in summarise(results).items():
        said.setdefault(kind.model, _compared(kind, variants))  # by the first of its kinds
    result = "; ".join(said.values()) or "no runs yet"
    return f"{result[0].upper()}{result[1:]}"


def _compared(kind: Kind, variants: Sequence[Summary]) -> str:
    first, fastest = variants[0], max(variants, key=lambda one: one.images_per_s.median)
    names = [f"the {name}" if "folder" in name else name for name in (NAMES[first.variant], NAMES[fastest.variant])]
    trains = "" if kind.model == "none" else f"{MODEL_WORDS[kind.model]} trains "
    if len(variants) == 1:
        rate = f"{rate_text(first.images_per_s.median)} images/s"
        return f"{trains}on {rate} from {names[0]}" if trains else f"{names[0]} reads {rate}"
    if fastest.images_per_s.min <= first.images_per_s.max:
        return f"{trains}no faster than from {names[0]}" if trains else f"nothing reads faster than {names[0]}"
    gain = f"{factor_text(fastest.speedup)} times as fast"
    return f"{trains}{gain} from {names[1]}" if trains else f"{names[1]} reads {gain} as {names[0]}"


def verdicts(kind: Kind, variants: Sequence[Summary]) -> list[str]:
    """Verdicts on the first variant and on the fastest."""
    fastest = max(variants, key=lambda one: one.images_per_s.median)
    said = []
    for one in dict.fromkeys((variants[0].variant, fastest.variant)):
        stages = next(summary.stages for summary in variants if summary.variant == one)
        if stages is not None:
            said.append(f"{NAMES[one]}: {verdict(stages, kind.batch)}")
            if stages.disagreement > 0.05:
                said.append(
                    f"{NAMES[one]}: noisy: a step that does more was {stages.disagreement:.0%} faster than one that "
                    "does less. More --repeats and an idle machine help."
                )
    return said


def bench_text(results: Results) -> str:
    """A table for each kind of runs, verdicts, notes and conditions, for a terminal."""
    lines = [f"{headline(results)}.", ""]
    for kind, variants in summarise(results).items():
        columns, rows = table_of(variants)
        cells = [["", *(column.heading for column in columns)], *rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [f"{kind}:", ""]
        for row in cells:
            texts = [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join([f"  {row[0].ljust(widths[0])}", *texts]).rstrip())
        said = [f"  {sentence}" for sentence in verdicts(kind, variants)]
        lines += ["", *said, *[""] * bool(said)]
    lines += _progress(results)
    lines += [*results.notes, _measured(results), ""]
    width = max(map(len, results.conditions), default=0)
    lines += [f"{name.ljust(width)}  {what}" for name, what in results.conditions.items()]
    return "\n".join(lines)


def _progress(results: Results) -> list[str]:
    if len(results.rows) == results.planned:
        return []
    return [f"Partial results: {len(results.rows)} of {results.planned} runs."]


def _measured(results: Results) -> str:
    options = results.options
    steps = "" if options["steps"] is None else f" of {plural(options['steps'], 'batch', 'batches')}"
    return (
        f"Medians of {plural(options['repeats'], 'run')} of {plural(options['epochs'], 'epoch')}{steps}, each in a "
        f"process of its own, in random order; {plural(results.images, 'image')}, crops of {options['crop']} px."
    )


def bench_page(results: Results) -> str:
    """report.html. Equal results give equal pages; all text is escaped."""
    parts = []
    for kind, variants in summarise(results).items():
        columns, rows = table_of(variants)
        rates = {NAMES[one.variant]: one.images_per_s for one in variants}
        spent = {NAMES[one.variant]: one.stages.stalls for one in variants if one.stages is not None}
        found = [charts.bars("Images/s", {name: (s.median, s.min, s.max) for name, s in rates.items()})]
        if spent:
            shares = {name: (s.utilisation, s.copy, s.preparation, s.fetch) for name, s in spent.items()}
            found.append(charts.stacks("Where the time goes", ("training step", "copy", "preparation", "disk"), shares))
        parts.append((kind, columns, rows, verdicts(kind, variants), found))
    return template("bench.html").render(
        results=results,
        headline=headline(results),
        parts=parts,
        progress=_progress(results),
        measured=_measured(results),
        explained=[column for column in COLUMNS if any(column in columns for _, columns, *_ in parts)],
    )
