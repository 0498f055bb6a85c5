"""presize repair."""

from __future__ import annotations

import sys

import click

from presize.cli.group import EPILOG, cli
from presize.cli.printing import print_json, print_text
from presize.cli.progress import Progress
from presize.formatting import plural, printable
from presize.options import SourceOptions


@cli.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("dataset", metavar="OUT")
@click.option("--keys", metavar="PATTERN|PRESET|NAME", help="As for presize build.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Threads.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def repair(source: str, dataset: str, keys: str | None, jobs: int | None, as_json: bool) -> None:
    """Make the damaged and missing shards of OUT again from SRC.

    A shard is replaced only by one with the SHA-256 that the manifest names. The exit code is 1 if damage is left.
    """
    from presize.build.repair import repair_dataset

    with Progress(sys.stderr, "repair") as progress:
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
        for file in result.repaired:
            print_text(f"{file}: made again")
        left = plural(len(result.problems), "problem")
        print_text(f"{dataset}: {plural(result.shards, 'shard')}, {len(result.repaired):,} made again, {left} left")
    if result.problems:
        raise click.exceptions.Exit(1)
