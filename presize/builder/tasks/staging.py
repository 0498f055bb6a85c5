"""Records as image files, staged under hidden names until all of them are written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from presize.errors import BuildError
from presize.system.files import writing


def staged_path(root: Path, file: str, sample: int) -> Path:
    """Return the path of a file until the build is published: hidden beside its final path, without an image suffix."""
    return (root / file).with_name(f".{sample:09d}.tmp")


def stage(root: Path, file: str, sample: int, value: bytes) -> None:
    path = staged_path(root, file, sample)
    with writing(root / file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)


def unstage(root: Path, file: str, sample: int) -> None:
    """Give a staged file its name. One that is no longer staged has it already."""
    with writing(root / file), suppress(FileNotFoundError):
        os.replace(staged_path(root, file, sample), root / file)


def read(root: Path, file: str, sample: int) -> bytes:
    """The content of a file that is staged or has its name already."""
    for path in (staged_path(root, file, sample), root / file):
        with suppress(FileNotFoundError):
            return path.read_bytes()
    raise BuildError(f"{root / file} has gone; run again to rebuild it")


def is_written(root: Path, file: str, sample: int, nbytes: int, publishing: bool) -> bool:
    """True when a file of `nbytes` is staged or, once the build is `publishing`, has its name."""
    paths = [staged_path(root, file, sample), root / file][: 1 + publishing]
    return any(path.is_file() and path.stat().st_size == nbytes for path in paths)


_STAGED = re.compile(r"\.\d{9,}\.tmp", re.ASCII)


def remove_staged(root: Path) -> None:
    """Remove what an abandoned build has staged under `root`. Raises OSError when a folder cannot be listed."""

    def fail(error: OSError) -> None:
        raise error

    walk = os.walk(root, onerror=fail) if root.is_dir() else ()
    found = (os.path.join(folder, name) for folder, _, names in walk for name in names)
    remove_files(root, [os.path.relpath(path, root) for path in found if _STAGED.fullmatch(os.path.basename(path))])


def remove_files(root: Path, files: Iterable[str]) -> None:
    """Remove files below `root`, and folders that become empty: ImageFolder would take those for classes."""
    names = set()
    with writing(root):
        for file in files:
            (root / file).unlink(missing_ok=True)
            names.add(os.path.dirname(file))
        folders = {folder for name in names for folder in (Path(name), *Path(name).parents)} - {Path()}
        for folder in sorted(folders, reverse=True):  # what lies deeper comes first
            remove_if_empty(root / folder)


def remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not os.listdir(folder):
        folder.rmdir()
