"""presize upload."""

from __future__ import annotations

import sys

import click

from presize.cli.group import PATH, Interrupted, cli, examples, quiet_option
from presize.cli.output import Progress, print_json, print_text
from presize.formatting import duration, plural, size_text

_NAMED = 5
"""Files that are named, of those that were sent again."""


@cli.command(
    epilog=examples(
        "presize upload OUT s3://BUCKET/SETS/256",
        "presize upload OUT gs://BUCKET/SETS/256 -q",
    )
)
@click.argument("root", metavar="OUT", type=PATH)
@click.argument("url", metavar="URL")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@quiet_option
def upload(root: str, url: str, as_json: bool, quiet: bool) -> None:
    """Copy the dataset in the folder OUT to URL.

    URL is s3://BUCKET/PATH, gs:// or az://. Run it again to finish a copy that was interrupted, after an update, or to
    send what is missing or damaged there.
    """
    from presize.remote.upload import upload_dataset

    with Progress(sys.stderr, "upload", in_bytes=True, quiet=quiet) as progress:
        try:
            result = upload_dataset(root, url, on_plan=progress.begin, on_bytes=progress.add)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; the same command goes on from here") from None
    if as_json:
        print_json(
            samples=result.samples, bytes=result.bytes, uploaded=result.uploaded, sent_again=result.sent_again,
            seconds=round(result.seconds, 3), url=result.url,
        )  # fmt: skip
        return
    if not quiet:
        print_text(
            f"{result.url}: {plural(result.samples, 'image')}, {size_text(result.bytes)}, "
            f"{size_text(result.uploaded)} of it uploaded in {duration(result.seconds)}"
        )
        if result.sent_again:
            some = ", ".join(result.sent_again[:_NAMED])
            more = f" and {len(result.sent_again) - _NAMED:,} more" if len(result.sent_again) > _NAMED else ""
            print_text(f"  missing or different there, and sent again: {some}{more}")
