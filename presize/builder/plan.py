"""Plans a build from samples and options: the shards to write, and a digest that identifies the result. Pure."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.builder.fingerprint import CodecFingerprint
from presize.formatting import plural
from presize.options import BuildOptions
from presize.sources.companions import source_of
from presize.sources.contents import Source
from presize.sources.source_files import SourceFile
from presize.store.dealing import assign_shards, shard_count, shard_limit
from presize.store.filenames import folder_files
from presize.store.index import ARROW_OPTIONS
from presize.store.manifest import classes_digest, digest_of


@dataclass(frozen=True)
class Plan:
    """Plan of a build: shards, samples and options.

    Attributes:
        source: the samples.
        options: the options of the build.
        identity: everything that determines the bytes of the result, as plain JSON values.
        shards: the samples of each shard, as ascending rows of Source.table.
        versions: versions of the libraries that make the bytes, for information.
        file_names: the name of each sample's file in a folder dataset; None for LMDB shards.
    """

    source: Source
    options: BuildOptions
    identity: dict[str, Any]
    shards: tuple[npt.NDArray[np.int64], ...]
    versions: dict[str, str] = field(default_factory=dict)
    file_names: pa.ChunkedArray | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the identity, in hexadecimal."""
        return digest_of(self.identity)

    def shard_digest(self, number: int) -> str:
        """Return the SHA-256 of everything that determines the bytes of a shard, independent of other samples."""
        rows = self.shards[number]
        rest = {name: value for name, value in self.identity.items() if name not in ("source", "classes")}
        samples = {"rows": rows.tolist(), "files": table_digest(self.source.table.take(pa.array(rows)))}
        return digest_of({**rest, "samples": samples})

    def sources(self, rows: npt.NDArray[np.int64]) -> list[Source]:
        """Return the samples in these rows of the source table, then the same with the files of each companion."""
        source = replace(self.source, table=self.source.table.take(pa.array(rows)))
        return [source, *(source_of(source, companion) for companion in self.options.companions)]

    def files(self, rows: npt.NDArray[np.int64]) -> list[tuple[SourceFile, ...]]:
        """Return the files of the samples in these rows of the source table: the image, then its companions."""
        return list(zip(*(source.files(np.arange(len(rows))) for source in self.sources(rows)), strict=True))


def make_plan(source: Source, options: BuildOptions, codecs: CodecFingerprint, page_size: int) -> Plan:
    """Plan a build. Raises SourceError if a sample cannot be a file of a folder dataset."""
    samples = len(source.table)
    identity = {
        "options": options.to_json(),
        "codecs": codecs.digest,
        "page_size": page_size,
        "source": source_identity(source.table),
        "classes": classes_digest(source.classes),
    }
    limit = shard_limit(samples, options.shard_samples, len(options.companions))
    shards = shard_count(samples, limit, source.groups)
    names = None
    if options.layout == "folder":
        class_folders = source.classes if source.by_folder else None
        names = folder_files(source.table.column("path"), options.image.format, class_folders or ())
    return Plan(source, options, identity, assign_shards(samples, shards, source.groups), codecs.versions, names)


def source_identity(table: pa.Table) -> dict[str, Any]:
    return {"files": len(table), "sha256": table_digest(table)}


def differences(
    old: dict[str, Any], new: dict[str, Any], versions: tuple[dict[str, str], dict[str, str]] = ({}, {})
) -> list[str]:
    """Describe how two identities differ, given the library versions of each: ``["quality was 90, is 80"]``."""
    found = []
    before, now = _flat(old), _flat(new)
    later_options = [name for name in before if name.startswith("options.") and name not in now]
    for name in [*now, *later_options]:
        was, value = before.get(name, "the default"), now.get(name, "the default")
        if was != value and name != "source.files":
            if name == "source.sha256":
                then, today = old["source"]["files"], new["source"]["files"]
                others = "" if then != today else "; labels and splits also count"
                found.append(f"the source has changed ({plural(then, 'file')} then, {today:,} now{others})")
            elif name == "classes":
                found.append("the class list has changed")
            elif name == "options.derived" and isinstance(was, list):
                found.append(f"it was derived from other datasets: {', '.join(map(str, was))}")
            elif name == "codecs":
                if old["options"] == new["options"]:  # the fingerprint of codecs depends on the options
                    found.append(other_codecs(*versions))
            else:
                of_companion = name.partition("options.companions.")[2].replace(".", " ")
                words = f"{words_of(was)}, is {words_of(value)}"
                found.append(f"{of_companion or name.rpartition('.')[2]} was {words}")
    return found


def other_codecs(then: dict[str, str], now: dict[str, str]) -> str:
    changed = [name for name in now if then.get(name) != now[name]]
    if not changed:
        return "the same library versions give different bytes: the processor or the builds of the libraries differ"
    were = " and ".join(f"{name} {then.get(name, '(unknown)')}" for name in changed)
    are = " and ".join(f"{name} {now[name]}" for name in changed)
    other = "which gives different bytes" if len(changed) == 1 else "which together give different bytes"
    return f"the build used {were}, this machine has {are}, {other}"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def words_of(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


class _HashSink(io.RawIOBase):
    """File for Arrow to write to that keeps only a hash."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        self.hash.update(data)


def table_digest(table: pa.Table) -> str:
    """Return the SHA-256 of a table's values, independent of their chunks."""
    sink = _HashSink()
    combined = table.combine_chunks().replace_schema_metadata(None)
    with pa.PythonFile(sink, "w") as file, pa.ipc.new_stream(file, combined.schema, options=ARROW_OPTIONS) as stream:
        stream.write_table(combined)
    return sink.hash.hexdigest()
