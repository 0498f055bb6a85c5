"""Files and the operating system's page cache: how far it reads ahead, and how to fill it beforehand."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from presize.errors import DatasetError, OptionError
from presize.system.files import check_file
from presize.system.resources import read_memory

Preload = Literal["page-cache", "memory"]

_READ_BYTES = 4 << 20
_READERS = 8
"""Files read at a time. One reader waits for each answer of a network disk; eight keep it busy."""

_DEFAULT_WINDOW_BYTES = 128 << 10
"""Linux's own (VM_READAHEAD_PAGES)."""


def preload(files: Sequence[tuple[Path, int]], how: Preload) -> list[MappedFile]:
    """Read `files`, (path, bytes) each, into the page cache, which every process shares.

    "page-cache" leaves it to the kernel for how long they stay there; the result is empty. "memory" locks
    them there for as long as the result is kept, which forked children do not prolong.

    Locking (mlock) and not copying: the pages are those that readers map anyhow, so that any number of workers
    and of ranks have one copy between them, nothing has to be handed to a worker, and swapping is ruled out.
    The price is that it has to be allowed (``ulimit -l``).

    Returns when all has been read. Raises OptionError when they do not fit into the memory that is available, or
    may not be locked, and DatasetError when one is missing or not of its size.
    """
    for path, nbytes in files:
        check_file(path, nbytes)
    _check_room(files, how)
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(lambda file: _read(*file), files))
    if how == "page-cache":
        return []
    mapped = [MappedFile(path, nbytes) for path, nbytes in files]
    for file in mapped:
        if not file.lock():
            soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            allowed = "no more" if soft == resource.RLIM_INFINITY else _mb(soft)
            raise OptionError(
                f"preload: 'memory' locks {_mb(sum(nbytes for _, nbytes in files))}, and this process may lock "
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
            f"preload: {how!r} needs {needed} bytes ({_mb(needed)}) of memory, and {available} ({_mb(available)}) are "
            "available; leave preload out, or build smaller images"
        )


def _read(path: Path, nbytes: int) -> None:
    """Read a file from end to end, through a buffer that is thrown away."""
    buffer, done = bytearray(_READ_BYTES), 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                done += count
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; copy or build the dataset again") from None
    if done != nbytes:
        raise DatasetError(
            f"{path} changed while it was read: {done} bytes of {nbytes}; copy or build the dataset again"
        )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = _libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """A file mapped for reading, until nothing refers to it any more.

    Python's own mmap keeps a file descriptor each, and a dataset has hundreds of shards.
    """

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
        """Keep its pages in memory while it is mapped by this process. False where that is not allowed."""
        return int(_libc.mlock(self._address, self._nbytes)) == 0

    def resident_bytes(self) -> int:
        """How much of it is in memory now, in whole pages; all of it for who may not write the file."""
        pages = ctypes.create_string_buffer(-(-self._nbytes // mmap.PAGESIZE))
        if _libc.mincore(self._address, self._nbytes, pages) != 0:
            return 0
        return (len(pages.raw) - pages.raw.count(b"\0")) * mmap.PAGESIZE


_LOOKED_AT = 1000


def drop(files: Sequence[Path]) -> None:
    """Ask the kernel to forget `files` (POSIX_FADV_DONTNEED), written to storage first. It keeps pages that a process
    has mapped, and those of file systems that are memory; resident_share() tells. Needs no rights but to read."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def resident_share(files: Sequence[Path]) -> float:
    """The share of the pages of `files` that are in memory, from 0 to 1; of up to 1,000 of them, evenly chosen. 1
    for who may not write them, whom the kernel does not tell."""
    pages = resident = 0
    for path in files[:: -(-len(files) // _LOOKED_AT) or 1]:
        nbytes = path.stat().st_size
        if nbytes:
            pages += -(-nbytes // mmap.PAGESIZE)
            resident += MappedFile(path, nbytes).resident_bytes() // mmap.PAGESIZE
    return resident / pages if pages else 0.0


def window_bytes(path: str | os.PathLike[str]) -> int:
    """How far the kernel reads ahead in this file's file system: 128 KiB for most, local or network, and
    some MB for arrays and the disks of some clouds. 128 KiB where it does not say."""
    with contextlib.suppress(OSError):
        device = os.stat(path).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        for window in (f"/sys/class/bdi/{name}/read_ahead_kb", f"/sys/dev/block/{name}/../queue/read_ahead_kb"):
            with contextlib.suppress(OSError, ValueError):
                return int(Path(window).read_text()) << 10
    return _DEFAULT_WINDOW_BYTES


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
