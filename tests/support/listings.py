"""Small sources, and what a listing of one says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from presize.sources.scan import Source
from presize.sources.source_reader import SourceReader

OUT = "a link out of the source; use --follow-links if you trust it"


def make(root: Path, *files: str) -> Path:
    """Make files of one byte below a folder; ``a/`` is a folder, ``a -> b`` a link."""
    root.mkdir(parents=True, exist_ok=True)
    for file in files:
        name, is_link, target = file.partition(" -> ")
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if is_link:
            path.symlink_to(target)
        elif not name.endswith("/"):
            path.write_bytes(b"x")
    return root


def paths(source: Source) -> list[str]:
    return source.table.column("path").to_pylist()


def labels(source: Source) -> list[Any] | None:
    return source.table.column("label").to_pylist() if "label" in source.table.column_names else None


def rejected(source: Source) -> dict[str, str]:
    return {reject.path: reject.reason for reject in source.rejects}


def facts(source: Source, *names: str) -> dict[str, Any]:
    """What a source says, by the names of its attributes and of the functions here."""
    return {name: globals()[name](source) if name in globals() else getattr(source, name) for name in names}


def listed(source: Source) -> list[dict[str, Any]]:
    """The samples of containers, without where they lie."""
    return source.table.drop_columns(["source_nbytes", "source_mtime_ns", "container", "offset", "run"]).to_pylist()


def values(source: Source) -> list[bytes]:
    """The bytes of all samples."""
    reader = SourceReader(source.root)
    return [reader.read(file) for file in source.files(np.arange(len(source.table)))]


def not_utf8(folder: Path, name: bytes) -> Path:
    """A path whose name no text is."""
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
