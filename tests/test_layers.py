"""Import rules between the folders, and rules for library code."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import presize
import presize.datasets

ROOT = Path(__file__).parent.parent
PATHS = sorted([*ROOT.glob("presize/**/*.py"), *ROOT.glob("datasets/**/*.py")])
GROUND = {"errors", "options", "option_fields", "formatting"}

MAY_IMPORT = {
    "errors": set(),
    "formatting": set(),
    "option_fields": {"errors"},
    "options": {"errors", "option_fields"},
    "system": GROUND,
    "codecs": GROUND,
    "store": GROUND | {"system", "codecs"},
    "remote": GROUND | {"system", "store"},
    "sources": GROUND | {"system", "codecs", "store", "remote"},
    "pages": GROUND | {"system", "codecs", "store"},
    "builder": GROUND | {"system", "codecs", "store", "sources", "remote", "pages"},
    "measure": GROUND | {"system", "codecs", "store", "sources", "pages", "builder"},
    "machine_check": GROUND | {"system", "measure", "datasets/timing"},
    "datasets": GROUND
    | {"system", "codecs", "store", "sources", "remote", "pages", "datasets/reading", "datasets/timing"},
    "datasets/reading": GROUND | {"system", "codecs", "store", "datasets"},
    "datasets/timing": GROUND | {"system", "codecs", "store", "sources", "measure", "datasets", "datasets/reading"},
}
"""Permitted imports of each folder. `cli` may import all of them, `datasets` only inside a command. No part of the
product imports the measurements."""

LIBRARIES = {
    "click": {"cli"},
    "distributed": {"builder/executors/cluster"},
    "jinja2": {"pages/html"},
    "joblib": {"builder/executors/local"},
    "lmdb": {"store/shard", "store/shard_reader"},
    "obstore": {"remote/bucket"},
    "pyspark": {"builder/executors/cluster"},
    "ray": {"builder/executors/cluster"},
    "torch": {"datasets", "datasets/reading", "datasets/timing"},
    "tqdm": {"builder/progress_bar", "cli/output"},
}
"""Libraries that only one folder, or one module, may import."""


def name_of(path: Path) -> str:
    """Return ``build/run`` for presize/builder/run.py, ``datasets/dataset`` for datasets/dataset.py."""
    return path.relative_to(ROOT).as_posix().removeprefix("presize/").removesuffix(".py").removesuffix("/__init__")


def room_of(name: str) -> str:
    parts = name.split("/")
    if name.startswith(("datasets/reading", "datasets/timing")):
        return "/".join(parts[:2])
    return parts[0]


MODULES = {name_of(path): path for path in PATHS}


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text("utf-8"))


@cache
def imported(name: str) -> frozenset[str]:
    """Return every module that a module imports, at any level; ``from a import b`` counts as a and a.b."""
    found = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def rooms_imported(name: str) -> set[str]:
    """Return the folders of presize that a module imports, except its own."""
    found = {
        room_of(module.removeprefix("presize.").replace(".", "/")) for module in imported(name) if "presize." in module
    }
    return found - {room_of(name)}


def test_no_folder_imports_one_above_it() -> None:
    upwards = {
        f"{name} imports {room}"
        for name in MODULES
        if room_of(name) in MAY_IMPORT
        for room in rooms_imported(name) & {*MAY_IMPORT, "cli"} - MAY_IMPORT[room_of(name)]
    }
    assert not upwards


def test_every_folder_has_its_rule() -> None:
    assert {room_of(name) for name in MODULES} - {"__init__", "__main__", "cli"} == set(MAY_IMPORT)


def test_the_command_line_imports_datasets_only_inside_its_commands() -> None:
    for name in MODULES:
        if room_of(name) == "cli":
            top = [node for node in tree_of(name).body if isinstance(node, ast.ImportFrom)]
            assert not [node.module for node in top if (node.module or "").startswith("presize.datasets")], name


def test_a_library_is_imported_by_one_folder_only() -> None:
    for library, homes in LIBRARIES.items():
        users = {name for name in MODULES if library in {module.partition(".")[0] for module in imported(name)}}
        assert users, library
        assert all(name in homes or room_of(name) in homes for name in users), (library, users)


def test_a_shard_is_bytes_in_and_bytes_out() -> None:
    assert not rooms_imported("store/shard") & {"codecs", "options"}


PURE = [
    "builder/plan", "measure/diagnosis",
    "measure/profile", "measure/results", "measure/simulation", "measure/simulation_report", "measure/stages",
    "pages/charts", "pages/build_report", "store/dealing",
    *(name for name in MODULES if room_of(name) == "codecs"),
]  # fmt: skip


def test_pure_modules_do_not_touch_the_file_system() -> None:
    for name in PURE:
        reads_environment = {"os"} if name == "codecs/compiled" else set()  # only for PRESIZE_DECODER
        touched = {"os", "pathlib", "shutil", "tempfile", "subprocess"} & set(imported(name))
        assert touched == reads_environment, name
        calls = [node.func for node in ast.walk(tree_of(name)) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "open"], name


def test_library_code_neither_prints_nor_exits_nor_asserts() -> None:
    for name in MODULES:
        for node in ast.walk(tree_of(name)):
            where = f"{name}, line {getattr(node, 'lineno', 0)}"
            assert not isinstance(node, ast.Assert), f"{where}: raise an error that names the value"
            called = node.func if isinstance(node, ast.Call) and room_of(name) != "cli" else None
            if isinstance(called, ast.Name):
                assert called.id not in ("print", "exit", "quit"), where
            elif isinstance(called, ast.Attribute) and called.attr == "exit":
                assert ast.unparse(called) != "sys.exit", where


def imports_that_run(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the imports of a module at any level, except those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imports_that_run(child)


def modules_that_run(name: str) -> set[str]:
    """Return the modules of presize that a module imports, at its top or in a function."""
    found = set()
    for node in imports_that_run(tree_of(name)):
        for alias in node.names:
            module = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            path = module.removeprefix("presize.").replace(".", "/")
            found |= {path, path.rpartition("/")[0]} & {*MODULES} - {name}
    return found


def test_there_are_no_import_cycles() -> None:
    graph = {name: modules_that_run(name) for name in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules of a cycle


STANDARD = {"_asdict", "_replace", "_fields", "_exit", "_ntuple_diskusage", "_repr_html_"}
"""Names of Python and of notebooks that start with an underscore."""


def private_names(path: Path) -> set[str]:
    """Return names with an underscore that are not the file's own: imported, read from an object, or in a string that
    names a module of presize or is a program."""
    tree = ast.parse(path.read_text("utf-8"))
    found = set()
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("presize"):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            found |= {node.attr} if getattr(node.value, "id", "") not in ("self", "cls") else set()
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr") and len(node.args) > 1:
            found |= {node.args[1].value} if isinstance(node.args[1], ast.Constant) else set()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(r"(?:\.|import )(_[A-Za-z]\w*)", node.value)) if "presize" in node.value else set()
    return {name for name in found if re.fullmatch(r"_[A-Za-z]\w*", str(name))} - STANDARD - own


def test_no_test_uses_a_private_name_of_presize() -> None:
    """Names that a test needs are public in their module, or passed to it."""
    users = {path.relative_to(ROOT).as_posix(): private_names(path) for path in (ROOT / "tests").rglob("*.py")}
    assert {name: names for name, names in users.items() if names} == {}


def test_no_two_public_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for name in MODULES:
        for node in tree_of(name).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_a_module_begins_with_a_sentence() -> None:
    for name in MODULES:
        first = (ast.get_docstring(tree_of(name)) or "").split("\n\n")[0]
        assert first.endswith((".", ":")) or name == "__main__", name


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [
        ast.get_docstring(node) for name in MODULES for node in ast.walk(tree_of(name)) if isinstance(node, documented)
    ]
    pronouns = {"What", "Whether", "Which", "Who", "Where", "How", "Of", "As", "Those"}
    assert [text for text in texts if text and text.split()[0] in pronouns] == []


def test_no_text_says_is_no() -> None:
    """Write "is not a folder", or "expected a folder, got a file"."""
    texts = [node.value for name in MODULES for node in ast.walk(tree_of(name)) if isinstance(node, ast.Constant)]
    odd = re.compile(r"(?<![Tt]here )\b(is|are) no (?!longer\b)")
    assert [text for text in texts if isinstance(text, str) and odd.search(text)] == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("presize", "torch click pyarrow joblib"),
        ("presize.cli", "torch pyarrow joblib cv2"),
        ("presize.builder.tasks.task", "torch click pyarrow joblib cv2"),
        ("presize.builder.run", "torch click cv2 jinja2"),
        (
            "presize.datasets",
            "presize.measure presize.builder presize.pages presize.sources.table joblib click torchvision",
        ),
    ],
)
def test_an_import_loads_only_what_it_needs(module: str, absent: str) -> None:
    script = f"import sys, {module}; print([name for name in {absent.split()} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout.strip() == "[]"


def test_every_public_name_is_listed_and_exists_and_no_other() -> None:
    for module in (presize, presize.datasets):
        assert set(module.__all__) <= set(dir(module))
        assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        presize.bild  # noqa: B018


def test_pytest_collects_every_folder_of_tests(pytestconfig: pytest.Config) -> None:
    """By default, it ignores folders named build."""
    left_out = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    names = {part for folder in folders for part in folder.relative_to(ROOT).parts}
    assert not [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in left_out)]
