"""The click group of all commands, and the options, checks and signal handling that they share."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import click

from presize import __version__
from presize.cli.option_groups import PATH
from presize.errors import warn
from presize.formatting import plural
from presize.options import Tiles
from presize.store.data_files import MANIFEST, is_data_file
from presize.system.files import AGAIN, write_atomically
from presize.system.resources import usable_cores

EPILOG = "Exit codes: 0 success, 1 failure, 2 wrong usage, 130 Ctrl-C, 128 + N signal N."
_JOBS_PER_CORE = 4
"""A source that is slow to read may keep this many processes per core busy."""


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(__version__, "-V", "--version", prog_name="presize")
@click.pass_context
def cli(context: click.Context, /, debug: bool) -> None:
    """Resize a folder of images once, pack it as LMDB shards, and train without waiting for data."""
    context.obj["debug"] = debug
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


class BuildCommand(click.Command):
    """Command that reads ``--tiles`` without a value as ``--tiles resized``, and ``--no-tiles`` as ``--tiles none``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = get_args(Tiles)
        no_words = []
        args = ["--tiles=none" if arg == "--no-tiles" else arg for arg in args]
        for at, (arg, following) in enumerate(zip(args, [*args, "-"][1:], strict=True)):
            if arg == "--tiles" and following not in words:
                args[at] = "--tiles=resized"
                no_words += [] if following.startswith("-") else [following]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if no_words and "extra argument" in error.message:  # what follows --tiles is neither SRC nor OUT
                raise click.UsageError(f"--tiles: expected {', '.join(words)}, got {no_words[0]!r}.", ctx) from None
            raise


def command(*examples: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that registers a command of presize. Its help ends with `examples`."""
    epilog = "\n".join([f"{EPILOG}\n", "\b", "Examples:", *(f"  {each}" for each in examples)])

    def decorate(function: Callable[..., None]) -> click.Command:
        return cli.command(epilog=epilog, **settings)(interruptible("")(function))

    return decorate


dataset_argument = click.argument("dataset", metavar="OUT", type=PATH)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary.")
progress_option = click.option("-q", "--quiet", is_flag=True, help="Print no progress.")


def warn_of_jobs(jobs: int | None) -> None:
    """Warn if there are far more processes than cores."""
    cores = usable_cores()
    if jobs is not None and jobs > _JOBS_PER_CORE * cores:
        warn(
            f"--jobs {jobs}: too many for {plural(cores, 'core')}; more processes take memory and time to "
            "start, and gain nothing"
        )


def check_page(out: str | None) -> None:
    """Raise UsageError if the page `out` cannot be written, or would replace a file that is not a page."""
    if out is None:
        return
    if not os.path.isdir(Path(out).absolute().parent):
        raise click.UsageError(f"-o: {Path(out).parent} is not a folder; create it, or choose another.")
    if not os.access(Path(out).absolute().parent, os.W_OK):
        raise click.UsageError(f"-o: {Path(out).parent} cannot be written to; choose another folder.")
    if os.path.isdir(out):
        raise click.UsageError(f"-o: {out} is a folder; give the name of a file.")
    if os.path.exists(Path(out).absolute().parent / MANIFEST) and is_data_file(Path(out).name):
        raise click.UsageError(f"-o: {out} is a file of the dataset in its folder; choose another name or folder.")
    if os.path.lexists(out) and not _is_page(out):
        raise click.UsageError(f"-o: {out} exists and is not an HTML page; choose another name.")
    if not out.lower().endswith((".html", ".htm")):
        raise click.UsageError(f"-o: {out} is not the name of a page; expected one that ends with .html or .htm.")


def write_page(out: str, page: str) -> None:
    write_atomically(Path(out), page.encode("utf-8", "replace"), AGAIN)


def _is_page(path: str) -> bool:
    """Return whether `path` is an HTML page or an empty file. False for pipes and terminals, where reading blocks."""
    if not os.path.isfile(path):
        return False
    with suppress(OSError), open(path, "rb") as file:
        begin = file.read(64).lstrip().lower()
        return not begin or begin.startswith(b"<!doctype html")
    return False


class Stopped(KeyboardInterrupt):
    """A signal that ends the process, raised as an exception so that cleanup runs as on Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def stop_on_signals() -> None:
    """Raise Stopped on SIGTERM, and on SIGHUP unless it is ignored, as under nohup."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    # A closed terminal sends SIGHUP, and its shell sends it again: cleanup must not be interrupted.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


_AGAIN_S = 0.02


def interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
    """Send Ctrl-C or SIGTERM again if it was raised in a finalizer, where Python ignores it. A sys.unraisablehook."""
    stop = ignored.exc_value
    if not isinstance(stop, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    if isinstance(stop, Stopped):
        signal.signal(stop.number, _stop)
    timer = threading.Timer(_AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, _number(stop)))
    timer.daemon = True
    with suppress(RuntimeError):  # no thread can start while the interpreter exits
        timer.start()


def _number(stop: BaseException) -> int:
    return stop.number if isinstance(stop, Stopped) else signal.SIGINT


class Interrupted(click.ClickException):
    """Exception of a command that was stopped by Ctrl-C or another signal."""

    def __init__(self, stop: BaseException, what_then: str = "") -> None:
        super().__init__(f"interrupted; {what_then}" if what_then else "interrupted")
        self.exit_code = 128 + _number(stop)  # type: ignore[misc]


GOES_ON = "run again to resume"


@contextmanager
def interruptible(what_then: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(stop, what_then) from None
