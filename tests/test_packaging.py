"""Contents of a wheel, wheels without a compiler, and that our `datasets` folder does not replace other packages."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import presize

ROOT = Path(__file__).parent.parent
WITHOUT_A_COMPILER = {"CC": "false", "PATH": "/nowhere"}


@pytest.fixture
def wheel(wheels: Path) -> Path:
    (built,) = wheels.glob("*.whl")
    return built


@pytest.fixture
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.slow
def test_a_wheel_holds_every_module_and_only_presize(names: list[str]) -> None:
    ours = {f"presize/{path.relative_to(ROOT / 'presize').as_posix()}" for path in (ROOT / "presize").rglob("*.py")}
    readers = {f"presize/datasets/{path.name}" for path in (ROOT / "datasets").glob("*.py")}
    templates = {f"presize/pages/templates/{path.name}" for path in (ROOT / "presize/pages/templates").iterdir()}
    assert ours | readers | templates | {"presize/py.typed"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"presize"}


@pytest.mark.slow
@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="Python is free-threaded")
def test_one_wheel_serves_all_versions_of_python(wheel: Path, names: list[str]) -> None:
    assert "-cp311-abi3-linux_" in wheel.name
    assert "presize/codecs/_jpeg_decoder.abi3.so" in names
    assert "presize/codecs/_pillow_resize.abi3.so" in names
    assert "presize/codecs/_pillow_color.abi3.so" in names


RUN_SETUP = """
import runpy, sys, sysconfig

sysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1
sys.argv = ["setup.py", "-q", "bdist_wheel", "--dist-dir", sys.argv[1]]
runpy.run_path("setup.py", run_name="__main__")
"""


def test_free_threaded_python_gets_a_separate_wheel(tmp_path: Path) -> None:
    """Python only pretends to be free-threaded, so the decoder cannot be compiled for it; setuptools refuses before
    that."""
    pytest.importorskip("setuptools", minversion="77")
    for name in ("presize", "datasets"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-W", "ignore", "-c", RUN_SETUP, tmp_path / "dist"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, **WITHOUT_A_COMPILER}
    )
    assert ran.returncode == 0, ran.stderr
    (built,) = (tmp_path / "dist").iterdir()
    assert "abi3" not in built.name and f"-cp{sys.version_info.major}{sys.version_info.minor}" in built.name


@pytest.mark.slow
def test_the_decoder_of_a_wheel_runs_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """Uses an environment with presize from the wheel, and presize's dependencies from this environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    environment = {**os.environ, **WITHOUT_A_COMPILER}
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel],
        check=True, capture_output=True, env=environment,
    )  # fmt: skip
    (site,) = tmp_path.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    program = "from presize.codecs.jpeg import decoder as d; print(d.__file__, d.is_available())"
    ran = subprocess.run([python, "-c", program], cwd="/", capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout == f"{site / 'presize' / 'codecs' / 'jpeg' / 'decoder.py'} True\n"


def test_the_version_is_stated_once_and_everything_else_reads_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "presize.__version__"}
    assert importlib.metadata.version("presize") == presize.__version__
    sources = [path for folder in ("presize", "datasets", "docs", "tools") for path in (ROOT / folder).rglob("*.py")]
    quoted = re.compile(rf"""["']v?{re.escape(presize.__version__)}["']""")
    paths = [*sources, *ROOT.glob("*.py"), *ROOT.glob("*.toml")]
    stated = [path for path in paths if quoted.search(path.read_text("utf-8"))]
    assert stated == [ROOT / "presize" / "__init__.py"]


def test_the_changes_begin_with_this_version_or_those_not_yet_released() -> None:
    headings = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] in (presize.__version__, "Unreleased")
    assert presize.__version__ in headings[:2]


def test_importing_the_folder_by_its_own_name_says_what_to_do() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import datasets"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ImportError: this folder is the source of presize.datasets" in ran.stderr
