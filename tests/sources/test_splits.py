"""Splits: by folder, and by shares of a hash that other files have no say in."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listings import facts, make
from presize.errors import OptionError, PresizeWarning, SourceError
from presize.options import SourceOptions, parse_shares
from presize.sources.scan import Source, scan
from presize.sources.splits import draw_splits, folder_at


def by_path(source: Source) -> dict[str, str]:
    return dict(zip(source.table["path"].to_pylist(), source.table["split"].to_pylist(), strict=True))


def drawn(paths: list[str], text: str = "train=0.9,val=0.1", seed: int = 0) -> dict[str, str]:
    splits = draw_splits(pa.chunked_array([pa.array(paths, pa.large_string())]), parse_shares(text), seed)
    return dict(zip(paths, splits.to_pylist(), strict=True))


PATHS = [f"{name}/{i}.jpg" for name in ("ant", "bee") for i in range(4000)]


# By shares


def test_shares_are_about_kept_in_each_class() -> None:
    found = drawn(PATHS, "train=0.8,val=0.15,test=0.05")
    for name in ("ant", "bee"):
        counts = Counter(split for path, split in found.items() if path.startswith(name))
        assert counts["train"] == pytest.approx(3200, abs=130)
        assert counts["val"] == pytest.approx(600, abs=115)
        assert counts["test"] == pytest.approx(200, abs=70)


@given(some=st.sets(st.sampled_from(PATHS[:300])), seed=st.integers(0, 2**63 - 1))
def test_other_paths_have_no_say(some: set[str], seed: int) -> None:
    whole = drawn(PATHS[:300], seed=seed)
    assert drawn(sorted(some), seed=seed) == {path: whole[path] for path in some}


def test_a_larger_share_moves_samples_into_it_and_none_out_of_it() -> None:
    small, large = (drawn(PATHS, f"train={share},val={1 - share:.1f}") for share in (0.5, 0.9))
    assert {path for path in PATHS if small[path] == "train"} < {path for path in PATHS if large[path] == "train"}


def test_a_seed_is_another_draw() -> None:
    found = [drawn(PATHS, "a=0.5,b=0.5", seed) for seed in (0, 1)]
    alike = sum(found[0][path] == found[1][path] for path in PATHS)
    assert alike == pytest.approx(4000, abs=270)


def test_a_draw_is_the_same_on_every_machine() -> None:
    found = drawn([f"{i}.jpg" for i in range(12)], "a=0.5,b=0.5", seed=7)
    assert "".join(found.values()) == "baabbbbaaaab"


def test_a_draw_does_not_depend_on_how_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn(PATHS[:10])
    monkeypatch.setattr("presize.sources.columns.ROWS_AT_ONCE", 3)
    assert drawn(PATHS[:10]) == whole


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("train=0.9,val=0.1", {"train": "9/10", "val": "1/10"}),
        (" train = .5 , val = 0.5 ", {"train": "1/2", "val": "1/2"}),
        ("a b=0.333,c=0.333,d=0.334", {"a b": "333/1000", "c": "333/1000", "d": "167/500"}),
        ("all=1", {"all": "1"}),
    ],
)
def test_shares_are_exact(text: str, shares: dict[str, str]) -> None:
    assert {name: str(share) for name, share in parse_shares(text).items()} == shares


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected folders, or names and shares, such as train=0.9,val=0.1, got ''"),
        ("folder", "got 'folder'"),
        ("train", "got 'train'"),
        ("train=0.9,val", "got 'train=0.9,val'"),
        ("train=0.9,", "got 'train=0.9,'"),
        ("=0.9,val=0.1", "got '=0.9"),
        ("train=90%,val=10%", "got 'train=90%,val=10%'"),
        ("train=-0.5,val=1.5", "got 'train=-0.5"),
        ("train=1,val=0", "got 'train=1,val=0'"),
        ("train=0.5,train=0.5", "got 'train=0.5,train=0.5'"),
        ("train=0.9,val=0.2", "the shares in 'train=0.9,val=0.2' add up to 1.1, expected 1"),
        ("train=9,val=1", "add up to 10, expected 1"),
    ],
)
def test_what_is_no_split_is_refused(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=r"^split: ") as caught:
        SourceOptions(split=text)
    assert said in str(caught.value)


def test_class_folders_are_split_by_shares(tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{i}.jpg" for name in "ab" for i in range(40)))
    source = scan(tmp_path, SourceOptions(split="train=0.5,val=0.5"))
    assert source.classes == ("a", "b")
    assert source.table.column_names == ["path", "source_nbytes", "source_mtime_ns", "label", "split"]
    assert source.table.schema.field("split").type == pa.large_string()
    assert by_path(source) == drawn(list(by_path(source)), "train=0.5,val=0.5")


def test_added_files_move_no_other_sample(tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{i}.jpg" for name in "bc" for i in range(30)))
    before = by_path(scan(tmp_path, SourceOptions(split="train=0.7,val=0.3", split_seed=3)))
    make(tmp_path, *(f"{name}/new {i}.jpg" for name in "abcd" for i in range(30)))
    after = by_path(scan(tmp_path, SourceOptions(split="train=0.7,val=0.3", split_seed=3)))
    assert len(after) == 180 and before.items() <= after.items()


def test_a_split_without_samples_gets_a_warning(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg")
    with pytest.warns(PresizeWarning, match="no sample is in val, of 1 in all") as caught:
        scan(tmp_path, SourceOptions(split="train=0.999999999999,val=0.000000000001"))
    assert caught[0].filename == __file__


def test_a_table_with_a_column_of_splits_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "raw", "1.jpg")
    (tmp_path / "t.csv").write_text("path,split\n1.jpg,train\n")
    assert by_path(scan(tmp_path / "raw", SourceOptions(tmp_path / "t.csv"))) == {"1.jpg": "train"}
    with pytest.raises(SourceError, match="have a column 'split' already; leave out --split"):
        scan(tmp_path / "raw", SourceOptions(tmp_path / "t.csv", split="train=0.5,val=0.5"))


# By folders


def folders(root: Path, **options: Any) -> Source:
    return scan(root, SourceOptions(split="folders", **options))


def split(source: Source) -> list[str]:
    return source.table["split"].to_pylist()


LACKS = "different classes; .*: val lacks 2 classes, such as 'ant'$"
BESIDE = "folders in them its classes; 3 images beside them belong to none"
NO_CLASSES = r"its 2 splits \(train, val\) hold no class folders, .*leave out --split, .*add --labels none"
NO_LABELS: dict[str, Any] = {"classes": None, "labels": None}
FOLDERS: dict[str, tuple[list[str], dict[str, Any], str | None, list[str], dict[str, Any]]] = {
    "splits have one class list": (
        ["val/bee/1.jpg", "train/bee/2.jpg", "train/ant/x/3.jpg", "val/ant/4.jpg"], {}, None,
        ["train", "train", "val", "val"],
        {"paths": ["train/ant/x/3.jpg", "train/bee/2.jpg", "val/ant/4.jpg", "val/bee/1.jpg"], "labels": [0, 1, 0, 1],
         "classes": ("ant", "bee"), "by_folder": False},
    ),
    "a class that a split lacks is numbered": (
        ["train/ant/1.jpg", "train/bee/1.jpg", "train/cow/1.jpg", "val/bee/1.jpg"], {}, LACKS,
        ["train", "train", "train", "val"], {"classes": ("ant", "bee", "cow"), "labels": [0, 1, 2, 1]},
    ),
    "a class list numbers those of all splits": (
        ["train/ant/1.jpg", "train/bee/1.jpg", "val/bee/1.jpg", "val/ant/1.jpg"], {"classes": ["bee", "cow", "ant"]},
        None, ["train", "train", "val", "val"], {"labels": [2, 0, 2, 0]},
    ),
    "images beside the classes are counted": (
        ["0.jpg", "test/1.jpg", "test/2.jpg", "train/ant/1.jpg", "train/notes.txt"], {}, BESIDE,
        ["train"], {"paths": ["train/ant/1.jpg"], "outside": 4},
    ),
    "splits without classes have no labels": (
        ["notes.txt", "val/2.jpg", "train/1.jpg"], {}, NO_CLASSES,
        ["train", "val"], {"paths": ["train/1.jpg", "val/2.jpg"], "outside": 1, **NO_LABELS},
    ),
    "without labels all of a split is taken": (
        ["notes.txt", "val/2.jpg", "train/1.jpg", "train/a/b/3.jpg"], {"labels": "none"}, None,
        ["train", "train", "val"],
        {"paths": ["train/1.jpg", "train/a/b/3.jpg", "val/2.jpg"], "outside": 1, **NO_LABELS},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "options", "said", "splits", "expected"), FOLDERS.values(), ids=FOLDERS)
def test_folders_are_splits_and_folders_in_them_classes(
    files: list[str], options: dict[str, Any], said: str | None, splits: list[str], expected: dict[str, Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.warns(PresizeWarning, match=said) if said else nullcontext() as caught:
        source = folders(make(tmp_path, *files), **options)
    assert split(source) == splits
    assert facts(source, *expected) == expected
    assert caught is None or caught[0].filename == __file__


def test_each_split_has_the_order_of_its_own_folder(tmp_path: Path) -> None:
    names = ("b/2", "b/1/x", "b/1-", "a/9", "a/10", "c/é")
    make(tmp_path, *(f"{split}/{name}.jpg" for split in ("train", "test") for name in names))
    source = folders(tmp_path)
    for split in ("train", "test"):
        own = [f"{split}/{path}" for path in scan(tmp_path / split).table["path"].to_pylist()]
        assert [path for path, its in by_path(source).items() if its == split] == own


def test_a_table_is_split_by_the_folders_in_its_paths(tmp_path: Path) -> None:
    make(tmp_path / "raw", "b/x/1.jpg", "a/2.jpg", "3.jpg")
    (tmp_path / "t.csv").write_text("path,n\nb/x/1.jpg,1\na/2.jpg,2\n")
    assert split(folders(tmp_path / "raw", labels=tmp_path / "t.csv")) == ["b", "a"]
    (tmp_path / "t.csv").write_text("path,n\nb/x/1.jpg,1\n3.jpg,2\n")
    with pytest.raises(SourceError, match=r"1 of 2 paths lie in no folder of the source, the first is '3\.jpg'"):
        folders(tmp_path / "raw", labels=tmp_path / "t.csv")


def test_a_source_without_folders_has_no_splits_and_one_with_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"--split folders: source .* has no folders; expected one for each split"):
        folders(make(tmp_path / "flat", "1.jpg"))
    with pytest.raises(SourceError, match=r"class folder 'bee' \(1 such\) is not in the class list of 1 names"):
        folders(make(tmp_path / "raw", "train/ant/1.jpg", "train/bee/1.jpg"), classes=["ant"])


@given(path=st.lists(st.text(st.sampled_from("ab.\n é"), min_size=1), min_size=1, max_size=4), depth=st.integers(0, 3))
def test_the_folder_at_a_depth_is_that_part_of_the_path(path: list[str], depth: int) -> None:
    (found,) = folder_at(pa.chunked_array([pa.array(["/".join(path)], pa.large_string())]), depth).to_pylist()
    assert found == (path[depth] if depth < len(path) - 1 else None)
