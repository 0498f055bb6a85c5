"""Fake /proc and /sys trees, in the formats of Linux."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Create a folder with these files; content that begins with ``->`` makes a link."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            path.symlink_to(text.removeprefix("->"))
        else:
            path.write_text(text, "utf-8", "surrogateescape")
    root.mkdir(exist_ok=True)
    return root


def block_device(folder: str, rotational: int, model: str = "", partition: str = "") -> dict[str, str]:
    """Return the files of one disk in /sys/devices."""
    files = {f"{folder}/queue/rotational": f"{rotational}\n"}
    if model:
        files[f"{folder}/device/model"] = f"{model:40}\n"
    if partition:
        files[f"{folder}/{partition}/partition"] = "1\n"
    return files


def roots(
    tmp_path: Path, proc: Mapping[str, str] | None = None, sys: Mapping[str, str] | None = None
) -> tuple[Path, Path]:
    """Create a /proc and a /sys with these files."""
    return write_tree(tmp_path / "proc", proc or {}), write_tree(tmp_path / "sys", sys or {})
