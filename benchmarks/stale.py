"""Results that are older than the code that they measure, and a way to measure them again.

    python benchmarks/stale.py [--run PHOTOS=DIR LARGE=DIR FFCV_ENV=DIR ...]

Changed comments, docstrings and `raise` statements do not count. --run repeats stale measurements by the commands on
their pages, in which the given folders and environments replace the words in capitals, and lists failures at the end.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORED = (
    "presize/codecs/arrays.py presize/codecs/jpeg presize/codecs/pillow_color.py presize/codecs/*resize.* "
    "presize/codecs/stored_value.py presize/store/dataset.py presize/store/index.py presize/store/manifest.py "
    "presize/store/shard*.py "
)
"""The code that reads and decodes stored images."""
CODE = {
    "building": "presize/builder presize/sources presize/codecs presize/store",
    "reading": STORED + ":(glob)datasets/*.py datasets/reading",
    "remote": "datasets/reading presize/remote presize/store",
    "scale": "datasets/reading presize/builder presize/sources presize/store",
    "storage": "presize/store/shard*.py presize/system/pagecache.py presize/system/storage.py",
    "training": STORED + "datasets presize/measure :(exclude)presize/measure/watch.py",
    "training/predict": STORED + "datasets :(exclude)datasets/applied.py :(exclude)datasets/fuse.py "
    "presize/measure :(exclude)presize/measure/watch.py",
    "training/watched": "presize/measure/watch.py",
    "transcoding/crops": "datasets/crops.py datasets/reading/regions.py presize/codecs/*pillow_resize.*",
    "transcoding/jpeg-decoder": "presize/codecs/jpeg",
    "transcoding/resizers": "presize/codecs/*resize.*",
}
"""The code of presize that the scripts of each folder, or the script of one CSV, measure."""
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
WORD = re.compile(r"\b[A-Z][A-Z0-9_]+\b")


def pages() -> set[str]:
    """Return the folders whose scripts measure code of presize."""
    return {name.partition("/")[0] for name in CODE}


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, encoding="utf-8").stdout


@cache
def code_of(root: Path, blob: str, is_python: bool) -> str:
    """Return the code of a Python or C file, to compare it without what does not change a figure."""
    text = git(root, "cat-file", "blob", blob)
    if not is_python:
        return "".join("".join(C_COMMENT.split(text)).split())
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            node.exc = None
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return ast.dump(tree)


def age(root: Path, csv: str, code: str) -> tuple[str, int, int]:
    """Return commit and date of a CSV, and how many commits and lines have changed the code since."""
    measured = git(root, "log", "-1", "--format=%h %cs", "--", csv).strip()
    if not measured or git(root, "status", "--porcelain", "--", csv):
        return "not committed", 0, 0
    since, changed = measured.split()[0], {}
    listed = git(root, "diff", "--raw", "--numstat", "--no-abbrev", "--no-renames", since, "HEAD", "--", *code.split())
    facts = {path: words.split() for words, path in re.findall(r"^:(.*)\t(.*)", listed, re.MULTILINE)}
    for lines, more, path in re.findall(r"^(\d+)\t(\d+)\t(.*\.(?:py|c|h))$", listed, re.MULTILINE):
        *_, before, after, kind = facts[path]
        is_python = path.endswith(".py")
        if kind != "M" or code_of(root, before, is_python) != code_of(root, after, is_python):
            changed[path] = int(lines) + int(more)
    commits = git(root, "log", "--format=%h", f"{since}..HEAD", "--", *changed).split() if changed else []
    return measured, len(commits), sum(changed.values())


def commands(folder: Path) -> dict[str, str]:
    """Return the commands of a page by the names of the CSVs that they write; the first one if there are several."""
    found: dict[str, str] = {}
    page = (folder / "README.md").read_text("utf-8").replace("\\\n", "")
    for command in re.findall(rf"^    python benchmarks/{folder.name}/(\w+\.py.*?)(?:  #.*)?$", page, re.MULTILINE):
        named = re.search(r"--csv \S*/(.*)\.csv", command)
        found.setdefault(named[1] if named else command.partition(".py")[0].replace("_", "-"), command)
    return found


def run(csv: Path, command: str, given: dict[str, str]) -> str:
    """Measure, and return why it failed, or ""."""
    missing = sorted(set(WORD.findall(command)) - given.keys())
    if missing or not command:
        return f"needs {', '.join(missing) or 'more than a command, see its page'}"
    script, *arguments = (WORD.sub(lambda word: given[word[0]], each) for each in command.split())
    code = subprocess.run([sys.executable, csv.parents[1] / script, *arguments, "--csv", csv], check=False).returncode
    return f"exit code {code}" if code else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", metavar="WORD=DIR")
    words, stale = parser.parse_args().run or [], []
    for word in words:
        if "=" not in word:
            parser.error(f"--run: expected WORD=DIR, such as PHOTOS=photos, got {word}")
    print(f"{'CSV':32} {'measured':20} {'commits since':>13} {'lines changed':>13}")
    for csv in sorted(path for name in pages() for path in (ROOT / "benchmarks" / name).glob("results/*.csv")):
        folder = csv.parents[1]
        code = CODE.get(f"{folder.name}/{csv.stem}") or CODE[folder.name]
        measured, commits, lines = age(ROOT, csv.relative_to(ROOT).as_posix(), code)
        print(f"{folder.name}/{csv.stem:{31 - len(folder.name)}} {measured:20} {commits:13,} {lines:13,}", flush=True)
        stale += [csv] if lines else []
    if words:
        given = dict(word.split("=", 1) for word in words)
        ran = {csv.stem: run(csv, commands(csv.parents[1]).get(csv.stem, ""), given) for csv in stale}
        sys.exit("\n".join(f"{name}: {why}" for name, why in ran.items() if why) or 0)


if __name__ == "__main__":
    main()
