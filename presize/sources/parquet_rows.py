"""Images in rows of Parquet files, read one after the other within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from presize.errors import ImageError
from presize.system.file_version import FileVersion

if TYPE_CHECKING:
    import pyarrow.parquet as pq  # with pyarrow.fs, which builds of folders do not need

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
    """Return whether a column is one of Hugging Face's images: {bytes, path}."""
    return pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type)


def open_parquet(path: str) -> pq.ParquetFile:
    """A file that is read page by page, for memory. Footers of files that were opened last are not parsed again: of a
    thousand row groups that takes as long as reading a hundred photographs does."""
    import pyarrow.parquet as pq

    version = FileVersion.at(path)
    opened = partial(pq.ParquetFile, path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    file = opened(metadata=_footer(path, version))
    if FileVersion.at(path) != version:  # replaced in between: which footer and which file these are is not known
        _footer.cache_clear()
        return opened()
    return file


@lru_cache(_FOOTERS)
def _footer(path: str, version: FileVersion) -> pq.FileMetaData:  # noqa: ARG001  a key of the cache
    import pyarrow.parquet as pq

    return pq.read_metadata(path)


class RowReader:
    """Reads the images in a column of a file row by row; for one thread."""

    _file: pq.ParquetFile | None = None
    _group: int | None = None
    _batches: Iterator[pa.RecordBatch]
    _values: list[bytes | None]
    _begin: int  # the row of the first of them

    def __init__(self, path: str, column: str) -> None:
        self._path = path
        self._column = column

    def read(self, group: int, row: int) -> bytes:
        """The bytes of an image. Rows of a row group that are read in order are read once; going back begins again.
        Raises ImageError when the row has none, or cannot be decoded, and OSError when the file cannot be opened."""
        before, self._group = self._group, None  # what fails is begun again
        try:
            if before != group or row < self._begin:
                self._begin_group(group)
            while row >= self._begin + len(self._values):
                self._begin += len(self._values)
                values = next(self._batches).column(0)
                # All at once, which is faster than one by one.
                self._values = (values.flatten()[0] if pa.types.is_struct(values.type) else values).to_pylist()
            value: bytes | None = self._values[row - self._begin]
        except OSError as error:
            if error.errno is not None:
                raise
            raise ImageError(f"its row group cannot be decoded: {first_line(error)}") from None
        except (pa.ArrowException, StopIteration, KeyError, IndexError) as error:
            raise ImageError(f"its row group cannot be decoded: {first_line(error)}") from None
        self._group = group
        if value is None:
            raise ImageError("its row has no bytes; a path alone is not followed")
        return value

    def _begin_group(self, group: int) -> None:
        """Go to the first row of a row group. The footer of a file that is open is not parsed again."""
        self._file = self._file or open_parquet(self._path)
        name = self._column
        leaf = f"{name}.bytes" if is_image(self._file.schema_arrow.field(name).type) else name
        self._batches = self._file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[leaf], use_threads=False)
        self._begin, self._values = 0, []


def first_line(error: Exception, otherwise: str = "it has changed") -> str:
    return (str(error).splitlines() or [otherwise])[0]
