"""Options that tests build with, and how they compare what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from presize.builder import output_dir, publish
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


def publishing_step(step: str) -> Callable[..., object]:
    """One of the functions that publishing calls."""
    return next(getattr(module, step) for module in (publish, output_dir) if hasattr(module, step))


def patch_publishing(patch: pytest.MonkeyPatch, step: str, function: Callable[..., object]) -> None:
    """Let publishing call `function` for one of its steps, wherever it does."""
    for module in (publish, output_dir):
        if hasattr(module, step):
            patch.setattr(module, step, function)
