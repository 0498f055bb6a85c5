"""Exported files hold the stored bytes, in the places their sources had."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from builds import SERIAL, SMALL, files
from captioned import captioned
from paired import WITH_MASKS, make_pairs
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.errors import BuildError, DatasetError
from presize.options import BuildOptions, ExportLayout, Format, ImageOptions, Size
from presize.store.dataset import Dataset
from presize.store.export import Exported, export_dataset
from tampering import change_offset, read_table, with_column, write_table


def built(tmp_path: Path, format: Format = "jpeg") -> Path:
    for i, name in enumerate(["cats/a.png", "cats/a.jpg", "dogs/sub/b.jpeg"]):
        path = tmp_path / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(40, 50, seed=i)).save(path)
    (tmp_path / "raw" / "ants").mkdir()
    build_dataset(
        tmp_path / "raw", tmp_path / "out", BuildOptions(ImageOptions((Size(24, 24),), format=format)), SERIAL
    )
    return tmp_path / "out"


def test_every_image_is_written_as_it_is_stored(tmp_path: Path) -> None:
    out = built(tmp_path)
    assert export_dataset(out, tmp_path / "files") == 3
    data = Dataset(out)
    for i, name in enumerate(["cats/a.jpg", "cats/a.png.jpg", "dogs/sub/b.jpeg"]):
        assert (tmp_path / "files" / name).read_bytes() == data.value(i)


def test_an_empty_class_keeps_its_folder(tmp_path: Path) -> None:
    export_dataset(built(tmp_path), tmp_path / "files")
    assert (tmp_path / "files" / "ants").is_dir()


def test_a_class_whose_name_has_a_slash_is_a_folder_in_a_folder(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path, rows=[{"path": "a.png", "label": "pets/cat"}]), tmp_path / "files")
    assert (tmp_path / "files" / "pets" / "cat").is_dir()


@pytest.mark.parametrize(("format", "kind"), [("png", "PNG"), ("webp", "WEBP"), ("raw", "PNG")])
def test_the_suffix_follows_the_stored_format(format: Format, kind: str, tmp_path: Path) -> None:
    out = built(tmp_path, format)
    export_dataset(out, tmp_path / "files")
    written = tmp_path / "files" / "dogs" / "sub" / f"b.{kind.lower()}"
    with Image.open(io.BytesIO(written.read_bytes())) as image:
        assert image.format == kind
        assert np.array_equal(np.asarray(image), next(pixels for _, pixels in Dataset(out).pixels([2])))


@pytest.mark.parametrize("layout", get_args(ExportLayout))
def test_progress_counts_every_image(layout: ExportLayout, tmp_path: Path) -> None:
    counted: list[None] = []
    export_dataset(built(tmp_path), tmp_path / "files", lambda: counted.append(None), layout)
    assert len(counted) == 3


@pytest.mark.parametrize("layout", get_args(ExportLayout))
def test_a_folder_that_is_there_is_filled_if_it_is_empty(layout: ExportLayout, dataset: Path, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "absent", layout=layout)
    (tmp_path / "empty").mkdir()
    export_dataset(dataset, tmp_path / "empty", layout=layout)
    assert len(files(tmp_path / "empty")) == len(files(tmp_path / "absent")) > 0


def test_a_file_is_no_empty_folder(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="file is not an empty folder; choose a new one"):
        export_dataset(dataset, tmp_path / "file")


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    out = built(tmp_path)
    before = files(tmp_path / "raw")
    with pytest.raises(BuildError, match="not an empty folder"):
        export_dataset(out, tmp_path / "raw")
    assert files(tmp_path / "raw") == before


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    out = built(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="export: cannot write"):
        export_dataset(out, tmp_path / "file" / "files")


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["cats/a.jpg", "dogs/b.jpg", "cats/a.jpg"], "the path 'cats/a.jpg' twice"),
        (["cats/a.jpg", "cats/b.jpg", "../c.jpg"], "'../c.jpg', which leads out of the folder"),
        (["cats/a.jpg", "cats/b.jpg", "c/" * 20_000 + "d.jpg"], "longer than 4095 bytes"),
    ],
)
def test_paths_of_a_hostile_index_are_refused_before_anything_is_written(
    paths: list[str], words: str, tmp_path: Path
) -> None:
    out = built(tmp_path)
    write_table(out, with_column(read_table(out), "path", pa.array(paths, pa.large_string())))
    with pytest.raises(DatasetError, match=words):
        export_dataset(out, tmp_path / "files")
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize("column", ["path", "caption"])
def test_damaged_text_of_the_index_is_refused_before_anything_is_written(column: str, tmp_path: Path) -> None:
    out = captioned(tmp_path)
    change_offset(out, column, 2, 1)  # before the text of row 1 begins
    with pytest.raises(DatasetError, match=f"column '{column}' of {out} is damaged"):
        export_dataset(out, tmp_path / "files", layout="parquet")
    assert not (tmp_path / "files").exists()


def test_an_image_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    out = built(tmp_path)
    paths = ["cats/a.jpg", "cats/b.jpg", f"{'c' * 300}/c.jpg"]
    write_table(out, with_column(read_table(out), "path", pa.array(paths, pa.large_string())))
    with pytest.raises(BuildError, match=rf"^export: cannot write {tmp_path}/files/c{{300}}: File name too long$"):
        export_dataset(out, tmp_path / "files")


def test_a_folder_whose_name_is_too_long_is_one_line(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"^export: cannot write .*: File name too long$"):
        export_dataset(dataset, tmp_path / ("x" * 300))


@pytest.mark.parametrize("layout", ["folder", "tar"])
def test_a_dataset_that_is_replaced_while_it_is_exported_is_not_damaged(layout: ExportLayout, tmp_path: Path) -> None:
    one_each = replace(SMALL, shard_samples=1)
    for i in range(4):
        (tmp_path / "raw").mkdir(exist_ok=True)
        Image.fromarray(smooth_image(40, 50, seed=i)).save(tmp_path / "raw" / f"{i}.png")
    build_dataset(tmp_path / "raw", tmp_path / "out", one_each, SERIAL)

    def replace_it() -> None:
        build_dataset(tmp_path / "raw", tmp_path / "out", one_each, replace(SERIAL, overwrite=True))

    with pytest.raises(DatasetError, match="out was updated, replaced or removed since it was opened"):
        export_dataset(tmp_path / "out", tmp_path / "exported", replace_it, layout)


def with_masks(tmp_path: Path) -> Dataset:
    build_dataset(make_pairs(tmp_path / "raw"), tmp_path / "out", WITH_MASKS, SERIAL)
    return Dataset(tmp_path / "out")


def values(data: Dataset) -> list[bytes]:
    return [data.value(i) for i in range(len(data))]


def test_companions_have_a_folder_beside_that_of_the_images(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    export_dataset(data.root, tmp_path / "files")
    found = [sorted((tmp_path / "files" / kind).rglob("*.*")) for kind in ("image", "mask")]
    assert [path.name for path in found[1]] == [f"{i:02}.png" for i in range(len(data))]
    assert [[path.read_bytes() for path in paths] for paths in found] == [values(data), values(data.companion("mask"))]


def test_companions_are_files_of_their_sample_in_a_tar(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    export_dataset(data.root, tmp_path / "tars", layout="tar")
    found = {}
    for path in (tmp_path / "tars").glob("*.tar"):
        with tarfile.open(path) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    masks = values(data.companion("mask"))
    assert {name: found[name] for name in found if "mask" in name} == {
        f"images/{i:02}.mask.png": mask for i, mask in enumerate(masks)
    }


def test_companions_are_columns_of_images_in_parquet(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    export_dataset(data.root, tmp_path / "rows", layout="parquet")
    table = pq.read_table(next((tmp_path / "rows").iterdir()))
    assert table.column_names[:2] == ["image", "mask"]
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["mask"] == {"_type": "Image"}
    for name, part in {"image": data, "mask": data.companion("mask")}.items():
        assert [row["bytes"] for row in table[name].to_pylist()] == values(part)


def test_no_column_of_a_companion_is_exported_as_one_of_the_label_table(tmp_path: Path) -> None:
    exported = Exported.of(with_masks(tmp_path).root)
    assert set(exported.columns) <= {"label"}


def test_the_checksum_of_sources_is_not_exported_as_a_column_of_the_label_table(tmp_path: Path) -> None:
    built(tmp_path)
    build_dataset(tmp_path / "raw" / "cats", tmp_path / "sums", replace(SMALL, checksum=True), SERIAL)
    exported = Exported.of(tmp_path / "sums")
    assert "source_crc32" in exported.dataset.index.schema.names
    assert exported.columns == ()


def test_a_companion_that_is_called_image_keeps_its_name(tmp_path: Path) -> None:
    exported = Exported.of(with_masks(tmp_path).root)
    assert list(replace(exported, companions={"image": exported.companions["mask"]}).all_files()) == ["image_", "image"]
    assert list(exported.all_files(["mask", "image"])) == ["image_", "mask_"]
