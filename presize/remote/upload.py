"""A dataset copied to a URL, file by file: its manifest comes last, and until then there is no dataset."""

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

from presize.errors import DatasetError, RemoteError
from presize.formatting import printable
from presize.remote.bucket import PART_BYTES, Bucket, Connections, etag_of
from presize.remote.fetch import MANIFEST_BYTES
from presize.store.data_files import MANIFEST, DataFile, is_data_file
from presize.store.manifest import Manifest, parse_manifest, read_manifest, replaced
from presize.system.files import check_file, expanded

CLAIM = ".presize-uploading.json"
"""Says which dataset is being copied to a place."""

_CLAIM_BYTES = 1 << 16
_REMOVE = {"s3": "aws s3 rm", "gs": "gcloud storage rm"}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class UploadResult:
    """Result of an upload.

    Attributes:
        bytes: of all files of the dataset.
        uploaded: bytes that went over the network.
        sent_again: files of a dataset at `url` that were missing or differed.
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
    on_plan: Callable[[int], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> UploadResult:
    """Copy the dataset in `root` to `url`, where it appears when all of it is there; called again, finish a copy.

    Files that are missing or differ are sent again: in their size, in the SHA-256 that is recorded with them, or, where
    the store's ETags are made of MD5s as those of S3 are, in their content. A newer state of the dataset, as ``presize
    build --update`` makes it, takes its place: shared files are not copied again, and files of the old one alone are
    removed at the end. Another dataset is refused, by writes that fail where there is something already.

    Args:
        root: a dataset of shards.
        url: s3://BUCKET/PATH, gs:// or az:// (see Bucket).
        claim: with which the place was claimed before; None to claim it for all copies of this dataset.
        on_plan: called with the number of bytes that are to be copied.
        on_bytes: called, in any thread, with the number of bytes that have gone since the last call.

    Raises:
        DatasetError: there is no dataset in `root`, or it is damaged, or one of image files.
        RemoteError: another dataset is at `url`, or is being copied there; it cannot be written, or has no such writes.
    """
    start = time.perf_counter()
    root, bucket = Path(expanded(root)), writable_bucket(url)
    read_manifest(root)  # which says what is there instead of a dataset
    text = (root / MANIFEST).read_bytes()
    manifest = parse_manifest(text, root)  # of this text: an update may publish another
    if manifest.layout == "folder":
        raise DatasetError(f"{root} is a folder of image files; copy it with a tool of the store")
    nbytes = len(text) + sum(file.bytes for file in manifest.files())
    ours = json.dumps({"manifest": hashlib.sha256(text).hexdigest(), "digest": manifest.digest}).encode()
    _find_earlier(bucket, manifest, text)  # what is refused claims nothing
    claim_place(bucket, claim or ours)
    there = _find_earlier(bucket, manifest, text)
    connections = Connections(on_bytes)
    # The store's own answer for a small object, if only that of the claim; a build has sent its files itself.
    known = None if claim else bucket.get_with_etag(CLAIM, _CLAIM_BYTES)
    content, etag = (known or there or (b"", ""))[:2]
    compare_etags = etag_of(BytesIO(content)) == etag.strip('"')  # not where it is encrypted
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
            raise RemoteError(f"{bucket.url}: another dataset has appeared there meanwhile; choose another place")
    files = _files_of(manifest)
    for found in bucket.list():
        if is_data_file(found.path) and found.path not in files:
            bucket.remove(found.path)
    bucket.remove(CLAIM)
    sent = sorted(file.file for file in missing)
    if there is None or there[2]:
        sent = []  # nothing of this state was there
    elif there[0] != text:
        sent.append(MANIFEST)
    seconds = time.perf_counter() - start
    return UploadResult(bucket.url, manifest.samples, nbytes, connections.bytes, seconds, tuple(sent))


def _files_of(manifest: Manifest) -> dict[str, DataFile]:
    return {file.file: file for file in manifest.files()}


def writable_bucket(url: str) -> Bucket:
    """Raise RemoteError for a URL that takes no files."""
    bucket = Bucket(url)
    if bucket.url.startswith("http"):
        raise RemoteError(f"{bucket.url}: a web server takes no files; give s3://, gs:// or az://")
    return bucket


def claim_place(bucket: Bucket, claim: bytes) -> None:
    """Note at the place what is being copied there; another copy may join with the same claim, an object of JSON.
    Raises RemoteError when the place has been claimed otherwise, or when the store lets two claim one place."""
    probe = f".presize-{uuid.uuid4().hex}"
    refuses = bucket.put(probe, b"") and not bucket.put(probe, b"")
    bucket.remove(probe)
    if not refuses:
        raise RemoteError(
            f"{bucket.url}: this store does not refuse to write what is there already (If-None-Match), so that two "
            "copies to one place could mix; copy it with another tool, or to another store"
        )
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
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
        whose = f" of {printable(str(by))[:200]}" if by else ""
        place, remove = f"{bucket.url}/{CLAIM}", _REMOVE.get(bucket.url.partition("://")[0])
        raise RemoteError(
            f"another dataset is being copied to {bucket.url}, or its copy ended early; choose another place, or "
            f"remove {place},{whose} since {since:%Y-%m-%d %H:%M} UTC, if nobody copies there"
            f"{f': {remove} {shlex.quote(place)}' if remove else ''}"
        )


def _object(text: bytes) -> dict[str, Any]:
    """Return the object that JSON holds; an empty one for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _find_earlier(bucket: Bucket, manifest: Manifest, text: bytes) -> tuple[bytes, str, bool] | None:
    """Return the manifest at the place, its ETag, and whether it is that of an older state. Raises RemoteError unless
    `manifest` may take its place."""
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
                f"{error}; to copy a dataset there, remove what is there with a tool of the store, or choose another "
                "place"
            ) from None
        return *there, False
    files, shards = _files_of(old), {*old.shards} & {*manifest.shards}
    # The next state shares shards, and its other files have other names: readers find the old ones until it is there.
    if not shards or any(files.get(file.file, file) != file for file in manifest.files()):
        raise RemoteError(f"{bucket.url} holds another dataset; choose another place")
    if manifest.generation <= old.generation:
        raise RemoteError(f"{bucket.url} holds a newer state of this dataset; presize fetch copies it from there")
    return *there, True


def upload_file(bucket: Bucket, root: Path, file: DataFile, on_bytes: Callable[[int], None]) -> None:
    """Copy a file of `root`. What `on_bytes` raises ends it. Raises DatasetError when it is not `file`."""

    def chunks() -> Iterator[bytes]:
        digest = hashlib.sha256()
        with (root / file.file).open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                digest.update(chunk)
                on_bytes(len(chunk))
                yield chunk
        if digest.hexdigest() != file.sha256:
            raise DatasetError(f"{root / file.file}: its SHA-256 differs from the manifest; presize repair rebuilds it")

    bucket.upload(file.file, chunks(), file.sha256)
    if not bucket.holds(file.file, file.bytes, file.sha256):
        raise RemoteError(f"{bucket.url}/{file.file} is not what was written there; run again")
