"""Pages of a dataset: their content, the number of samples that they read, and hostile names."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from annotated import build_scenes
from builds import SERIAL, SMALL
from pages import HOSTILE, parsed
from pictures import save_image
from presize.builder.run import build_dataset
from presize.errors import DatasetError, ImageError, OptionError
from presize.options import BuildOptions, ImageOptions, Size, SourceOptions
from presize.pages.gallery import SAMPLES, Pager, gallery_page, view_dataset
from presize.pages.samples import MOST_MARKS, ViewedDataset, card_of, marks_of, masked, seen
from presize.pages.selection import Filters, class_counts, matching, matching_rejects, reason_counts
from presize.sources.sample import SampleOptions, make_samples
from presize.store.dataset import Dataset
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects
from tampering import change_manifest, read_table, repeat_samples, with_column, write_table


@pytest.fixture(scope="module")
def opened(dataset: Path) -> ViewedDataset:
    return ViewedDataset.of(dataset)


def test_a_page_shows_the_samples_that_match(opened: ViewedDataset) -> None:
    page = gallery_page(opened, Filters(label=opened.manifest.classes[0]))
    paths = [row["path"] for row in opened.index.to_pylist()]
    assert [path in page for path in paths] == [path.startswith("0-") for path in paths]


def test_a_page_decodes_only_its_own_samples(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = shutil.copytree(dataset, tmp_path / "out")
    repeat_samples(out, 100)
    opened = ViewedDataset.of(out)
    read: list[int] = []
    pixels = Dataset.pixels
    monkeypatch.setattr(Dataset, "pixels", lambda self, samples: read.extend(samples) or pixels(self, samples))
    page = gallery_page(opened, Filters(page=3))
    assert sorted(read) == list(range(2 * SAMPLES, 3 * SAMPLES))
    assert "121 to 180 of 5,600" in page


@pytest.mark.parametrize(
    ("total", "page", "first", "last"), [(0, 1, 1, 0), (5, 1, 1, 3), (5, 2, 4, 5), (5, 99, 4, 5), (6, 2, 4, 6)]
)
def test_pages_follow_each_other_without_gaps(total: int, page: int, first: int, last: int) -> None:
    pager = Pager.of(total, 3, page)
    assert (pager.first, pager.last, pager.total) == (first, last, total)


def test_many_classes_have_a_text_field(opened: ViewedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(gallery_page(opened, Filters())).tags["option"] == 1 + 3
    monkeypatch.setattr("presize.pages.gallery.MOST_CHOICES", 2)
    found = parsed(gallery_page(opened, Filters(label="0-red-disc")))
    assert found.tags["option"] == 0
    assert ("placeholder", "all classes") in found.attributes


def test_splits_can_be_chosen_by_name(raw: Path, tmp_path: Path) -> None:
    photos = [path.relative_to(raw).as_posix() for path in sorted(raw.glob("0-*/*.jpg"))[:3]]
    table = zip(photos, ("train", "val", "train"), strict=True)
    (tmp_path / "table.csv").write_text("path,split\n" + "".join(f"{path},{split}\n" for path, split in table))
    build_dataset(raw, tmp_path / "out", SMALL, SERIAL, SourceOptions(tmp_path / "table.csv"))
    page = gallery_page(ViewedDataset.of(tmp_path / "out"), Filters(split="train"))
    assert [path in page for path in photos] == [True, False, True]
    assert "val (1)" in page


def test_a_page_without_matches_says_so(opened: ViewedDataset) -> None:
    none = Filters(text="no such")
    for page in (gallery_page(opened, none), view_dataset(opened.root, filters=none)):
        assert "Nothing matches." in page
        assert parsed(page).tags["img"] == 0


@pytest.mark.parametrize(("reason", "count"), [("", 4), ("the file is empty", 1)])
def test_rejects_are_listed_with_their_reasons_on_a_page(reason: str, count: int, opened: ViewedDataset) -> None:
    page = gallery_page(opened, Filters(show="rejects", reason=reason))
    assert parsed(page).tags["tr"] == 1 + count
    assert "the file is empty" in page


def test_a_sample_has_a_page_with_all_of_its_columns(raw: Path, tmp_path: Path) -> None:
    photos = sorted(raw.glob("0-*/*.jpg"))[:3]
    opened = ViewedDataset.of(build_scenes(photos, tmp_path), tmp_path / "SCENES")
    page = gallery_page(opened, Filters(sample=2))
    found = parsed(page)
    assert (found.tags["img"], found.tags["rect"], found.tags["circle"]) == (3, 2, 4)
    assert "&lt;b&gt;scene&lt;/b&gt; 2" in page
    assert 'href="?"' in page, "there is a way back"


def test_a_standalone_page_has_no_links_and_spreads_its_samples(opened: ViewedDataset) -> None:
    found = parsed(view_dataset(opened.root, images=3))
    assert (found.tags["a"], found.tags["form"], found.tags["img"]) == (0, 0, 3)
    alts = [value for name, value in found.attributes if name == "alt"]
    assert alts == [f"stored: {opened.row(sample)['path']}" for sample in (0, 28, 55)]
    assert view_dataset(opened.root, images=3) == view_dataset(opened.root, images=3)


def test_hostile_names_and_filters_are_text_and_nothing_is_requested_from_elsewhere(tmp_path: Path) -> None:
    for name in HOSTILE:
        place = tmp_path / "raw" / "<img src=x>" / name.removesuffix(".jpg").replace("/", "_")
        save_image(place, 40, 40, format="JPEG")
        (tmp_path / "raw" / "<img src=x>" / f"{place.name}.jpg").write_bytes(b"")
    build_dataset(tmp_path / "raw", tmp_path / "<i>out", SMALL, SERIAL)
    opened = ViewedDataset.of(tmp_path / "<i>out")
    plain = Filters(text="'><script>alert(1)</script>")
    for filters in (Filters(), plain, Filters(show="rejects"), Filters(show="rejects", text=plain.text)):
        found = parsed(gallery_page(opened, filters))
        assert (found.tags["script"], found.tags["i"]) == (0, 0)
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        links = [value or "?" for name, value in found.attributes if name in ("src", "href", "action")]
        assert [link for link in links if not link.startswith(("?", "data:image/jpeg;base64,"))] == []
        assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in dict(found.attributes).values()
    assert parsed(gallery_page(opened, Filters())).tags["img"] == len(HOSTILE)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.fixture(scope="module")
def rows(opened) -> list[dict]:
    return opened.index.to_pylist()


def test_an_unknown_class_is_a_one_line_error_for_any_labels(tmp_path: Path) -> None:
    make_samples(tmp_path / "raw", SampleOptions(images=4, classes=2, long_side=64))
    paths = sorted(path.relative_to(tmp_path / "raw").as_posix() for path in (tmp_path / "raw").rglob("*.jpg"))
    table = tmp_path / "labels.jsonl"
    table.write_text("".join(json.dumps({"path": path, "label": ["a", "b"]}) + "\n" for path in paths))
    build_dataset(tmp_path / "raw", tmp_path / "out", SMALL, SERIAL, SourceOptions(table))
    with pytest.raises(OptionError, match="label: the dataset has no classes, got 'a'"):
        matching(ViewedDataset.of(tmp_path / "out"), Filters(label="a"))


@given(text=TEXTS, label=TEXTS, page=st.integers(1, 10**9), sample=st.integers(-1, 10**9))
def test_a_query_string_round_trips(text, label, page, sample) -> None:
    filters = Filters(text=text, label=label, page=page, sample=sample)
    assert Filters.parse(filters.query()[1:]) == filters
    assert Filters.parse("text=&label=&min_side=&max_side=") == Filters(), "a form sends empty fields"


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("page=0", "page: expected at least 1"),
        ("page=two", "page: expected a whole number"),
        ("min_side=1e9", "min_side: expected a whole number"),
        ("page=" + "9" * 5000, "page: expected a whole number"),
        ("page=1&page=2", "at most once"),
        ("path=/etc/passwd", "at most once, got 'path'"),
        ("show=all", "show: expected one of stored, rejects"),
        ("text=%ff", "in UTF-8"),
        ("&".join("text=x" for _ in range(1000)), "expected NAME=VALUE"),
    ],
)
def test_an_invalid_query_is_refused(query: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        Filters.parse(query)


def test_samples_are_found_by_text_in_any_case_class_and_sides_inclusive(opened, rows) -> None:
    assert matching(opened, Filters()).tolist() == list(range(56))
    wanted = [number for number, row in enumerate(rows) if "disc/00" in row["path"]]
    assert 0 < len(wanted) < 56
    assert matching(opened, Filters(text="DISC/00")).tolist() == wanted
    assert len(matching(opened, Filters(text=".*"))) == 0, "it is not a regular expression"
    name = opened.manifest.classes[1]
    assert matching(opened, Filters(label=name)).tolist() == [n for n, row in enumerate(rows) if row["label"] == 1]
    sides = [min(row["source_height"], row["source_width"]) for row in rows]
    low, high = sorted(sides)[10], sorted(sides)[40]
    found = matching(opened, Filters(min_side=low, max_side=high)).tolist()
    assert found == [number for number, side in enumerate(sides) if low <= side <= high]


@pytest.mark.parametrize("filters", [Filters(label="no such"), Filters(split="train"), Filters(sample=56)])
def test_unknown_filters_are_named(opened, filters: Filters) -> None:
    with pytest.raises(OptionError, match=r"no such|the dataset has no splits|below 56, got 56"):
        matching(opened, filters)


@pytest.mark.parametrize("filters", [{"label": "0-red-disc"}, {"split": "train"}, {"min_side": 5}, {"max_side": 5}])
def test_filters_of_stored_images_are_refused_for_rejects(opened, filters: dict[str, str | int]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(filters))}: files that were not stored have none"):
        matching(opened, Filters(show="rejects", **filters))


def test_class_counts_equal_those_of_the_index(opened, rows) -> None:
    counts = [sum(row["label"] == number for row in rows) for number in range(3)]
    assert class_counts(opened) == list(zip(opened.manifest.classes, counts, strict=True))


REJECTS = Rejects.of(
    [Reject("a/b.jpg", "ImageError", "cut"), Reject("c.png", "ImageError", "empty"), Reject("D.jpg", "X", "cut")]
)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(), [0, 1, 2]),
        (Filters(reason="cut"), [0, 2]),
        (Filters(text="d.JPG"), [2]),
        (Filters(text="EMP"), [1]),
        (Filters(text="b.jpg", reason="empty"), []),
    ],
)
def test_rejects_are_found_by_path_and_reason(filters: Filters, found: list[int]) -> None:
    assert matching_rejects(REJECTS, filters).tolist() == found


def test_the_most_frequent_reasons_come_first() -> None:
    assert reason_counts(REJECTS, 9) == [("cut", 2), ("empty", 1)]
    assert reason_counts(REJECTS, 1) == [("cut", 2)]
    assert reason_counts(Rejects(), 9) == []


def test_a_url_and_an_invalid_raw_folder_are_refused(dataset) -> None:
    with pytest.raises(DatasetError, match="presize fetch s3://b/OUT DIR"):
        ViewedDataset.of("s3://b/OUT")
    with pytest.raises(OptionError, match=r"raw: '/nowhere' is not a folder"):
        ViewedDataset.of(dataset, "/nowhere")


def decoded(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), np.float64)


@pytest.fixture(scope="module")
def scenes(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> ViewedDataset:
    folder = tmp_path_factory.mktemp("scenes")
    photos = sorted((raw / sorted(os.listdir(raw))[0]).glob("*.jpg"))[:3]
    return ViewedDataset.of(build_scenes(photos, folder), folder / "SCENES")


def test_the_source_is_shown_before_the_stored_image(dataset: Path, raw: Path) -> None:
    card = card_of(ViewedDataset.of(dataset, raw), 5, 64)
    assert [one.what for one in card.pictures] == ["source", "stored"]
    before, after = (decoded(one.jpeg) for one in card.pictures)
    assert before.shape == after.shape
    assert np.abs(before - after).mean() < 12, "they are the same image"


def test_a_missing_source_is_reported_in_its_place_and_without_a_raw_folder_there_is_none(
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
    """Build a dataset in ``out`` of the one photograph in ``raw``."""
    save_image(tmp_path / "raw" / "photo.jpg", 40, 40)
    build_dataset(tmp_path / "raw", tmp_path / "out", SMALL, SERIAL)
    return tmp_path / "out"


@pytest.mark.parametrize("path", ["../secret.jpg", "/etc/hostname", "a/../../secret.jpg"])
def test_a_path_in_the_index_never_leads_out_of_the_raw_folder(path: str, photo: Path, tmp_path: Path) -> None:
    save_image(tmp_path / "secret.jpg")
    column_changed(photo, "path", [path])
    before, _ = card_of(ViewedDataset.of(photo, tmp_path / "raw"), 0, 64).pictures
    assert before[1:] == (b"", "its path leads out of the folder")


def test_a_named_pipe_in_the_raw_folder_does_not_block(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "raw" / "photo.jpg").unlink()
    os.mkfifo(tmp_path / "raw" / "photo.jpg")
    opened = ViewedDataset.of(photo, tmp_path / "raw")
    assert card_of(opened, 0, 64).pictures[0].problem == "it is not a regular file"


def test_a_damaged_record_is_reported_in_its_place(photo: Path) -> None:
    column_changed(photo, "crc32", [1])
    (picture,) = card_of(ViewedDataset.of(photo), 0, 64).pictures
    assert picture.jpeg == b""
    assert "CRC-32 differs" in picture.problem


def test_a_folder_dataset_shows_the_same_as_shards_and_none_of_its_files_is_outside(
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


def test_a_grey_image_of_16_bits_keeps_its_brightness(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    Image.fromarray(np.full((64, 64), 200 * 257, np.uint16)).save(tmp_path / "raw" / "grey.png")
    image = ImageOptions((Size(32, 32),), format="png", color="gray", depth=16)
    build_dataset(tmp_path / "raw", tmp_path / "out", BuildOptions(image), SERIAL)
    before, after = card_of(ViewedDataset.of(tmp_path / "out", tmp_path / "raw"), 0, 32).pictures
    assert decoded(before.jpeg).mean().round() == decoded(after.jpeg).mean().round() == 200


def test_transparent_areas_are_white_and_a_depth_map_uses_all_shades() -> None:
    assert seen(np.zeros((2, 2, 4), np.uint8)).tolist() == np.full((2, 2, 3), 255).tolist()
    assert seen(np.array([[1000, 3000]], np.uint16)).tolist() == [[0, 255]]
    assert seen(np.array([[-1.5, 0.5, np.nan, np.inf]], np.float16)).tolist() == [[0, 255, 191, 191]]
    assert seen(np.zeros((2, 3), np.int64)).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("shape", [(5,), (4, 4, 7), (0, 3)])
def test_an_array_that_is_not_a_picture_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match=f"an array of {' x '.join(map(str, shape))} uint8"):
        seen(np.zeros(shape, np.uint8))


def test_a_mask_colours_everything_but_the_background() -> None:
    picture = np.full((4, 4), 100, np.uint8)
    mask = np.zeros((8, 8), np.uint16)
    mask[:, 4:] = 300
    found = masked(picture, mask)
    assert found[:, :2].tolist() == np.full((4, 2, 3), 100).tolist()
    assert (found[:, 2:] != 100).any(axis=2).all()
    each = masked(np.zeros((1, 8, 3), np.uint8), np.arange(8, dtype=np.uint8)[np.newaxis])
    assert len({tuple(color) for color in each[0].tolist()}) == 8, "consecutive classes differ"


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
def test_only_valid_boxes_are_drawn(lists: object, boxes: list[tuple[float, ...]]) -> None:
    assert list(marks_of({"bbox": lists}, {"boxes": ["bbox:xywh"]}).boxes) == boxes


def test_unknown_options_draw_nothing_and_invisible_points_are_skipped() -> None:
    for options in (None, "bbox:xywh", [3], ["bbox"]):
        marks = marks_of({"bbox": [[0, 0, 1, 1]]}, {"boxes": options, "keypoints": options})
        assert (marks.boxes, marks.points) == ([], []), options
    row = {"ends": [[1.0, 2.0, 0.0, 3.0, 4.0, 2.0]]}
    assert marks_of(row, {"keypoints": ["ends:xyv"]}).points == [(3.0, 4.0)]


def with_columns(root: Path, *columns: tuple[str, pa.Array]) -> ViewedDataset:
    """Return a dataset with label columns that no build makes."""
    table = read_table(root)
    for name, values in columns:
        table = table.append_column(name, values)
    write_table(root, table)
    return ViewedDataset.of(root)


def test_a_duplicate_column_is_skipped_and_a_long_text_is_truncated(photo: Path) -> None:
    texts, long = (pa.array([text], pa.large_string()) for text in ("a", "x" * 10_000))
    viewed = with_columns(photo, ("note", texts), ("note", texts), ("other", long))
    assert viewed.text_columns == ("path", "other")
    assert card_of(viewed, 0, 64).texts == [("other", "x" * 300 + "…")]


def test_a_date_that_python_cannot_represent_is_an_error_that_names_the_sample(photo: Path) -> None:
    viewed = with_columns(photo, ("when", pa.array([2**62], pa.timestamp("s"))))
    with pytest.raises(DatasetError, match=r"sample 0 of .* is damaged: "):
        card_of(viewed, 0, 64)


def test_an_invalid_label_is_skipped(dataset: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(dataset, tmp_path / "out"))
    change_manifest(out, lambda values: values.update(classes=[]))
    assert card_of(ViewedDataset.of(out), 0, 64).label is None
