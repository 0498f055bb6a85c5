"""A dataset with labels, captions and other columns, and programs that read it with other libraries."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builds import build_images
from pictures import smooth_image
from presize.options import BuildOptions, Format, ImageOptions, Size

ROWS: list[dict[str, Any]] = [
    {"path": "dogs/sub/b.jpeg", "label": "dog", "caption": "a dog, 'Ödön'", "scores": [0.5, 1.0], "of": {"age": 3}},
    {"path": "cats/a.png", "label": "cat", "caption": None, "scores": [], "of": {"age": 1}},
    {"path": "cats/a.jpg", "label": "cat", "caption": "a\ncat", "scores": [0.25], "of": None},
    {"path": "cats/my.best.cat.jpg", "label": "cat", "caption": "", "scores": None, "of": {"age": None}},
]
"""Rows in dataset order; their images differ in size."""

FILES = ["dogs/sub/b.jpeg", "cats/a.png.jpg", "cats/a.jpg", "cats/my.best.cat.jpg"]
"""Names of their files after an export as JPEG."""


def captioned(folder: Path, format: Format = "jpeg", rows: list[dict[str, Any]] = ROWS) -> Path:
    """Build a dataset of two shards with these samples, of at most 24 pixels a side."""
    images = {row["path"]: smooth_image(30 + i, 40, seed=i) for i, row in enumerate(rows)}
    options = BuildOptions(ImageOptions((Size(24, 24),), "longer", format=format))
    return build_images(folder, images, options, rows)


def read_by(library: str, program: str, *arguments: object) -> Any:
    """Return the JSON printed by a program that imports `library`, run where `import datasets` does not find our
    folder."""
    try:
        importlib.metadata.distribution(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-P", "-W", "ignore", "-c", program, *map(str, arguments)]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=offline)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])
