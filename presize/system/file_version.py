"""Detects whether a path still leads to the same file, and whether that file has changed."""

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
"""File systems that may give a file a new inode number after forgetting it, as most kinds of FUSE do."""


class FileVersion(NamedTuple):
    """A file at a point in time, without its device: on network file systems, btrfs and overlays each mount changes it.

    Attributes:
        nbytes, mtime_ns: size in bytes and modification time, the same on all hosts.
        ctime_ns: time of the last change of anything, including its name or a link to it.
        inode: inode number; 0 if the file system does not keep it.
        host: ID of the host that read these values, which changes with each boot.
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
        """Return the current version of the file at `path`. Opening it makes NFS ask its server; stat() does not."""
        file = open_at_once(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls.of(os.fstat(file))
        finally:
            os.close(file)

    def same_as(self, other: FileVersion) -> bool:
        """Return whether both have the same content. Between hosts, size and modification time decide."""
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
