"""The operating system's page cache: filling it, locking it, dropping files from it, and how far it reads ahead."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from presize.errors import DatasetError, OptionError
from presize.formatting import size_text
from presize.system.files import check_file
from presize.system.resources import read_memory

Preload = Literal["page-cache", "memory"]

_READ_BYTES = 4 << 20
_READERS = 8
"""Number of files read at the same time: a single reader waits for each response of a network disk."""


def preload(files: Sequence[tuple[Path, int]], how: Preload) -> list[MappedFile]:
    """Read `files` (path, bytes) into the page cache, which all processes share.

    "memory" locks the pages (mlock, ``ulimit -l``) while this process references the result. Readers map the same
    pages, so all workers and ranks share one copy. "page-cache" lets the kernel evict them, and returns an empty list.
    Raises OptionError if the files exceed the available memory or may not be locked, DatasetError if one is missing or
    has the wrong size."""
    for path, nbytes in files:
        check_file(path, nbytes)
    _check_room(files, how)
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(lambda file: fill(*file), files))
    for path, nbytes in files:  # again, since it may have been truncated or replaced meanwhile
        check_file(path, nbytes)
    if how == "page-cache":
        return []
    mapped = [MappedFile(path, nbytes) for path, nbytes in files]
    for file in mapped:
        if not file.lock():
            soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            allowed = "less" if soft == resource.RLIM_INFINITY else size_text(soft)
            raise OptionError(
                f"preload: 'memory' locks {size_text(sum(nbytes for _, nbytes in files))}, but this process may lock "
                f"{allowed}; allow more with ulimit -l (docker run --ulimit memlock=-1), choose 'page-cache', "
                "or copy the dataset to /dev/shm and open it there"
            )
    return mapped


def _check_room(files: Sequence[tuple[Path, int]], how: Preload) -> None:
    memory = read_memory()
    needed, available = sum(nbytes for _, nbytes in files), memory.available
    missing = needed - available
    # What another process has locked is not available, but some of it may be these very files.
    if missing > 0 and (missing > memory.locked or missing > sum(MappedFile(*file).resident_bytes() for file in files)):
        raise OptionError(
            f"preload: {how!r} needs {size_text(needed)} of memory, but {size_text(available)} is available; "
            "leave preload out, or build smaller images"
        )


def fill(path: Path, nbytes: int) -> None:
    """Read the first `nbytes` of a file into the page cache. Raises DatasetError if it cannot be read."""
    buffer = bytearray(_READ_BYTES)
    try:
        with path.open("rb", buffering=0) as file:
            while nbytes > 0 and (read := file.readinto(buffer)):
                nbytes -= read
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; copy or build the dataset again") from None


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = _libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """A file that is mapped as long as this object lives. Python's mmap would keep a descriptor open for each."""

    def __init__(self, path: Path, nbytes: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        finally:
            os.close(fd)
        if address == _FAILED:
            raise DatasetError(f"{path} cannot be mapped: {os.strerror(ctypes.get_errno())}")
        self._address, self._nbytes = address, nbytes
        weakref.finalize(self, _libc.munmap, address, nbytes).atexit = False

    def lock(self) -> bool:
        """Lock the pages in memory while this process maps the file. Returns False if that is not allowed."""
        return int(_libc.mlock(self._address, self._nbytes)) == 0

    def resident_bytes(self) -> int:
        """Return the bytes in memory, in whole pages; all pages count if this process may not write the file."""
        pages = ctypes.create_string_buffer(-(-self._nbytes // mmap.PAGESIZE))
        if _libc.mincore(self._address, self._nbytes, pages) != 0:
            return 0
        return (len(pages.raw) - pages.raw.count(b"\0")) * mmap.PAGESIZE


def drop_pages(fd: int, nbytes: int = 0) -> None:
    """Ask the kernel to drop the first `nbytes` of an open file, or all of it, from the page cache.

    The kernel keeps pages that are dirty, mapped, or of a file system in memory. Does nothing on macOS."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, nbytes, os.POSIX_FADV_DONTNEED)


def drop(files: Iterable[Path]) -> None:
    """Write `files` to storage, then drop them from the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            drop_pages(fd)
        finally:
            os.close(fd)


_FILES_SAMPLED = 1000


def resident_share(files: Sequence[Path]) -> float:
    """Return the share of pages in memory, from 0 to 1, of up to 1,000 files; 1 if they may not be written."""
    pages = resident = 0
    for path in files[:: -(-len(files) // _FILES_SAMPLED) or 1]:
        nbytes = path.stat().st_size
        if nbytes:
            pages += -(-nbytes // mmap.PAGESIZE)
            resident += MappedFile(path, nbytes).resident_bytes() // mmap.PAGESIZE
    return resident / pages if pages else 0.0


_WINDOW_RECORDS = 12
"""Reading a record of a twelfth of the window page by page (4 KiB) takes about as long as reading the whole window
if a request takes 50 µs and throughput is 1 GB/s. In benchmarks/storage/results/storage.csv (2026-11-28) a window of
128 KiB breaks even near 30 kB. Disks of higher latency break even sooner."""


def readahead_pays(record_bytes: float, dataset_bytes: int, memory_bytes: int, window_bytes: int) -> bool:
    """Return whether readahead of `window_bytes` makes random reads from a cold cache faster.

    It does if all shards fit into the available memory, since pages read ahead are needed later in the epoch; or if
    records are large, since LMDB reads them page by page, and without readahead each page is a request to the disk.
    Otherwise most of a window would be evicted before it is needed."""
    return dataset_bytes <= memory_bytes or record_bytes * _WINDOW_RECORDS >= window_bytes
