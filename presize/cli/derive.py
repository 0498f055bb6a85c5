"""presize derive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from presize.cli.group import (
    PATH,
    Interrupted,
    InterruptedByTerm,
    Terminated,
    cli,
    examples,
    parsed,
    quiet_option,
    warn_of_jobs,
)
from presize.cli.output import Progress, print_json, print_text, reject_lines
from presize.formatting import duration, plural, size_text
from presize.options import RunOptions, Size

if TYPE_CHECKING:
    from presize.builder.derive import DeriveResult


@cli.command(
    epilog=examples(
        "presize derive OUT SMALLER --size 128",
        "presize derive OUT OUT_VAL BOTH --prefix",
        "presize derive OUT SOME --only paths.txt",
    )
)
@click.argument("datasets", metavar="OUT...", type=PATH, nargs=-1)
@click.argument("new", metavar="NEW", type=PATH)
@click.option(
    "--size",
    metavar="N|WxH",
    callback=parsed(Size.parse),
    help="Target size in pixels, no larger than that of OUT.  [default: that of OUT]",
)
@click.option(
    "--only",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="Take the samples whose paths it lists: one a line, or in the path column of a table; may be repeated.",
)
@click.option(
    "--classes", type=PATH, metavar="FILE|DATASET", help="Class list to use: one name a line, or a dataset's."
)
@click.option("--prefix", is_flag=True, help="Put the number of its OUT before each path: 0/cats/1.jpg.")
@click.option("--jobs", type=int, metavar="N", help="Processes.  [default: all cores]")
@click.option("--overwrite", is_flag=True, help="Replace the dataset in NEW once the new one is whole.")
@click.option("--dry-run", is_flag=True, help="Print what would be done; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@quiet_option
def derive(
    datasets: tuple[str, ...], new: str, size: Size | None, only: tuple[str, ...], classes: str | None, prefix: bool,
    jobs: int | None, overwrite: bool, dry_run: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Make the dataset NEW from others, without their sources.

    NEW has the samples of all OUT, in one class list. Bytes are copied, unless --size is smaller. The same command
    finishes what was interrupted.
    """
    if not datasets:
        raise click.UsageError(f"Missing argument 'NEW': {new} is read, and the new dataset needs a place of its own.")
    from presize.builder.derive import DeriveOptions, derive_dataset, plan_derive
    from presize.sources.classes import naming, read_classes
    from presize.sources.table import read_paths

    warn_of_jobs(jobs)
    paths: list[str] = []
    for file in only:
        with naming(f"--only {file!r}"):
            paths += read_paths(file)
    options = DeriveOptions(size, paths or None, None if classes is None else read_classes(Path(classes)), prefix)
    if dry_run:
        found = plan_derive(datasets, options)
        samples = len(found.plan.source.table)
        counts = {"samples": samples, "copied": samples - found.resized, "resized": found.resized}
        if as_json:
            print_json(**counts, shards=len(found.plan.shards), bytes_read=found.nbytes, out=new)
        else:
            print_text(
                f"{new}: {plural(samples, 'image')}, {counts['copied']:,} copied and {found.resized:,} resized, from "
                f"{size_text(found.nbytes)}; nothing was written"
            )
        return
    with Progress(sys.stderr, "derive", quiet=quiet) as progress:
        try:
            result = derive_dataset(
                datasets, new, options, RunOptions(jobs, overwrite=overwrite),
                on_plan=lambda found: progress.begin(len(found.plan.source.table)),
                on_shard=lambda done: progress.add(done.stored + done.rejected),
            )  # fmt: skip
        except KeyboardInterrupt as stop:
            raise (InterruptedByTerm if isinstance(stop, Terminated) else Interrupted)(
                "interrupted; the same command resumes it"
            ) from None
    if as_json:
        print_json(
            samples=result.samples, copied=result.copied, resized=result.resized, rejected=result.rejected,
            bytes=result.bytes, shards=result.shards, seconds=round(result.seconds, 3), out=str(result.out),
        )  # fmt: skip
        return
    if not quiet:
        print_text(_summary(result))


def _summary(result: DeriveResult) -> str:
    lines = [
        f"{result.out}: {plural(result.samples, 'image')}, {size_text(result.bytes)}, in {duration(result.seconds)}",
        f"  {result.copied:,} copied, {result.resized:,} resized",
    ]
    if result.recompressed:
        lines[1] += ": these are compressed a second time (a second generation of JPEG or WebP)"
    return "\n".join([*lines, *reject_lines(result.rejected, result.rejects_file, result.first_rejects)])
