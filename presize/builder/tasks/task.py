"""One build task: read its samples, encode or copy each, write a shard for each stream, then the sidecar.

Imports are few, because a build waits for them before its first image.
"""

from __future__ import annotations

import os
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from presize.builder.shard_table import Columns, Rejected, ShardDone, ShardTable
from presize.builder.tasks import staging
from presize.builder.tasks.records import CrashPolicy, Encoded, Encoder, Sources, StoredRecord, encoder
from presize.codecs import transcode
from presize.errors import BuildError, CrashError, DatasetError, ImageError, NotAnImageError, UnreadableError
from presize.options import BuildOptions, OnError, Stream
from presize.sources.source_files import Container, Places, SourceFile, SourceReader, Url, check_containers, files_at
from presize.store import shard
from presize.store.data_files import DataFile, fixes
from presize.store.rejects import BOXES, NOT_AN_IMAGE
from presize.store.shard_reader import ShardReader

_IN_A_ROW = 16
"""After this many unreadable files in a row, other files are tried: the whole disk may be bad, or only a part of it."""


class Copies(NamedTuple):
    """Records that a task copies from other datasets instead of building them.

    Attributes:
        shards: the old shards to read, for each stream.
        shard, row: for each sample of the task its position in these, -1 if it is built, and its row in that shard.
        columns: index columns of the records for each stream, one value per sample of the task.
        resizes: for a derived dataset, True if records that do not fit are resized; for other builds None, and damaged
            records are rebuilt.
        must_match: True if built records have to match `columns`; others are rejected.
    """

    shards: Mapping[Stream, Sequence[ShardReader]]
    shard: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    columns: Mapping[Stream, Columns]
    resizes: bool | None = None
    must_match: bool = False


class FileList(NamedTuple):
    """Files of a task: sizes, paths joined by NULs (one object for a million paths), and places in containers."""

    nbytes: npt.NDArray[np.int64]
    paths: str
    places: Places | None = None


@dataclass(frozen=True)
class Task:
    """Everything that a worker needs to make a shard. It is small and holds no handles.

    Attributes:
        number: the number of the shard.
        digest: digest of everything that determines the bytes of the shard, copied records included.
        targets: for each stream the shard to write, or the folder to write files into.
        samples: each sample's row in the source table, ascending.
        sources: the files of the samples, then those of each companion in `options`.
        files: in a folder dataset each sample's file name, joined by NULs; otherwise empty.
        extents: bounding boxes of the boxes (presize.builder.annotations.extents); None if boxes reject no sample.
        probes: samples from all over the source. If most of them cannot be read, the build stops.
    """

    number: int
    digest: str
    source: Path | Url
    sidecar: Path
    targets: Mapping[Stream, Path]
    options: BuildOptions
    on_error: OnError
    samples: npt.NDArray[np.int64]
    sources: tuple[FileList, ...]
    files: str
    copies: Copies | None = None
    extents: npt.NDArray[np.float64] | None = None
    probes: tuple[Sources, ...] = ()

    @property
    def containers(self) -> tuple[Container, ...]:
        places = self.sources[0].places if self.sources else None
        return () if places is None else places.containers

    @property
    def to_make(self) -> int:
        """Return the number of samples that are built rather than copied."""
        return int(self.is_made.sum())

    @property
    def is_made(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self.samples), np.bool_) if self.copies is None else self.copies.shard < 0


def write_shard(task: Task, policy: CrashPolicy | None = None) -> ShardDone:
    """Run one task. Without a policy there is no time limit, because images must not end this process. Raises
    ImageError (if ``on_error`` is "fail"), BuildError if a disk or the source fails, DatasetError for a damaged record
    without a source, and MemoryError."""
    doubled = 0
    while True:
        try:
            table = _write(task, policy, 1 << doubled)
        except shard.MapFull:
            doubled += 1
            continue
        table.write(task.sidecar, task.digest)
        return table.done


def _write(task: Task, policy: CrashPolicy | None, map_factor: int) -> ShardTable:
    rejects: list[Rejected] = []
    stored: list[int] = []
    columns: dict[Stream, defaultdict[str, array[int]]] = {
        stream: defaultdict(partial(array, "q")) for stream in task.targets
    }
    each = (files_at(files.paths.split("\0"), files.nbytes.tolist(), files.places) for files in task.sources)
    samples = list(zip(*each, strict=True))
    files = task.files.split("\0")
    is_made = task.is_made.tolist()
    places = task.sources[0].places
    ahead = None if places is not None and places.in_rows else compress(samples, is_made)
    unread = 0  # in a row
    with ExitStack() as stack:
        writers = {stream: stack.enter_context(writer) for stream, writer in _shard_writers(task, map_factor)}
        make = stack.enter_context(encoder(task.source, task.options, ahead, policy))
        for position, sample in enumerate(task.samples.tolist()):
            source = samples[position][0]
            try:
                encoded = None if is_made[position] else _copied(task, position, make)
                if encoded is None:
                    encoded = make.encode(samples[position], is_made[position])
                    _check_same(task.copies, position, encoded)
                if task.extents is not None:
                    _check_boxes(task.extents[position], next(iter(encoded.values())).columns)
            except ImageError as error:
                if task.on_error == "fail":
                    check_containers(task.source, task.containers)  # a changed container may be the cause
                rejects.append((sample, *_reject(source, error, task.on_error)))
                unread = unread + 1 if isinstance(error, UnreadableError) else 0
                if unread and (unread % _IN_A_ROW == 0 or unread == len(samples)):
                    _check_source(task, unread, f"{source.path}: {error}")
                continue
            unread = 0
            stored.append(sample)
            for stream in task.targets:
                record = encoded[stream]
                if writers:
                    writers[stream].append(record.value)
                else:
                    staging.stage(task.targets[stream], files[position], sample, record.value)
                for name, number in record.columns.items():
                    columns[stream][name].append(number)
        check_containers(task.source, task.containers)
        shards = {
            stream: DataFile(f"shards/{writer.path.name}", *writer.publish(), writer.rows)
            for stream, writer in writers.items()
        }
        if not writers:
            os.sync()  # one for all files: they must be on disk before the sidecar
    return ShardTable(
        task.number,
        np.array(stored, np.int64),
        {
            stream: {name: np.array(numbers, np.int64) for name, numbers in of_stream.items()}
            for stream, of_stream in columns.items()
            if of_stream
        },
        shards,
        rejects,
        task.containers,
    )


def _check_source(task: Task, unread: int, last: str) -> None:
    """Raise BuildError if most of the source cannot be read. A bad sector costs only a few files."""
    reader = SourceReader(task.source)
    failed = sum(not all(map(reader.can_read, files)) for files in task.probes)
    if 2 * failed > len(task.probes):
        raise BuildError(
            f"{unread} samples in a row cannot be read from {task.source}, nor can {failed} of {len(task.probes)} "
            f"others; the last: {last}; run again to resume"
        )


def _check_boxes(extents: npt.NDArray[np.float64], image: Mapping[str, int]) -> None:
    """Raise ImageError if a sample's boxes (see Task.extents) are invalid, or reach more than a pixel outside."""
    if np.isnan(extents).any():
        raise ImageError(f"{BOXES}: one has no area, or is not four numbers")
    height, width = image["source_height"], image["source_width"]
    for left, top, right, bottom in (extents * [[1] * 4, [width, height] * 2]).tolist():
        if left < -1 or top < -1 or right > width + 1 or bottom > height + 1:
            raise ImageError(
                f"{BOXES}: they reach from ({left:g}, {top:g}) to ({right:g}, {bottom:g}), outside the image of "
                f"{width} x {height} pixels"
            )


def _copied(task: Task, position: int, make: Encoder) -> Encoded | None:
    """Return the records of a copied sample. If damaged: None if it can be rebuilt, else DatasetError."""
    copies = task.copies
    if copies is None:
        return None
    with make.in_time:
        encoded = _read_records(copies, position)
    if copies.resizes is None:
        return encoded
    if encoded is None:
        path = task.sources[0].paths.split("\0")[position]
        raise DatasetError(f"the record of {path} is damaged; {'; '.join(fixes())}")
    return make.resized(encoded) if copies.resizes else encoded


def _read_records(copies: Copies, position: int) -> Encoded | None:
    """Return the stored records of a sample; None if one of them is damaged."""
    encoded: Encoded = {}
    shard, row = int(copies.shard[position]), int(copies.row[position])
    for stream, shards in copies.shards.items():
        columns = {name: int(column[position]) for name, column in copies.columns[stream].items()}
        try:
            with shards[shard] as get:
                value = bytes(get(row))
        except DatasetError:
            return None
        if len(value) != columns["nbytes"] or zlib_ng.crc32(value) != columns["crc32"]:
            return None
        encoded[stream] = StoredRecord(value, columns)
    return encoded


def _check_same(copies: Copies | None, position: int, encoded: Encoded) -> None:
    """Raise ImageError if a built sample has to match the stored one, and does not."""
    if copies is not None and copies.must_match:
        for stream, columns in copies.columns.items():
            if any(columns[name][position] != encoded[stream].columns[name] for name in ("nbytes", "crc32")):
                what = f"its {stream.name}" if stream.name else "it"
                raise ImageError(f"{what} has changed or is missing, or another version of a codec decoded it")


def _shard_writers(task: Task, map_factor: int) -> Iterator[tuple[Stream, shard.ShardWriter]]:
    if task.options.layout == "folder":
        return
    for stream, path in task.targets.items():
        record_bytes = transcode.record_bytes(task.options.image, stream.size)
        map_bytes = map_factor * shard.map_bytes(len(task.samples), record_bytes)
        yield stream, shard.ShardWriter(path, map_bytes, shard.commit_records(record_bytes))


def _reject(source: SourceFile, error: ImageError, on_error: OnError) -> tuple[str, str]:
    if isinstance(error, NotAnImageError) and not source.claims_to_be_an_image:
        return NOT_AN_IMAGE, str(error)
    if on_error == "fail":
        raise ImageError(f"{source.path}: {error}")
    kept = isinstance(error, (CrashError, UnreadableError))
    return type(error).__name__ if kept else ImageError.__name__, str(error)


def finished(task: Task, publishing: bool = False) -> ShardTable | None:
    """Return the table of a finished shard whose containers are unchanged, or None. When `publishing`, files of a
    folder dataset may already have their final names."""
    table = ShardTable.read(task.sidecar, task.number, task.digest)
    if table is None:
        return None
    then = {container.path: container.version for container in table.containers}
    if not all(one.path in then and one.version.same_as(then[one.path]) for one in task.containers):
        return None
    if task.options.layout == "lmdb":
        sizes = {stream: path.is_file() and path.stat().st_size for stream, path in task.targets.items()}
        return table if sizes == {stream: file.bytes for stream, file in table.files.items()} else None
    names = dict(zip(task.samples.tolist(), task.files.split("\0"), strict=True))
    files = [names[sample] for sample in table.samples.tolist()]
    for stream, columns in table.columns.items():
        for file, sample, nbytes in zip(files, table.samples.tolist(), columns["nbytes"].tolist(), strict=True):
            if not staging.is_written(task.targets[stream], file, sample, nbytes, publishing):
                return None
    return table
