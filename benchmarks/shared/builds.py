"""Builds by the command line, as variants: their source folder, command and measurements."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shared import processes

PRESIZE = str(Path(sys.executable).with_name("presize"))
"""The command `presize` of this environment."""

PEERS = Path(__file__).resolve().parents[1] / "peers"

_CLASSES = 10


@dataclass(frozen=True)
class Variant:
    """A command that writes `out` and prints JSON last: `seconds`, and the number of images under the key `counts`."""

    command: list[str]
    out: Path
    counts: str = "samples"


def link_tree(photos: list[Path], root: Path, images: int) -> Path:
    """Create a folder of `images` hard links to `photos` in class folders, or reuse the one of the same photographs."""
    facts = [(str(photo), photo.stat().st_size, photo.stat().st_mtime_ns) for photo in photos]
    digest = hashlib.sha256(repr((facts, images)).encode()).hexdigest()[:12]
    tree = root / f"source-{images}-{digest}"
    if tree.exists():
        return tree
    unfinished = tree.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for number in range(_CLASSES):
        (unfinished / f"class-{number}").mkdir(parents=True)
    for number in range(images):
        place = unfinished / f"class-{number % _CLASSES}" / f"{number:07d}.jpg"
        photo = photos[number % len(photos)]
        try:
            os.link(photo, place)
        except OSError:  # another device, or too many links
            shutil.copyfile(photo, place)
    unfinished.rename(tree)
    return tree


def presize_build(source: Path, out: Path, *how: str) -> Variant:
    """Return a build without a report, which takes a second for any number of images."""
    return Variant([PRESIZE, "build", str(source), str(out), *how, "--no-report", "--json"], out)


def build_once(source: Path, out: Path, *how: str) -> Path:
    """Build `source` into `out`, unless that is a complete dataset, and return `out`."""
    if not (out / "manifest.json").exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        command = [*presize_build(source, out, *how).command[:-1], "--overwrite"]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return out


def measure(variant: Variant) -> dict[str, object]:
    """Run a variant and return its columns. Data of earlier runs is synced to disk first."""
    shutil.rmtree(variant.out, ignore_errors=True)
    os.sync()
    finished = processes.run(variant.command)
    shutil.rmtree(variant.out, ignore_errors=True)
    printed = json.loads(finished.output.splitlines()[-1])
    images, seconds = int(printed[variant.counts]), float(printed["seconds"])
    return {
        "images": images,
        "seconds": round(seconds, 3),
        "process_seconds": round(finished.seconds, 3),
        "images_per_s": round(images / seconds, 1),
        **resources(finished),
    }


def resources(finished: processes.Finished) -> dict[str, object]:
    """Return the columns of CPU time and memory."""
    return {
        "cpu_seconds": round(finished.cpu_seconds, 3),
        "worker_private_mb": round(finished.worker_private_mb, 1),
        "driver_private_mb": round(finished.driver_private_mb, 1),
        "other_cpu": round(finished.other_cpu, 3),
    }
