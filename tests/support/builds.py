"""Options of test builds, interrupted builds, and comparison of their results."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pictures import smooth_image
from presize.builder.run import BuildResult, build_dataset
from presize.builder.shard_table import ShardDone
from presize.options import BuildOptions, ImageOptions, RunOptions, Size, SourceOptions
from presize.store.dataset import Dataset
from presize.store.manifest import Manifest, read_manifest
from presize.store.rejects import claims_to_be_an_image

SERIAL = RunOptions(engine="sequential", report=False)
REPORTED = RunOptions(engine="sequential")
"""Options like a user's, including the report, which takes longer than the rest of a small build."""
UPDATE = replace(SERIAL, update=True)
OVERWRITE = replace(SERIAL, overwrite=True)
SMALL = BuildOptions(ImageOptions(sizes=(Size(64, 64),)))
BROKEN_PNG = b"\x89PNG\r\n\x1a\n broken"

EPOCH_NS = 1_700_000_000_000_000_000


def files(folder: Path) -> dict[str, str]:
    """Return every file below a folder, including hidden files, with a hash of its content."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def put(path: Path, seed: int) -> None:
    """Save a picture at `path`. `seed` determines its pixels and its modification time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(smooth_image(40 + seed % 7, 50, seed=seed)).save(path)
    os.utime(path, ns=(EPOCH_NS + seed, EPOCH_NS + seed))


def write_photos(folder: Path, count: int = 12) -> Path:
    """Write pictures dogs/00.png, cats/01.png, dogs/02.png, ..."""
    for i in range(count):
        put(folder / ("cats" if i % 2 else "dogs") / f"{i:02d}.png", seed=i)
    return folder


def image_folder(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the classes and samples of torchvision's ImageFolder(root), by its own algorithm."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            samples += [(os.path.join(folder, file), number) for file in sorted(files) if claims_to_be_an_image(file)]
    return classes, samples


class Stopped(Exception):
    """An arbitrary error that interrupts a build."""


def stop(*_: object) -> None:
    raise Stopped


def stop_after(out: Path, shards: int) -> Callable[[ShardDone], None]:
    """Return an on_shard that stops a build in `out` after it has finished this many shards, not counting kept ones."""

    def on_shard(_: ShardDone) -> None:
        if len(list(out.glob(".presize-*.npz"))) >= shards:
            raise Stopped

    return on_shard


class Builder:
    """Builds of `source` into folders next to it, with these options by default."""

    def __init__(
        self,
        source: Path,
        options: BuildOptions = SMALL,
        samples: SourceOptions = SourceOptions(),
        run: RunOptions = SERIAL,
    ) -> None:
        self.source, self.options, self.samples, self.run = source, options, samples, run
        self.out = source.parent / "out"

    def __call__(
        self,
        out: str | Path = "out",
        options: BuildOptions | None = None,
        run: RunOptions | None = None,
        samples: SourceOptions | None = None,
        **calls: Any,
    ) -> BuildResult:
        """Build into `out`, a path relative to the folder that contains the source. `calls` are arguments of
        build_dataset."""
        out = self.out.parent / out
        return build_dataset(
            self.source, out, options or self.options, run or self.run, samples or self.samples, **calls
        )

    def stopped(self, shards: int = 2, out: str = "out", **how: Any) -> None:
        """Build until this many shards are finished."""
        with pytest.raises(Stopped):
            self(out, **how, on_shard=stop_after(self.out.parent / out, shards))

    def data(self, out: str = "out") -> Dataset:
        return Dataset(self.out.parent / out)

    def manifest(self, out: str = "out") -> Manifest:
        return read_manifest(self.out.parent / out)

    def rejects(self, out: str = "out") -> list[dict[str, Any]]:
        """Return the lines of the rejects file."""
        lines = (self.out.parent / out / self.manifest(out).rejects.file).read_text().splitlines()
        return list(map(json.loads, lines))

    def files(self, out: str = "out") -> dict[str, str]:
        return files(self.out.parent / out)


def build_images(
    folder: Path,
    images: Mapping[str, np.ndarray | Image.Image],
    options: BuildOptions = SMALL,
    rows: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Build the dataset ``folder/out`` of `images`, which are saved in ``folder/raw`` by their names, with a label
    table of `rows`."""
    for name, image in images.items():
        (folder / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(folder / "raw" / name)
    table = folder / "table.jsonl"
    if rows:
        table.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    samples = SourceOptions(labels=table) if rows else SourceOptions()
    build_dataset(folder / "raw", folder / "out", options, SERIAL, samples)
    return folder / "out"
