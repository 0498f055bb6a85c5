"""Temporary folders that do not outlive their owners for long."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from presize.system.files import names_in


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A new folder, removed with the block. Those with its prefix that killed processes of this user have left, on
    which nobody holds a lock (flock), are removed first."""
    place = Path(tempfile.gettempdir())
    for name in names_in(place):
        if name.startswith(prefix):
            _remove_if_left(place / name)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):  # another process took it for one that was left
            held = _open(folder)
            with suppress(OSError):  # the file system has no locks: no other process will take it away
                fcntl.flock(held, fcntl.LOCK_EX)
            if folder.exists():
                break
            os.close(held)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # it has an owner, or belongs to another user
        held = _open(folder)
        try:
            if os.fstat(held).st_uid == os.geteuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)
