"""JoinedData: several datasets, concatenated and read as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.codecs.stored_value import Pixels
from presize.errors import DatasetError, OptionError
from presize.store.dataset import Dataset
from presize.store.manifest import Manifest


class JoinedData:
    """Samples of several datasets, numbered consecutively, with the interface of Dataset.

    Numeric columns are copied into one array when they are first read; height and width immediately, so that forked
    workers share them."""

    def __init__(self, parts: Sequence[Data]) -> None:
        self.parts = list(parts)
        self.manifest: Manifest = parts[0].manifest
        self.max_pixels: int = parts[0].max_pixels
        self.root: str = ", ".join(str(part.root) for part in parts)
        self._starts = np.cumsum([0, *map(len, parts)])
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        alike = _to_be_alike(parts[0])
        for part in parts:
            for name, theirs in _to_be_alike(part).items():
                if theirs != alike[name]:
                    raise OptionError(
                        f"dataset: the parts of a ConcatDataset must have the same {name}, got {alike[name]} in "
                        f"{parts[0].root} and {theirs} in {part.root}"
                    )
        self.numbers("height"), self.numbers("width")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_numbers": {}}

    @property
    def companions(self) -> tuple[str, ...]:
        return self.parts[0].companions

    @property
    def companion_name(self) -> str | None:
        return self.parts[0].companion_name

    def companion(self, name: str) -> JoinedData:
        return JoinedData([part.companion(name) for part in self.parts])

    def column(self, name: str) -> pa.ChunkedArray:
        """Return an index column. Raises DatasetError if a part lacks it, or if types differ."""
        columns = [part.column(name) for part in self.parts]
        for part, column in zip(self.parts, columns, strict=True):
            if column.type != columns[0].type:
                raise DatasetError(
                    f"column {name!r} is {columns[0].type} in {self.parts[0].root} and {column.type} in {part.root}"
                )
        return pa.chunked_array([chunk for column in columns for chunk in getattr(column, "chunks", [column])])

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return a numeric index column without nulls, read-only. Shard numbers continue from part to part."""
        if name not in self._numbers:
            columns = [part.numbers(name) for part in self.parts]
            if name == "shard":
                # int64 with NumPy 1 and 2: states of ShardShuffled contain a checksum of these numbers.
                firsts = self._first_shards()
                columns = [column.astype(np.int64) + first for column, first in zip(columns, firsts, strict=False)]
            joined = np.concatenate(columns)
            joined.flags.writeable = False
            self._numbers[name] = joined
        return self._numbers[name]

    def _first_shards(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *(int(part.numbers("shard").max(initial=-1)) + 1 for part in self.parts)])

    def check_column(self, name: str) -> None:
        for part in self.parts:
            part.check_column(name)

    def shape(self, sample: int) -> tuple[int, int]:
        part, number = self._find(sample)
        return part.shape(number)

    def path(self, sample: int) -> str:
        part, number = self._find(sample)
        return part.path(number)

    def damage(self, sample: int, what: object) -> DatasetError:
        part, number = self._find(sample)
        return part.damage(number, what)

    def fetch_ahead(self, groups: Sequence[Sequence[int]]) -> None:
        firsts = self._first_shards().tolist()
        for part, first, end in zip(self.parts, firsts, firsts[1:], strict=False):
            own = ([number - first for number in group if first <= number < end] for group in groups)
            part.fetch_ahead([group for group in own if group])

    def check_order(self, by_shards: bool) -> None:
        for part in self.parts:
            part.check_order(by_shards)

    def _find(self, sample: int) -> tuple[Data, int]:
        i = int(np.searchsorted(self._starts, sample, "right")) - 1
        return self.parts[i], sample - int(self._starts[i])

    def values(
        self, samples: Sequence[int], on_damage: Callable[[int, DatasetError], None] | None = None
    ) -> Iterator[tuple[int, memoryview]]:
        for part, positions, numbers in self._split(samples):
            damaged = None if on_damage is None else _at(positions, on_damage)
            for at, value in part.values(numbers, damaged):
                yield positions[at], value

    def pixels(self, samples: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
        for part, positions, numbers in self._split(samples):
            for at, pixels in part.pixels(numbers):
                yield positions[at], pixels

    def _split(self, samples: Sequence[int]) -> Iterator[tuple[Data, list[int], list[int]]]:
        """Yield each part with the positions in `samples` of its samples, and their numbers in the part."""
        wanted = np.asarray(samples, np.int64)
        parts = np.searchsorted(self._starts, wanted, "right") - 1
        for i in np.unique(parts).tolist():
            positions = np.flatnonzero(parts == i)
            yield self.parts[i], positions.tolist(), (wanted[positions] - self._starts[i]).tolist()


Data = Dataset | JoinedData


def _to_be_alike(data: Data) -> dict[str, object]:
    manifest, options = data.manifest, data.manifest.identity["options"]
    declared = {name: " and ".join(map(str, options.get(name, ()))) or "none" for name in ("boxes", "keypoints")}
    stored = {name: getattr(manifest, name) for name in ("format", "color", "depth")}
    return stored | declared | {"max_pixels": data.max_pixels}


def _at(positions: list[int], on_damage: Callable[[int, DatasetError], None]) -> Callable[[int, DatasetError], None]:
    return lambda at, error: on_damage(positions[at], error)
