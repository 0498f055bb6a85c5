"""Samples and options -> the shards to write, and the digest that says what they are. Pure.

The plan depends on nothing else: not on the number of cores, not on the clock, not on the machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.options import BuildOptions
from presize.sources.scan import Source
from presize.store.dealing import deal, shard_count
from presize.store.index import ARROW_OPTIONS
from presize.store.manifest import classes_digest, digest_of


@dataclass(frozen=True)
class Plan:
    """What a build will write.

    Attributes:
        source: the samples.
        options: those of the build.
        identity: what decides every byte of the result, as plain JSON values.
        shards: for each shard its samples, as ascending rows of Source.table.
    """

    source: Source
    options: BuildOptions
    identity: dict[str, Any]
    shards: tuple[npt.NDArray[np.int64], ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the identity, in hexadecimal: a shard made under the same digest can be kept."""
        return digest_of(self.identity)


def make_plan(source: Source, options: BuildOptions, versions: dict[str, str], page_size: int) -> Plan:
    """Plan a build.

    Args:
        source: the samples.
        options: those of the build.
        versions: of the libraries that decide the bytes.
        page_size: the operating system's, in bytes.
    """
    samples = len(source.table)
    identity = {
        "options": options.to_json(),
        "versions": versions,
        "page_size": page_size,
        "source": {"files": samples, "sha256": _table_digest(source.table)},
        "classes": classes_digest(source.classes),
    }
    return Plan(source, options, identity, deal(samples, shard_count(samples, options.shard_samples)))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two identities, in words: ``["quality was 90, is 80"]``."""
    found = []
    before, now = _flat(old), _flat(new)
    later_options = [name for name in before if name.startswith("options.") and name not in now]
    for name in [*now, *later_options]:  # those of later releases are recorded where they are not at their default
        was, value = before.get(name, "the default"), now.get(name, "the default")
        if was != value and name != "source.files":
            if name == "source.sha256":
                found.append(
                    f"the source has changed ({old['source']['files']} files then, {new['source']['files']} now)"
                )
            elif name == "classes":
                found.append("the class list has changed")
            else:
                found.append(f"{name.rpartition('.')[2]} was {_words(was)}, is {_words(value)}")
    return found


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _words(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


class _HashSink:
    """A file for Arrow to write to that keeps nothing but a hash."""

    closed = False

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _table_digest(table: pa.Table) -> str:
    """SHA-256 of the values, whatever their chunks."""
    sink = _HashSink()
    combined = table.combine_chunks().replace_schema_metadata(None)
    with pa.PythonFile(sink, "w") as file, pa.ipc.new_stream(file, combined.schema, options=ARROW_OPTIONS) as stream:
        stream.write_table(combined)
    return sink.hash.hexdigest()
