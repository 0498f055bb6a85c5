"""presize export."""

from __future__ import annotations

import sys

import click

from presize.cli.group import command, dataset_argument, quiet_option
from presize.cli.option_groups import PATH, choice
from presize.cli.output import Progress, print_text
from presize.formatting import plural
from presize.options import ExportLayout


@command(
    "presize export OUT FILES", "presize export OUT SHARDS --to tar", "presize export OUT DIR --to lmdb --keys basicsr"
)
@dataset_argument
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--to",
    "layout",
    type=choice(ExportLayout),
    default="folder",
    show_default=True,
    help="Image files, tar shards for WebDataset, Parquet for Hugging Face's datasets, or an LMDB (--keys).",
)
@click.option("--keys", help="Keys of the LMDB: text-recognition, basicsr, lsun, or a pattern such as image-{:09d}.")
@click.option("--label-keys", help="Keys of the LMDB's labels: label-{:09d}, or COLUMN=label-{:09d}.")
@quiet_option
def export(
    dataset: str, folder: str, layout: ExportLayout, keys: str | None, label_keys: str | None, quiet: bool
) -> None:
    """Write the images of OUT to DIR, for other programs."""
    from presize.store.export import export_dataset
    from presize.store.manifest import read_manifest

    with Progress(sys.stderr, "export", quiet=quiet) as progress:
        progress.begin(read_manifest(dataset).samples)
        written = export_dataset(
            dataset, folder, layout, keys=keys, label_keys=label_keys, on_image=lambda: progress.add(1)
        )
    if not quiet:
        print_text(f"{folder}: {plural(written, 'image')}")
