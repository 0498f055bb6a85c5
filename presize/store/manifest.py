"""manifest.json: validated reading and atomic publishing.

The manifest names every file of a dataset, so its rename is the moment at which a dataset changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from presize.errors import DatasetError
from presize.options import Color, Depth, Filter, Format, Layout, StoredColor, check_choice, companion_color
from presize.store.data_files import (
    FETCHING,
    MANIFEST,
    STATE,
    CompanionFiles,
    DataFile,
    is_companion_name,
    is_data_file,
)
from presize.system.files import open_at_once, write_atomically

VERSION = 2
"""The latest version that this presize reads; see version_of."""


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        layout: LMDB shards, or a folder of image files.
        identity: what decided every byte (presize.builder.plan); it includes the options.
        digest: the SHA-256 of the identity, as digest_of gives it.
        generation: 0 for a first build. Each --overwrite and --update increments it, and names its files after it; so
            does a repair whose shards have other bytes.
        size: the target size of this dataset, as Size.parse reads it.
        classes: their names by label; None without classes.
        samples: how many images are stored.
        bytes: of the stored images.
        left_out: counts of files that are not stored: ``rejected``, ``skipped`` (not images), ``hidden``,
            ``outside`` (beside the class folders).
        engine: the LMDB file format; None for folders.
        index: index.arrow.
        rejects: rejects.jsonl.
        shards: in the order in which the index numbers them.
        report: report.html; None when it was not requested.
        versions: those of the libraries that made it, for information.
        companions: further images of every sample, in the order of their names.
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

    @property
    def format(self) -> Format:
        """The format of the stored images."""
        return cast(Format, self.identity["options"]["image"]["format"])

    @property
    def color(self) -> StoredColor:
        """The ``color`` option of the build; "exact" for a companion whose pixels have the values of their source."""
        return cast(StoredColor, self.identity["options"]["image"]["color"])

    @property
    def depth(self) -> int:
        """The bits of a pixel's value: 8, or 16 where at least one of the images needs them."""
        return int(self.identity["options"]["image"].get("depth", 8))

    @property
    def channels(self) -> int:
        """Of the images of a batch; "keep" is RGB there."""
        return {"gray": 1, "rgba": 4}.get(self.color, 3)

    @property
    def derived(self) -> tuple[str, ...]:
        """How the datasets that it was derived from differ from it, such as ``"sizes 256"`` or ``"several datasets"``;
        empty for what a build from one source makes."""
        texts = self.identity["options"].get("derived", [])
        return tuple(map(str, texts)) if isinstance(texts, list) else (str(texts),)

    def check_plain(self, what: str) -> None:
        """Raise DatasetError for images with alpha or of 16 bits, which `what` does not take."""
        if self.channels == 4 or self.depth == 16:
            raise DatasetError(
                f"{what} trains on 8-bit RGB, and this dataset was built with --color rgba or --depth 16"
            )

    @property
    def checksum(self) -> bool:
        """Whether the index has source_crc32."""
        return self.identity["options"].get("checksum") is True

    def files(self) -> tuple[DataFile, ...]:
        """All files of the dataset except the manifest and a folder's images."""
        companions = (file for companion in self.companions for file in companion.shards)
        return (self.index, self.rejects, *self.shards, *companions, *((self.report,) if self.report else ()))

    @property
    def stored_bytes(self) -> int:
        """Of the stored images and their companions."""
        return self.bytes + sum(companion.bytes for companion in self.companions)

    def companion(self, name: str) -> Manifest:
        """The manifest that a companion would have if its records were a dataset of their own.

        Raises:
            DatasetError: there is no such companion.
        """
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


def version_of(options: dict[str, Any], companions: Sequence[object] = ()) -> int:
    """The smallest version of the format that says what a dataset of these options is: 1 unless readers of version 1
    would miss companions, or misread alpha or 16 bits.

    Args:
        options: as BuildOptions.to_json gives them.
        companions: those of the dataset.
    """
    image = options["image"]
    return 2 if companions or image["color"] == "rgba" or image.get("depth", 8) != 8 else 1


def digest_of(identity: dict[str, Any]) -> str:
    """SHA-256 of an identity, whatever the order of its keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def classes_digest(classes: Sequence[str] | None) -> str:
    """SHA-256 of the class names, in hexadecimal: ``classes`` of an identity."""
    return hashlib.sha256(json.dumps(classes).encode()).hexdigest()


def publish_manifest(root: Path, manifest: Manifest, name: str = MANIFEST) -> None:
    values = asdict(manifest)
    if not manifest.companions:
        del values["companions"]  # which version 1 does not have
    version = version_of(manifest.identity["options"], manifest.companions)
    write_atomically(root / name, sealed({"format": "presize", "version": version, **values}))


def sealed(values: dict[str, Any]) -> bytes:
    """The bytes of a manifest with these values. Its last key, ``sha256``, is the SHA-256 of what they would be without
    that key."""
    return _encoded({**values, "sha256": hashlib.sha256(_encoded(values)).hexdigest()})


def _encoded(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(root: str | os.PathLike[str]) -> Manifest:
    """The manifest of the dataset in `root`.

    No changed byte goes unnoticed.

    Raises:
        DatasetError: there is none, or it is damaged, newer than this presize, or foreign; says what is there instead.
    """
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
    """Say what is in a folder that holds no dataset, and what to do."""
    try:
        names = sorted(os.listdir(root))  # first, and once: somebody may be replacing it
    except FileNotFoundError:
        if url := re.search(r"(?:^|/)(s3|https?|gs|az):/([^/].*)", os.fspath(root)):  # as Path has it
            return (
                f"{url[1]}://{url[2]} is no folder; copy a dataset from a URL with presize fetch, or read it with "
                "LMDBDataset(URL)"
            )
        return f"{root} does not exist; expected a folder that presize build has made"
    except NotADirectoryError:
        return f"{root} is a file; expected a folder that presize build has made"
    except OSError as error:
        return f"{root}: {error.strerror}"
    if STATE in names or (root.parent / STATE).exists():
        return f"{root} holds an unfinished build; run the same presize build again to finish it"
    if FETCHING in names:
        return f"{root} holds an unfinished copy; run the same presize fetch again to finish it"
    inside = [name for name in names if (root / name / MANIFEST).exists()]
    if inside:
        return f"{root} holds the datasets {', '.join(inside)}; open one of them, such as {root / inside[0]}"
    return (
        f"{root} is not a presize dataset: it has no {MANIFEST}; presize build makes a dataset from a folder of images"
    )


def replaced(root: str | os.PathLike[str], manifest: Manifest) -> DatasetError | None:
    """Return the error to raise when `root` no longer holds the dataset whose manifest was read from it; else None."""
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
    """The manifest with this content, of the dataset in `root`, as read_manifest gives it."""
    where = f"{root}/{MANIFEST}"
    try:
        values = json.loads(text, object_pairs_hook=_object)
        if not isinstance(values, dict) or values.get("format") != "presize":
            raise DatasetError(f"{where} is not a presize manifest, but that of another program")
        version = _count(values["version"])
        if version > VERSION:
            raise DatasetError(
                f"{root} has format version {version}; this presize reads up to {VERSION}: upgrade presize"
            )
        _check_seal(values, text)
        return _manifest(values)
    except KeyError as error:
        what = f"it has no {error}"
    except (ValueError, TypeError, RecursionError) as error:
        what = str(error)
    raise DatasetError(f"{where} is damaged: {what}; copy or build the dataset again")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object in it has a key twice")
    return values


def _check_seal(values: dict[str, Any], text: bytes) -> None:
    rest = {name: value for name, value in values.items() if name != "sha256"}
    values["sha256"]  # a KeyError says that it is missing
    if text != sealed(rest):
        raise ValueError("its SHA-256 differs from its content")


def _manifest(values: dict[str, Any]) -> Manifest:
    check_choice("layout", values["layout"], Layout)
    identity = _dict(values["identity"])
    _dict(_dict(identity["options"])["image"])
    _str(identity["codecs"])
    manifest = Manifest(
        layout=values["layout"],
        identity=identity,
        digest=_str(values["digest"]),
        generation=_count(values["generation"]),
        size=_str(values["size"]),
        classes=None if values["classes"] is None else tuple(map(_str, _list(values["classes"]))),
        samples=_count(values["samples"]),
        bytes=_count(values["bytes"]),
        left_out={name: _count(count) for name, count in _dict(values["left_out"]).items()},
        engine=None if values["engine"] is None else _str(values["engine"]),
        index=_data_file(values["index"]),
        rejects=_data_file(values["rejects"]),
        shards=tuple(map(_data_file, _list(values["shards"]))),
        report=None if values["report"] is None else _data_file(values["report"]),
        versions={name: _str(version) for name, version in _dict(values["versions"]).items()},
        companions=tuple(map(_companion, _list(values.get("companions", [])))),
    )
    check_choice("format", manifest.format, Format)
    check_choice("color", manifest.color, Color)
    check_choice("depth", manifest.depth, Depth)
    if manifest.samples == 0:
        raise ValueError("it has no samples")
    if manifest.layout == "lmdb" and sum(shard.rows for shard in manifest.shards) != manifest.samples:
        raise ValueError("its shards do not add up to its samples")
    rows = [shard.rows for shard in manifest.shards]
    if any([shard.rows for shard in companion.shards] != rows for companion in manifest.companions):
        raise ValueError("the shards of a companion have other rows than those of the images")
    if len({companion.name for companion in manifest.companions}) < len(manifest.companions):
        raise ValueError("it has a companion twice")
    if len(set(manifest.classes or ())) < len(manifest.classes or ()):
        raise ValueError("it has a class twice")
    if manifest.digest != digest_of(manifest.identity):
        raise ValueError("its digest is not the SHA-256 of its identity")
    if manifest.identity["classes"] != classes_digest(manifest.classes):
        raise ValueError("its classes are not those of its identity")
    return manifest


def _data_file(values: object) -> DataFile:
    fields = _dict(values)
    name = _str(fields["file"])
    if not is_data_file(name):  # which also keeps it inside the dataset
        raise ValueError(f"{reprlib.repr(name)} is not the name of a file of a dataset")
    return DataFile(name, _count(fields["bytes"]), _str(fields["sha256"]), _count(fields["rows"]))


def _companion(values: object) -> CompanionFiles:
    fields = _dict(values)
    companion = CompanionFiles(
        name=_str(fields["name"]),
        format=fields["format"],
        filter=fields["filter"],
        depth=_count(fields["depth"]),
        bytes=_count(fields["bytes"]),
        shards=tuple(map(_data_file, _list(fields["shards"]))),
    )
    if not is_companion_name(companion.name):
        raise ValueError(f"{reprlib.repr(companion.name)} is not the name of a companion")
    check_choice("format", companion.format, Format)
    check_choice("filter", companion.filter, Filter)
    if companion.depth not in (8, 16):
        raise ValueError(f"expected a depth of 8 or 16, got {companion.depth}")
    return companion


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {reprlib.repr(value)}")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"expected a count, got {reprlib.repr(value)}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {reprlib.repr(value)}")
    return value


def _dict(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {reprlib.repr(value)}")
    return value
