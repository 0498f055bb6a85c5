"""benchmarks/gpu/gpu.sh: its messages about wrong use, and its environment from a folder of wheels. Its measurements
need a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commands import OFFLINE

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu" / "gpu.sh"


def run(*arguments: object, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", SCRIPT, *map(str, arguments)],
        capture_output=True, text=True, check=False, env={**os.environ, **OFFLINE, "PYTHON": python},
    )  # fmt: skip


def test_its_help_names_every_option() -> None:
    ran = run("--help")
    assert ran.returncode == 0
    for option in ("--wheels", "--photos", "--out", "--work", "--seconds", "--device"):
        assert f"\n  {option} " in ran.stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is available")
def test_without_cuda_it_prints_what_it_found_and_touches_nothing(tmp_path: Path) -> None:
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
        (("--device", "tpu"), "--device: expected cuda, cpu or simulated, got tpu"),
        (("--seconds", "5m"), "--seconds: expected a whole number, got 5m"),
        (("--wheels", "nowhere/to/be/found"), "nowhere/to/be/found: no such folder"),
        (("--device", "cpu", "--out", "/proc/none"), "--out: /proc/none cannot be written to"),
    ],
)
def test_wrong_use_is_a_one_line_error(arguments: tuple[str, ...], words: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert ran.stderr.endswith(f"gpu.sh: error: {words}\n")


def test_an_interpreter_that_cannot_run_is_named(tmp_path: Path) -> None:
    ran = run(python=str(tmp_path / "python"))
    assert ran.returncode == 2
    assert f"PYTHON: {tmp_path / 'python'} does not run" in ran.stderr


@pytest.mark.slow
def test_a_folder_without_a_wheel_of_presize_is_refused(tmp_path: Path) -> None:
    ran = run("--device", "cpu", "--wheels", tmp_path, "--work", tmp_path / "work")
    assert ran.returncode == 2
    assert f"--wheels: no wheel of presize in {tmp_path}; fill it: FOR=3." in ran.stderr


@pytest.mark.slow
def test_it_installs_the_wheel_and_starts_in_its_environment(wheels: Path, tmp_path: Path) -> None:
    # No step gets enough of 20 s to start: the script starts, reports that, and exits with 1.
    ran = run("--device", "cpu", "--wheels", wheels, "--work", tmp_path, "--seconds", 20)
    assert ran.returncode == 1, ran.stderr
    assert "Not finished: photographs (no time left; give more --seconds)." in ran.stdout
    assert (tmp_path / "results" / "gpu.md").read_text() == ran.stdout
    environment = tmp_path / "environment"
    where = "import presize, presize.datasets as d, torch; print(presize.__file__, d.__file__, sep='\\n')"
    found = subprocess.run(
        [environment / "bin" / "python", "-c", where], cwd="/", capture_output=True, text=True, check=True
    )
    assert all(Path(line).is_relative_to(environment) for line in found.stdout.splitlines())
    assert (environment / "bin" / "presize").exists()
