"""Presize commands that are disturbed: killed at a change of OUT or at a system call, or with a failing call."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "openat", "write", "pwrite64", "writev", "rename", "unlink", "mkdir", "rmdir", "fsync", "fdatasync", "sync",
    "ftruncate", "flock", "getdents64",
)  # fmt: skip
"""System calls by which a build changes or lists OUT."""

ERRORS = ("ENOSPC", "EIO", "EACCES")
KILL = "SIGKILL"


@dataclass(frozen=True)
class Fault:
    """A fault at call number `number` (from 1) of the main thread: KILL, or an error of ERRORS."""

    call: str
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} at {self.call} {self.number}"

    @property
    def inject(self) -> str:
        how = f"signal={self.what}" if self.what == KILL else f"error={self.what}"
        return f"inject={self.call}:{how}:when={self.number}"


@dataclass(frozen=True)
class Crash:
    """A kill before change number `number` (from 1) of `out`: a rename, a removal or a new folder. Uses Python's audit
    events instead of strace."""

    out: Path
    number: int

    def __str__(self) -> str:
        return f"a crash before change {self.number}"


@functools.cache
def why_not() -> str | None:
    """Return the reason why system calls cannot be tampered with on this machine; None if they can."""
    if shutil.which("strace") is None:
        return "needs strace: apt-get install strace"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else None


FORKS = """
import json, os, signal, sys, tempfile
from contextlib import suppress
from pathlib import Path

from PIL import Image

import presize.builder.derive
import presize.codecs.jpeg.decoder
from presize.builder.run import build_dataset
from presize.cli import main
from presize.options import BuildOptions, RunOptions

with tempfile.TemporaryDirectory() as place:  # what only a build imports, or computes once per process
    raw = Path(place, "raw")
    raw.mkdir()
    Image.new("RGB", (300, 300)).save(raw / "0.jpg")
    for layout in ("lmdb", "folder"):
        alone = RunOptions(engine="sequential", report=False)
        build_dataset(raw, Path(place, layout), BuildOptions(layout=layout), alone)
def crash(out, number, log):
    def hook(event, args):
        if event not in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            return
        path = os.fsdecode(args[0])
        if path.startswith(out) and os.path.lexists(path) != (event == "os.mkdir"):
            changes.append(f"{event} {path}")
            if len(changes) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    changes = []
    sys.addaudithook(hook)
    atexit.append(lambda: Path(log).write_text("".join(f"{change}\\n" for change in changes)))

for line in sys.stdin:
    order, atexit = json.loads(line), []
    child = os.fork()
    if child == 0:
        os.setsid()
        for standard in (0, 1):
            os.dup2(os.open(os.devnull, os.O_RDWR), standard)
        os.dup2(os.open(order["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        if order["stopped"]:
            os.kill(os.getpid(), signal.SIGSTOP)
        if order["crash"]:
            crash(*order["crash"])
        try:
            main(order["arguments"])
        except SystemExit as end:
            for last in atexit:
                last()
            sys.stderr.flush()
            os._exit(end.code)  # taking down an interpreter of this size takes longer than the build
    print(child, flush=True)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # workers that it has left
    print(code, flush=True)
"""
"""Program that runs commands in forks of itself: imports take longer than a small build."""


class _Forks:
    def __init__(self) -> None:
        command = [sys.executable, "-P", "-c", FORKS]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        assert self._process.stdin and self._process.stdout
        self._orders, self._answers = self._process.stdin, self._process.stdout

    def run(
        self, arguments: Sequence[object], strace: Sequence[str], timeout_s: float, crash: Sequence[object] = ()
    ) -> tuple[int, str]:
        """Return the exit code (minus the signal) and standard error of ``presize arguments``, under ``strace`` with
        these arguments if given. `crash` is the point of a crash, and the file that lists the changes of OUT."""
        with tempfile.NamedTemporaryFile("r", errors="replace") as stderr:
            order = {"arguments": list(map(str, arguments)), "stderr": stderr.name, "stopped": bool(strace)}
            order["crash"] = crash
            self._orders.write(f"{json.dumps(order)}\n")
            self._orders.flush()
            child = int(self._answers.readline())
            too_late = threading.Timer(timeout_s, os.kill, (child, signal.SIGKILL))
            too_late.start()
            tracer = _traced(child, strace) if strace else None
            code = int(self._answers.readline())
            too_late.cancel()
            if tracer is not None:
                tracer.wait()
            return code, stderr.read()


def _traced(process: int, strace: Sequence[str]) -> subprocess.Popen[bytes]:
    """Attach strace to the main thread of a process that has stopped itself, and continue the process. With -f it also
    follows other threads and processes, whose calls are numbered separately."""
    _wait_for(process, r"State:\tT")
    tracer = subprocess.Popen(["strace", "-qq", *strace, "-p", str(process)], stderr=subprocess.DEVNULL)
    _wait_for(process, r"TracerPid:\t[1-9]")
    os.kill(process, signal.SIGCONT)
    return tracer


def _wait_for(process: int, status: str) -> None:
    while not re.search(status, Path(f"/proc/{process}/status").read_text()):
        time.sleep(0.001)


_forks = functools.cache(_Forks)


def calls_on(out: Path, arguments: Sequence[object], log: Path) -> list[tuple[str, int]]:
    """Run ``presize arguments``, and list the calls of its main thread that touch `out` or its contents: (call, number
    among all calls of that name, from 1)."""
    code, said = _forks().run(arguments, ["-f", "-y", "-o", str(log), "-e", f"trace={','.join(CALLS)}"], timeout_s=120)
    assert code == 0, said
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


def changes_of(out: Path, arguments: Sequence[object]) -> int:
    """Run ``presize arguments``, and count its changes of `out`, the points of a Crash."""
    with tempfile.NamedTemporaryFile("r") as log:
        code, said = _forks().run(arguments, [], 120, [str(out), 0, log.name])
        assert code == 0, said
        return len(log.readlines())


def run(arguments: Sequence[object], fault: Fault | Crash | None = None, timeout_s: float = 120) -> tuple[int, str]:
    """Return the exit code (minus the signal) and standard error of ``presize arguments``."""
    if isinstance(fault, Crash):
        return _forks().run(arguments, [], timeout_s, [str(fault.out), fault.number, os.devnull])
    inject = [] if fault is None else ["-o", "/dev/null", "-e", fault.inject]
    return _forks().run(arguments, inject, timeout_s)
