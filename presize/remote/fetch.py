"""Copies of datasets from URLs. Each file is compared with the manifest, and the manifest is written last."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng import zlib_ng

from presize.errors import BuildError, DatasetError, RemoteError
from presize.formatting import size_text
from presize.remote.bucket import Bucket, Connections
from presize.store.data_files import FETCHING, MANIFEST, OUR_NAMES, DataFile
from presize.store.filenames import NAME_MAX_BYTES, can_be_made, is_folder_name
from presize.store.index import read_index
from presize.store.manifest import Manifest, parse_manifest
from presize.system.files import (
    expanded,
    file_digest,
    is_file_of,
    made_folder,
    names_in,
    remove_temporary,
    sync_folder,
    working_in,
    write_atomically,
    writing,
)
from presize.system.locks import file_lock

_LOCK = ".presize.lock"
MANIFEST_BYTES = 256 << 20  # more than a manifest of a million shards has


@dataclass(frozen=True)
class FetchResult:
    """Result of a fetch.

    Attributes:
        out: the folder as given.
        bytes: size of all files of the dataset.
        fetched: bytes transferred over the network.
    """

    out: Path
    samples: int
    bytes: int
    fetched: int
    seconds: float


def fetch_dataset(
    url: str,
    out: str | os.PathLike[str],
    *,
    on_plan: Callable[[int], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> FetchResult:
    """Copy the dataset at `url` to the folder `out`. The copy becomes a dataset once it is complete.

    Another call resumes an incomplete copy at the byte where it stopped. In a complete copy, it fetches files that are
    missing or have the wrong size; presize verify also checks the contents of files.

    Args:
        url: URL of the folder with manifest.json: s3://BUCKET/PATH, http(s)://HOST/PATH, gs:// or az:// (see Bucket).
        out: a new or empty folder, or a complete or incomplete copy of this dataset.
        on_plan: called with the number of bytes to fetch, without the images of a folder dataset: their sizes are in
            its index, which is fetched first.
        on_bytes: called, in any thread, with the number of bytes received since the last call.

    Raises:
        RemoteError: the dataset at `url` cannot be read or differs from its manifest; obstore is not installed.
        DatasetError: `url` is not a presize dataset, or `out` holds another one.
        BuildError: `out` cannot be written, lacks space, or holds other files.
    """
    start = time.perf_counter()
    out, bucket = Path(expanded(out)), Bucket(url)
    text, manifest = read_manifest_of(bucket)
    nbytes = len(text) + sum(file.bytes for file in manifest.files())
    with working_in(out), _locked(out):
        was_finished = not _begin(out, text, bucket.url)
        folders = {out, *((out / file.file).parent for file in manifest.files())}
        for folder in folders:
            folder.mkdir(exist_ok=True)
        connections = Connections(on_bytes)

        def is_there(file: DataFile) -> bool:  # unfinished copies also need the right SHA-256
            path = out / file.file
            return is_file_of(path, file.bytes) and (was_finished or file_digest(path) == (file.bytes, file.sha256))

        files = [file for file in manifest.files() if not is_there(file)]
        if was_finished and manifest.report in files:  # users may remove the report
            files.remove(manifest.report)
        missing = sum(file.bytes - size_of(part_of(out / file.file)) for file in files)
        if missing > (free := shutil.disk_usage(out).free):
            needs = f"needs {size_text(missing)}; make room, or choose another folder"
            raise BuildError(f"{out} has {size_text(free)} free and {needs}")
        on_plan(missing)
        connections.all_of(lambda file: download_file(bucket, file, out / file.file, connections.passed), files)
        if manifest.layout == "folder":
            index = read_index(out, manifest, check=False)  # its SHA-256 was compared above
            nbytes += sum(index.column("nbytes").to_numpy())
            images = _images(index, bucket.url)
            if was_finished:
                images = (image for image in images if not is_file_of(out / image[0], image[1]))
            connections.all_of(lambda image: _fetch_image(bucket, image, out, connections.passed), images)
            for name in _class_folders(index, manifest):
                (out / name).mkdir(exist_ok=True)
            os.sync()
        for folder in folders:
            sync_folder(folder)
        if not was_finished:
            write_atomically(out / MANIFEST, text)
            (out / FETCHING).unlink()
    return FetchResult(out, manifest.samples, nbytes, connections.bytes, time.perf_counter() - start)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(made_folder(out))
            stack.enter_context(file_lock(out / _LOCK, optional=True))
        except BlockingIOError:
            raise BuildError(f"another command is writing to {out}; wait, or choose another folder") from None
        try:
            yield
        finally:
            (out / _LOCK).unlink(missing_ok=True)


def _begin(out: Path, text: bytes, url: str) -> bool:
    """Record in `out` which dataset is being fetched, and return True; return False for a finished copy."""
    remove_temporary(out, {FETCHING, MANIFEST})
    names = sorted(name for name in names_in(out) if name != _LOCK)
    if MANIFEST in names:
        if (out / MANIFEST).read_bytes() != text:
            raise DatasetError(f"{out} holds a dataset that differs from {url}; fetch to a new folder")
        (out / FETCHING).unlink(missing_ok=True)
        return False
    if FETCHING not in names:
        if names:
            raise BuildError(f"{out} holds {names[0]!r} and is not a copy of a dataset; choose a new or empty folder")
        write_atomically(out / FETCHING, text)
    elif (out / FETCHING).read_bytes() != text:
        raise DatasetError(
            f"the dataset at {url} has changed since this copy was started; remove {out} and fetch again"
        )
    return True


def _images(index: pa.RecordBatch, url: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, size in bytes and CRC-32 of each image. Raises DatasetError for names that are unsafe or reserved."""
    for batch in (index.slice(at, 10_000) for at in range(0, index.num_rows, 10_000)):
        for image in zip(*(batch.column(name).to_pylist() for name in ("file", "nbytes", "crc32")), strict=True):
            if not can_be_made(image[0]) or re.match(OUR_NAMES, image[0]):
                raise DatasetError(f"{url}: {image[0]!r} is not an image name; nothing was written for it")
            yield image


def _class_folders(index: pa.RecordBatch, manifest: Manifest) -> list[str]:
    """Return all classes, even those without images, if the class of each image is its first folder; else none."""
    if manifest.classes is None:
        return []
    folders = pc.replace_substring_regex(index.column("file"), r"(?s)^[^/]*$|/.*", "")
    numbers = pc.index_in(folders, value_set=pa.array(manifest.classes, folders.type))
    if not pc.all(pc.fill_null(pc.equal(numbers, index.column("label")), False)).as_py():
        return []
    return [name for name in manifest.classes if is_folder_name(name) and not re.match(OUR_NAMES, name)]


def _fetch_image(bucket: Bucket, image: tuple[str, int, int], out: Path, on_bytes: Callable[[int], None]) -> None:
    name, nbytes, crc32 = image
    path = out / name
    if size_of(path) == nbytes and zlib_ng.crc32(path.read_bytes()) == crc32:
        return
    value = bucket.get(name, nbytes)
    if value is None or zlib_ng.crc32(value) != crc32:
        raise RemoteError(
            f"{bucket.url}/{name}: its CRC-32 differs from the index: it was damaged, replaced or removed"
        )
    on_bytes(len(value))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    part.write_bytes(value)
    os.replace(part, path)


def read_manifest_of(bucket: Bucket) -> tuple[bytes, Manifest]:
    """Return the manifest under the URL, as bytes and parsed. Raises RemoteError if it does not exist."""
    found = bucket.get_with_etag(MANIFEST, MANIFEST_BYTES)
    if found is None:
        raise RemoteError(f"{bucket.url}/{MANIFEST} does not exist; give the URL of the folder that has it")
    return found[0], parse_manifest(found[0], bucket.url)


def part_of(path: Path) -> Path:
    """Return the path of a file while it is incomplete: a hidden file in the same folder."""
    name = f".{path.name}.part"
    if len(os.fsencode(name)) > NAME_MAX_BYTES:  # no file can have this name
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.part"
    return path.with_name(name)


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
    """Fetch a file of a dataset to `path`, resuming an earlier attempt. At most one process may do so at a time. `mark`
    is called with the complete file before it is renamed. Raises RemoteError if the file differs from the manifest."""
    part = part_of(path)
    if size_of(part) > file.bytes:
        part.unlink()
    bucket.download(file.file, file.bytes, part, on_bytes)
    if file_digest(part) != (file.bytes, file.sha256):
        part.unlink()
        raise RemoteError(
            f"{bucket.url}/{file.file}: its SHA-256 differs from the manifest: it was damaged or replaced, "
            "in the store or in transit; run again to retry"
        )
    with writing(path):
        with part.open("rb") as written:
            os.fsync(written.fileno())
        mark(part)
        os.replace(part, path)
