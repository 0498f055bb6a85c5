"""presize derive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from presize.cli.group import command, interruptible, json_option, quiet_option, warn_of_jobs
from presize.cli.option_groups import PATH, given, stated
from presize.cli.output import Progress, print_json, print_text, reject_lines, result_line
from presize.formatting import plural, size_text
from presize.options import DeriveOptions, RunOptions

if TYPE_CHECKING:
    from presize.builder.derive import DeriveResult


ONLY = click.Option(
    ["--only"],
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="Select samples by a list of paths: one per line, or the path column of a table; may be repeated.",
)
OVERWRITE = click.Option(["--overwrite"], is_flag=True, help="Replace the dataset in NEW when the new one is complete.")
DRY_RUN = click.Option(["--dry-run"], is_flag=True, help="Print what would be done; write nothing.")


@command(
    "presize derive OUT SMALLER --size 128",
    "presize derive OUT OUT_VAL BOTH --prefix",
    "presize derive OUT SOME --only paths.txt",
    params=[
        *stated(DeriveOptions, "size"), ONLY, *stated(DeriveOptions, "classes", "prefix"),
        *stated(RunOptions, "jobs", "timeout_s"), OVERWRITE, DRY_RUN,
    ],
)  # fmt: skip
@click.argument("datasets", metavar="OUT...", type=PATH, nargs=-1)
@click.argument("new", metavar="NEW", type=PATH)
@json_option
@quiet_option
def derive(
    datasets: tuple[str, ...], new: str, only: tuple[str, ...], classes: str | None, jobs: int | None, timeout_s: float,
    overwrite: bool, dry_run: bool, as_json: bool, quiet: bool, **typed: Any,
) -> None:  # fmt: skip
    """Make the dataset NEW from other datasets, not their sources.

    NEW has the samples of every OUT and one class list. Images are copied unchanged, or resized to a smaller --size.
    Run the same command again to finish an interrupted run.
    """
    if not datasets:
        raise click.UsageError(f"Missing argument 'NEW': {new} is a dataset to read; add a folder for the new one.")
    from presize.builder.derive import derive_dataset, plan_derive
    from presize.sources.labels import naming, read_classes
    from presize.sources.table import read_paths

    warn_of_jobs(jobs)
    paths: list[str] = []
    for file in only:
        with naming(f"--only {file!r}"):
            paths += read_paths(file)
    names = None if classes is None else read_classes(Path(classes))
    options = given(DeriveOptions, typed, only=paths or None, classes=names)
    if dry_run:
        found = plan_derive(datasets, options)
        samples = len(found.plan.source.table)
        copied = samples - found.resized
        if as_json:
            print_json(
                samples=samples, copied=copied, resized=found.resized, shards=len(found.plan.shards),
                bytes_read=found.nbytes, out=new,
            )  # fmt: skip
        else:
            print_text(
                f"{new}: {plural(samples, 'image')}, {copied:,} copied and {found.resized:,} resized, from "
                f"{size_text(found.nbytes)}; nothing was written"
            )
        return
    with Progress(sys.stderr, "derive", quiet=quiet) as progress, interruptible("run again to resume"):
        result = derive_dataset(
            datasets, new, options, RunOptions(jobs, timeout_s=timeout_s, overwrite=overwrite),
            on_plan=lambda found: progress.begin(len(found.plan.source.table)),
            on_shard=lambda done: progress.add(done.samples, earlier=done.earlier),
        )  # fmt: skip
    if as_json:
        print_json(result, "samples copied resized rejected bytes shards seconds out")
    elif not quiet:
        print_text(_summary(result))


def _summary(result: DeriveResult) -> str:
    lines = [
        result_line(result.out, result.samples, result),
        f"  {result.copied:,} copied, {result.resized:,} resized",
    ]
    if result.recompressed:
        lines[1] += "; the resized images were compressed a second time, which costs a little quality"
    return "\n".join([*lines, *reject_lines(result.rejected, result.rejects_file, result.first_rejects)])
