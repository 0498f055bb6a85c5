"""How many cores and how much memory this process can use, within the limits of its control groups.

The roots ``/proc`` and ``/sys`` are parameters, so that tests can pass their own.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from presize.system.mounts import Mount, read_mounts

PROC, SYS = Path("/proc"), Path("/sys")


# --- cores ---


def allowed_cores() -> int:
    """Cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(proc: Path = PROC, sys: Path = SYS) -> float | None:
    """The CPU time that control groups (containers) allow this process, in cores; None without a limit."""
    return min(_quotas(proc, sys), default=None)


def usable_cores(proc: Path = PROC, sys: Path = SYS) -> int:
    """Cores that this process can keep busy: the default number of worker processes."""
    return whole_cores(min(allowed_cores(), cpu_quota(proc, sys) or math.inf))


def whole_cores(usable: float) -> int:
    """`usable` rounded up, so that no CPU time is left unused; at least 1."""
    return max(1, math.ceil(usable))


def _quotas(proc: Path, sys: Path) -> Iterator[float]:
    for group in control_groups("cpu", proc, sys):
        with contextlib.suppress(ValueError, ZeroDivisionError):  # "max" and "" are no numbers
            if (group / "cpu.max").exists():
                quota, period = map(int, read_text(group / "cpu.max").split())
            else:
                quota, period = int(read_text(group / "cpu.cfs_quota_us")), int(read_text(group / "cpu.cfs_period_us"))
            if quota > 0:  # -1 is no limit
                yield quota / period


# --- control groups ---


def control_groups(controller: str, proc: Path = PROC, sys: Path = SYS) -> list[Path]:
    """The folders of the control groups that this process is in, innermost first. Each of them may limit it.

    Version 1 has a hierarchy for each controller, version 2 one for all; a machine may have both.
    """
    own = {}
    for line in read_text(proc / "self" / "cgroup").splitlines():  # 4:cpu,cpuacct:/a/b, and of version 2 0::/a/b
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        own.update(dict.fromkeys(names.split(","), path))
    folders = []
    for mount in read_mounts(proc):
        version_1 = mount.type == "cgroup" and controller in mount.options
        group = own.get(controller if version_1 else "")
        if group is None or not (version_1 or mount.type == "cgroup2") or not mount.point.startswith("/sys/"):
            continue
        point = sys / mount.point.removeprefix("/sys/")
        inside = _inside(group, mount)
        folders += [point.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _inside(path: str, mount: Mount) -> list[str]:
    """The folders from the root of the mount to the group. Empty when the group is outside of it, as in containers,
    which see their own group as the root."""
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return []
    parts = [part for part in path.removeprefix(root).split("/") if part]
    return [] if ".." in parts else parts


# --- open files ---


def max_open_shards() -> int:
    """Half of the files that this process may open (``ulimit -n``), at least 8 and at most 30,000, which is half of
    the memory maps that Linux allows a process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 30_000 if soft == resource.RLIM_INFINITY else min(max(8, soft // 2), 30_000)


# --- memory ---


@dataclass(frozen=True)
class Memory:
    """Memory, in bytes; None where unknown.

    Attributes:
        total: of the machine.
        limit: of the control group, if that is less.
        available: without swapping; what the page cache holds is available.
        swap: swap space.
        swap_used: the part of it in use.
        locked: memory that processes have locked.
    """

    total: int | None
    limit: int | None
    available: int
    swap: int | None
    swap_used: int | None
    locked: int = 0


_GROUP_MEMORY = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)
"""Versions 2 and 1: the files with the limit and the usage, and the lines of memory.stat that count the page cache."""


def read_memory(proc: Path = PROC, sys: Path = SYS) -> Memory:
    found = {}
    for line in read_text(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        with contextlib.suppress(ValueError, IndexError):
            found[name] = int(value.split()[0]) << 10
    total = found.get("MemTotal")
    available = found.get("MemAvailable", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit = None
    for group in control_groups("memory", proc, sys):
        for limit_file, used_file, cached in _GROUP_MEMORY:
            allowed = _number(read_text(group / limit_file))  # "max", or more than there is, for no limit
            if allowed is None or (total is not None and allowed >= total):
                continue
            lines = (line.partition(" ") for line in read_text(group / "memory.stat").splitlines())
            used = (_number(read_text(group / used_file)) or 0) - sum(
                _number(nbytes) or 0 for name, _, nbytes in lines if name in cached
            )
            limit = allowed if limit is None else min(limit, allowed)
            available = max(0, min(available, allowed - used))
    swap, swap_free = found.get("SwapTotal"), found.get("SwapFree")
    swap_used = None if swap is None or swap_free is None else swap - swap_free
    return Memory(total, limit, available, swap, swap_used, found.get("Mlocked", 0))


def available_memory() -> int:
    """Bytes that this process can allocate without swapping. What the page cache holds is available: it is evicted."""
    return read_memory().available


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def read_text(path: Path) -> str:
    """The text of a file of /proc or /sys; empty when it is missing or may not be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
