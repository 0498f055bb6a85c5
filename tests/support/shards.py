"""Datasets that consist only of a shard column, for orders that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presize.store.dealing import assign_shards


@dataclass(frozen=True)
class Shards:
    """Dataset whose `column` is the shard of each sample."""

    column: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.column)

    def numbers(self, name: str) -> npt.NDArray[Any]:
        assert name == "shard"
        return self.column

    def fetch_ahead(self, groups: Sequence[Sequence[int]]) -> None:
        pass


def dealt(samples: int, shards: int) -> Shards:
    """Return shards as a build assigns them."""
    column = np.empty(samples, np.int32)
    for shard, members in enumerate(assign_shards(samples, shards)):
        column[members] = shard
    return Shards(column)
