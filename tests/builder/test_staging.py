"""Image files of a folder dataset: written under hidden names, renamed once all are there, removed without a trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from presize.builder.tasks.staging import remove_files, remove_staged, stage, unstage
from presize.errors import BuildError

LONG = "x" * 251 + ".jpg"
LOOK_STAGED = ["000000001.tmp", ".000000001.tmp.jpg", ".1.tmp", ".000000001.tmp\n", "a/.x000000001.tmp"]


def tree(root: Path) -> dict[str, bytes]:
    """The content of every file below a folder, and every empty folder, whose name ends with a slash."""
    paths = sorted(root.rglob("*"))
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths if path.is_file()}
    return files | {f"{path.relative_to(root)}/": b"" for path in paths if path.is_dir() and not os.listdir(path)}


def make(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x")


def stage_four(root: Path) -> None:
    for sample, file in enumerate(["1.jpg", "cats/1.jpg", "dogs/a/b/1.jpg", "birds/1.jpg"]):
        stage(root, file, sample, b"image")
    unstage(root, "birds/1.jpg", 3)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([lambda root: stage(root, LONG, 7, b"image"), lambda root: unstage(root, LONG, 7)], {LONG: b"image"}),
        ([stage_four, remove_staged], {"birds/1.jpg": b"image"}),
        ([lambda root: make(root, *LOOK_STAGED), remove_staged], dict.fromkeys(LOOK_STAGED, b"x")),
        (
            [
                lambda root: make(root, "1.jpg", "cats/1.jpg", "cats/2.jpg", "dogs/a/b/1.jpg", "dogs/a-b/1.jpg"),
                lambda root: (root / "empty class").mkdir(),
                lambda root: remove_files(
                    root, ["1.jpg", "cats/1.jpg", "dogs/a/b/1.jpg", "dogs/a-b/1.jpg", "gone.jpg"]
                ),
            ],
            {"cats/2.jpg": b"x", "empty class/": b""},
        ),
    ],
    ids=[
        "the longest name",
        "removed with the folders that it leaves empty",
        "others that look staged stay",
        "named files are removed with the folders that they leave empty",
    ],
)
def test_what_is_left_in_the_folder(
    steps: list[Callable[[Path], object]], left: dict[str, bytes], tmp_path: Path
) -> None:
    for step in steps:
        step(tmp_path)
    assert tree(tmp_path) == left


@pytest.mark.parametrize(
    ("there", "step", "message"),
    [
        ("1.jpg/2.jpg", lambda root: unstage(root, "1.jpg", 7), r"cannot write .*/1\.jpg: Is a directory"),
        ("cats", lambda root: stage(root, "cats/1.jpg", 7, b"image"), r"cannot write .*/cats/1\.jpg: File exists"),
        ("1.jpg/2.jpg", lambda root: remove_files(root, ["1.jpg"]), "Is a directory"),
    ],
    ids=["a folder has its name", "its folder is a file", "what is to be removed is a folder"],
)
def test_what_is_in_the_way_is_named(there: str, step: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    stage(tmp_path, "1.jpg", 7, b"image")
    make(tmp_path, there)
    with pytest.raises(BuildError, match=message):
        step(tmp_path)
