"""Exports contain the stored bytes: as files at the paths of their sources, in tars grouped like WebDataset's, and in
Parquet like that of Hugging Face's datasets."""

from __future__ import annotations

import datetime
import io
import json
import math
import os
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from builds import SERIAL, SMALL, files
from captioned import FILES, ROWS, captioned, read_by
from commands import Ran
from paired import WITH_MASKS, mask_of
from presize.builder.run import build_dataset
from presize.errors import BuildError, DatasetError
from presize.options import BuildOptions, Companion, ExportLayout, Format, SourceOptions
from presize.sources.labels import read_classes
from presize.store import export as module
from presize.store.dataset import Dataset
from presize.store.export import Exported, export_dataset, sample_keys
from presize.store.manifest import classes_digest, digest_of
from tampering import change_manifest, change_offset, flip_record, read_table, write_table

LAYOUTS: tuple[ExportLayout, ...] = tuple(layout for layout in get_args(ExportLayout) if layout != "lmdb")
"""Layouts that do not take --keys."""
KEYS = ["dogs/sub/b", "cats/a_png", "cats/a", "cats/my_best_cat"]
"""Keys of captioned.ROWS."""


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build captioned.ROWS as a dataset; read only."""
    return captioned(tmp_path_factory.mktemp("captions"))


@pytest.fixture
def data(captions: Path) -> Dataset:
    return Dataset(captions)


def values(data: Dataset) -> list[bytes]:
    return [data.value(i) for i in range(len(data))]


def members(folder: Path) -> list[tuple[str, bytes]]:
    """Return the files in all tars of a folder, in order."""
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    return found


def samples(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return the files of each key by extension, which starts after the first dot of a name."""
    grouped: dict[str, dict[str, bytes]] = defaultdict(dict)
    for name, content in members(folder):
        parent, slash, last = name.rpartition("/")
        stem, _, extension = last.partition(".")
        grouped[parent + slash + stem][extension] = content
    return grouped


def rows(folder: Path) -> pa.Table:
    """Return all rows of Parquet files, in the order of the files."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


# --- every layout ---


@pytest.mark.parametrize("layout", LAYOUTS)
def test_progress_counts_every_image_into_an_empty_folder_or_a_new_one(
    layout: ExportLayout, captions: Path, tmp_path: Path
) -> None:
    (tmp_path / "one" / "files").mkdir(parents=True)
    for place in ("one", "other"):
        counted: list[None] = []
        assert (
            export_dataset(captions, tmp_path / place / "files", layout, on_image=lambda to=counted: to.append(None))
            == 4
        )
        assert len(counted) == 4
    assert files(tmp_path / "one") == files(tmp_path / "other") != {}, "the same bytes every time"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("file", "file is not an empty folder; choose a new one$"),
        (".", "is not an empty folder; choose a new one$"),
        ("file/files", "cannot write .*: Not a directory; choose another$"),
        ("x" * 300, "cannot write .*: File name too long; choose another$"),
    ],
)
def test_an_out_that_cannot_be_written_is_a_one_line_error(
    out: str, message: str, captions: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=f"^export: {message}" if "cannot" in message else f"^export: .*{message}"):
        export_dataset(captions, tmp_path / out)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("layout", ["folder", "tar"])
def test_a_dataset_replaced_during_its_export_is_not_called_damaged(
    layout: ExportLayout, small: Path, tmp_path: Path
) -> None:
    one_each = replace(SMALL, shard_samples=1)
    build_dataset(small / "raw", tmp_path / "out", one_each, SERIAL)

    def replace_it() -> None:
        build_dataset(small / "raw", tmp_path / "out", one_each, replace(SERIAL, overwrite=True))

    with pytest.raises(DatasetError, match="out was updated, replaced or removed since it was opened"):
        export_dataset(tmp_path / "out", tmp_path / "exported", layout, on_image=replace_it)


@pytest.mark.parametrize(("layout", "keys"), [("tar", None), ("parquet", None), ("lmdb", "lsun")])
@pytest.mark.parametrize("end", ["damage", "a full disk"])
def test_an_interrupted_export_leaves_nothing_behind(
    end: str, layout: ExportLayout, keys: str | None, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    if end == "damage":
        flip_record(copied, len(Dataset(copied)) - 1)
    else:
        monkeypatch.setattr("os.fsync", full)
    full_disk = (
        rf"^(export: )?cannot write {tmp_path / 'files'}.*: No space left on device; (make room; run again|choose a)"
    )
    with pytest.raises((DatasetError, BuildError), match="CRC-32 differs" if end == "damage" else full_disk):
        export_dataset(copied, tmp_path / "files", layout=layout, keys=keys)
    assert list((tmp_path / "files").iterdir()) == []


def test_damaged_text_of_another_column_is_refused_before_anything_is_written(captions: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(captions, tmp_path / "out"))
    change_offset(out, "caption", 2, 1)  # before the start of the text of row 1
    with pytest.raises(DatasetError, match=f"column 'caption' of {out} is damaged"):
        export_dataset(out, tmp_path / "files", layout="parquet")
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(("format", "kind"), [("png", "PNG"), ("webp", "WEBP"), ("raw", "PNG")])
def test_the_suffix_follows_the_stored_format(format: Format, kind: str, tmp_path: Path) -> None:
    out, suffix = captioned(tmp_path, format), kind.lower()
    for layout in LAYOUTS:
        export_dataset(out, tmp_path / layout, layout=layout)
    written = (tmp_path / "folder" / "dogs" / "sub" / f"b.{suffix}").read_bytes()
    with Image.open(io.BytesIO(written)) as image:
        assert image.format == kind
        assert np.array_equal(np.asarray(image), next(pixels for _, pixels in Dataset(out).pixels([0])))
    assert samples(tmp_path / "tar")["dogs/sub/b"][suffix] == written
    assert rows(tmp_path / "parquet")["image"][0].as_py() == {"bytes": written, "path": f"dogs/sub/b.{suffix}"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_companions_are_exported_next_to_the_images(layout: ExportLayout, small: Path, tmp_path: Path) -> None:
    data = Dataset(small / "masks")
    export_dataset(data.root, tmp_path / "out", layout=layout)
    images, masks = values(data), values(data.companion("mask"))
    if layout == "folder":
        found = [sorted((tmp_path / "out" / kind).rglob("*.*")) for kind in ("image", "mask")]
        assert [path.name for path in found[1]] == [f"{i:02}.png" for i in range(12)]
        assert [[path.read_bytes() for path in paths] for paths in found] == [images, masks]
    elif layout == "tar":
        found_masks = {name: content for name, content in members(tmp_path / "out") if "mask" in name}
        assert found_masks == {f"images/{i:02}.mask.png": mask for i, mask in enumerate(masks)}
    else:
        table = rows(tmp_path / "out")
        assert table.column_names == ["image", "mask", "label"], "a companion adds no columns"
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        assert features["mask"] == {"_type": "Image"}
        assert [[row["bytes"] for row in table[name].to_pylist()] for name in ("image", "mask")] == [images, masks]


@pytest.mark.parametrize("pattern", ["masks/{subdir}/{stem}.png", "{dir}/{stem}_mask.png"])
def test_a_pattern_pairs_exported_class_folders_again(pattern: str, tmp_path: Path) -> None:
    for number, (folder, stem) in enumerate([("cats", "1"), ("cats", "2"), ("dogs", "1")]):
        image = tmp_path / "raw" / ("photos" if "masks/" in pattern else "") / folder / f"{stem}.jpg"
        mask = tmp_path / "raw" / pattern.format(dir=folder, subdir=folder, stem=stem)
        for path in (image, mask):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask_of(40, 30, number)).save(path)
    build_dataset(tmp_path / "raw", tmp_path / "out", paired(pattern), SERIAL)
    export_dataset(tmp_path / "out", tmp_path / "files")
    build_dataset(tmp_path / "files", tmp_path / "again", paired("mask/{subdir}/{stem}.png"), SERIAL)
    before, after = Dataset(tmp_path / "out"), Dataset(tmp_path / "again")
    assert before.manifest.classes == after.manifest.classes == ("cats", "dogs")
    assert after.column("path").to_pylist() == ["image/cats/1.jpg", "image/cats/2.jpg", "image/dogs/1.jpg"]
    assert after.column("label").to_pylist() == before.column("label").to_pylist() == [0, 0, 1]
    assert values(after.companion("mask")) == values(before.companion("mask"))


def test_masks_of_images_that_differ_only_by_suffix_stay_separate(tmp_path: Path) -> None:
    for number, name in enumerate(["a.jpg", "a.png"]):
        for path in (tmp_path / "raw" / name, tmp_path / "raw" / "masks" / f"{name}.png"):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask_of(40, 30, number)).save(path)
    unlabelled = SourceOptions(labels="none")
    build_dataset(tmp_path / "raw", tmp_path / "out", paired("masks/{name}.png"), SERIAL, unlabelled)
    export_dataset(tmp_path / "out", tmp_path / "files")
    build_dataset(tmp_path / "files", tmp_path / "again", paired("mask/{subdir}/{stem}.png"), SERIAL, unlabelled)
    before, after = Dataset(tmp_path / "out"), Dataset(tmp_path / "again")
    assert values(after.companion("mask")) == values(before.companion("mask"))


def paired(pattern: str) -> BuildOptions:
    return replace(WITH_MASKS, companions=(Companion("mask", pattern),))


def test_the_checksum_of_sources_is_not_exported_as_a_column_of_the_label_table(small: Path, tmp_path: Path) -> None:
    build_dataset(small / "raw" / "class-0", tmp_path / "sums", replace(SMALL, checksum=True), SERIAL)
    exported = Exported.of(tmp_path / "sums")
    assert "source_crc32" in exported.dataset.index.schema.names
    assert exported.columns == ()


def test_a_companion_named_image_keeps_its_name(small: Path) -> None:
    exported = Exported.of(small / "masks")
    assert list(replace(exported, companions={"image": exported.companions["mask"]}).all_files()) == ["image_", "image"]
    assert list(exported.all_files(["mask", "image"])) == ["image_", "mask_"]


# --- files ---


def test_every_image_is_written_as_stored(data: Dataset, tmp_path: Path) -> None:
    export_dataset(data.root, tmp_path / "files")
    assert [(tmp_path / "files" / name).read_bytes() for name in FILES] == values(data)


def test_each_class_has_its_folder(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small / "raw", tmp_path / "raw")
    (tmp_path / "raw" / "ants").mkdir()
    build_dataset(tmp_path / "raw", tmp_path / "out", SMALL, SERIAL)
    export_dataset(tmp_path / "out", tmp_path / "files")
    assert (tmp_path / "files" / "ants").is_dir(), "including an empty one"
    (tmp_path / "more").mkdir()
    export_dataset(captioned(tmp_path / "more", rows=[{"path": "a.png", "label": "pets/cat"}]), tmp_path / "nested")
    assert (tmp_path / "nested" / "pets" / "cat").is_dir()


# --- tar ---


def test_a_sample_is_its_image_its_label_and_its_other_columns(data: Dataset, tmp_path: Path) -> None:
    export_dataset(data.root, tmp_path / "tars", layout="tar")
    found = samples(tmp_path / "tars")
    assert sorted(found) == sorted(KEYS)
    for i, (key, row) in enumerate(zip(KEYS, ROWS, strict=True)):
        columns = {name: row[name] for name in ("caption", "scores", "of")}
        assert found[key]["jpg"] == data.value(i)
        assert found[key]["cls"].decode() == str(["cat", "dog"].index(row["label"]))
        assert json.loads(found[key]["json"]) == columns
    assert "\"a dog, 'Ödön'\"".encode() in found["dogs/sub/b"]["json"], "readable UTF-8"
    names = [name for name, _ in members(tmp_path / "tars")]
    assert [name.rpartition(".")[2] for name in names] == ["jpg", "cls", "json"] * 4
    assert len({name.rpartition(".")[0] for name in names[:3]}) == 1, "the files of a sample follow one another"
    assert read_classes(tmp_path / "tars" / "classes.txt") == ("cat", "dog")
    with tarfile.open(tmp_path / "tars" / "tars-000000.tar") as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar} == {(0, 0, 0, "", "", 0o644)}


def test_a_dataset_without_labels_yields_only_images(captions: Path, tmp_path: Path) -> None:
    build_dataset(captions.parent / "raw" / "dogs" / "sub", tmp_path / "plain", SMALL, SERIAL)
    export_dataset(tmp_path / "plain", tmp_path / "tars", layout="tar")
    assert [name for name, _ in members(tmp_path / "tars")] == ["b.jpg"]
    assert not (tmp_path / "tars" / "classes.txt").exists()


def test_there_is_a_tar_per_shard_without_order_by_class_inside(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    assert presize("export", dataset, tmp_path / "train", "--to", "tar").out == f"{tmp_path / 'train'}: 56 images\n"
    shard_rows = [shard.rows for shard in Dataset(dataset).manifest.shards]
    tars = sorted((tmp_path / "train").glob("*.tar"))
    assert [path.name for path in tars] == [f"train-{number:06d}.tar" for number in range(len(shard_rows))]
    for path, count in zip(tars, shard_rows, strict=True):
        with tarfile.open(path) as tar:
            assert sum(member.name.endswith(".jpg") for member in tar) == count
    labels = [int(content) for name, content in members(tmp_path / "train") if name.endswith(".cls")]
    parts = [labels[low:high] for low, high in pairwise(accumulate(shard_rows, initial=0))]
    assert sum(part != sorted(part) for part in parts) > len(parts) // 2


def test_dates_become_text_and_nan_becomes_null(captions: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(captions, tmp_path / "out"))
    more = {
        "day": pa.array([datetime.date(2026, 11, day) for day in (1, 2, 3, 4)]),
        "score": pa.array([math.nan, math.inf, -math.inf, 0.5]),
        "points": pa.array([[{"x": math.nan, "y": 1.0}]] * 4),
    }
    table = read_table(out)
    for name, column in more.items():
        table = table.append_column(name, column)
    write_table(out, table)
    export_dataset(out, tmp_path / "tars", layout="tar")
    found = samples(tmp_path / "tars")
    columns = [json.loads(found[key]["json"]) for key in KEYS]
    assert [row["day"] for row in columns] == ["2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04"]
    assert [row["score"] for row in columns] == [None, None, None, 0.5]
    assert [row["points"] for row in columns] == [[{"x": None, "y": 1.0}]] * 4


@pytest.mark.parametrize("name", ["a/" * 990 + "x", "x" * 256, "a/" + "é" * 128], ids=len)
def test_a_class_name_that_cannot_be_a_folder_makes_none(name: str, copied: Path, tmp_path: Path) -> None:
    def rename(values: dict[str, Any]) -> None:
        values["classes"] = [name, *values["classes"][1:]]
        values["identity"]["classes"] = classes_digest(values["classes"])
        values["digest"] = digest_of(values["identity"])

    change_manifest(copied, rename)
    assert export_dataset(copied, tmp_path / "files") == len(Dataset(copied))


def test_values_that_json_or_class_lists_cannot_hold_are_refused_before_anything_is_written(
    copied: Path, tmp_path: Path
) -> None:
    table = read_table(copied)
    write_table(copied, table.append_column("vector", pa.array([b"\0"] * len(table), pa.large_binary())))
    with pytest.raises(DatasetError, match=r"JSON cannot hold the column 'vector' \(large_binary\).*--to parquet"):
        export_dataset(copied, tmp_path / "tars", layout="tar")
    of_nothing = captioned(tmp_path / "empty", rows=[{"path": "a.png", "attributes": {}}])
    with pytest.raises(DatasetError, match=r"Parquet cannot hold the empty objects in column 'attributes' .*--to tar"):
        export_dataset(of_nothing, tmp_path / "tars", layout="parquet")
    with pytest.raises(DatasetError, match=r"classes.txt cannot hold the class name 'a\\nb'"):
        export_dataset(captioned(tmp_path, rows=[{"path": "a.png", "label": "a\nb"}]), tmp_path / "tars", layout="tar")
    assert not (tmp_path / "tars").exists()


part = st.text(st.sampled_from("ab.-1é"), min_size=1, max_size=5).filter(lambda text: text not in (".", ".."))


@given(st.lists(st.lists(part, min_size=1, max_size=2), min_size=1, max_size=8, unique_by=tuple))
def test_keys_are_distinct_and_end_where_webdataset_ends_them(parts: list[list[str]]) -> None:
    names = pa.chunked_array([pa.array(["/".join(path) + ".jpg" for path in parts], pa.large_string())])
    keys = sample_keys(names).to_pylist()
    assert len(set(keys)) == len(keys)
    assert all(key.rpartition("/")[2] and "." not in key.rpartition("/")[2] for key in keys)
    assert [key.rpartition("/")[0] for key in keys] == ["/".join(path[:-1]) for path in parts]


def test_only_a_duplicate_key_ends_with_the_number_of_its_sample() -> None:
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
def test_webdataset_reads_equal_samples(data: Dataset, tmp_path: Path) -> None:
    export_dataset(data.root, tmp_path / "tars", layout="tar")
    found = {key: rest for key, *rest in read_by("webdataset", WEBDATASET, tmp_path / "tars")}
    assert sorted(found) == sorted(KEYS)
    for (i, pixels), key, row in zip(sorted(data.pixels(range(4)), key=lambda pair: pair[0]), KEYS, ROWS, strict=True):
        image, label, columns = found[key]
        assert image == pixels.tolist(), i
        assert label == ["cat", "dog"].index(row["label"])
        assert columns == {name: row[name] for name in ("caption", "scores", "of")}


# --- Parquet ---


def test_a_row_is_an_image_and_its_columns_in_dataset_order(data: Dataset, tmp_path: Path) -> None:
    export_dataset(data.root, tmp_path / "rows", layout="parquet")
    table = rows(tmp_path / "rows")
    assert table.column_names == ["image", "label", "caption", "scores", "of"]
    for i, (row, source) in enumerate(zip(table.to_pylist(), ROWS, strict=True)):
        image, label = {"bytes": data.value(i), "path": FILES[i]}, ["cat", "dog"].index(source["label"])
        assert {"path": source["path"], **row} == {**source, "image": image, "label": label}
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}


def test_files_are_numbered_and_named_after_the_folder(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data.numbers("nbytes").tolist()[0]
    monkeypatch.setattr(module, "GROUP_BYTES", first + 1)
    monkeypatch.setattr(module, "FILE_BYTES", 2 * (first + 1))
    export_dataset(data.root, tmp_path / "train", layout="parquet")
    names = sorted(path.name for path in (tmp_path / "train").iterdir())
    assert len(names) > 1
    assert names == [f"train-{number:05d}-of-{len(names):05d}.parquet" for number in range(len(names))]
    assert [row["path"] for row in rows(tmp_path / "train")["image"].to_pylist()] == FILES


def test_a_row_group_holds_a_bounded_number_of_bytes(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = int(Dataset(dataset).numbers("nbytes").max())
    monkeypatch.setattr(module, "GROUP_BYTES", 20_000)
    place = tmp_path / os.fsdecode(b"bad\xff")  # a name that is not UTF-8 works
    export_dataset(dataset, place, layout="parquet")
    with next(place.glob("*.parquet")).open("rb") as opened, pq.ParquetFile(opened) as file:
        groups = [file.read_row_group(group, ["image"])["image"].to_pylist() for group in range(file.num_row_groups)]
    assert len(groups) > 2
    assert all(sum(len(row["bytes"]) for row in group) < 20_000 + largest for group in groups)
    assert sum(map(len, groups)) == len(Dataset(dataset))


def test_files_and_row_groups_have_the_documented_sizes() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "derive.md").read_text("utf-8")
    assert f"of up to {module.FILE_BYTES / 2**20:g} MiB each" in page
    assert f"A row group has about {module.GROUP_BYTES / 2**20:g} MiB" in page


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"caption": "a cat"}, {"caption": "a cat"}),
        ({}, {}),
        ({"image": "mine"}, {"image": "mine"}),  # keeps its name
        ({"label": 7.5}, {"label": 7.5}),  # not a class
    ],
)
def test_columns_of_the_label_table_are_kept_and_have_dictionaries_and_statistics(
    row: dict[str, Any], columns: dict[str, Any], tmp_path: Path
) -> None:
    export_dataset(captioned(tmp_path, rows=[{"path": "a.png", **row}]), tmp_path / "rows", layout="parquet")
    (path,) = (tmp_path / "rows").iterdir()
    (found,) = rows(tmp_path / "rows").to_pylist()
    assert found.pop("image_" if "image" in row else "image")["path"] == "a.jpg"
    assert found == columns
    group = pq.read_metadata(path).row_group(0)
    stored = [group.column(i) for i in range(group.num_columns)]
    assert {column.path_in_schema for column in stored if column.has_dictionary_page} == row.keys()
    assert {column.path_in_schema for column in stored if column.is_stats_set} == row.keys()


HUGGING_FACE_ROWS = """
import json, sys
import datasets
import numpy

data = datasets.load_dataset("parquet", data_files=sys.argv[1] + "/*.parquet", cache_dir=sys.argv[2], split="train")
rows = [[numpy.asarray(row["image"]).tolist(), data.features["label"].int2str(row["label"]), row["caption"],
         row["scores"], row["of"]] for row in data]
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_hugging_face_reads_equal_samples(data: Dataset, tmp_path: Path) -> None:
    export_dataset(data.root, tmp_path / "rows", layout="parquet")
    found = read_by("datasets", HUGGING_FACE_ROWS, tmp_path / "rows", tmp_path / "cache")
    assert [row[1:] for row in found] == [[row[name] for name in ("label", "caption", "scores", "of")] for row in ROWS]
    pixels = dict(data.pixels(range(len(data))))
    assert [row[0] for row in found] == [pixels[i].tolist() for i in range(len(data))]
