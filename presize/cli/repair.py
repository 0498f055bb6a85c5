"""presize repair."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from presize.cli.group import PATH, cli, examples, quiet_option
from presize.cli.output import Progress, print_json, print_text
from presize.formatting import plural, printable
from presize.options import SourceOptions

if TYPE_CHECKING:
    from presize.builder.repair import Repair


@cli.command(
    epilog=examples(
        "presize repair RAW OUT",
        "presize repair RAW OUT --jobs 2 --json",
    )
)
@click.argument("source", metavar="SRC", type=PATH)
@click.argument("dataset", metavar="OUT", type=PATH)
@click.option("--keys", metavar="PATTERN|PRESET|NAME", help="As for presize build.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quiet_option
def repair(source: str, dataset: str, keys: str | None, jobs: int | None, as_json: bool, quiet: bool) -> None:
    """Make the damaged and missing shards of OUT again from SRC.

    A shard is replaced only by one whose records are those in the index. The exit code is 1 if damage is left.
    """
    from presize.builder.repair import repair_dataset

    with Progress(sys.stderr, "repair", quiet=quiet) as progress:
        result = repair_dataset(
            source, dataset, jobs=jobs, samples=SourceOptions(keys=keys), on_begin=progress.begin,
            on_shard=lambda: progress.add(1),
        )  # fmt: skip
    if as_json:
        problems = [problem._asdict() for problem in result.problems]
        print_json(shards=result.shards, repaired=result.repaired, problems=problems)
    else:
        for problem in result.problems:
            print_text(printable(f"{problem.file}: {problem.what}"))
        if not quiet:
            print_text(_summary(dataset, result))
    if result.problems:
        raise click.exceptions.Exit(1)


def _summary(dataset: str, result: Repair) -> str:
    lines = [f"{file}: made again" for file in result.repaired]
    left = plural(len(result.problems), "problem")
    counts = f"{plural(result.shards, 'shard')}, {len(result.repaired):,} made again, {left} left"
    return "\n".join([*lines, f"{dataset}: {counts}"])
