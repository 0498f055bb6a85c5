"""Stages records as image files under hidden names, until all of them are written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from presize.errors import BuildError
from presize.system.files import writing


def staged_path(root: Path, file: str, sample: int) -> Path:
    """Return the path of a file until it is published: hidden, next to its final path, without an image suffix."""
    return (root / file).with_name(f".{sample:09d}.tmp")


def stage(root: Path, file: str, sample: int, value: bytes) -> None:
    path = staged_path(root, file, sample)
    with writing(root / file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)


def unstage(root: Path, file: str, sample: int) -> None:
    """Rename a staged file to its final name. A file that is no longer staged has it already."""
    with writing(root / file), suppress(FileNotFoundError):
        os.replace(staged_path(root, file, sample), root / file)


def read(root: Path, file: str, sample: int) -> bytes:
    """Return the content of a file that is staged or already has its final name."""
    for path in (staged_path(root, file, sample), root / file):
        with suppress(FileNotFoundError):
            return path.read_bytes()
    raise BuildError(f"{root / file} is missing; run again to rebuild it")


def is_written(root: Path, file: str, sample: int, nbytes: int, publishing: bool) -> bool:
    """Return True if a file of `nbytes` is staged or, if the build is `publishing`, has its final name."""
    paths = [staged_path(root, file, sample), root / file][: 1 + publishing]
    return any(path.is_file() and path.stat().st_size == nbytes for path in paths)


_STAGED = re.compile(r"\.\d{9,}\.tmp", re.ASCII)


def remove_staged(root: Path) -> None:
    """Remove all staged files of an abandoned build under `root`. Raises OSError if a folder cannot be listed."""

    def fail(error: OSError) -> None:
        raise error

    walk = os.walk(root, onerror=fail) if root.is_dir() else ()
    found = (os.path.join(folder, name) for folder, _, names in walk for name in names)
    remove_files(root, [os.path.relpath(path, root) for path in found if _STAGED.fullmatch(os.path.basename(path))])


def remove_files(root: Path, files: Iterable[str]) -> None:
    """Remove files below `root`, and folders that become empty, which ImageFolder would take for classes."""
    names = set()
    with writing(root):
        for file in files:
            (root / file).unlink(missing_ok=True)
            names.add(os.path.dirname(file))
        folders = {folder for name in names for folder in (Path(name), *Path(name).parents)} - {Path()}
        for folder in sorted(folders, reverse=True):  # subfolders first
            remove_if_empty(root / folder)


def remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not os.listdir(folder):
        folder.rmdir()
