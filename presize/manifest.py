"""manifest.json and index.arrow: what a dataset says about itself. Read and checked here, and
published atomically: the manifest names every file in use, so its rename is the moment of change.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from presize.errors import DatasetError
from presize.options import Color, Format, Layout, check_choice
from presize.system.files import file_digest, rename, temporary_name, write_atomically, writing

MANIFEST = "manifest.json"
VERSION = 1

INDEX_COLUMNS = {
    "path": pa.large_string(),
    "shard": pa.int32(),
    "row": pa.int32(),
    "file": pa.large_string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "source_width": pa.int32(),
    "source_height": pa.int32(),
    "nbytes": pa.int64(),
    "crc32": pa.uint32(),
    "source_nbytes": pa.int64(),
    "source_mtime_ns": pa.int64(),
    "source_facts": pa.uint32(),
    "source_crc32": pa.uint32(),
}
"""The columns of the index. lmdb datasets have shard and row, folders have file; those built with
checksums have source_crc32; labels come after."""

LATER_COLUMNS = ("source_facts",)
"""Those that a dataset may lack, since older versions did not write them."""

_FILE_NAMES = re.compile(
    r"index(-\d+)?\.arrow|rejects(-\d+)?\.jsonl|report(-\d+)?\.html|shards/\d{5,}(-\d+)?\.lmdb", re.ASCII
)
OUR_NAMES = r"^(manifest\.json|index(-\d+)?\.arrow|rejects(-\d+)?\.jsonl|report(-\d+)?\.html|\.presize[^/]*)(/|$)"
"""What the images of a folder dataset may not be called, nor be in, as a regular expression for Arrow."""


ARROW_OPTIONS = pa.ipc.IpcWriteOptions(
    metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False, compression=None
)
"""Said out loud, since the environment may have other wishes."""


def index_columns(layout: Layout, checksum: bool = False) -> dict[str, pa.DataType]:
    """The index columns that a dataset of this layout has, with checksums or without, in their order,
    labels apart."""
    absent = {"file"} if layout == "lmdb" else {"shard", "row"}
    if not checksum:
        absent.add("source_crc32")
    return {name: kind for name, kind in INDEX_COLUMNS.items() if name not in absent}


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset: its name from the dataset's folder, its size, and its SHA-256.

    rows: samples in a shard or in the index, lines in rejects.jsonl, images compared in report.html.
    """

    file: str
    bytes: int
    sha256: str
    rows: int

    @classmethod
    def of(cls, root: Path, name: str, rows: int) -> DataFile:
        return cls(name, *file_digest(root / name), rows)


@dataclass(frozen=True)
class Manifest:
    """manifest.json.

    identity: what decided every byte (presize.plan); options and versions among it.
    digest: the SHA-256 of the identity.
    generation: 0 for a first build; each --overwrite and --update adds one to it and to the names of the
        files that it writes.
    size: the one of the sizes asked for that this dataset has, as Size.parse reads it.
    left_out: files not stored: rejected images, files that are none (skipped), hidden, outside classes.
    report: the page about the build; None when none was asked for.
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

    @property
    def format(self) -> Format:
        """What the stored values are."""
        return cast(Format, self.identity["options"]["image"]["format"])

    @property
    def color(self) -> Color:
        """The colours it was built for, and delivers."""
        return cast(Color, self.identity["options"]["image"]["color"])

    @property
    def checksum(self) -> bool:
        """Whether the index has source_crc32."""
        return self.identity["options"].get("checksum") is True

    def files(self) -> tuple[DataFile, ...]:
        """Every file of the dataset but the manifest itself and a folder's images."""
        return (self.index, self.rejects, *self.shards, *((self.report,) if self.report else ()))


def generation_name(name: str, generation: int) -> str:
    """``index.arrow`` at first, then ``index-1.arrow``, ...: a new dataset never writes over an old one."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{generation}{dot}{suffix}" if generation else name


def is_data_file(name: str) -> bool:
    """True for the names that presize gives to the files of a dataset, in any generation."""
    return _FILE_NAMES.fullmatch(name) is not None


def publish_manifest(root: Path, manifest: Manifest, name: str = MANIFEST) -> None:
    values = {"format": "presize", "version": VERSION, **asdict(manifest)}
    write_atomically(root / name, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())


def read_manifest(root: str | os.PathLike[str]) -> Manifest:
    """The manifest of the dataset in `root`. Raises DatasetError, saying what is there instead."""
    root = Path(root)
    try:
        text = (root / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(_what_is_there(root)) from None
    except OSError as error:
        raise DatasetError(f"{root / MANIFEST}: {error.strerror}") from None
    try:
        values = json.loads(text, object_pairs_hook=_object)
        if not isinstance(values, dict) or values.get("format") != "presize":
            raise DatasetError(f"{root / MANIFEST} is not a presize manifest but another program's")
        version = _count(values["version"])
        if version > VERSION:
            raise DatasetError(
                f"{root} has format version {version}; this presize reads up to {VERSION}: upgrade presize"
            )
        return _manifest(values)
    except KeyError as error:
        what = f"it has no {error}"
    except (ValueError, TypeError, RecursionError) as error:
        what = str(error)
    raise DatasetError(f"{root / MANIFEST} is damaged: {what}; copy or build the dataset again")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object in it has a key twice")
    return values


def _manifest(values: dict[str, Any]) -> Manifest:
    check_choice("layout", values["layout"], Layout)
    manifest = Manifest(
        layout=values["layout"],
        identity=_dict(values["identity"]),
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
        report=None if values.get("report") is None else _data_file(values["report"]),
    )
    check_choice("format", manifest.format, Format)
    check_choice("color", manifest.color, Color)
    if manifest.samples == 0:
        raise ValueError("it has no samples")
    if manifest.layout == "lmdb" and sum(shard.rows for shard in manifest.shards) != manifest.samples:
        raise ValueError("its shards do not add up to its samples")
    if len(set(manifest.classes or ())) < len(manifest.classes or ()):
        raise ValueError("it has a class twice")
    return manifest


def _data_file(values: object) -> DataFile:
    fields = _dict(values)
    name = _str(fields["file"])
    if not is_data_file(name):  # which also keeps it inside the dataset
        raise ValueError(f"{reprlib.repr(name)} is not the name of a file of a dataset")
    return DataFile(name, _count(fields["bytes"]), _str(fields["sha256"]), _count(fields["rows"]))


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


STATE = ".presize.json"
"""Present beside the manifest's place while a build is unfinished."""


def _what_is_there(root: Path) -> str:
    if not root.exists():
        return f"{root} does not exist; expected the folder that a presize build has made"
    if not root.is_dir():
        return f"{root} is a file; expected the folder that a presize build has made"
    if (root / STATE).exists() or (root.parent / STATE).exists():
        return f"{root} holds an unfinished build; run the same presize build again to finish it"
    inside = sorted(path.parent.name for path in root.glob(f"*/{MANIFEST}"))
    if inside:
        return f"{root} holds the datasets {', '.join(inside)}; open one of them, such as {root / inside[0]}"
    return f"{root} is not a presize dataset, it has no {MANIFEST}; presize build makes one of a folder of images"


def write_index(root: Path, name: str, table: pa.Table) -> DataFile:
    """Write the index as one Arrow IPC record batch, uncompressed, so that readers can map it.
    Raises BuildError when that fails."""
    temporary = temporary_name(root / name)
    with writing(root / name):
        try:
            with pa.OSFile(str(temporary), "wb") as file:
                with pa.ipc.new_file(file, table.schema, options=ARROW_OPTIONS) as writer:
                    writer.write_table(table.combine_chunks())
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            rename(temporary, root / name)
        finally:
            temporary.unlink(missing_ok=True)
    return DataFile.of(root, name, len(table))


def _first_line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).partition("\n")[0]


def read_index(root: str | os.PathLike[str], manifest: Manifest) -> pa.RecordBatch:
    """The index, mapped: its memory is the file's, shared by all processes. Raises DatasetError.

    Columns have the types of INDEX_COLUMNS and no nulls, and a dataset with classes has their
    numbers, int32, in ``label``. What the columns say is to be checked where it is used.
    """
    path = Path(root) / manifest.index.file
    again = "copy or build the dataset again"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != manifest.index.bytes:
            # Reading a truncated map would kill the process with SIGBUS.
            raise DatasetError(
                f"{path} has {status.st_size} bytes where the manifest says {manifest.index.bytes}: "
                f"truncated or replaced; {again}"
            )
        reader = pa.ipc.open_file(pa.memory_map(os.fsencode(path)))
        if reader.num_record_batches != 1:
            raise DatasetError(f"{path} is damaged: it has {reader.num_record_batches} record batches, not 1; {again}")
        batch = reader.get_batch(0)
        batch.validate()
    except OSError as error:
        raise DatasetError(f"{path}: {_first_line(error)}; {again}") from None
    except pa.ArrowException as error:
        raise DatasetError(f"{path} is damaged: {_first_line(error)}; {again}") from None
    labels = {} if manifest.classes is None else {"label": pa.int32()}
    expected = index_columns(manifest.layout, manifest.checksum) | labels
    for name, kind in expected.items():
        if name in LATER_COLUMNS and name not in batch.schema.names:
            continue
        i = batch.schema.get_field_index(name)  # -1 when there are two of them, too
        if i < 0 or batch.schema.field(i).type != kind or batch.column(i).null_count:
            raise DatasetError(f"{path} is damaged: it has no column {name} of {kind} without nulls; {again}")
    if batch.num_rows != manifest.samples:
        raise DatasetError(f"{path} has {batch.num_rows} rows where the manifest says {manifest.samples}; {again}")
    return batch
