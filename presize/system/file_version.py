"""Tells whether a path still leads to the same file, and whether that file has been changed."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path
from typing import NamedTuple

from presize.system.files import open_at_once
from presize.system.storage import read_mounts

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_RENUMBERING = {"exfat", "fuse", "msdos", "vfat"}
"""File systems that may number a forgotten file anew, as most kinds of FUSE do."""


class FileVersion(NamedTuple):
    """A file at a point in time. The device is left out: network file systems, btrfs and overlays get another with each
    mount.

    Attributes:
        nbytes, mtime_ns: size and time of the content, as all hosts see them.
        ctime_ns: when anything of it was changed, its name or a link to it included.
        inode: its number; 0 where the file system does not keep numbers.
        host: identifies the host that looked at it, from one boot to the next.
    """

    nbytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    host: str

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        inode = status.st_ino if _keeps_inodes(status.st_dev) else 0
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode, _host())

    @classmethod
    def at(cls, path: str) -> FileVersion:
        """Return the version of the file at `path` now. Opening makes NFS ask its server; stat() does not."""
        file = open_at_once(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls.of(os.fstat(file))
        finally:
            os.close(file)

    def same_as(self, other: FileVersion) -> bool:
        """Return whether both are the same content. Between hosts, size and modification time decide."""
        compared = 4 if self.host == other.host else 2
        return self[:compared] == other[:compared]


@functools.cache
def _host() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()


@functools.cache
def _keeps_inodes(device: int) -> bool:
    number = f"{os.major(device)}:{os.minor(device)}"
    types = (mount.type for mount in read_mounts() if mount.device == number)
    return not any(kind in _RENUMBERING or kind.startswith("fuse.") for kind in types)
