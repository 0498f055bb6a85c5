"""Shards whose pages lie: they are refused before LMDB follows them, and no reader dies."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import DatasetError
from presize.store.shard import ShardReader, ShardWriter, commit_records, map_bytes
from presize.store.shard_pages import check_pages
from processes import run_python

PAGE = 4096
MAIN, LAST_PAGE = 16 + 24 + 48, 16 + 24 + 96  # in a meta page: the tree, and the last page in use


def write(path: Path, sizes: list[int]) -> Path:
    largest = max([*sizes, 1])
    with ShardWriter(path, map_bytes(len(sizes), largest), commit_records(largest)) as writer:
        for row, nbytes in enumerate(sizes):
            writer.append(bytes([row % 251]) * nbytes)
        writer.publish()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 records of 3,000 bytes, whose leaf pages have a branch page above them; read only."""
    return write(tmp_path_factory.mktemp("whole") / "00000.lmdb", [3000] * 400)


@given(sizes=st.lists(st.sampled_from([0, 1, 7, 100, 2000, 2040, 2050, 4080, 4081, 9000]), max_size=300))
def test_what_is_written_is_sound(sizes: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sound")
    check_pages(write(folder / "a.lmdb", sizes))
    shutil.rmtree(folder)


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


def pack(layout: str, at: Callable[[bytearray], int], *values: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(layout, data, at(data), *values)


def both_metas(layout: str, at: int, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        for page in (0, PAGE):
            struct.pack_into(layout, data, page + at, value)

    return change


LIES = {
    "a value is longer than the file": pack("<HH", lambda d: node(d, first_leaf(d), 3), 0, 0x7FFF),
    "a value of 4 GB": pack("<HH", lambda d: node(d, first_leaf(d), 3), 0xFFFF, 0xFFFF),
    "a value begins behind the last page": pack("<Q", lambda d: node(d, first_leaf(d), 0) + 16, 2**40),
    "a value begins in a meta page": pack("<Q", lambda d: node(d, first_leaf(d), 0) + 16, 1),
    "a page number of 64 bits": pack("<Q", lambda d: node(d, first_leaf(d), 0) + 16, 2**64 - 1),
    "an inline value leaves its page": pack("<HHH", lambda d: node(d, first_leaf(d), 0), 5000, 0, 0),
    "a node that holds a tree": pack("<H", lambda d: node(d, first_leaf(d), 0) + 4, 0x02),
    "a node that holds duplicates": pack("<H", lambda d: node(d, first_leaf(d), 0) + 4, 0x04),
    "a long key": pack("<H", lambda d: node(d, first_leaf(d), 1) + 6, 0xFFFF),
    "a key twice": pack(">Q", lambda d: node(d, first_leaf(d), 1) + 8, 0),
    "a pointer out of its page": pack("<H", lambda d: first_leaf(d) + 16, 0xFFFE),
    "a pointer into the header": pack("<H", lambda d: first_leaf(d) + 16, 0),
    "more nodes than a page has room for": pack("<H", lambda d: first_leaf(d) + 12, 0xFFF0),
    "a leaf without nodes": pack("<H", lambda d: first_leaf(d) + 12, 16),
    "a leaf that is a branch": pack("<H", lambda d: first_leaf(d) + 10, 0x01),
    "a leaf of another number": pack("<Q", first_leaf, 7),
    "a branch with one child": pack("<H", lambda d: root_of(d) + 12, 18),
    "a branch that leads to itself": lambda d: struct.pack_into(
        "<HHH", d, node(d, root_of(d), 0), root_of(d) // PAGE, 0, 0
    ),
    "a child twice": lambda d: struct.pack_into("<HHH", d, node(d, root_of(d), 1), first_leaf(d) // PAGE, 0, 0),
    "a child behind the last page": pack("<HHH", lambda d: node(d, root_of(d), 1), 0xFFFF, 0xFFFF, 0xFFFF),
    "a root behind the last page": both_metas("<Q", MAIN + 40, 2**33),
    "a root in a meta page": both_metas("<Q", MAIN + 40, 0),
    "no root": both_metas("<Q", MAIN + 40, 2**64 - 1),
    "a tree deeper than it is": both_metas("<H", MAIN + 6, 31),
    "a tree that ends too early": both_metas("<H", MAIN + 6, 1),
    "a tree without levels": both_metas("<H", MAIN + 6, 0),
    "other records than there are": both_metas("<Q", MAIN + 32, 7),
    "keys of another order": both_metas("<H", MAIN + 4, 0x02),
    "duplicates in the tree": both_metas("<H", MAIN + 4, 0x04),
    "a last page behind the end": both_metas("<Q", LAST_PAGE, 10**6),
    "a last page of 64 bits": both_metas("<Q", LAST_PAGE, 2**64 - 1),
    "pages of no bytes": both_metas("<I", 40, 0),
    "pages of 3 bytes": both_metas("<I", 40, 3),
    "pages of 2 GB": both_metas("<I", 40, 2**31),
    "another program's magic": both_metas("<I", 16, 0),
    "the other engine's version": both_metas("<I", 20, 2),
    "nothing but zeros": lambda d: d.__setitem__(slice(None), bytes(len(d))),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_page_that_lies_is_refused(lie: str, whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    LIES[lie](data)
    assert data != whole.read_bytes()
    (tmp_path / "a.lmdb").write_bytes(data)
    with pytest.raises(DatasetError, match=r"a\.lmdb is damaged: .*; copy or build the dataset again"):
        check_pages(tmp_path / "a.lmdb")
    with pytest.raises(DatasetError), ShardReader(tmp_path / "a.lmdb", len(data)) as get:
        get(0)


@pytest.mark.parametrize("nbytes", [0, 1, 100, PAGE, PAGE + 100, 2 * PAGE])
def test_a_shard_cut_short_under_a_manifest_that_knows_it_is_refused(nbytes: int, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "a.lmdb").write_bytes(whole.read_bytes()[:nbytes])
    with pytest.raises(DatasetError), ShardReader(tmp_path / "a.lmdb", nbytes) as get:
        get(0)


FLIPS = """
    import random, sys
    from pathlib import Path
    from presize.errors import DatasetError
    from presize.store.shard import ShardReader
    whole, folder, flips = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), int(sys.argv[3])
    places = [int(place) for place in sys.argv[4].split(",")]  # of pages that LMDB follows
    draw, refused = random.Random(int(sys.argv[5])), 0
    for number in range(flips):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 8])):
            at = draw.choice(places) + draw.randrange(draw.choice([160, 4096]))
            data[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1 << draw.randrange(8)])
        path = folder / f"{number}.lmdb"
        path.write_bytes(data)
        try:
            reader = ShardReader(path, len(data))
            with reader as get:
                for row in (0, 1, 77, 150, 399, 400, 2**62):
                    bytes(get(row))
        except DatasetError:
            refused += 1
        reader.close()
        path.unlink()
    print(flips, "read or refused,", "some refused" if refused else "none refused")
"""


def test_whatever_is_changed_in_the_pages_of_a_shard_no_reader_dies(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    places = [0, PAGE, root_of(data), first_leaf(data)]
    seed = random.randrange(10**6)
    printed = run_python(FLIPS, whole, tmp_path, 1500, ",".join(map(str, places)), seed, timeout_s=120)
    assert printed == "1500 read or refused, some refused\n", f"seed {seed}"
