"""Which files are the companions of which samples, and which samples have none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listings import paths, rejected

from presize.errors import OptionError, SourceError
from presize.options import Companion, SourceOptions
from presize.sources.companions import add_companions, companion_paths, companions_of
from presize.sources.scan import Source, scan
from presize.store.rejects import UNREADABLE, Reject
from trees import write_tree

MASK = Companion("mask", "masks/{stem}.png")


def found(root: Path, *companions: Companion, **options: bool) -> Source:
    return add_companions(scan(root), companions, **options)


# Patterns


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("masks/{stem}.png", "masks/1.tar.png"),
        ("masks/{name}", "masks/1.tar.gz"),
        ("masks/{dir}/{stem}.png", "masks/a/b/1.tar.png"),
        ("{dir}/{stem}_mask.png", "a/b/1.tar_mask.png"),
        ("{{{stem}}}/x", "{1.tar}/x"),
        ("same.png", "same.png"),
    ],
)
def test_a_pattern_names_the_companion_of_a_path(pattern: str, path: str) -> None:
    table = pa.table({"path": pa.array(["a/b/1.tar.gz"], pa.large_string())})
    assert companion_paths(Companion("mask", pattern), table).to_pylist() == [path]


@given(
    images=st.lists(
        st.lists(st.text("ab.é\n ", min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=5
    ),
    pattern=st.lists(st.sampled_from(["{stem}", "{dir}", "{name}", "x", "/y/", "{{", "}}"]), min_size=1, max_size=4),
)
def test_a_pattern_is_filled_as_format_fills_it(images: list[list[str]], pattern: list[str]) -> None:
    text = "p/" + "".join(pattern)
    written = ["/".join(parts) for parts in images]
    table = pa.table({"path": pa.array(written, pa.large_string())})
    expected = []
    for path in written:
        folder, _, name = path.rpartition("/")
        stem, dot, _ = name.rpartition(".")
        filled = text.format(stem=stem if dot and stem else name, dir=folder, name=name)
        while "//" in filled:
            filled = filled.replace("//", "/")
        expected.append(filled)
    assert companion_paths(Companion("mask", text), table).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mask", r"expected NAME=PATTERN, such as mask=masks/\{stem\}\.png, got 'mask'"),
        ("1=x", "expected a name of at most 32 letters, digits and _, got '1'"),
        ("source=x", "'source' would have columns that the index has already"),
        ("mask=", "pair: expected a path from the source for mask, got ''"),
        ("mask=/etc/{stem}", "pair: expected a path from the source for mask, got '/etc/"),
        ("mask=../{stem}", "pair: expected a path from the source for mask, got"),
        ("mask={file}", r"\{file\} in '\{file\}' is none of \{stem\}, \{dir\} and \{name\}"),
        ("mask={stem", r"\{ in '\{stem' is none of"),
    ],
)
def test_what_is_no_pair_is_refused(text: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        Companion.parse(text)


def test_a_pair_is_a_pattern_or_a_column() -> None:
    assert Companion.parse("mask=column:seg") == Companion("mask", column="seg")
    assert Companion.parse("mask=a=b/{stem}") == Companion("mask", "a=b/{stem}")
    with pytest.raises(OptionError, match="got both"):
        Companion("mask", "x", "y")


def test_formats_and_filters_are_of_one_pair_or_of_all() -> None:
    both = ["mask=masks/{stem}.png", "view=views/{name}"]
    mask, view = companions_of(both, ["raw", "view=jpeg"], ["view=bicubic"])
    assert (mask.format, mask.filter) == ("raw", "nearest")
    assert (view.format, view.filter) == ("jpeg", "bicubic")
    with pytest.raises(OptionError, match="pair_format: 'depth=png' is of no --pair; there are mask, view"):
        companions_of(both, ["depth=png"], [])
    with pytest.raises(OptionError, match="pair_filter: 'box' is of no --pair; there are none"):
        companions_of([], [], ["box"])


def test_lossy_formats_do_not_keep_values() -> None:
    with pytest.raises(OptionError, match="pair_format: jpeg changes the values of pixels, which nearest keeps"):
        companions_of(["mask=x"], ["jpeg"], [])


# Samples


def test_files_that_are_companions_are_no_samples(tmp_path: Path) -> None:
    write_tree(tmp_path / "raw", {"1.jpg": "", "1_mask.png": "", "2.jpg": "", "2_mask.png": ""})
    source = found(tmp_path / "raw", Companion("mask", "{stem}_mask.png"))
    assert paths(source) == ["1.jpg", "2.jpg"]
    assert source.table.column("mask_source_nbytes").to_pylist() == [0, 0]
    assert rejected(source) == {}


def test_what_a_column_names_may_be_a_sample_itself(tmp_path: Path) -> None:
    write_tree(tmp_path / "raw", {"1.jpg": "", "2.jpg": "22", "3.jpg": "333"})
    write_tree(tmp_path, {"table.csv": "path,next\n1.jpg,2.jpg\n2.jpg,3.jpg\n3.jpg,3.jpg\n"})
    frames = scan(tmp_path / "raw", SourceOptions(tmp_path / "table.csv"))
    source = add_companions(frames, [Companion("after", column="next")])
    assert paths(source) == ["1.jpg", "2.jpg", "3.jpg"]
    assert source.table.column("after_source_nbytes").to_pylist() == [2, 3, 3]


def test_a_folder_of_companions_is_no_class(tmp_path: Path) -> None:
    names = ["cats/1.jpg", "masks/1.png", "masks/2.png", "masks/unused.png", "zebras/2.jpg"]
    write_tree(tmp_path / "raw", dict.fromkeys(names, ""))
    source = found(tmp_path / "raw", MASK)
    assert source.classes == ("cats", "zebras")
    assert paths(source) == ["cats/1.jpg", "zebras/2.jpg"]
    assert source.table.column("label").to_pylist() == [0, 1]


def test_samples_without_a_companion_are_rejected_and_files_that_are_no_images_skipped(tmp_path: Path) -> None:
    write_tree(tmp_path / "raw", {"a/1.jpg": "", "a/2.jpg": "", "a/notes.txt": "", "masks/1.png": ""})
    source = found(tmp_path / "raw", MASK)
    assert paths(source) == ["a/1.jpg"]
    assert rejected(source) == {
        "a/2.jpg": "companion mask does not exist",
        "a/notes.txt": "not an image format that presize reads",
    }
    assert [reject.error for reject in source.rejects] == ["ImageError", "NotAnImageError"]


def test_a_companion_outside_of_the_source_is_none_without_follow_links(tmp_path: Path) -> None:
    write_tree(tmp_path / "raw", {"a/1.jpg": "", "a/2.jpg": "", "masks/1.png": "->../../far.png", "masks/2.png": ""})
    (tmp_path / "far.png").write_text("12345")
    assert rejected(found(tmp_path / "raw", MASK)) == {
        "masks/1.png": "a link out of the source; use --follow-links if you trust it",
        "a/1.jpg": "companion mask is a link out of the source; use --follow-links if you trust it",
    }
    followed = add_companions(scan(tmp_path / "raw", follow_links=True), [MASK], follow_links=True)
    assert followed.table.column("mask_source_nbytes").to_pylist() == [5, 0]


def test_a_column_may_not_lead_out_of_the_source(tmp_path: Path) -> None:
    write_tree(tmp_path / "raw", {"1.jpg": "", "2.jpg": "", "m.png": ""})
    write_tree(tmp_path, {"table.csv": "path,seg\n1.jpg,../raw/m.png\n2.jpg,m.png\n", "m.png": ""})
    source = add_companions(
        scan(tmp_path / "raw", SourceOptions(tmp_path / "table.csv")), [Companion("mask", column="seg")]
    )
    assert rejected(source) == {"1.jpg": "companion mask leads out of the source"}


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("path,seg\n1.jpg,1.png\n", "--pair mask: there is no column 'masks'; there are path, .*seg"),
        ("path,masks\n1.jpg,7\n", "--pair mask: column 'masks' does not hold paths"),
        ("path,masks,mask_width\n1.jpg,1.png,3\n", "the index has a column 'mask_width' of its own; rename yours"),
    ],
)
def test_a_table_that_cannot_name_companions_is_refused(table: str, what: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "raw", {"1.jpg": "", "1.png": ""})
    write_tree(tmp_path, {"table.csv": table})
    with pytest.raises(SourceError, match=what):
        add_companions(
            scan(tmp_path / "raw", SourceOptions(tmp_path / "table.csv")), [Companion("mask", column="masks")]
        )


def test_a_source_of_nothing_but_companions_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path / "raw", {"1.png": "", "2.png": ""})
    with pytest.raises(SourceError, match=r"every file of .* is a companion; --pair names the images themselves"):
        found(tmp_path / "raw", Companion("mask", "{name}"))


def test_a_companion_that_the_disk_does_not_find_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.lstat

    def lstat(path: str) -> os.stat_result:
        if str(path).endswith("masks/01.png"):
            raise OSError(errno.EIO, "Input/output error")
        return look(path)

    names = ["images/01.jpg", "images/02.jpg", "masks/01.png", "masks/02.png"]
    source = scan(write_tree(tmp_path, dict.fromkeys(names, "x")))
    monkeypatch.setattr(os, "lstat", lstat)
    (reject,) = add_companions(source, [MASK]).rejects
    assert reject == Reject("images/01.jpg", UNREADABLE, "companion mask cannot be looked at: Input/output error")
