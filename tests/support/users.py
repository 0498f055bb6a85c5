"""Other users of the machine, and folders that they share; and file systems without locks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GROUP = 12_345
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be another user")


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder of GROUP, and so is all that is made in it. Not in pytest's, which nobody else may enter."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        folder = Path(above, "shared")
        folder.mkdir()
        os.chown(folder, 0, GROUP)
        folder.chmod(0o2770)
        yield folder


@contextmanager
def user(number: int, umask: int = 0o007) -> Iterator[None]:
    """What runs in the block runs as a user of GROUP."""
    groups, before = os.getgroups(), os.umask(umask)
    os.setgroups([])
    os.setegid(GROUP)
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(before)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root is stopped by the modes of files, too, in this thread: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    header, before, now = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None)
    libc.capget(header, before)
    libc.capget(header, now)
    now[0] &= ~0b110
    libc.capset(header, now)
    try:
        yield
    finally:
        libc.capset(header, before)


def without_locks(patch: pytest.MonkeyPatch, number: int = errno.ENOSYS) -> None:
    """Let flock fail as it does on Lustre that was mounted without -o flock."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", flock)
