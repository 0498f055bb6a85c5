"""Reads images from Parquet files, row by row: quickly when rows are read in order, and within bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from presize.errors import ImageError
from presize.system.file_version import FileVersion

_ROWS_AT_ONCE = 8
"""Few enough that photographs are still in the processor's cache when they become bytes."""
_BUFFER_BYTES = 1 << 17
"""Less than most pages have that hold images: those are read without a copy in between."""
_FOOTERS = 16
"""That are kept: of a thousand row groups one has some hundred kB."""
_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


def is_bytes(kind: pa.DataType) -> bool:
    return any(is_type(kind) for is_type in _TYPES)


def is_image(kind: pa.DataType) -> bool:
    """Whether a column is one of Hugging Face's images: {bytes, path}."""
    return pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type)


def open_parquet(path: str) -> pq.ParquetFile:
    """A file that is read page by page: reading a row group at once would take its size in memory.

    The footers of the files that were opened last are not parsed again: of a thousand row groups that takes as long as
    reading a hundred photographs does.
    """
    version = FileVersion.at(path)
    file = _opened(path, _footer(path, version))
    if FileVersion.at(path) != version:  # replaced in between: which footer and which file these are is not known
        _footer.cache_clear()
        return _opened(path)
    return file


def _opened(path: str, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(path, metadata=footer, buffer_size=_BUFFER_BYTES, pre_buffer=False)


@functools.lru_cache(_FOOTERS)
def _footer(path: str, version: FileVersion) -> pq.FileMetaData:  # noqa: ARG001  a key of the cache
    return pq.read_metadata(path)


@dataclass
class _Cursor:
    """Where a reader is: the values that it has, the row at which they begin, and the batches behind them."""

    file: pq.ParquetFile
    place: tuple[str, str, int]
    batches: Iterator[pa.RecordBatch]
    values: list[bytes | None]
    begin: int = 0

    @classmethod
    def at(cls, path: str, column: str, group: int, last: _Cursor | None) -> _Cursor:
        """At the first row of a row group. The footer of a file that `last` has open is not parsed again."""
        file = last.file if last is not None and last.place[0] == path else open_parquet(path)
        leaf = f"{column}.bytes" if is_image(file.schema_arrow.field(column).type) else column
        batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[leaf], use_threads=False)
        return cls(file, (path, column, group), batches, [])

    def value(self, row: int) -> bytes | None:
        """The bytes of a row that is not before `begin`; None where there are none."""
        while row >= self.begin + len(self.values):
            self.begin += len(self.values)
            column = next(self.batches).column(0)
            column = column.flatten()[0] if pa.types.is_struct(column.type) else column
            self.values = column.to_pylist()  # at once, which is faster than one by one
        return self.values[row - self.begin]


class RowReader:
    """Reads images row by row; for one thread. It has one file open, as long as it lives."""

    def __init__(self) -> None:
        self._cursor: _Cursor | None = None

    def read(self, path: str, column: str, group: int, row: int) -> bytes:
        """The bytes of an image. Reading the rows of a row group in order reads each once; going back begins again.

        Raises:
            ImageError: the row has no bytes, or cannot be decoded.
            OSError: the file cannot be opened.
        """
        cursor, self._cursor = self._cursor, None
        try:
            if cursor is None or cursor.place != (path, column, group) or row < cursor.begin:
                cursor = _Cursor.at(path, column, group, cursor)
            value = cursor.value(row)
        except OSError as error:
            if error.errno is not None:
                raise
            raise ImageError(f"its row group cannot be decoded: {_first_line(error)}") from None
        except (pa.ArrowException, StopIteration, KeyError, IndexError) as error:
            raise ImageError(f"its row group cannot be decoded: {_first_line(error)}") from None
        self._cursor = cursor
        if value is None:
            raise ImageError("its row has no bytes; a path alone is not followed")
        return value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["it has changed"])[0]
