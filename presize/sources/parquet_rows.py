"""Images in rows of Parquet files, read in order within bounded memory."""

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
"""Few enough that photographs are still in the CPU cache when they are converted to bytes."""
_BUFFER_BYTES = 1 << 17
"""Less than the size of most pages of images, so that they are read without an intermediate copy."""
_FOOTERS = 16
"""Number of cached footers. The footer of a thousand row groups has hundreds of kB."""
_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


def is_bytes(kind: pa.DataType) -> bool:
    return any(is_type(kind) for is_type in _TYPES)


def is_image(kind: pa.DataType) -> bool:
    """Return whether a type is that of Hugging Face's images: {bytes, path}."""
    return pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type)


def open_parquet(path: str) -> pq.ParquetFile:
    """Open a file so that it is read page by page, to save memory. Recent footers are cached: parsing the footer of a
    thousand row groups takes as long as reading a hundred photographs."""
    import pyarrow.parquet as pq

    version = FileVersion.at(path)
    opened = partial(pq.ParquetFile, path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    file = opened(metadata=_footer(path, version))
    if FileVersion.at(path) != version:  # replaced meanwhile: the footer may not belong to the file
        _footer.cache_clear()
        return opened()
    return file


@lru_cache(_FOOTERS)
def _footer(path: str, version: FileVersion) -> pq.FileMetaData:  # noqa: ARG001  part of the cache key
    import pyarrow.parquet as pq

    return pq.read_metadata(path)


class RowReader:
    """Reader of the images in a column of a file, row by row. Not thread-safe."""

    _file: pq.ParquetFile | None = None
    _group: int | None = None
    _batches: Iterator[pa.RecordBatch]
    _values: list[bytes | None]
    _begin: int  # the row of the first value

    def __init__(self, path: str, column: str) -> None:
        self._path = path
        self._column = column

    def read(self, group: int, row: int) -> bytes:
        """Return the bytes of an image. Reading rows in order decodes a row group once; going back decodes it again.
        Raises ImageError if the row has no bytes or cannot be decoded, and OSError if the file cannot be opened."""
        before, self._group = self._group, None  # after an error, the row group is decoded again
        try:
            if before != group or row < self._begin:
                self._begin_group(group)
            while row >= self._begin + len(self._values):
                self._begin += len(self._values)
                values = next(self._batches).column(0)
                # Converting all at once is faster than one by one.
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
            raise ImageError("its row has no bytes; paths of image files are not followed")
        return value

    def _begin_group(self, group: int) -> None:
        self._file = self._file or open_parquet(self._path)
        name = self._column
        leaf = f"{name}.bytes" if is_image(self._file.schema_arrow.field(name).type) else name
        self._batches = self._file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[leaf], use_threads=False)
        self._begin, self._values = 0, []


def first_line(error: Exception, otherwise: str = "it has changed") -> str:
    return (str(error).splitlines() or [otherwise])[0]
