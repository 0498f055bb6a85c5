"""What a source file is: where the bytes of a sample lie, alone or in a container, which must stay as it was listed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from presize.codecs.sniff import sniff
from presize.errors import BuildError
from presize.remote.bucket import SCHEMES
from presize.store.rejects import claims_to_be_an_image
from presize.system.file_version import FileVersion
from presize.system.files import is_url, open_at_once

T = TypeVar("T")


class Url(str):
    """The address of images in a store: s3://BUCKET/PATH, http(s)://HOST/PATH, gs:// or az://."""

    __slots__ = ()

    @classmethod
    def of(cls, source: str | os.PathLike[str]) -> Url | None:
        """Return None for a folder, whatever its name looks like."""
        name = os.fspath(source)
        is_known = is_url(name) and name.partition("://")[0] in SCHEMES
        return cls(name.rstrip("/")) if is_known and not os.path.lexists(name) else None


class Container(NamedTuple):
    """A file that holds many samples: an LMDB, a tar, or a Parquet file.

    Attributes:
        path: from the source, POSIX.
        version: of the file that was listed. In another file, other images may lie in the same places.
        column: the column of the images in a Parquet file; empty for the others.
    """

    path: str
    version: FileVersion
    column: str = ""

    @classmethod
    def of_json(cls, path: str, version: Iterable[Any], column: str) -> Container:
        """Make a container of what JSON made of one."""
        return cls(path, FileVersion(*version), column)


class SourceFile(NamedTuple):
    """Where the bytes of a sample are: in a file of their own, or at a place in a container.

    Attributes:
        path: from the source, or the name of the sample in its container.
        nbytes: the size when it was listed; in a Parquet file a mean.
        container: None for a file of its own.
        offset: of the first byte in the container; in a Parquet file, row_place() of the row.
    """

    path: str
    nbytes: int
    container: Container | None = None
    offset: int = 0

    @property
    def claims_to_be_an_image(self) -> bool:
        """Whether it is rejected, and not skipped, when it is no image. Containers list nothing but images."""
        return self.container is not None or claims_to_be_an_image(self.path)


class Places(NamedTuple):
    """Where samples lie in containers.

    Attributes:
        containers: those that the samples lie in.
        container: of each sample, its position in `containers`.
        offset: of each sample, as in SourceFile.
    """

    containers: tuple[Container, ...]
    container: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]

    @property
    def in_rows(self) -> bool:
        """Whether they are rows of Parquet files, which are read one after the other."""
        return any(container.column for container in self.containers)


def source_files(paths: list[str], nbytes: list[int], places: Places | None) -> list[SourceFile]:
    """The files of samples; `places` for those of containers."""
    if places is None:
        return list(map(SourceFile, paths, nbytes))
    containers = (places.containers[number] for number in places.container.tolist())
    return list(map(SourceFile, paths, nbytes, containers, places.offset.tolist()))


def in_any_form(path: str, use: Callable[[str], T]) -> T:
    """Return what a call makes of a path; where there is no such file, of the path in another Unicode normalization:
    that of a companion follows its image, and the two may come from different systems. Raises what the call raises."""
    try:
        return use(path)
    except FileNotFoundError:
        for form in () if path.isascii() else ("NFC", "NFD"):
            with suppress(FileNotFoundError):
                return use(normalize(form, path))
        raise


_RUN_AGAIN = "run again, with --overwrite if it then refuses because the samples differ"


def open_container(source: str | os.PathLike[str], container: Container, fix: str = _RUN_AGAIN) -> int:
    """Open a container, unless it has changed since it was listed. Returns a descriptor.

    Raises:
        BuildError: it has changed; the message ends with `fix`.
        OSError: it cannot be opened.
    """
    file = open_at_once(os.path.join(source, container.path), os.O_RDONLY | os.O_CLOEXEC)
    if FileVersion.of(os.fstat(file)).same_as(container.version):
        return file
    os.close(file)
    raise BuildError(
        f"{container.path!r} in {source} changed during the build: its size, times or inode number are not those that "
        f"were listed; {fix}"
    )


def check_containers(source: str | os.PathLike[str], containers: Iterable[Container], fix: str = _RUN_AGAIN) -> None:
    """Raise BuildError if a container has changed since it was listed, or cannot be opened."""
    for container in containers:
        try:
            os.close(open_container(source, container, fix))
        except OSError as error:
            raise unreadable(source, container.path, f"{error.strerror}; run again to resume") from None


def unreadable(source: str | os.PathLike[str], path: str, reason: str) -> BuildError:
    return BuildError(f"cannot read {path!r} in {source}: {reason}")


_ROW_BITS = 32


def row_place(group: npt.NDArray[np.int64], row: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One number for a row group of a Parquet file and a row in it."""
    return group << _ROW_BITS | row


def group_and_row(place: int) -> tuple[int, int]:
    """Of what row_place gives: the row group of a Parquet file, and the row in it."""
    return divmod(place, 1 << _ROW_BITS)


def starts_like_an_image(source: Path, path: str) -> bool:
    """Whether a build would decode this file, by its first bytes. False for what cannot be read."""
    try:
        with open(os.path.join(source, path), "rb", buffering=0, opener=open_at_once) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and sniff(file.read(4096)) is not None
    except OSError:
        return False
