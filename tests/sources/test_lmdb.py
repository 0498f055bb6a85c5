"""LMDBs of other programs: which keys are images, and what is said of those that are laid out otherwise."""

from __future__ import annotations

import pickle
import random
import struct
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from foreign import picture, text_recognition, write_lmdb
from listings import listed, rejected, values
from presize.errors import OptionError, PresizeWarning, SourceError
from presize.options import ColumnType, SourceOptions
from presize.sources.lmdb import KeyPattern, read_lmdb
from presize.sources.scan import scan

NUMBERED = SourceOptions(keys="image-{:09d}", label_keys="label-{:09d}")


def in_lmdb(path: Path, keys: list[str]) -> list[bytes]:
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
        return [bytes(txn.get(key.encode())) for key in keys]


# Layouts


def test_text_recognition_gives_images_and_texts(tmp_path: Path) -> None:
    path = text_recognition(tmp_path / "data", ["Hello", "2014", "été", ""])
    source = scan(path, SourceOptions(keys="text-recognition"))
    keys = [f"image-{number:09d}" for number in range(1, 5)]
    assert listed(source) == [
        {"path": key, "text": text} for key, text in zip(keys, ["Hello", "2014", "été", ""], strict=True)
    ]
    assert values(source) == in_lmdb(path, keys)
    assert source.classes is None


@pytest.mark.parametrize(
    ("texts", "labels", "classes"),
    [
        (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
        (["7", "0", "-1"], [7, 0, -1], None),
        (["007", "7"], [0, 1], ("007", "7")),
        (["cat", "", "dog"], [0, 1], ("cat", "dog")),
    ],
)
def test_labels_are_classes_or_numbers(
    texts: list[str], labels: list[int], classes: tuple[str, ...] | None, tmp_path: Path
) -> None:
    source = scan(text_recognition(tmp_path / "a", texts), NUMBERED)
    assert (source.table.column("label").to_pylist(), source.classes) == (labels, classes)
    without = {f"data.mdb/image-{n:09d}": "it has no label" for n, text in enumerate(texts, 1) if not text}
    assert rejected(source) == without, "an empty class is none"


def test_labels_may_have_another_column(tmp_path: Path) -> None:
    named = replace(NUMBERED, label_keys="digits=label-{:09d}")
    source = scan(text_recognition(tmp_path / "c", ["7", "007"]), named)
    assert source.table.column("digits").to_pylist() == ["7", "007"]


def test_basicsr_is_read_as_its_meta_info_lists_it(tmp_path: Path) -> None:
    names = ["0801_s001", "0801_s002", "folder/0802_s001"]
    path = write_lmdb(tmp_path / "x.lmdb", {name: picture(n) for n, name in enumerate(names)})
    lines = [f"{name}.png (20,24,3) 1" for name in reversed(names)]
    (path / "meta_info.txt").write_text("\n".join([*lines, "0999.png (20,24,3) 1", ""]))
    source = scan(tmp_path, SourceOptions(keys="basicsr"))
    assert [row["path"] for row in listed(source)] == [f"{name}.png" for name in reversed(names)]
    assert values(source) == in_lmdb(path, names[::-1])
    assert rejected(source) == {"x.lmdb/data.mdb/0999.png": "the LMDB has no such key"}


def test_lsun_is_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    keys = [f"{(n * 7919) % 1000:040x}" for n in range(30)]
    images = [picture(n, "WEBP") * 40 for n in range(30)]  # on pages of their own
    write_lmdb(tmp_path / "bedroom_train_lmdb", dict(zip(keys, images, strict=True)))
    source = scan(tmp_path / "bedroom_train_lmdb", SourceOptions(keys="lsun"))
    assert values(source) == images
    assert [row["path"] for row in listed(source)] == keys


def test_several_lmdbs_are_one_source_and_their_names_tell_equal_keys_apart(tmp_path: Path) -> None:
    text_recognition(tmp_path / "MJ" / "train", ["a", "b"])
    text_recognition(tmp_path / "ST", ["c"])
    assert listed(scan(tmp_path, SourceOptions(keys="text-recognition"))) == [
        {"path": "MJ/train/image-000000001", "text": "a"},
        {"path": "MJ/train/image-000000002", "text": "b"},
        {"path": "ST/image-000000001", "text": "c"},
    ]


def test_an_lmdb_in_one_file_is_read(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.mdb", {f"{n}": picture(n) for n in range(12)}, subdir=False)
    source = scan(path, SourceOptions(keys="{}"))
    assert [row["path"] for row in listed(source)] == [f"{n}" for n in range(12)]  # by number, not by text
    assert values(source) == [picture(n) for n in range(12)]


# What is wrong with a sample


def test_a_label_that_is_missing_or_no_text_costs_one_sample(tmp_path: Path) -> None:
    records: dict[str | bytes, bytes] = {f"image-{n:09d}": picture(n) for n in range(1, 6)}
    records |= {f"label-{n:09d}": b"x" for n in (1, 3, 5)} | {"label-000000004": b"\xff"}
    records["label-000000005"] = b"x" * 70_000
    records["label-000000009"] = b"of no image"
    write_lmdb(tmp_path / "a", records)
    source = scan(tmp_path / "a", SourceOptions(keys="text-recognition"))
    assert [row["path"] for row in listed(source)] == ["image-000000001", "image-000000003"]
    assert rejected(source) == {
        "data.mdb/image-000000002": "it has no label",
        "data.mdb/image-000000004": "its label is not UTF-8 text",
        "data.mdb/image-000000005": "its label is not UTF-8 text",
    }


def with_labels(path: Path, labels: list[bytes], **more: bytes) -> Path:
    records: dict[str | bytes, bytes] = {f"image-{n:09d}": picture(n) for n in range(1, len(labels) + 1)}
    records |= {f"label-{n:09d}": label for n, label in enumerate(labels, 1)}
    return write_lmdb(path, records | more)


PACKED = [struct.pack("<I", n) for n in (1, 65, 300)]
NOT_TEXT = "its label is not UTF-8 text; it looks like a "
NOT_LABELS = [
    (PACKED, NUMBERED, r"the label b'\x01\x00\x00\x00' is not text: it looks like a little-endian 32-bit integer, 1; "
     "write labels as text, such as '1' or 'cat'"),
    (PACKED, SourceOptions(keys="text-recognition"), NOT_TEXT + "little-endian 32-bit integer, 1"),
    (PACKED, replace(NUMBERED, label_keys="n=label-{:09d}"), NOT_TEXT + "little-endian 32-bit integer, 1"),
    ([pickle.dumps(n, 3) for n in range(3)], NUMBERED, NOT_TEXT + "Python pickle"),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "options", "said"), NOT_LABELS)
def test_labels_that_are_no_texts_are_refused(
    labels: list[bytes], options: SourceOptions, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as caught:
        scan(with_labels(tmp_path / "a", labels), options)
    assert str(caught.value).endswith(said)


def test_labels_in_digits_are_classes_if_told(tmp_path: Path) -> None:
    path = with_labels(tmp_path / "a", [b"10", b"9", b"10"])
    source = scan(path, NUMBERED, types=[ColumnType("label", "class")])
    assert (source.table.column("label").to_pylist(), source.classes) == ([1, 0, 1], ("9", "10"))
    with pytest.raises(SourceError, match=r"--column-type n:int: there is no such column; there are label$"):
        scan(path, NUMBERED, types=[ColumnType("n", "int")])


@pytest.mark.parametrize(
    "samples", [NUMBERED, SourceOptions(keys="text-recognition"), SourceOptions(keys="image-%09d")]
)
@pytest.mark.parametrize("count", [1, 30])
def test_a_count_that_the_lmdb_does_not_hold_is_said_with_what_it_holds(
    samples: SourceOptions, count: int, tmp_path: Path
) -> None:
    path = with_labels(tmp_path / "a", [b"x", b"y"], **{"num-samples": b"%d" % count})
    said = rf"^'data\.mdb': 'num-samples' says {count} samples, and it holds 2 images; all are taken$"
    with pytest.warns(PresizeWarning, match=said):
        assert len(scan(path, samples).table) == 2


def test_a_key_that_is_no_path_is_rejected(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "a", {"ok": picture(1), "../up": picture(2), b"\xff\x00": picture(3)})
    source = scan(tmp_path / "a", SourceOptions(keys="lsun"))
    assert [row["path"] for row in listed(source)] == ["ok"]
    assert set(rejected(source).values()) == {"its name is no relative path of UTF-8 text"}


# What is no such LMDB


ONE: dict[str | bytes, bytes] = {"image-1": picture(1), b"\x1b[31m\xff": b""}
PICKLE = "the value of '0' is a Python pickle, and reading one runs whatever code"
NO_LMDB: list[tuple[dict[str | bytes, bytes], SourceOptions, str]] = [
    ({f"image-{n:09d}": b"" for n in range(1, 8)}, SourceOptions(),
     r"an LMDB needs --keys; its first keys are 'image-000000001', 'image-000000002', .*…; expected a pattern, such as "
     r"--keys image-\{:09d\} for image-000000001, or one of text-recognition, basicsr"),
    *((ONE, SourceOptions(keys=keys), r"no key fits --keys .*; its first keys are '\\\\x1b\[31m\\\\xff', 'image-1'")
      for keys in ("img-{:09d}", "image-{:05d}", "text-recognition")),
    (ONE, SourceOptions(keys="image-{}", label_keys="label-{:09d}"),
     r"no key fits --label-keys label-\{:09d\}; its first keys are .*'image-1'"),
    *(({"0": pickle.dumps((b"x", 3), protocol)}, SourceOptions(keys="{}"), PICKLE) for protocol in (2, 3, 4, 5)),
    ({f"{n}": bytes(3000) for n in range(40)}, SourceOptions(keys="{}"),
     r"16 values were tried, and none is an encoded image: that of '0' begins with"),
    (ONE, SourceOptions(keys="basicsr"), r"needs meta_info\.txt beside the LMDB: No such file .*'image-1'"),
]  # fmt: skip


@pytest.mark.parametrize(("records", "options", "said"), NO_LMDB)
def test_keys_and_values_that_are_no_images_are_refused_with_what_is_there(
    records: dict[str | bytes, bytes], options: SourceOptions, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=said):
        scan(write_lmdb(tmp_path / "a", records), options)


@pytest.mark.parametrize("text", ["image", "image-{}-{}", "{name}", "{:9x}", "image-%s", "{:099999d}", "{:18d}"])
def test_what_is_no_pattern_is_refused(text: str, tmp_path: Path) -> None:
    text_recognition(tmp_path / "a", ["x"])
    with pytest.raises(
        OptionError, match=r"^keys: expected a pattern with one number, such as image-\{:09d\}, or text-"
    ):
        scan(tmp_path / "a", SourceOptions(keys=text))
    with pytest.raises(OptionError, match=r"^label_keys: expected a "):
        scan(tmp_path / "a", SourceOptions(keys="image-{:09d}", label_keys=f"={text}"))


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


def test_numbers_of_many_digits_are_read(tmp_path: Path) -> None:
    keys = [f"{number:017d}" for number in (0, 5, 10**17 - 1)] + [f"{10**17}", f"{10**19}", "00"]
    write_lmdb(tmp_path / "a", {key: picture(1) for key in keys})
    source = scan(tmp_path / "a", SourceOptions(keys="{:017d}"))
    assert [row["path"] for row in listed(source)] == keys[:4]


def test_an_lmdb_with_several_databases_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "a"), max_dbs=2, lib_version=0) as env:
        with env.begin(write=True, db=env.open_db(b"images")) as txn:
            txn.put(b"1", picture(1))
    with pytest.raises(SourceError, match=r"its key b'images' holds a database; expected plain keys and values"):
        scan(tmp_path / "a", SourceOptions(keys="{}"))


def test_an_lmdb_of_the_other_engine_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "a"), lib_version=1) as env, env.begin(write=True) as txn:
        txn.put(b"1", picture(1))
    with pytest.raises(SourceError, match=r"it is no LMDB file of engine 0\.9"):
        scan(tmp_path / "a", SourceOptions(keys="{}"))


def test_a_damaged_lmdb_among_others_is_left_out_and_said(tmp_path: Path) -> None:
    text_recognition(tmp_path / "a", ["x"])
    text_recognition(tmp_path / "b", ["y"])
    with (tmp_path / "b" / "data.mdb").open("r+b") as file:
        file.truncate(9000)
    with pytest.warns(PresizeWarning, match=r"'b/data\.mdb': it is damaged: it has 9000 bytes, too few for its pages"):
        source = scan(tmp_path, SourceOptions(keys="text-recognition"))
    assert [row["text"] for row in listed(source)] == ["x"]


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


def test_duplicates_are_refused(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a", {"1": b"a"}) / "data.mdb"
    content = bytearray(path.read_bytes())
    for page in (0, 4096):
        content[page + 16 + 24 + 48 + 4] = 0x04  # MDB_DUPSORT, of the main database; lmdb sets it for others alone
    path.write_bytes(content)
    with pytest.raises(SourceError, match="its keys have several values, or are native integers"):
        read_lmdb(str(path))


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
