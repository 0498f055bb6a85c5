"""Finds what an update can reuse: shards whose samples are all unchanged stay; unchanged samples of other shards are
copied into new shards, next to samples that have to be built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.annotations import may_stay
from presize.builder.output_dir import OutputDir
from presize.builder.plan import Plan
from presize.builder.resume import check_may_update
from presize.builder.work import Records
from presize.errors import warn
from presize.formatting import plural, printable
from presize.options import Companion, RunOptions, Stream
from presize.sources.companions import companion_paths, source_of
from presize.sources.contents import Source
from presize.sources.dataset import PublishedDataset, Rows, read_published
from presize.sources.source_files import SourceReader
from presize.store.data_files import DataFile
from presize.store.dealing import Groups, shard_count, shard_limit, shuffled
from presize.store.verify import damaged_records
from presize.system.resources import usable_cores

_FILES_AT_ONCE = 512


class Changes(NamedTuple):
    """Numbers of images that a build keeps and changes.

    Attributes:
        kept: images in shards that stay.
        copied: images whose bytes are copied into a new shard.
        built: files that are decoded because they are new, changed or tried again.
        removed: images whose files the source no longer lists.
        damaged: files in `built` that are unchanged, but have a damaged record; None if no records were checked.
    """

    kept: int
    copied: int
    built: int
    removed: int
    damaged: int | None = None

    @classmethod
    def all_built(cls, files: int) -> Changes:
        return cls(0, 0, files, 0)

    def counts(self) -> dict[str, int]:
        """Return the numbers by name, without those that are None."""
        return {name: count for name, count in self._asdict().items() if count is not None}


@dataclass(frozen=True)
class Update:
    """Plan of an update: for each sample (a row of Source.table) its old row or -1; the old shards that stay; the
    samples of each new shard; the samples rejected before and not tried again; and the numbers of changes."""

    origin: Rows
    kept: Rows
    shards: tuple[Rows, ...]
    rejected: Rows
    changes: Changes


def match(samples: pa.Table, old: pa.Table) -> Rows:
    """Return for each of `samples` the row of `old` with the same path, or -1."""
    rows = pc.index_in(samples.column("path"), value_set=old.column("path"))
    return np.asarray(pc.fill_null(rows, -1).to_numpy(), np.int64)


def agree(name: str, samples: pa.Table, old: pa.Table, matched: Rows) -> npt.NDArray[np.bool_]:
    """Return True for each of `samples` whose value in column `name` equals that of its `matched` row of `old`."""
    same = samples.column(name).to_numpy() == old.column(name).to_numpy()[matched]
    return np.asarray((matched >= 0) & same)


def make_update(
    old: pa.Table,
    old_shard_rows: Rows,
    matched: Rows,
    unchanged: npt.NDArray[np.bool_],
    shard_samples: int | None,
    groups: Groups | None = None,
    unsound: Sequence[int] = (),
) -> Update:
    """Plan an update of `old`, which has ``shard`` (-1 for rejects) and ``row`` of each record. Pure. `matched` is each
    sample's row in `old`, or -1; `unsound` shards do not stay."""
    origin = np.where(unchanged, matched, -1)
    old_shard, old_row = (np.asarray(old.column(name).to_numpy(), np.int64) for name in ("shard", "row"))
    shard_of = np.where(origin >= 0, old_shard[origin], -1)  # of each sample
    left = np.bincount(shard_of[shard_of >= 0], minlength=len(old_shard_rows))
    stays = (left == old_shard_rows) & (old_shard_rows > 0)
    stays[list(unsound)] = False
    is_kept = (shard_of >= 0) & stays[shard_of]
    copied = np.flatnonzero((shard_of >= 0) & ~is_kept)
    copied = copied[np.lexsort((old_row[origin[copied]], shard_of[copied]))]  # read in the order on disk
    built = np.flatnonzero(origin < 0)
    was_stored = old_shard[matched[matched >= 0]] >= 0
    shards = shard_count(len(matched), shard_samples, groups)
    return Update(
        origin=origin,
        kept=np.flatnonzero(stays),
        shards=_spread(copied, shuffled(built, groups), -(-len(matched) // shards)),
        rejected=np.flatnonzero((origin >= 0) & (shard_of < 0)),
        changes=Changes(
            kept=int(is_kept.sum()),
            copied=len(copied),
            built=len(built),
            removed=int((old_shard >= 0).sum() - was_stored.sum()),
        ),
    )


def _spread(copied: Rows, built: Rows, max_samples: int) -> tuple[Rows, ...]:
    """Return the fewest shards of at most `max_samples`, each with a run of `copied` and an equal share of `built`."""
    places = np.concatenate([(np.arange(len(part)) + 0.5) / max(len(part), 1) for part in (copied, built)])
    loose = np.concatenate([copied, built])[np.argsort(places, kind="stable")]
    shards = -(-len(loose) // max_samples)
    bounds = [len(loose) * shard // max(shards, 1) for shard in range(shards + 1)]
    return tuple(np.sort(loose[low:high]) for low, high in pairwise(bounds))


def plan_update(plan: Plan, output: OutputDir, run: RunOptions) -> tuple[Plan, Changes]:
    """Return a plan of the samples that an update of `output` would build, for an estimate, and its changes."""
    existing = output.manifests()
    if not any(existing):
        return plan, Changes.all_built(len(plan.source.table))
    check_may_update(existing, plan, output.path, output.roots[0])
    _, update = find_reuse(plan, output, run)
    rows = pa.array(np.flatnonzero(update.origin < 0))
    source = replace(plan.source, table=plan.source.table.take(rows))
    return replace(plan, source=source, shards=update.shards), update.changes


def find_reuse(plan: Plan, output: OutputDir, run: RunOptions) -> tuple[Records, Update]:
    """Find the records that an update to `plan` can reuse, with ``run.jobs`` threads. Raises DatasetError."""
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
    rejects = base.rejects.take(base.samples.column("row").to_numpy()[update.origin[update.rejected]])
    return Records([base], np.zeros_like(matched), update.origin, update.kept, rejects), update


def find_damage(
    dataset: PublishedDataset, jobs: int, on_shard: Callable[[], None] = lambda: None
) -> tuple[npt.NDArray[np.bool_], dict[tuple[Stream, int], str]]:
    """Read all shards in `jobs` threads. Returns True for each of ``dataset.samples`` with a damaged record, and a
    description of the damage of each damaged file, by its stream and shard number."""
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
    """Return True for each sample whose files are unchanged. For a rejected image, companions are not compared."""
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
        sources = [("", plan.source), *((f"{c.name}_", source_of(plan.source, c)) for c in plan.options.companions)]
        for prefix, source in sources:
            known = old.column(f"{prefix}source_crc32").to_numpy()[matched]
            same, unread = _same_content(source, unchanged, known, jobs)
            unread &= agree(f"{prefix}source_mtime_ns", samples, old, matched)
            if unread.any():  # treated as unchanged
                first = source.table.column("path")[int(np.flatnonzero(unread)[0])].as_py()
                warn(
                    f"{plural(int(unread.sum()), 'file')} could not be read to compare checksums, the first: "
                    f"{printable(first)}; each counts as unchanged, because its size and time are the same"
                )
            unchanged &= same | unread
    return unchanged & may_stay(samples, plan.options, base.indexes[0], matched)


def _same_paths(
    companion: Companion, samples: pa.Table, base: PublishedDataset, matched: Rows
) -> npt.NDArray[np.bool_]:
    """Return True for each sample whose companion has the same path. A pattern's path depends only on the image's."""
    if companion.column is None:
        return np.ones(len(samples), np.bool_)
    old = companion_paths(companion, pa.table(base.indexes[0]))
    rows = np.where(matched < len(old), matched, -1)  # rows past its end are rejects
    same = pc.equal(samples.column(companion.column), old.take(pa.array(np.maximum(rows, 0))))
    return np.asarray((rows >= 0) & pc.fill_null(same, False).to_numpy(), np.bool_)


def _same_content(
    source: Source, asked: npt.NDArray[np.bool_], crc32: npt.NDArray[np.uint32], jobs: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return for each `asked` sample whether its file has the CRC-32 in `crc32`, and whether it cannot be read."""
    same, unread = np.zeros((2, len(asked)), np.bool_)
    reader = SourceReader(source.root)

    def compare(rows: Rows) -> None:
        found = [reader.crc32(file) for file in source.files(rows)]
        same[rows] = [value == crc32[row] for value, row in zip(found, rows.tolist(), strict=True)]
        unread[rows] = [value is None for value in found]

    rows = np.flatnonzero(asked)
    pool = ThreadPoolExecutor(jobs)
    try:
        list(pool.map(compare, np.array_split(rows, -(-len(rows) // _FILES_AT_ONCE) or 1)))
    finally:
        pool.shutdown(cancel_futures=True)
    return same, unread
