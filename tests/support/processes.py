"""Python programs that tests run in a process of their own: to limit it, to fork it, to let it hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent


def run_python(script: str, *args: object, timeout_s: float = 60, stdin: str = "") -> str:
    """What `script`, with `args` as its sys.argv[1:], prints. Fails with what it says when it fails."""
    ran = subprocess.run(
        [sys.executable, "-c", dedent(script), *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd="/",  # or the source tree would stand before what is installed
    )
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stderr}"
    return ran.stdout


def is_running(pid: int) -> bool:
    """True unless the process has ended, whether or not its parent has noticed."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
