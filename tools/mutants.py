"""Mutation testing: does a test notice when one token of a module changes?

    python tools/mutants.py [--sample N] [--seed N] [MODULE ...]

Changes a copy of the installed package, one place at a time, by an operator of cosmic-ray drawn at random, and runs the
tests of that module on it. Prints each mutant that no test noticed: test what it does, or explain why it is harmless.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.plugins
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

SECONDS = 900
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
    """Whether these tests pass, in time, on the package in `tree`."""
    pytest = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow")
    try:
        ran = subprocess.run(
            [sys.executable, "-P", *pytest, *dict.fromkeys(tests)],  # -P: not the sources here, but PYTHONPATH
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode == 0


def changed(mutant: Mutant, whole: str) -> str:
    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    return str(mutate_code(whole, operator, mutant.occurrence))


def difference(mutant: Mutant, tree: Path) -> str:
    """The lines before and after."""
    whole = (tree / "presize" / mutant.module).read_text("utf-8")
    lines = list(difflib.unified_diff(whole.splitlines(), changed(mutant, whole).splitlines(), lineterm="", n=0))
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as store/dealing.py; all by default")
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the drawing; 0 by default")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    found = [mutant for module in modules(options.modules) for mutant in mutants(module, draw)]
    chosen = found if options.sample is None else draw.sample(found, min(options.sample, len(found)))
    counts: Counter[bool] = Counter()
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place)
        shutil.copytree(PACKAGE, tree / "presize")
        for tests in {tests_of(mutant.module) for mutant in chosen}:
            if not pass_on(tree, tests):
                raise SystemExit(f"{' '.join(tests)}: fail without any change")
        for number, mutant in enumerate(chosen):
            print(f"{number + 1} of {len(chosen)}: {mutant.module}:{mutant.line}", file=sys.stderr)
            noticed = is_noticed(mutant, tree)
            counts[noticed] += 1
            if not noticed:
                name = mutant.operator.removeprefix("core/")
                print(f"{mutant.module}:{mutant.line}: {name}\n{difference(mutant, tree)}", flush=True)
    print(f"{len(found)} mutants, {len(chosen)} tried: {counts[True]} noticed, {counts[False]} survived")


if __name__ == "__main__":
    main()
