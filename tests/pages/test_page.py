"""Pages of a dataset: what stands in them, how many samples they read, and what hostile names do to them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from annotated import build_scenes
from builds import SERIAL, SMALL
from pages import HOSTILE, parsed
from pictures import save_image
from presize.builder.run import build_dataset
from presize.options import SourceOptions
from presize.pages.gallery import SAMPLES, Pager, gallery_page, view_dataset
from presize.pages.samples import ViewedDataset
from presize.pages.selection import Filters
from presize.store.dataset import Dataset
from tampering import repeat_samples


@pytest.fixture(scope="module")
def opened(dataset: Path) -> ViewedDataset:
    return ViewedDataset.of(dataset)


def test_a_page_shows_the_samples_that_match(opened: ViewedDataset) -> None:
    page = gallery_page(opened, Filters(label=opened.manifest.classes[0]))
    paths = [row["path"] for row in opened.index.to_pylist()]
    assert [path in page for path in paths] == [path.startswith("0-") for path in paths]


def test_a_page_decodes_its_own_samples_alone(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_names_of_many_classes_are_typed(opened: ViewedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(gallery_page(opened, Filters())).tags["option"] == 1 + 3
    monkeypatch.setattr("presize.pages.gallery.MOST_CHOICES", 2)
    found = parsed(gallery_page(opened, Filters(label="0-red-disc")))
    assert found.tags["option"] == 0
    assert ("placeholder", "all classes") in found.attributes


def test_splits_are_chosen_by_name(raw: Path, tmp_path: Path) -> None:
    photos = [path.relative_to(raw).as_posix() for path in sorted(raw.glob("0-*/*.jpg"))[:3]]
    table = zip(photos, ("train", "val", "train"), strict=True)
    (tmp_path / "table.csv").write_text("path,split\n" + "".join(f"{path},{split}\n" for path, split in table))
    build_dataset(raw, tmp_path / "out", SMALL, SERIAL, SourceOptions(tmp_path / "table.csv"))
    page = gallery_page(ViewedDataset.of(tmp_path / "out"), Filters(split="train"))
    assert [path in page for path in photos] == [True, False, True]
    assert "val (1)" in page


def test_where_nothing_matches_the_page_says_so(opened: ViewedDataset) -> None:
    for page in (gallery_page(opened, Filters(text="no such")), view_dataset(opened.root, filters=Filters(text="no such"))):
        assert "Nothing matches." in page
        assert parsed(page).tags["img"] == 0


@pytest.mark.parametrize(("reason", "count"), [("", 4), ("the file is empty", 1)])
def test_rejects_stand_with_their_reasons(reason: str, count: int, opened: ViewedDataset) -> None:
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


def test_a_page_of_its_own_has_no_links_and_spreads_its_samples(opened: ViewedDataset) -> None:
    found = parsed(view_dataset(opened.root, images=3))
    assert (found.tags["a"], found.tags["form"], found.tags["img"]) == (0, 0, 3)
    alts = [value for name, value in found.attributes if name == "alt"]
    assert alts == [f"stored: {opened.row(sample)['path']}" for sample in (0, 28, 55)]
    assert view_dataset(opened.root, images=3) == view_dataset(opened.root, images=3)


def test_hostile_names_and_filters_are_texts_and_nothing_is_asked_for_from_elsewhere(tmp_path: Path) -> None:
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
