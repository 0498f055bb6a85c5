"""Benchmarks are run by hand: their imports from presize must exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted([*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tools/*.py")])


def imported_by(script: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each ``from presize… import name``."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "presize":
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_of_scripts_from_presize_exist(script: Path) -> None:
    assert [f"{module}.{name}" for module, name in imported_by(script) if not is_there(module, name)] == []


def test_a_moved_name_is_detected(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from presize.codecs import transcode, nothing\nfrom presize.nowhere import a")
    missing = [name for module, name in imported_by(tmp_path / "script.py") if not is_there(module, name)]
    assert missing == ["nothing", "a"]


def test_modules_and_tests_of_the_mutants_exist() -> None:
    """A pattern without a file would silently skip its module."""
    strings = {
        node.value
        for node in ast.walk(ast.parse((ROOT / "tools" / "mutants.py").read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    strings |= set((ROOT / "tools" / "harmless.txt").read_text("utf-8").splitlines())
    names = {name for name in strings if re.fullmatch(r"tests/[\w/]+|[a-z][\w/]*/[\w*]+\.py", name)}
    assert {"tests/store", "store/*.py", "codecs/jpeg/segments.py"} <= names
    assert [name for name in sorted(names) if not [*ROOT.glob(name), *ROOT.glob(f"presize/{name}")]] == []
