"""Checks the pages of a shard before LMDB maps it. LMDB trusts the lengths of values: a crafted shard would crash its
reader. The layout is LMDB 0.9's on little-endian 64-bit machines (mdb.c: MDB_meta, MDB_page, MDB_node)."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from presize.errors import DatasetError

_MAGIC, _VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, _META = 0x01, 0x02, 0x08
OVERFLOW_VALUE = 0x01
"""Flag of a node whose value is on overflow pages."""
_FREE_FLAGS = 0x4008
"""MDB_NOSUBDIR and MDB_INTEGERKEY, which LMDB writes for a single-file environment."""
HEADER_BYTES, NODE_BYTES, _KEY_BYTES = 16, 8, 8
_NODE_SHORTS = np.arange((NODE_BYTES + _KEY_BYTES + 8) >> 1)
"""Offsets, in 16-bit units, of a node's header, its key, and the 64 bits after it."""
_DENSE = 0.1
"""Share of leaf pages above which leaves hold the records."""
_NO_KEY = "a key is not a row number"
_NO_PAGE = 2**64 - 1
_META_PAGE = struct.Struct("<8x 2xH 4x II 8x 8x IH 42x 4xHH 24x QQ QQ")
"""Page flags; magic, version; page bytes, free list's flags; flags, depth, entries, root; last page, transaction."""


Numbers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.uint16]
Words = npt.NDArray[np.uint64]


class Damaged(Exception):
    """Damage in the pages of a shard."""


class Meta(NamedTuple):
    page_bytes: int
    free_flags: int
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    transaction: int


def check_pages(path: str | os.PathLike[str], readahead: bool = True) -> None:
    """Raise DatasetError unless LMDB can look up rows 0, 1, 2, … of the shard in `path` without leaving the file, which
    must not shrink meanwhile. Reads one page for about 150 records of more than 2 kB, or the whole file if records are
    smaller; with `readahead` the kernel may read more. Raises OSError if the file cannot be opened. Thread-safe."""
    try:
        with open(path, "rb", buffering=0) as opened:
            nbytes = os.fstat(opened.fileno()).st_size & ~1
            require(nbytes, "it is empty")
            mapped = mmap.mmap(opened.fileno(), nbytes, prot=mmap.PROT_READ)
        _check(mapped, nbytes, readahead)
    except Damaged as error:
        raise DatasetError(f"{os.fspath(path)} is damaged: {error}; copy or build the dataset again") from None


def _check(mapped: mmap.mmap, nbytes: int, readahead: bool) -> None:
    if not readahead:
        mapped.madvise(mmap.MADV_RANDOM)
    file: Shorts = np.frombuffer(mapped, "<u2")
    meta = newest_meta(file.data.cast("B"))
    require((meta.free_flags, meta.flags) == (_FREE_FLAGS, 0), "its tree has unexpected flags")
    leaves = leaf_pages(file, meta, nbytes, _children)
    if len(leaves) > _DENSE * meta.last_page:
        mapped.madvise(mmap.MADV_NORMAL)  # nearly all pages are read: one by one, that takes ten times as long
    if len(leaves):
        _check_leaves(read_nodes(file, leaves, meta.page_bytes, LEAF), meta, nbytes)


def leaf_pages(file: Shorts, meta: Meta, nbytes: int, children: Callable[[Nodes], Words]) -> Words:
    """Return the leaf pages of the tree in key order, each once, reached through checked pages. `children` returns the
    child pages of a branch's nodes. Raises Damaged if the tree leaves the file of `nbytes`, or has a page twice."""
    require((meta.last_page + 1) * meta.page_bytes <= nbytes, f"it has {nbytes} bytes, too few for its pages")
    if meta.root == _NO_PAGE:
        require(meta.entries == 0, "it has no root")
        return np.empty(0, np.uint64)
    require(meta.depth > 0, "its tree has no levels")
    pages, seen = np.array([meta.root], np.uint64), 0
    for level in range(meta.depth, 0, -1):
        seen += len(pages)
        # Pages must be distinct: otherwise a few pages could form an endless tree.
        require(seen <= meta.last_page and len(np.unique(pages)) == len(pages), "its tree has a page twice")
        require(int(pages.min()) >= 2 and int(pages.max()) <= meta.last_page, "a page of its tree is out of range")
        if level > 1:
            pages = children(read_nodes(file, pages, meta.page_bytes, BRANCH))
    return pages


def newest_meta(file: memoryview) -> Meta:
    """Return the meta page that LMDB uses."""
    first = _meta(file, 0)
    page_bytes = first.page_bytes
    require(512 <= page_bytes <= 0x8000 and page_bytes & (page_bytes - 1) == 0, f"its pages have {page_bytes} bytes")
    second = _meta(file, page_bytes)
    require(second.page_bytes == page_bytes, "its meta pages differ in the size of a page")
    return second if second.transaction > first.transaction else first


def _meta(file: memoryview, begin: int) -> Meta:
    require(begin + _META_PAGE.size <= len(file), "it is too short for a shard")
    page_flags, magic, version, *values = _META_PAGE.unpack_from(file, begin)
    require(page_flags & _META and (magic, version) == (_MAGIC, _VERSION), "it is not an LMDB file of engine 0.9")
    return Meta(*values)


class Nodes(NamedTuple):
    """Nodes in key order. `header`, `key` and `value` are 64 bits each; `value` is undefined at the end of a page.
    `page` is the byte offset of the node's page in the file, `begin` the byte offset of the node in its page."""

    header: Words
    key: Words
    value: Words
    page: Numbers
    begin: Numbers
    page_bytes: int


def read_nodes(file: Shorts, pages: Words, page_bytes: int, kind: int) -> Nodes:
    shorts = page_bytes >> 1  # per page
    start = pages.astype(np.int64) * shorts
    headers = file[start[:, np.newaxis] + np.arange(HEADER_BYTES >> 1)]
    number, flags = headers[:, :4].copy().view("<u8")[:, 0], headers[:, 5]
    lower, upper = headers[:, 6:].T.astype(np.int64)  # the bounds of the free space
    require((number == pages).all(), "a page of its tree has the wrong number")
    require((flags == kind).all(), "a page of its tree has unexpected flags")
    require(((lower > HEADER_BYTES) & (lower <= upper) & (upper <= page_bytes)).all(), "a page overlaps itself")
    counts = (lower - HEADER_BYTES) >> 1
    require(kind == LEAF or counts.min() > 1, "a page of its tree has no children")
    page_of = np.repeat(np.arange(len(pages)), counts)
    slot = np.arange(len(page_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = file[start[page_of] + (HEADER_BYTES >> 1) + slot].astype(np.int64)
    inside = (begin >= upper[page_of]) & (begin & 1 == 0) & (begin + NODE_BYTES <= page_bytes)
    require(inside.all(), "a node lies outside of its page")
    first = start[page_of] + (begin >> 1)
    nodes = file[np.minimum(first[:, np.newaxis] + _NODE_SHORTS, len(file) - 1)].view("<u8")
    return Nodes(nodes[:, 0], nodes[:, 1], nodes[:, 2], start[page_of] << 1, begin, page_bytes)


def child_pages(nodes: Nodes) -> Words:
    """Return the child pages of a branch's nodes; keys are not checked."""
    return nodes.header & np.uint64(2**48 - 1)


def _children(nodes: Nodes) -> Words:
    key_bytes = nodes.header >> np.uint64(48)
    ours = (key_bytes == _KEY_BYTES) & (nodes.begin + NODE_BYTES + _KEY_BYTES <= nodes.page_bytes)
    require((ours | (key_bytes == 0)).all(), _NO_KEY)  # the first node of a page may have no key
    return child_pages(nodes)


def _check_leaves(nodes: Nodes, meta: Meta, nbytes: int) -> None:
    lengths = (nodes.header & np.uint64(2**32 - 1)).astype(np.int64)
    key_bytes, flags = nodes.header >> np.uint64(48), nodes.header >> np.uint64(32) & np.uint64(0xFFFF)
    value_begin = nodes.begin + NODE_BYTES + _KEY_BYTES
    require(((key_bytes == _KEY_BYTES) & (value_begin <= nodes.page_bytes)).all(), _NO_KEY)
    require(len(nodes.key) == meta.entries, f"it has {len(nodes.key)} records where its meta page says {meta.entries}")
    require((nodes.key.byteswap() == np.arange(len(nodes.key), dtype=np.uint64)).all(), "its rows are not 0, 1, 2, …")
    elsewhere = flags == OVERFLOW_VALUE
    require((elsewhere | (flags == 0)).all(), "a node has unexpected flags")
    require((value_begin + np.where(elsewhere, 8, lengths) <= nodes.page_bytes).all(), "a value leaves its page")
    first_pages = nodes.value[elsewhere]
    require(((first_pages >= 2) & (first_pages <= meta.last_page)).all(), "a value lies outside of the file")
    value_ends = first_pages.astype(np.int64) * meta.page_bytes + HEADER_BYTES + lengths[elsewhere]
    require((value_ends <= nbytes).all(), "a value leaves the file")


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise Damaged(otherwise)
