"""presize export."""

from __future__ import annotations

import sys

import click

from presize.cli.group import EPILOG, cli
from presize.cli.printing import print_text
from presize.cli.progress import Progress
from presize.formatting import plural


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.argument("folder", metavar="DIR")
@click.option(
    "--to",
    "layout",
    type=click.Choice(["folder"]),
    default="folder",
    show_default=True,
    help="Layout to write.",
)
def export(dataset: str, folder: str, layout: str) -> None:  # noqa: ARG001  # one choice so far
    """Write the images of the dataset OUT as files below DIR."""
    from presize.store.export import export_dataset
    from presize.store.manifest import read_manifest

    with Progress(sys.stderr, "export") as progress:
        progress.begin(read_manifest(dataset).samples)
        written = export_dataset(dataset, folder, on_image=lambda: progress.add(1))
    print_text(f"{folder}: {plural(written, 'file')}")
