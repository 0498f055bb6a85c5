"""Plans an update: which samples of the old dataset are kept, which are copied, and which are built. Pure.

A shard whose samples are all unchanged is kept. The unchanged samples of other shards are copied into new shards, where
they are mixed with those that have to be built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.store.dealing import Groups, shard_count, shuffled

Rows = npt.NDArray[np.int64]


class Changes(NamedTuple):
    """What a build does to the images that are there.

    Attributes:
        kept: images that stay where they lie.
        copied: images whose bytes are copied into a new shard.
        built: files that are new, changed or tried again, and so decoded.
        removed: images whose files the source no longer lists.
        damaged: those of `built` whose file is as it was, but one of their records is not; None where no record was
            read to find out.
    """

    kept: int
    copied: int
    built: int
    removed: int
    damaged: int | None = None

    @classmethod
    def all_built(cls, files: int) -> Changes:
        """Those of a build from scratch."""
        return cls(0, 0, files, 0)

    def counts(self) -> dict[str, int]:
        """The number of images that each applies to, without what was not counted."""
        return {name: count for name, count in self._asdict().items() if count is not None}


@dataclass(frozen=True)
class Update:
    """How a dataset is brought up to date. Samples are rows of Source.table.

    Attributes:
        origin: for each sample its row in the old table, or -1 when it has to be built.
        kept: the old shards that stay, ascending.
        shards: the samples of each new shard, ascending.
        rejected: the samples that were rejected before and are not tried again, ascending.
        changes: the number of images kept, copied, built and removed.
    """

    origin: Rows
    kept: Rows
    shards: tuple[Rows, ...]
    rejected: Rows
    changes: Changes


def match(samples: pa.Table, old: pa.Table) -> Rows:
    """For each of `samples` the row of `old` with the same path, or -1."""
    rows = pc.index_in(samples.column("path"), value_set=old.column("path"))
    return np.asarray(pc.fill_null(rows, -1).to_numpy(), np.int64)


def agree(name: str, samples: pa.Table, old: pa.Table, matched: Rows) -> npt.NDArray[np.bool_]:
    """True for each of `samples` whose value in a column is that of the row of `old` that it was matched to."""
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
    """Plan an update. New shards are at most as large as those of a build from scratch; empty shards are removed.

    Args:
        old: has the columns ``shard`` and ``row`` of each record; shard is -1 for rejected files.
        old_shard_rows: how many records each old shard holds.
        matched: for each sample its row in `old`, or -1.
        unchanged: for each sample whether its file is as it was.
        shard_samples: the option of the build.
        groups: the group of each sample, where the source has them (see presize.store.dealing.assign_shards).
        unsound: old shards that do not stay, although all of their samples may be unchanged.
    """
    origin = np.where(unchanged, matched, -1)
    old_shard, old_row = (np.asarray(old.column(name).to_numpy(), np.int64) for name in ("shard", "row"))
    shard_of = np.where(origin >= 0, old_shard[origin], -1)  # of each sample
    left = np.bincount(shard_of[shard_of >= 0], minlength=len(old_shard_rows))
    stays = (left == old_shard_rows) & (old_shard_rows > 0)
    stays[list(unsound)] = False
    is_kept = (shard_of >= 0) & stays[shard_of]
    copied = np.flatnonzero((shard_of >= 0) & ~is_kept)
    copied = copied[np.lexsort((old_row[origin[copied]], shard_of[copied]))]  # read in the order they lie in
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
    """The fewest shards of at most `max_samples` samples, all of about the same size. Each gets neighbours from
    `copied`, so that it is made from few old shards, and an equal share of `built`, in the order given."""
    places = np.concatenate([(np.arange(len(part)) + 0.5) / max(len(part), 1) for part in (copied, built)])
    loose = np.concatenate([copied, built])[np.argsort(places, kind="stable")]
    shards = -(-len(loose) // max_samples)
    bounds = [len(loose) * shard // max(shards, 1) for shard in range(shards + 1)]
    return tuple(np.sort(loose[low:high]) for low, high in pairwise(bounds))
