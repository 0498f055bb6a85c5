"""presize sample."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from presize.cli.group import PATH, cli, examples, quiet_option
from presize.cli.output import Progress, print_text
from presize.formatting import plural


@cli.command(
    epilog=examples(
        "presize sample RAW",
        "presize sample RAW --images 1000 --classes 10",
    )
)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--images", type=int, default=200, show_default=True, metavar="N", help="Number of files.")
@click.option("--classes", type=int, metavar="N", help="Number of class folders.  [default: 4, or one an image]")
@click.option(
    "--long-side",
    type=int,
    default=500,
    show_default=True,
    metavar="PX",
    help="Longer side of a typical image, in pixels.",
)
@click.option(
    "--broken", type=int, default=0, show_default=True, metavar="N", help="Number of broken files among them."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed.")
@quiet_option
def sample(folder: str, images: int, classes: int | None, quiet: bool, **options: int) -> None:
    """Generate photo-like images in DIR, to try presize with."""
    from presize.sources.sample import SampleOptions, make_samples

    with Progress(sys.stderr, "sample", quiet=quiet) as progress:
        progress.begin(images)
        asked = SampleOptions(images=images, classes=max(1, min(4, images)) if classes is None else classes, **options)
        written = make_samples(Path(folder), asked, lambda: progress.add(1))
    if not quiet:
        print_text(f"{folder}: {plural(written, 'file')} in {plural(asked.classes, 'class', 'classes')}")
