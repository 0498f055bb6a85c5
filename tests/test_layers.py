"""Who may import whom, and what library code never does."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("presize/**/*.py"), *ROOT.glob("datasets/**/*.py")])
CORE = sorted(ROOT.glob("presize/**/*.py"))
DATASETS = sorted(ROOT.glob("datasets/**/*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at any level; ``from a import b`` counts as a and a.b."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def importers(package: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        if any(name == package or name.startswith(package + ".") for name in imports(path))
    }


def test_nothing_in_presize_imports_torch() -> None:
    assert not [name for name in importers("torch") if name.startswith("presize/")]


@pytest.mark.parametrize(
    ("package", "owner"),
    [
        ("jinja2", "presize/report/page.py"),
        ("joblib", "presize/build.py"),
        ("lmdb", "presize/store/shard.py"),
    ],
)
def test_a_library_behind_one_module_has_no_other_importer(package: str, owner: str) -> None:
    assert importers(package) == {owner}


def test_only_the_command_line_knows_click() -> None:
    assert {path.rpartition("/")[0] for path in importers("click")} == {"presize/cli"}


@pytest.mark.parametrize("name", ["bench.compare", "build", "task", "trial", "cli"])
def test_reading_in_torch_needs_nothing_of_the_build(name: str) -> None:
    assert not [path for path in importers(f"presize.{name}") if path.startswith("datasets/")]


@pytest.mark.parametrize("name", ["codecs", "options"])
def test_a_shard_is_bytes_in_and_bytes_out(name: str) -> None:
    assert "presize/store/shard.py" not in importers(f"presize.{name}")


PURE = [
    "codecs/decode", "codecs/encode", "codecs/icc", "codecs/jpeg_decoder", "codecs/jpeg_segments", "codecs/jpeg_tiles",
    "codecs/pillow_decoder", "codecs/resize", "codecs/sniff", "codecs/source_facts", "codecs/transcode",
    "doctor/findings", "parity", "plan", "simulate", "update",
]  # fmt: skip


MEASURES = ["bench/results", "diagnosis", "measure", "parts", "simulate"]
REPORTS = ["report/bench", "report/charts", "report/diagnosis", "report/page", "report/simulation"]


@pytest.mark.parametrize("module", [*PURE, *MEASURES, *REPORTS])
def test_pure_modules_do_not_touch_the_file_system(module: str) -> None:
    path = ROOT / "presize" / f"{module}.py"
    touching = {"os", "pathlib", "shutil", "tempfile", "subprocess"} & set(imports(path))
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    opened = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "open"]
    assert not touching
    assert not opened


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_library_code_neither_prints_nor_exits_nor_asserts(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        assert not isinstance(node, ast.Assert), f"line {node.lineno}: raise an error that names the value"
        if isinstance(node, ast.Call) and path.parent.name != "cli":
            called = ast.unparse(node.func)
            assert called not in ("print", "sys.exit", "exit", "quit"), f"line {node.lineno}"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import presize", ["torch", "click", "pyarrow", "joblib"]),
        ("import presize.cli", ["torch", "pyarrow", "joblib", "cv2"]),
        ("import presize.build.task", ["torch", "click", "pyarrow", "joblib", "cv2"]),
        ("import presize.build.run", ["torch", "click", "cv2", "jinja2"]),
    ],
)
def test_an_import_brings_only_what_it_needs(statement: str, absent: list[str]) -> None:
    script = f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout.strip() == "[]"


def test_every_public_name_can_be_had() -> None:
    import presize

    assert all(getattr(presize, name) is not None for name in presize.__all__)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import presize

    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        presize.bild  # noqa: B018
