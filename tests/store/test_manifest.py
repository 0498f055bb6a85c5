"""The manifest and the index are read with suspicion: what is wrong with them is one clear error."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import EFFORT
from presize.errors import DatasetError
from presize.store.data_files import generation_name, is_data_file
from presize.store.index import read_index
from presize.store.manifest import classes_digest, digest_of, publish_manifest, read_manifest, sealed
from processes import run_python
from tampering import (
    change_manifest,
    change_offset,
    index_has_changed,
    manifest_values,
    read_table,
    with_column,
    with_value,
    write_manifest,
    write_table,
)


@pytest.fixture
def damaged(dataset: Path, tmp_path: Path) -> Path:
    """A copy of a dataset's manifest and index, to be changed at will."""
    for name in ("manifest.json", "index.arrow"):
        shutil.copy(dataset / name, tmp_path)
    return tmp_path


# --- manifest.json ---


def test_a_manifest_reads_back_as_it_was_published(dataset: Path, tmp_path: Path) -> None:
    manifest = read_manifest(dataset)
    publish_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / "manifest.json").read_bytes() == (dataset / "manifest.json").read_bytes()


def test_names_of_classes_stand_in_a_manifest_as_they_are_written(dataset: Path, tmp_path: Path) -> None:
    manifest = read_manifest(dataset)
    classes = ("Käse", "犬", *(manifest.classes or ())[2:])
    identity = manifest.identity | {"classes": classes_digest(classes)}
    publish_manifest(
        tmp_path, replace(manifest, classes=classes, identity=identity, digest=digest_of(identity)), "manifest.json"
    )
    assert '"Käse"' in (tmp_path / "manifest.json").read_text("utf-8")
    assert read_manifest(tmp_path).classes == classes


def test_a_manifest_may_have_more_than_this_version_knows(damaged: Path) -> None:
    change_manifest(damaged, lambda values: values.update(note="added by hand", counts={str(i): i for i in range(500)}))
    assert read_manifest(damaged).samples == 56


def test_the_bytes_of_a_manifest_and_of_its_hash_are_the_same_for_ever() -> None:
    sealed_bytes = (Path(__file__).parents[1] / "fixtures" / "format-1" / "manifest.json").read_bytes()
    values = json.loads(sealed_bytes)
    unsealed = sealed_bytes[: sealed_bytes.rindex(b',\n "sha256"')] + b"\n}\n"
    assert values.pop("sha256") == hashlib.sha256(unsealed).hexdigest()
    assert sealed(values) == sealed_bytes


def test_a_manifest_of_version_1_says_nothing_of_companions(dataset: Path) -> None:
    values = manifest_values(dataset)
    assert values["version"] == 1
    assert "companions" not in values


def test_the_order_of_its_keys_does_not_change_a_digest() -> None:
    assert digest_of({"a": 1, "b": {"c": 2, "d": 3}}) == digest_of({"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize(("color", "channels"), [("gray", 1), ("rgb", 3), ("keep", 3), ("rgba", 4)])
def test_the_color_decides_on_the_channels_of_a_batch(color: str, channels: int, damaged: Path) -> None:
    change_manifest(damaged, put("identity", "options", "image", "color", value=color))
    assert read_manifest(damaged).channels == channels


@pytest.mark.parametrize(
    ("color", "depth", "plain"),
    [
        ("rgb", 8, True),
        ("keep", 8, True),
        ("gray", 8, True),
        ("rgba", 8, False),
        ("rgb", 16, False),
        ("gray", 16, False),
        ("rgba", 16, False),
    ],
)
def test_only_images_of_8_bits_without_alpha_are_plain(color: str, depth: int, plain: bool, damaged: Path) -> None:
    change_manifest(damaged, lambda values: values["identity"]["options"]["image"].update(color=color, depth=depth))
    manifest = read_manifest(damaged)
    with nullcontext() if plain else pytest.raises(DatasetError, match=r"^bench trains on 8-bit RGB, and this dataset"):
        manifest.check_plain("bench")


def test_the_largest_count_has_63_bits(damaged: Path) -> None:
    change_manifest(damaged, put("bytes", value=2**63 - 1))
    assert read_manifest(damaged).bytes == 2**63 - 1


def flipped(content: bytes, bits: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Each of `bits`, and `content` with that one flipped."""
    for bit in bits:
        changed = bytearray(content)
        changed[bit >> 3] ^= 1 << (bit & 7)
        yield bit, bytes(changed)


def is_read(root: Path) -> bool:
    try:
        read_manifest(root)
    except DatasetError:
        return False
    return True


def test_every_flipped_bit_of_a_manifest_is_noticed(damaged: Path) -> None:
    content = (damaged / "manifest.json").read_bytes()
    name_of_hash = range(8 * (content.rindex(b'"sha256"') - 3), 8 * len(content))
    bits = random.Random(0).sample(range(name_of_hash.start), min(name_of_hash.start, 500 * EFFORT))
    assert is_read(damaged)
    for bit, other in flipped(content, [*bits, *name_of_hash[:: max(1, 8 // EFFORT)]]):
        (damaged / "manifest.json").write_bytes(other)
        assert not is_read(damaged), f"byte {bit >> 3}, bit {bit & 7}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values["identity"]["options"]["image"].update(quality=7), "its digest is not the SHA-256 of"),
        (lambda values: values.update(digest="0" * 64), "its digest is not the SHA-256 of its identity"),
        (lambda values: values.update(classes=["cat", "dog", "elk"]), "its classes are not those of its identity"),
        (lambda values: values.update(classes=None), "its classes are not those of its identity"),
    ],
)  # fmt: skip
def test_with_a_right_hash_a_manifest_still_has_to_agree_with_itself(
    damaged: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    values = manifest_values(damaged)
    del values["sha256"]
    change(values)
    (damaged / "manifest.json").write_bytes(sealed(values))
    with pytest.raises(DatasetError, match=words):
        read_manifest(damaged)


def test_a_manifest_that_was_edited_by_hand_is_said_to_be_damaged(damaged: Path) -> None:
    content = (damaged / "manifest.json").read_text("utf-8")
    (damaged / "manifest.json").write_text(content.replace('"size": "64"', '"size": "65"'), "utf-8")
    with pytest.raises(DatasetError, match="is damaged: its SHA-256 differs from its content; copy or build"):
        read_manifest(damaged)


@pytest.mark.parametrize("digits", ["", "0" * 64, None, 5, ["0"]], ids=repr)
def test_a_wrong_hash_of_any_kind_is_noticed(damaged: Path, digits: object) -> None:
    values = manifest_values(damaged) | {"sha256": digits}
    (damaged / "manifest.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", "utf-8")
    with pytest.raises(DatasetError, match="its SHA-256 differs from its content"):
        read_manifest(damaged)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is damaged: Expecting value"),
        (b"not JSON", "is damaged: Expecting value"),
        (b'{"format": "presize", "version": 1,', "is damaged: "),
        (b"\xff\xfe\xfd", "is damaged: "),
        (b"[" * 100_000, "is damaged: "),
        (b'{"a":' * 100_000, "is damaged: "),
        (b"9" * 10_000, "is damaged: "),
        (b"[]", "is not a presize manifest"),
        (b"null", "is not a presize manifest"),
        (b'{"format": "webdataset"}', "is not a presize manifest, but that of another program"),
        (b'{"version": 1}', "is not a presize manifest"),
        (b'{"format": "presize"}', "is damaged: it has no 'version'"),
        (b'{"format": "presize", "format": "presize", "version": 1}', "is damaged: an object in it has a key twice"),
        (b'{"format": "presize", "version": 3}', "has format version 3; this presize reads up to 2: upgrade presize"),
        (b'{"format": "presize", "version": 7, "layout": "?"}', "has format version 7"),
        (b'{"format": "presize", "version": true}', "is damaged: version: expected a count, got True"),
        (b'{"format": "presize", "version": 1.0}', "is damaged: version: expected a count, got 1.0"),
        (b'{"format": "presize", "version": "2"}', "is damaged: version: expected a count, got '2'"),
        (b'{"format": "presize", "version": -1}', "is damaged: version: expected a count, got -1"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else None,
)
def test_content_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        read_manifest(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def put(*place: str | int, value: object) -> Callable[[dict[str, Any]], object]:
    """A change that puts `value` at a place such as ("shards", 0, "bytes")."""

    def change(values: Any) -> None:
        for step in place[:-1]:
            values = values[step]
        values[place[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((put("index", "file", value=name), "is not the name of a file of a dataset") for name in ["../index.arrow"]),
        (put("index", "file", value="/etc/passwd"), "is not the name of a file of a dataset"),
        (put("index", "file", value="index.arrow\n"), "is not the name of a file of a dataset"),
        (put("index", "file", value="index-\u0661.arrow"), "is not the name of a file of a dataset"),
        (put("index", "file", value="x" * 10**6), "is not the name of a file of a dataset"),
        (put("rejects", "file", value="manifest.json"), "is not the name of a file of a dataset"),
        (put("shards", 0, "file", value="shards/../../00000.lmdb"), "is not the name of a file of a dataset"),
        (put("shards", 0, "file", value="shards/00000.lmdb/../x"), "is not the name of a file of a dataset"),
        (put("shards", 0, "file", value="shards/00000.lmdb\0"), "is not the name of a file of a dataset"),
        (put("report", "file", value="../report.html"), "is not the name of a file of a dataset"),
        (put("report", value="report.html"), "expected an object, got 'report.html'"),
        (put("shards", 0, "file", value=5), "expected text, got 5"),
        (put("shards", 0, "bytes", value=-1), "expected a count, got -1"),
        (put("shards", 0, "bytes", value=True), "expected a count, got True"),
        (put("shards", 0, "bytes", value=4096.0), "expected a count, got 4096.0"),
        (put("shards", 0, "bytes", value=2**63), "expected a count, got 9223372036854775808"),
        (put("shards", 0, "bytes", value=10**30), "expected a count, got 1000"),
        (put("shards", 0, "rows", value=10**6), "its shards do not add up to its samples"),
        (put("shards", 0, value=None), "expected an object, got None"),
        (put("shards", 0, value=[]), "expected an object, got []"),
        (put("shards", 0, value={}), "it has no 'file'"),
        (put("shards", value={"0": 1}), "expected a list, got {'0': 1}"),
        (put("shards", value=""), "expected a list, got ''"),
        (put("shards", value=[]), "its shards do not add up to its samples"),
        (put("samples", value=0), "it has no samples"),
        (put("samples", value=10**9), "its shards do not add up to its samples"),
        (put("samples", value="56"), "expected a count, got '56'"),
        (put("layout", value="tar"), "layout: expected one of lmdb, folder, got 'tar'"),
        (put("layout", value=["lmdb"]), "layout: expected one of lmdb, folder, got ['lmdb']"),
        (put("classes", value="abc"), "expected a list, got 'abc'"),
        (put("classes", value=["a", 1]), "expected text, got 1"),
        (put("classes", value=["a", "b", "a"]), "it has a class twice"),
        (put("identity", value=None), "expected an object, got None"),
        (put("identity", value={}), "it has no 'options'"),
        (put("identity", "options", value=[]), ""),
        (put("identity", "options", "image", "format", value="gif"), "format: expected one of jpeg, png, webp, raw"),
        (put("identity", "options", "image", "color", value={}), "color: expected one of rgb, gray, rgba, keep"),
        (put("left_out", value=[1]), "expected an object, got [1]"),
        (put("left_out", "rejected", value=-2), "expected a count, got -2"),
        (put("engine", value=0.9), "expected text, got 0.9"),
        (put("generation", value=None), "expected a count, got None"),
        (lambda values: values.pop("digest"), "it has no 'digest'"),
    ],
)  # fmt: skip
def test_a_manifest_with_a_wrong_value_is_refused(
    damaged: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    change_manifest(damaged, change)
    with pytest.raises(DatasetError) as caught:
        read_manifest(damaged)
    message = str(caught.value)
    assert message.startswith(f"{damaged}/manifest.json is damaged: ")
    assert words in message
    assert message.endswith("; copy or build the dataset again")
    assert "\n" not in message
    assert len(message) < 400


def places(values: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value in nested lists and objects."""
    steps = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [here, *(place for step, value in steps for place in places(value, (*here, step)))]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=JSON_VALUES)
def test_whatever_stands_in_a_manifest_it_is_read_or_refused(
    data: st.DataObject, value: object, dataset: Path, tmp_path: Path
) -> None:
    values = json.loads((dataset / "manifest.json").read_bytes())
    values["shards"] = values["shards"][:2]
    place = data.draw(st.sampled_from(places(values)[1:]))
    put(*place, value=copy.deepcopy(value))(values)
    write_manifest(tmp_path, values)
    try:
        read_manifest(tmp_path)
    except DatasetError as error:
        assert "\n" not in str(error)


# --- what is there instead ---


def test_a_url_is_no_folder() -> None:
    with pytest.raises(DatasetError, match=r"^s3://data/64 is no folder; copy a dataset from a URL with presize fetch"):
        read_manifest("s3://data/64")


def nothing(_: Path) -> str:
    return "does not exist; expected a folder that presize build has made"


def a_file(root: Path) -> str:
    root.touch()
    return "is a file; expected a folder that presize build has made"


def an_empty_folder(root: Path) -> str:
    root.mkdir()
    return "is not a presize dataset: it has no manifest.json; presize build makes a dataset from a folder of images"


def an_unfinished_build(root: Path) -> str:
    root.mkdir()
    (root / ".presize.json").touch()
    return "holds an unfinished build; run the same presize build again to finish it"


def one_size_of_an_unfinished_build(root: Path) -> str:
    root.mkdir()
    (root.parent / ".presize.json").touch()
    return "holds an unfinished build; run the same presize build again to finish it"


def several_sizes(root: Path) -> str:
    for size in ("256", "160"):
        (root / size).mkdir(parents=True)
        (root / size / "manifest.json").touch()
    return f"holds the datasets 160, 256; open one of them, such as {root}/160"


def a_manifest_that_is_a_folder(root: Path) -> str:
    (root / "manifest.json").mkdir(parents=True)
    return "Is a directory"


def links_in_a_circle(root: Path) -> str:
    root.symlink_to(root)
    return "Too many levels of symbolic links"


@pytest.mark.parametrize(
    "make",
    [
        nothing,
        a_file,
        an_empty_folder,
        an_unfinished_build,
        one_size_of_an_unfinished_build,
        several_sizes,
        a_manifest_that_is_a_folder,
        links_in_a_circle,
    ],
)
def test_where_there_is_no_dataset_it_is_said_what_there_is(tmp_path: Path, make: Callable[[Path], str]) -> None:
    root = tmp_path / "OUT"
    words = make(root)
    with pytest.raises(DatasetError) as caught:
        read_manifest(root)
    assert str(root) in str(caught.value)
    assert words in str(caught.value)


# --- index.arrow ---


def test_the_index_is_mapped_and_not_copied(dataset: Path) -> None:
    before = pa.total_allocated_bytes()
    index = read_index(dataset, read_manifest(dataset))
    assert pa.total_allocated_bytes() == before
    assert index.num_rows == 56
    assert b"index.arrow" in Path("/proc/self/maps").read_bytes()


def test_names_of_folders_need_not_be_utf8(dataset: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(dataset, folder)
    assert read_index(folder, read_manifest(folder)).num_rows == 56


def without(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns([name])


def null_in(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: with_value(table, name, 3, None)


def as_type(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda table: with_column(table, name, table.column(name).cast(kind))


def twice(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.append_column(name, table.column(name))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("path"), "expected one column path of type large_string without nulls"),
        (without("crc32"), "expected one column crc32 of type uint32 without nulls"),
        (without("label"), "expected one column label of type int32 without nulls"),
        (null_in("shard"), "expected one column shard of type int32 without nulls"),
        (null_in("path"), "expected one column path of type large_string without nulls"),
        (null_in("label"), "expected one column label of type int32 without nulls"),
        (as_type("row", pa.int64()), "expected one column row of type int32 without nulls"),
        (as_type("nbytes", pa.int32()), "expected one column nbytes of type int64 without nulls"),
        (as_type("path", pa.string()), "expected one column path of type large_string without nulls"),
        (as_type("label", pa.float32()), "expected one column label of type int32 without nulls"),
        (without("source_facts"), "expected one column source_facts of type uint32 without nulls"),
        (twice("row"), "expected one column row of type int32 without nulls"),
        (lambda table: table.slice(0, 55), "has 55 rows where the manifest says 56"),
        (lambda table: pa.concat_tables([table, table]).combine_chunks(), "has 112 rows where the manifest says 56"),
    ],
)
def test_an_index_of_another_shape_is_refused(
    damaged: Path, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    write_table(damaged, change(read_table(damaged)))
    with pytest.raises(DatasetError) as caught:
        read_index(damaged, read_manifest(damaged))
    assert words in str(caught.value)
    assert str(caught.value).endswith("; copy or build the dataset again")


def test_an_index_of_several_batches_is_refused(damaged: Path) -> None:
    write_table(damaged, read_table(damaged), rows_per_batch=10)
    with pytest.raises(DatasetError, match="is damaged: it has 6 record batches, not 1"):
        read_index(damaged, read_manifest(damaged))


@pytest.mark.parametrize(("row", "offset"), [(56, 10**9), (56, -8), (0, -1)])
def test_text_that_begins_or_ends_outside_the_index_is_refused(damaged: Path, row: int, offset: int) -> None:
    change_offset(damaged, "path", row, offset)
    with pytest.raises(DatasetError, match="is damaged: "):
        read_index(damaged, read_manifest(damaged))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is damaged: "),
        (b"ARROW1\0\0", "is damaged: "),
        (bytes(5000), "is damaged: "),
        (b"x" * 5000, "is damaged: "),
    ],
)
def test_an_index_that_is_no_arrow_file_is_refused(damaged: Path, content: bytes, words: str) -> None:
    (damaged / "index.arrow").write_bytes(content)
    index_has_changed(damaged)
    with pytest.raises(DatasetError, match=words) as caught:
        read_index(damaged, read_manifest(damaged))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("nbytes", [1000, 1_000_000])
def test_an_index_of_another_size_is_refused_before_it_is_mapped(nbytes: int, damaged: Path) -> None:
    os.truncate(damaged / "index.arrow", nbytes)
    with pytest.raises(DatasetError, match=rf"index\.arrow has {nbytes} bytes where the manifest says \d+: truncated"):
        read_index(damaged, read_manifest(damaged))


def test_a_missing_index_is_said_to_be(damaged: Path) -> None:
    (damaged / "index.arrow").unlink()
    with pytest.raises(DatasetError, match=r"index\.arrow: No such file or directory; the dataset is incomplete"):
        read_index(damaged, read_manifest(damaged))


def test_a_column_whose_name_is_no_utf8_is_refused(damaged: Path) -> None:
    content = (damaged / "index.arrow").read_bytes()
    assert content.count(b"source_width") == 2  # in the schema, and in the footer's copy of it
    (damaged / "index.arrow").write_bytes(content.replace(b"source_width", b"source\xffwidth"))
    index_has_changed(damaged)
    with pytest.raises(DatasetError, match="is damaged: the name of a column is not UTF-8; copy or build"):
        read_index(damaged, read_manifest(damaged))


FLIPS = """
    import random, sys
    from pathlib import Path
    from presize.errors import DatasetError
    from presize.store.index import read_index
    from presize.store.manifest import read_manifest
    root = Path(sys.argv[1])
    manifest, whole = read_manifest(root), (root / "index.arrow").read_bytes()
    draw, read = random.Random(0), 0
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            # The ends of the file say where all else lies.
            content[draw.choice((draw.randrange(3000), -draw.randrange(1, 3000)))] = draw.randrange(256)
        (root / "index.arrow").write_bytes(content)
        try:
            read_index(root, manifest, check=False)
            read += 1
        except DatasetError as error:
            assert "\\n" not in str(error)
    print(read)
"""


def test_an_index_with_flipped_bytes_is_read_or_refused_but_crashes_nothing(damaged: Path) -> None:
    assert 0 < int(run_python(FLIPS, damaged)) < 400


# --- names ---


@pytest.mark.parametrize(
    ("name", "generation", "expected"),
    [("index.arrow", 0, "index.arrow"), ("index.arrow", 2, "index-2.arrow"), ("shards/0.lmdb", 1, "shards/0-1.lmdb")],
)
def test_a_generation_has_names_of_its_own(name: str, generation: int, expected: str) -> None:
    assert generation_name(name, generation) == expected


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("index.arrow", True),
        ("index-12.arrow", True),
        ("rejects.jsonl", True),
        ("shards/00000.lmdb", True),
        ("shards/123456-3.lmdb", True),
        ("report.html", True),
        ("report-2.html", True),
        ("my-report.html", False),
        ("manifest.json", False),
        ("shards/0.lmdb", False),
        ("shards/00000.lmdb.bak", False),
        ("my-index.arrow", False),
        ("photos/index.arrow", False),
        ("index-.arrow", False),
    ],
)
def test_only_names_that_presize_gives_are_its_files(name: str, ours: bool) -> None:
    assert is_data_file(name) is ours


# Hostile indexes


def write_otherwise(root: Path, **options: Any) -> None:
    """Write the index again, with these options of Arrow."""
    table, how = read_table(root), pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(root / "index.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema, options=how) as new:
        new.write_table(table)
    index_has_changed(root)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_compressed_index_is_refused_before_it_is_read(legacy: bool, compression: str, damaged: Path) -> None:
    write_otherwise(damaged, compression=compression, use_legacy_format=legacy)
    with pytest.raises(DatasetError, match="it is compressed or has dictionaries"):
        read_index(damaged, read_manifest(damaged))


def test_an_index_in_the_format_of_old_arrow_libraries_is_read(damaged: Path) -> None:
    write_otherwise(damaged, use_legacy_format=True)
    assert read_index(damaged, read_manifest(damaged)).num_rows == 56


DICTIONARIES, BATCHES = 2, 3
"""The numbers of two fields of the footer of an Arrow file."""


def drop_from_footer(root: Path, field: int) -> None:
    """Say in the footer of the index that it has no such field, which need not be there when it is empty."""
    content = bytearray((root / "index.arrow").read_bytes())
    end = len(content) - 10
    begin = end - struct.unpack_from("<i", content, end)[0]
    footer = begin + struct.unpack_from("<I", content, begin)[0]
    fields = footer - struct.unpack_from("<i", content, footer)[0]
    struct.pack_into("<H", content, fields + 4 + 2 * field, 0)
    (root / "index.arrow").write_bytes(content)
    index_has_changed(root)


def test_an_index_need_not_list_the_dictionaries_that_it_does_not_have(damaged: Path) -> None:
    drop_from_footer(damaged, DICTIONARIES)
    assert read_index(damaged, read_manifest(damaged)).num_rows == 56


def test_an_index_that_lists_no_batches_is_refused(damaged: Path) -> None:
    drop_from_footer(damaged, BATCHES)
    with pytest.raises(DatasetError, match="is damaged: it has 0 record batches, not 1"):
        read_index(damaged, read_manifest(damaged))


def test_an_index_with_dictionaries_is_refused(dataset: Path, tmp_path: Path) -> None:
    out = copied_to(dataset, tmp_path / "out")
    table = read_table(out)
    write_table(out, table.append_column("more", pa.array(["a"] * len(table)).dictionary_encode()))
    with pytest.raises(DatasetError, match="it is compressed or has dictionaries"):
        read_index(out, read_manifest(out))


@pytest.mark.parametrize("nbytes", [1, 9, 10, 11, 100])
def test_a_few_zeros_for_an_index_are_refused(nbytes: int, dataset: Path, tmp_path: Path) -> None:
    out = copied_to(dataset, tmp_path / "out")
    (out / "index.arrow").write_bytes(bytes(nbytes))
    index_has_changed(out)
    with pytest.raises(DatasetError, match=r"index\.arrow is damaged"):
        read_index(out, read_manifest(out))


def test_a_manifest_without_versions_is_damaged(dataset: Path, tmp_path: Path) -> None:
    out = copied_to(dataset, tmp_path / "out")
    change_manifest(out, lambda values: values.pop("versions"))
    with pytest.raises(DatasetError, match="it has no 'versions'"):
        read_manifest(out)


def copied_to(dataset: Path, out: Path) -> Path:
    shutil.copytree(dataset, out)
    return out
