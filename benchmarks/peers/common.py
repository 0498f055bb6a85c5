"""Common parts of the building scripts: arguments, the list of images, and the line of JSON that they print."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def parser(description: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("folder", type=Path, help="searched recursively for JPEGs")
    arguments.add_argument("--procs", type=int, default=2, help="worker processes")
    arguments.add_argument("--size", type=int, default=256, help="shorter side of the result, in pixels")
    arguments.add_argument("--quality", type=int, default=90, help="JPEG quality of the result")
    return arguments


def jpegs(folder: Path) -> list[str]:
    """Return all JPEGs below `folder`, sorted by path."""
    return sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))


def shrunk(width: int, height: int, size: int) -> tuple[int, int]:
    """Return width and height after shrinking the shorter side to `size`; smaller images keep theirs."""
    short = min(width, height)
    return (width, height) if short <= size else (width * size // short, height * size // short)


def report(images: int, seconds: float) -> None:
    print(json.dumps({"images": images, "seconds": round(seconds, 4)}))
