"""Finds the values of an LMDB that another program wrote, in its pages, without liblmdb, which would trust them."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.errors import SourceError
from presize.store.shard_pages import (
    HEADER_BYTES,
    LEAF,
    NODE_BYTES,
    OVERFLOW_VALUE,
    Damaged,
    Meta,
    Nodes,
    child_pages,
    leaf_pages,
    newest_meta,
    read_nodes,
    require,
)
from presize.system.file_version import FileVersion
from presize.system.files import open_at_once

_PAGES_AT_ONCE = 4096
_PAGE_NUMBER_BYTES = 8
_SUB_DATABASE, _DUPLICATES = 0x02, 0x04

Numbers = npt.NDArray[np.int64]


class LmdbValues(NamedTuple):
    """The records of an LMDB, in the order of their keys.

    Attributes:
        content: the file, mapped.
        keys: as bytes.
        offset: of each value in the file.
        nbytes: of each value.
        version: that of the file, before it was read.
    """

    content: npt.NDArray[np.uint8]
    keys: pa.LargeBinaryArray
    offset: Numbers
    nbytes: Numbers
    version: FileVersion

    def values(self, rows: Numbers, most_bytes: int) -> pa.LargeBinaryArray:
        """The values in these rows, at most so many bytes of each."""
        return _gather(self.content, self.offset[rows], np.minimum(self.nbytes[rows], most_bytes))


def read_lmdb(path: str) -> LmdbValues:
    """The places of all values in the main database of an LMDB 0.9 file. Values are not read.

    Every place is checked to lie in the file, and no two values to overlap. The file must not shrink meanwhile.

    Raises:
        SourceError: the file cannot be read, is damaged, or has no plain keys and values.
    """
    try:
        with open(path, "rb", buffering=0, opener=open_at_once) as file:
            version = FileVersion.of(os.fstat(file.fileno()))
            nbytes = version.nbytes & ~1
            require(nbytes, "it is empty")
            mapped = mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ)
        return _read(np.frombuffer(mapped, np.uint8), version)
    except Damaged as error:
        raise SourceError(f"it is damaged: {error}") from None
    except OSError as error:
        raise SourceError(f"it cannot be read: {error.strerror}") from error


def _read(content: npt.NDArray[np.uint8], version: FileVersion) -> LmdbValues:
    shorts = content.view("<u2")
    meta = newest_meta(content.data)
    if meta.flags:
        raise SourceError("its keys have several values, or are native integers; expected plain keys and values")
    pages = leaf_pages(shorts, meta, len(content), child_pages)
    blocks = [
        _leaves(content, read_nodes(shorts, pages[start : start + _PAGES_AT_ONCE], meta.page_bytes, LEAF), meta)
        for start in range(0, len(pages), _PAGES_AT_ONCE)
    ]
    offset, nbytes = (np.concatenate([np.empty(0, np.int64), *(block[k] for block in blocks)]) for k in (1, 2))
    require(len(offset) == meta.entries, f"it has {len(offset)} records where it says {meta.entries}")
    stored = np.flatnonzero(nbytes)
    stored = stored[np.argsort(offset[stored], kind="stable")]
    ends = offset[stored] + nbytes[stored]
    require((ends[:-1] <= offset[stored][1:]).all(), "two values overlap")
    keys = pa.concat_arrays([pa.array([], pa.large_binary()), *(block[0] for block in blocks)])
    return LmdbValues(content, keys, offset, nbytes, version)


def _leaves(content: npt.NDArray[np.uint8], nodes: Nodes, meta: Meta) -> tuple[pa.LargeBinaryArray, Numbers, Numbers]:
    """The keys, offsets and sizes of the values of some leaves."""
    lengths = (nodes.header & np.uint64(2**32 - 1)).astype(np.int64)
    flags = nodes.header >> np.uint64(32) & np.uint64(0xFFFF)
    key_bytes = (nodes.header >> np.uint64(48)).astype(np.int64)
    value = nodes.begin + NODE_BYTES + key_bytes  # in its page
    require((value <= meta.page_bytes).all(), "a key leaves its page")
    keys = _gather(content, nodes.page + nodes.begin + NODE_BYTES, key_bytes)
    other = np.flatnonzero((flags != 0) & (flags != OVERFLOW_VALUE))
    if len(other):
        what = {_SUB_DATABASE: "a database", _DUPLICATES: "several values"}.get(int(flags[other[0]]), "no value")
        raise SourceError(f"its key {keys[int(other[0])].as_py()!r} holds {what}; expected plain keys and values")
    elsewhere = flags == OVERFLOW_VALUE
    in_page = np.where(elsewhere, _PAGE_NUMBER_BYTES, lengths)
    require((value + in_page <= meta.page_bytes).all(), "a value leaves its page")
    offset = nodes.page + value
    numbers = offset[elsewhere][:, np.newaxis] + np.arange(_PAGE_NUMBER_BYTES)
    first_page = content[numbers].view("<u8")[:, 0]
    require(((first_page >= 2) & (first_page <= meta.last_page)).all(), "a value lies outside of the file")
    offset[elsewhere] = first_page.astype(np.int64) * meta.page_bytes + HEADER_BYTES
    require((offset + lengths <= len(content)).all(), "a value leaves the file")
    return keys, offset, lengths


def _gather(content: npt.NDArray[np.uint8], begin: Numbers, lengths: Numbers) -> pa.LargeBinaryArray:
    """Copies of parts of `content`, which lie in it."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) + np.repeat(begin - ends[:-1], lengths)
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(content[places])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)
