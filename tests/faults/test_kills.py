"""Builds whose driver, a worker, or all processes are killed at a random moment: nothing is lost, and nothing is left.

By default three of each; PRESIZE_FAULTS=N tries N of each, and PRESIZE_FAULTS=all a hundred (make torture).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builds import files
from faults import run
from processes import in_session, workers_of
from scenarios import SCENARIOS

pytestmark = pytest.mark.slow

FAULTS = os.environ.get("PRESIZE_FAULTS", "3")
KILLS = 100 if FAULTS == "all" else int(FAULTS)
PATIENCE_S = 60


def killed(command: list[object], target: str, after_s: float) -> int:
    """Start a build, kill `target` after a while, and wait for the end of all of its processes. Its exit code."""
    build = subprocess.Popen(
        [sys.executable, "-m", "presize", *map(str, command)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    time.sleep(after_s)
    if target == "group":
        os.killpg(build.pid, signal.SIGKILL)
    elif target == "driver":
        build.kill()
    else:
        for worker in workers_of(build.pid)[:1]:
            os.kill(worker, signal.SIGKILL)
    code = build.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while in_session(build.pid):
        assert time.monotonic() < deadline, "workers outlive their driver"
        time.sleep(0.05)
    return code


@pytest.mark.parametrize("target", ["driver", "worker", "group"])
def test_a_kill_at_any_moment_loses_nothing(target: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    for number in range(KILLS):
        scenario = draw.choice(list(SCENARIOS))
        prepare, options = SCENARIOS[scenario]
        start, place = tmp_path / f"start-{number}", tmp_path / f"place-{number}"
        place.mkdir()
        prepare(place / "raw", place / "out")
        shutil.copytree(place, start)
        command = ["build", place / "raw", place / "out", *options, "--jobs", "2", "--no-report"]
        begun = time.monotonic()
        assert run(command)[0] == 0
        lasts_s, whole = time.monotonic() - begun, files(place / "out")
        shutil.rmtree(place)
        shutil.copytree(start, place)
        after_s = draw.uniform(0, lasts_s)
        what = f"{scenario}, {target} killed after {after_s:.3f} s of {lasts_s:.3f} (seed {seed}, {number})"
        code = killed(command, target, after_s)
        assert code == 0 or target != "worker", what
        code, said = run([option for option in command if option != "--overwrite"])
        if code and "--overwrite" in command:
            code, said = run(command)
        assert code == 0, f"{what}: {said}"
        assert files(place / "out") == whole, what
