"""presize completion."""

from __future__ import annotations

from typing import Literal

import click
from click.shell_completion import get_completion_class

from presize.cli.group import cli, command
from presize.cli.option_groups import choice
from presize.cli.output import print_text

Shell = Literal["bash", "zsh", "fish"]

INSTALLING = """\
Run one of these once. New shells then complete commands, options and file names:

  bash   echo 'eval "$(presize completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(presize completion zsh)"' >> ~/.zshrc
  fish   presize completion fish > ~/.config/fish/completions/presize.fish"""


@command("presize completion", "presize completion bash")
@click.argument("shell", metavar="[bash|zsh|fish]", type=choice(Shell), required=False)
def completion(shell: Shell | None) -> None:
    """Print a script that completes commands, options and files.

    Without a shell, prints how to install it.
    """
    if shell is None:
        return print_text(INSTALLING)
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell}: the installed click does not support it; upgrade click.")
    print_text(found(cli, {}, "presize", "_PRESIZE_COMPLETE").source())
