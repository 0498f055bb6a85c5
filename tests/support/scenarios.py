"""Builds to be disturbed: what is there before, and the options of the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from faults import run
from pictures import smooth_image


def photographs(folder: Path, names: Sequence[str]) -> None:
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(40, 60, seed=seed)).save(path, "JPEG", quality=95)
        os.utime(path, ns=(10**18, 10**18))


def fresh(raw: Path, _out: Path) -> None:
    photographs(raw, ["cats/a.jpg", "cats/b.jpg", "dogs/c.jpg"])
    (raw / "dogs" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    os.utime(raw / "dogs" / "broken.jpg", ns=(10**18, 10**18))


def built(*options: str) -> Callable[[Path, Path], None]:
    def prepare(raw: Path, out: Path) -> None:
        fresh(raw, out)
        assert run(["build", raw, out, "--size", "32", "--backend", "sequential", "--no-report", *options])[0] == 0

    return prepare


def changed(*options: str) -> Callable[[Path, Path], None]:
    def prepare(raw: Path, out: Path) -> None:
        built(*options)(raw, out)
        (raw / "cats" / "a.jpg").unlink()
        photographs(raw, ["dogs/new.jpg"])

    return prepare


def parts(*done: str) -> Callable[[Path, Path], None]:
    def prepare(raw: Path, out: Path) -> None:
        fresh(raw, out)
        for part in done:
            assert run(["build", raw, out, *BY_PARTS, "--backend", "sequential", "--part", part])[0] == 0

    return prepare


BY_PARTS = ("--size", "32", "--shard-samples", "2")

SCENARIOS: dict[str, tuple[Callable[[Path, Path], None], tuple[str, ...]]] = {
    "a first build": (fresh, ("--size", "32")),
    "two sizes": (fresh, ("--size", "32", "--size", "16")),
    "a folder": (fresh, ("--size", "32", "--to", "folder")),
    "over another dataset": (built("--quality", "50"), ("--size", "32", "--overwrite")),
    "a folder over shards": (built(), ("--size", "32", "--to", "folder", "--overwrite")),
    "shards over a folder": (built("--to", "folder"), ("--size", "32", "--overwrite")),
    "an update": (changed("--shard-samples", "2"), ("--size", "32", "--shard-samples", "2", "--update")),
    "an update of two sizes": (
        changed("--size", "16", "--shard-samples", "2"),
        ("--size", "32", "--size", "16", "--shard-samples", "2", "--update"),
    ),
    "the first part": (fresh, (*BY_PARTS, "--part", "1/2")),
    "the last part": (parts("1/2"), (*BY_PARTS, "--part", "2/2")),
    "the command after all parts": (parts("1/2", "2/2"), BY_PARTS),
}
