"""What a page shows of one sample."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from annotated import build_scenes
from builds import SERIAL, SMALL
from pictures import save_image
from presize.builder.run import build_dataset
from presize.errors import DatasetError, ImageError
from presize.options import BuildOptions, ImageOptions, Size
from presize.pages.samples import MOST_MARKS, ViewedDataset, card_of, marks_of, masked, seen
from tampering import change_manifest, read_table, with_column, write_table


def decoded(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), np.float64)


@pytest.fixture(scope="module")
def scenes(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> ViewedDataset:
    folder = tmp_path_factory.mktemp("scenes")
    photos = sorted((raw / sorted(os.listdir(raw))[0]).glob("*.jpg"))[:3]
    return ViewedDataset.of(build_scenes(photos, folder), folder / "SCENES")


def test_the_source_stands_before_what_is_stored(dataset: Path, raw: Path) -> None:
    card = card_of(ViewedDataset.of(dataset, raw), 5, 64)
    assert [one.what for one in card.pictures] == ["source", "stored"]
    before, after = (decoded(one.jpeg) for one in card.pictures)
    assert before.shape == after.shape
    assert np.abs(before - after).mean() < 12, "they are the same image"


def test_a_source_that_has_gone_is_told_in_its_place_and_without_a_raw_folder_there_is_none(
    dataset: Path, tmp_path: Path
) -> None:
    assert [one.what for one in card_of(ViewedDataset.of(dataset), 0, 64).pictures] == ["stored"]
    before, after = card_of(ViewedDataset.of(dataset, tmp_path), 0, 64).pictures
    assert (before.jpeg, before.problem) == (b"", "cannot be read: No such file or directory")
    assert after.jpeg


def column_changed(root: Path, name: str, values: list) -> None:
    table = read_table(root)
    write_table(root, with_column(table, name, pa.array(values, table.schema.field(name).type)))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A dataset in ``out`` of the one photograph in ``raw``."""
    save_image(tmp_path / "raw" / "photo.jpg", 40, 40)
    build_dataset(tmp_path / "raw", tmp_path / "out", SMALL, SERIAL)
    return tmp_path / "out"


@pytest.mark.parametrize("path", ["../secret.jpg", "/etc/hostname", "a/../../secret.jpg"])
def test_a_path_in_the_index_never_leads_out_of_the_raw_folder(path: str, photo: Path, tmp_path: Path) -> None:
    save_image(tmp_path / "secret.jpg")
    column_changed(photo, "path", [path])
    before, _ = card_of(ViewedDataset.of(photo, tmp_path / "raw"), 0, 64).pictures
    assert before[1:] == (b"", "its path leads out of the folder")


def test_a_named_pipe_in_the_raw_folder_is_not_waited_for(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "raw" / "photo.jpg").unlink()
    os.mkfifo(tmp_path / "raw" / "photo.jpg")
    opened = ViewedDataset.of(photo, tmp_path / "raw")
    assert card_of(opened, 0, 64).pictures[0].problem == "it is not a regular file"


def test_a_damaged_record_is_told_in_its_place(photo: Path) -> None:
    column_changed(photo, "crc32", [1])
    (picture,) = card_of(ViewedDataset.of(photo), 0, 64).pictures
    assert picture.jpeg == b""
    assert "CRC-32 differs" in picture.problem


def test_a_folder_dataset_shows_the_same_as_one_of_shards_and_none_of_its_files_lies_outside(
    dataset: Path, raw: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    build_dataset(raw, folder, BuildOptions(SMALL.image, layout="folder"), SERIAL)
    viewed = ViewedDataset.of(folder)
    assert card_of(viewed, 7, 64).pictures == card_of(ViewedDataset.of(dataset), 7, 64).pictures
    column_changed(folder, "file", ["../../etc/hostname", *viewed.index.column("file").to_pylist()[1:]])
    assert "leads out of the folder" in card_of(ViewedDataset.of(folder), 0, 64).pictures[0].problem


@pytest.mark.parametrize(
    "image",
    [
        ImageOptions((Size(32, 32),), format="raw"),
        ImageOptions((Size(32, 32),), format="raw", color="gray"),
        ImageOptions((Size(32, 32),), format="png", color="rgba"),
        ImageOptions((Size(32, 32),), format="png", depth=16),
    ],
    ids=lambda image: f"{image.format}-{image.color}-{image.depth}",
)
def test_every_kind_of_dataset_has_pictures(image: ImageOptions, tmp_path: Path) -> None:
    save_image(tmp_path / "raw" / "photo.png", 64, 64)
    build_dataset(tmp_path / "raw", tmp_path / "out", BuildOptions(image), SERIAL)
    before, after = card_of(ViewedDataset.of(tmp_path / "out", tmp_path / "raw"), 0, 32).pictures
    found, wanted = decoded(after.jpeg), decoded(before.jpeg)
    if image.color == "gray":
        wanted = (wanted @ (0.299, 0.587, 0.114))[:, :, np.newaxis]
    assert np.abs(found - wanted).mean() < 8


def test_what_is_transparent_is_white_and_a_depth_map_spans_all_shades() -> None:
    assert seen(np.zeros((2, 2, 4), np.uint8)).tolist() == np.full((2, 2, 3), 255).tolist()
    assert seen(np.array([[1000, 3000]], np.uint16)).tolist() == [[0, 255]]
    assert seen(np.array([[-1.5, 0.5, np.nan, np.inf]], np.float16)).tolist() == [[0, 255, 191, 191]]
    assert seen(np.zeros((2, 3), np.int64)).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("shape", [(5,), (4, 4, 7), (0, 3)])
def test_an_array_that_is_no_picture_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match=f"an array of {' x '.join(map(str, shape))} uint8"):
        seen(np.zeros(shape, np.uint8))


def test_a_mask_colours_what_is_not_background() -> None:
    picture = np.full((4, 4), 100, np.uint8)
    mask = np.zeros((8, 8), np.uint16)
    mask[:, 4:] = 300
    found = masked(picture, mask)
    assert found[:, :2].tolist() == np.full((4, 2, 3), 100).tolist()
    assert (found[:, 2:] != 100).any(axis=2).all()
    each = masked(np.zeros((1, 8, 3), np.uint8), np.arange(8, dtype=np.uint8)[np.newaxis])
    assert len({tuple(color) for color in each[0].tolist()}) == 8, "classes that follow each other differ"


def test_a_scene_has_its_mask_boxes_points_and_caption(scenes: ViewedDataset) -> None:
    card = card_of(scenes, 2, 64)
    row = scenes.row(2)
    assert [one.what for one in card.pictures] == ["source", "stored", "mask"]
    assert all(one.jpeg for one in card.pictures)
    assert [(left, top, left + width, top + height) for left, top, width, height, _ in card.marks.boxes] == [
        pytest.approx(tuple(box)) for box in row["bbox"]
    ]
    assert [name for *_, name in card.marks.boxes] == row["category"]
    assert len(card.marks.points) == 4
    assert dict(card.texts) == {"category": ", ".join(row["category"]), "caption": "<b>scene</b> 2", "score": "1.0"}


@pytest.mark.parametrize(
    ("lists", "boxes"),
    [
        (None, []),
        ("text", []),
        ([[1, 2, 3]], []),
        ([[1, 2, float("nan"), 4], [1.0, 2.0, 3.0, 5.0]], [(1, 2, 2, 3, "")]),
        ([[5, 5, 5, 9]], []),
        ([["<b>", 2, 3, 4]], []),
        ([[0, 0, 1, 1]] * 5000, [(0, 0, 1, 1, "")] * MOST_MARKS),
    ],
    ids=repr,
)
def test_boxes_are_drawn_where_they_are_boxes(lists: object, boxes: list[tuple[float, ...]]) -> None:
    assert list(marks_of({"bbox": lists}, {"boxes": ["bbox:xywh"]}).boxes) == boxes


def test_options_that_no_build_records_draw_nothing_and_points_that_are_not_visible_are_left_out() -> None:
    for options in (None, "bbox:xywh", [3], ["bbox"]):
        marks = marks_of({"bbox": [[0, 0, 1, 1]]}, {"boxes": options, "keypoints": options})
        assert (marks.boxes, marks.points) == ([], []), options
    row = {"ends": [[1.0, 2.0, 0.0, 3.0, 4.0, 2.0]]}
    assert marks_of(row, {"keypoints": ["ends:xyv"]}).points == [(3.0, 4.0)]


def with_columns(root: Path, *columns: tuple[str, pa.Array]) -> ViewedDataset:
    """A dataset with label columns that no build has made."""
    table = read_table(root)
    for name, values in columns:
        table = table.append_column(name, values)
    write_table(root, table)
    return ViewedDataset.of(root)


def test_a_column_that_is_there_twice_is_left_out_and_a_long_text_is_cut(photo: Path) -> None:
    texts, long = (pa.array([text], pa.large_string()) for text in ("a", "x" * 10_000))
    viewed = with_columns(photo, ("note", texts), ("note", texts), ("other", long))
    assert viewed.text_columns == ("path", "other")
    assert card_of(viewed, 0, 64).texts == [("other", "x" * 300 + "…")]


def test_a_date_that_python_does_not_have_is_an_error_that_names_the_sample(photo: Path) -> None:
    viewed = with_columns(photo, ("when", pa.array([2**62], pa.timestamp("s"))))
    with pytest.raises(DatasetError, match=r"sample 0 of .* is damaged: "):
        card_of(viewed, 0, 64)


def test_a_label_that_is_none_of_the_classes_is_left_out(dataset: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(dataset, tmp_path / "out"))
    change_manifest(out, lambda values: values.update(classes=[]))
    assert card_of(ViewedDataset.of(out), 0, 64).label is None
