"""Output on a terminal: text, JSON, and what happens when it cannot be printed."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from presize.formatting import plural, printable
from presize.store.rejects import Reject


def several_lines(text: str) -> str:
    """`text` with each of its lines made printable."""
    return "\n".join(map(printable, text.split("\n")))


def print_json(**values: Any) -> None:
    print_text(json.dumps(values, ensure_ascii=False))


def print_text(text: str) -> None:
    """Print `text`. A full output is an error like any other; a closed pipe is left to click."""
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        with suppress(OSError):
            sys.stdout.close()  # or Python tries once more at exit
        raise click.ClickException(f"cannot print: {error.strerror}") from None


def reject_lines(count: int, file: object, first: Sequence[Reject]) -> list[str]:
    """How many images were rejected, why the `first` of them were, and where all are listed."""
    lines = [f"  {plural(count, 'image')} rejected; the reasons are in {file}"] if count else []
    lines += (f"    {printable(f'{reject.path}: {reject.reason}')}" for reject in first)
    return [*lines, f"    and {count - len(first):,} more"] if count > len(first) > 0 else lines
