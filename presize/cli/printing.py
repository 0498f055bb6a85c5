"""Text for a terminal: what a hostile name cannot spoil, and numbers as people read them."""

from __future__ import annotations

import errno
import json
import sys
from contextlib import suppress
from typing import Any

import click


def one_line(text: str) -> str:
    """`text` without what a hostile file name could do to a terminal or to a log: line ends, escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def several_lines(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n")))


def print_json(**values: Any) -> None:
    print_text(json.dumps(values, ensure_ascii=False))


def print_text(text: str) -> None:
    """`text` on standard output. That it is full is a failure like any other; that nobody reads is for click."""
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        with suppress(OSError):
            sys.stdout.close()  # or Python tries once more at exit
        raise click.ClickException(f"cannot print: {error.strerror}") from None


def duration(seconds: float) -> str:
    """As people read a clock: ``12.3 s``, ``5 min 20 s``, ``3 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.1f} MB"
