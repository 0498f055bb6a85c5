"""presize repair."""

from __future__ import annotations

import sys

import click

from presize.cli.group import command, dataset_argument, json_option, quiet_option
from presize.cli.option_groups import PATH
from presize.cli.output import Progress, print_json, print_problems
from presize.formatting import plural
from presize.options import SourceOptions


@command("presize repair RAW OUT", "presize repair RAW OUT --jobs 2 --json")
@click.argument("source", metavar="SRC", type=PATH)
@dataset_argument
@click.option("--keys", metavar="PATTERN|PRESET|NAME", help="The --keys that OUT was built with.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes.  [default: all cores]")
@json_option
@quiet_option
def repair(source: str, dataset: str, keys: str | None, jobs: int | None, as_json: bool, quiet: bool) -> None:
    """Rebuild the damaged and missing shards of OUT from SRC.

    A shard is replaced only if the records of the new one match the index. The exit code is 1 if damage is left.
    """
    from presize.builder.repair import repair_dataset

    with Progress(sys.stderr, "repair", quiet=quiet) as progress:
        result = repair_dataset(
            source, dataset, jobs=jobs, samples=SourceOptions(keys=keys), on_begin=progress.begin,
            on_shard=lambda: progress.add(1),
        )  # fmt: skip
    if as_json:
        print_json(result, "shards repaired problems")
    else:
        left = plural(len(result.problems), "problem")
        lines = [f"{file}: rebuilt" for file in result.repaired]
        lines.append(f"{dataset}: {plural(result.shards, 'shard')}, {len(result.repaired):,} rebuilt, {left} left")
        print_problems(result.problems, () if quiet else lines)
    if result.problems:
        raise click.exceptions.Exit(1)
