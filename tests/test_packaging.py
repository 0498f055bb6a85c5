"""What a wheel holds, and that our `datasets` folder takes the place of nobody else's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a wheel built from a copy of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("presize", "datasets"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder / "dist", folder]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = (folder / "dist").iterdir()
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_a_wheel_holds_every_module(wheel: list[str]) -> None:
    ours = {f"presize/{path.relative_to(ROOT / 'presize').as_posix()}" for path in (ROOT / "presize").rglob("*.py")}
    readers = {f"presize/datasets/{path.name}" for path in (ROOT / "datasets").glob("*.py")}
    templates = {f"presize/report/templates/{path.name}" for path in (ROOT / "presize/report/templates").iterdir()}
    assert ours | readers | templates | {"presize/py.typed"} <= set(wheel)


def test_a_wheel_holds_nothing_beside_presize(wheel: list[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel} == {"presize"}


def test_importing_the_folder_by_its_own_name_says_what_to_do() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import datasets"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ImportError: this folder is the source of presize.datasets" in ran.stderr
