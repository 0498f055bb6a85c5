"""One build task: read its samples, presize or copy each, write one shard a size, then the side-car.

A task runs in one process and shares nothing with others. The side-car (index rows and rejects) is
renamed into place last: it proves that the shard is finished. Imports stay few here, since each
worker process pays for them before its first image.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from presize.builder.tasks import staging
from presize.builder.tasks.records import Containment, Made, Recipe, Sources, maker
from presize.builder.tasks.resized import resized
from presize.builder.tasks.sidecar import SIZE_COLUMNS, ShardDone, Sidecar, prefixes, read_sidecar, write_sidecar
from presize.codecs import transcode
from presize.errors import BuildError, CrashError, DatasetError, ImageError, NotAnImageError, UnreadableError
from presize.options import BuildOptions, OnError, Size
from presize.sources.source_files import Container, Places, SourceFile, Url, check_containers, source_files
from presize.sources.source_reader import SourceReader
from presize.store import shard
from presize.store.rejects import BOXES, NOT_AN_IMAGE
from presize.store.shard_reader import ShardReader

_IN_A_ROW = 16
"""After so many files in a row that cannot be read, other files are tried: it may be the disk, or a part of it."""


class Copies(NamedTuple):
    """What a task copies from the dataset that it updates, instead of making it.

    Attributes:
        shards: for each size the old shards that the task reads, then for each size of each companion.
        columns: arrays of one value a sample of the task: ``shard`` (a position in `shards`, -1 for a sample that
            is made) and ``row``, and those of a Sidecar.
        are_sources: whether the records take the place of source files. All samples are copied then, and a damaged
            record cannot be made again.
        resizes: whether those that do not fit the size of the task are resized.
    """

    shards: tuple[tuple[ShardReader, ...], ...]
    columns: dict[str, npt.NDArray[np.int64]]
    are_sources: bool = False
    resizes: bool = False


class CompanionPaths(NamedTuple):
    """The files of a companion, for the samples of a task.

    Attributes:
        nbytes: the size of each.
        paths: their paths, joined by NULs.
    """

    nbytes: npt.NDArray[np.int64]
    paths: str


@dataclass(frozen=True)
class Task:
    """What a worker needs to know. It is small and holds no handle.

    Attributes:
        number: the shard's.
        digest: the plan's; of an update, with what the shard copies.
        source: the raw folder.
        sidecar: where the side-car goes.
        targets: for each size the shard to write, or the folder to write files into; then for each size of each
            companion its shard.
        options: those of the build.
        on_error: whether an image that cannot be stored is recorded or raised.
        samples: each sample's row in the source table, ascending.
        nbytes: the size of each sample's file.
        paths: each sample's path, joined by NULs: a million samples must not be a million objects.
        files: in a folder dataset each sample's file name, joined likewise; otherwise empty.
        copies: what an update copies; None when every sample is made.
        places: where the samples lie in containers; None for files.
        companions: the files of each of the companions in `options`.
        extents: x1, y1, x2, y2 around each sample's boxes, in pixels of its source, and around those in shares of it,
            NaN for what is no box; None to reject none for its boxes.
        probes: samples from all over the source. When most of them cannot be read, the build stops.
    """

    number: int
    digest: str
    source: Path | Url
    sidecar: Path
    targets: tuple[Path, ...]
    options: BuildOptions
    on_error: OnError
    samples: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    paths: str
    files: str
    copies: Copies | None = None
    places: Places | None = None
    companions: tuple[CompanionPaths, ...] = ()
    extents: npt.NDArray[np.float64] | None = None
    probes: tuple[Sources, ...] = ()

    @property
    def containers(self) -> tuple[Container, ...]:
        """The files that hold the samples; empty where each sample is a file."""
        return () if self.places is None else self.places.containers

    @property
    def to_make(self) -> int:
        """How many of the samples are made, and not copied."""
        return len(self.samples) if self.copies is None else int((self.copies.columns["shard"] < 0).sum())


def write_shard(task: Task, containment: Containment | None = None) -> ShardDone:
    """Carry out one task. An error leaves no unfinished shard behind.

    Args:
        task: what to do.
        containment: how an image is kept from ending the build; None in a process that must not be ended.

    Raises:
        ImageError: an image cannot be stored, and ``on_error`` is "fail".
        BuildError: the disk is full, the source has gone, most of it cannot be read, or a container in it has changed.
        DatasetError: a record changed while it was copied.
        MemoryError: memory ran out.
    """
    doubled = 0
    while True:
        try:
            sidecar = _write(task, containment, 1 << doubled)
        except shard.MapFull:
            doubled += 1
            continue
        write_sidecar(task.sidecar, sidecar, task.digest)
        return sidecar.done


def _write(task: Task, containment: Containment | None, map_factor: int) -> Sidecar:
    rejects: list[tuple[int, str, str]] = []
    rows: list[tuple[int, ...]] = []
    sources = source_files(task.paths.split("\0"), task.nbytes.tolist(), task.places)
    companions = (map(SourceFile, c.paths.split("\0"), c.nbytes.tolist()) for c in task.companions)
    samples = list(zip(sources, *companions, strict=True))
    files = task.files.split("\0")
    is_made = _is_made(task)
    recipe = Recipe.of(task.source, task.options, read_ahead=task.places is None or not task.places.in_rows)
    unread = 0  # in a row
    with ExitStack() as stack:
        writers = [stack.enter_context(writer) for writer in _shard_writers(task, map_factor)]
        make = stack.enter_context(maker(recipe, compress(samples, is_made), containment))
        for position, sample in enumerate(task.samples.tolist()):
            source = sources[position]
            try:
                made = make(samples[position]) if is_made[position] else _copied(task, position, source.path)
                if task.extents is not None:
                    _check_boxes(task.extents[position], made.transcoded.source)
            except ImageError as error:
                if task.on_error == "fail":
                    check_containers(task.source, task.containers)  # a change of one may be the cause
                rejects.append((sample, *_reject(source, error, task.on_error)))
                unread = unread + 1 if isinstance(error, UnreadableError) else 0
                if unread and (unread % _IN_A_ROW == 0 or unread == len(sources)):
                    _check_source(task, unread, f"{source.path}: {error}")
                continue
            unread = 0
            stored = (made, *made.companions)
            row: tuple[int, ...] = (sample, *made.transcoded.source)
            for each in stored:
                row += (each.transcoded.facts, each.source_crc32)
            records = ((each, record) for each in stored for record in each.transcoded.records)
            for k, (each, (value, height, width)) in enumerate(records):
                if writers:
                    writers[k].append(value)
                else:
                    staging.stage(task.targets[k], files[position], sample, value)
                row += (height, width, len(value), each.source_crc32 if each.as_read else zlib_ng.crc32(value))
            rows.append(row)
        check_containers(task.source, task.containers)
        shards = [writer.publish() for writer in writers]
        if not writers:
            os.sync()  # one for all files: the side-car must not outlive them
    return Sidecar(task.number, _columns(task.options, rows), shards, rejects, task.containers)


def _check_source(task: Task, unread: int, last: str) -> None:
    """Raise BuildError when most of the source cannot be read, after `unread` files in a row that could not be.

    A bad sector may cost as many neighbours in a container; a disk that fails takes other files with them.
    """
    reader = SourceReader(task.source)
    failed = sum(not all(map(reader.can_read, files)) for files in task.probes)
    if 2 * failed > len(task.probes):
        raise BuildError(
            f"{unread} samples in a row cannot be read from {task.source}, nor can {failed} of {len(task.probes)} "
            f"others; the last: {last}; run again to resume"
        )


def _columns(options: BuildOptions, rows: list[tuple[int, ...]]) -> dict[str, npt.NDArray[np.int64]]:
    """The columns of a Sidecar, of rows as _write makes them."""
    stored = _prefixes(options)
    names = ["sample", "source_height", "source_width"]
    names += [f"{prefix}{name}" for prefix in stored for name in ("source_facts", "source_crc32")]
    sizes = range(len(options.image.sizes))
    names += [f"{prefix}{name}_{k}" for prefix in stored for k in sizes for name in SIZE_COLUMNS]
    columns = dict(zip(names, np.array(rows, np.int64).reshape(-1, len(names)).T, strict=True))
    return columns if options.checksum else {n: c for n, c in columns.items() if not n.endswith("source_crc32")}


def _check_boxes(extents: npt.NDArray[np.float64], source: Size) -> None:
    """Raise ImageError for boxes that reach more than a pixel outside of their image; `extents` is that of a sample."""
    if np.isnan(extents).any():
        raise ImageError(f"{BOXES}: one has no area, or is not four numbers")
    for left, top, right, bottom in (extents * [[1] * 4, [source.width, source.height] * 2]).tolist():
        if left < -1 or top < -1 or right > source.width + 1 or bottom > source.height + 1:
            raise ImageError(
                f"{BOXES}: they reach from ({left:g}, {top:g}) to ({right:g}, {bottom:g}), outside of the image of "
                f"{source.width} x {source.height} pixels"
            )


def _copy(task: Task, copies: Copies, position: int) -> Made | None:
    """The records of a sample, and what is known of its source; None when one of them is damaged."""
    known = {name: int(column[position]) for name, column in copies.columns.items()}
    source = Size(known["source_height"], known["source_width"])
    sizes = len(task.options.image.sizes)
    made: list[Made] = []
    for prefix, start in zip(_prefixes(task.options), range(0, len(copies.shards), sizes), strict=True):
        records = []
        for k, shards in enumerate(copies.shards[start : start + sizes]):
            height, width, nbytes, crc32 = (known[f"{prefix}{name}_{k}"] for name in SIZE_COLUMNS)
            try:
                with shards[known["shard"]] as get:
                    value = bytes(get(known["row"]))
            except DatasetError:
                return None
            if len(value) != nbytes or zlib_ng.crc32(value) != crc32:
                return None
            records.append(transcode.Record(value, height, width))
        transcoded = transcode.Transcoded(tuple(records), source, known[f"{prefix}source_facts"])
        made.append(Made(transcoded, known.get(f"{prefix}source_crc32", 0)))
    return made[0]._replace(companions=tuple(made[1:]))


def _prefixes(options: BuildOptions) -> tuple[str, ...]:
    return prefixes(companion.name for companion in options.companions)


def _copied(task: Task, position: int, path: str) -> Made:
    made = None if task.copies is None else _copy(task, task.copies, position)
    if task.copies is not None and task.copies.are_sources:
        if made is None:
            raise DatasetError(f"the record of {path} is damaged; presize repair makes it again from its source")
        return resized(made, task.options) if task.copies.resizes else made
    if made is None:  # it was whole a moment ago
        raise DatasetError(f"the record of {path} changed while it was copied; run again to resume")
    return made


def _is_made(task: Task) -> list[bool]:
    """Whether each sample is made: those to be copied are, too, if their record is damaged and has a source."""
    if task.copies is None or task.copies.are_sources:
        return [task.copies is None] * len(task.samples)
    is_made = task.copies.columns["shard"] < 0
    return [made or _copy(task, task.copies, position) is None for position, made in enumerate(is_made.tolist())]


def _shard_writers(task: Task, map_factor: int) -> Iterator[shard.ShardWriter]:
    if task.options.layout == "folder":
        return
    sizes = task.options.image.sizes * (1 + len(task.options.companions))
    for path, size in zip(task.targets, sizes, strict=True):
        record_bytes = transcode.record_bytes(task.options.image, size)
        map_bytes = map_factor * shard.map_bytes(len(task.samples), record_bytes)
        yield shard.ShardWriter(path, map_bytes, shard.commit_records(record_bytes))


def _reject(source: SourceFile, error: ImageError, on_error: OnError) -> tuple[str, str]:
    if isinstance(error, NotAnImageError) and not source.claims_to_be_an_image:
        return NOT_AN_IMAGE, str(error)
    if on_error == "fail":
        raise ImageError(f"{source.path}: {error}")
    kept = isinstance(error, (CrashError, UnreadableError))
    return type(error).__name__ if kept else ImageError.__name__, str(error)


def _are_same(containers: Iterable[Container], then: Iterable[Container]) -> bool:
    """Whether each of `containers` is among those of `then`, and has not changed since."""
    versions = {container.path: container.version for container in then}
    return all(one.path in versions and one.version.same_as(versions[one.path]) for one in containers)


def finished(task: Task, publishing: bool = False) -> Sidecar | None:
    """The side-car of a task whose shard is there and whole, and was made of its containers as they are now; else None.

    Args:
        task: any task of the build.
        publishing: whether a folder's files may have their names already.
    """
    sidecar = read_sidecar(task.sidecar, task.number, task.digest)
    if sidecar is None or not _are_same(task.containers, sidecar.containers):
        return None
    if task.options.layout == "lmdb":
        whole = [path.is_file() and path.stat().st_size for path in task.targets] == [n for n, _ in sidecar.shards]
        return sidecar if whole else None
    files = dict(zip(task.samples.tolist(), task.files.split("\0"), strict=True))
    for k, root in enumerate(task.targets):
        for sample, nbytes in zip(*(sidecar.columns[name].tolist() for name in ("sample", f"nbytes_{k}")), strict=True):
            if not staging.is_written(root, files[sample], sample, nbytes, publishing):
                return None
    return sidecar
