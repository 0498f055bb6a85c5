"""presize diagnose."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from presize.cli.group import PATH, check_page, choice, cli, examples, parsed
from presize.cli.output import print_json, print_text, several_lines
from presize.formatting import printable
from presize.measure import bench_options as benchoptions
from presize.measure.bench_options import DiagnoseOptions
from presize.options import Size
from presize.system.files import write_atomically

_DIAGNOSE = DiagnoseOptions()


@cli.command(
    epilog=examples(
        "presize diagnose RAW",
        "presize diagnose OUT --workers 4 -o diagnosis.html",
    )
)
@click.argument("path", metavar="PATH", type=PATH)
@click.option("--model", type=choice(benchoptions.Model), default=_DIAGNOSE.model, show_default=True)
@click.option("--device", type=choice(benchoptions.Device), help="[default: cuda where there is any]")
@click.option(
    "--workers", type=int, default=_DIAGNOSE.workers, show_default=True, metavar="N", help="Loader processes."
)
@click.option(
    "--prefetch", type=int, default=_DIAGNOSE.prefetch, show_default=True, metavar="N", help="Batches ahead per worker."
)
@click.option("--batch", type=int, default=_DIAGNOSE.batch, show_default=True, metavar="N", help="Images per batch.")
@click.option(
    "--crop", type=int, default=_DIAGNOSE.crop, show_default=True, metavar="PX", help="Side of random crops, in pixels."
)
@click.option(
    "--size",
    metavar="N|WxH",
    default="256",
    show_default=True,
    callback=parsed(Size.parse),
    help="Size to try presizing a folder to.",
)
@click.option("--no-trial", is_flag=True, help="Do not try presizing.")
@click.option(
    "--steps",
    type=int,
    default=_DIAGNOSE.steps,
    show_default=True,
    metavar="N",
    help="Batches in each part of the measurement.",
)
@click.option(
    "--seconds",
    type=float,
    default=_DIAGNOSE.seconds,
    show_default=True,
    metavar="S",
    help="End a part after S seconds if that is earlier.",
)
@click.option(
    "--seed", type=int, default=_DIAGNOSE.seed, show_default=True, metavar="N", help="Random seed of order and crops."
)
@click.option("-o", "--out", type=PATH, metavar="FILE.html", help="Also write a page with charts and an animation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress; results, warnings and errors stay.")
def diagnose(
    path: str, size: Size, no_trial: bool, out: str | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Find the bottleneck of training on PATH, and what would help.

    PATH is a folder of images or a dataset. Trains a model on it for some seconds.
    """
    begin = time.perf_counter()
    from presize.datasets.timing.diagnose_path import diagnose_path
    from presize.measure.diagnosis_report import diagnosis_page, diagnosis_text
    from presize.measure.listings import build_trial
    from presize.store.data_files import MANIFEST

    asked = DiagnoseOptions(**options)
    check_page(out)
    trial, name = None, f"Presize to {size} px"

    def tell(step: str) -> None:
        if not quiet:
            click.echo(printable(step), err=True)

    with tempfile.TemporaryDirectory(prefix="presize-diagnose-") as place:
        if not no_trial and not os.path.exists(os.path.join(path, MANIFEST)):
            tell(f"building a small dataset to try: {name}")
            trial = build_trial(path, Path(place), size, seed=asked.seed)
        found = diagnose_path(path, asked, trial=trial, trial_name=name, on_step=tell)
    found = replace(found, seconds=time.perf_counter() - begin)  # with torch loaded, the trial built, the files read
    if as_json:
        print_json(**found.known())
    else:
        print_text(several_lines(diagnosis_text(found, min(120, shutil.get_terminal_size((100, 24)).columns))))
    if out is not None:
        write_atomically(Path(out), diagnosis_page(found, path).encode())
