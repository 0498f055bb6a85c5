"""Python programs that tests run in a process of their own: to limit it, to fork it, to let it hang."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent


def run_python(script: str, *args: object, timeout_s: float = 60) -> str:
    """What `script`, with `args` as its sys.argv[1:], prints. Fails with what it says when it fails."""
    ran = subprocess.run(
        [sys.executable, "-c", dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd="/",  # or the source tree would stand before what is installed
    )
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stderr}"
    return ran.stdout
