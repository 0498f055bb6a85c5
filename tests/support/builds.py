"""Options that tests build with, and how they compare what came out."""

from __future__ import annotations

import hashlib
from pathlib import Path

from presize.options import BuildOptions, ImageOptions, RunOptions, Size

SERIAL = RunOptions(engine="sequential", report=False)
REPORTED = RunOptions(engine="sequential")
"""As a user's build: with its page, which takes longer than all else of a small build."""
SMALL = BuildOptions(ImageOptions(sizes=(Size(64, 64),)))


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones too, with a hash of its bytes."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
