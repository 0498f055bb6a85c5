"""Command line: each command parses options, makes one library call, prints, and exits. The only importer of click.

Each command has a module with its name. group: shared options and signal handling. output: text, JSON and progress.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from presize.cli import (  # noqa: F401  # importing a module registers its command
    bench,
    build,
    completion,
    derive,
    diagnose,
    doctor,
    export,
    fetch,
    info,
    repair,
    sample,
    simulate,
    upload,
    verify,
    view,
)
from presize.cli.group import Interrupted, cli, interrupt_again, stop_on_signals
from presize.cli.option_groups import FLAGS
from presize.cli.output import making_room
from presize.errors import OptionError, PresizeError, PresizeWarning
from presize.formatting import printable
from presize.system.resources import limit_of

__all__ = ["cli", "main"]


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. An error prints one line on standard error; ``--debug`` shows its traceback."""
    settings: dict[str, Any] = {"debug": False, "shows_warnings": warnings.showwarning}
    open_closed_streams()
    warnings.showwarning = show_warning  # type: ignore[assignment]
    warnings.simplefilter("always", PresizeWarning)
    stop_on_signals()
    sys.unraisablehook = interrupt_again
    code: object
    try:
        code = cli.main(args, prog_name="presize", standalone_mode=False, obj=settings)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "presize"
        code = _fail(f"{error.format_message()} Try '{command} --help'.", error.exit_code)
    except click.ClickException as error:
        code = _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt) as stop:
        code = _fail("interrupted", Interrupted(stop).exit_code)
    except PresizeError as error:
        if settings["debug"]:
            raise
        code = _fail(_on_the_command_line(error), 2 if isinstance(error, OptionError) else 1)
    except (RuntimeError, OSError, MemoryError, ImportError) as error:
        why, lacks_torch = limit_of(error), isinstance(error, ModuleNotFoundError) and error.name == "torch"
        if settings["debug"] or (why is None and not lacks_torch):
            raise
        code = _fail(str(error) if lacks_torch else f"{why}; raise that limit, or use fewer processes", 1)
    sys.exit(code if isinstance(code, int) else 0)


def open_closed_streams() -> None:
    """Open closed standard streams on /dev/null. Otherwise the next files that are opened, such as shards, would get
    their descriptors, and the output of codecs would be written into them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # or a file of a worker process would get this descriptor
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # the terminal may be closed
        click.echo(f"presize: error: {printable(message)}", err=True)
    return code


def _on_the_command_line(error: PresizeError) -> str:
    """Return the message, with the parameter at its beginning as an option: ``--to`` for `layout`."""
    name, colon, rest = str(error).partition(":")
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    return f"{flag}{colon}{rest}" if isinstance(error, OptionError) else str(error)


def show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, PresizeWarning):
        with making_room(sys.stderr):
            click.echo(f"presize: warning: {printable(str(message))}", err=True)
