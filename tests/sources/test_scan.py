"""What is in a source, in which order, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from foreign import picture, write_tar
from presize.errors import PresizeWarning, SourceError
from presize.options import ColumnType, SourceOptions
from presize.sources.scan import Source, scan
from presize.store.rejects import UNREADABLE, Reject


def make(root: Path, *files: str) -> Path:
    """Files of one byte below a folder; a name that ends with a slash makes a folder."""
    for file in files:
        if file.endswith("/"):
            (root / file).mkdir(parents=True, exist_ok=True)
        else:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(b"x")
    return root


def link(path: Path, target: Path | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def paths(source: Source) -> list[str]:
    return source.table.column("path").to_pylist()


def labels(source: Source) -> list[int]:
    return source.table.column("label").to_pylist()


def rejected(source: Source) -> dict[str, str]:
    return {reject.path: reject.reason for reject in source.rejects}


def assert_one_line(error: BaseException) -> None:
    assert str(error).isprintable(), repr(str(error))


# The order


def image_folder(root: str) -> list[tuple[str, int]]:
    """What torchvision's ImageFolder lists, if it took every file for an image."""
    found = []
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            found += [(os.path.relpath(os.path.join(folder, file), root), number) for file in sorted(files)]
    return found


NAMES = (
    st.lists(
        st.sampled_from(
            [
                "a",
                "b",
                "A",
                "-",
                "~",
                "0",
                " ",
                "\n",
                "\t",
                "!",
                ".",
                "é",
                "e\u0301",
                "中",
                "🐈",
                "\uffff",
                "\x7f",
                "\\",
            ]
        ),
        min_size=1,
        max_size=3,
    )
    .map("".join)
    .filter(lambda name: not name.startswith("."))
)
"""Names around the slash in the order of characters, and those that sort apart in UTF-16."""

TREES = st.lists(st.lists(NAMES, min_size=2, max_size=4).map("/".join), min_size=1, max_size=15)


@pytest.mark.filterwarnings("ignore:source .* names hold backslashes")
@given(tree=TREES)
@settings(max_examples=examples(40), deadline=None)
def test_order_and_labels_are_those_of_imagefolder(tree: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file in tree:
            try:
                make(Path(name), file)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue  # a folder has the name already, or a file has
        source = scan(name)
        assert list(zip(paths(source), labels(source), strict=True)) == image_folder(name)
        assert source.classes == tuple(sorted(os.listdir(name)))


def test_a_folder_comes_before_the_folders_in_it_and_after_names_that_sort_before_a_slash(tmp_path: Path) -> None:
    make(tmp_path, "c/a/b/1", "c/a/2", "c/a-b/3", "c/4", "c/a0/5", "c/b")
    assert paths(scan(tmp_path)) == ["c/4", "c/b", "c/a/2", "c/a-b/3", "c/a/b/1", "c/a0/5"]


def test_order_does_not_depend_on_how_many_files_are_gathered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, *(f"{name}/{i * 7 % 10}" for name in ("b", "a", "a/b") for i in range(10)))
    whole = scan(tmp_path)
    monkeypatch.setattr("presize.sources.tree.PATHS_AT_ONCE", 3)
    assert scan(tmp_path).table.equals(whole.table)
    assert paths(whole) == [path for path, _ in image_folder(str(tmp_path))]


def test_order_does_not_depend_on_the_order_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "b/2", "b/1", "b/c/3", "a/1", "a/c-d/3", "a/c/3")
    forwards = scan(tmp_path)
    monkeypatch.setattr(os, "scandir", backwards(os.scandir))
    assert scan(tmp_path) == forwards


class backwards:
    """os.scandir, last entry first."""

    def __init__(self, scandir: Callable[[str], Iterator[os.DirEntry[str]]]) -> None:
        self.scandir = scandir

    def __call__(self, path: str) -> backwards:
        self.entries = list(self.scandir(path))[::-1]
        return self

    def __enter__(self) -> list[os.DirEntry[str]]:
        return self.entries

    def __exit__(self, *_: object) -> None:
        pass


# What is counted, and what is a class


def test_sizes_and_times_are_those_of_the_files(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "a/2")
    (tmp_path / "a/1").write_bytes(b"12345")
    os.utime(tmp_path / "a/2", ns=(0, 1_234_567_890_123_456_789))
    table = scan(tmp_path).table
    assert table.column("source_nbytes").to_pylist() == [5, 1]
    assert table.column("source_mtime_ns").to_pylist()[1] == 1_234_567_890_123_456_789


@pytest.mark.parametrize("seconds", [-1, 15_000_000_000, 2**62, -11_676_096_000], ids=["1969", "2445", "last", "1600"])
@pytest.mark.parametrize("listed", ["by its folder", "in a table"])
@pytest.mark.parametrize("kind", ["disk", "tmpfs"])  # ext4 and xfs hold fewer times than tmpfs
def test_a_time_that_the_index_cannot_hold_counts_as_the_nearest_that_it_can(
    seconds: int, listed: str, kind: str, tmp_path: Path
) -> None:
    memory = "/dev/shm"
    if kind == "tmpfs" and not os.access(memory, os.W_OK):
        pytest.skip(f"{memory} cannot be written to")
    with tempfile.TemporaryDirectory(dir=tmp_path if kind == "disk" else memory) as photos:
        file = make(Path(photos), "a/1.jpg") / "a/1.jpg"
        os.utime(file, (seconds, seconds))
        text = table(tmp_path, "path\na/1.jpg\n") if listed == "in a table" else None
        mtimes = scan(photos, SourceOptions(labels=text)).table.column("source_mtime_ns").to_pylist()
        assert mtimes == [min(max(file.stat().st_mtime_ns, -(2**63)), 2**63 - 1)]


@pytest.mark.parametrize("flat", [True, False])
def test_columns_have_the_types_of_the_index(flat: bool, tmp_path: Path) -> None:
    make(tmp_path, "1.jpg" if flat else "a/1.jpg")
    expected = {"path": pa.large_string(), "source_nbytes": pa.int64(), "source_mtime_ns": pa.int64()}
    assert scan(tmp_path).table.schema == pa.schema(expected | ({} if flat else {"label": pa.int32()}))


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    source = scan(make(tmp_path, "2", "10", "1"))
    assert source.classes is None
    assert paths(source) == ["1", "10", "2"]


def test_names_do_not_decide_what_is_listed(tmp_path: Path) -> None:
    assert paths(scan(make(tmp_path, "a/notes.txt", "a/1", "a/2.jpg"))) == ["a/1", "a/2.jpg", "a/notes.txt"]


def test_hidden_files_and_folders_are_counted_and_not_entered(tmp_path: Path) -> None:
    make(tmp_path, ".DS_Store", ".git/config", ".git/objects/1", "a/._1.jpg", "a/.thumbs/1.jpg", "a/1.jpg", "a/..2")
    source = scan(tmp_path)
    assert source.hidden == 5
    assert source.classes == ("a",)
    assert paths(source) == ["a/1.jpg"]


def test_files_beside_class_folders_are_counted_and_not_listed(tmp_path: Path) -> None:
    source = scan(make(tmp_path, "README", "labels.csv", "zzz", "a/1", "b/1"))
    assert source.outside == 3
    assert paths(source) == ["a/1", "b/1"]
    assert labels(source) == [0, 1]


def test_images_beside_class_folders_get_a_warning(tmp_path: Path) -> None:
    for name in ("cats/1.jpg", "2.jpg", "3.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.warns(PresizeWarning, match="2 images beside them belong to none and are left out"):
        scan(tmp_path)


def test_without_labels_every_file_is_listed_at_any_depth(tmp_path: Path) -> None:
    make(tmp_path, "0.jpg", "b/1.jpg", "a/c/2.jpg", "a/3.jpg", ".hidden/4.jpg")
    link(tmp_path / "a/out", make(tmp_path.parent / "elsewhere", "5.jpg"))
    with pytest.warns(PresizeWarning, match="1 folder left out"):
        source = scan(tmp_path, SourceOptions(labels="none"))
    assert paths(source) == ["0.jpg", "a/3.jpg", "a/c/2.jpg", "b/1.jpg"]
    assert source.table.column_names == ["path", "source_nbytes", "source_mtime_ns"]
    assert (source.classes, source.by_folder, source.outside, source.hidden) == (None, False, 0, 1)


@given(tree=TREES)
@settings(max_examples=examples(25), deadline=None)
def test_the_order_without_labels_is_that_of_a_sorted_walk(tree: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file in tree:
            with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                make(Path(name), file)
        walked = [(folder, sorted(files)) for folder, _, files in sorted(os.walk(name))]
        expected = [os.path.relpath(os.path.join(folder, file), name) for folder, files in walked for file in files]
        assert paths(scan(name, SourceOptions(labels="none"))) == expected


def test_without_labels_a_source_of_splits_gets_no_warning(tmp_path: Path) -> None:
    make(tmp_path, "train/1.jpg", "val/2.jpg", "3.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(scan(tmp_path, SourceOptions(labels="none")).table) == 3


def test_a_table_may_be_called_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "1.jpg")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"labels './none': expected a name that ends with"):
        scan(tmp_path, SourceOptions(labels="./none"))


def test_an_empty_class_folder_keeps_its_number(tmp_path: Path) -> None:
    source = scan(make(tmp_path, "a/1", "b/", "c/.hidden", "d/e/", "f/1"))
    assert source.classes == ("a", "b", "c", "d", "f")
    assert labels(source) == [0, 4]


def test_a_name_of_255_bytes_is_listed(tmp_path: Path) -> None:
    name = "é" * 127 + "x"
    assert paths(scan(make(tmp_path, f"{name}/{name}"))) == [f"{name}/{name}"]


def test_a_path_longer_than_the_system_takes_is_rejected(tmp_path: Path) -> None:
    here = os.open(make(tmp_path, "a/1"), os.O_RDONLY)
    for _ in range(17):  # of 250 characters each, made step by step: PATH_MAX is 4096
        os.mkdir("d" * 250, dir_fd=here)
        deeper = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    source = scan(tmp_path)
    assert paths(source) == ["a/1"]
    assert list(rejected(source).values()) == ["cannot be looked at: File name too long"]


# Class lists


def test_a_class_list_decides_the_numbers_and_not_the_order(tmp_path: Path) -> None:
    make(tmp_path, "ant/1", "bee/1", "cow/1")
    source = scan(tmp_path, SourceOptions(classes=["cow", "bee", "ant"]))
    assert source.classes == ("cow", "bee", "ant")
    assert paths(source) == ["ant/1", "bee/1", "cow/1"]
    assert labels(source) == [2, 1, 0]


def test_a_class_list_may_have_more_names_than_there_are_folders(tmp_path: Path) -> None:
    source = scan(make(tmp_path, "bee/1"), SourceOptions(classes=["ant", "bee", "cow"]))
    assert source.classes == ("ant", "bee", "cow")
    assert labels(source) == [1]


def test_a_folder_that_the_class_list_has_not_is_named(tmp_path: Path) -> None:
    make(tmp_path, "ant/1", "be\ne/1", "cow/1")
    with pytest.raises(
        SourceError, match=r"class folder 'be\\ne' \(2 such\) is not in the class list of 1 names"
    ) as caught:
        scan(tmp_path, SourceOptions(classes=["ant"]))
    assert_one_line(caught.value)


def test_a_class_list_for_a_flat_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="--classes needs class folders"):
        scan(make(tmp_path, "1.jpg"), SourceOptions(classes=["ant"]))


@pytest.mark.parametrize(
    ("classes", "message", "reason"),
    [
        ("classes.txt", "the text 'classes.txt'", "the name of a file is not a list"),
        (["a", "b", "a"], "classes: expected each name once, got 'a' 2 times", "which of the two numbers?"),
        (["a", ""], "'' is not the name of a class", "a folder has a name"),
        (["a", 1], "1 is not the name of a class", "a name is text"),
        ([], "got none", "no folder would fit"),
    ],
)
def test_a_class_list_that_is_none_is_refused(classes: list[str], message: str, reason: str, tmp_path: Path) -> None:
    make(tmp_path, "a/1")
    with pytest.raises(SourceError) as caught:
        scan(tmp_path, SourceOptions(classes=classes))
    assert message in str(caught.value), reason


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "VALID", "test"), ("training",)])
def test_a_source_of_nothing_but_splits_gets_a_warning(names: tuple[str, ...], tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/cat/1.jpg" for name in names))
    with pytest.warns(
        PresizeWarning, match="they become its classes; if they are splits, use --split folders"
    ) as caught:
        source = scan(tmp_path)
    assert source.classes == tuple(sorted(names))
    assert str(caught[0].message).isprintable()
    assert caught[0].filename == __file__, "the warning points at the caller"


@pytest.mark.parametrize(
    ("names", "classes", "reason"),
    [
        (("train", "bus"), None, "vehicles"),
        (("training-shoes",), None, "another word"),
        (("train", "val"), ["train", "val"], "asked for by name"),
    ],
)
def test_other_sources_get_no_warning(
    names: tuple[str, ...], classes: list[str] | None, reason: str, tmp_path: Path
) -> None:
    make(tmp_path, *(f"{name}/1.jpg" for name in names))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(scan(tmp_path, SourceOptions(classes=classes)).table) == len(names), reason


# Links


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A source with one image, beside a folder and a file that are none of it."""
    make(tmp_path, "elsewhere/2.jpg", "elsewhere.jpg", "source/a/1.jpg")
    return tmp_path / "source"


def test_a_link_to_a_file_inside_is_a_sample_of_its_own(inside: Path) -> None:
    link(inside / "b/2.jpg", "../a/1.jpg")
    assert paths(scan(inside)) == ["a/1.jpg", "b/2.jpg"]


def test_a_link_to_a_folder_inside_is_a_class_of_its_own(inside: Path) -> None:
    link(inside / "b", "a")
    source = scan(inside)
    assert source.classes == ("a", "b")
    assert paths(source) == ["a/1.jpg", "b/1.jpg"]


def test_a_link_that_goes_out_and_comes_back_is_inside(inside: Path) -> None:
    link(inside.parent / "elsewhere/back", inside / "a/1.jpg")
    link(inside / "b/1.jpg", inside.parent / "elsewhere/back")
    assert paths(scan(inside)) == ["a/1.jpg", "b/1.jpg"]


def test_a_link_to_a_file_outside_is_refused_by_default(inside: Path) -> None:
    link(inside / "a/2.jpg", "../../elsewhere.jpg")
    source = scan(inside)
    assert paths(source) == ["a/1.jpg"]
    assert rejected(source) == {"a/2.jpg": "a link out of the source; use --follow-links if you trust it"}
    assert source.rejects[0].error == "SourceError"


def test_a_folder_that_begins_like_the_source_is_outside(inside: Path) -> None:
    make(inside.parent, "source-2/1.jpg")
    link(inside / "a/2.jpg", inside.parent / "source-2/1.jpg")
    assert list(rejected(scan(inside))) == ["a/2.jpg"]


@pytest.mark.parametrize("where", ["b", "a/deeper"])
def test_a_link_to_a_folder_outside_is_rejected_and_names_the_option(where: str, inside: Path) -> None:
    link(inside / where, inside.parent / "elsewhere")
    with pytest.warns(
        PresizeWarning, match="1 folder left out with all that is in them; the first is '.*--follow-links"
    ):
        source = scan(inside)
    assert (paths(source), source.classes) == (["a/1.jpg"], ("a",))
    assert rejected(source) == {where: "a link out of the source; use --follow-links if you trust it"}


def test_class_folders_that_are_all_links_out_do_not_make_a_flat_folder_of_what_lies_beside_them(inside: Path) -> None:
    root = make(inside.parent / "of links", "logo.jpg")
    link(root / "train", inside.parent / "elsewhere")
    with pytest.raises(
        SourceError, match=r"no files \(1 beside the class folders, 1 refused, the first is 'train', a link out of"
    ):
        scan(root)


def test_links_out_are_taken_when_that_is_asked_for(inside: Path) -> None:
    link(inside / "a/3.jpg", inside.parent / "elsewhere.jpg")
    link(inside / "b", inside.parent / "elsewhere")
    source = scan(inside, follow_links=True)
    assert paths(source) == ["a/1.jpg", "a/3.jpg", "b/2.jpg"]
    assert len(source.rejects) == 0


def test_a_link_tells_the_size_and_time_of_what_it_leads_to(inside: Path) -> None:
    (inside / "a/1.jpg").write_bytes(b"12345")
    os.utime(inside / "a/1.jpg", ns=(0, 77))
    link(inside / "b/1.jpg", "../a/1.jpg")
    assert scan(inside).table.select([1, 2]).to_pylist()[1] == {"source_nbytes": 5, "source_mtime_ns": 77}


@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.parametrize(
    ("links", "samples", "rejects", "reason"),
    [
        ({"a/b": "."}, ["a/1.jpg"], {"a/b"}, "a link to its own folder"),
        ({"a/b": ".."}, ["a/1.jpg"], {"a/b"}, "a link to the source"),
        ({"b": "."}, ["a/1.jpg"], {"b"}, "a link to the source, as a class"),
        ({"a/b": "b"}, ["a/1.jpg"], {"a/b"}, "a link to itself"),
        ({"a/b": "c", "a/c": "b"}, ["a/1.jpg"], {"a/b", "a/c"}, "two links to each other"),
        (
            {"a/b": "../c", "c/d": "../a"},
            ["a/1.jpg", "c/d/1.jpg"],
            {"a/b/d", "c/d/b"},
            "two folders, each in the other",
        ),
        (
            {"a/b": "../c", "c/d": "../e", "e/f": "../a"},
            ["a/1.jpg", "c/d/f/1.jpg", "e/f/1.jpg"],
            {"a/b/d/f", "c/d/f/b", "e/f/b/d"},
            "three folders in a ring",
        ),
    ],
)
def test_loops_end(
    links: dict[str, str], samples: list[str], rejects: set[str], reason: str, follow_links: bool, inside: Path
) -> None:
    for path, target in links.items():
        link(inside / path, target)
    source = scan(inside, follow_links=follow_links)
    assert paths(source) == samples, reason
    assert set(rejected(source)) == rejects, reason


def test_a_loop_through_the_folder_above_the_source_ends(inside: Path) -> None:
    link(inside / "a/up", inside.parent)
    source = scan(inside, follow_links=True)
    assert paths(source) == ["a/1.jpg", "a/up/elsewhere.jpg", "a/up/elsewhere/2.jpg"]
    assert list(rejected(source)) == ["a/up/source"]


def test_a_broken_link_is_rejected(inside: Path) -> None:
    link(inside / "a/2.jpg", "nowhere")
    assert rejected(scan(inside)) == {"a/2.jpg": "cannot be looked at: No such file or directory"}


@pytest.mark.parametrize("follow_links", [False, True])
def test_a_device_is_never_read(follow_links: bool, inside: Path) -> None:
    link(inside / "a/2.jpg", "/dev/zero")
    assert rejected(scan(inside, follow_links=follow_links)) == {"a/2.jpg": "neither a file nor a folder"}


def test_pipes_and_sockets_are_never_opened(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(inside / "a/pipe.jpg")  # opening it would wait for ever
    monkeypatch.chdir(inside / "a")  # the name of a socket may have 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        source = scan(inside)
    assert rejected(source) == dict.fromkeys(["a/pipe.jpg", "a/socket.jpg"], "neither a file nor a folder")
    assert paths(source) == ["a/1.jpg"]


def test_the_source_itself_may_be_a_link(inside: Path) -> None:
    link(inside.parent / "link", inside)
    link(inside / "b/2.jpg", inside / "a/1.jpg")
    source = scan(inside.parent / "link")
    assert source.root == inside.resolve()
    assert paths(source) == ["a/1.jpg", "b/2.jpg"]


def test_the_source_may_be_told_from_where_one_stands(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inside / "a")
    assert scan("..") == scan(inside)
    assert scan(".").root == (inside / "a").resolve()


# Names and files that misbehave


def test_a_file_name_that_is_not_utf8_is_rejected_with_its_bytes(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a/caf\xe9\n.jpg")).write_bytes(b"x")
    source = scan(tmp_path)
    assert paths(source) == ["a/1.jpg"]
    assert rejected(source) == {"a/caf\\xe9\n.jpg": "its name is not UTF-8"}


@pytest.mark.parametrize("where", [b"caf\xe9", b"a/caf\xe9"])
def test_a_folder_name_that_is_not_utf8_is_rejected_with_its_bytes(where: bytes, tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg")
    folder = os.fsencode(tmp_path) + b"/" + where
    os.mkdir(folder)
    make(Path(os.fsdecode(folder)), "2.jpg", "deeper/3.jpg")
    with pytest.warns(PresizeWarning, match=r"1 folder left out .* is '.*caf\\xe9': its name is not UTF-8") as warned:
        source = scan(tmp_path)
    assert_one_line(warned[0].message)  # type: ignore[arg-type]
    assert (paths(source), source.classes) == (["a/1.jpg"], ("a",))
    assert rejected(source) == {where.decode("utf-8", "backslashreplace"): "its name is not UTF-8"}


@pytest.mark.parametrize("target", ["nowhere", "b", "."])
def test_a_class_folder_that_is_a_link_to_nothing_or_a_loop_is_rejected_and_the_rest_listed(
    target: str, inside: Path
) -> None:
    link(inside / "b", target)
    source = scan(inside)
    assert (paths(source), source.classes) == (["a/1.jpg"], ("a",))
    assert list(rejected(source)) == ["b"]


def test_the_source_may_have_any_name(tmp_path: Path) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n"))
    assert paths(scan(make(root, "a/1.jpg"))) == ["a/1.jpg"]


def test_a_file_that_vanishes_meanwhile_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/1.jpg", "a/2.jpg")
    scandir = backwards(os.scandir)
    listed: list[str] = []

    def scandir_then_lose_one(path: str) -> backwards:
        found = scandir(path)
        listed.append(path)
        if len(listed) == 2:  # at first to recognize what the source is
            (tmp_path / "a/2.jpg").unlink()
        return found

    make(tmp_path, "a/2.jpg")
    monkeypatch.setattr(
        os, "scandir", lambda path: scandir_then_lose_one(path) if path.endswith("/a") else scandir(path)
    )
    source = scan(tmp_path)
    assert paths(source) == ["a/1.jpg"]
    assert rejected(source) == {"a/2.jpg": "cannot be looked at: No such file or directory"}


def test_a_folder_that_cannot_be_listed_stops_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/1.jpg", "a\nb/1.jpg")
    scandir = os.scandir

    def forbidden(path: str) -> Iterator[os.DirEntry[str]]:
        if path.endswith("\nb"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(SourceError, match=r"^folder '.*/a\\nb': Permission denied$") as caught:
        scan(tmp_path)
    assert_one_line(caught.value)


@pytest.mark.parametrize(
    ("files", "message", "reason"),
    [
        ([], "holds no files (nothing at all); expected image files", "an empty folder"),
        (["a/", "b/"], "holds no files (nothing at all)", "empty classes"),
        ([".a", "b/.c"], "holds no files (2 hidden); expected", "hidden files alone"),
        (
            ["1.jpg", "2.jpg", "thumbs/"],
            "holds no files (2 beside the class folders); expected",
            "a stray empty folder",
        ),
    ],
)
def test_a_source_without_files_is_refused(files: list[str], message: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        scan(make(tmp_path, *files))
    assert message in str(caught.value), reason
    assert_one_line(caught.value)


def test_a_source_of_nothing_but_refused_files_tells_why(tmp_path: Path) -> None:
    link(tmp_path / "source/a/1\n.jpg", make(tmp_path, "elsewhere") / "elsewhere")
    with pytest.raises(
        SourceError, match=r"1 refused, the first is 'a/1\\n.jpg', a link out.*--follow-links"
    ) as caught:
        scan(tmp_path / "source")
    assert_one_line(caught.value)


@pytest.mark.parametrize(
    ("name", "message", "reason"),
    [
        ("file", "is a file; expected a folder of images", "not a folder"),
        ("no\nwhere", "does not exist; expected a folder of images", "not there"),
        ("broken", "does not exist", "a link to nothing"),
        ("loop", "Too many levels of symbolic links", "a link to itself"),
        ("file/below", "Not a directory", "below a file"),
        ("x" * 256, "File name too long", "no file system has it"),
        ("nu\0ll", "null", "no file system has it"),
    ],
)
def test_a_source_that_is_no_folder_is_refused_by_name(name: str, message: str, reason: str, tmp_path: Path) -> None:
    make(tmp_path, "file")
    link(tmp_path / "broken", "nowhere")
    link(tmp_path / "loop", "loop")
    with pytest.raises(SourceError) as caught:
        scan(tmp_path / name)
    assert message in str(caught.value), reason
    assert repr(f"{tmp_path}/{name}") in str(caught.value)
    assert_one_line(caught.value)


def test_no_name_is_not_the_folder_where_one_stands(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inside)
    with pytest.raises(SourceError, match="source '' does not exist"):
        scan("")


def test_many_files_are_not_many_python_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/0", "b/")
    for i in range(1, 4000):
        os.link(tmp_path / "a/0", tmp_path / f"{'ab'[i % 2]}/a name of thirty characters {i:04}")
    monkeypatch.setattr("presize.sources.tree.PATHS_AT_ONCE", 256)
    scan(tmp_path)  # what is imported and cached once
    tracemalloc.start()
    try:
        source = scan(tmp_path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.table) == 4000
    assert kept < 4000 * 8, "bytes of Python memory, so less than a pointer a file"
    assert peak < 4000 * 56, "bytes, so never an object a file"


# Label tables


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six images, three of them cats."""
    return make(tmp_path / "photos", *(f"{name}/{i}.jpg" for name in ("cats", "dogs") for i in range(3)))


def table(folder: Path, text: str) -> Path:
    (folder / "labels.csv").write_text(text)
    return folder / "labels.csv"


def test_a_table_lists_the_samples_in_its_own_order(photos: Path, tmp_path: Path) -> None:
    (photos / "dogs/0.jpg").write_bytes(b"12345")
    source = scan(photos, SourceOptions(labels=table(tmp_path, "label,path,score\nb,dogs/0.jpg,1.5\na,cats/2.jpg,\n")))
    assert source.classes == ("a", "b")
    assert source.table.column_names == ["path", "source_nbytes", "source_mtime_ns", "label", "score"]
    assert source.table.drop_columns("source_mtime_ns").to_pylist() == [
        {"path": "dogs/0.jpg", "source_nbytes": 5, "label": 1, "score": 1.5},
        {"path": "cats/2.jpg", "source_nbytes": 1, "label": 0, "score": None},
    ]
    assert source.table.schema.field("label").type == pa.int32()


def test_whole_numbers_as_labels_stay_what_they_are(photos: Path, tmp_path: Path) -> None:
    source = scan(photos, SourceOptions(labels=table(tmp_path, "path,label\ncats/0.jpg,70\ncats/1.jpg,-1\n")))
    assert source.classes is None
    assert labels(source) == [70, -1]


def test_a_table_needs_no_labels(photos: Path, tmp_path: Path) -> None:
    source = scan(photos, SourceOptions(labels=table(tmp_path, "path\ncats/0.jpg\n")))
    assert source.classes is None
    assert source.table.column_names == ["path", "source_nbytes", "source_mtime_ns"]


def test_a_table_may_list_hidden_files_and_no_images(photos: Path, tmp_path: Path) -> None:
    make(photos, ".hidden.jpg", "notes.txt")
    assert paths(scan(photos, SourceOptions(labels=table(tmp_path, "path\n.hidden.jpg\nnotes.txt\n")))) == [
        ".hidden.jpg",
        "notes.txt",
    ]


def test_a_class_list_numbers_the_labels_of_a_table(photos: Path, tmp_path: Path) -> None:
    text = "path,label\ncats/0.jpg,cat\ndogs/0.jpg,dog\n"
    source = scan(photos, SourceOptions(labels=table(tmp_path, text), classes=["dog", "ant", "cat"]))
    assert source.classes == ("dog", "ant", "cat")
    assert labels(source) == [2, 0]


def test_a_label_that_the_class_list_has_not_is_named(photos: Path, tmp_path: Path) -> None:
    text = "path,label\ncats/0.jpg,cat\ndogs/0.jpg,dog\n"
    with pytest.raises(SourceError, match="the label 'dog' is not in the class list of 1 names"):
        scan(photos, SourceOptions(labels=table(tmp_path, text), classes=["cat"]))


@pytest.mark.parametrize("text", ["path\ncats/0.jpg\n", "path,label\ncats/0.jpg,5\n"])
def test_a_class_list_without_labels_of_text_is_refused(text: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="--classes needs a label column of strings"):
        scan(photos, SourceOptions(labels=table(tmp_path, text), classes=["cat"]))


def test_labels_in_digits_are_classes_in_the_order_of_their_values_if_told(photos: Path, tmp_path: Path) -> None:
    samples = SourceOptions(labels=table(tmp_path, "path,label\ncats/0.jpg,10\ndogs/0.jpg,9\n"))
    assert scan(photos, samples).classes is None
    source = scan(photos, samples, types=[ColumnType("label", "class")])
    assert (source.classes, labels(source)) == (("9", "10"), [1, 0])
    assert scan(photos, samples, types=[ColumnType("label", "text")]).classes == ("10", "9")
    named = scan(photos, replace(samples, classes=["10", "9"]), types=[ColumnType("label", "class")])
    assert (named.classes, labels(named)) == (("10", "9"), [0, 1])


def test_a_class_list_for_labels_in_digits_is_refused_with_the_option(photos: Path, tmp_path: Path) -> None:
    samples = SourceOptions(labels=table(tmp_path, "path,label\ncats/0.jpg,5\n"), classes=["5"])
    with pytest.raises(SourceError, match="of strings; --column-type label:class reads numbers as their names"):
        scan(photos, samples)


def test_types_are_for_columns(photos: Path) -> None:
    with pytest.raises(SourceError, match=r"--column-type is for tables and containers; source '.*' has none"):
        scan(photos, types=[ColumnType("label", "class")])


def test_labels_of_control_characters_are_no_classes(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the label b'.x01.x00.x00.x00' is not text: it looks like a little-endian"):
        scan(photos, SourceOptions(labels=table(tmp_path, "path,label\ncats/0.jpg,\1\0\0\0\n")))


# Names from Windows

WINDOWS = ("train\\cats\\1.jpg", "train\\dogs\\2.jpg")
SAID = (
    r"2 of 2 names hold backslashes, such as 'train\\cats\\1.jpg': folders on Windows, but not here, and no sample has"
)


def test_names_with_backslashes_that_leave_samples_without_labels_are_said(tmp_path: Path) -> None:
    root = make(tmp_path / "raw", *WINDOWS)
    with pytest.warns(PresizeWarning, match=SAID + " a label; unpack the archive with unzip, which makes them$"):
        assert len(scan(root).table) == 2
    (tmp_path / "list.txt").write_text("\n".join(WINDOWS))
    with pytest.warns(PresizeWarning, match=SAID):
        scan(root, SourceOptions(labels=tmp_path / "list.txt"))


def test_names_with_backslashes_in_the_only_class_folder_are_said(tmp_path: Path) -> None:
    root = make(tmp_path / "raw", *(f"data/{name}" for name in WINDOWS))
    with pytest.warns(PresizeWarning, match="2 of 2 names hold backslashes, .* and all samples are of one class; unp"):
        assert scan(root).classes == ("data",)


def test_a_tar_of_names_with_backslashes_is_said(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(name, picture(1)) for name in WINDOWS])
    with pytest.warns(PresizeWarning, match=SAID + " a label; write it again with / in names$"):
        scan(tmp_path / "a.tar")


def test_names_with_backslashes_that_want_no_labels_or_have_them_are_no_matter(tmp_path: Path) -> None:
    root = make(tmp_path / "raw", *WINDOWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan(root, SourceOptions(labels="none"))
        assert scan(root, SourceOptions(labels=table(tmp_path, f"path,label\n{WINDOWS[0]},cat\n"))).classes == ("cat",)


def test_a_table_of_paths_with_backslashes_is_refused_with_the_cure(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist; expected / between folders, not a backslash"):
        scan(photos, SourceOptions(labels=table(tmp_path, "path\ncats\\0.jpg\n")))


def listed(photos: Path, tmp_path: Path, text: str, **options: Any) -> Source:
    (tmp_path / "train.txt").write_text(text)
    return scan(photos, SourceOptions(labels=tmp_path / "train.txt", **options))


def test_a_list_without_labels_has_the_folders_as_classes(photos: Path, tmp_path: Path) -> None:
    source = listed(photos, tmp_path, "dogs/1.jpg\ncats/0.jpg\ndogs/0.jpg\n")
    assert source.classes == ("cats", "dogs")
    assert (paths(source), labels(source)) == (["dogs/1.jpg", "cats/0.jpg", "dogs/0.jpg"], [1, 0, 1])
    assert labels(listed(photos, tmp_path, "dogs/1.jpg\n", classes=["pets", "dogs"])) == [1]


def test_a_list_of_which_one_path_has_no_folder_has_no_labels(photos: Path, tmp_path: Path) -> None:
    make(photos, "1.jpg")
    source = listed(photos, tmp_path, "dogs/1.jpg\n1.jpg\n")
    assert source.classes is None and "label" not in source.table.column_names


def test_a_list_with_labels_has_these(photos: Path, tmp_path: Path) -> None:
    assert listed(photos, tmp_path, "dogs/1.jpg pet\ncats/0.jpg lion\n").classes == ("lion", "pet")
    source = listed(photos, tmp_path, "dogs/1.jpg 7\ncats/0.jpg 2\n")
    assert (source.classes, labels(source)) == (None, [7, 2])


def test_a_list_with_splits_has_the_classes_of_the_second_folder(tmp_path: Path) -> None:
    root = make(tmp_path / "raw", "train/cats/1.jpg", "val/dogs/2.jpg")
    source = listed(root, tmp_path, "val/dogs/2.jpg\ntrain/cats/1.jpg\n", split="folders")
    assert (source.classes, labels(source)) == (("cats", "dogs"), [1, 0])
    assert source.table["split"].to_pylist() == ["val", "train"]


def test_paths_of_a_table_may_be_absolute(photos: Path, tmp_path: Path) -> None:
    text = f"path,n\n{photos}/dogs/1.jpg,1\ncats/0.jpg,2\n"
    assert paths(scan(photos, SourceOptions(labels=table(tmp_path, text)))) == ["dogs/1.jpg", "cats/0.jpg"]


def test_repeated_rows_are_one_sample_of_lists(photos: Path, tmp_path: Path) -> None:
    text = "path,caption\ncats/0.jpg,a\ndogs/0.jpg,b\ncats/0.jpg,c\n"
    source = scan(photos, SourceOptions(labels=table(tmp_path, text), repeated="list"))
    assert paths(source) == ["cats/0.jpg", "dogs/0.jpg"]
    assert source.table["caption"].to_pylist() == [["a", "c"], ["b"]]


def test_one_file_by_two_paths_is_two_samples(photos: Path, tmp_path: Path) -> None:
    link(photos / "kittens", "cats")
    link(photos / "cat.jpg", "cats/0.jpg")
    text = "path\ncats/0.jpg\nkittens/0.jpg\ncat.jpg\n"
    assert paths(scan(photos, SourceOptions(labels=table(tmp_path, text)))) == [
        "cats/0.jpg",
        "kittens/0.jpg",
        "cat.jpg",
    ]


@pytest.mark.parametrize(
    ("path", "message", "reason"),
    [
        ("gone.jpg", "'gone.jpg' does not exist", "there is none"),
        ("cats\\0.jpg", r"'cats\\0.jpg' does not exist", "a backslash is a character like any other"),
        ("Cats/0.jpg", "'Cats/0.jpg' does not exist", "case counts"),
        ("broken.jpg", "'broken.jpg' does not exist", "a link to nothing"),
        ("loop.jpg", "'loop.jpg' cannot be looked at: Too many levels", "a link to itself"),
        ("cats/0.jpg/1.jpg", "cannot be looked at: Not a directory", "below a file"),
        ("x" * 256, "cannot be looked at: File name too long", "no file system has it"),
        ("cats", "'cats' is not a file", "a folder"),
        ("pipe", "'pipe' is not a file", "opening it would wait for ever"),
        ("zero", "'zero' is a link out of the source; use --follow-links", "a device, outside"),
        ("out.jpg", "'out.jpg' is a link out of the source; use --follow-links", "a file outside"),
        ("out/1.jpg", "'out/1.jpg' is a link out of the source; use --follow-links", "a file in a folder outside"),
    ],
)
def test_paths_that_are_no_files_inside_are_counted_and_the_first_is_named(
    path: str, message: str, reason: str, photos: Path, tmp_path: Path
) -> None:
    make(tmp_path, "elsewhere/1.jpg")
    for name, target in {
        "broken.jpg": "nowhere",
        "loop.jpg": "loop.jpg",
        "zero": "/dev/zero",
        "out.jpg": "../elsewhere/1.jpg",
        "out": "../elsewhere",
    }.items():
        link(photos / name, target)
    os.mkfifo(photos / "pipe")
    with pytest.raises(SourceError) as caught:
        scan(photos, SourceOptions(labels=table(tmp_path, f"path\ncats/0.jpg\n{path}\nalso gone\n")))
    assert "2 of its 3 paths cannot be used, the first: " in str(caught.value)
    assert message in str(caught.value), reason
    assert str(caught.value).startswith(f"labels '{tmp_path}/labels.csv': ")
    assert_one_line(caught.value)


def test_a_table_may_list_links_out_when_that_is_asked_for(photos: Path, tmp_path: Path) -> None:
    make(tmp_path, "elsewhere/1.jpg")
    link(photos / "out", "../elsewhere")
    link(photos / "out.jpg", "../elsewhere/1.jpg")
    text = "path\nout/1.jpg\nout.jpg\n"
    assert paths(scan(photos, SourceOptions(labels=table(tmp_path, text)), follow_links=True)) == [
        "out/1.jpg",
        "out.jpg",
    ]


def test_a_table_is_looked_up_a_piece_at_a_time(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "path,n\n" + "".join(f"{name}/{i}.jpg,{i}\n" for i in (2, 0, 1) for name in ("dogs", "cats"))
    whole = scan(photos, SourceOptions(labels=table(tmp_path, text)))
    monkeypatch.setattr("presize.sources.columns.ROWS_AT_ONCE", 4)
    assert scan(photos, SourceOptions(labels=table(tmp_path, text))).table.equals(whole.table)


def test_the_source_of_a_table_has_to_be_a_folder(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a file; expected a folder of images"):
        scan(photos / "cats/0.jpg", SourceOptions(labels=table(tmp_path, "path\ncats/0.jpg\n")))


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20))
def test_any_name_in_a_table_is_a_sample_or_a_one_line_error(name: str, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text(f'{{"path": {json.dumps(name)}}}\n')
    try:
        source = scan(photos, SourceOptions(labels=tmp_path / "labels.jsonl"))
    except SourceError as error:
        assert_one_line(error)
    else:
        assert paths(source) == [name]


class FailingEntry:
    """What os.scandir gives, of a file or folder whose status the disk cannot read."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry, self.name, self.path = entry, entry.name, entry.path
        self.is_symlink, self.is_file, self.is_dir = entry.is_symlink, entry.is_file, entry.is_dir

    def stat(self) -> os.stat_result:
        if self.name.startswith("bad"):
            raise OSError(errno.EIO, "Input/output error", self.path)
        return self._entry.stat()


@pytest.fixture
def failing_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[FailingEntry]]:
        with listed(path) as entries:
            yield map(FailingEntry, entries)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.usefixtures("failing_disk")
def test_a_file_that_the_disk_does_not_find_is_unreadable(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "a/bad.jpg")
    (reject,) = scan(tmp_path).rejects
    assert reject == Reject("a/bad.jpg", UNREADABLE, "cannot be looked at: Input/output error")


@pytest.mark.usefixtures("failing_disk")
@pytest.mark.parametrize("bad", ["b/bad/1.jpg", "bad/1.jpg"])
def test_a_folder_that_the_disk_does_not_find_is_not_left_out(bad: str, tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", bad)
    with pytest.raises(SourceError, match=r"^folder '.*bad': Input/output error$"):
        scan(tmp_path)
