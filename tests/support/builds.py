"""Options that tests build with, and how they compare what came out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from presize.builder.run import build_dataset
from presize.options import BuildOptions, ImageOptions, RunOptions, Size, SourceOptions

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


def build_images(
    folder: Path,
    images: Mapping[str, np.ndarray | Image.Image],
    options: BuildOptions = SMALL,
    rows: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """The dataset ``folder/out`` of `images`, saved in ``folder/raw`` by their names, with a label table of `rows`."""
    for name, image in images.items():
        (folder / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(folder / "raw" / name)
    table = folder / "table.jsonl"
    if rows:
        table.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    samples = SourceOptions(labels=table) if rows else SourceOptions()
    build_dataset(folder / "raw", folder / "out", options, SERIAL, samples)
    return folder / "out"
