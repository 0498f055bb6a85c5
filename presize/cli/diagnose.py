"""presize diagnose."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from presize.cli.group import check_page, command, json_option, progress_option
from presize.cli.option_groups import PATH, given, parsed, stated
from presize.cli.output import print_json, print_text, several_lines
from presize.formatting import printable
from presize.measure.bench_options import DiagnoseOptions
from presize.options import Size
from presize.system.files import write_atomically
from presize.system.temporary import temporary_folder

TRIAL = [
    click.Option(
        ["--size"],
        metavar="N|WxH",
        default="256",
        show_default=True,
        callback=parsed(Size.parse),
        help="Size to try presizing a folder to.",
    ),
    click.Option(["--no-trial"], is_flag=True, help="Do not try presizing."),
]


@command(
    "presize diagnose RAW",
    "presize diagnose OUT --workers 4 -o diagnosis.html",
    params=[*stated(DiagnoseOptions), *TRIAL],
)
@click.argument("path", metavar="PATH", type=PATH)
@click.option("-o", "--out", type=PATH, metavar="FILE.html", help="Also write a page with charts and an animation.")
@json_option
@progress_option
def diagnose(path: str, size: Size, no_trial: bool, out: str | None, as_json: bool, quiet: bool, **typed: Any) -> None:
    """Find the bottleneck of training on PATH, and what would help.

    PATH is a folder of images or a dataset. Trains a model on it for some seconds.
    """
    begin = time.perf_counter()
    from presize.datasets.timing.diagnose_path import diagnose_path
    from presize.measure.diagnosis_report import diagnosis_page, diagnosis_text
    from presize.measure.listings import build_trial
    from presize.store.data_files import MANIFEST

    asked = given(DiagnoseOptions, typed)
    check_page(out)
    trial, name = None, f"Presize to {size} px"

    def tell(step: str) -> None:
        if not quiet:
            click.echo(printable(step), err=True)

    with temporary_folder("presize-diagnose-") as place:
        if not no_trial and not os.path.exists(os.path.join(path, MANIFEST)):
            tell(f"building a small dataset to try: {name}")
            trial = build_trial(path, place, size, seed=asked.seed)
        found = diagnose_path(path, asked, trial=trial, trial_name=name, on_step=tell)
    found = replace(found, seconds=time.perf_counter() - begin)  # with torch loaded, the trial built, the files read
    if as_json:
        print_json(**found.known())
    else:
        print_text(several_lines(diagnosis_text(found, min(120, shutil.get_terminal_size((100, 24)).columns))))
    if out is not None:
        write_atomically(Path(out), diagnosis_page(found, path).encode())
