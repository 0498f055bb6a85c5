"""presize diagnose: a folder, a dataset or a script; --compare compares two results."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from presize.cli.group import check_page, command, json_option, progress_option, write_page
from presize.cli.option_groups import PATH, given, parsed, stated
from presize.cli.output import print_json, print_text, several_lines
from presize.formatting import printable
from presize.measure.bench_options import DiagnoseOptions
from presize.options import Size
from presize.system.files import temporary_folder

TRIAL = [
    click.Option(
        ["--size"], metavar="N|WxH", default="256", show_default=True, callback=parsed(Size.parse),
        help="Image size in the presizing trial of a folder.",
    ),
    click.Option(["--no-trial"], is_flag=True, help="Skip the presizing trial."),
]  # fmt: skip


class DiagnoseCommand(click.Command):
    """Command that leaves the arguments after a script to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = next((at for at, arg in enumerate(args) if _is_script(arg) and "--compare" not in args), len(args))
        ctx.meta["script"] = args[at + 1 :]
        return super().parse_args(ctx, args[: at + 1])


def _is_script(path: str) -> bool:
    return path.endswith(".py") and not os.path.isdir(path)


@command(
    "presize diagnose RAW -o diagnosis.html",
    "presize diagnose train.py --lr 0.1",
    "presize diagnose --compare before.json after.json",
    params=[*stated(DiagnoseOptions), *TRIAL],
    cls=DiagnoseCommand,
)
@click.argument("path", metavar="PATH", type=PATH, required=False)
@click.option("-o", "--out", type=PATH, metavar="FILE.html", help="Also write a page with charts and an animation.")
@click.option(
    "--compare", type=PATH, nargs=2, metavar="BEFORE AFTER", help="Compare two results of --json; measure nothing."
)
@json_option
@progress_option
@click.pass_context
def diagnose(
    context: click.Context, /, path: str | None, size: Size, no_trial: bool, out: str | None,
    compare: tuple[str, str] | None, as_json: bool, quiet: bool, **typed: Any,
) -> None:  # fmt: skip
    """Find the bottleneck of training on PATH, and what would help.

    PATH is a folder of images or a dataset: a model is trained on it for up to a minute. Or PATH is a Python script:
    it runs unchanged, with the arguments that follow it, and the loaders that it iterates are timed.
    """
    if compare is not None:
        _refuse_others(context, "--compare", "compare", "quiet")
        print_text(_compared(*compare))
        return
    if path is None:
        raise click.UsageError("Missing argument 'PATH'.")
    if _is_script(path):
        if not os.path.isfile(path):
            raise click.UsageError(f"{path}: no such script.")
        if out is not None:
            raise click.UsageError("-o: no page is written for a script; use --json instead.")
        _refuse_others(context, "a script, which runs unchanged", "path", "as_json", "quiet")
        context.exit(_watch(path, context.meta["script"], as_json, context.obj["shows_warnings"]))
    begin = time.perf_counter()
    from presize.datasets.reading.transfer import as_device
    from presize.datasets.timing.diagnose_path import diagnose_path
    from presize.measure.diagnosis import diagnosis_page, diagnosis_text
    from presize.measure.listings import build_trial
    from presize.store.data_files import MANIFEST

    asked = given(DiagnoseOptions, typed)
    if no_trial or os.path.exists(os.path.join(path, MANIFEST)):
        no_trial = True
        if context.get_parameter_source("size") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--size: is for the presizing trial of a folder, and there is none; leave it out.")
    check_page(out)
    as_device(asked.device)  # raises before the trial is built
    trial, name = None, f"Presize to {size} px"

    def tell(step: str) -> None:
        if not quiet:
            click.echo(printable(step), err=True)

    with temporary_folder("presize-diagnose-") as place:
        if not no_trial:
            if os.path.exists(path):
                tell(f"building a small dataset to try: {name}")
            trial = build_trial(path, place, size, seed=asked.seed)
        found = diagnose_path(path, asked, trial=trial, trial_name=name, on_step=tell)
    found = replace(found, seconds=time.perf_counter() - begin)  # includes importing torch and building the trial
    if as_json:
        print_json(**found.known())
    else:
        print_text(several_lines(diagnosis_text(found, min(120, shutil.get_terminal_size((100, 24)).columns))))
    if out is not None:
        write_page(out, diagnosis_page(found, path))


def _refuse_others(context: click.Context, what: str, *used: str) -> None:
    """Raise UsageError if a parameter that is not among the `used` ones was typed: it would be ignored."""
    for one in context.command.params:
        if one.name not in used and context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE:
            name = one.opts[-1] if isinstance(one, click.Option) else one.human_readable_name
            raise click.UsageError(f"{name}: does not apply to {what}; leave it out.")


def _compared(before: str, after: str) -> str:
    from presize.measure.watch import compared_text

    found = []
    for path in (before, after):
        try:
            text = Path(path).read_text("utf-8")
            try:
                found.append(json.loads(text))
            except ValueError:  # a script may have printed other lines before
                found.append(json.loads(text.strip().rpartition("\n")[2]))
            compared_text(found[-1], found[-1])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it was not written by presize diagnose --json"
            raise click.UsageError(f"--compare: cannot read {path}: {why}.") from None
    return compared_text(*found)


def _watch(script: str, arguments: list[str], as_json: bool, shows_warnings: Any) -> int:
    """Run a script and print how long it waited for its loaders. Return its exit code."""
    from presize.measure.watch import Watch, Watched, run_script, share_with_ranks, watched_text

    # Undo what main() has set up.
    warnings.showwarning = shows_warnings
    for number in (signal.SIGTERM, signal.SIGHUP):
        if callable(signal.getsignal(number)):  # keeps SIG_IGN, as set by nohup
            signal.signal(number, signal.SIG_DFL)
    sys.unraisablehook = sys.__unraisablehook__
    out, messages = sys.stdout, sys.stderr  # the script may replace them

    def tell_interim() -> None:
        text = watched_text([one for one in map(Watched.known, watch.watched()) if one["headline"]])
        click.echo(f"\nSo far:\n{text}\n", file=messages)

    def tell() -> None:
        found = [one.known() for one in watch.watched()]
        ranks = share_with_ranks(found)
        if ranks is None:
            return
        with suppress(Exception):  # it may be closed, or any object of the script
            sys.stdout.flush()
        if as_json and not out.closed:
            click.echo(json.dumps({"loaders": found, "ranks": ranks}), file=out)
        else:
            click.echo(f"\n{watched_text(found, ranks)}", file=messages)

    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    watch = Watch(tell_interim if is_first else None)
    code = run_script(script, arguments, watch, tell)
    if code == -signal.SIGINT:  # die of SIGINT as Python does, so that a shell's loop stops
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        atexit.register(os.kill, os.getpid(), signal.SIGINT)
        return 128 + signal.SIGINT
    return code
