"""The mounted file systems: /proc/self/mountinfo, whose format is documented in proc(5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """One line of mountinfo.

    Attributes:
        device: ``major:minor``; major 0 where there is no block device.
        root: the folder of the file system that is mounted.
        point: the mount point.
        type: the file system, such as ext4.
        source: what is mounted, such as /dev/sda1.
        options: those of the file system.
    """

    device: str
    root: str
    point: str
    type: str
    source: str
    options: tuple[str, ...]


def read_mounts(proc: Path = Path("/proc")) -> tuple[Mount, ...]:
    """All mounts that this process sees, in mount order. Empty where there is no /proc."""
    try:
        text = (proc / "self" / "mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ()
    return tuple(mount for line in text.split("\n") if (mount := _parsed(line)))


def _parsed(line: str) -> Mount | None:
    """Parse ``36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/sda1 rw,errors=continue``, with any number of
    fields before the dash. None for a line that has another form."""
    fields = line.split(" ")
    if "-" not in fields[6:]:
        return None
    dash = fields.index("-", 6)
    if len(fields) < dash + 4:
        return None
    device, root, point = fields[2:5]
    kind, source, options = fields[dash + 1 : dash + 4]
    return Mount(device, _unescaped(root), _unescaped(point), kind, _unescaped(source), tuple(options.split(",")))


def _unescaped(text: str) -> str:
    """The kernel writes white space and backslashes as three octal digits."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), text)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds `path`, which is absolute and free of links: the innermost, and of several at the same
    mount point the last, which hides the others."""
    best: Mount | None = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        if path == mount.point or path.startswith(f"{point}/"):
            best = mount if best is None or len(point) >= len(best.point.rstrip("/")) else best
    return best
