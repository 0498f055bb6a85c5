"""presize export."""

from __future__ import annotations

import sys

import click

from presize.cli.group import EPILOG, choice, cli
from presize.cli.printing import print_text
from presize.cli.progress import Progress
from presize.formatting import plural
from presize.options import ExportLayout


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.argument("folder", metavar="DIR")
@click.option(
    "--to",
    "layout",
    type=choice(ExportLayout),
    default="folder",
    show_default=True,
    help="Image files, tar shards for WebDataset, or Parquet for Hugging Face's datasets.",
)
def export(dataset: str, folder: str, layout: ExportLayout) -> None:
    """Write the images of OUT into DIR, for other programs."""
    from presize.store.export import export_dataset
    from presize.store.manifest import read_manifest

    with Progress(sys.stderr, "export") as progress:
        progress.begin(read_manifest(dataset).samples)
        written = export_dataset(dataset, folder, lambda: progress.add(1), layout)
    print_text(f"{folder}: {plural(written, 'image')}")
