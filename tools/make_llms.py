"""Regenerate docs/llms.txt, the page for coding assistants: its sections "Commands" and "Python" follow the code.

    python tools/make_llms.py

Everything else on that page is written by hand.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from textwrap import fill, indent

import click

import presize.datasets
from presize.cli import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "llms.txt"
COMMANDS = ("build", "info", "verify", "diagnose", "doctor")
NAMES = ("LMDBDataset", "Loader", "make_loader")


def command_text(name: str) -> str:
    """Return the arguments of a command, its purpose, its examples and the names of its options."""
    command = cli.commands[name]
    arguments = [each.metavar or f"{each.name}".upper() for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    flags = [(each.secondary_opts or each.opts)[-1] for each in options]  # --no-report, which is on by default
    examples = "\n".join(re.findall(r"^  (presize .*)", command.epilog or "", re.MULTILINE))
    return entry(f"presize {name} {' '.join(arguments)}", command.help, examples, f"Options: {' '.join(sorted(flags))}")


def python_text(name: str) -> str:
    """Return the purpose of a public name and its parameters with their defaults."""
    value = getattr(presize.datasets, name)
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(value).parameters.values()]
    return entry(f"presize.datasets.{name}", value.__doc__, wrapped(f"{name}{inspect.Signature(parameters)}"))


def entry(title: str, text: str | None, code: str, more: str = "") -> str:
    purpose = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    return f"### {title}\n\n{wrapped(purpose)}\n\n{indent(code, '    ')}\n\n" + f"{wrapped(more)}\n\n" * bool(more)


def wrapped(text: str) -> str:
    return fill(text, 110, break_long_words=False, break_on_hyphens=False)


def renewed(page: str) -> str:
    """Return the page with the sections that follow the code. Raises ValueError unless it has each of them once."""
    for section, texts in (("Commands", map(command_text, COMMANDS)), ("Python", map(python_text, NAMES))):
        before, _, after = re.split(rf"^## {section}\n(.*?)(?=^## )", page, flags=re.MULTILINE | re.DOTALL)
        page = f"{before}## {section}\n\n{''.join(texts)}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
