"""presize doctor."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from presize.cli.group import command, json_option
from presize.cli.option_groups import PATH
from presize.cli.output import print_json, print_text

if TYPE_CHECKING:
    from presize.system.machine import Torch


@command("presize doctor", "presize doctor OUT", "presize doctor RAW --json")
@click.argument("path", metavar="[PATH]", type=PATH, required=False)
@json_option
def doctor(path: str | None, as_json: bool) -> None:
    """Find what slows down loading here, and how to fix it.

    PATH is a dataset, a folder of images or a file. How fast it can be read is measured within a few seconds;
    nothing is written. The exit code is 0 whatever is found.
    """
    from presize.measure.doctor import as_text, check_up, judge, verdict

    facts = check_up(_torch(), None if path is None else Path(path))
    findings = judge(facts)
    if as_json:
        found = [finding._asdict() for finding in findings]
        print_json(verdict=verdict(findings), findings=found, facts=facts.known())
        return
    print_text(as_text(findings, min(120, shutil.get_terminal_size((100, 24)).columns)))


def _torch() -> Torch | str:
    """What torch offers, or why it cannot be imported."""
    try:
        from presize.datasets.timing.devices import read_torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return "not installed"
    except (ImportError, OSError) as error:  # such as a missing library
        return f"cannot be imported: {str(error).partition(chr(10))[0]}"
    return read_torch()
