"""Files moved from and to a store: several at a time, since one connection does not fill a fast network."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import TypeVar

from presize.errors import RemoteError
from presize.remote.bucket import Bucket, in_background
from presize.store.data_files import MANIFEST, DataFile
from presize.store.manifest import Manifest, parse_manifest
from presize.system.files import file_digest, writing

T = TypeVar("T")

_CHECK_S = 0.2
ENDS_WITHIN_S = 2
"""How long stopped transfers are waited for. One without an answer is left behind, and ends with the process."""


class TransferStoppedError(Exception):
    """Another file could not be moved."""


class Connections:
    """Moves files, `count` at a time. `on_bytes` is called, in any thread, with the bytes that have passed since the
    last call; `bytes` is their sum."""

    def __init__(self, on_bytes: Callable[[int], None] = lambda _: None, count: int = 8) -> None:
        self._on_bytes, self._count = on_bytes, count
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self.bytes = 0

    def all_of(self, move: Callable[[T], None], files: Iterable[T]) -> None:
        """Call `move` with each of `files`, which are drawn as connections become free. An error ends all."""
        running: set[Future[None]] = set()
        try:
            for file in files:
                running.add(in_background(move, file))
                if len(running) == self._count:
                    running = self._after_one(running)
            while running:
                running = self._after_one(running)
        except BaseException:
            self.stop()
            wait(running, ENDS_WITHIN_S)
            raise

    def _after_one(self, running: set[Future[None]]) -> set[Future[None]]:
        """Wait until at least one has ended, raise its error, and return the others."""
        ended: set[Future[None]] = set()
        while not ended:
            if self._stopped.is_set():
                raise TransferStoppedError
            ended, others = wait(running, _CHECK_S, FIRST_COMPLETED)
        for one in ended:
            one.result()
        return others

    def stop(self) -> None:
        """End what is under way as soon as it goes on, and begin nothing more."""
        self._stopped.set()

    def passed(self, nbytes: int) -> None:
        """Count bytes that have passed. Raises, to end this transfer, when another one has failed."""
        if self._stopped.is_set():
            raise TransferStoppedError
        with self._lock:
            self.bytes += nbytes
            self._on_bytes(nbytes)


MANIFEST_BYTES = 256 << 20  # a manifest of a million shards has less


def read_manifest_of(bucket: Bucket) -> tuple[bytes, Manifest]:
    """Return the manifest below the URL, as text and parsed. Raises RemoteError when there is none."""
    found = bucket.get_with_etag(MANIFEST, MANIFEST_BYTES)
    if found is None:
        raise RemoteError(f"{bucket.url}/{MANIFEST} does not exist; give the URL of the folder that has it")
    return found[0], parse_manifest(found[0], bucket.url)


def part_of(path: Path) -> Path:
    """Where a file is kept until it is whole."""
    return path.with_name(f".{path.name}.part")


def size_of(path: Path) -> int:
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
    """Fetch a file of a dataset to `path`, on from where an earlier attempt ended. For one process at a time. `mark` is
    called with the file before it has its name. Raises RemoteError when it is not what the manifest says."""
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
