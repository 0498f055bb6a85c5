"""Shards with corrupt pages: they are refused before LMDB follows them, and no reader crashes."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import DatasetError
from presize.store.shard import ShardWriter, commit_records, map_bytes
from presize.store.shard_pages import check_pages
from presize.store.shard_reader import ShardReader
from presize.system.pagecache import MappedFile, drop

PAGE = 4096
MAP_BYTES, PAGE_BYTES, MAIN, LAST_PAGE = 16 + 16, 16 + 24, 16 + 24 + 48, 16 + 24 + 96
"""Offsets in a meta page: the size of the map, the page size, the tree, and the last used page."""


def write(path: Path, sizes: list[int]) -> Path:
    largest = max([*sizes, 1])
    with ShardWriter(path, map_bytes(len(sizes), largest), commit_records(largest)) as writer:
        for row, nbytes in enumerate(sizes):
            writer.append(bytes([row % 251]) * nbytes)
        writer.publish()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 400 records of 3,000 bytes, whose leaf pages have a branch page above them; read only."""
    return write(tmp_path_factory.mktemp("whole") / "00000.lmdb", [3000] * 400)


@given(sizes=st.lists(st.sampled_from([0, 1, 7, 100, 2000, 2040, 2050, 4080, 4081, 9000]), max_size=300))
def test_written_shards_are_valid(sizes: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sound")
    check_pages(write(folder / "a.lmdb", sizes))
    shutil.rmtree(folder)


def test_without_readahead_only_the_pages_of_the_tree_are_read_from_disk(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [60_000] * 200)
    cold = MappedFile(path, path.stat().st_size)
    drop([path])
    if cold.resident_bytes():
        pytest.skip("the file system is in memory")
    check_pages(path, readahead=False)
    assert 0 < cold.resident_bytes() < 128 << 10


def newest_meta(data: bytearray) -> int:
    transactions = [struct.unpack_from("<Q", data, at + LAST_PAGE + 8)[0] for at in (0, PAGE)]
    return PAGE * (transactions[1] > transactions[0])


def root_of(data: bytearray) -> int:
    return PAGE * int(struct.unpack_from("<Q", data, newest_meta(data) + MAIN + 40)[0])


def node(data: bytearray, page: int, number: int) -> int:
    return page + int(struct.unpack_from("<H", data, page + 16 + 2 * number)[0])


def first_leaf(data: bytearray) -> int:
    lo, hi = struct.unpack_from("<HH", data, node(data, root_of(data), 0))
    return PAGE * (lo | hi << 16)


def move_node(data: bytearray, page: int, number: int, to: int) -> None:
    """Move the header of a node within its page."""
    begin = node(data, page, number)
    data[page + to : page + to + 8] = data[begin : begin + 8]
    struct.pack_into("<H", data, page + 16 + 2 * number, to)


def pack(layout: str, at: Callable[[bytearray], int], *values: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(layout, data, at(data), *values)


def both_metas(layout: str, at: int, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        for page in (0, PAGE):
            struct.pack_into(layout, data, page + at, value)

    return change


def why_refused(path: Path) -> str | None:
    """Return check_pages' error about a shard, without the common part; None if it is valid."""
    try:
        check_pages(path)
    except DatasetError as error:
        before, after = f"{path} is damaged: ", "; copy or build the dataset again"
        assert str(error).startswith(before)
        assert str(error).endswith(after)
        return str(error)[len(before) : -len(after)]
    return None


def leaf(number: int, offset: int = 0) -> Callable[[bytearray], int]:
    """Return a function from a page to the offset of a node of the first leaf, or of something in it."""
    return lambda data: node(data, first_leaf(data), number) + offset


def branch(number: int, offset: int = 0) -> Callable[[bytearray], int]:
    return lambda data: node(data, root_of(data), number) + offset


def header(page: Callable[[bytearray], int], offset: int) -> Callable[[bytearray], int]:
    return lambda data: page(data) + offset


LIES: list[tuple[str, str, Callable[[bytearray], None]]] = [
    ("a value leaves the file", "a value is longer than the file", pack("<HH", leaf(3), 0, 0x7FFF)),
    ("a value leaves the file", "a value of 4 GB", pack("<HH", leaf(3), 0xFFFF, 0xFFFF)),
    ("a value lies outside of the file", "a value behind the last page", pack("<Q", leaf(0, 16), 2**40)),
    ("a value lies outside of the file", "a value begins in a meta page", pack("<Q", leaf(0, 16), 1)),
    ("a value lies outside of the file", "a page number of 64 bits", pack("<Q", leaf(0, 16), 2**64 - 1)),
    ("a value leaves its page", "an inline value leaves its page", pack("<HHH", leaf(0), 5000, 0, 0)),
    ("a node has unexpected flags", "a node that holds a tree", pack("<H", leaf(0, 4), 0x02)),
    ("a node has unexpected flags", "a node that holds duplicates", pack("<H", leaf(0, 4), 0x04)),
    ("a key is not a row number", "a long key", pack("<H", leaf(1, 6), 0xFFFF)),
    ("a key is not a row number", "a long key in a branch", pack("<H", branch(1, 6), 0xFFFF)),
    ("a key is not a row number", "a key behind its page", lambda d: move_node(d, first_leaf(d), 1, PAGE - 8)),
    ("a key is not a row number", "a key of a branch behind it", lambda d: move_node(d, root_of(d), 1, PAGE - 8)),
    ("its rows are not 0, 1, 2, …", "a key twice", pack(">Q", leaf(1, 8), 0)),
    ("a node lies outside of its page", "a pointer out of its page", pack("<H", header(first_leaf, 16), 0xFFFE)),
    ("a node lies outside of its page", "a pointer to its last bytes", pack("<H", header(first_leaf, 16), PAGE - 4)),
    ("a node lies outside of its page", "a pointer into the header", pack("<H", header(first_leaf, 16), 0)),
    ("a node lies outside of its page", "a pointer to an odd byte", lambda d: struct.pack_into(
        "<H", d, first_leaf(d) + 18, leaf(1)(d) - first_leaf(d) + 1
    )),
    ("a page overlaps itself", "more nodes than there is room for", pack("<H", header(first_leaf, 12), 0xFFF0)),
    ("a page overlaps itself", "a leaf without nodes", pack("<H", header(first_leaf, 12), 16)),
    ("a page overlaps itself", "a leaf that ends in its header", pack("<H", header(first_leaf, 12), 14)),
    ("a page overlaps itself", "nodes that begin behind their page", pack("<H", header(first_leaf, 14), PAGE + 2)),
    ("a page of its tree has unexpected flags", "a leaf that is a branch", pack("<H", header(first_leaf, 10), 0x01)),
    ("a page of its tree has unexpected flags", "a leaf of bare keys", pack("<H", header(first_leaf, 10), 0x22)),
    ("a page of its tree has unexpected flags", "a branch that leads to itself", lambda d: struct.pack_into(
        "<HHH", d, branch(0)(d), root_of(d) // PAGE, 0, 0
    )),
    ("a page of its tree has unexpected flags", "a tree deeper than it is", both_metas("<H", MAIN + 6, 31)),
    ("a page of its tree has unexpected flags", "a tree that ends too early", both_metas("<H", MAIN + 6, 1)),
    ("a page of its tree has the wrong number", "a leaf of another number", pack("<Q", first_leaf, 7)),
    ("a page of its tree has no children", "a branch with one child", pack("<H", header(root_of, 12), 18)),
    ("its tree has a page twice", "a child twice", lambda d: struct.pack_into(
        "<HHH", d, branch(1)(d), first_leaf(d) // PAGE, 0, 0
    )),
    ("a page of its tree is out of range", "a child behind the last page", pack("<HHH", branch(1), *[0xFFFF] * 3)),
    ("a page of its tree is out of range", "a root behind the last page", both_metas("<Q", MAIN + 40, 2**33)),
    ("a page of its tree is out of range", "a root in a meta page", both_metas("<Q", MAIN + 40, 0)),
    ("a page of its tree is out of range", "a root in the other meta page", both_metas("<Q", MAIN + 40, 1)),
    ("it has no root", "no root", both_metas("<Q", MAIN + 40, 2**64 - 1)),
    ("its tree has no levels", "a tree without levels", both_metas("<H", MAIN + 6, 0)),
    ("it has 400 records where its meta page says 7", "other records than there are", both_metas("<Q", MAIN + 32, 7)),
    ("its tree has unexpected flags", "keys of another order", both_metas("<H", MAIN + 4, 0x02)),
    ("its tree has unexpected flags", "duplicates in the tree", both_metas("<H", MAIN + 4, 0x04)),
    ("it has 1662976 bytes, too few for its pages", "last page behind the end", both_metas("<Q", LAST_PAGE, 10**6)),
    ("it has 1662976 bytes, too few for its pages", "last page of 64 bits", both_metas("<Q", LAST_PAGE, 2**64 - 1)),
    ("its pages have 0 bytes", "pages of no bytes", both_metas("<I", PAGE_BYTES, 0)),
    ("its pages have 3 bytes", "pages of 3 bytes", both_metas("<I", PAGE_BYTES, 3)),
    ("its pages have 2147483648 bytes", "pages of 2 GB", both_metas("<I", PAGE_BYTES, 2**31)),
    ("its meta pages differ in the size of a page", "two sizes", pack("<I", lambda _: PAGE + PAGE_BYTES, 2 * PAGE)),
    ("it is not an LMDB file of engine 0.9", "another program's magic", both_metas("<I", 16, 0)),
    ("it is not an LMDB file of engine 0.9", "the other engine's version", both_metas("<I", 20, 2)),
    ("it is not an LMDB file of engine 0.9", "meta pages that are branches", both_metas("<H", 10, 0x01)),
    ("it is not an LMDB file of engine 0.9", "only zeros", lambda d: d.__setitem__(slice(None), bytes(len(d)))),
]  # fmt: skip


@pytest.mark.parametrize(("words", "lie", "change"), LIES, ids=[lie for _, lie, _ in LIES])
def test_a_corrupt_page_is_refused(
    words: str, lie: str, change: Callable[[bytearray], None], whole: Path, tmp_path: Path
) -> None:
    data = bytearray(whole.read_bytes())
    change(data)
    assert data != whole.read_bytes(), lie
    path = tmp_path / "a.lmdb"
    path.write_bytes(data)
    assert why_refused(path) == words
    with pytest.raises(DatasetError), ShardReader(path, len(data)) as get:
        get(0)


@pytest.mark.parametrize("at_end", [16 + 8 + 8 + 96, 16 + 8 + 8 + 40])
def test_a_value_may_end_with_its_page_but_not_beyond_it(at_end: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [at_end - 32])
    assert why_refused(path) is None
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, node(data, root_of(data), 0), at_end - 31)
    path.write_bytes(data)
    assert why_refused(path) == "a value leaves its page"


def test_a_value_may_end_with_the_file_but_not_beyond_it(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    at = node(data, first_leaf(data), 3)
    first_page = int(struct.unpack_from("<Q", data, at + 16)[0])
    for behind, words in ((0, None), (1, "a value leaves the file")):
        struct.pack_into("<I", data, at, len(data) - first_page * PAGE - 16 + behind)
        (tmp_path / "a.lmdb").write_bytes(data)
        assert why_refused(tmp_path / "a.lmdb") == words


@pytest.mark.parametrize(
    ("page_bytes", "sound"),
    [(256, False), (512, True), (3000, False), (16_384, True), (32_768, True), (65_536, False)],
)
def test_pages_may_have_any_size_that_lmdb_supports(page_bytes: int, sound: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [])
    data = bytearray(2 * page_bytes)
    for number in (0, 1):
        begin = number * page_bytes
        data[begin : begin + 256] = path.read_bytes()[number * PAGE :][:256]
        struct.pack_into("<I", data, begin + PAGE_BYTES, page_bytes)
    path.write_bytes(data)
    assert why_refused(path) == (None if sound else f"its pages have {page_bytes} bytes")


@pytest.mark.parametrize("records", [2, 3])
def test_the_meta_page_of_the_later_transaction_counts(records: int, tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    with ShardWriter(path, 1 << 20, commit_records=1) as writer:
        for _ in range(records):
            writer.append(b"x")
        writer.publish()
    data = bytearray(path.read_bytes())
    later = newest_meta(data)
    assert later == PAGE * (records % 2)
    for at, words in ((PAGE - later, None), (later, f"it has {records} records where its meta page says 7")):
        struct.pack_into("<Q", data, at + MAIN + 32, 7)
        path.write_bytes(data)
        assert why_refused(path) == words


def test_the_first_of_two_meta_pages_of_the_same_transaction_counts(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[:256] = data[PAGE : PAGE + 256] = data[newest_meta(data) :][:256]
    for at, words in ((PAGE, None), (0, "it has 400 records where its meta page says 7")):
        struct.pack_into("<Q", data, at + MAIN + 32, 7)
        (tmp_path / "a.lmdb").write_bytes(data)
        assert why_refused(tmp_path / "a.lmdb") == words


@pytest.mark.parametrize("nbytes", [1, 2, PAGE])
def test_a_shard_may_have_more_bytes_than_its_pages_but_not_fewer(nbytes: int, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "a.lmdb").write_bytes(whole.read_bytes() + bytes(nbytes))
    assert why_refused(tmp_path / "a.lmdb") is None
    (tmp_path / "a.lmdb").write_bytes(whole.read_bytes()[:-nbytes])
    left = whole.stat().st_size - nbytes & ~1
    assert why_refused(tmp_path / "a.lmdb") == f"it has {left} bytes, too few for its pages"


@pytest.mark.parametrize("nbytes", [0, 1, 100, PAGE, PAGE + 100, 2 * PAGE])
def test_a_truncated_shard_with_a_matching_manifest_is_refused(nbytes: int, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "a.lmdb").write_bytes(whole.read_bytes()[:nbytes])
    with pytest.raises(DatasetError), ShardReader(tmp_path / "a.lmdb", nbytes) as get:
        get(0)
