"""Tar shards: samples as WebDataset groups them, the same bytes every time, in an order that shuffles."""

from __future__ import annotations

import datetime
import json
import math
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builds import SERIAL, SMALL, files
from captioned import ROWS, captioned, read_by
from commands import Ran
from presize.builder.run import build_dataset
from presize.errors import BuildError, DatasetError
from presize.sources.classes import read_classes
from presize.store.dataset import Dataset
from presize.store.export import export_dataset, sample_keys
from tampering import flip_record, read_table, write_table

KEYS = ["dogs/sub/b", "cats/a_png", "cats/a", "cats/my_best_cat"]
"""Of captioned.ROWS."""


def members(folder: Path) -> list[tuple[str, bytes]]:
    """The files in all tars of a folder, in order."""
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    return found


def samples(folder: Path) -> dict[str, dict[str, bytes]]:
    """For each key its files by extension, which begins after the first dot of a name."""
    grouped: dict[str, dict[str, bytes]] = defaultdict(dict)
    for name, content in members(folder):
        parent, slash, last = name.rpartition("/")
        stem, _, extension = last.partition(".")
        grouped[parent + slash + stem][extension] = content
    return grouped


def test_a_sample_is_its_image_its_label_and_its_other_columns(tmp_path: Path) -> None:
    data = Dataset(captioned(tmp_path))
    assert export_dataset(data.root, tmp_path / "tars", layout="tar") == 4
    found = samples(tmp_path / "tars")
    assert sorted(found) == sorted(KEYS)
    for i, (key, row) in enumerate(zip(KEYS, ROWS, strict=True)):
        columns = {name: row[name] for name in ("caption", "scores", "of")}
        assert found[key]["jpg"] == data.value(i)
        assert found[key]["cls"].decode() == str(["cat", "dog"].index(row["label"]))
        assert json.loads(found[key]["json"]) == columns


def test_the_command_writes_tars(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    assert presize("export", dataset, tmp_path / "tars", "--to", "tar").out == f"{tmp_path / 'tars'}: 56 images\n"
    assert len(samples(tmp_path / "tars")) == 56


def test_the_files_of_a_sample_follow_one_another(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path), tmp_path / "tars", layout="tar")
    names = [name for name, _ in members(tmp_path / "tars")]
    assert [name.rpartition(".")[2] for name in names] == ["jpg", "cls", "json"] * 4
    assert len({name.rpartition(".")[0] for name in names[:3]}) == 1


def test_a_dataset_without_labels_gives_images_alone(tmp_path: Path) -> None:
    captioned(tmp_path)
    build_dataset(tmp_path / "raw" / "dogs" / "sub", tmp_path / "plain", SMALL, SERIAL)
    export_dataset(tmp_path / "plain", tmp_path / "tars", layout="tar")
    assert [name for name, _ in members(tmp_path / "tars")] == ["b.jpg"]
    assert not (tmp_path / "tars" / "classes.txt").exists()


def test_the_class_names_lie_beside_the_tars(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path), tmp_path / "tars", layout="tar")
    assert read_classes(tmp_path / "tars" / "classes.txt") == ("cat", "dog")


def test_there_is_a_tar_for_each_shard_named_after_the_folder(dataset: Path, tmp_path: Path) -> None:
    data = Dataset(dataset)
    export_dataset(dataset, tmp_path / "train", layout="tar")
    tars = sorted(path.name for path in (tmp_path / "train").glob("*.tar"))
    assert tars == [f"train-{number:06d}.tar" for number in range(len(data.manifest.shards))]
    for name, shard in zip(tars, data.manifest.shards, strict=True):
        with tarfile.open(tmp_path / "train" / name) as tar:
            assert sum(member.name.endswith(".jpg") for member in tar) == shard.rows


def test_inside_a_tar_samples_are_not_sorted_by_class(dataset: Path, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "tars", layout="tar")
    labels = [int(content) for name, content in members(tmp_path / "tars") if name.endswith(".cls")]
    shard_rows = [shard.rows for shard in Dataset(dataset).manifest.shards]
    parts = [labels[low:high] for low, high in pairwise(accumulate(shard_rows, initial=0))]
    assert sum(part != sorted(part) for part in parts) > len(parts) // 2


def test_every_export_has_the_same_bytes(tmp_path: Path) -> None:
    out = captioned(tmp_path)
    for place in ("one", "other"):
        export_dataset(out, tmp_path / place / "tars", layout="tar")
    assert files(tmp_path / "one") == files(tmp_path / "other")
    with tarfile.open(tmp_path / "one" / "tars" / "tars-000000.tar") as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar} == {(0, 0, 0, "", "", 0o644)}


def test_raw_pixels_become_png(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path, "raw"), tmp_path / "tars", layout="tar")
    assert all(sample["png"].startswith(b"\x89PNG") for sample in samples(tmp_path / "tars").values())


def test_what_json_cannot_hold_is_refused_before_anything_is_written(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    table = read_table(tmp_path / "out")
    write_table(tmp_path / "out", table.append_column("vector", pa.array([b"\0"] * len(table), pa.large_binary())))
    with pytest.raises(DatasetError, match=r"JSON cannot hold the column 'vector' \(large_binary\).*--to parquet"):
        export_dataset(tmp_path / "out", tmp_path / "tars", layout="tar")
    assert not (tmp_path / "tars").exists()


def test_a_class_name_with_a_line_break_is_refused(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"path": "a.png", "label": "a\nb"}]
    with pytest.raises(DatasetError, match=r"classes.txt cannot hold the class name 'a\\nb'"):
        export_dataset(captioned(tmp_path, rows=rows), tmp_path / "tars", layout="tar")


def test_text_in_json_is_utf_8_that_people_can_read(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path), tmp_path / "tars", layout="tar")
    assert "\"a dog, 'Ödön'\"".encode() in samples(tmp_path / "tars")["dogs/sub/b"]["json"]


def test_dates_become_text(tmp_path: Path) -> None:
    out = captioned(tmp_path)
    days = pa.array([datetime.date(2026, 11, day) for day in (1, 2, 3, 4)])
    write_table(out, read_table(out).append_column("day", days))
    export_dataset(out, tmp_path / "tars", layout="tar")
    assert json.loads(samples(tmp_path / "tars")["cats/a"]["json"])["day"] == "2026-11-03"


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    out = captioned(tmp_path)
    scores = pa.array([math.nan, math.inf, -math.inf, 0.5])
    lists = pa.array([[{"x": math.nan, "y": 1.0}]] * 4)
    write_table(out, read_table(out).append_column("score", scores).append_column("points", lists))
    export_dataset(out, tmp_path / "tars", layout="tar")
    found = [json.loads(sample["json"]) for sample in samples(tmp_path / "tars").values()]
    assert sorted(str(columns["score"]) for columns in found) == ["0.5", "None", "None", "None"]
    assert [columns["points"] for columns in found] == [[{"x": None, "y": 1.0}]] * 4


@pytest.mark.parametrize("layout", ["tar", "parquet"])
def test_an_export_that_stops_leaves_nothing_behind(layout: Any, dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    flip_record(tmp_path / "out", len(Dataset(dataset)) - 1)
    with pytest.raises(DatasetError, match="CRC-32 differs"):
        export_dataset(tmp_path / "out", tmp_path / "files", layout=layout)
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("layout", ["tar", "parquet"])
def test_a_disk_that_is_full_is_one_line(
    layout: Any, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BuildError, match=f"^export: cannot write {tmp_path / 'files'}: No space left on device$"):
        export_dataset(dataset, tmp_path / "files", layout=layout)
    assert list((tmp_path / "files").iterdir()) == []


part = st.text(st.sampled_from("ab.-1é"), min_size=1, max_size=5).filter(lambda text: text not in (".", ".."))


@given(st.lists(st.lists(part, min_size=1, max_size=2), min_size=1, max_size=8, unique_by=tuple))
def test_keys_are_distinct_and_end_where_webdataset_ends_them(parts: list[list[str]]) -> None:
    names = pa.chunked_array([pa.array(["/".join(path) + ".jpg" for path in parts], pa.large_string())])
    keys = sample_keys(names).to_pylist()
    assert len(set(keys)) == len(keys)
    assert all(key.rpartition("/")[2] and "." not in key.rpartition("/")[2] for key in keys)
    assert [key.rpartition("/")[0] for key in keys] == ["/".join(path[:-1]) for path in parts]


def test_only_a_key_that_would_be_there_twice_ends_with_the_number_of_its_sample() -> None:
    names = pa.chunked_array([pa.array(["a.b.jpg", "c.jpg", "a_b.jpg"], pa.large_string())])
    assert sample_keys(names).to_pylist() == ["a_b-0", "c", "a_b-2"]


WEBDATASET = """
import glob, json, sys
import webdataset

tars = sorted(glob.glob(sys.argv[1] + "/*.tar"))
data = webdataset.WebDataset(tars, shardshuffle=False).decode("rgb8").to_tuple("__key__", "jpg", "cls", "json")
print(json.dumps([[key, image.tolist(), label, columns] for key, image, label, columns in data]))
"""


@pytest.mark.slow
def test_webdataset_reads_equal_samples(tmp_path: Path) -> None:
    data = Dataset(captioned(tmp_path))
    export_dataset(data.root, tmp_path / "tars", layout="tar")
    found = {key: rest for key, *rest in read_by("webdataset", WEBDATASET, tmp_path / "tars")}
    assert sorted(found) == sorted(KEYS)
    for (i, pixels), key, row in zip(sorted(data.pixels(range(4)), key=lambda pair: pair[0]), KEYS, ROWS, strict=True):
        image, label, columns = found[key]
        assert image == pixels.tolist(), i
        assert label == ["cat", "dog"].index(row["label"])
        assert columns == {name: row[name] for name in ("caption", "scores", "of")}


HUGGING_FACE = """
import glob, json, sys
import datasets

tars = sorted(glob.glob(sys.argv[1] + "/*.tar"))
data = datasets.load_dataset("webdataset", data_files=tars, cache_dir=sys.argv[2], split="train")
print(json.dumps([[row["__key__"], row["jpg"].size, row["cls"], row["json"]["caption"]] for row in data]))
"""


@pytest.mark.slow
def test_hugging_face_reads_the_tars(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path), tmp_path / "tars", layout="tar")
    found = read_by("datasets", HUGGING_FACE, tmp_path / "tars", tmp_path / "cache")
    shapes = [list(shape[::-1]) for shape in map(Dataset(tmp_path / "out").shape, range(4))]
    labels = [1, 0, 0, 0]
    expected = [list(row) for row in zip(KEYS, shapes, labels, [row["caption"] for row in ROWS], strict=True)]
    assert sorted(found) == sorted(expected)
