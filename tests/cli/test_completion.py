"""presize completion: the scripts, and completion in a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from commands import Ran
from presize.cli.completion import Shell

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def test_without_a_shell_it_prints_how_to_install_each(presize: Callable[..., Ran]) -> None:
    out = presize("completion").out
    assert all(f"presize completion {shell}" in out for shell in get_args(Shell))


@pytest.mark.parametrize("shell", ["zsh", "fish", pytest.param("bash", marks=needs_bash)])
def test_each_shell_gets_its_script(shell: str, presize: Callable[..., Ran]) -> None:
    ran = presize("completion", shell)
    assert ran.code == 0
    assert f"_PRESIZE_COMPLETE={shell}_complete" in ran.out


@needs_bash
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["presize", "comp"], ["completion"]),
        (["presize", "build", "RAW", "OUT", "--fit", "s"], ["shorter", "stretch"]),
        (["presize", "build", "RAW", "OUT", "--li"], ["--like"]),
    ],
    ids=["a command", "a choice", "an option"],
)
def test_bash_completes(words: list[str], found: list[str]) -> None:
    script = (
        f'eval "$(presize completion bash)"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        "_presize_completion presize; echo ${COMPREPLY[@]}"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}
    )
    assert ran.stdout.split() == found


@pytest.mark.parametrize("words", ["presize build R", "presize build RAW OUT --like O"], ids=["argument", "option"])
def test_file_names_are_left_to_the_shell(words: str) -> None:
    environment = {
        **os.environ, "_PRESIZE_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }  # fmt: skip
    ran = subprocess.run(
        [Path(sys.executable).parent / "presize"], capture_output=True, text=True, check=True, env=environment
    )
    assert ran.stdout.startswith("file,")
