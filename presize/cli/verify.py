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
    from presize.store.data_files import fixes
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
            how = "derive" if manifest.derived else "build"
            lines += (f"  {fix}" for fix in fixes([problem.file for problem in result.problems], how))
        print_problems(result.problems, () if quiet else lines)
    if result.problems:
        raise click.exceptions.Exit(1)
