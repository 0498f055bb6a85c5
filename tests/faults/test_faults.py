"""Builds that are killed anywhere, and whose system calls fail: nothing is lost, and the same command makes the same
bytes.

By default it tries a few faults of each scenario, which differ in each run; PRESIZE_FAULTS=N tries N of each, and
PRESIZE_FAULTS=all every one, and a hundred kills (make torture).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from faults import ERRORS, KILL, Crash, Fault, calls_on, changes_of, run, why_not
from presize.store.verify import verify_dataset
from processes import in_session, run_command, workers_of
from scenarios import NEVER_EMPTY, SCENARIOS, Scenario

FAULTS = os.environ.get("PRESIZE_FAULTS", "6")
KILLS = 100 if FAULTS == "all" else int(FAULTS) // 2
PATIENCE_S = 60
T = TypeVar("T")


def some_of(faults: Sequence[T]) -> list[T]:
    return random.sample(faults, len(faults) if FAULTS == "all" else min(int(FAULTS), len(faults)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_before_any_change_of_out_loses_nothing(name: str, tmp_path: Path) -> None:
    scenario = Scenario(name, tmp_path)
    changes = changes_of(scenario.out, scenario.command)
    whole = scenario.contents()
    for crash in some_of([Crash(scenario.out, number) for number in range(1, changes + 1)]):
        scenario.restart()
        assert run(scenario.command, crash)[0] == -signal.SIGKILL, crash
        for size in NEVER_EMPTY.get(name, []):
            assert not verify_dataset(scenario.out / size).problems, f"{crash}: neither the old dataset nor the new one"
        assert scenario.finished() == whole, crash


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_at_any_system_call_loses_nothing(name: str, tmp_path: Path) -> None:
    scenario = Scenario(name, tmp_path)
    calls = calls_on(scenario.out, scenario.command, tmp_path / "calls.log")
    whole = scenario.contents()
    for fault in some_of([Fault(call, number, what) for call, number in calls for what in (KILL, *ERRORS)]):
        scenario.restart()
        code, said = run(scenario.command, fault)
        assert "Traceback" not in said and len(said.splitlines()) <= 2, f"{fault}: {said}"
        assert code in (0, 1) or fault.what == KILL, f"{fault}: exit code {code}"
        assert scenario.finished() == whole, fault


def killed(command: Sequence[object], target: str, after_s: float) -> int:
    """Start a build, kill `target` after a while, wait for the end of all of its processes, and return the exit
    code."""
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


@pytest.mark.slow
@pytest.mark.parametrize("target", ["driver", "worker", "group"])
def test_a_kill_at_any_moment_loses_nothing(target: str, tmp_path: Path) -> None:
    for number in range(KILLS):
        name = random.choice(list(SCENARIOS))
        scenario = Scenario(name, tmp_path / str(number), "--backend", "processes", "--jobs", "2")
        begun = time.monotonic()
        whole = scenario.finished()
        lasts_s = time.monotonic() - begun
        scenario.restart()
        after_s = random.uniform(0, lasts_s)
        what = f"{name}, {target} killed after {after_s:.3f} s of {lasts_s:.3f}"
        code = killed(scenario.command, target, after_s)
        assert code == 0 or target != "worker", what
        assert scenario.finished() == whole, what


@pytest.fixture(scope="module")
def short_writes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    made = tmp_path_factory.mktemp("library") / "short_writes.so"
    source = Path(__file__).with_name("short_writes.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_short_writes_change_no_byte(name: str, short_writes: Path, tmp_path: Path) -> None:
    scenario = Scenario(name, tmp_path)
    whole = scenario.finished()
    scenario.restart()
    env = {"LD_PRELOAD": str(short_writes), "SHORT_WRITES_IN": str(scenario.out)}
    ran = run_command([sys.executable, "-P", "-m", "presize", *scenario.command], timeout_s=120, env=env)
    assert ran.returncode in (0, 1) and "Traceback" not in ran.stderr, ran.stderr
    assert len(ran.stderr.splitlines()) == ran.returncode, ran.stderr
    if ran.returncode:
        assert "cannot write" in ran.stderr
    assert scenario.finished() == whole
