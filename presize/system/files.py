"""Files that appear whole or not at all: temporary names, durable renames; sizes and digests."""

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

from presize.errors import BuildError, DatasetError


def is_url(name: str | os.PathLike[str]) -> bool:
    """Return whether `name` is a URL, such as s3://BUCKET/PATH, and no path."""
    return re.match(r"[A-Za-z][\w+.-]*://", os.fspath(name)) is not None


def expanded(path: str | os.PathLike[str]) -> str:
    """Return `path` with ``~`` in front replaced by the home folder, as a shell does."""
    return os.path.expanduser(os.fspath(path))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn any OSError into a BuildError that says why `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot write {path}: {reason_and_fix(error)}") from None


_RESUME = "what is finished is kept, run again to resume"
_FIXES = {
    **dict.fromkeys((errno.EISDIR, errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG), "choose another"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "get permission for it, or choose another"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"make room; {_RESUME}"),
}


def reason_and_fix(error: OSError, otherwise: str = _RESUME) -> str:
    """Return why a file cannot be written, and what to do; `otherwise` where the reason does not tell."""
    # By the number, since Arrow's texts are its own.
    reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
    return f"{reason}; {_FIXES.get(error.errno or 0, otherwise)}"


def open_at_once(path: str, flags: int) -> int:
    """An opener for open() that does not wait for whoever writes to a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def anonymous_file(name: str) -> int:
    """Return a descriptor of a new file in memory, which ends with its last user; `name` is for lists of open files."""
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
    """Return a hidden name beside `path` that no other attempt uses. A hidden file's begins as its own does."""
    return path.with_name(f".{path.name.removeprefix('.')}.{uuid.uuid4().hex}.tmp")


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder and those above; remove it at the end if it was made here and is empty."""
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
    """List a folder; nothing where there is none. One that cannot be listed raises OSError."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp", re.DOTALL)


def remove_temporary(folder: Path, of: Collection[str] | None = None) -> None:
    """Remove temporary files that stopped processes have left in `folder`, of files with these names; None for any."""
    names = None if of is None else {name.removeprefix(".") for name in of}
    for name in names_in(folder):
        match = _TEMPORARY.fullmatch(name)
        if match and (names is None or match[1] in names):
            (folder / name).unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write `content`, whole or in pieces: `path` holds its old content or all of the new, even after a crash."""
    with writing(path), new_files(path.parent) as new_file, new_file(path.name).open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)


@contextmanager
def new_files(folder: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function from a file's name to its temporary path. All get their names, durably, when the block ends, and
    are removed when it fails."""
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
"""Errors of calls that a file system does not have, as flock and fsync of a folder on some of FUSE and NFS."""


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable, where its file system can."""
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
    """A new folder, removed with the block. Those with its prefix that killed processes of this user have left, on
    which nobody holds a lock (flock), are removed first."""
    place = Path(tempfile.gettempdir())
    for name in names_in(place):
        if name.startswith(prefix):
            _remove_if_left(place / name)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):  # another process took it for one that was left
            held = _open_folder(folder)
            with suppress(OSError):  # the file system has no locks: no other process will take it away
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
    with suppress(OSError):  # it has an owner, or belongs to another user
        held = _open_folder(folder)
        try:
            if os.fstat(held).st_uid == os.geteuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)
