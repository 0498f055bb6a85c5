"""presize fetch."""

from __future__ import annotations

import sys

import click

from presize.cli.group import GOES_ON, command, interruptible, json_option, quiet_option
from presize.cli.option_groups import PATH
from presize.cli.output import Progress, print_json, print_text
from presize.formatting import duration, plural, size_text


@command("presize fetch s3://BUCKET/SETS/256 OUT", "presize fetch https://HOST/SETS/256 OUT")
@click.argument("url", metavar="URL")
@click.argument("out", metavar="DIR", type=PATH)
@json_option
@quiet_option
def fetch(url: str, out: str, as_json: bool, quiet: bool) -> None:
    """Copy a dataset from URL to the folder DIR.

    URL is the folder that contains manifest.json: s3://BUCKET/PATH, https://HOST/PATH, gs:// or az://. Run the same
    command again to finish an interrupted copy.
    """
    from presize.remote.fetch import fetch_dataset

    with Progress(sys.stderr, "fetch", in_bytes=True, quiet=quiet) as progress, interruptible(GOES_ON):
        result = fetch_dataset(url, out, on_plan=progress.begin, on_bytes=progress.add)
    if as_json:
        print_json(result, "samples bytes fetched seconds out")
    elif not quiet:
        print_text(
            f"{result.out}: {plural(result.samples, 'image')}, {size_text(result.bytes)}, "
            f"{size_text(result.fetched)} of it fetched in {duration(result.seconds)}"
        )
