"""The files of a dataset: their names, sizes and digests, as the manifest lists them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from presize.errors import DatasetError
from presize.options import COMPANION_NAME, CompanionFormat, Filter
from presize.system.files import file_digest
from presize.system.resources import limit_of

MANIFEST = "manifest.json"
REPORT = "report.html"
STATE = ".presize.json"
"""In OUT while a build is unfinished."""
FETCHING = ".presize-fetching.json"
"""The manifest of a dataset while the rest is being fetched."""
_FILE_NAMES = re.compile(
    r"index(-\d+)?\.arrow|rejects(-\d+)?\.jsonl|report(-\d+)?\.html"
    rf"|shards/({COMPANION_NAME}-)?\d{{5,}}(-\d+)?\.lmdb",
    re.ASCII,
)
OUR_NAMES = r"^(manifest\.json|index(-\d+)?\.arrow|rejects(-\d+)?\.jsonl|report(-\d+)?\.html|\.presize[^/]*)(/|$)"
"""Names, for Arrow, that neither an image of a folder dataset nor its folder may have."""


class CannotOpenError(DatasetError):
    """A file cannot be read for no fault of its own: too many files are open, for example."""


def require(holds: object, otherwise: str) -> None:
    """Raise ValueError, which its caller words, about content that does not hold."""
    if not holds:
        raise ValueError(otherwise)


def raise_limit(what: object, error: BaseException) -> None:
    """Raise CannotOpenError if `error` tells of a limit of this process, not of damage."""
    if why := limit_of(error):
        raise CannotOpenError(f"{what} cannot be read: {why}") from None


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset: its path from there, size in bytes and SHA-256 in hexadecimal. `rows` are samples of a shard
    or the index, lines of rejects.jsonl, images compared in report.html."""

    file: str
    bytes: int
    sha256: str
    rows: int

    @classmethod
    def of(cls, root: Path, name: str, rows: int) -> DataFile:
        return cls(name, *file_digest(root / name), rows)


@dataclass(frozen=True)
class CompanionFiles:
    """The shards of a companion, row for row as those of the images. The filter "nearest" has kept the values of its
    pixels. `depth` is 16 where at least one image needs such values, else 8; arrays say their own. `bytes` are those of
    its stored values."""

    name: str
    format: CompanionFormat
    filter: Filter
    depth: int
    bytes: int
    shards: tuple[DataFile, ...]


class ShardFetcher(Protocol):
    """Source of shards when the folder is a cache (presize.remote.cache.Cache)."""

    @property
    def max_bytes(self) -> int | None:
        """Room for shards; None for any number of bytes."""
        ...

    def provide(self, files: Sequence[DataFile]) -> None:
        """Have these shards in the folder at the same time."""
        ...

    def fetch_ahead(self, groups: Sequence[Sequence[DataFile]]) -> None:
        """Begin to fetch shards that will be read, group after group."""
        ...


def generation_name(name: str, generation: int) -> str:
    """Return ``index.arrow``, then ``index-1.arrow``, ...: a new dataset never overwrites an old one."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{generation}{dot}{suffix}" if generation else name


def is_data_file(name: str) -> bool:
    return _FILE_NAMES.fullmatch(name) is not None


def companion_shard(name: str, shard: str) -> str:
    """The file of a companion beside an image's shard, ``shards/mask-00000.lmdb``; without a name the image's."""
    return shard.replace("shards/", f"shards/{name}-", 1) if name else shard
