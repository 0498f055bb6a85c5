"""Mutation testing: does a test notice when one token of a module changes?

    python tools/mutants.py [--sample N] [--seed N] [--jobs N] [MODULE ...]

Changes a copy of the installed package, one place at a time, by an operator of cosmic-ray drawn at random, and runs the
tests of that module on it. Prints each mutant that no test noticed: test what it does, or say in tools/harmless.txt why
it does no harm.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.plugins
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

import presize

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = Path(presize.__file__).resolve().parent
JPEG = (
    "tests/codecs/test_jpeg_segments.py",
    "tests/codecs/test_jpeg_tiles.py",
    "tests/datasets/reading/test_regions.py",
)
ORDER = ("tests/datasets/reading/test_order.py", "tests/datasets/test_sampler.py")
STORE = ("tests/store", "tests/build/test_plan.py", "tests/datasets/test_lmdb_dataset.py")
TESTS = {
    "build/derive.py": ("tests/build/test_derive.py",),
    "build/inputs.py": ("tests/build/test_derive.py",),
    "build/tasks/resized.py": ("tests/build/test_derive.py",),
    "store/dealing.py": ("tests/build/test_plan.py",),
    "store/export/__init__.py": ("tests/store/test_export.py",),
    "store/export/exported.py": ("tests/store/test_export.py", "tests/store/test_export_tar.py"),
    "store/export/to_folder.py": ("tests/store/test_export.py",),
    "store/export/to_parquet.py": ("tests/store/test_export_parquet.py",),
    "store/export/to_tar.py": ("tests/store/test_export_tar.py",),
    "store/filenames.py": ("tests/store/test_filenames.py", "tests/store/test_export.py"),
    "store/manifest.py": ("tests/store/test_manifest.py", "tests/store/test_verify.py"),
    "store/rejects.py": ("tests/store/test_rejects.py", "tests/build/test_update.py"),
    "store/shard.py": ("tests/store/test_shard.py", *STORE),
    "store/shard_pages.py": ("tests/store/test_shard_pages.py", *STORE),
    "store/verify.py": ("tests/store/test_verify.py", *STORE),
    "store/*.py": STORE,
    "codecs/jpeg_segments.py": (*JPEG, "tests/store/test_hostile_sizes.py", "tests/codecs/test_transcode.py"),
    "codecs/jpeg_metadata.py": (*JPEG, "tests/codecs/test_transcode.py"),
    "codecs/jpeg_*.py": (*JPEG, "tests/codecs/test_jpeg_decoder.py", "tests/store/test_hostile_sizes.py"),
    "datasets/reading/order.py": (*ORDER, "tests/datasets/test_subsets.py", "tests/datasets/test_loader.py"),
    "datasets/reading/permutation.py": ORDER,
}
"""The modules, and what tests each, the likeliest to notice first: the first pattern that fits counts."""

HARMLESS = Path(__file__).with_name("harmless.txt")
HEAVY = ("torch", "torch.utils.data", "pyarrow.parquet", "hypothesis", "cv2", "lmdb", "simplejpeg", "PIL.Image")
"""What tests import and no mutant changes."""

SECONDS = 300
"""A mutant whose tests take longer hangs, which is noticed."""


class Mutant(NamedTuple):
    """A change of one place.

    Attributes:
        module: from the package.
        operator: of cosmic-ray.
        occurrence: which of the places to which the operator applies.
        line: of the place.
    """

    module: str
    operator: str
    occurrence: int
    line: int


def modules(patterns: list[str]) -> list[str]:
    found = {path.relative_to(PACKAGE).as_posix() for tested in TESTS for path in PACKAGE.glob(tested)}
    return sorted(name for name in found if not patterns or any(fnmatch(name, f"*{pattern}") for pattern in patterns))


def ignored(source: str) -> set[tuple[int, int]]:
    """The (line, column) of all that never runs: annotations, which are not evaluated."""
    places = set()
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            note = getattr(node, name, None)
            for part in ast.walk(note) if isinstance(note, ast.AST) else ():
                if isinstance(part, ast.expr):
                    lines = range(part.lineno, (part.end_lineno or part.lineno) + 1)
                    places |= {
                        (line, column) for line in lines for column in range(part.col_offset, part.end_col_offset)
                    }
    return places


def mutants(module: str, draw: random.Random) -> Iterator[Mutant]:
    """One for each place that can be changed."""
    source = (PACKAGE / module).read_text("utf-8")
    tree, skipped = get_ast(source), ignored(source)
    places: dict[tuple[int, int], list[Mutant]] = {}
    for name in cosmic_ray.plugins.operator_names():
        operator = cosmic_ray.plugins.get_operator(name)
        if operator.arguments():
            continue
        positions = (begin for node in ast_nodes(tree) for begin, _ in operator().mutation_positions(node))
        for occurrence, begin in enumerate(positions):
            if begin not in skipped:
                places.setdefault(begin, []).append(Mutant(module, name, occurrence, begin[0]))
    return (draw.choice(places[place]) for place in sorted(places))


def tests_of(module: str) -> tuple[str, ...]:
    return next(tests for pattern, tests in TESTS.items() if fnmatch(module, pattern))


def is_noticed(mutant: Mutant, tree: Path) -> bool:
    """Whether a test fails on the package in `tree` with this change, which is then undone."""
    path = tree / "presize" / mutant.module
    whole = path.read_text("utf-8")
    path.write_text(changed(mutant, whole), "utf-8")
    try:
        return not pass_on(tree, tests_of(mutant.module))
    finally:
        path.write_text(whole, "utf-8")


def pass_on(tree: Path, tests: tuple[str, ...]) -> bool:
    """Whether these tests pass, in time, on the package in `tree`. They run in a copy of this process, which has
    imported all that takes long, and nothing of the package but this script's own."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os._exit(run_tests(tree, tests))
        finally:
            os._exit(1)
    deadline = time.monotonic() + SECONDS
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
            os.killpg(child, signal.SIGKILL)  # what its tests have left


def run_tests(tree: Path, tests: tuple[str, ...]) -> int:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.chdir(REPOSITORY)
    os.environ["PYTHONPATH"] = str(tree)
    for name in [name for name in sys.modules if name.split(".")[0] == "presize"]:
        del sys.modules[name]
    sys.path.insert(0, str(tree))
    plugins = (f"no:{name}" for name in ("cacheprovider", "xdist", "anyio"))
    options = ("-x", "-q", "--assert=plain", *(word for plugin in plugins for word in ("-p", plugin)), "-m", "not slow")
    return int(pytest.main([*options, *dict.fromkeys(tests)]))


def changed(mutant: Mutant, whole: str) -> str:
    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    return str(mutate_code(whole, operator, mutant.occurrence))


def difference(mutant: Mutant, whole: str) -> str:
    """The lines before and after."""
    lines = list(difflib.unified_diff(whole.splitlines(), changed(mutant, whole).splitlines(), lineterm="", n=0))
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def harmless() -> set[tuple[str, str]]:
    """Module and difference of each mutant in tools/harmless.txt: the module on a line of its own, the lines before and
    after, indented, and then in which way it does no harm."""
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
"""That of a worker process."""


def copy_package(place: str) -> None:
    """Give this worker process a tree of its own."""
    global _tree
    _tree = Path(place, str(os.getpid()))
    shutil.copytree(PACKAGE, _tree / "presize")


def tried(mutant: Mutant) -> tuple[Mutant, bool]:
    return mutant, is_noticed(mutant, _tree)


def pass_unchanged(tests: tuple[str, ...]) -> bool:
    return pass_on(_tree, tests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as store/dealing.py; all by default")
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the drawing; 0 by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes; all cores by default")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    found = [mutant for module in modules(options.modules) for mutant in mutants(module, draw)]
    chosen = found if options.sample is None else draw.sample(found, min(options.sample, len(found)))
    known, counts = harmless(), Counter[str]()
    sys.dont_write_bytecode = True  # a change within a second would not be seen
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in HEAVY:
        importlib.import_module(name)
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory() as place,
        ProcessPoolExecutor(options.jobs, fork, copy_package, (place,)) as pool,
    ):
        sets = sorted({tests_of(mutant.module) for mutant in chosen})
        for tests, passed in zip(sets, pool.map(pass_unchanged, sets), strict=True):
            if not passed:
                raise SystemExit(f"{' '.join(tests)}: fail without any change")
        for number, ended in enumerate(as_completed([pool.submit(tried, mutant) for mutant in chosen])):
            mutant, noticed = ended.result()
            print(f"{number + 1} of {len(chosen)}: {mutant.module}:{mutant.line}", file=sys.stderr)
            lines = difference(mutant, (PACKAGE / mutant.module).read_text("utf-8"))
            outcome = "noticed" if noticed else "harmless" if (mutant.module, lines) in known else "survived"
            counts[outcome] += 1
            if outcome == "survived":
                print(f"{mutant.module}:{mutant.line}: {mutant.operator.removeprefix('core/')}\n{lines}", flush=True)
    print(
        f"{len(found)} mutants, {len(chosen)} tried: {counts['noticed']} noticed, {counts['harmless']} known to be "
        f"harmless, {counts['survived']} survived"
    )


if __name__ == "__main__":
    main()
