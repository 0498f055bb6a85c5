"""The script that builds pillow-simd: its refusals. benchmarks/transcoding/resizers.py measures the result."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "install_pillow_simd.sh"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_an_environment_that_it_did_not_create_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("mine")
    ran = run(tmp_path)
    assert ran.returncode == 1
    assert ran.stderr == (
        f"install_pillow_simd: error: {tmp_path}: exists and was not made by this script; "
        "choose a folder that does not exist\n"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["bin", "python"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "usage: "),
        (("",), "usage: "),
        (("VENV", "sse4", "more"), "usage: "),
        (("VENV", "avx512"), "expected sse4 or avx2, got avx512"),
        (("--help",), "expected a folder, got --help"),
    ],
)
def test_wrong_use_is_a_one_line_error(arguments: tuple[str, ...], words: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1
