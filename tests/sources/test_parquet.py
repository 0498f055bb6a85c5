"""Parquet files with images, as Hugging Face's datasets and others lay them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foreign import image_column, picture, write_parquet
from listings import listed
from presize.errors import ImageError
from presize.sources import parquet as parquet_rows
from presize.sources.contents import Source
from presize.sources.scan import scan
from presize.sources.source_files import SourceReader
from processes import run_python

PICTURES = [picture(number) for number in range(10)]


def reading(source: Source) -> Callable[[int], bytes]:
    """What reads the sample of a number."""
    reader = SourceReader(source.root)
    return lambda sample: reader.read(source.files(np.array([sample]))[0])


def value(source: Source, sample: int) -> bytes:
    return reading(source)(sample)


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


def test_a_row_without_bytes_is_an_image_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column([PICTURES[0], None], ["a.png", "elsewhere.png"])})
    source = scan(tmp_path)
    assert value(source, 0) == PICTURES[0]
    with pytest.raises(ImageError, match="its row has no bytes; a path alone is not followed"):
        value(source, 1)


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


READ_IN_ORDER = """
    import sys
    import pyarrow as pa
    from presize.sources.parquet import RowReader
    reader = RowReader(sys.argv[1], "image")
    print(sum(len(reader.read(0, row)) for row in range(3000)))
    print(pa.default_memory_pool().max_memory())
"""


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """A few pages are, as they are read and decompressed: pyarrow writes 1,024 rows, here 20 MB, into each."""
    values = [np.random.default_rng(n).bytes(20_000) for n in range(3000)]
    path = write_parquet(tmp_path / "a.parquet", {"image": pa.array(values)}, group_rows=3000)
    read_bytes, peak_bytes = map(int, run_python(READ_IN_ORDER, path, timeout_s=60).split())
    assert read_bytes == 60_000_000
    assert peak_bytes < 80_000_000
