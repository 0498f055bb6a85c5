"""Other users of the machine, shared folders, and file systems without locks."""

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
    """Yield a folder of GROUP, which its new files inherit. It is not in pytest's folder, which no other user may
    enter."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        folder = Path(above, "shared")
        folder.mkdir()
        os.chown(folder, 0, GROUP)
        folder.chmod(0o2770)
        yield folder


@contextmanager
def user(number: int, umask: int = 0o007) -> Iterator[None]:
    """Run the block as a user of GROUP."""
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
    """Apply file modes to root, too, in this thread: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
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
    """Let flock fail as on Lustre mounted without -o flock."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", flock)
