"""presize verify."""

from __future__ import annotations

import sys

import click

from presize.cli.group import command, dataset_argument, json_option, quiet_option
from presize.cli.output import Progress, print_json, print_problems
from presize.formatting import plural


@command("presize verify OUT", "presize verify OUT --jobs 2 --json")
@dataset_argument
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Threads.  [default: all cores]")
@json_option
@quiet_option
def verify(dataset: str, jobs: int | None, as_json: bool, quiet: bool) -> None:
    """Read every byte of the dataset OUT and report damage.

    The exit code is 1 if there is damage.
    """
    from presize.store.manifest import read_manifest
    from presize.store.verify import verify_dataset

    with Progress(sys.stderr, "verify", quiet=quiet) as progress:
        manifest = read_manifest(dataset)
        progress.begin(manifest.samples * (1 + len(manifest.companions)))
        result = verify_dataset(dataset, jobs=jobs, on_images=progress.add)
    if as_json:
        print_json(result, "samples problems")
    else:
        lines = [f"{dataset}: {plural(result.samples, 'sample')}, {plural(len(result.problems), 'problem')}"]
        if result.problems:
            only_shards = all(problem.file.startswith("shards/") for problem in result.problems)
            again = f"{'derive' if manifest.derived else 'build'} OUT again with --overwrite and the same options"
            lines.append(f"  {'presize repair SRC OUT rebuilds damaged shards' if only_shards else again}")
            lines.append("  in a copy from a URL, delete the damaged files and run presize fetch again")
        print_problems(result.problems, () if quiet else lines)
    if result.problems:
        raise click.exceptions.Exit(1)
