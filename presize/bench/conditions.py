"""What a measured time depends on: the machine, the versions, the storage. No names of machines or people, no paths."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = (
    "presize", "torch", "torchvision", "simplejpeg", "cykooz.resizer", "opencv-python-headless", "numpy", "lmdb",
)  # fmt: skip


def conditions(places: Iterable[Path]) -> dict[str, str]:
    """In words, by name. `places`: files or folders whose storage is told."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "CPU": _cpu(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "storage": ", ".join(dict.fromkeys(_storage(place) for place in places)),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name)) is not None),
    }


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _storage(place: Path) -> str:
    """``ext4 on a disk without moving parts``: the type of the file system, and what it is on where that is said."""
    with suppress(OSError):
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        holding = [(mount[1], mount[2]) for mount in mounts if place.resolve().is_relative_to(mount[1])]
        kind = max(holding, key=lambda mount: len(mount[0]))[1] if holding else "unknown"
        device = place.stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        for queue in (block / "queue", block / ".." / "queue"):
            with suppress(OSError):
                spins = (queue / "rotational").read_text().strip() == "1"
                return f"{kind} on a disk {'that says it spins' if spins else 'without moving parts'}"
        return kind
    return "unknown"
