"""Which files are the companions of which samples, and which samples have none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listings import labels, make, paths
from presize.errors import OptionError, SourceError
from presize.options import Companion, SourceOptions
from presize.sources.companions import add_companions, companion_paths, companions_of
from presize.sources.scan import scan
from presize.store.rejects import UNREADABLE, Reject
from trees import write_tree

MASK = Companion("mask", "masks/{stem}.png")


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

OUTSIDE = "a link out of the source; use --follow-links if you trust it"
NOT_AN_IMAGE = "not an image format that presize reads"
LISTED: dict[str, tuple[dict[str, str], str | None, Companion, list[str], list[int], dict[str, str]]] = {
    "files that are companions are no samples": (
        {"1.jpg": "", "1_mask.png": "1", "2.jpg": "", "2_mask.png": "22"}, None, Companion("mask", "{stem}_mask.png"),
        ["1.jpg", "2.jpg"], [1, 2], {},
    ),
    "what a column names may be a sample itself": (
        {"1.jpg": "", "2.jpg": "22", "3.jpg": "333"}, "path,next\n1.jpg,2.jpg\n2.jpg,3.jpg\n3.jpg,3.jpg\n",
        Companion("mask", column="next"), ["1.jpg", "2.jpg", "3.jpg"], [2, 3, 3], {},
    ),
    "a sample without a companion is rejected and a file that is no image skipped": (
        {"a/1.jpg": "", "a/2.jpg": "", "a/notes.txt": "", "masks/1.png": "1"}, None, MASK, ["a/1.jpg"], [1],
        {"a/2.jpg": "ImageError: companion mask does not exist", "a/notes.txt": f"NotAnImageError: {NOT_AN_IMAGE}"},
    ),
    "a link out of the source is none": (
        {"a/1.jpg": "", "a/2.jpg": "", "masks/1.png": "->../../far.png", "masks/2.png": "1"}, None, MASK,
        ["a/2.jpg"], [1],
        {"masks/1.png": f"SourceError: {OUTSIDE}", "a/1.jpg": f"ImageError: companion mask is {OUTSIDE}"},
    ),
    "a column may not lead out of the source, or be empty": (
        {"1.jpg": "", "2.jpg": "", "3.jpg": "", "m.png": "1"}, "path,seg\n1.jpg,../raw/m.png\n2.jpg,m.png\n3.jpg,\n",
        Companion("mask", column="seg"), ["2.jpg"], [1],
        {"1.jpg": "ImageError: companion mask leads out of the source",
         "3.jpg": "ImageError: companion mask is not named in column seg"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "table", "companion", "samples", "nbytes", "rejects"), LISTED.values(), ids=LISTED)
def test_samples_have_companions_or_are_rejected(
    files: dict[str, str], table: str | None, companion: Companion, samples: list[str], nbytes: list[int],
    rejects: dict[str, str], tmp_path: Path,
) -> None:  # fmt: skip
    write_tree(tmp_path, {"far.png": "12345", "table.csv": table or ""})
    options = SourceOptions(tmp_path / "table.csv" if table else None)
    source = add_companions(scan(write_tree(tmp_path / "raw", files), options), [companion])
    assert paths(source) == samples
    assert source.table.column("mask_source_nbytes").to_pylist() == nbytes
    assert {reject.path: f"{reject.error}: {reject.reason}" for reject in source.rejects} == rejects


def test_links_out_are_companions_when_that_is_asked_for(tmp_path: Path) -> None:
    write_tree(tmp_path, {"far.png": "12345", "raw/a/1.jpg": "", "raw/masks/1.png": "->../../far.png"})
    followed = add_companions(scan(tmp_path / "raw", follow_links=True), [MASK], follow_links=True)
    assert followed.table.column("mask_source_nbytes").to_pylist() == [5]


def test_a_folder_of_companions_is_no_class(tmp_path: Path) -> None:
    names = ["cats/1.jpg", "masks/1.png", "masks/2.png", "masks/unused.png", "zebras/2.jpg"]
    source = add_companions(scan(make(tmp_path, *names)), [MASK])
    assert (source.classes, paths(source), labels(source)) == (
        ("cats", "zebras"),
        ["cats/1.jpg", "zebras/2.jpg"],
        [0, 1],
    )


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
    with pytest.raises(SourceError, match=r"every file of .* is a companion; --pair names the images themselves"):
        add_companions(scan(make(tmp_path, "1.png", "2.png")), [Companion("mask", "{name}")])


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
