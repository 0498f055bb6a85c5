"""What LMDB and Arrow make of a specimen: some records and a table that are always the same."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from pathlib import Path

import pyarrow as pa

from presize.errors import BuildError
from presize.options import Layout
from presize.store.index import index_columns, write_index
from presize.store.shard import ShardWriter

_RECORD_BYTES = (0, 1, 100, 1900, 2100, 4080, 9000, 30_000)
"""Around the sizes at which LMDB puts a value into pages of its own, and adds one more of them."""


@functools.cache
def container_digest(layout: Layout) -> str:
    """SHA-256 of a specimen's shard (of layout "lmdb") and index, in hexadecimal; written to a temporary folder.

    Raises:
        BuildError: that cannot be written to.
    """
    digest = hashlib.sha256()
    rows = len(_RECORD_BYTES)
    columns = {
        name: pa.array(map(str, range(rows)) if kind == pa.large_string() else range(rows), kind)
        for name, kind in index_columns(layout, checksum=True).items()
    }
    try:
        temporary = tempfile.TemporaryDirectory(prefix="presize-", ignore_cleanup_errors=True)
    except OSError as error:
        raise BuildError(f"cannot write to a temporary folder: {error.strerror}; set TMPDIR to one") from None
    with temporary as folder:
        if layout == "lmdb":
            with ShardWriter(Path(folder, "0.lmdb"), 1 << 20, 5) as writer:
                for number, nbytes in enumerate(_RECORD_BYTES):
                    writer.append(bytes((number,)) * nbytes)
                digest.update(writer.publish()[1].encode())
        digest.update(write_index(Path(folder), "index.arrow", pa.table(columns)).sha256.encode())
    return digest.hexdigest()
