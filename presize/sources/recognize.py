"""Recognizes sources whose samples lie in containers, and those that no build can start from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from presize.errors import DatasetError, SourceError
from presize.store.data_files import MANIFEST
from presize.store.manifest import read_manifest
from presize.store.rejects import claims_to_be_an_image
from presize.system.files import open_at_once

Kind = Literal["lmdb", "tar", "parquet"]

_SUFFIXES: dict[str, Kind] = {".lmdb": "lmdb", ".mdb": "lmdb", ".tar": "tar", ".parquet": "parquet"}
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tbz2", ".txz")
_LOCKS = ("lock.mdb", "-lock")
"""How the names of the files end that LMDB keeps beside its data."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^/]")
_SIZES = 16
"""How many folders are looked at for the sizes of a dataset."""
_TAR_MAGIC_AT = 257
_LMDB_MAGIC_AT = 16


@dataclass(frozen=True)
class Containers:
    """Files of one kind that hold the samples of a source.

    Attributes:
        kind: what they are.
        root: the folder that they are in, absolute.
        paths: their paths from the root, sorted.
    """

    kind: Kind
    root: str
    paths: tuple[str, ...]


def recognize(source: str | os.PathLike[str], among_images: bool = False) -> Containers | None:
    """The containers that a source consists of; None for a folder of image files.

    A folder has containers when there are some at any depth, and no image file. Names decide in folders, and the first
    bytes where the source is a file.

    Args:
        source: the source.
        among_images: take containers, although there are image files, too.

    Raises:
        SourceError: it is a URL, a zip, a dataset of presize, or has containers of several kinds.
    """
    name = os.fspath(source)
    if _URL.match(name) and not os.path.lexists(name):
        raise SourceError(f"source {name!r} is a URL; download it, or mount it, and give the local folder")
    if os.path.isfile(name):
        return _of_file(name)
    if not os.path.isdir(name):
        return None
    _refuse_dataset(name)
    root = os.path.realpath(name)
    found = sorted(_containers(root, among_images))
    if not found:
        return None
    kinds = sorted({kind for path in found if (kind := kind_of(path))})
    if len(kinds) > 1:
        raise SourceError(
            f"source {name!r} holds files of several kinds ({', '.join(kinds)}); give a folder of one, or a file"
        )
    return Containers(kinds[0], root, tuple(found))


def kind_of(path: str) -> Kind | None:
    """What a file is, by its name; None for what is no container."""
    name = os.path.basename(path).lower()
    if name.endswith(_LOCKS):
        return None
    return "tar" if name.endswith(_COMPRESSED) else _SUFFIXES.get(os.path.splitext(name)[1])


def _of_file(name: str) -> Containers | None:
    """A source that is a file."""
    try:
        with open(name, "rb", opener=open_at_once) as file:
            begin = file.read(512)
    except OSError as error:
        raise SourceError(f"source {name!r}: {error.strerror}") from None
    if begin.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise SourceError(f"source {name!r} is a zip; unpack it, and give the folder")
    kind = _kind_by_content(begin) or kind_of(name)
    if kind is None:
        return None
    root, path = os.path.split(os.path.realpath(name))
    return Containers(kind, root, (path,))


def _kind_by_content(begin: bytes) -> Kind | None:
    if begin.startswith(b"PAR1"):
        return "parquet"
    if begin[_LMDB_MAGIC_AT : _LMDB_MAGIC_AT + 4] == b"\xde\xc0\xef\xbe":
        return "lmdb"
    return "tar" if begin[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar" else None


def _refuse_dataset(name: str) -> None:
    """Raise SourceError when a folder is a dataset of shards, whose images are resized already."""
    folders = [name]
    if not os.path.exists(os.path.join(name, MANIFEST)):  # OUT/256, OUT/160, ... perhaps
        with os.scandir(name) as entries:
            folders = [entry.path for _, entry in zip(range(_SIZES), entries, strict=False)]
    for folder in folders:
        if not os.path.isfile(os.path.join(folder, MANIFEST)):
            continue
        try:
            manifest = read_manifest(folder)
        except DatasetError:  # of another program
            continue
        if manifest.layout == "lmdb":
            raise SourceError(
                f"source {name!r} is a presize dataset, whose images are resized; build from the raw images, or make "
                "another dataset of it with presize derive"
            )


def _containers(root: str, among_images: bool) -> list[str]:
    """The containers below a folder, as paths from it; none if an image is found first. Links to folders are not
    followed."""
    found, waiting = [], [root]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif claims_to_be_an_image(entry.name) and not among_images:
                return []
            elif kind_of(entry.name) is not None and entry.is_file():
                found.append(os.path.relpath(entry.path, root))
    return found


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, but for hidden names; nothing of one that cannot be read, about which scan() complains."""
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError:
        return
