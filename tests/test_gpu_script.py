"""benchmarks/gpu.sh: what it says and what it refuses. What it measures needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.sh"


def run(*arguments: object, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", SCRIPT, *map(str, arguments)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHON": python},
    )  # fmt: skip


def test_its_help_names_every_option() -> None:
    ran = run("--help")
    assert ran.returncode == 0
    for option in ("--wheels", "--photos", "--out", "--work", "--seconds", "--device"):
        assert f"\n  {option} " in ran.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_cuda_it_says_what_it_found_and_touches_nothing(tmp_path: Path) -> None:
    ran = run("--work", tmp_path / "work", "--out", tmp_path / "out")
    assert ran.returncode == 2
    assert (
        f"gpu.sh: error: no CUDA here: found Python {sys.version.split()[0]}, torch {torch.__version__} " in ran.stderr
    )
    assert "--device cpu is a dry run" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fast",), "--fast: no such option; see --help"),
        (("--out",), "--out: expected a value"),
        (("--device", "tpu"), "--device: expected cuda or cpu, got tpu"),
        (("--seconds", "5m"), "--seconds: expected a whole number, got 5m"),
        (("--wheels", "nowhere/to/be/found"), "nowhere/to/be/found: no such folder"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert ran.stderr == f"gpu.sh: error: {words}\n"


def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path) -> None:
    ran = run(python=str(tmp_path / "python"))
    assert ran.returncode == 2
    assert f"PYTHON: {tmp_path / 'python'} does not run" in ran.stderr
