"""What `presize build` says: about a build, about a part of one, and about a plan."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from presize.cli.output import print_json, print_text, reject_lines
from presize.errors import BuildError
from presize.formatting import duration, plural, printable, rate_text, size_text
from presize.options import KEEP, RunOptions, size_words
from presize.store.rejects import LEFT_OUT, left_out_text
from presize.system.resources import usable_cores

if TYPE_CHECKING:
    import pyarrow as pa

    from presize.builder.parts import PartResult
    from presize.builder.plan import Plan
    from presize.builder.run import BuildResult
    from presize.builder.update import Changes

_REJECTS_SHOWN = 5


def _splits(table: pa.Table) -> dict[str, int]:
    """How many samples each split has; empty without --split, and for a column of numbers."""
    if "split" not in table.column_names or str(table.schema.field("split").type) != "large_string":
        return {}
    counts = table.column("split").value_counts().to_pylist()
    return {str(each["values"]): each["counts"] for each in counts}


def _counts(changes: Changes) -> str:
    """``kept 990, copied 8, built 2, removed 1``"""
    return ", ".join(f"{what} {count:,}" for what, count in changes.counts().items())


def _verified(damaged: int) -> str:
    """What an update has found that reads all that it keeps."""
    return f"{plural(damaged, 'damaged image')} made again" if damaged else "all records that were kept are whole"


def build_summary(result: BuildResult, update: bool, keep: bool) -> str:
    """What a build did, in a few lines.

    Args:
        result: of the build.
        update: whether it brought a dataset up to date.
        keep: whether images were to be stored as they are.
    """
    from presize.codecs.source_facts import loss_sentences  # brings NumPy

    now = result.files - result.resumed
    idle = "nothing had to be decoded" if update or result.unreadable else "nothing was left to do"
    built_now = f"{now:,} of them now, " if result.resumed and not update else ""
    rate = f"{built_now}{rate_text(result.images_per_s)} images/s" if now else idle
    stored = plural(result.stored, "image")
    lines = [f"{result.out}: {stored}, {size_text(result.bytes)}, in {duration(result.seconds)} ({rate})"]
    lines += reject_lines(result.rejected, result.rejects_file, result.first_rejects)
    if result.unreadable:
        lines.append(f"  {plural(result.unreadable, 'file')} unreadable, listed in {result.rejects_file}")
    left_out = left_out_text({name: getattr(result, name) for name in LEFT_OUT})
    if left_out:
        lines.append(f"  not stored: {left_out}")
    if keep:
        lines.append(f"  {result.unchanged:,} stored as they were, {result.stored - result.unchanged:,} encoded")
    lines += (f"  {loss}" for loss in loss_sentences(result.losses, result.pair_losses))
    if update:
        lines.append(f"  {_counts(result.changes)}")
    if result.changes.damaged is not None:
        lines.append(f"  verified: {_verified(result.changes.damaged)}")
    if result.reports:
        lines.append(f"  report: {' and '.join(map(str, result.reports))}")
    return "\n".join(lines)


def print_part(result: PartResult, as_json: bool) -> None:
    """Print what a part of a build did, and which parts are not finished."""
    from presize.builder.parts_listing import parts_text

    if as_json:
        print_json(
            part=result.part.number, parts=result.part.of, published=result.published, shards=result.shards,
            stored=result.stored, rejected=result.rejected, unreadable=result.unreadable, skipped=result.skipped,
            unfinished=result.unfinished, seconds=round(result.seconds, 3), out=str(result.out),
        )  # fmt: skip
        return
    if result.published:
        again = f"the same command without --part tries {plural(result.unreadable, 'unreadable file')} again"
        return print_text(
            f"{result.out}: published already; {again if result.unreadable else 'nothing was left to do'}"
        )
    rate = f" ({rate_text(result.images_per_s)} images/s)" if result.images_per_s else ""
    lines = [
        f"{result.out}: part {result.part.number} of {result.part.of}, {plural(result.shards, 'shard')}: "
        f"{plural(result.stored, 'image')}, {size_text(result.bytes)}, in {duration(result.seconds)}{rate}"
    ]
    if result.rejected:
        lines.append(f"  {plural(result.rejected, 'image')} rejected")
    if result.unreadable:
        lines.append(f"  {plural(result.unreadable, 'file')} unreadable; the same command tries again")
    unfinished = f"unfinished parts: {parts_text(result.unfinished)}"
    ready = "all parts are finished: the same command without --part publishes the dataset"
    print_text("\n".join([*lines, f"  {unfinished if result.unfinished else ready}"]))


def print_plan(plan: Plan, to_build: Plan, changes: Changes | None, out: str, run: RunOptions, as_json: bool) -> None:
    """Print what a build would do, and about how long it would take.

    Args:
        plan: of all samples.
        to_build: what of it an update has to build.
        changes: what an update would change; None for a build.
        out: where the build would write.
        run: how it would be carried out.
        as_json: print one JSON object.
    """
    from presize.builder.estimate import estimate
    from presize.system.child import ChildDiedError

    source, image = plan.source, plan.options.image
    cores = usable_cores()
    jobs = run.jobs or cores
    try:
        found = estimate(to_build, jobs, run.report)
    except ChildDiedError as error:
        raise BuildError(
            f"--dry-run: a decoder died ({error}) on one of the files that were tried; a build names it, rejects it, "
            "and goes on"
        ) from None
    existing = next(path for path in [Path(out).absolute(), *Path(out).absolute().parents] if os.path.exists(path))
    free_bytes = shutil.disk_usage(existing).free
    if as_json:
        print_json(
            samples=len(source.table), classes=source.classes, shards=len(to_build.shards), bytes=found.bytes,
            cpu_seconds=round(found.cpu_seconds, 3), seconds=round(found.seconds, 3), jobs=jobs, tried=found.tried,
            skipped=found.skipped, rejected=len(found.rejects), rejects=[reject.known() for reject in found.rejects],
            free_bytes=free_bytes, out=out, splits=_splits(source.table), **(changes.counts() if changes else {}),
        )  # fmt: skip
        return
    classes = plural(len(source.classes), "class", "classes") if source.classes is not None else "no classes"
    sizes = " and ".join(map(size_words, image.sizes))
    fit = "" if image.sizes == (KEEP,) else f" {image.fit}"
    shards = [len(shard) for shard in to_build.shards]
    splits = _splits(source.table)
    samples = plural(max(shards, default=0), "sample")
    too_little = ", not enough" if free_bytes < found.bytes else ""
    lines = [
        f"source    {source.root}: {plural(len(source.table), 'file')}, {classes}",
        *(
            [f"splits    {', '.join(f'{printable(name)} {count:,}' for name, count in splits.items())}"]
            if splits
            else []
        ),
        f"target    {out}: {sizes}{fit}, {image.format} to {plan.options.layout}",
        *(f"pair      {c.name}: {c.format}, {c.filter}" for c in plan.options.companions),
        *([f"update    {_counts(changes)}"] if changes else []),
        f"shards    {len(shards):,}{' to write,' if changes else ''} of about {samples}",
        f"estimate  {size_text(found.bytes)} and {duration(found.seconds)} with --jobs {jobs} "
        f"on {plural(cores, 'core')}",
        f"tried     {plural(found.tried, 'file')}: {len(found.rejects):,} rejected, {found.skipped:,} not images",
        *(f"          {printable(f'{reject.path}: {reject.reason}')}" for reject in found.rejects[:_REJECTS_SHOWN]),
        f"free      {size_text(free_bytes)}{too_little}",
    ]
    if len(found.rejects) > _REJECTS_SHOWN:
        lines.insert(-1, f"          and {len(found.rejects) - _REJECTS_SHOWN:,} more")
    print_text("\n".join(lines))
