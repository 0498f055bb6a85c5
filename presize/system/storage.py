"""The storage behind a path: its mount (/proc/self/mountinfo, documented in proc(5)), file system and disk."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

PROC, SYS = Path("/proc"), Path("/sys")

Kind = Literal["memory", "network", "container", "nvme", "ssd", "rotating", "virtual", "unknown"]

_NETWORK = {
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "daos", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
}  # fmt: skip
"""File systems over a network, or from the host of a virtual machine. FUSE counts: most of its file systems are."""

_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_LAYERS = {"overlay", "aufs", "fuse.fuse-overlayfs"}
_VIRTUAL_NAMES = ("vd", "xvd", "loop", "nbd", "rbd", "zram", "ram")
_VIRTUAL_MODELS = ("Amazon Elastic Block Store", "nvme_card-pd", "PersistentDisk", "Virtual Disk", "QEMU", "VMware")
"""Disks of clouds and virtual machines, whose ``rotational`` flag is meaningless."""


_KINDS = {
    "memory": "in memory",
    "network": "over a network, or from the host",
    "container": "a container's layers",
    "nvme": "an NVMe SSD",
    "ssd": "an SSD",
    "rotating": "a rotating disk",
    "virtual": "a virtual disk",
}

_DEFAULT_WINDOW_BYTES = 128 << 10
"""Linux's default (VM_READAHEAD_PAGES)."""


@dataclass(frozen=True)
class Storage:
    """Storage of a path: its file system, kind, disk, and how far the kernel reads ahead."""

    file_system: str | None
    kind: Kind
    device: str | None
    window_bytes: int

    @property
    def described(self) -> str:
        """Description, such as ``ext4 on sda, an SSD``; unknown parts are left out."""
        on = f" on {self.device}" if self.device else ""
        kind = f", {_KINDS[self.kind]}" if self.kind in _KINDS else ""
        return f"{self.file_system or 'unknown'}{on}{kind}"


def find_storage(path: Path, proc: Path = PROC, sys: Path = SYS) -> Storage:
    """Return the storage behind an existing path."""
    try:
        place = os.path.realpath(path)
    except OSError:  # the current folder has been removed
        place = os.fspath(path)
    window = window_bytes(place)
    mount = mount_of(place, read_mounts(proc))
    if mount is None:
        return Storage(None, "unknown", None, window)
    disk = _disk(mount, sys)
    printable = mount.type.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")  # FUSE takes any name
    return Storage(printable, _kind(mount.type, disk), disk.name if disk else None, window)


def _kind(file_system: str, disk: Path | None) -> Kind:
    if file_system in _MEMORY:
        return "memory"
    if file_system in _LAYERS:
        return "container"
    if file_system in _NETWORK or file_system.startswith("fuse."):
        return "network"
    if disk is None:
        return "unknown"
    if disk.name.startswith(_VIRTUAL_NAMES) or read_text(disk / "device" / "model").startswith(_VIRTUAL_MODELS):
        return "virtual"
    rotational = read_text(disk / "queue" / "rotational")
    if rotational == "0":
        return "nvme" if disk.name.startswith("nvme") else "ssd"
    return "rotating" if rotational == "1" else "unknown"


def _disk(mount: Mount, sys: Path) -> Path | None:
    """Return the folder in /sys of a mount's disk, also for a partition; for RAID or logical volumes the first disk."""
    device = sys / "dev" / "block" / mount.device
    if mount.device.startswith("0:"):  # virtual, as for btrfs, which names the real device as its source
        if not mount.source.startswith("/dev/"):
            return None
        device = sys / "class" / "block" / os.path.basename(os.path.realpath(mount.source))
    for _ in range(8):
        device = device.resolve()
        if not device.is_dir():
            return None
        if not (device / "queue").is_dir() and (device.parent / "queue").is_dir():
            device = device.parent
        below = sorted((device / "slaves").glob("*"))
        if not below:
            break
        device = below[0]
    return device


def window_bytes(path: str | os.PathLike[str]) -> int:
    """Return how far the kernel reads ahead in the file system of `path`; 128 KiB if that is unknown."""
    with contextlib.suppress(OSError):
        device = os.stat(path).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        for window in (f"/sys/class/bdi/{name}/read_ahead_kb", f"/sys/dev/block/{name}/../queue/read_ahead_kb"):
            with contextlib.suppress(OSError, ValueError):
                return int(Path(window).read_text()) << 10
    return _DEFAULT_WINDOW_BYTES


# --- mounts ---


class Mount(NamedTuple):
    """A line of mountinfo: ``major:minor`` (major is 0 without a block device), the mounted folder of the file system,
    the mount point, the type, the source, such as /dev/sda1, and options."""

    device: str
    root: str
    point: str
    type: str
    source: str
    options: tuple[str, ...]


_MOUNT = re.compile("[^ ]+ [^ ]+ ([^ ]+) ([^ ]+) ([^ ]+) [^ ]+ (?:[^ ]+ )*?- ([^ ]+) ([^ ]*) ([^ ]+)")
"""``36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/sda1 rw,errors=continue``"""


def read_mounts(proc: Path = PROC) -> tuple[Mount, ...]:
    """Return all mounts that this process sees, in mount order; none without /proc."""
    try:
        text = (proc / "self" / "mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ()
    mounts = filter(None, map(_MOUNT.match, text.split("\n")))
    return tuple(
        Mount(device, _unescaped(root), _unescaped(point), kind, _unescaped(source), tuple(options.split(",")))
        for device, root, point, kind, source, options in (mount.groups() for mount in mounts)
    )


def _unescaped(text: str) -> str:
    """Decode white space and backslashes, which the kernel writes as three octal digits."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), text)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount that holds `path` (absolute, without links): the innermost, and the last of its mount point."""
    holding = [mount for mount in mounts if path == mount.point or path.startswith(f"{mount.point.rstrip('/')}/")]
    return max(reversed(holding), key=lambda mount: len(mount.point.rstrip("/")), default=None)


def read_text(path: Path) -> str:
    """Return the text of a file of /proc or /sys; empty if it is missing or unreadable."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def read_fields(path: Path) -> dict[str, str]:
    """Return the lines ``name: value`` of a file of /proc; the first line of each name counts."""
    lines = (line.partition(":") for line in read_text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in reversed(list(lines))}
