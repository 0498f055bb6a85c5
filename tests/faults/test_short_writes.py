"""Each write to OUT writes half of what it should: a build ends with the same bytes, or with one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builds import files
from faults import run
from processes import run_command
from scenarios import SCENARIOS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("library") / "short_writes.so"
    source = Path(__file__).with_name("short_writes.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_short_writes_change_no_byte(scenario: str, library: Path, tmp_path: Path) -> None:
    prepare, options = SCENARIOS[scenario]
    start, place = tmp_path / "start", tmp_path / "place"
    place.mkdir()
    prepare(place / "raw", place / "out")
    shutil.copytree(place, start)
    command = ["build", place / "raw", place / "out", *options, "--backend", "sequential", "--no-report"]
    assert run(command)[0] == 0
    whole = files(place / "out")
    shutil.rmtree(place)
    shutil.copytree(start, place)
    short = {"LD_PRELOAD": str(library), "SHORT_WRITES_IN": str(place / "out")}
    ran = run_command([sys.executable, "-P", "-m", "presize", *command], timeout_s=120, env=short)
    assert ran.returncode in (0, 1) and "Traceback" not in ran.stderr, ran.stderr
    assert len(ran.stderr.splitlines()) == ran.returncode, ran.stderr
    if ran.returncode:
        assert "cannot write" in ran.stderr
        code, said = run([option for option in command if option != "--overwrite"])
        if code and "--overwrite" in command:
            code, said = run(command)
        assert code == 0, said
    assert files(place / "out") == whole
