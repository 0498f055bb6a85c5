"""Parquet files with images, as Hugging Face's datasets and others lay them out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foreign import FIXTURES, image_column, picture, write_parquet
from listings import labels, listed, rejected, values
from presize.errors import ImageError, PresizeWarning, SourceError
from presize.options import ColumnType, SourceOptions, ValueType
from presize.sources import parquet as parquet_rows
from presize.sources.scan import Source, scan
from presize.sources.source_reader import SourceReader
from processes import run_python

PICTURES = [picture(number) for number in range(10)]


def reading(source: Source) -> Callable[[int], bytes]:
    """What reads the sample of a number."""
    reader = SourceReader(source.root)
    return lambda sample: reader.read(source.files(np.array([sample]))[0])


def value(source: Source, sample: int) -> bytes:
    return reading(source)(sample)


def test_files_of_datasets_are_read_sample_by_sample() -> None:
    source = scan(FIXTURES / "datasets")
    order = [7, 8, *range(7)]  # test comes before train
    assert source.classes == ("ant", "bee", "cow")
    assert source.table.column("label").type == pa.int32()
    assert listed(source) == [
        {"path": f"{number:04d}.png", "label": number % 3, "caption": f"picture {number}"} for number in order
    ]
    images = pa.concat_tables(
        pa.parquet.read_table(FIXTURES / "datasets" / "data" / f"{split}-00000-of-00001.parquet", columns=["image"])
        for split in ("test", "train")
    )
    stored = [row["image"]["bytes"] for row in images.to_pylist()]
    assert values(source) == stored


def test_a_run_is_a_row_group(tmp_path: Path) -> None:
    for name in "ab":
        write_parquet(tmp_path / f"{name}.parquet", {"image": image_column(PICTURES)}, group_rows=4)
    runs = scan(tmp_path).groups
    assert runs is not None
    assert runs.tolist() == [0] * 4 + [1] * 4 + [2] * 2 + [3] * 4 + [4] * 4 + [5] * 2


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_a_column_of_plain_bytes_is_read(kind: pa.DataType, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"jpg": pa.array(PICTURES[:3], kind), "path": ["x/1.png", "2.png", "3.png"]})
    source = scan(tmp_path)
    assert listed(source) == [{"path": "x/1.png"}, {"path": "2.png"}, {"path": "3.png"}]
    assert [value(source, sample) for sample in (2, 0, 1)] == [PICTURES[2], PICTURES[0], PICTURES[1]]


def test_rows_without_a_name_of_their_own_get_their_number(tmp_path: Path) -> None:
    names = ["a.png", None, "a.png", "../b.png", "", "/c.png", "d.png"]
    write_parquet(tmp_path / "data" / "x.parquet", {"image": image_column(PICTURES[:7], names)})
    made = [f"data/x/{row:08d}" for row in range(7)]
    expected = ["a.png", *made[1:6], "d.png"]
    assert [row["path"] for row in listed(scan(tmp_path))] == expected


def test_names_that_two_files_share_get_the_name_of_the_file_in_front(tmp_path: Path) -> None:
    for name in ("train-0", "train-1"):
        write_parquet(tmp_path / f"{name}.parquet", {"image": image_column(PICTURES[:2], ["a.png", name])})
    assert [row["path"] for row in listed(scan(tmp_path))] == [
        "train-0/a.png", "train-0/train-0", "train-1/a.png", "train-1/train-1",
    ]  # fmt: skip


def test_a_row_without_bytes_is_an_image_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column([PICTURES[0], None], ["a.png", "elsewhere.png"])})
    source = scan(tmp_path)
    assert value(source, 0) == PICTURES[0]
    with pytest.raises(ImageError, match="its row has no bytes; a path alone is not followed"):
        value(source, 1)


def test_one_of_several_image_columns_is_chosen_and_other_bytes_are_left_out(tmp_path: Path) -> None:
    nested = pa.array([[{"bytes": b"a", "path": None}], []], pa.list_(image_column([b""]).type))
    columns = {
        "photo": image_column(PICTURES[:2]),
        "mask": image_column(PICTURES[2:4]),
        "frames": nested,
        "label": [3, 4],
    }
    write_parquet(tmp_path / "a.parquet", columns)
    with pytest.warns(PresizeWarning, match=r"photo \(2\), frames \(2\); it is left out"):
        source = scan(tmp_path, SourceOptions(keys="mask"))
    assert values(source) == PICTURES[2:4]
    assert listed(source) == [{"path": "a/00000000", "label": 3}, {"path": "a/00000001", "label": 4}]


NO_IMAGES: list[tuple[dict[str, Any], str | None, str]] = [
    ({"url": ["a"], "label": [1]}, None, r"no column of images .*; it has url \(string\), label \(int64\)"),
    ({"image": image_column([b""])}, "img", r"--keys img is no column of images .*; it has image \(struct"),
    ({"url": ["a"]}, "url", r"--keys url is no column of images"),
    ({"photo": image_column([b""]), "mask": image_column([b""])}, None,
     "it has 2 columns of images; choose one, such as --keys photo"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "keys", "words"), NO_IMAGES)
def test_a_file_without_one_image_column_is_refused(
    columns: dict[str, Any], keys: str | None, words: str, tmp_path: Path
) -> None:
    write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(SourceError, match=words):
        scan(tmp_path, SourceOptions(keys=keys))


def test_a_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)})
    content = path.read_bytes()
    for damaged in (content[:-1], content[:100], b"PAR1", content[:-20] + bytes(20)):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"holds no samples in 1 file; .*it cannot be read as Parquet"):
            scan(tmp_path)


def test_a_row_group_that_is_damaged_costs_its_images_alone(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)}, group_rows=5)
    content = bytearray(path.read_bytes())
    second = pa.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[second : second + 40] = b"\xff" * 40
    path.write_bytes(content)
    source = scan(tmp_path)
    assert [value(source, sample) for sample in range(5)] == PICTURES[:5]
    with pytest.raises(ImageError, match="its row group cannot be decoded: "):
        value(source, 7)
    assert value(source, 0) == PICTURES[0]


def test_rows_read_in_order_are_decoded_once_and_in_any_order_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES * 10)}, group_rows=50)
    source = scan(tmp_path)
    opened: list[str] = []
    begun: list[list[int]] = []
    open_parquet, iter_batches = parquet_rows.open_parquet, pq.ParquetFile.iter_batches

    def count(file: pq.ParquetFile, *arguments: Any, **named: Any) -> Any:
        begun.append(named["row_groups"])
        return iter_batches(file, *arguments, **named)

    monkeypatch.setattr(parquet_rows, "open_parquet", lambda path: opened.append(path) or open_parquet(path))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", count)
    read = reading(source)
    assert [read(sample) for sample in range(100)] == PICTURES * 10
    assert (len(opened), begun) == (1, [[0], [1]])
    shuffled = np.random.default_rng(0).permutation(100).tolist()
    assert [read(sample) for sample in shuffled] == [PICTURES[sample % 10] for sample in shuffled]


def test_the_footer_of_a_file_is_parsed_once_by_all_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)})
    source = scan(tmp_path)
    parsed: list[str] = []
    read_metadata = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda path: parsed.append(path) or read_metadata(path))
    assert [reading(source)(sample) for sample in range(10)] == PICTURES  # a reader each
    assert parsed == []  # the listing has


def test_a_file_that_takes_anothers_place_is_read_by_its_own_footer(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)}, group_rows=5)
    first = parquet_rows.open_parquet(str(path))
    write_parquet(tmp_path / "new", {"image": image_column(PICTURES)}, group_rows=2).replace(path)
    assert (first.num_row_groups, parquet_rows.open_parquet(str(path)).num_row_groups) == (2, 5)


def test_a_file_that_is_replaced_while_it_is_opened_is_read_by_its_own_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)}, group_rows=5)
    other = write_parquet(tmp_path / "new", {"image": image_column(PICTURES)}, group_rows=2)
    read_metadata = pq.read_metadata

    def replace_it(parsed: str) -> pq.FileMetaData:
        footer = read_metadata(parsed)
        if other.exists():
            other.replace(path)
        return footer

    monkeypatch.setattr(pq, "read_metadata", replace_it)
    assert [parquet_rows.open_parquet(str(path)).num_row_groups for _ in range(2)] == [5, 5]


def test_threads_read_rows_at_once(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES * 10)}, group_rows=20)
    source = scan(tmp_path)
    wrong: list[int] = []
    read = reading(source)

    def read_every_third(first: int) -> None:
        wrong.extend(n for n in range(first, 100, 3) if read(n) != PICTURES[n % 10])

    threads = [threading.Thread(target=read_every_third, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def write_labelled(path: Path, names: list[str] | None, labels: list[Any]) -> None:
    """A file whose labels number `names`, as Hugging Face's ClassLabel."""
    table = pa.table({"image": image_column(PICTURES[: len(labels)]), "label": labels})
    features = {"label": {"_type": "ClassLabel", "names": names}}
    noted = {b"huggingface": json.dumps({"info": {"features": features}}).encode()} if names else None
    pa.parquet.write_table(table.replace_schema_metadata(noted), path)


NAMED = ["dog", "cat"]
LABELS: list[tuple[list[str] | None, list[Any], SourceOptions, ValueType | None, list[int] | None, Any]] = [
    (NAMED, [0, 1], SourceOptions(), None, [0, 1], ("dog", "cat")),
    (NAMED, [0, 1], SourceOptions(), "text", [0, 1], ("dog", "cat")),
    (NAMED, [0, 1], SourceOptions(), "class", [0, 1], ("dog", "cat")),
    (NAMED, [0, 1], SourceOptions(classes=["cat", "bee", "dog"]), None, [2, 0], ("cat", "bee", "dog")),
    (None, [1, 0], SourceOptions(classes=["dog", "bee"]), None, [1, 0], ("dog", "bee")),
    (None, [True, False, True], SourceOptions(), None, [1, 0, 1], ("false", "true")),
    (NAMED, [0, 1], SourceOptions(labels="none"), None, None, None),
]


@pytest.mark.parametrize(("names", "stored", "options", "kind", "expected", "classes"), LABELS)
def test_labels_are_numbers_of_the_classes_that_the_file_or_the_list_names(
    names: list[str] | None, stored: list[Any], options: SourceOptions, kind: ValueType | None,
    expected: list[int] | None, classes: Any, tmp_path: Path,
) -> None:  # fmt: skip
    write_labelled(tmp_path / "a.parquet", names, stored)
    source = scan(tmp_path, options, types=[ColumnType("label", kind)] if kind else [])
    assert (labels(source), source.classes) == (expected, classes)


def test_labels_that_number_no_class_are_rejected(tmp_path: Path) -> None:
    write_labelled(tmp_path / "a.parquet", NAMED, [0, -1, 1, 2])
    source = scan(tmp_path)
    assert labels(source) == [0, 1]
    said = "its label is not in the class list of 2 names"
    assert rejected(source) == {f"a.parquet/a/0000000{row}": said for row in (1, 3)}


def test_classes_that_disagree_are_refused(tmp_path: Path) -> None:
    write_labelled(tmp_path / "a.parquet", NAMED, [0])
    write_labelled(tmp_path / "b.parquet", NAMED[::-1], [0])
    with pytest.raises(SourceError, match=r"the class lists of 'a\.parquet' and 'b\.parquet' differ; build each"):
        scan(tmp_path)


READ_IN_ORDER = """
    import sys
    import pyarrow as pa
    from presize.sources.parquet import RowReader
    reader = RowReader()
    print(sum(len(reader.read(sys.argv[1], "image", 0, row)) for row in range(3000)))
    print(pa.default_memory_pool().max_memory())
"""


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """A few pages are, as they are read and decompressed: pyarrow writes 1,024 rows, here 20 MB, into each."""
    values = [np.random.default_rng(n).bytes(20_000) for n in range(3000)]
    path = write_parquet(tmp_path / "a.parquet", {"image": pa.array(values)}, group_rows=3000)
    read_bytes, peak_bytes = map(int, run_python(READ_IN_ORDER, path, timeout_s=60).split())
    assert read_bytes == 60_000_000
    assert peak_bytes < 80_000_000
