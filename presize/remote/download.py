"""Files of a dataset, fetched and compared with the manifest: each has its name when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from presize.errors import RemoteError
from presize.remote.bucket import Bucket
from presize.store.data_files import DataFile
from presize.system.files import file_digest, writing

MANIFEST_BYTES = 256 << 20
"""A manifest of a million shards has less."""


def part_of(path: Path) -> Path:
    """Where a file is kept until it is whole."""
    return path.with_name(f".{path.name}.part")


def size_of(path: Path) -> int:
    """In bytes; 0 where there is no file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def download_file(
    bucket: Bucket,
    file: DataFile,
    path: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
    mark: Callable[[Path], object] = lambda _: None,
) -> None:
    """Fetch a file of a dataset to `path`, on from where an earlier attempt ended. For one process at a time.

    Args:
        on_bytes: as in Bucket.download.
        mark: called with the file before it has its name.

    Raises:
        RemoteError: it is not what the manifest says, or cannot be read.
        BuildError: the disk is full, or cannot be written.
    """
    part = part_of(path)
    if size_of(part) > file.bytes:
        part.unlink()
    bucket.download(file.file, file.bytes, part, on_bytes)
    if file_digest(part) != (file.bytes, file.sha256):
        part.unlink()
        raise RemoteError(
            f"{bucket.url}/{file.file}: its SHA-256 differs from the manifest: it was damaged or replaced, "
            "there or on its way; run again to fetch it once more"
        )
    with writing(path):
        with part.open("rb") as written:
            os.fsync(written.fileno())
        mark(part)
        os.replace(part, path)
