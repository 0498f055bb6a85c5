"""Which samples a page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builds import SERIAL, SMALL
from presize.builder.run import build_dataset
from presize.errors import DatasetError, OptionError
from presize.options import SourceOptions
from presize.pages.samples import ViewedDataset
from presize.pages.selection import Filters, class_counts, matching, matching_rejects, reason_counts
from presize.sources.sample import SampleOptions, make_samples
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.fixture(scope="module")
def opened(dataset) -> ViewedDataset:
    return ViewedDataset.of(dataset)


@pytest.fixture(scope="module")
def rows(opened) -> list[dict]:
    return opened.index.to_pylist()


def test_a_label_that_is_no_class_is_one_line_whatever_labels_are(tmp_path: Path) -> None:
    make_samples(tmp_path / "raw", SampleOptions(images=4, classes=2, long_side=64))
    paths = sorted(path.relative_to(tmp_path / "raw").as_posix() for path in (tmp_path / "raw").rglob("*.jpg"))
    table = tmp_path / "labels.jsonl"
    table.write_text("".join(json.dumps({"path": path, "label": ["a", "b"]}) + "\n" for path in paths))
    build_dataset(tmp_path / "raw", tmp_path / "out", SMALL, SERIAL, SourceOptions(table))
    with pytest.raises(OptionError, match="label: the dataset has no classes, got 'a'"):
        matching(ViewedDataset.of(tmp_path / "out"), Filters(label="a"))


@given(text=TEXTS, label=TEXTS, page=st.integers(1, 10**9), sample=st.integers(-1, 10**9))
def test_a_query_string_gives_back_the_filters_that_it_was_made_of(text, label, page, sample) -> None:
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
def test_a_query_that_is_none_is_refused(query: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        Filters.parse(query)


def test_samples_are_found_by_text_in_any_case_class_and_sides_inclusive(opened, rows) -> None:
    assert matching(opened, Filters()).tolist() == list(range(56))
    wanted = [number for number, row in enumerate(rows) if "disc/00" in row["path"]]
    assert 0 < len(wanted) < 56
    assert matching(opened, Filters(text="DISC/00")).tolist() == wanted
    assert len(matching(opened, Filters(text=".*"))) == 0, "it is no regular expression"
    name = opened.manifest.classes[1]
    assert matching(opened, Filters(label=name)).tolist() == [n for n, row in enumerate(rows) if row["label"] == 1]
    sides = [min(row["source_height"], row["source_width"]) for row in rows]
    low, high = sorted(sides)[10], sorted(sides)[40]
    found = matching(opened, Filters(min_side=low, max_side=high)).tolist()
    assert found == [number for number, side in enumerate(sides) if low <= side <= high]


@pytest.mark.parametrize("filters", [Filters(label="no such"), Filters(split="train"), Filters(sample=56)])
def test_what_is_not_there_is_named(opened, filters: Filters) -> None:
    with pytest.raises(OptionError, match=r"no such|the dataset has no splits|below 56, got 56"):
        matching(opened, filters)


def test_class_counts_are_those_of_the_index(opened, rows) -> None:
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


def test_a_url_and_a_raw_folder_that_is_none_are_refused(dataset) -> None:
    with pytest.raises(DatasetError, match="presize fetch s3://b/OUT DIR"):
        ViewedDataset.of("s3://b/OUT")
    with pytest.raises(OptionError, match=r"raw: '/nowhere' is not a folder"):
        ViewedDataset.of(dataset, "/nowhere")
