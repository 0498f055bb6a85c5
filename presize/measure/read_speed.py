"""Speed of reading files from disk, cold if possible. Writes nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from presize.errors import DatasetError
from presize.store.manifest import read_manifest
from presize.system.files import check_file
from presize.system.pagecache import MappedFile, drop_pages, fill

FILES_LISTED = 4000
_LISTING_S = 1.0
_PHASE_S = 1.5
_FILES_A_PHASE = 1000
_SHARDS_A_PHASE = 64  # held open together
_RANDOM_READS = 1000
_PHASE_BYTES = 256 << 20
_BLOCK_BYTES = 4 << 20
_LARGEST_READ_BYTES = 8 << 20
_TOO_LITTLE_BYTES = 4 << 20
_COLD_SHARE = 0.05
_PAGE_BYTES = 4096
_PART_BYTES = 32 << 10  # read at once from a single file: about a record of 256 px


class File(NamedTuple):
    path: Path
    nbytes: int


@dataclass(frozen=True)
class Content:
    files: tuple[File, ...]
    record_bytes: int  # mean size of a sample
    shards: bool  # whether a file holds many records; False: each file is one
    all_files: bool  # whether `files` is complete

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def list_content(path: Path) -> Content:
    """List the shards of the dataset in `path`; or, without one, up to 4000 files in and below it that are not empty,
    as many as are found within a second. Does not follow links. A single file counts as a shard.

    Raises DatasetError if `path` does not exist."""
    try:
        status = path.stat()
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; expected a dataset, a folder of images or a file") from None
    if not stat.S_ISDIR(status.st_mode):
        only = [File(path, status.st_size)] if stat.S_ISREG(status.st_mode) and status.st_size else []
        return Content(tuple(only), min(status.st_size, _PART_BYTES), shards=True, all_files=True)
    with contextlib.suppress(DatasetError):  # no dataset, or a damaged one: read its files
        manifest = read_manifest(path)
        if manifest.layout == "lmdb":
            shards = tuple(File(path / shard.file, shard.bytes) for shard in manifest.shards)
            for shard in shards:
                check_file(*shard)
            return Content(shards, manifest.bytes // manifest.samples, shards=True, all_files=True)
    files, all_files = _files_below(path)
    mean_bytes = sum(file.nbytes for file in files) // max(1, len(files))
    return Content(tuple(files), mean_bytes, shards=False, all_files=all_files)


def _files_below(root: Path) -> tuple[list[File], bool]:
    """Return files, and whether these are all. Listing stops early, because a folder may have millions."""
    found, folders, until = list[File](), [root], time.monotonic() + _LISTING_S
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:  # not permitted, or deleted meanwhile
            for entry in entries:
                if len(found) == FILES_LISTED or time.monotonic() > until:
                    return found, False
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry))
                elif entry.is_file(follow_symlinks=False) and (nbytes := entry.stat().st_size):
                    found.append(File(Path(entry), nbytes))
    return found, True


@dataclass(frozen=True)
class Reading:
    """Measured speed of reading. A remote disk may have its own cache."""

    sequential_bytes_per_s: float  # one reader
    random_reads_per_s: float  # records in random order, all readers
    record_bytes: int  # mean size of these records
    readers: int  # threads that read records
    cold: bool | None  # whether all data came from storage, not the page cache; None if not known


Part = tuple[Path, int, int]  # a file, byte offset and number of bytes, for one read


def measure(content: Content, readers: int) -> Reading | None:
    """Drop some of `content` from the page cache and read it: up to 1.5 s in random order and 1.5 s sequentially, at
    most about 256 MiB each. Files that were in the page cache are read into it again, because training may run on them
    now or next. Returns None if there is too little to measure. Raises OSError if a file cannot be read."""
    if content.nbytes < _TOO_LITTLE_BYTES:
        return None
    draw = random.Random(0)
    files = draw.sample(content.files, len(content.files))
    # Two sets of files if possible: storage behind the disk may cache the first one.
    at_random, in_order = (_some(files[first::2] or files, content.shards) for first in (0, 1))
    cached = [file for file in dict.fromkeys([*at_random, *in_order]) if _is_cached(file)]
    try:
        return _measured(content, at_random, in_order, readers, draw)
    finally:
        with ThreadPoolExecutor(readers) as pool, contextlib.suppress(DatasetError):  # deleted meanwhile
            list(pool.map(lambda file: fill(*file), cached))


def _measured(
    content: Content, at_random: Sequence[File], in_order: Sequence[File], readers: int, draw: random.Random
) -> Reading | None:
    cold = [_drop(at_random)]
    if content.shards:
        parts = random_parts(at_random, content.record_bytes, draw)
    else:
        parts = [(path, 0, min(nbytes, _LARGEST_READ_BYTES)) for path, nbytes in at_random]
    count, read_bytes, random_s = _read(parts, readers, keep_open=content.shards, at_random=True)
    cold.append(_drop(in_order))
    blocks = [
        (path, offset, min(_BLOCK_BYTES, nbytes - offset))
        for path, nbytes in sorted(in_order)
        for offset in range(0, nbytes, _BLOCK_BYTES)
    ]
    most = _PHASE_BYTES // _BLOCK_BYTES if content.shards else _FILES_A_PHASE
    _, sequential_bytes, sequential_s = _read(blocks[:most], 1, keep_open=content.shards)
    if not count:  # the files were emptied meanwhile
        return None
    return Reading(
        sequential_bytes_per_s=sequential_bytes / sequential_s,
        random_reads_per_s=count / random_s,
        record_bytes=read_bytes // count,
        readers=readers,
        cold=None if None in cold else all(cold),
    )


def _some(files: Sequence[File], are_shards: bool) -> list[File]:
    """Return the first files, up to the bytes and number of files of a phase. The last one may be a part of a file."""
    before = itertools.accumulate((file.nbytes for file in files), initial=0)
    rooms = ((file, _PHASE_BYTES - nbytes) for file, nbytes in zip(files, before, strict=False))
    some = [File(file.path, min(file.nbytes, room)) for file, room in rooms if room >= _PAGE_BYTES]
    return some[: _SHARDS_A_PHASE if are_shards else _FILES_A_PHASE]


def _is_cached(file: File) -> bool:
    """Return whether nearly all of a file is in the page cache; True if that is not known."""
    try:
        return MappedFile(*file).resident_bytes() >= (1 - _COLD_SHARE) * file.nbytes
    except DatasetError:  # a file system without mmap
        return True


def _drop(files: Sequence[File]) -> bool | None:
    """Drop files from the page cache. Return whether that worked; None if not known."""
    for path, nbytes in files:
        with open(path, "rb", buffering=0) as opened:
            drop_pages(opened.fileno(), nbytes)
    try:
        resident = sum(MappedFile(path, nbytes).resident_bytes() for path, nbytes in files)
    except DatasetError:  # a file system without mmap
        return None
    is_cold = resident <= _COLD_SHARE * sum(file.nbytes for file in files)
    return is_cold if all(_is_told(file.path) for file in files) else None


def _is_told(path: Path) -> bool:
    """Return False for files that we neither own nor may write: the kernel reports all of them as cached."""
    is_owner = os.geteuid() in (0, path.stat().st_uid)
    return is_owner or os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def random_parts(files: Sequence[File], nbytes: int, draw: random.Random) -> list[Part]:
    """Return up to 1,000 random parts of the files, each of `nbytes`. Like large LMDB records, no two share a page."""
    step = -(-max(1, nbytes) // _PAGE_BYTES) * _PAGE_BYTES
    slots = [file.nbytes // step for file in files]
    if not any(slots):
        return []
    numbers = draw.choices(range(len(files)), slots, k=_RANDOM_READS)
    places = dict.fromkeys((number, draw.randrange(slots[number])) for number in numbers)
    return [(files[number].path, slot * step, nbytes) for number, slot in places]


def _read(parts: Sequence[Part], readers: int, *, keep_open: bool, at_random: bool = False) -> tuple[int, int, float]:
    """Read parts for the time of a phase. Returns their number, their bytes and the seconds. `keep_open`: open each
    file once, not for each part. `at_random`: without readahead; needs `keep_open`."""
    waiting, largest = iter(parts), max((nbytes for _, _, nbytes in parts), default=0)
    with contextlib.ExitStack() as stack:
        opened = {}
        for path in {path for path, _, _ in parts} if keep_open else ():
            opened[path] = stack.enter_context(open(path, "rb", buffering=0))
            if at_random and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(opened[path].fileno(), 0, 0, os.POSIX_FADV_RANDOM)

        def read_some() -> list[int]:
            done = []
            buffer = memoryview(bytearray(largest))
            while time.perf_counter() < until and (part := next(waiting, None)) is not None:
                path, offset, nbytes = part
                with contextlib.nullcontext(opened[path]) if keep_open else open(path, "rb", buffering=0) as file:
                    done.append(os.preadv(file.fileno(), [buffer[:nbytes]], offset))
            return done

        start = time.perf_counter()
        until = start + _PHASE_S
        with ThreadPoolExecutor(readers) as pool:
            found = [future.result() for future in [pool.submit(read_some) for _ in range(readers)]]
        seconds = time.perf_counter() - start
    return sum(map(len, found)), sum(map(sum, found)), seconds
