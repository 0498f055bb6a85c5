"""Recognizes sources whose samples lie in containers, and those that no build can start from."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import islice

from presize.errors import DatasetError, SourceError
from presize.sources.containers import ContainerKind, Containers
from presize.sources.contents import as_utf8
from presize.sources.folder import refused_folder
from presize.sources.lmdb import list_lmdb
from presize.sources.parquet import list_parquet
from presize.sources.tar import COMPRESSED_TARS, list_tar
from presize.store.data_files import MANIFEST
from presize.store.manifest import read_manifest
from presize.store.rejects import Reject, claims_to_be_an_image
from presize.system.files import open_at_once

_LMDB_OPTIONS = ("keys", "label_keys", "column_type")
_LMDB_MAGIC = (16, b"\xde\xc0\xef\xbe")
KINDS = (
    ContainerKind("parquet", "Parquet files", ("keys", "column_type"), list_parquet, (".parquet",), (0, b"PAR1")),
    ContainerKind("lmdb", "LMDBs", _LMDB_OPTIONS, list_lmdb, (".lmdb", ".mdb"), _LMDB_MAGIC),
    ContainerKind(
        "tar", "tar shards", ("keys", "column_type", "pair"), list_tar, (".tar", *COMPRESSED_TARS), (257, b"ustar")
    ),
)
"""The kinds of files that hold samples, and the options that each takes. Another one is a module with such a function,
and a line here; SourceReader reads its images as bytes at an offset, or learns otherwise, as it has for Parquet."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "folders": ("pair",),
    "label tables": ("column_type", "pair"),
    "buckets": (),
    "label tables of buckets": ("column_type",),
    **{kind.plural: kind.options for kind in KINDS},
}
"""The options that make sense for each kind of source, of those that do not make sense for all."""

_LOCKS = ("lock.mdb", "-lock")
"""How the names of the files end that LMDB keeps beside its data."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^/]")
_SIZES = 16
"""How many folders are looked at for the sizes of a dataset."""


def check_options(kind: str, source: str | os.PathLike[str], **given: object) -> None:
    """Raise SourceError for an option that makes no sense for a source of this kind. What is false was not given."""
    for option in (option for option, value in given.items() if value and option not in _OPTIONS[kind]):
        kinds = [each for each, options in _OPTIONS.items() if option in options]
        fix = "; copy it to a disk first" if kind.endswith("buckets") else "; leave it out"
        raise SourceError(
            f"--{option.replace('_', '-')} is for {', '.join(kinds)}, not for {kind}; source {os.fspath(source)!r}{fix}"
        )


def recognize(source: str | os.PathLike[str], among_images: bool = False) -> Containers | None:
    """Return the containers that a source consists of; None for a folder of image files.

    A folder has containers when there are some at any depth, and no image file, but for `among_images`. Names decide in
    folders, and the first bytes where the source is a file.

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
    unseen: list[Reject] = []
    paths = sorted(_containers(root, among_images, unseen))
    if not paths:
        return None
    kinds = [kind for kind in KINDS if any(kind_of(path) is kind for path in paths)]
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.name for kind in kinds))
        raise SourceError(f"source {name!r} holds files of several kinds ({names}); give a folder of one, or a file")
    return Containers(kinds[0], root, tuple(paths), tuple(sorted(unseen)))


def kind_of(path: str) -> ContainerKind | None:
    """Return the kind of a file by its name; None for what is no container."""
    name = os.path.basename(path).lower()
    by_name = (kind for kind in KINDS if name.endswith(kind.suffixes) and not name.endswith(_LOCKS))
    return next(by_name, None)


def _of_file(name: str) -> Containers | None:
    """A source that is a file."""
    try:
        with open(name, "rb", opener=open_at_once) as file:
            begin = file.read(512)
    except OSError as error:
        raise SourceError(f"source {name!r}: {error.strerror}") from None
    if begin.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise SourceError(f"source {name!r} is a zip; unpack it, and give the folder")
    kind = next((kind for kind in KINDS if begin.startswith(kind.magic[1], kind.magic[0])), kind_of(name))
    if kind is None:
        return None
    root, path = os.path.split(os.path.realpath(name))
    return Containers(kind, root, (path,))


def _refuse_dataset(name: str) -> None:
    """Raise SourceError when a folder is a dataset of shards, whose images are resized already."""
    folders = [name]
    if not os.path.exists(os.path.join(name, MANIFEST)):  # OUT/256, OUT/160, ... perhaps
        with suppress(OSError), os.scandir(name) as entries:  # of one that cannot be read, scan() tells
            folders = [entry.path for entry in islice(entries, _SIZES)]
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


def _containers(root: str, among_images: bool, unseen: list[Reject]) -> list[str]:
    """The containers below a folder, as paths from it; none if an image is met first. Links to folders are not
    followed; folders that may not be read become `unseen`. Raises SourceError where the disk fails."""
    paths, waiting = [], [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif claims_to_be_an_image(entry.name) and not among_images:
                        return []
                    elif kind_of(entry.name) is not None and entry.is_file():
                        paths.append(os.path.relpath(entry.path, root))
        except OSError as error:
            refused = refused_folder(error, folder, is_root=folder == root)
            unseen.append(Reject(as_utf8(os.path.relpath(folder, root)), refused.error, str(refused)))
    return paths
