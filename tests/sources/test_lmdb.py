"""LMDBs of other programs: which keys are images, and what is said of those that are laid out otherwise."""

from __future__ import annotations

import random
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from foreign import write_lmdb
from presize.errors import SourceError
from presize.sources.lmdb import read_lmdb
from presize.store.key_pattern import KeyPattern


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("{}", ("", 1, "")),
        ("image-{:09d}", ("image-", 9, "")),
        ("{:d}.jpg", ("", 1, ".jpg")),
        ("image-%09d", ("image-", 9, "")),
        ("%d", ("", 1, "")),
        ("{:0d}", ("", 1, "")),
        ("a(b{:3d}", ("a(b", 3, "")),
    ],
)
def test_patterns_are_those_of_python_and_of_c(text: str, pattern: tuple[str, int, str]) -> None:
    found = KeyPattern.parse("keys", text)
    assert (found.before, found.width, found.behind) == pattern


# Where the values lie: where liblmdb says, and never outside of the file

KEYS = st.binary(min_size=1, max_size=60)
SIZES = st.sampled_from([0, 1, 50, 2000, 2030, 4080, 4081, 20_000])


@given(records=st.dictionaries(KEYS, SIZES, max_size=200), gone=st.sets(st.integers(0, 199)))
def test_all_records_are_found_where_they_lie(
    records: dict[bytes, int], gone: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lmdb") / "a"
    values = {key: key[:1] * nbytes for key, nbytes in records.items()}
    write_lmdb(path, values)
    with lmdb.open(str(path), map_size=1 << 26, lib_version=0) as env, env.begin(write=True) as txn:
        for number, key in enumerate(list(values)):
            if number in gone:
                txn.delete(key)
                del values[key]
    found = read_lmdb(str(path / "data.mdb"))
    rows = np.arange(len(found.keys))
    assert dict(zip(found.keys.to_pylist(), found.read(rows, 1 << 30).to_pylist(), strict=True)) == values
    assert found.keys.to_pylist() == sorted(values)


def test_a_small_file_cannot_claim_large_values(tmp_path: Path) -> None:
    """Two records that share their pages would make a build read them twice; a thousand, a thousand times."""
    path = write_lmdb(tmp_path / "a", {"1": b"x" * 9000, "2": b"y" * 9000}) / "data.mdb"
    content = bytearray(path.read_bytes())
    first = content.find(b"x" * 100) // 4096
    second = content.find(b"y" * 100) // 4096
    place = content.find(b"2" + second.to_bytes(8, "little")) + 1
    content[place : place + 8] = first.to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(SourceError, match="it is damaged: two values overlap"):
        read_lmdb(str(path))


def test_whatever_is_changed_in_a_file_no_place_lies_outside_of_it(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a", {f"key-{n:04d}": bytes([n % 256]) * (n * 37 % 5000) for n in range(400)})
    whole = (path / "data.mdb").read_bytes()
    draw = random.Random(7)
    refused = 0
    place = str(tmp_path / "changed.mdb")
    tree = [at for at in range(0, len(whole), 4096) if whole[at + 10] in (1, 2, 8)]  # branches, leaves, meta pages
    for _ in range(examples(400)):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3, 10])):
            at = draw.choice(tree) + draw.randrange(draw.choice([24, 200, 4096]))
            content[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, content[at] ^ 1 << draw.randrange(8)])
        if draw.random() < 0.1:
            del content[draw.randrange(len(content)) :]
        Path(place).write_bytes(content)
        try:
            found = read_lmdb(place)
        except SourceError:
            refused += 1
            continue
        assert (found.offset >= 0).all()
        assert (found.nbytes >= 0).all()
        assert (found.offset + found.nbytes <= len(content)).all()
        assert found.nbytes.sum() <= len(content)
    assert 0 < refused < examples(400)
