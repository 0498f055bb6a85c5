"""One system call of a presize command, at which the command is killed or which fails. By strace, which counts them."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import run_command

CALLS = (
    "openat", "write", "pwrite64", "writev", "rename", "unlink", "mkdir", "rmdir", "fsync", "fdatasync", "sync",
    "ftruncate", "flock", "getdents64",
)  # fmt: skip
"""The calls by which a build changes or lists OUT."""

ERRORS = ("ENOSPC", "EIO", "EACCES")
KILL = "SIGKILL"


@dataclass(frozen=True)
class Fault:
    """What happens at the call number `number` (from 1) of the main thread: KILL, or an error of ERRORS."""

    call: str
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} at {self.call} {self.number}"

    @property
    def inject(self) -> str:
        how = f"signal={self.what}" if self.what == KILL else f"error={self.what}"
        return f"inject={self.call}:{how}:when={self.number}"


@functools.cache
def why_not() -> str | None:
    """Why no system call can be tampered with here; None when they can be."""
    if shutil.which("strace") is None:
        return "needs strace: apt-get install strace"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else None


def _presize(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-P", "-m", "presize", *map(str, arguments)]


def calls_on(out: Path, arguments: Sequence[object], log: Path) -> list[tuple[str, int]]:
    """Run ``presize arguments``, and list the calls of its main thread that touch `out` or what is in it: (call, number
    among all calls of that name, from 1)."""
    command = ["strace", "-f", "-y", "-o", str(log), "-e", f"trace={','.join(CALLS)}", *_presize(arguments)]
    subprocess.run(command, capture_output=True, check=True)
    lines = log.read_text("utf-8", "replace").splitlines()
    main, counts, found = lines[0].partition(" ")[0], Counter[str](), []
    for line in lines:
        thread, _, what = line.partition(" ")
        call = re.match(r"\s*(\w+)\(", what)
        if thread == main and call is not None:
            counts[call[1]] += 1
            if str(out) in what or call[1] == "sync":
                found.append((call[1], counts[call[1]]))
    return found


def run(arguments: Sequence[object], fault: Fault | None = None, timeout_s: float = 120) -> tuple[int, str]:
    """The exit code (minus the signal) of ``presize arguments`` and what it wrote to standard error."""
    inject = [] if fault is None else ["strace", "-f", "-qq", "-o", "/dev/null", "-e", fault.inject]
    ran = run_command([*inject, *_presize(arguments)], timeout_s)
    return ran.returncode, ran.stderr
