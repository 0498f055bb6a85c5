"""The documentation is true: its commands and its programs run as they are written."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builds import SERIAL, SMALL
from presize.build.run import build_dataset
from presize.cli import cli
from presize.sources.sample import SampleOptions, make_samples
from presize.store.index import INDEX_COLUMNS
from presize.store.manifest import read_manifest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """The presize commands in the console blocks of a page, in order."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [line[2:] for line in lines if line.startswith("$ presize ")]


TRAINING = next(block for block in blocks(ROOT / "README.md", "python") if "DataLoader" in block)
PROGRAMS = [
    (page, number) for page in PAGES for number, block in enumerate(blocks(page, "python")) if block != TRAINING
]


# In one process: what they import takes as long as what they do.
IN_TURN = """
import shlex, sys
from presize.cli import main

for command in sys.argv[1:]:
    print("$", command, file=sys.stderr)
    try:
        main(shlex.split(command)[1:])
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of all pages have been run, each once, in order, the README's first."""
    folder = tmp_path_factory.mktemp("docs")
    make_samples(folder / "RAW", SampleOptions(images=64, classes=3, long_side=420))
    photos = sorted(path.relative_to(folder / "RAW").as_posix() for path in (folder / "RAW").rglob("*.jpg"))[:9]
    table = "".join(f"{path},{'even' if i % 2 else 'odd'}\n" for i, path in enumerate(photos))
    (folder / "labels.csv").write_text(f"path,label\n{table}")
    all_commands = dict.fromkeys(command for page in PAGES for command in commands(page))
    ran = subprocess.run(
        [sys.executable, "-c", IN_TURN, *all_commands], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return folder


def test_the_readme_shows_every_command(place: Path) -> None:
    shown = {shlex.split(command)[1] for command in commands(ROOT / "README.md")}
    assert shown | {"sample"} == set(cli.commands)
    assert (place / "SIZES" / "160" / "manifest.json").exists()


@pytest.mark.parametrize(("page", "number"), PROGRAMS, ids=[f"{page.stem}-{number}" for page, number in PROGRAMS])
def test_a_program_runs_as_written(page: Path, number: int, place: Path) -> None:
    program = place / f"{page.stem}_{number}.py"
    program.write_text(blocks(page, "python")[number])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", program], cwd=place, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_readme_trains_for_two_epochs(place: Path) -> None:
    program = place / "train.py"
    program.write_text(TRAINING)
    ran = subprocess.run([sys.executable, program], cwd=place, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"epoch 0: loss \d+\.\d+\nepoch 1: loss \d+\.\d+\n", ran.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_format_page_lists_every_column_of_the_index() -> None:
    page = (ROOT / "docs" / "format.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in INDEX_COLUMNS)


def test_the_format_page_tells_all_that_is_left_out(place: Path) -> None:
    page = (ROOT / "docs" / "format.md").read_text("utf-8")
    assert all(f"`{name}` (" in page for name in read_manifest(place / "OUT").left_out)


@pytest.mark.parametrize("classes", [3, 0], ids=["classes", "no classes"])
def test_the_demo_reads_any_folder_of_images(classes: int, tmp_path: Path) -> None:
    photos = tmp_path / "raw"
    make_samples(photos, SampleOptions(images=12, classes=max(classes, 1), long_side=160, broken=2))
    if not classes:
        (only,) = photos.iterdir()
        photos = only
    build_dataset(photos, tmp_path / "lmdb", SMALL, SERIAL)
    build_dataset(photos, tmp_path / "folder", replace(SMALL, layout="folder"), SERIAL)
    places = [photos, tmp_path / "folder", tmp_path / "lmdb"]
    ran = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo.py", *places], cwd="/", capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "of 10 images" in ran.stdout
    variants = re.findall(r"^  (\S.*?) +[\d,]+ images/s +[\d.]+ x$", ran.stdout, re.MULTILINE)
    assert variants == ["raw folder", "presized folder", "LMDBDataset", "LMDBDataset, crop=", "Loader"]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_clean_removes_no_folder_that_was_named_to_it() -> None:
    named = [f"{name}=precious" for name in ("DEMO", "VENV", "SRC")]
    ran = subprocess.run(["make", "-n", "clean", *named], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "rm -rf .venv demo " in ran.stdout
    assert "precious" not in ran.stdout


def test_the_readme_holds_no_placeholder() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert not [line for line in lines if re.fullmatch(r"[A-Z_]+", line)]
