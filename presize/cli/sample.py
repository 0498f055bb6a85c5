"""presize sample."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from presize.cli.group import command, quiet_option
from presize.cli.option_groups import PATH, given, stated
from presize.cli.output import Progress, print_text
from presize.formatting import plural
from presize.options import SampleOptions

CLASSES = click.Option(
    ["--classes"], type=int, metavar="N", help="Number of class folders.  [default: 4, or one per image]"
)


@command(
    "presize sample RAW",
    "presize sample RAW --images 1000 --classes 10",
    params=[*stated(SampleOptions, "images"), CLASSES, *stated(SampleOptions, "long_side", "broken", "seed")],
)
@click.argument("folder", metavar="DIR", type=PATH)
@quiet_option
def sample(folder: str, classes: int | None, quiet: bool, **typed: int) -> None:
    """Generate photo-like images in DIR to try presize with."""
    from presize.sources.sample import make_samples

    number = max(1, min(SampleOptions().classes, typed["images"])) if classes is None else classes
    options = given(SampleOptions, typed, classes=number)
    with Progress(sys.stderr, "sample", quiet=quiet) as progress:
        progress.begin(options.images)
        written = make_samples(Path(folder), options, lambda: progress.add(1))
    if not quiet:
        print_text(f"{folder}: {plural(written, 'file')} in {plural(options.classes, 'class', 'classes')}")
