"""A build killed at a system call, or refused one: nothing is lost, and the same command makes the same bytes.

By default six faults of each scenario, drawn anew each time; PRESIZE_FAULTS=N tries N of each, and PRESIZE_FAULTS=all
every one (make torture).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builds import files
from faults import ERRORS, KILL, Fault, calls_on, run, why_not
from scenarios import SCENARIOS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

FAULTS = os.environ.get("PRESIZE_FAULTS", "6")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_any_system_call_loses_nothing(scenario: str, tmp_path: Path) -> None:
    prepare, options = SCENARIOS[scenario]
    start, place = tmp_path / "start", tmp_path / "place"
    place.mkdir()
    prepare(place / "raw", place / "out")
    shutil.copytree(place, start)
    command = ["build", place / "raw", place / "out", *options, "--backend", "sequential", "--no-report"]
    calls = calls_on(place / "out", command, tmp_path / "calls.log")
    whole = files(place / "out")
    faults = [Fault(call, number, what) for call, number in calls for what in (KILL, *ERRORS)]
    seed = random.randrange(10**6)
    some = len(faults) if FAULTS == "all" else min(int(FAULTS), len(faults))
    wrong = []
    for fault in random.Random(seed).sample(faults, some):
        shutil.rmtree(place)
        shutil.copytree(start, place)
        wrong += [f"{fault}: {what}" for what in what_is_wrong(command, fault)]
        if files(place / "out") != whole:
            wrong.append(f"{fault}: other files")
    assert wrong == []


def what_is_wrong(command: list[object], fault: Fault) -> Iterator[str]:
    """Run `command` with a fault, then again without."""
    code, said = run(command, fault)
    if "Traceback" in said or len(said.splitlines()) > 2 or (code not in (0, 1) and fault.what != KILL):
        yield f"exit code {code}, {said!r}"
    # Where the fault came after publishing, --overwrite would build the same anew, under the next generation.
    code, said = run([option for option in command if option != "--overwrite"])
    if code and "--overwrite" in command:
        code, said = run(command)
    if code:
        yield f"afterwards {said!r}"
