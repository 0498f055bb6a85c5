"""What a measured time depends on: the machine, the versions, the storage. No names of machines or people, no paths."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from presize.formatting import size_text
from presize.system.machine import read_cpu
from presize.system.resources import read_memory
from presize.system.storage import find_storage

_PACKAGES = (
    "presize", "torch", "torchvision", "simplejpeg", "cykooz.resizer", "opencv-python-headless", "numpy", "lmdb",
)  # fmt: skip


def conditions(places: Iterable[Path]) -> dict[str, str]:
    """The conditions, name -> words. `places` are files or folders whose storage to name."""
    cpu = read_cpu()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "CPU": cpu.model,
        "cores": f"{cpu.cores} of {cpu.online}",
        "memory": size_text(total) if (total := read_memory().total) else "unknown",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "storage": ", ".join(dict.fromkeys(find_storage(place).described for place in places)),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name)) is not None),
    }


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None
