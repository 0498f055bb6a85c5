"""manifest.json: validated reading, atomic publishing. It names all files: its rename publishes a dataset."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import reprlib
import stat
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from presize.errors import DatasetError
from presize.options import COMPANION_NAME, Color, Depth, Format, Layout, StoredColor, check_choice, companion_color
from presize.store.data_files import FETCHING, MANIFEST, STATE, CompanionFiles, DataFile, is_data_file, require
from presize.system.files import open_at_once, write_atomically

VERSION = 3
"""The latest format version that this version of presize reads; see version_of."""


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        identity: everything that determines the bytes (presize.builder.plan), including the options.
        generation: 0 for the first build, plus 1 for each --overwrite, --update, and repair that changes shards' bytes;
            part of the file names.
        size: the target size, as Size.parse reads it.
        classes: class names by label.
        bytes: size of the stored images.
        left_out: counts of ``rejected``, ``skipped`` (not images), ``hidden``, ``outside`` (class folders) and, if any,
            ``unreadable`` files.
        engine: version of the LMDB file format; None for folders.
        listed: whether a label table listed the samples, so that files of the source may be left out.
        shards: in the order of their numbers in the index.
        companions: additional images of every sample, ordered by name.
    """

    layout: Layout
    identity: dict[str, Any]
    digest: str
    generation: int
    size: str
    classes: tuple[str, ...] | None
    samples: int
    bytes: int
    left_out: dict[str, int]
    engine: str | None
    index: DataFile
    rejects: DataFile
    shards: tuple[DataFile, ...]
    report: DataFile | None = None
    versions: dict[str, str] = field(default_factory=dict)
    companions: tuple[CompanionFiles, ...] = ()
    listed: bool = False

    @property
    def format(self) -> Format:
        return cast(Format, self.identity["options"]["image"]["format"])

    @property
    def color(self) -> StoredColor:
        return cast(StoredColor, self.identity["options"]["image"]["color"])

    @property
    def depth(self) -> int:
        return int(self.identity["options"]["image"].get("depth", 8))

    @property
    def is_array(self) -> bool:
        return cast(str, self.format) == "npy"

    @property
    def channels(self) -> int:
        """Number of channels of a batch; the color "keep" is read as RGB."""
        return {"gray": 1, "rgba": 4}.get(self.color, 3)

    @property
    def derived(self) -> tuple[str, ...]:
        """Differences from the datasets that it was derived from, such as ``"sizes 256"``; empty for a build."""
        texts = self.identity["options"].get("derived", [])
        return tuple(map(str, texts)) if isinstance(texts, list) else (str(texts),)

    def check_plain(self, what: str) -> None:
        """Raise DatasetError if images have alpha or 16 bits, which `what` does not support."""
        if self.channels == 4 or self.depth == 16:
            built = "this dataset was built with --color rgba or --depth 16"
            raise DatasetError(f"{what} trains on 8-bit RGB, but {built}")

    @property
    def checksum(self) -> bool:
        """Return whether the index has source_crc32."""
        return self.identity["options"].get("checksum") is True

    def files(self) -> tuple[DataFile, ...]:
        """Return all files of the dataset except the manifest and the images of a folder dataset."""
        return (self.index, self.rejects, *self.every_shard, *((self.report,) if self.report else ()))

    @property
    def every_shard(self) -> tuple[DataFile, ...]:
        """The shards of the images, then those of each companion."""
        return (*self.shards, *(file for companion in self.companions for file in companion.shards))

    @property
    def stored_bytes(self) -> int:
        return self.bytes + sum(companion.bytes for companion in self.companions)

    def companion(self, name: str) -> Manifest:
        """Return a manifest that describes only a companion. Raises DatasetError for an unknown name."""
        found = next((companion for companion in self.companions if companion.name == name), None)
        if found is None:
            names = ", ".join(companion.name for companion in self.companions) or "none"
            raise DatasetError(f"there is no companion {name!r}; this dataset has {names}")
        options = self.identity["options"]
        color = "exact" if found.filter == "nearest" else companion_color(found.format)
        image = options["image"] | {
            "format": found.format, "filter": found.filter, "color": color, "depth": found.depth,
        }  # fmt: skip
        identity = self.identity | {"options": options | {"image": image}}
        return replace(
            self, identity=identity, digest=digest_of(identity), shards=found.shards, bytes=found.bytes, companions=()
        )


def version_of(options: dict[str, Any], companions: Sequence[CompanionFiles] = ()) -> int:
    """Return the lowest format version for `options` (BuildOptions.to_json): 1, or 2 if its readers would miss
    `companions` or misread alpha or 16 bits, or 3 if companions are arrays."""
    image = options["image"]
    if any(companion.format == "npy" for companion in companions):
        return 3
    return 2 if companions or image["color"] == "rgba" or image.get("depth", 8) != 8 else 1


def digest_of(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def classes_digest(classes: Sequence[str] | None) -> str:
    """Return the field ``classes`` of an identity."""
    return hashlib.sha256(json.dumps(classes).encode()).hexdigest()


def publish_manifest(root: Path, manifest: Manifest, name: str = MANIFEST) -> None:
    values = asdict(manifest)
    if not manifest.companions:
        del values["companions"]  # version 1 does not have it
    if not manifest.listed:
        del values["listed"]
    version = version_of(manifest.identity["options"], manifest.companions)
    write_atomically(root / name, sealed({"format": "presize", "version": version, **values}))


def sealed(values: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest. Its last key, ``sha256``, is the SHA-256 of the manifest without that key."""
    return _encoded({**values, "sha256": hashlib.sha256(_encoded(values)).hexdigest()})


def _encoded(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(root: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of the dataset in `root`; any changed byte is detected. Raises DatasetError if it is missing
    (the message describes `root`), damaged, newer than this version of presize, or was written by another program."""
    root = Path(root)
    try:
        with open(root / MANIFEST, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DatasetError(f"{root / MANIFEST} is not a regular file; copy or build the dataset again")
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(_what_is_there(root)) from None
    except OSError as error:
        raise DatasetError(f"{root / MANIFEST}: {error.strerror}") from None
    return parse_manifest(text, root)


def _what_is_there(root: Path) -> str:
    """Return the error message for a folder without a dataset: what it holds, and the fix."""
    try:
        names = sorted(os.listdir(root))  # first, and only once: another process may be replacing it
    except FileNotFoundError:
        if url := re.search(r"(?:^|/)(s3|https?|gs|az):/([^/].*)", os.fspath(root)):  # Path has merged the slashes
            return (
                f"{url[1]}://{url[2]} is not a folder; copy a dataset from a URL with presize fetch, or read it with "
                "LMDBDataset(URL)"
            )
        return f"{root} does not exist; expected a folder made by presize build"
    except NotADirectoryError:
        return f"{root} is a file; expected a folder made by presize build"
    except OSError as error:
        return f"{root}: {error.strerror}"
    if STATE in names or (root.parent / STATE).exists():
        return f"{root} holds an unfinished build; run the same presize build again to resume"
    if FETCHING in names:
        return f"{root} holds an unfinished copy; run the same presize fetch again to resume"
    inside = [name for name in names if (root / name / MANIFEST).exists()]
    if inside:
        return f"{root} holds the datasets {', '.join(inside)}; open one of them, such as {root / inside[0]}"
    expected = "presize build makes a dataset from a folder of images"
    return f"{root} is not a presize dataset: it has no {MANIFEST}; {expected}"


def replaced(root: str | os.PathLike[str], manifest: Manifest) -> DatasetError | None:
    """Return the error to raise if `root` no longer holds the dataset of `manifest`, else None."""
    try:
        now = read_manifest(root)
    except DatasetError:
        if (Path(root) / MANIFEST).exists():
            return None
    else:
        if (now.generation, now.index.sha256) == (manifest.generation, manifest.index.sha256):
            return None
    what = "was updated, replaced or removed since it was opened"
    return DatasetError(f"{root} {what}; open it again, or run the command again")


def parse_manifest(text: bytes, root: Path | str) -> Manifest:
    """Return the manifest parsed from `text`, for the dataset in `root`. Raises as read_manifest does."""
    where = f"{root}/{MANIFEST}"
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("format") != "presize":
            raise DatasetError(f"{where} is not a presize manifest: another program wrote it")
        version = _from_json(int, values["version"], "version")
        if version > VERSION:
            raise DatasetError(
                f"{root} has format version {version}; this version of presize reads up to {VERSION}: upgrade presize"
            )
        del values["sha256"]  # raises KeyError if it is missing
        if text != sealed(values):
            raise ValueError("its SHA-256 differs from its content")
        return _manifest(values)
    except KeyError as error:
        what = f"it has no {error}"
    except (ValueError, TypeError, RecursionError) as error:
        what = str(error)
    raise DatasetError(f"{where} is damaged: {what}; copy or build the dataset again")


def _manifest(values: dict[str, Any]) -> Manifest:
    manifest: Manifest = _from_json(Manifest, values, "manifest")
    image = _from_json(dict[str, Any], manifest.identity["options"], "options")["image"]
    _from_json(dict[str, Any], image, "image")
    _from_json(str, manifest.identity["codecs"], "codecs")
    check_choice("format", manifest.format, Format)
    check_choice("color", manifest.color, Color)
    check_choice("depth", manifest.depth, Depth)
    rows = [shard.rows for shard in manifest.shards]
    for companion in manifest.companions:
        is_name = re.fullmatch(COMPANION_NAME, companion.name, re.ASCII)
        require(is_name, f"{reprlib.repr(companion.name)} is not the name of a companion")
        check_choice("depth", companion.depth, Depth)
        has_rows = [shard.rows for shard in companion.shards] == rows
        require(has_rows, "the shards of a companion differ in rows from those of the images")
    for file in manifest.files():
        if not is_data_file(file.file):  # also keeps it inside the dataset
            raise ValueError(f"{reprlib.repr(file.file)} is not a valid name for a file of a dataset")
    is_whole = manifest.layout == "folder" or sum(rows) == manifest.samples
    companions, classes = [companion.name for companion in manifest.companions], manifest.classes or ()
    require(manifest.samples > 0, "it has no samples")
    require(is_whole, "its shards do not add up to its samples")
    require(len({*companions}) == len(companions), "it has a companion twice")
    require(len({*classes}) == len(classes), "it has a class twice")
    require(manifest.digest == digest_of(manifest.identity), "its digest is not the SHA-256 of its identity")
    is_its_own = manifest.identity["classes"] == classes_digest(manifest.classes)
    require(is_its_own, "its classes do not match its identity")
    return manifest


_type_hints = functools.cache(get_type_hints)


def _from_json(kind: Any, value: Any, name: str) -> Any:
    """Convert a JSON value to `kind`: a dataclass, tuple[X, ...], dict[str, X], X | None, Literal, count, bool or str.

    Raises ValueError, naming `name`, for another type, and KeyError for a missing field without default."""
    if kind is str:
        return _instance(str, "text", value, name)
    if kind is bool:
        return _instance(bool, "true or false", value, name)
    if kind is int:
        if isinstance(value, bool) or not 0 <= _instance(int, "a count", value, name) < 2**63:
            raise ValueError(f"{name}: expected a count, got {reprlib.repr(value)}")
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if NoneType in arguments:
        return None if value is None else _from_json(arguments[0], value, name)
    if origin is Literal:
        check_choice(name, value, kind)
        return value
    if origin is tuple:
        return tuple(_from_json(arguments[0], each, name) for each in _instance(list, "a list", value, name))
    given = _instance(dict, "an object", value, name)
    if origin is dict:
        of_type = arguments[1]
        return given if of_type is Any else {key: _from_json(of_type, each, key) for key, each in given.items()}
    optional = {each.name for each in fields(kind) if each.default is not MISSING} - given.keys()
    hints = _type_hints(kind).items()
    return kind(**{each: _from_json(hint, given[each], each) for each, hint in hints if each not in optional})


def _instance(kind: type, words: str, value: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected {words}, got {reprlib.repr(value)}")
    return value
