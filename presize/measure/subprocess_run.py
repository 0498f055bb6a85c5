"""A run of a benchmark in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from presize.errors import BenchError
from presize.measure.bench_options import Run


def run_apart(run: Run) -> dict[str, Any]:
    """Make a run in a process of its own, which ends with this one, and return its answer. Raises BenchError."""
    command = [sys.executable, "-m", "presize.datasets.timing.bench_run"]
    with tempfile.TemporaryFile() as errors:
        # In a session of its own: it and its workers are ended together, and Ctrl-C is for this process alone. In "/",
        # where no folder of the user's is taken for a package.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, cwd="/"
        )
        try:
            if process.stdin is None or process.stdout is None:
                raise BenchError("cannot open pipes to a process")
            try:
                process.stdin.write(f"{run.to_json()}\n".encode())
                process.stdin.flush()  # and left open: it says that this process lives
            except BrokenPipeError:
                pass
            said = process.stdout.read()
            code = process.wait()
        finally:
            _end(process)
        errors.seek(0)
        return answer(run, said, code, errors.read())


def answer(run: Run, said: bytes, code: int, errors: bytes) -> dict[str, Any]:
    if code < 0:
        why = "probably out of memory; choose a smaller --batch" if code == -signal.SIGKILL else ""
        raise BenchError(f"the run of {run} was ended by signal {-code}{': ' if why else ''}{why}")
    lines = said.decode("utf-8", "replace").splitlines()
    if code or not lines:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
        raise BenchError(f"the run of {run} failed: {last[0]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise BenchError(answer["error"])
    return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
