"""Parquet in Hugging Face's layout: every sample in dataset order, and a schema that says what is an image."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builds import files
from captioned import FILES, ROWS, captioned, read_by
from presize.store import export as to_parquet
from presize.store.dataset import Dataset
from presize.store.export import export_dataset


def exported(out: Path, place: Path) -> pa.Table:
    """All rows of an export, in the order of its files."""
    export_dataset(out, place, layout="parquet")
    return pa.concat_tables([pq.read_table(path) for path in sorted(place.glob("*.parquet"))])


def test_a_row_is_an_image_and_its_columns_in_dataset_order(tmp_path: Path) -> None:
    data = Dataset(captioned(tmp_path))
    table = exported(data.root, tmp_path / "rows")
    assert table.column_names == ["image", "label", "caption", "scores", "of"]
    for i, (row, source) in enumerate(zip(table.to_pylist(), ROWS, strict=True)):
        assert row["image"] == {"bytes": data.value(i), "path": FILES[i]}
        assert row["label"] == ["cat", "dog"].index(source["label"])
        assert {name: row[name] for name in ("caption", "scores", "of")} == {
            name: source[name] for name in ("caption", "scores", "of")
        }


def test_the_schema_names_the_image_and_the_classes(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path), tmp_path / "rows", layout="parquet")
    (path,) = (tmp_path / "rows").iterdir()
    features = json.loads(pq.read_schema(path).metadata[b"huggingface"])["info"]["features"]
    assert features == {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}


def test_files_are_numbered_and_named_after_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset(captioned(tmp_path))
    lengths = data.numbers("nbytes").tolist()
    monkeypatch.setattr(to_parquet, "GROUP_BYTES", lengths[0] + 1)
    monkeypatch.setattr(to_parquet, "FILE_BYTES", 2 * (lengths[0] + 1))
    table = exported(data.root, tmp_path / "train")
    names = sorted(path.name for path in (tmp_path / "train").iterdir())
    assert len(names) > 1
    assert names == [f"train-{number:05d}-of-{len(names):05d}.parquet" for number in range(len(names))]
    assert [row["path"] for row in table["image"].to_pylist()] == FILES


def test_a_row_group_holds_a_bounded_number_of_bytes(dataset: Path, tmp_path: Path, monkeypatch: Any) -> None:
    largest = int(Dataset(dataset).numbers("nbytes").max())
    monkeypatch.setattr(to_parquet, "GROUP_BYTES", 20_000)
    export_dataset(dataset, tmp_path / "rows", layout="parquet")
    (path,) = (tmp_path / "rows").iterdir()
    with pq.ParquetFile(path) as file:
        assert file.num_row_groups > 2
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, ["image"])["image"].to_pylist()
            assert sum(len(row["bytes"]) for row in rows) < 20_000 + largest


def test_files_and_row_groups_are_as_large_as_the_documentation_says() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "derive.md").read_text("utf-8")
    assert f"of up to {to_parquet.FILE_BYTES / 2**20:g} MiB each" in page
    assert f"A row group has about {to_parquet.GROUP_BYTES / 2**20:g} MiB" in page


@pytest.mark.parametrize("row", [{"path": "a.png", "caption": "a cat"}, {"path": "a.png"}])
def test_only_the_columns_of_the_label_table_have_dictionaries_and_statistics(
    row: dict[str, Any], tmp_path: Path
) -> None:
    export_dataset(captioned(tmp_path, rows=[row]), tmp_path / "rows", layout="parquet")
    (path,) = (tmp_path / "rows").iterdir()
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.has_dictionary_page} == row.keys() - {"path"}
    assert {column.path_in_schema for column in columns if column.is_stats_set} == row.keys() - {"path"}


def test_every_export_has_the_same_bytes(tmp_path: Path) -> None:
    out = captioned(tmp_path)
    for place in ("one", "other"):
        export_dataset(out, tmp_path / place / "rows", layout="parquet")
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_raw_pixels_become_png(tmp_path: Path) -> None:
    table = exported(captioned(tmp_path, "raw"), tmp_path / "rows")
    assert all(row["bytes"].startswith(b"\x89PNG") for row in table["image"].to_pylist())
    assert table["image"].to_pylist()[0]["path"] == "dogs/sub/b.png"


def test_a_column_called_image_keeps_its_name(tmp_path: Path) -> None:
    out = captioned(tmp_path, rows=[{"path": "a.png", "image": "mine"}])
    (row,) = exported(out, tmp_path / "rows").to_pylist()
    assert row["image"] == "mine"
    assert row["image_"]["path"] == "a.jpg"


def test_labels_without_a_class_list_are_written_as_they_are(tmp_path: Path) -> None:
    out = captioned(tmp_path, rows=[{"path": "a.png", "label": 7.5}])
    (row,) = exported(out, tmp_path / "rows").to_pylist()
    assert row["label"] == 7.5


HUGGING_FACE = """
import json, sys
import datasets
import numpy

data = datasets.load_dataset("parquet", data_files=sys.argv[1] + "/*.parquet", cache_dir=sys.argv[2], split="train")
rows = [[numpy.asarray(row["image"]).tolist(), data.features["label"].int2str(row["label"]), row["caption"],
         row["scores"], row["of"]] for row in data]
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_hugging_face_reads_equal_samples(tmp_path: Path) -> None:
    data = Dataset(captioned(tmp_path))
    export_dataset(data.root, tmp_path / "rows", layout="parquet")
    found = read_by("datasets", HUGGING_FACE, tmp_path / "rows", tmp_path / "cache")
    assert [row[1:] for row in found] == [[row[name] for name in ("label", "caption", "scores", "of")] for row in ROWS]
    pixels = dict(data.pixels(range(len(data))))
    assert [row[0] for row in found] == [pixels[i].tolist() for i in range(len(data))]


def test_a_name_that_is_not_utf_8_will_do(dataset: Path, tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"bad\xff")
    export_dataset(dataset, place, layout="parquet")
    with next(place.glob("*.parquet")).open("rb") as file:
        assert pq.read_table(file).num_rows == len(Dataset(dataset))
