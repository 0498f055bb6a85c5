"""Locks on files, which end with the process that holds them, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_lock(path: Path, shared: bool = False, wait: bool = False) -> Iterator[int]:
    """Hold a lock (flock) on `path`, which is made when it is absent, and stays.

    Args:
        path: the file.
        shared: with others who hold it so; otherwise alone.
        wait: until others have released it.

    Yields:
        The descriptor.

    Raises:
        BlockingIOError: others hold it, and `wait` is False.
        OSError: the file cannot be made, or its file system has no locks.
    """
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(held, mode)
        while not _is_still(path, held):  # its holder has ended and removed the file between the two calls
            os.close(held)
            held = -1
            held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(held, mode)
        yield held
    finally:
        if held >= 0:
            os.close(held)


def is_alone(held: int) -> bool:
    """Make a shared lock one that is held alone, if nobody shares it."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, held: int) -> bool:
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False
