"""Builds a dataset at a URL: shards are built in a local folder, and uploaded as they are finished."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from presize.builder.executors.executor import executor_for
from presize.builder.output_dir import OutputDir
from presize.builder.plan import Plan
from presize.builder.resume import check_may_update, differences_from, is_all_of, trying_again
from presize.builder.run import BuildResult, build_planned, nothing_to_do, plan_build, result_of
from presize.builder.shard_table import ShardDone, ShardTable
from presize.errors import BuildError, DatasetError, OptionError
from presize.options import BuildOptions, RunOptions, SourceOptions, check_kinds
from presize.remote.bucket import Bucket, Connections
from presize.remote.cache import default_cache_dir
from presize.remote.fetch import MANIFEST_BYTES, download_file, fetch_dataset
from presize.remote.upload import check_free, claim_place, upload_dataset, upload_file, writable_bucket
from presize.store.data_files import FETCHING, MANIFEST, DataFile
from presize.store.manifest import Manifest, parse_manifest, read_manifest
from presize.system.files import expanded, file_digest, names_in, working_in, write_atomically
from presize.system.locks import file_lock

_PLACE = "presize-builds"
"""Folder of all builds in the scratch folder, which may hold anything else."""
_EFFECTIVE = os.access in os.supports_effective_ids
_LOCK, _CLAIM, _OUT, _DONE = "lock", "claim.json", "out", "done"
_BASE = "base-"
"""Prefix of files that contain the SHA-256 of a manifest that an update replaces, one for each size."""


def build_to_url(
    source: str | os.PathLike[str],
    url: str,
    options: BuildOptions = BuildOptions(),
    run: RunOptions = RunOptions(),
    samples: SourceOptions = SourceOptions(),
    *,
    scratch: str | os.PathLike[str] | None = None,
    on_plan: Callable[[Plan], None] = lambda _: None,
    on_shard: Callable[[ShardDone], None] = lambda _: None,
    on_rest: Callable[[int], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> BuildResult:
    """Resize the images of `source` and publish them as a dataset at `url` (``url/SIZE`` for several), like
    build_dataset into a folder and upload_dataset from there.

    Finished shards are uploaded while others are built; the manifest is uploaded last. Until then the whole dataset is
    also in a folder of `scratch`: only a call with the same `scratch` can resume. With ``run.update`` the dataset is
    fetched to that folder and updated, and new files are uploaded.

    Args:
        source, options, run, samples: as in build_dataset.
        url: s3://BUCKET/PATH, gs:// or az://.
        scratch: a folder with room for the dataset, visible to the workers of a cluster; None for default_cache_dir().
        on_plan, on_shard: as in build_dataset.
        on_rest: called for each size once all shards are built, with the number of bytes still to upload.
        on_bytes: called during that upload, in any thread, with the bytes uploaded since the last call.

    Raises:
        OptionError: ``options.layout`` is "folder", or `scratch` cannot be written to.
        BuildError: another dataset is at `url`.
        RemoteError: another build is uploading to `url`, or it holds a file with the name of one of a dataset; the
            store cannot be written, or has no conditional writes.
        Others as in build_dataset.
    """
    start = time.perf_counter()
    check_kinds(options=options, run=run, samples=samples)
    if options.layout == "folder":
        raise OptionError(f"layout: image files can only be written to a local folder, and OUT is {url}; give a folder")
    folder = _folder_of(url, scratch)
    with working_in(folder), _locked(folder, url):
        for copy in () if run.update else (folder / _OUT, *(folder / _OUT).glob("*/")):
            if (copy / FETCHING).exists() and not (copy / MANIFEST).exists():
                shutil.rmtree(copy)  # left by an interrupted update
        output = OutputDir.for_build(source, folder / _OUT, options, update=run.update, copied=True)
        several = len(output.roots) > 1
        buckets = [writable_bucket(f"{url.rstrip('/')}/{root.name}" if several else url) for root in output.roots]
        there = [_manifest_at(bucket) for bucket in buckets]
        for bucket, manifest in zip(buckets, there, strict=True):
            if manifest is None:
                check_free(bucket)
        plan = plan_build(source, options, samples)
        if (first := there[0]) is not None and first.left_out.get("unreadable"):
            download_file(buckets[0], first.rejects, folder / first.rejects.file)
            run = trying_again(plan, run, there, folder)
        is_update = run.update and all(there)
        if is_update and first is not None:
            for file in (first.index, first.rejects):
                download_file(buckets[0], file, folder / file.file)
            check_may_update(there, plan, url, folder, otherwise="choose another OUT")
        else:
            _check_same(plan, there, url)
        on_plan(plan)
        is_whole = all(there) and not (folder / _CLAIM).exists()
        if is_whole:
            _check_files(buckets, there, url)
        if is_whole and not is_update:
            built, place = nothing_to_do(plan, run, there), folder
            index = built.manifests[0].index
            download_file(buckets[0], index, folder / index.file)
        else:
            place = output.roots[0]
            claim = _claim(folder, buckets)
            for bucket, root in zip(buckets, output.roots, strict=True):
                if is_update and not (root / MANIFEST).exists():  # the local manifest of an update may be newer
                    fetch_dataset(bucket.url, root)
            bases = [_base_of(folder, *each) for each in zip(output.roots, there, strict=True)]
            with _sending(output, plan, buckets) as send:

                def on_finished(done: ShardDone) -> None:
                    send(done)
                    on_shard(done)

                built = build_planned(plan, run, output, executor_for(run), on_finished)
            for bucket, root, base in zip(buckets, output.roots, bases, strict=True):
                upload_dataset(root, bucket.url, claim=claim, base=base, on_plan=on_rest, on_bytes=on_bytes)
        result = result_of(built, plan, url, place, time.perf_counter() - start)
        # The local copy is removed such that a kill leaves all of it or none.
        (folder / _CLAIM).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            (folder / _OUT).rename(folder / _DONE)
        shutil.rmtree(folder)
    return result


def scratch_out(url: str, scratch: str | os.PathLike[str] | None = None) -> Path:
    """Return the local folder that build_to_url builds in."""
    return _folder_of(url, scratch) / _OUT


def _folder_of(url: str, scratch: str | os.PathLike[str] | None) -> Path:
    folder = Path(os.path.abspath(default_cache_dir("scratch") if scratch is None else expanded(scratch)))
    place = folder / _PLACE
    if os.path.lexists(place) and not os.access(place, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):  # another user's
        place = folder / f"{_PLACE}-{os.geteuid()}"
    return place / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]


@contextmanager
def _locked(folder: Path, url: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"scratch: cannot write to {folder.parents[1]}: {error.strerror}; choose a folder with room for the dataset"
        ) from None
    try:
        with file_lock(folder / _LOCK, optional=True):
            shutil.rmtree(folder / _DONE, ignore_errors=True)
            try:
                yield
            finally:
                if names_in(folder) == [_LOCK]:  # nothing was started
                    shutil.rmtree(folder)
    except BlockingIOError:
        raise BuildError(f"another build is writing to OUT {url}; wait, or choose another OUT") from None


def _manifest_at(bucket: Bucket) -> Manifest | None:
    found = bucket.get_with_etag(MANIFEST, MANIFEST_BYTES)
    try:
        return parse_manifest(found[0], bucket.url) if found else None
    except DatasetError as error:
        raise BuildError(f"{error}; remove the objects with the store's own tools, or choose another OUT") from None


def _check_same(plan: Plan, there: Sequence[Manifest | None], url: str) -> None:
    """Raise BuildError if a dataset other than that of `plan` is at `url`."""
    for manifest in there:
        if manifest is not None and not is_all_of(plan, [manifest]):
            differing = "; ".join(differences_from(manifest, plan))
            raise BuildError(
                f"OUT {url} holds a dataset that differs ({differing}); choose another OUT, remove its objects with "
                "the store's own tools, or update it with --update if only its source has changed"
            )


def _check_files(buckets: Sequence[Bucket], there: Sequence[Manifest | None], url: str) -> None:
    """Raise BuildError unless all published files except reports exist and have their sizes."""
    for bucket, manifest in zip(buckets, there, strict=True):
        if manifest is None:
            continue
        sizes = {found.path: found.nbytes for found in bucket.list()}
        for file in manifest.files():
            if file != manifest.report and sizes.get(file.file) != file.bytes:
                found = (
                    f"has {sizes[file.file]} bytes where the manifest says {file.bytes}"
                    if file.file in sizes
                    else "is missing"
                )
                raise BuildError(
                    f"OUT {url} is damaged: {bucket.url}/{file.file} {found}; presize upload sends it again from a "
                    "copy of the dataset; without one, remove all of OUT with the store's own tools and build it again"
                )


def _claim(folder: Path, buckets: Sequence[Bucket]) -> bytes:
    """Claim the URLs for the build in `folder`: another build may differ in bytes, if an image fails in only one."""
    noted = folder / _CLAIM
    if not noted.exists():
        write_atomically(noted, json.dumps({"build": uuid.uuid4().hex}).encode())
    claim = noted.read_bytes()
    for bucket in buckets:
        claim_place(bucket, claim)
    return claim


def _base_of(folder: Path, root: Path, there: Manifest | None) -> str | None:
    """Return the SHA-256 of the manifest at the URL that the dataset in `root` was fetched with, None if it was not.
    It is recorded in `folder` before the local manifest is updated, so that a killed update can be resumed."""
    recorded = folder / f"{_BASE}{root.name}"
    if there is not None and (root / MANIFEST).exists() and read_manifest(root) == there:
        write_atomically(recorded, file_digest(root / MANIFEST)[1].encode())
    return recorded.read_text() if recorded.exists() else None


_Shard = tuple[Bucket, Path, DataFile]
"""Destination, local root and file."""


@contextmanager
def _sending(output: OutputDir, plan: Plan, buckets: Sequence[Bucket]) -> Iterator[Callable[[ShardDone], None]]:
    """Yield a function that uploads finished shards in the background. upload_dataset sends the other files."""
    waiting: SimpleQueue[_Shard | None] = SimpleQueue()
    connections = Connections()

    def copy(shard: _Shard) -> None:
        bucket, root, file = shard
        if not bucket.holds(file.file, file.bytes, file.sha256):
            upload_file(bucket, root, file, connections.passed)

    def send(done: ShardDone) -> None:
        if sent.done():
            sent.result()
        for shard in _files_of(done, output, plan, buckets):
            waiting.put(shard)

    with ThreadPoolExecutor(1, "presize-send") as pool:
        sent = pool.submit(connections.all_of, copy, iter(waiting.get, None))
        try:
            yield send
        except BaseException:
            connections.stop()
            raise
        finally:
            with suppress(Empty):
                while True:
                    waiting.get_nowait()
            waiting.put(None)
    sent.result()


def _files_of(done: ShardDone, output: OutputDir, plan: Plan, buckets: Sequence[Bucket]) -> Iterator[_Shard]:
    """Yield the files of a finished shard; none of an update, whose files are uploaded when it has ended."""
    journal = output.journal()
    if journal is None or journal.update or done.number is None:
        return
    table = ShardTable.read(output.sidecar(done.number), done.number, plan.shard_digest(done.number))
    if table is None:
        return
    targets = dict(zip(plan.options.image.sizes, zip(buckets, output.roots, strict=True), strict=True))
    for stream, file in table.files.items():
        yield *targets[stream.size], file
