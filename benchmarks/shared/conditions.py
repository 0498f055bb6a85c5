"""The conditions of a measurement, for each row of a CSV: the machine, the versions, the photographs. They include no
names of machines or people, and no paths."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from presize.codecs.jpeg import segments as jpeg_segments
from presize.errors import ImageError
from presize.system.resources import read_cpu
from presize.system.storage import mount_of, read_mounts

_PACKAGES = (
    "presize", "simplejpeg", "pillow", "opencv-python-headless", "lmdb", "joblib", "numpy",
)  # fmt: skip


def find_photos(source: Path) -> list[Path]:
    """Return the JPEGs below `source`, sorted by path. Raises SystemExit if there are none."""
    photos = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not photos:
        raise SystemExit(f"no JPEGs below {source}")
    return photos


def conditions(photos: list[Path]) -> dict[str, object]:
    """Return the conditions by column name. Reads every photograph, and so fills the page cache."""
    versions = {name: version(name) for name in _PACKAGES}
    return {**machine(photos[0]), **versions, **source_mix(photos)}


def machine(place: Path) -> dict[str, object]:
    cpu, mount = read_cpu(), mount_of(str(place.resolve()), read_mounts())
    return {
        "cpu": cpu.model,
        "cores": cpu.cores,
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "file_system": "unknown" if mount is None else mount.type,
        "python": platform.python_version(),
    }


def source_mix(photos: list[Path]) -> dict[str, object]:
    """Return shares of chroma subsamplings, and means per photograph. A file that is not a JPEG counts as "other"."""
    kinds: Counter[str] = Counter()
    width = height = nbytes = measured = 0
    for path in photos:
        data = path.read_bytes()
        nbytes += len(data)
        try:
            header = jpeg_segments.parse(data)
        except ImageError:
            continue
        measured += 1
        width, height = width + header.width, height + header.height
        if len(header.sampling) == 3:
            kinds[{((1, 1),) * 3: "444", ((2, 2), (1, 1), (1, 1)): "420"}.get(header.sampling, "other")] += 1
    return {
        "share_444": round(kinds["444"] / len(photos), 3),
        "share_420": round(kinds["420"] / len(photos), 3),
        "share_other": round(1 - (kinds["444"] + kinds["420"]) / len(photos), 3),
        "mean_width": round(width / measured),
        "mean_height": round(height / measured),
        "mean_kb": round(nbytes / len(photos) / 1e3, 1),
    }
