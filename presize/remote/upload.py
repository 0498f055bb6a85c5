"""Copies of datasets to URLs. The manifest is written last: until then, no dataset exists at the URL."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from presize.errors import DatasetError, RemoteError
from presize.formatting import printable
from presize.remote.bucket import PART_BYTES, Bucket, Connections, etag_of
from presize.remote.fetch import MANIFEST_BYTES, download_file
from presize.store.data_files import MANIFEST, DataFile, fixes, is_data_file
from presize.store.index import read_index, validate_column
from presize.store.manifest import Manifest, parse_manifest, read_manifest, replaced
from presize.system.files import check_file, expanded, temporary_folder

CLAIM = ".presize-uploading.json"
"""Name of the object that says which dataset is being copied to a URL."""

_CLAIM_BYTES = 1 << 16
_REMOVE = {"s3": "aws s3 rm", "gs": "gcloud storage rm"}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class UploadResult:
    """Result of an upload.

    Attributes:
        bytes: size of all files of the dataset.
        uploaded: bytes transferred over the network.
        sent_again: files of an existing dataset at `url` that were missing or differed.
    """

    url: str
    samples: int
    bytes: int
    uploaded: int
    seconds: float
    sent_again: tuple[str, ...] = ()


def upload_dataset(
    root: str | os.PathLike[str],
    url: str,
    *,
    claim: bytes | None = None,
    base: str | None = None,
    on_plan: Callable[[int], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> UploadResult:
    """Copy the dataset in `root` to `url`. The copy becomes a dataset once it is complete; another call resumes a copy.

    A file is sent again if it is missing or differs in size, in the SHA-256 stored with it, or in content. Content is
    compared where the store's ETags are made of MD5s, as S3's are. A newer state of the dataset, from ``presize build
    --update`` or ``presize repair``, replaces the older one: shared files are not copied again, and files that only the
    old state has are removed at the end. It is recognized by a shared shard, the same index or, with the same options,
    half of the images of the smaller state. Conditional writes, which fail if the object exists, protect other
    datasets.

    Args:
        root: a dataset of shards.
        url: s3://BUCKET/PATH, gs:// or az:// (see Bucket).
        claim: the claim that a build has already made at `url`; None to claim it for all copies of this dataset.
        base: SHA-256 of the manifest of the older state, if known, which may then differ in every file.
        on_plan: called with the number of bytes to copy.
        on_bytes: called, in any thread, with the number of bytes sent since the last call.

    Raises:
        DatasetError: `root` is not a dataset, is damaged, or is a folder of image files.
        RemoteError: `url` holds another dataset, copy in progress, or file with the name of one of a dataset; it cannot
            be written, or lacks conditional writes.
    """
    start = time.perf_counter()
    root, bucket = Path(expanded(root)), writable_bucket(url)
    read_manifest(root)  # its error says what `root` holds instead of a dataset
    text = (root / MANIFEST).read_bytes()
    manifest = parse_manifest(text, root)  # parsed from `text`: an update may publish another one meanwhile
    if manifest.layout == "folder":
        raise DatasetError(f"{root} is a folder of image files; copy it with the store's own tools")
    nbytes = len(text) + sum(file.bytes for file in manifest.files())
    ours = json.dumps({"manifest": hashlib.sha256(text).hexdigest(), "digest": manifest.digest}).encode()
    earlier = _find_earlier(bucket, root, manifest, text, base)  # a refused copy must not leave a claim
    if earlier is None:
        check_free(bucket)
    claim_place(bucket, claim or ours)
    there = _find_earlier(bucket, root, manifest, text, hashlib.sha256(earlier[0]).hexdigest() if earlier else base)
    connections = Connections(on_bytes)
    # A small object, such as the claim, shows whether ETags are MD5s. A build, which has a claim, sent its own files.
    known = None if claim else bucket.get_with_etag(CLAIM, _CLAIM_BYTES)
    content, etag = (known or there or (b"", ""))[:2]
    compare_etags = etag_of(BytesIO(content)) == etag.strip('"')  # false if the store encrypts
    missing: list[DataFile] = []

    def look(file: DataFile) -> None:
        check_file(root / file.file, file.bytes)

        def is_etag(etag: str) -> bool:
            with (root / file.file).open("rb") as opened:
                return etag_of(opened, PART_BYTES if "-" in etag else None) == etag.strip('"')

        if not bucket.holds(file.file, file.bytes, file.sha256, is_etag if compare_etags else lambda _: True):
            missing.append(file)

    try:
        connections.all_of(look, manifest.files())
        on_plan(sum(file.bytes for file in missing))
        connections.all_of(lambda file: upload_file(bucket, root, file, connections.passed), missing)
    except (DatasetError, RemoteError):
        if gone := replaced(root, manifest):
            raise gone from None
        raise
    if there is None or there[0] != text:
        published = bucket.put(MANIFEST, text, there[1] if there else None)
        if not published and (bucket.get_with_etag(MANIFEST, MANIFEST_BYTES) or (b"",))[0] != text:
            raise RemoteError(f"{bucket.url}: another dataset was published there in the meantime; choose another URL")
    files = _files_of(manifest)
    for found in bucket.list():
        if is_data_file(found.path) and found.path not in files:
            bucket.remove(found.path)
    bucket.remove(CLAIM)
    sent = sorted(file.file for file in missing)
    if there is None or there[2]:
        sent = []  # not sent again: this state is new at the URL
    elif there[0] != text:
        sent.append(MANIFEST)
    seconds = time.perf_counter() - start
    return UploadResult(bucket.url, manifest.samples, nbytes, connections.bytes, seconds, tuple(sent))


def _files_of(manifest: Manifest) -> dict[str, DataFile]:
    return {file.file: file for file in manifest.files()}


def writable_bucket(url: str) -> Bucket:
    """Return the Bucket at `url`. Raises RemoteError for a web server, which is read-only."""
    bucket = Bucket(url)
    if bucket.url.startswith("http"):
        raise RemoteError(f"{bucket.url}: cannot write to a web server; give s3://, gs:// or az://")
    return bucket


def check_free(bucket: Bucket) -> None:
    """Raise RemoteError if a URL without a manifest has an object, such as report.html, that a copy of a dataset would
    replace or remove, and presize did not write."""
    for found in bucket.list():
        if "/" not in found.path and is_data_file(found.path) and bucket.is_foreign(found.path):
            raise RemoteError(
                f"{bucket.url} holds {found.path!r}, which presize did not write; choose another URL, or remove it"
            )


def claim_place(bucket: Bucket, claim: bytes) -> None:
    """Write `claim`, a JSON object, to the URL. Copies with the same claim may run at the same time. Raises RemoteError
    if the URL has another claim, or the store lacks conditional writes."""
    probe = f".presize-{uuid.uuid4().hex}"
    refuses = bucket.put(probe, b"") and not bucket.put(probe, b"")
    bucket.remove(probe)
    if not refuses:
        raise RemoteError(
            f"{bucket.url}: this store overwrites existing objects despite If-None-Match, so two copies to one URL "
            "could mix; copy the dataset with another tool, or to another store"
        )
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no name
        user = str(os.getuid())
    ours, me = json.loads(claim), f"{user}@{platform.node()}, process {os.getpid()}"
    while not bucket.put(CLAIM, json.dumps({**ours, "by": me}).encode()):
        found, listed = bucket.get_with_etag(CLAIM, _CLAIM_BYTES), bucket.head(CLAIM)
        if found is None or listed is None:
            continue
        theirs = _object(found[0])
        by = theirs.pop("by", None)
        if theirs == ours:
            return
        since = datetime.fromtimestamp(listed.mtime_ns // 10**9, UTC)
        whose = f"by {printable(str(by))[:200]}, " if by else ""
        place, remove = f"{bucket.url}/{CLAIM}", _REMOVE.get(bucket.url.partition("://")[0])
        raise RemoteError(
            f"another dataset is being copied to {bucket.url}, or its copy was interrupted; choose another URL, or "
            f"remove {place} (written {whose}{since:%Y-%m-%d %H:%M} UTC) if no copy is running"
            f"{f': {remove} {shlex.quote(place)}' if remove else ''}"
        )


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _find_earlier(
    bucket: Bucket, root: Path, manifest: Manifest, text: bytes, base: str | None
) -> tuple[bytes, str, bool] | None:
    """Return the manifest at the URL, its ETag, and whether its state is older; None if there is none. Raises
    RemoteError unless `manifest`, of the dataset in `root`, may replace it. `base`: see upload_dataset."""
    there = bucket.get_with_etag(MANIFEST, MANIFEST_BYTES)
    if there is None:
        return None
    if there[0] == text:
        return *there, False
    try:
        old = parse_manifest(there[0], bucket.url)
    except DatasetError as error:
        names = {found.path for found in bucket.list() if is_data_file(found.path)}
        ours = (each for each in manifest.shards if each.file in names)
        if names - {*_files_of(manifest)} or not any(bucket.holds(one.file, one.bytes, one.sha256) for one in ours):
            raise RemoteError(
                f"{error}; to copy a dataset there, remove the objects with the store's own tools, or choose another "
                "URL"
            ) from None
        return *there, False
    files, is_base = _files_of(old), hashlib.sha256(there[0]).hexdigest() == base
    # An update gives its new files new names: readers find the old files until it is published.
    has_new_names = all(files.get(file.file, file) == file for file in manifest.files())
    if not has_new_names or not (is_base or _is_same_dataset(bucket, old, root, manifest)):
        raise RemoteError(f"{bucket.url} holds another dataset; choose another URL")
    if manifest.generation <= old.generation:
        raise RemoteError(f"{bucket.url} holds a newer state of this dataset; presize fetch downloads it")
    return *there, True


def _is_same_dataset(bucket: Bucket, old: Manifest, root: Path, manifest: Manifest) -> bool:
    """Return whether `old` at the URL is another state of the dataset in `root`: they share a shard, as most updates
    do, or the index, as repairs do, or, with the same options, half of the images of the smaller one (path, CRC-32)."""
    if {*old.shards} & {*manifest.shards} or old.index == manifest.index:
        return True
    theirs, ours = ((each.layout, each.size, each.identity["options"]) for each in (old, manifest))
    if theirs != ours:
        return False
    with temporary_folder("presize-upload-") as folder:
        download_file(bucket, old.index, folder / old.index.file)
        there, here = read_index(folder, old, check=False), read_index(root, manifest)  # the first was just compared
        for place, index in (bucket.url, there), (root, here):
            validate_column(index.column("path"), "path", place)
        rows = pc.index_in(here.column("path"), value_set=there.column("path"))
        is_shared = pc.equal(here.column("crc32"), there.column("crc32").take(rows))
        return bool(2 * (pc.sum(is_shared).as_py() or 0) >= min(old.samples, manifest.samples))


def upload_file(bucket: Bucket, root: Path, file: DataFile, on_bytes: Callable[[int], None]) -> None:
    """Copy a file of `root`. What `on_bytes` raises ends the copy. Raises DatasetError if the SHA-256 differs."""

    def chunks() -> Iterator[bytes]:
        digest = hashlib.sha256()
        with (root / file.file).open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                digest.update(chunk)
                on_bytes(len(chunk))
                yield chunk
        if digest.hexdigest() != file.sha256:
            fix = "; ".join(fixes([file.file]))
            raise DatasetError(f"{root / file.file}: its SHA-256 differs from the manifest; {fix}")

    bucket.upload(file.file, chunks(), file.sha256)
    if not bucket.holds(file.file, file.bytes, file.sha256):
        raise RemoteError(f"{bucket.url}/{file.file} differs from the file that was uploaded; run again to retry")
