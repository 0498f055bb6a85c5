"""Python programs that tests run in a process of their own: to limit it, to fork it, to let it hang."""

from __future__ import annotations

import os
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


def _stat(pid: str) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, group, session, …; none for one that has gone."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def in_session(session: int) -> list[int]:
    """The processes of a session that run."""
    stats = {name: _stat(name) for name in os.listdir("/proc") if name.isdigit()}
    return [int(pid) for pid, stat in stats.items() if stat and stat[0] != "Z" and int(stat[3]) == session]


def children(pid: int) -> list[int]:
    """The children of a process that run."""
    stats = {name: _stat(name) for name in os.listdir("/proc") if name.isdigit()}
    return [int(child) for child, stat in stats.items() if stat and stat[0] != "Z" and int(stat[1]) == pid]


def workers_of(build: int) -> list[int]:
    """The worker processes of a build."""
    return [pid for pid in children(build) if b"presize.system" in Path(f"/proc/{pid}/cmdline").read_bytes()]
