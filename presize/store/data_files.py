"""The files of a dataset: their names, sizes and digests, as the manifest lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
"""The journal of an unfinished build, in OUT."""
FETCHING = ".presize-fetching.json"
"""The manifest of a dataset whose other files are being fetched."""
_FILE_NAMES = re.compile(
    r"index(-\d+)?\.arrow|rejects(-\d+)?\.jsonl|report(-\d+)?\.html"
    rf"|shards/({COMPANION_NAME}-)?\d{{5,}}(-\d+)?\.lmdb",
    re.ASCII,
)
OUR_NAMES = r"^(manifest\.json|index(-\d+)?\.arrow|rejects(-\d+)?\.jsonl|report(-\d+)?\.html|\.presize[^/]*)(/|$)"
"""Arrow regular expression of names reserved for presize: no image or first folder in a folder dataset may use them."""


class CannotOpenError(DatasetError):
    """Error for a file that is intact but cannot be read, for example because too many files are open."""


def require(holds: object, otherwise: str) -> None:
    """Raise ValueError with the text `otherwise` unless `holds`."""
    if not holds:
        raise ValueError(otherwise)


def raise_limit(what: object, error: BaseException) -> None:
    """Raise CannotOpenError if a limit of this process, not damage, caused `error`."""
    if why := limit_of(error):
        raise CannotOpenError(f"{what} cannot be read: {why}") from None


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset: its path relative to the dataset, size in bytes and SHA-256 in hexadecimal. `rows` counts
    samples of a shard or the index, lines of rejects.jsonl, or images compared in report.html."""

    file: str
    bytes: int
    sha256: str
    rows: int

    @classmethod
    def of(cls, root: Path, name: str, rows: int) -> DataFile:
        return cls(name, *file_digest(root / name), rows)


@dataclass(frozen=True)
class CompanionFiles:
    """The shards of a companion, with the same rows as the images' shards. Filter "nearest" keeps pixel values. `depth`
    is 16 if any image needs 16 bits, else 8; arrays record their own. `bytes` is the size of all stored values."""

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
        """Limit on the shards in the folder, in bytes; None without a limit."""
        ...

    def provide(self, files: Sequence[DataFile]) -> None:
        """Ensure that all of these shards are in the folder at the same time."""
        ...

    def fetch_ahead(self, groups: Sequence[Sequence[DataFile]]) -> None:
        """Start to fetch shards that will be read, group by group."""
        ...


def generation_name(name: str, generation: int) -> str:
    """Return ``index.arrow``, then ``index-1.arrow``, ...: a new dataset never overwrites an old one."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{generation}{dot}{suffix}" if generation else name


def fixes(files: Iterable[str] = (), how: str = "build or derive") -> tuple[str, str]:
    """Return the fix for damaged files of a dataset, by default shards, and the fix in a copy from a URL."""
    only_shards = all(file.startswith("shards/") for file in files)
    again = f"{how} OUT again with --overwrite and the same options"
    return (
        "presize repair SRC OUT rebuilds damaged shards" if only_shards else again,
        "in a copy from a URL, delete the damaged files and run presize fetch again",
    )


def is_data_file(name: str) -> bool:
    return _FILE_NAMES.fullmatch(name) is not None


def companion_shard(name: str, shard: str) -> str:
    """Return a companion's file for the image shard `shard`, ``shards/mask-00000.lmdb``; `shard` if `name` is empty."""
    return shard.replace("shards/", f"shards/{name}-", 1) if name else shard
