"""What an update reuses of the dataset that it starts from: shards that stay, and records to copy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.annotations import may_stay
from presize.builder.output_dir import OutputDir
from presize.builder.plan import Plan
from presize.builder.resume import check_may_update
from presize.builder.shard_table import ShardTable
from presize.builder.update import Changes, Update, agree, make_update, match
from presize.builder.work import Finished, FinishedShard, Records
from presize.errors import PresizeWarning
from presize.formatting import plural, printable
from presize.options import Companion, RunOptions, Stream
from presize.sources.companions import companion_paths, source_of
from presize.sources.contents import Source
from presize.sources.dataset import PublishedDataset, Rows, read_published
from presize.sources.source_reader import SourceReader
from presize.store.data_files import DataFile
from presize.store.dealing import shard_limit
from presize.store.verify import damaged_records
from presize.system.resources import usable_cores

_FILES_AT_ONCE = 512


def plan_update(plan: Plan, output: OutputDir, run: RunOptions) -> tuple[Plan, Changes]:
    """Return a plan of what an update of the dataset in `output` would build and write, to be estimated, and what would
    become of its images. Raises what find_reuse and check_may_update do."""
    existing = output.manifests()
    if not any(existing):
        return plan, Changes.all_built(len(plan.source.table))
    check_may_update(existing, plan, output.path, output.roots[0])
    _, update = find_reuse(plan, output, run)
    rows = pa.array(np.flatnonzero(update.origin < 0))
    source = replace(plan.source, table=plan.source.table.take(rows))
    return replace(plan, source=source, shards=update.shards), update.changes


def find_reuse(plan: Plan, output: OutputDir, run: RunOptions) -> tuple[Records, Update]:
    """What of the dataset in `output` an update of it to `plan` can use again. With checksums the source files that it
    knows are read, in ``run.jobs`` threads.

    Raises:
        DatasetError: the dataset is damaged, or not one of shards that this presize reads.
    """
    base, jobs = read_published(output.roots), run.jobs or usable_cores()
    matched = match(plan.source.table, base.samples)
    unchanged = _unchanged(plan, base, matched, jobs)
    is_damaged, unsound = np.isin(base.samples.column("shard").to_numpy(), base.damaged), set[int]()
    if run.verify:
        found, damage = find_damage(base, jobs)
        is_damaged |= found
        unsound = {number for _, number in damage}
    lost = unchanged & is_damaged[matched]
    most = shard_limit(len(matched), plan.options.shard_samples, len(plan.options.companions))
    shard_rows = np.array([len(rows) for rows in base.rows], np.int64)
    update = make_update(
        base.samples, shard_rows, matched, unchanged & ~lost, most, plan.source.groups, sorted(unsound)
    )
    if run.verify:
        update = replace(update, changes=update.changes._replace(damaged=int(lost.sum())))
    return Records([base], np.zeros_like(matched), update.origin, _kept(base, update)), update


def _kept(base: PublishedDataset, update: Update) -> Finished:
    """The shards that stay, and the files that stay rejected."""
    origin, checksum = update.origin, base.manifests[0].checksum
    sample_of = np.full(len(base.samples), -1, np.int64)
    sample_of[origin[origin >= 0]] = np.flatnonzero(origin >= 0)

    def table(number: int) -> ShardTable:
        rows = base.rows[number]
        columns = {stream: base.columns(stream, rows, checksum) for stream in base.shards}
        files = {stream: (files[number][1].bytes, files[number][1].sha256) for stream, files in base.shards.items()}
        return ShardTable(number, sample_of[rows], columns, files, [])

    stay = (FinishedShard(base.manifests[0].shards[n].file, partial(table, n)) for n in update.kept.tolist())
    return Finished(tuple(stay), base.rejects.take(base.samples.column("row").to_numpy()[origin[update.rejected]]))


def find_damage(
    dataset: PublishedDataset, jobs: int, on_shard: Callable[[], None] = lambda: None
) -> tuple[npt.NDArray[np.bool_], dict[tuple[Stream, int], str]]:
    """Read all shards of a dataset, in `jobs` threads.

    Returns:
        True for each of ``dataset.samples`` that has a damaged record; and what is wrong with each file that is not as
        it was published, by its stream and the number of its shard.
    """
    parts = [(stream, n, *shard) for stream, files in dataset.shards.items() for n, shard in enumerate(files)]

    def look(part: tuple[Stream, int, Path, DataFile]) -> tuple[str, npt.NDArray[np.bool_]]:
        stream, number, root, file = part
        index = dataset.indexes[dataset.sizes.index(stream.size)]
        records = index.select(["row", *map(stream.column, ("nbytes", "crc32"))])
        return damaged_records(root, file, records.take(pa.array(dataset.rows[number])))

    is_damaged = np.zeros(len(dataset.samples), np.bool_)
    damage = {}
    with ThreadPoolExecutor(jobs) as pool:
        for (stream, number, *_), (what, damaged) in zip(parts, pool.map(look, parts), strict=True):
            is_damaged[dataset.rows[number]] |= damaged
            if what:
                damage[stream, number] = what
            on_shard()
    return is_damaged, damage


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
    for companion in plan.options.companions:
        yield f"{companion.name}_", source_of(plan.source, companion)


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
