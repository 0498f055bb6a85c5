"""presize verify."""

from __future__ import annotations

import sys

import click

from presize.cli.group import PATH, cli, examples, quiet_option
from presize.cli.output import Progress, print_json, print_text
from presize.formatting import plural, printable


@cli.command(
    epilog=examples(
        "presize verify OUT",
        "presize verify OUT --jobs 2 --json",
    )
)
@click.argument("dataset", metavar="OUT", type=PATH)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Threads.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quiet_option
def verify(dataset: str, jobs: int | None, as_json: bool, quiet: bool) -> None:
    """Read every byte of the dataset OUT and report damage.

    The exit code is 1 if there is any.
    """
    from presize.store.manifest import read_manifest
    from presize.store.verify import verify_dataset

    with Progress(sys.stderr, "verify", quiet=quiet) as progress:
        manifest = read_manifest(dataset)
        progress.begin(manifest.samples * (1 + len(manifest.companions)))
        result = verify_dataset(dataset, jobs=jobs, on_images=progress.add)
    if as_json:
        print_json(samples=result.samples, problems=[problem._asdict() for problem in result.problems])
    else:
        for problem in result.problems:
            print_text(printable(f"{problem.file}: {problem.what}"))
        if not quiet:
            print_text(f"{dataset}: {plural(result.samples, 'sample')}, {plural(len(result.problems), 'problem')}")
            if any(problem.file.startswith("shards/") for problem in result.problems):
                print_text("  presize repair SRC OUT makes damaged shards again")
    if result.problems:
        raise click.exceptions.Exit(1)
