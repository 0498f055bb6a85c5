"""presize doctor."""

from __future__ import annotations

import shutil

import click

from presize.cli.group import command, json_option
from presize.cli.option_groups import PATH
from presize.cli.output import print_json, print_text


@command("presize doctor", "presize doctor OUT", "presize doctor RAW --json")
@click.argument("path", metavar="[PATH]", type=PATH, required=False)
@json_option
def doctor(path: str | None, as_json: bool) -> None:
    """Find what slows loading on this machine, and how to fix it.

    PATH is a dataset, a folder of images or a file; its read speed is measured for a few seconds. Writes nothing. The
    exit code is 0 even if there are problems.
    """
    from presize.machine_check import doctor as look_at
    from presize.measure.doctor import as_text

    report = look_at(path)
    if as_json:
        print_json(report, "verdict findings", facts=report.facts.known())
    else:
        print_text(as_text(report.findings, min(120, shutil.get_terminal_size((100, 24)).columns)))
