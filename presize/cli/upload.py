"""presize upload."""

from __future__ import annotations

import sys

import click

from presize.cli.group import GOES_ON, command, dataset_argument, interruptible, json_option, quiet_option
from presize.cli.output import Progress, print_json, print_text
from presize.formatting import duration, plural, size_text

_NAMED = 5
"""Largest number of re-uploaded files that are named."""


@command("presize upload OUT s3://BUCKET/SETS/256", "presize upload OUT gs://BUCKET/SETS/256 -q")
@dataset_argument
@click.argument("url", metavar="URL")
@json_option
@quiet_option
def upload(dataset: str, url: str, as_json: bool, quiet: bool) -> None:
    """Copy the dataset in the folder OUT to URL.

    URL is s3://BUCKET/PATH, gs:// or az://. Run the same command again to finish an interrupted copy, to upload an
    update, or to replace missing or damaged files at URL.
    """
    from presize.remote.upload import upload_dataset

    with Progress(sys.stderr, "upload", in_bytes=True, quiet=quiet) as progress, interruptible(GOES_ON):
        result = upload_dataset(dataset, url, on_plan=progress.begin, on_bytes=progress.add)
    if as_json:
        print_json(result, "samples bytes uploaded sent_again seconds url")
    elif not quiet:
        print_text(
            f"{result.url}: {plural(result.samples, 'image')}, {size_text(result.bytes)}, "
            f"{size_text(result.uploaded)} of it uploaded in {duration(result.seconds)}"
        )
        if result.sent_again:
            more = len(result.sent_again) - _NAMED
            some = ", ".join(result.sent_again[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
            print_text(f"  uploaded again because they were missing or different: {some}")
