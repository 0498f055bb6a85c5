"""Benchmarks are run by hand: their imports from presize must exist."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable, Iterator
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


STALE = runpy.run_path(str(ROOT / "benchmarks" / "stale.py"))
BY_MAKE = {"bench"}


def test_every_result_has_a_command_on_its_page_and_the_code_that_it_measures() -> None:
    code = STALE["CODE"]
    measured = {path.parent.name for path in ROOT.glob("benchmarks/*/results")} - {"gpu"}
    assert STALE["pages"]() == measured
    named = {name for name in code if "/" in name}
    for folder in (ROOT / "benchmarks" / name for name in measured):
        commands = STALE["commands"](folder)
        results = {csv.stem for csv in folder.glob("results/*.csv")}
        assert results <= {*commands, *BY_MAKE}, folder
        assert [name for name in results if not {folder.name, f"{folder.name}/{name}"} & code.keys()] == []
        assert [script for script in commands.values() if not (folder / script.split()[0]).is_file()] == []
        named -= {f"{folder.name}/{name}" for name in results}
    assert named == set(), "code of results that are not there"
    paths = {re.sub(r"^:\(\w+\)", "", path) for paths in code.values() for path in paths.split()}
    assert [path for path in sorted(paths) if not [*ROOT.glob(path)]] == []


def test_no_result_holds_an_absolute_path_of_the_machine_that_measured() -> None:
    results = sorted(ROOT.glob("benchmarks/*/results/*.csv"))
    assert results
    assert [csv.name for csv in results if re.search(r"""(?m)(?:^|[\s,="':])/[\w.]""", csv.read_text())] == []


@pytest.fixture
def commit(tmp_path: Path) -> Callable[..., None]:
    """Write files into a repository, and commit them."""
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")

    def write(**files: str) -> None:
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        for words in (["add", "."], ["commit", "-q", "-m", "change"]):
            subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return write


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_result_is_older_than_code_that_changed_and_not_than_words(
    commit: Callable[..., None], tmp_path: Path
) -> None:
    def age() -> tuple[int, int]:
        measured, commits, lines = STALE["age"](tmp_path, "a.csv", "code.py code.c")
        assert re.fullmatch(r"[0-9a-f]{7,} \d{4}-\d\d-\d\d", measured)
        return commits, lines

    commit(code_py='"""Add."""\nONE = 1\n"""A number."""\n', code_c="int one = 1;\n", a_csv="1\n")
    assert age() == (0, 0)
    commit(code_py='"""Add up."""\nONE = 1  # of them\n"""The number."""\n', other_py="TWO = 2\n")
    assert age() == (0, 0), "words, and code of others"
    commit(code_py='"""Add up."""\nONE = 2\n"""The number."""\n')
    assert age() == (2, 6), "both commits that touched the file, and all lines since"
    commit(code_c="/* one,\n   two */\nint one = 1; // one\n")
    assert age() == (2, 6), "comments of C"
    commit(code_c="/* one,\n   two */\nint one = 2; // one\n")
    assert age() == (4, 10), "both commits that touched the C file, too"
    commit(a_csv="2\n")
    assert age() == (0, 0)
    commit(code_py="ONE = 2\nif ONE > 2:\n    raise ValueError(ONE)\n", a_csv="3\n")
    commit(code_py="ONE = 2\nif ONE > 2:\n    raise ValueError(f'more than 2: {ONE}')\n")
    assert age() == (0, 0), "messages of errors"
    (tmp_path / "a.csv").write_text("4\n")
    assert STALE["age"](tmp_path, "a.csv", "code.py") == ("not committed", 0, 0)


def test_a_measurement_that_fails_or_lacks_a_folder_is_named(tmp_path: Path) -> None:
    csv = tmp_path / "results" / "a.csv"
    (tmp_path / "good.py").write_text(f"import sys; open({str(tmp_path / 'said')!r}, 'w').write(repr(sys.argv[1:]))")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    assert STALE["run"](csv, "bad.py", {}) == "exit code 3"
    assert STALE["run"](csv, "", {}) == "needs more than a command, see its page"
    command = "good.py PHOTOS --python ENV/bin/python --name TrashNet"
    assert STALE["run"](csv, command, {"ENV": "/e"}) == "needs PHOTOS"
    assert STALE["run"](csv, command, {"ENV": "/e", "PHOTOS": "/p q"}) == ""
    said = ["/p q", "--python", "/e/bin/python", "--name", "TrashNet", "--csv", str(csv)]
    assert (tmp_path / "said").read_text() == repr(said)
