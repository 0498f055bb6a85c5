"""Atomic writing of files, with temporary names and durable renames; sizes and digests of files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from presize.errors import BuildError, DatasetError, OptionError

RESUME = "finished work is kept; run again to resume"
AGAIN = "run again"
"""Fixes after a failed write: RESUME if a second run continues the first, AGAIN if it starts over."""


def is_url(name: str | os.PathLike[str]) -> bool:
    """Return whether `name` is a URL, such as s3://BUCKET/PATH, not a path."""
    return re.match(r"[A-Za-z][\w+.-]*://", os.fspath(name)) is not None


def expanded(path: str | os.PathLike[str]) -> str:
    """Return `path` with a leading ``~`` replaced by the home folder, as a shell does. OptionError for other types."""
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(f"expected a path or a URL, got {path!r}")
    return os.path.expanduser(os.fspath(path))


@contextmanager
def writing(path: Path, then: str = RESUME) -> Iterator[None]:
    """Turn any OSError into a BuildError that says why `path` cannot be written, and what to do `then`."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot write {path}: {reason_and_fix(error, then)}") from None


_FIXES = {
    **dict.fromkeys((errno.EISDIR, errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG), "choose another"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "get write access, or choose another"),
}


def reason_and_fix(error: OSError, then: str = RESUME) -> str:
    """Return why a file cannot be written, and the fix: `then`, after making room on a full disk, unless the reason has
    its own."""
    # From the number, since Arrow has its own messages.
    reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
    room = "make room; " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{reason}; {_FIXES.get(error.errno or 0, room + then)}"


def open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a named pipe. An opener for open()."""
    return os.open(path, flags | os.O_NONBLOCK)


def anonymous_file(name: str) -> int:
    """Return a descriptor of a new file in memory, freed with its last user. Lists of open files show `name`."""
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Turn an OSError about any file in `folder` into a BuildError that names the file."""
    try:
        yield
    except OSError as error:
        file = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes, os.PathLike)) else folder
        raise BuildError(f"OUT {folder}: {file}: {reason_and_fix(error)}") from None


def temporary_name(path: Path) -> Path:
    """Return a unique hidden name next to `path`, with only one leading dot if `path` is hidden."""
    return path.with_name(f".{path.name.removeprefix('.')}.{uuid.uuid4().hex}.tmp")


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; at the end, remove it if this call created it and it is empty."""
    created = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if created:
            sync_folder(folder.parent)
        yield
    finally:
        if created:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if it does not exist. Raises OSError if it cannot be listed."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp", re.DOTALL)


def remove_temporary(folder: Path, of: Collection[str] | None = None) -> None:
    """Remove temporary files that stopped processes left in `folder`: those of files named in `of`, or all for None."""
    names = None if of is None else {name.removeprefix(".") for name in of}
    for name in names_in(folder):
        match = _TEMPORARY.fullmatch(name)
        if match and (names is None or match[1] in names):
            (folder / name).unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | Iterable[bytes], then: str = RESUME) -> None:
    """Write `content`, bytes or pieces, atomically: even after a crash, `path` holds all of the old or the new. The
    BuildError of a full disk ends with what to do `then`."""
    with writing(path, then), new_files(path.parent) as new_file, new_file(path.name).open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)


@contextmanager
def new_files(folder: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function from file name to temporary path. At the end all are renamed durably, or removed on failure."""
    temporary: dict[str, Path] = {}

    def new_file(name: str) -> Path:
        return temporary.setdefault(name, temporary_name(folder / name))

    try:
        yield new_file
        for path in temporary.values():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        for name, path in temporary.items():
            os.replace(path, folder / name)
        sync_folder(folder)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def rename(temporary: Path, path: Path) -> None:
    """Rename a synced file durably."""
    os.replace(temporary, path)
    sync_folder(path.parent)


NOT_OFFERED = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of calls that a file system does not support, such as flock and fsync of a folder on some FUSE and NFS."""


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable, if its file system supports that."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise
    finally:
        os.close(fd)


def file_digest(path: Path) -> tuple[int, str]:
    """Return size in bytes and SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def is_file_of(path: str | os.PathLike[str], nbytes: int) -> bool:
    try:
        return os.stat(path).st_size == nbytes
    except FileNotFoundError:
        return False


def is_same_file(path: str | os.PathLike[str], inode: tuple[int, int]) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == inode


def check_file(path: str | os.PathLike[str], nbytes: int) -> os.stat_result:
    """Raise DatasetError unless `path` is a file of `nbytes`. Call it before mapping a file."""
    try:
        status = os.stat(path)
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
        fix = "; the dataset is incomplete, or was moved or replaced" if gone else ""
        raise DatasetError(f"{path}: {error.strerror}{fix}") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size != nbytes:
        # Mapping a truncated file would kill the process with SIGBUS.
        raise DatasetError(
            f"{path} has {status.st_size} bytes where the manifest says {nbytes}: truncated or replaced; "
            "copy or build the dataset again"
        )
    return status


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder, removed when the block ends. First removes the folders with `prefix` that killed processes of
    this user left: nobody holds a lock (flock) on them. Their names end in .tmp; others may begin with `prefix`."""
    place = Path(tempfile.gettempdir())
    for name in names_in(place):
        if re.fullmatch(rf"{re.escape(prefix)}[a-z0-9_]{{8}}\.tmp", name):
            _remove_if_left(place / name)
    while True:
        folder = Path(tempfile.mkdtemp(".tmp", prefix))
        with suppress(FileNotFoundError):  # another process removed it as a leftover
            held = _open_folder(folder)
            with suppress(OSError):  # the file system has no locks: no other process will remove it
                fcntl.flock(held, fcntl.LOCK_EX)
            if folder.exists():
                break
            os.close(held)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # it is in use, or belongs to another user
        held = _open_folder(folder)
        try:
            if os.fstat(held).st_uid == os.geteuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)
