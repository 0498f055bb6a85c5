"""presize view."""

from __future__ import annotations

import signal

import click

from presize.cli.group import Stopped, check_page, command, dataset_argument, write_page
from presize.cli.option_groups import PATH
from presize.cli.output import print_text
from presize.formatting import plural, printable


@command(
    "presize view OUT --raw RAW -o view.html", "presize view OUT --serve", "presize view OUT --rejects -o rejects.html"
)
@dataset_argument
@click.option("-o", "out", metavar="FILE", type=PATH, help="Write a page with some of the images.")
@click.option("--serve", is_flag=True, help="Serve pages of all images on this machine until Ctrl-C.")
@click.option("--raw", metavar="SRC", type=PATH, help="The raw folder; shows sources next to stored images.")
@click.option(
    "--text", metavar="TEXT", default="", help="Show images whose path, or another text column, contains TEXT."
)
@click.option("--label", metavar="NAME", default="", help="Show images of this class.")
@click.option("--split", metavar="NAME", default="", help="Show images of this split.")
@click.option(
    "--min-side", type=int, metavar="PX", default=0, help="Show images whose source's shorter side is at least PX."
)
@click.option(
    "--max-side", type=int, metavar="PX", default=0, help="Show images whose source's shorter side is at most PX."
)
@click.option("--rejects", is_flag=True, help="Show the files that were not stored, and why.")
@click.option(
    "--images",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="With -o: number of images.  [default: 60]",
)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port of --serve.  [default: a free one]")
def view(
    dataset: str, out: str | None, serve: bool, raw: str | None, rejects: bool, images: int | None, port: int | None,
    **filters: str | int,
) -> None:  # fmt: skip
    """View the dataset OUT in a browser.

    --serve prints an address that only this machine can open.
    """
    if serve == (out is not None):
        raise click.UsageError(f"expected -o FILE or --serve{', not both' if serve else ''}.")
    if serve and images is not None:
        raise click.UsageError("--images: applies only to -o; leave it out.")
    if not serve and port is not None:
        raise click.UsageError("--port: applies only to --serve; leave it out.")
    check_page(out)
    from presize.pages.gallery import SAMPLES, view_dataset
    from presize.pages.samples import ViewedDataset
    from presize.pages.selection import Filters, matching
    from presize.pages.server import GalleryServer

    chosen = Filters(show="rejects" if rejects else "stored", **filters)  # type: ignore[arg-type]
    if out is not None:
        write_page(out, view_dataset(dataset, raw, chosen, images or SAMPLES))
        print_text(f"page: {out}")
        return
    opened = ViewedDataset.of(dataset, raw)
    opened.check_sources()
    matching(opened, chosen)  # raises for an unknown class before the server starts
    with GalleryServer(opened, port or 0) as server:
        print_text(f"{printable(dataset)}: {plural(opened.manifest.samples, 'image')}")
        print_text(f"{server.url}{chosen.query() if chosen != Filters() else ''}")
        print_text("Press Ctrl-C to stop.")
        try:
            server.serve_forever()
        except KeyboardInterrupt as stop:
            if isinstance(stop, Stopped) and stop.number == signal.SIGHUP:  # SIGHUP is not how a server is stopped
                raise
