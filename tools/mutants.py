"""Mutation testing: does a test notice when one token of a module changes?

    python tools/mutants.py [--sample N] [--seed N] [--jobs N] [--all-tests] [MODULE[:LINE] ...]

Changes a copy of the installed package, one place at a time, with a random operator of cosmic-ray, and runs the tests
of that module on it. Prints each mutant that no test noticed: add a test, or explain in tools/harmless.txt why it is
harmless.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.plugins
import coverage
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

import presize

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = Path(presize.__file__).resolve().parent
JPEG = (
    "tests/codecs/test_jpeg_segments.py",
    "tests/codecs/test_jpeg_metadata.py",
    "tests/codecs/test_jpeg_tiles.py",
    "tests/datasets/reading/test_regions.py",
)
ORDER = ("tests/datasets/reading/test_order.py", "tests/datasets/test_sampler.py")
STORE = ("tests/store", "tests/builder/test_plan.py", "tests/datasets/test_lmdb_dataset.py")
TESTS = {
    "store/dealing.py": ("tests/builder/test_plan.py",),
    "store/export.py": ("tests/store/test_export.py", "tests/store/test_tampering.py"),
    "store/filenames.py": ("tests/store/test_filenames.py", "tests/store/test_export.py"),
    "store/manifest.py": ("tests/store/test_manifest.py", "tests/store/test_tampering.py"),
    "store/rejects*.py": ("tests/store/test_rejects.py", "tests/builder/test_update.py"),
    "store/dataset.py": (*STORE, "tests/remote/test_cache.py"),
    "store/shard.py": ("tests/store/test_shard.py", *STORE),
    "store/shard_reader.py": ("tests/store/test_shard.py", *STORE, "tests/remote/test_cache.py"),
    "store/shard_pages.py": ("tests/store/test_shard_pages.py", *STORE),
    "store/verify.py": ("tests/store/test_tampering.py", *STORE),
    "store/*.py": STORE,
    "builder/fingerprint.py": ("tests/builder/test_fingerprint.py",),
    "codecs/pillow_resize.py": ("tests/codecs/test_pillow_resize.py", "tests/datasets/reading/test_resample.py"),
    "codecs/pillow_color.py": ("tests/codecs/test_pillow_color.py", "tests/datasets/reading/test_stored_image.py"),
    "codecs/jpeg/segments.py": (*JPEG, "tests/store/test_hostile_sizes.py", "tests/codecs/test_transcode.py"),
    "codecs/jpeg/metadata.py": (*JPEG, "tests/codecs/test_transcode.py"),
    "codecs/jpeg/tiles.py": (
        *JPEG,
        "tests/codecs/test_recoding.py",
        "tests/codecs/test_jpeg_decoder.py",
        "tests/store/test_hostile_sizes.py",
    ),
    "codecs/jpeg/decoder.py": (
        "tests/codecs/test_self_check.py",
        "tests/codecs/test_fingerprint.py",
        "tests/codecs/test_jpeg_decoder.py",
        "tests/codecs/test_recoding.py",
        *JPEG,
    ),
    "datasets/reading/order.py": (*ORDER, "tests/datasets/test_subsets.py", "tests/datasets/test_loader.py"),
    "datasets/reading/draws.py": ORDER,
}
"""Tests of each module, most sensitive ones first; the first matching pattern applies."""

HARMLESS = Path(__file__).with_name("harmless.txt")
HEAVY = ("torch", "torch.utils.data", "pyarrow.parquet", "hypothesis", "cv2", "lmdb", "simplejpeg", "PIL.Image")
"""Modules to import once before forking, since no mutant changes them."""

SECONDS, WHOLE_S = 100, 1200
"""Time limits for the tests that run a mutant, and for all tests of a module. A mutant that exceeds them is noticed."""


Covering = dict[str, dict[int, list[str]]]
"""For each module, the tests that run each line."""


class Mutant(NamedTuple):
    """Change of one place.

    Attributes:
        module: its path in the package.
        operator: the name of an operator of cosmic-ray.
        occurrence: the index of the place among those to which the operator applies.
        line: the line of the place.
    """

    module: str
    operator: str
    occurrence: int
    line: int


def modules(patterns: list[str]) -> list[str]:
    found = {path.relative_to(PACKAGE).as_posix() for tested in TESTS for path in PACKAGE.glob(tested)}
    return sorted(name for name in found if not patterns or any(fnmatch(name, f"*{pattern}") for pattern in patterns))


def ignored(source: str) -> set[tuple[int, int]]:
    """Return each (line, column) whose change has no effect: annotations, which are not evaluated, and ``strict=`` and
    ``frozen=``, which only catch programming errors."""
    places = set()
    for node in ast.walk(ast.parse(source)):
        found = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.keyword) and node.arg in ("strict", "frozen"):
            found.append(node.value)
        for part in (part for root in found if root for part in ast.walk(root)):
            if isinstance(part, ast.expr):
                lines = range(part.lineno, (part.end_lineno or part.lineno) + 1)
                places |= {(line, column) for line in lines for column in range(part.col_offset, part.end_col_offset)}
    return places


def mutants(module: str, seed: int) -> Iterator[Mutant]:
    """Yield one mutant for each place that can be changed. It stays the same as long as the line does."""
    source = (PACKAGE / module).read_text("utf-8")
    tree, skipped = get_ast(source), ignored(source)
    places: dict[tuple[int, int], list[Mutant]] = {}
    for name in cosmic_ray.plugins.operator_names():
        operator = cosmic_ray.plugins.get_operator(name)
        if operator.arguments() or name == "core/ExceptionReplacer":  # fails at names with a dot
            continue
        positions = (begin for node in ast_nodes(tree) for begin, _ in operator().mutation_positions(node))
        for occurrence, begin in enumerate(positions):
            if begin not in skipped:
                places.setdefault(begin, []).append(Mutant(module, name, occurrence, begin[0]))
    lines = source.splitlines()
    for line, column in sorted(places):
        draw = random.Random(f"{seed} {module} {column} {lines[line - 1]}")
        yield draw.choice(places[line, column])


def is_at(mutant: Mutant, place: str) -> bool:
    """Return whether a mutant is at a ``MODULE`` or ``MODULE:LINE``."""
    module, _, line = place.partition(":")
    return fnmatch(mutant.module, f"*{module}") and (not line or int(line) == mutant.line)


def tests_of(module: str) -> tuple[str, ...]:
    return next(tests for pattern, tests in TESTS.items() if fnmatch(module, pattern))


def is_noticed(mutant: Mutant, tree: Path, covering: Covering) -> bool:
    """Return whether a test fails on the package in `tree` with this change, then undo the change. Run the tests that
    run the line, or all tests of the module if none is known to: for code that runs at import, once, or only in other
    processes."""
    path = tree / "presize" / mutant.module
    whole = path.read_text("utf-8")
    running = tests_that_run(mutant, whole, covering)
    path.write_text(changed(mutant, whole), "utf-8")
    try:
        return not (pass_on(tree, running, SECONDS) if running else pass_on(tree, tests_of(mutant.module), WHOLE_S))
    finally:
        path.write_text(whole, "utf-8")


def tests_that_run(mutant: Mutant, source: str, covering: Covering) -> tuple[str, ...]:
    """Return the tests that run any line of the changed statement; none for code that runs once in a process: at
    import, or in cached functions."""
    first = last = mutant.line
    in_function = is_cached = False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or 0
            if mutant.line <= end:
                first, last = node.lineno, end
            elif isinstance(node, ast.FunctionDef):
                in_function = True
                is_cached |= any("cache" in ast.unparse(decorator) for decorator in node.decorator_list)
    runs = covering.get(mutant.module, {}) if in_function and not is_cached else {}
    return tuple(dict.fromkeys(test for line in range(first, last + 1) for test in runs.get(line, ())))


def pass_on(tree: Path, tests: tuple[str, ...], seconds: float, coverage_of: Path | None = None) -> bool:
    """Return whether these tests pass, in time, on the package in `tree`. They run in a fork of this process, which has
    already imported the slow dependencies."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os._exit(run_tests(tree, tests, coverage_of))
        finally:
            os._exit(1)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status == 0
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that its tests left behind


class _Contexts:
    """Plug-in of pytest that sets coverage's context to the running test."""

    def __init__(self, found: coverage.Coverage) -> None:
        self._found = found

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._found.switch_context(nodeid)


def run_tests(tree: Path, tests: tuple[str, ...], coverage_of: Path | None) -> int:
    """Run pytest and return its exit code. If `coverage_of` is given, write the Covering of these tests to it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.chdir(REPOSITORY)
    os.environ["PYTHONPATH"] = str(tree)
    for name in [name for name in sys.modules if name.split(".")[0] == "presize"]:
        del sys.modules[name]
    sys.path.insert(0, str(tree))
    plugins = (f"no:{name}" for name in ("cacheprovider", "xdist", "anyio"))
    options = ["-x", "-q", "--assert=plain", *(word for plugin in plugins for word in ("-p", plugin)), "-m", "not slow"]
    options += dict.fromkeys(tests)
    if coverage_of is None:
        return int(pytest.main(options))
    found = coverage.Coverage(data_file=None, config_file=False, source=[str(tree / "presize")])
    found.start()
    code = int(pytest.main(options, plugins=[_Contexts(found)]))
    found.stop()
    data = found.get_data()
    covering = {
        Path(file).relative_to(tree / "presize").as_posix(): {
            line: [test for test in tests if test] for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    coverage_of.write_text(json.dumps(covering))
    return code


def changed(mutant: Mutant, whole: str) -> str:
    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    return str(mutate_code(whole, operator, mutant.occurrence))


def difference(mutant: Mutant) -> str:
    """Return the lines before and after."""
    whole = (PACKAGE / mutant.module).read_text("utf-8")
    lines = list(difflib.unified_diff(whole.splitlines(), changed(mutant, whole).splitlines(), lineterm="", n=0))
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def harmless() -> set[tuple[str, str]]:
    """Read the module and difference of each mutant in tools/harmless.txt: a line with the module, then for each mutant
    the lines before and after, indented, and the reason why it is harmless."""
    found = set()
    module, lines = "", list[str]()
    for line in [*HARMLESS.read_text("utf-8").splitlines(), ""]:
        if re.match(r" {4}[-+]", line):
            lines.append(line)
            continue
        if lines:
            found.add((module, "\n".join(lines)))
        module, lines = (line if line.endswith(".py") else module), []
    return found


_tree = Path()
"""Tree of this worker process."""


def copy_package(place: str) -> None:
    """Copy the package for this worker process."""
    global _tree
    _tree = Path(place, str(os.getpid()))
    shutil.copytree(PACKAGE, _tree / "presize")


def tried(mutant: Mutant, covering: Covering) -> tuple[Mutant, bool]:
    return mutant, is_noticed(mutant, _tree, covering)


def covered(tests: tuple[str, ...]) -> Covering | None:
    """Return which tests run which lines; None if they fail on the unchanged package."""
    file = _tree / "covering.json"
    if not pass_on(_tree, tests, 2 * WHOLE_S, file):
        return None
    found = json.loads(file.read_text())
    return {module: {int(line): runs for line, runs in lines.items()} for module, lines in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "places", nargs="*", metavar="MODULE[:LINE]", help="a module such as store/dealing.py, or a line; default: all"
    )
    parser.add_argument(
        "--all-tests", action="store_true", help="run all tests of a module, not only those that run the changed line"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="try N random mutants; default: all")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed; default: 0")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes; default: all cores")
    options = parser.parse_args()
    known = harmless()
    all_of_them = [
        mutant
        for module in modules([place.partition(":")[0] for place in options.places])
        for mutant in mutants(module, options.seed)
        if not options.places or any(is_at(mutant, place) for place in options.places)
    ]
    found = [mutant for mutant in all_of_them if (mutant.module, difference(mutant)) not in known]
    chosen = (
        found if options.sample is None else random.Random(options.seed).sample(found, min(options.sample, len(found)))
    )
    survived = 0
    sys.dont_write_bytecode = True  # Python would not notice a change within the same second
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in HEAVY:
        importlib.import_module(name)
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory() as place,
        ProcessPoolExecutor(options.jobs, fork, copy_package, (place,)) as pool,
    ):
        sets = sorted({tests_of(mutant.module) for mutant in chosen if not options.all_tests})
        coverings: dict[tuple[str, ...], Covering] = {}
        for tests, covering in zip(sets, pool.map(covered, sets), strict=True):
            if covering is None:
                raise SystemExit(f"{' '.join(tests)}: these tests fail on the unchanged package")
            coverings[tests] = covering
        waiting = []
        for mutant in chosen:
            runs = coverings.get(tests_of(mutant.module), {}).get(mutant.module, {})
            waiting.append(pool.submit(tried, mutant, {mutant.module: runs}))
        for number, ended in enumerate(as_completed(waiting)):
            mutant, noticed = ended.result()
            print(f"{number + 1} of {len(chosen)}: {mutant.module}:{mutant.line}", file=sys.stderr)
            if not noticed:
                survived += 1
                name = mutant.operator.removeprefix("core/")
                print(f"{mutant.module}:{mutant.line}: {name}\n{difference(mutant)}", flush=True)
    print(
        f"{len(all_of_them)} mutants, {len(all_of_them) - len(found)} known to be harmless, {len(chosen)} tried: "
        f"{len(chosen) - survived} noticed, {survived} survived"
    )


if __name__ == "__main__":
    main()
