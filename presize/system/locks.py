"""Locks on files, which end with the process that holds them, however that ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.02


@contextmanager
def file_lock(path: Path, shared: bool = False, patience_s: float = 0.0) -> Iterator[int]:
    """Hold a lock (flock) on `path`, which is made when it is absent, and stays.

    Args:
        path: the file.
        shared: with others who hold it so; otherwise alone.
        patience_s: how long to wait until others have released it.

    Yields:
        The descriptor.

    Raises:
        BlockingIOError: others hold it.
        OSError: the file cannot be made, or its file system has no locks.
    """
    deadline = time.monotonic() + patience_s
    held = _open(path)
    try:
        while True:
            try:
                fcntl.flock(held, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)
                continue
            if _is_still(path, held):
                break
            os.close(held)  # its holder has ended and removed the file between the two calls
            held = -1
            held = _open(path)
        yield held
    finally:
        if held >= 0:
            os.close(held)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


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
