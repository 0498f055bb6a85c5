"""The storage behind a path: its file system and its disk."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from presize.system.mounts import Mount, mount_of, read_mounts
from presize.system.pagecache import window_bytes

Kind = Literal["memory", "network", "container", "nvme", "ssd", "rotating", "virtual", "unknown"]

_NETWORK = {
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "daos", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
}  # fmt: skip
"""Over a network, or from the host of a virtual machine. FUSE file systems count as well, since most of them are."""

_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_LAYERS = {"overlay", "aufs", "fuse.fuse-overlayfs"}
_VIRTUAL_NAMES = ("vd", "xvd", "loop", "nbd", "rbd", "zram", "ram")
_VIRTUAL_MODELS = ("Amazon Elastic Block Store", "nvme_card-pd", "PersistentDisk", "Virtual Disk", "QEMU", "VMware")
"""Disks of clouds and of virtual machines, whose ``rotational`` flag means nothing."""


_KINDS = {
    "memory": "in memory",
    "network": "over a network, or from the host",
    "container": "a container's layers",
    "nvme": "an NVMe SSD",
    "ssd": "an SSD",
    "rotating": "a rotating disk",
    "virtual": "a virtual disk",
}


@dataclass(frozen=True)
class Storage:
    """The storage behind a path.

    Attributes:
        file_system: its type, such as ext4; None if unknown.
        kind: what it is stored on.
        device: the name of the disk, such as nvme0n1; None if unknown.
        window_bytes: how far the kernel reads ahead.
    """

    file_system: str | None
    kind: Kind
    device: str | None
    window_bytes: int

    @property
    def described(self) -> str:
        """``ext4 on sda, an SSD``, as far as known."""
        on = f" on {self.device}" if self.device else ""
        kind = f", {_KINDS[self.kind]}" if self.kind in _KINDS else ""
        return f"{self.file_system or 'unknown'}{on}{kind}"


def find_storage(path: Path, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Storage:
    """The storage behind `path`, which exists."""
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
    if disk.name.startswith(_VIRTUAL_NAMES) or _text(disk / "device" / "model").startswith(_VIRTUAL_MODELS):
        return "virtual"
    rotational = _text(disk / "queue" / "rotational")
    if rotational == "0":
        return "nvme" if disk.name.startswith("nvme") else "ssd"
    return "rotating" if rotational == "1" else "unknown"


def _disk(mount: Mount, sys: Path) -> Path | None:
    """The folder of the disk in /sys: of a partition its disk; of RAID arrays and of encrypted or logical volumes the
    first disk below."""
    device = sys / "dev" / "block" / mount.device
    if mount.device.startswith("0:"):  # btrfs has virtual devices, and names the real one as its source
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


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace").strip()
    return ""
