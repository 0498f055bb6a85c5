"""rejects.jsonl, held as Arrow columns: ten million Python objects would take too much memory."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import DatasetError
from presize.store.rejects import MAY_PASS, MAY_PASS_ERRORS, NOT_AN_IMAGE, UNREADABLE, Reject

REJECTS_TOLD = 3
"""Number of rejected images that a build prints at its end."""

ROWS_AT_ONCE = 65536

REPEATED_TEXT = pa.dictionary(pa.int32(), pa.large_string())

SCHEMA = pa.schema(
    {
        "path": pa.large_string(),
        "error": REPEATED_TEXT,
        "reason": REPEATED_TEXT,
        "source_nbytes": pa.int64(),
        "source_mtime_ns": pa.int64(),
    }
)


@dataclass(frozen=True)
class Rejects:
    """Files that were not stored, in any order. Indexing and iterating create Reject objects."""

    columns: pa.RecordBatch = field(default_factory=lambda: _batch([()] * len(SCHEMA)))

    @classmethod
    def of(cls, rejects: Iterable[Reject]) -> Rejects:
        """Convert Reject objects to columns. Raises UnicodeEncodeError for texts with lone surrogates."""
        rest = iter(rejects)
        parts = iter(lambda: list(islice(rest, ROWS_AT_ONCE)), [])
        return cls.joined(cls.with_columns(zip(*part, strict=True)) for part in parts)

    @classmethod
    def with_columns(cls, columns: Iterable[object]) -> Rejects:
        """Combine arrays, chunked arrays or lists of values, in the order of SCHEMA."""
        return cls(_batch(columns))

    @classmethod
    def joined(cls, parts: Iterable[Rejects]) -> Rejects:
        """Concatenate parts. A column that nobody else holds is freed once copied: ten million take a gigabyte."""
        batches = [part.columns for part in parts if len(part)]
        if len(batches) == 1:
            return cls(batches[0])
        columns = pa.Table.from_batches(batches, SCHEMA).columns
        del batches
        return cls.with_columns(columns.pop(0) for _ in SCHEMA)

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def __getitem__(self, row: int) -> Reject:
        return next(iter(Rejects(self.columns.slice(range(len(self))[row], 1))))

    def __iter__(self) -> Iterator[Reject]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            part = self.columns.slice(start, ROWS_AT_ONCE)
            yield from map(Reject, *(_values(column) for column in part.columns))

    def take(self, rows: npt.NDArray[np.integer] | pa.Array) -> Rejects:
        return Rejects(self.columns.take(pa.array(rows)))

    @property
    def is_skipped(self) -> pa.BooleanArray:
        """Mask of the files that are not images and not named like one."""
        return self._have(NOT_AN_IMAGE)

    @property
    def skipped(self) -> int:
        return int(self.is_skipped.true_count)

    @property
    def of_images(self) -> Rejects:
        """The files that are images by content or name: all but the skipped ones."""
        return Rejects(self.columns.filter(pc.invert(self.is_skipped)))

    @property
    def unreadable(self) -> Rejects:
        return Rejects(self.columns.filter(self._have(UNREADABLE)))

    def _have(self, *errors: str) -> pa.BooleanArray:
        column = self.columns.column("error")
        return pc.is_in(column.dictionary, value_set=pa.array(errors, pa.large_string())).take(column.indices)

    def order(self) -> npt.NDArray[np.uint64]:
        """Return row numbers sorted by path, then by the other columns, None first; the order of rows has no effect."""
        path, error, reason, *counts = self.columns.columns
        keys = [path, _ranks(error), _ranks(reason)]
        for count in counts:
            keys += [count.is_valid().cast(pa.uint8()), count]
        names = [str(number) for number in range(len(keys))]
        order = pc.sort_indices(pa.table(keys, names), [(name, "ascending") for name in names])
        return np.asarray(order.to_numpy())

    def forgetting(self) -> Rejects:
        """Return a copy without size and time of the files that may succeed next time, so that updates retry them."""
        path, error, reason, *counts = self.columns.columns
        passing = functools.reduce(pc.or_, (pc.starts_with(reason.dictionary, begin) for begin in MAY_PASS))
        may_pass = pc.or_(passing.take(reason.indices), self._have(*MAY_PASS_ERRORS))
        forgotten = (pc.if_else(may_pass, pa.scalar(None, pa.int64()), count) for count in counts)
        return Rejects.with_columns([path, error, reason, *forgotten])


def to_jsonl(rejects: Rejects) -> Iterator[bytes]:
    """Yield rejects.jsonl in pieces: UTF-8, one JSON object per line, sorted by path, so independent of --jobs."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    order = rejects.order()
    for start in range(0, len(order), ROWS_AT_ONCE):
        lines = (encode(reject.known()) for reject in rejects.take(order[start : start + ROWS_AT_ONCE]))
        yield "".join(f"{line}\n" for line in lines).encode()


def read_rejects(path: Path) -> Rejects:
    """Read a rejects.jsonl. Raises DatasetError if it is missing or a line is invalid."""
    try:
        with path.open("rb") as file:
            return Rejects.of(_reject(json.loads(line)) for lines in file for line in lines.splitlines())
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; copy or build the dataset again") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"a line has no {error}" if isinstance(error, KeyError) else error
        raise DatasetError(f"{path} is damaged: {reason}; copy or build the dataset again") from None


def first_rejects(path: Path, count: int, unreadable: bool = False) -> tuple[Reject, ...]:
    """Return up to `count` rejected images, or `unreadable` ones, to display; none if the file is damaged."""
    try:
        with path.open("rb") as file:
            images = (each for each in map(_reject, map(json.loads, file)) if each.error != NOT_AN_IMAGE)
            return tuple(islice((image for image in images if (image.error == UNREADABLE) == unreadable), count))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def _batch(columns: Iterable[Any]) -> pa.RecordBatch:
    arrays = []
    for column, kind in zip(columns, SCHEMA.types, strict=True):
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks() if column.num_chunks else ()
        if pa.types.is_dictionary(kind) and not isinstance(column, pa.Array):
            column = pa.array(column, kind.value_type).dictionary_encode()  # pyarrow < 25 cannot do both at once
        arrays.append(pa.array(column, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _reject(line: dict[str, object]) -> Reject:
    texts = [line[name] for name in ("path", "error", "reason")]
    counts = [line.get(name) for name in ("source_nbytes", "source_mtime_ns")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a line has no path, error and reason")
    if not all(type(count) is int and -(2**63) <= count < 2**63 for count in counts):
        counts = [None, None]
    return Reject(*texts, *counts)  # type: ignore[arg-type]


def _values(column: pa.Array) -> Any:
    """Return the values of a column; of a dictionary, which may be large, only those in use."""
    return (column.dictionary_decode() if pa.types.is_dictionary(column.type) else column).to_pylist()


def _ranks(texts: pa.DictionaryArray) -> pa.Array:
    return pc.rank(texts.dictionary, tiebreaker="dense").cast(pa.int32()).take(texts.indices)
