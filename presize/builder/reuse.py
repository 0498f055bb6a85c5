"""The dataset that an update starts from: read, checked, and divided into shards that stay and records to copy."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.annotations import may_stay
from presize.builder.output_dir import OutputDir
from presize.builder.plan import Plan
from presize.builder.resume import check_may_update
from presize.builder.shard_table import ShardTable
from presize.builder.tasks.task import Copies, Task
from presize.builder.update import Changes, Rows, Update, agree, make_update, match
from presize.builder.work import Finished, FinishedShard
from presize.errors import DatasetError, PresizeWarning
from presize.formatting import plural, printable
from presize.options import BuildOptions, Companion, RunOptions, Size, Stream
from presize.sources.companions import companion_paths
from presize.sources.scan import Source
from presize.sources.source_reader import SourceReader
from presize.store.data_files import DataFile
from presize.store.dealing import shard_limit
from presize.store.index import read_index, record_columns
from presize.store.manifest import Manifest, read_manifest
from presize.store.rejects_file import Rejects, read_rejects
from presize.store.shard import ENGINE
from presize.store.shard_reader import ShardReader
from presize.store.verify import check_data_file
from presize.system.files import check_file
from presize.system.resources import usable_cores

_FILES_AT_ONCE = 512


@dataclass(frozen=True)
class PublishedDataset:
    """A published LMDB dataset of one size or several.

    Attributes:
        roots: the folder of each size.
        manifests: that of each size.
        indexes: that of each size.
        samples: ``path``, ``source_nbytes``, ``source_mtime_ns`` (with checksums ``source_crc32``; those of companions,
            too), ``shard`` and ``row`` of each record, in dataset order; then of each rejected file that an update need
            not try again, with shard -1, and its position in `rejects` as row.
        rows: the records of each shard, as rows of `samples`, in the order in which the shard stores them.
        rejects: the files that were not stored.
        damaged: the shards that are missing or do not have their size, of any size; nothing of them is used.
    """

    roots: tuple[Path, ...]
    manifests: tuple[Manifest, ...]
    indexes: tuple[pa.RecordBatch, ...]
    samples: pa.Table
    rows: tuple[Rows, ...]
    rejects: Rejects
    damaged: tuple[int, ...] = ()

    @property
    def companions(self) -> tuple[str, ...]:
        return tuple(companion.name for companion in self.manifests[0].companions)

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(Size.parse(manifest.size) for manifest in self.manifests)

    @cached_property
    def shards(self) -> dict[Stream, tuple[tuple[Path, DataFile], ...]]:
        """The shards of each stream, with the folder that they are in."""
        return {
            Stream(name, size): tuple((root, file) for file in files)
            for root, manifest, size in zip(self.roots, self.manifests, self.sizes, strict=True)
            for name, files in [("", manifest.shards), *((each.name, each.shards) for each in manifest.companions)]
        }

    def columns(self, stream: Stream, rows: Rows, checksum: bool) -> dict[str, Rows]:
        """What the index says of the records of a stream, as a ShardTable has it.

        Args:
            stream: one of the dataset.
            rows: those of the index.
            checksum: whether that of the source file belongs to it.
        """
        index = self.indexes[self.sizes.index(stream.size)]
        names = record_columns(stream.name, checksum)
        return {name: _numbers(index, stream.column(name))[rows].astype(np.int64) for name in names}


def copies_of(
    datasets: Sequence[PublishedDataset],
    dataset_of: Rows,
    row_of: Rows,
    options: BuildOptions,
    resizes: bool | None = None,
) -> Copies:
    """What a task copies from datasets.

    Args:
        datasets: where the records are.
        dataset_of: for each sample of the task the position of its dataset.
        row_of: for each sample its row in the index of that; -1 for one that is made.
        options: those of the build.
        resizes: for records that take the place of source files, whether those are resized that do not fit; their
            datasets have one size each. None for those of an update.
    """
    shard, row = np.full((2, len(row_of)), -1, np.int64)
    shards: dict[Stream, list[ShardReader]] = {stream: [] for stream in options.streams}
    columns: dict[Stream, dict[str, Rows]] = {stream: {} for stream in options.streams}
    first = 0
    for at, dataset in enumerate(datasets):
        mine = np.flatnonzero((dataset_of == at) & (row_of >= 0))
        rows = row_of[mine]
        numbers, position = np.unique(_numbers(dataset.indexes[0], "shard")[rows], return_inverse=True)
        shard[mine], row[mine] = first + position, _numbers(dataset.indexes[0], "row")[rows]
        first += len(numbers)
        for stream in options.streams:
            stored = stream if resizes is None else stream._replace(size=dataset.sizes[0])
            files = [dataset.shards[stored][number] for number in numbers.tolist()]
            shards[stream] += (ShardReader(root / file.file, file.bytes) for root, file in files)
            for name, values in dataset.columns(stored, rows, options.checksum).items():
                columns[stream].setdefault(name, np.zeros(len(row_of), np.int64))[mine] = values
    return Copies(shards, shard, row, columns, are_sources=resizes is not None, resizes=bool(resizes))


@dataclass(frozen=True)
class Reuse:
    """A published dataset, and what an update reuses of it."""

    base: PublishedDataset
    update: Update

    def finished(self) -> Finished:
        """The shards that stay, and the files that stay rejected."""
        base = self.base
        shards = base.manifests[0].shards
        kept = self.update.kept.tolist()
        stay = (FinishedShard(shards[number].file, partial(self._table, number)) for number in kept)
        places = base.samples.column("row").to_numpy()[self.update.origin[self.update.rejected]]
        return Finished(tuple(stay), base.rejects.take(places))

    @cached_property
    def _sample_of(self) -> Rows:
        """For each row of the base's samples the sample that it becomes, or -1."""
        sample_of = np.full(len(self.base.samples), -1, np.int64)
        origin = self.update.origin
        sample_of[origin[origin >= 0]] = np.flatnonzero(origin >= 0)
        return sample_of

    def _table(self, number: int) -> ShardTable:
        """The table of a shard of the base that stays."""
        base, rows = self.base, self.base.rows[number]
        columns = {stream: base.columns(stream, rows, base.manifests[0].checksum) for stream in base.shards}
        files = {stream: (shards[number][1].bytes, shards[number][1].sha256) for stream, shards in base.shards.items()}
        return ShardTable(number, self._sample_of[rows], columns, files, [])

    def copying(self, task: Task) -> Task:
        """`task`, which copies what is unchanged. Its digest then says, too, what its shard is made of."""
        origin = self.update.origin[task.samples]
        made_of = hashlib.sha256(f"{task.digest} {self.base.manifests[0].index.sha256}".encode())
        made_of.update(task.samples.tobytes() + origin.tobytes())
        task = replace(task, digest=made_of.hexdigest())
        if (origin < 0).all():
            return task
        return replace(task, copies=copies_of([self.base], np.zeros_like(origin), origin, task.options))


def read_base(place: OutputDir) -> PublishedDataset:
    """The dataset in the roots of `place`. Shards are not read; only their sizes are checked.

    Raises:
        DatasetError: the index or the rejects are missing or damaged.
    """
    manifests = tuple(read_manifest(root) for root in place.roots)
    indexes = tuple(_checked_index(root, manifest) for root, manifest in zip(place.roots, manifests, strict=True))
    index, shards = indexes[0], manifests[0].shards
    same = ("path", "shard", "row", *_states(manifests[0]))
    for root, other, manifest in zip(place.roots, indexes, manifests, strict=True):
        if [file.file for file in manifest.shards] != [file.file for file in shards] or not all(
            other.column(name).equals(index.column(name)) for name in same
        ):
            raise DatasetError(f"{root} and {place.roots[0]} are from different builds; {_ANEW}")
    rejects = read_rejects(place.roots[0] / manifests[0].rejects.file)
    rows = _rows(place.roots[0], index, shards)
    samples = _samples(index, manifests[0], rejects)
    base = PublishedDataset(place.roots, manifests, indexes, samples, rows, rejects)
    damaged = {
        number
        for files in base.shards.values()
        for number, (root, file) in enumerate(files)
        if not _has_its_size(root, file)
    }
    return replace(base, damaged=tuple(sorted(damaged)))


_ANEW = "presize build --overwrite builds it anew"


def _checked_index(root: Path, manifest: Manifest) -> pa.RecordBatch:
    if manifest.layout != "lmdb":
        raise DatasetError(
            f"{root} is a folder of image files, without shards; presize build makes some, of its source"
        )
    if manifest.engine != ENGINE:
        raise DatasetError(f"{root} has no shards that this presize reads; {_ANEW}")
    for file in (manifest.index, manifest.rejects):  # not the report, which may have been removed
        for what in check_data_file(root, file):
            raise DatasetError(f"{root / file.file} is damaged: {what}; {_ANEW}")
    index = read_index(root, manifest, check=False)  # its SHA-256 was compared above
    try:
        index.column("path").validate(full=True)
    except pa.ArrowInvalid as error:
        raise DatasetError(f"{root / manifest.index.file} is damaged: {str(error).splitlines()[0]}; {_ANEW}") from None
    return index


def _has_its_size(root: Path, file: DataFile) -> bool:
    try:
        check_file(root / file.file, file.bytes)
    except DatasetError:
        return False
    return True


def _rows(root: Path, index: pa.RecordBatch, shards: Sequence[DataFile]) -> tuple[Rows, ...]:
    lengths = np.array([file.rows for file in shards], np.int64)
    ends = np.cumsum(lengths)
    shard, row = _numbers(index, "shard"), _numbers(index, "row")
    order = np.lexsort((row, shard))
    expected = np.repeat(np.arange(len(shards)), lengths), np.arange(len(order)) - np.repeat(ends - lengths, lengths)
    if not (np.array_equal(shard[order], expected[0]) and np.array_equal(row[order], expected[1])):
        raise DatasetError(f"the index of {root} does not list each row of its shards once; {_ANEW}")
    return tuple(order[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True))


def _states(manifest: Manifest, names: Sequence[str] = ("source_nbytes", "source_mtime_ns")) -> list[str]:
    """The columns of the index that say whether a file has changed, and those of companions."""
    prefixes = ("", *(f"{companion.name}_" for companion in manifest.companions))
    return [f"{prefix}{name}" for prefix in prefixes for name in names]


def _samples(index: pa.RecordBatch, manifest: Manifest, rejects: Rejects) -> pa.Table:
    rows = np.flatnonzero(rejects.columns.column("source_nbytes").is_valid())
    known = rejects.columns.select(["path", "source_nbytes", "source_mtime_ns"]).take(pa.array(rows))
    names = _states(manifest)
    if manifest.checksum:
        names += _states(manifest, ["source_crc32"])
    columns: dict[str, Any] = {name: np.zeros(len(rows), np.int64) for name in names}
    columns |= {name: known.column(name) for name in known.schema.names}
    columns |= {"shard": np.full(len(rows), -1), "row": rows}
    stored = pa.Table.from_batches([index]).select(list(columns))
    return pa.concat_tables([stored, pa.table(columns, stored.schema)])


def _numbers(index: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    return np.asarray(index.column(name).to_numpy(zero_copy_only=True))


def plan_update(todo: Plan, place: OutputDir, run: RunOptions) -> tuple[Plan, Changes]:
    """What an update of the dataset in `place` would do.

    Returns:
        A plan to be estimated, with the files that would be built and the shards that would be written, and the
        number of images that stay, are copied, built and removed.

    Raises:
        BuildError: the dataset was built with other options.
        DatasetError: the dataset is damaged.
    """
    existing = place.manifests()
    if not any(existing):
        return todo, Changes.all_built(len(todo.source.table))
    check_may_update(existing, todo, place)
    update = find_reuse(todo, place, run).update
    rows = pa.array(np.flatnonzero(update.origin < 0))
    source = replace(todo.source, table=todo.source.table.take(rows))
    return replace(todo, source=source, shards=update.shards), update.changes


def find_reuse(plan: Plan, place: OutputDir, run: RunOptions) -> Reuse:
    """What of the dataset in `place` an update of it to `plan` can use again. With checksums the source
    files that it knows are read, in ``run.jobs`` threads.

    Raises:
        DatasetError: the dataset is damaged, or not one of shards that this presize reads.
    """
    base = read_base(place)
    matched = match(plan.source.table, base.samples)
    unchanged = _unchanged(plan, base, matched, run.jobs or usable_cores())
    unchanged &= ~np.isin(base.samples.column("shard").to_numpy()[matched], base.damaged)
    most = shard_limit(len(matched), plan.options.shard_samples, len(plan.options.companions))
    shard_rows = np.array([len(rows) for rows in base.rows], np.int64)
    update = make_update(base.samples, shard_rows, matched, unchanged, most, plan.source.runs)
    return Reuse(base, update)


def _unchanged(plan: Plan, base: PublishedDataset, matched: Rows, jobs: int) -> npt.NDArray[np.bool_]:
    """For each sample whether its file is as it was, and those of its companions. What was rejected for its image's
    content alone does not depend on companions."""
    samples, old = plan.source.table, base.samples
    is_stored = old.column("shard").to_numpy()[matched] >= 0
    states = ("source_nbytes",) if plan.options.checksum else ("source_nbytes", "source_mtime_ns")
    unchanged = matched >= 0
    for name in states:
        unchanged &= agree(name, samples, old, matched)
    for companion in plan.options.companions:
        same = _same_paths(companion, samples, base, matched)
        for name in states:
            same &= agree(f"{companion.name}_{name}", samples, old, matched)
        unchanged &= same | ~is_stored
    if plan.options.checksum:
        unchanged &= is_stored  # rejects have no checksum
        for prefix, source in _sources(plan):
            known = old.column(f"{prefix}source_crc32").to_numpy()[matched]
            same, unread = _same_content(source, unchanged, known, jobs)
            unread &= agree(f"{prefix}source_mtime_ns", samples, old, matched)
            _warn_of_unread(source, unread)
            unchanged &= same | unread
    return unchanged & may_stay(samples, plan.options, base.indexes[0], matched)


def _same_paths(
    companion: Companion, samples: pa.Table, base: PublishedDataset, matched: Rows
) -> npt.NDArray[np.bool_]:
    """True for each sample whose companion lies where it did. Those of a pattern follow their image."""
    if companion.column is None:
        return np.ones(len(samples), np.bool_)
    old = companion_paths(companion, pa.table(base.indexes[0]))
    rows = np.where(matched < len(old), matched, -1)  # those past its end were rejected
    same = pc.equal(samples.column(companion.column), old.take(pa.array(np.maximum(rows, 0))))
    return np.asarray((rows >= 0) & pc.fill_null(same, False).to_numpy(), np.bool_)


def _sources(plan: Plan) -> Iterator[tuple[str, Source]]:
    """The source, and for each companion one whose paths are those of its files, with what its columns begin with."""
    yield "", plan.source
    table = plan.source.table
    for companion in plan.options.companions:
        files = table.set_column(table.column_names.index("path"), "path", companion_paths(companion, table))
        yield f"{companion.name}_", replace(plan.source, table=files)


def _same_content(
    source: Source, asked: npt.NDArray[np.bool_], crc32: npt.NDArray[np.uint32], jobs: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For each sample that is `asked` for whether its file has the CRC-32 in `crc32`, and whether it cannot be read."""
    same, unread = np.zeros((2, len(asked)), np.bool_)
    reader = SourceReader(source.root)

    def compare(rows: Rows) -> None:
        found = [reader.crc32(file) for file in source.files(rows)]
        same[rows] = [value == crc32[row] for value, row in zip(found, rows.tolist(), strict=True)]
        unread[rows] = [value is None for value in found]

    rows = np.flatnonzero(asked)
    pool = ThreadPoolExecutor(jobs)
    try:
        for _ in pool.map(
            compare, [rows[start : start + _FILES_AT_ONCE] for start in range(0, len(rows), _FILES_AT_ONCE)]
        ):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return same, unread


def _warn_of_unread(source: Source, unread: npt.NDArray[np.bool_]) -> None:
    """Warn of files that are taken for unchanged without their checksums."""
    if unread.any():
        first = source.table.column("path")[int(np.flatnonzero(unread)[0])].as_py()
        warnings.warn(
            f"{plural(int(unread.sum()), 'file')} could not be read to compare checksums, the first: "
            f"{printable(first)}; by size and time they are unchanged",
            PresizeWarning,
            stacklevel=5,
        )
