"""What is in a source, in which order, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from foreign import picture, write_tar
from listings import OUT, facts, labels, make, not_utf8, paths, rejected
from presize.errors import PresizeWarning, SourceError
from presize.options import ColumnType, SourceOptions
from presize.sources.scan import scan
from presize.store.rejects import UNREADABLE, Reject


def refusal(*arguments: Any, **options: Any) -> str:
    """The one line that refuses a source."""
    with pytest.raises(SourceError) as caught:
        scan(*arguments, **options)
    assert str(caught.value).isprintable(), repr(str(caught.value))
    return str(caught.value)


# The order


def image_folder(root: str) -> list[tuple[str, int]]:
    """What torchvision's ImageFolder lists, if it took every file for an image."""
    found = []
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            found += [(os.path.relpath(os.path.join(folder, file), root), number) for file in sorted(files)]
    return found


LETTERS = [*"abA-~0 \n\t!.é中🐈\uffff\x7f\\", "e\u0301"]
"""Around the slash in the order of characters, and those that sort apart in UTF-16."""
NAMES = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3).map("".join).filter(lambda s: not s.startswith("."))
TREES = st.lists(st.lists(NAMES, min_size=2, max_size=4).map("/".join), min_size=1, max_size=15)


@pytest.mark.filterwarnings("ignore:source .* names hold backslashes")
@given(tree=TREES)
@settings(max_examples=examples(50), deadline=None)
def test_order_and_labels_are_those_of_imagefolder_and_without_labels_of_a_sorted_walk(tree: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file in tree:
            with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):  # its name is a folder's or a file's
                make(Path(name), file)
        source = scan(name)
        assert list(zip(paths(source), labels(source) or [], strict=True)) == image_folder(name)
        assert source.classes == tuple(sorted(os.listdir(name)))
        walked = [(folder, sorted(files)) for folder, _, files in sorted(os.walk(name))]
        expected = [os.path.relpath(os.path.join(folder, file), name) for folder, files in walked for file in files]
        assert paths(scan(name, SourceOptions(labels="none"))) == expected


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
    forwards, scandir = scan(tmp_path), os.scandir

    @contextmanager
    def backwards(path: str) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            yield list(entries)[::-1]

    monkeypatch.setattr(os, "scandir", backwards)
    assert scan(tmp_path) == forwards


# What is listed

LONG = "é" * 127 + "x"
NO_LABELS = SourceOptions(labels="none")
FLAT: dict[str, Any] = {"classes": None, "labels": None, "by_folder": False}
LISTED: dict[str, tuple[list[str], SourceOptions, dict[str, Any]]] = {
    "a folder is before those in it and after names that sort before a slash": (
        ["c/a/b/1", "c/a/2", "c/a-b/3", "c/4", "c/a0/5", "c/b"], SourceOptions(),
        {"paths": ["c/4", "c/b", "c/a/2", "c/a-b/3", "c/a/b/1", "c/a0/5"], "by_folder": True},
    ),
    "a flat folder has no labels": (["2", "10", "1"], SourceOptions(), {"paths": ["1", "10", "2"], **FLAT}),
    "names do not decide": (["a/t.txt", "a/1", "a/2.jpg"], SourceOptions(), {"paths": ["a/1", "a/2.jpg", "a/t.txt"]}),
    "hidden files and folders are counted and not entered": (
        [".DS_Store", ".git/config", ".git/objects/1", "a/._1.jpg", "a/.thumbs/1.jpg", "a/1.jpg", "a/..2"],
        SourceOptions(), {"paths": ["a/1.jpg"], "hidden": 5, "classes": ("a",)},
    ),
    "files beside class folders are counted": (
        ["README", "labels.csv", "zzz", "a/1", "b/1"], SourceOptions(),
        {"paths": ["a/1", "b/1"], "labels": [0, 1], "outside": 3},
    ),
    "without labels every file is listed at any depth": (
        ["0.jpg", "b/1.jpg", "a/c/2.jpg", "a/3.jpg", "train/4.jpg", ".hidden/5.jpg"], NO_LABELS,
        {"paths": ["0.jpg", "a/3.jpg", "a/c/2.jpg", "b/1.jpg", "train/4.jpg"], "outside": 0, "hidden": 1, **FLAT},
    ),
    "splits without labels are no matter": (
        ["train/1.jpg", "val/2.jpg", "3.jpg"], NO_LABELS, {"paths": ["3.jpg", "train/1.jpg", "val/2.jpg"]},
    ),
    "an empty class folder keeps its number": (
        ["a/1", "b/", "c/.hidden", "d/e/", "f/1"], SourceOptions(),
        {"classes": ("a", "b", "c", "d", "f"), "labels": [0, 4]},
    ),
    "a name of 255 bytes": ([f"{LONG}/{LONG}"], SourceOptions(), {"paths": [f"{LONG}/{LONG}"]}),
    "a class list decides the numbers and not the order": (
        ["ant/1", "bee/1", "cow/1"], SourceOptions(classes=["cow", "bee", "ant"]),
        {"classes": ("cow", "bee", "ant"), "paths": ["ant/1", "bee/1", "cow/1"], "labels": [2, 1, 0]},
    ),
    "a class list may have more names than there are folders": (
        ["bee/1"], SourceOptions(classes=["ant", "bee", "cow"]), {"classes": ("ant", "bee", "cow"), "labels": [1]},
    ),
    "vehicles are no splits": (["train/1", "bus/1"], SourceOptions(), {"classes": ("bus", "train")}),
    "another word than a split": (["training-shoes/1"], SourceOptions(), {"labels": [0]}),
    "splits asked for by name": (["train/1", "val/1"], SourceOptions(classes=["train", "val"]), {"labels": [0, 1]}),
}  # fmt: skip


@pytest.mark.parametrize(("files", "options", "expected"), LISTED.values(), ids=LISTED)
def test_files_and_folders_are_samples_and_classes(
    files: list[str], options: SourceOptions, expected: dict[str, Any], tmp_path: Path
) -> None:
    source = scan(make(tmp_path, *files), options)
    assert facts(source, *expected) == expected
    assert rejected(source) == {}


SPLITS = "they become its classes; if they are splits, use --split folders"
WARNED = [
    (["cats/1.jpg", "2.jpg", "3.png", "notes.txt"], "2 images beside them belong to none and are left out", 1),
    (["train/cat/1", "val/cat/1"], SPLITS, 2),
    (["Train/cat/1", "VALID/cat/1", "test/cat/1"], SPLITS, 3),
    (["training/cat/1"], SPLITS, 1),
]


@pytest.mark.parametrize(("files", "message", "samples"), WARNED)
def test_what_was_probably_not_meant_gets_a_warning(
    files: list[str], message: str, samples: int, tmp_path: Path
) -> None:
    with pytest.warns(PresizeWarning, match=message) as caught:
        assert len(scan(make(tmp_path, *files)).table) == samples
    assert str(caught[0].message).isprintable()
    assert caught[0].filename == __file__, "the warning points at the caller"


def test_sizes_and_times_are_those_of_the_files(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "a/2", "b/1 -> ../a/1")
    (tmp_path / "a/1").write_bytes(b"12345")
    os.utime(tmp_path / "a/2", ns=(0, 1_234_567_890_123_456_789))
    table = scan(tmp_path).table
    assert table.column("source_nbytes").to_pylist() == [5, 1, 5], "a link has the size of its target"
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
        options = table(tmp_path, "path\na/1.jpg\n") if listed == "in a table" else SourceOptions()
        mtimes = scan(photos, options).table.column("source_mtime_ns").to_pylist()
        assert mtimes == [min(max(file.stat().st_mtime_ns, -(2**63)), 2**63 - 1)]


@pytest.mark.parametrize("flat", [True, False])
def test_columns_have_the_types_of_the_index(flat: bool, tmp_path: Path) -> None:
    make(tmp_path, "1.jpg" if flat else "a/1.jpg")
    expected = {"path": pa.large_string(), "source_nbytes": pa.int64(), "source_mtime_ns": pa.int64()}
    assert scan(tmp_path).table.schema == pa.schema(expected | ({} if flat else {"label": pa.int32()}))


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


# Links


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A source with one image, beside a folder and a file that are none of it."""
    make(tmp_path, "elsewhere/2.jpg", "elsewhere.jpg", "source-2/1.jpg", "elsewhere/back -> ../source/a/1.jpg")
    return make(tmp_path / "source", "a/1.jpg")


UNSEEN = "cannot be looked at: "
LOOP = "a link to a folder that it lies in"
MANY = UNSEEN + "Too many levels of symbolic links"
LINKS: list[tuple[list[str], list[str], dict[str, str], str]] = [
    (["b/2.jpg -> ../a/1.jpg"], ["a/1.jpg", "b/2.jpg"], {}, "a file inside"),
    (["b -> a"], ["a/1.jpg", "b/1.jpg"], {}, "a folder inside is a class of its own"),
    (["b/1.jpg -> ../../elsewhere/back"], ["a/1.jpg", "b/1.jpg"], {}, "one that goes out and comes back is inside"),
    (["a/b -> ."], ["a/1.jpg"], {"a/b": LOOP}, "a link to its own folder"),
    (["a/b -> .."], ["a/1.jpg"], {"a/b": LOOP}, "a link to the source"),
    (["b -> ."], ["a/1.jpg"], {"b": LOOP}, "a link to the source, as a class"),
    (["a/b -> b"], ["a/1.jpg"], {"a/b": MANY}, "a link to itself"),
    (["b -> b"], ["a/1.jpg"], {"b": MANY}, "a link to itself, as a class"),
    (["a/b -> c", "a/c -> b"], ["a/1.jpg"], {"a/b": MANY, "a/c": MANY}, "two links to each other"),
    (["a/b -> ../c", "c/d -> ../a"], ["a/1.jpg", "c/d/1.jpg"], {"a/b/d": LOOP, "c/d/b": LOOP}, "each in the other"),
    (["a/b -> ../c", "c/d -> ../e", "e/f -> ../a"], ["a/1.jpg", "c/d/f/1.jpg", "e/f/1.jpg"],
     {"a/b/d/f": LOOP, "c/d/f/b": LOOP, "e/f/b/d": LOOP}, "three folders in a ring"),
    (["a/2.jpg -> nowhere"], ["a/1.jpg"], {"a/2.jpg": UNSEEN + "No such file or directory"}, "a broken link"),
    (["b -> nowhere"], ["a/1.jpg"], {"b": UNSEEN + "No such file or directory"}, "a broken link, as a class"),
    (["a/2.jpg -> /dev/zero"], ["a/1.jpg"], {"a/2.jpg": "neither a file nor a folder"}, "a device is never read"),
]  # fmt: skip


@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.parametrize(("links", "samples", "rejects", "reason"), LINKS)
def test_links_inside_are_samples_and_loops_end(
    links: list[str], samples: list[str], rejects: dict[str, str], reason: str, follow_links: bool, inside: Path
) -> None:
    source = scan(make(inside, *links), follow_links=follow_links)
    assert (paths(source), rejected(source)) == (samples, rejects), reason
    assert source.classes == tuple(sorted({path.partition("/")[0] for path in samples}))


LINKS_OUT = [
    ("a/2.jpg", "../../elsewhere.jpg", "a/2.jpg", "a file"),
    ("a/2.jpg", "../../source-2/1.jpg", "a/2.jpg", "a folder that begins like the source is outside"),
    ("b", "../elsewhere", "b/2.jpg", "a folder, as a class"),
    ("a/deeper", "../../elsewhere", "a/deeper/2.jpg", "a folder"),
]


@pytest.mark.parametrize(("link", "target", "path", "reason"), LINKS_OUT)
def test_links_out_are_refused_with_the_option_that_takes_them(
    link: str, target: str, path: str, reason: str, inside: Path
) -> None:
    make(inside, f"{link} -> {target}")
    said = "1 folder left out with all that is in them; the first is '.*--follow-links"
    with nullcontext() if link == path else pytest.warns(PresizeWarning, match=said):
        source = scan(inside)
    assert (paths(source), source.classes) == (["a/1.jpg"], ("a",))
    assert list(source.rejects) == [Reject(link, "SourceError", OUT)], reason
    followed = scan(inside, follow_links=True)
    assert path in paths(followed)
    assert rejected(followed) == {}


def test_class_folders_that_are_all_links_out_do_not_make_a_flat_folder_of_what_lies_beside_them(inside: Path) -> None:
    root = make(inside.parent / "of links", "logo.jpg", "train -> ../elsewhere")
    assert "no files (1 beside the class folders, 1 refused, the first is 'train', a link out of" in refusal(root)


def test_a_loop_through_the_folder_above_the_source_ends(inside: Path) -> None:
    source = scan(make(inside, "a/up -> ../.."), follow_links=True)
    assert [path for path in paths(source) if "elsewhere/" in path] == ["a/up/elsewhere/2.jpg", "a/up/elsewhere/back"]
    assert rejected(source) == {"a/up/source": LOOP}


def test_pipes_and_sockets_are_never_opened(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(inside / "a/pipe.jpg")  # opening it would wait for ever
    monkeypatch.chdir(inside / "a")  # the name of a socket may have 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        source = scan(inside)
    assert rejected(source) == dict.fromkeys(["a/pipe.jpg", "a/socket.jpg"], "neither a file nor a folder")
    assert paths(source) == ["a/1.jpg"]


def test_the_source_may_be_a_link_or_told_from_where_one_stands(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(inside, f"b/2.jpg -> {inside}/a/1.jpg", "../link -> source")
    source = scan(inside.parent / "link")
    assert (source.root, paths(source)) == (inside.resolve(), ["a/1.jpg", "b/2.jpg"])
    monkeypatch.chdir(inside / "a")
    assert scan("..") == scan(inside)
    assert scan(".").root == (inside / "a").resolve()


# Names and files that misbehave


def test_a_file_name_that_is_not_utf8_is_rejected_with_its_bytes(tmp_path: Path) -> None:
    not_utf8(make(tmp_path, "a/1.jpg"), b"a/caf\xe9\n.jpg").write_bytes(b"x")
    assert facts(scan(tmp_path), "paths", "rejected") == {
        "paths": ["a/1.jpg"], "rejected": {"a/caf\\xe9\n.jpg": "its name is not UTF-8"},
    }  # fmt: skip


@pytest.mark.parametrize("where", [b"caf\xe9", b"a/caf\xe9"])
def test_a_folder_name_that_is_not_utf8_is_rejected_with_its_bytes(where: bytes, tmp_path: Path) -> None:
    make(not_utf8(make(tmp_path, "a/1.jpg"), where), "2.jpg", "deeper/3.jpg")
    with pytest.warns(PresizeWarning, match=r"1 folder left out .* is '.*caf\\xe9': its name is not UTF-8") as warned:
        source = scan(tmp_path)
    assert str(warned[0].message).isprintable()
    assert (paths(source), source.classes) == (["a/1.jpg"], ("a",))
    assert rejected(source) == {where.decode("utf-8", "backslashreplace"): "its name is not UTF-8"}


def test_the_source_may_have_any_name(tmp_path: Path) -> None:
    assert paths(scan(make(not_utf8(tmp_path, b"\xff\n"), "a/1.jpg"))) == ["a/1.jpg"]


class Entry:
    """What os.scandir gives, of a file or folder whose status the disk cannot read if its name begins with "bad", and
    that has gone if it begins with "gone"."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry, self.name, self.path = entry, entry.name, entry.path
        self.is_symlink, self.is_file, self.is_dir = entry.is_symlink, entry.is_file, entry.is_dir

    def stat(self) -> os.stat_result:
        if self.name.startswith(("bad", "gone")):
            number = errno.EIO if self.name.startswith("bad") else errno.ENOENT
            raise OSError(number, os.strerror(number), self.path)
        return self._entry.stat()


@pytest.fixture
def failing_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[Entry]]:
        if path.endswith("\nforbidden"):
            raise PermissionError(13, "Permission denied", path)
        with listed(path) as entries:
            yield map(Entry, entries)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.usefixtures("failing_disk")
@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [("bad.jpg", UNREADABLE, "Input/output error"), ("gone.jpg", "SourceError", "No such file or directory")],
)
def test_a_file_that_the_disk_does_not_find_or_that_vanishes_is_rejected(
    name: str, error: str, reason: str, tmp_path: Path
) -> None:
    source = scan(make(tmp_path, "a/1.jpg", f"a/{name}"))
    assert list(source.rejects) == [Reject(f"a/{name}", error, f"cannot be looked at: {reason}")]
    assert paths(source) == ["a/1.jpg"]


@pytest.mark.usefixtures("failing_disk")
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("b/bad/1.jpg", "/b/bad': Input/output error"),
        ("bad/1.jpg", "/bad': Input/output error"),
        ("\nforbidden/1.jpg", "/\\nforbidden': Permission denied"),
    ],
)
def test_a_folder_that_cannot_be_listed_stops_the_scan(file: str, said: str, tmp_path: Path) -> None:
    message = refusal(make(tmp_path, "a/1.jpg", file))
    assert message.startswith("folder '") and message.endswith(said)


FILES_REFUSED = [
    ([], SourceOptions(), "holds no files (nothing at all); expected image files", "an empty folder"),
    (["a/", "b/"], SourceOptions(), "holds no files (nothing at all)", "empty classes"),
    ([".a", "b/.c"], SourceOptions(), "holds no files (2 hidden); expected", "hidden files alone"),
    (["1.jpg", "2.jpg", "thumbs/"], SourceOptions(), "no files (2 beside the class folders)", "a stray empty folder"),
    (["a/1\n.jpg -> /dev"], SourceOptions(), r"1 refused, the first is 'a/1\n.jpg', a link out", "refused files alone"),
    (["ant/1", "be\ne/1", "cow/1"], SourceOptions(classes=["ant"]),
     r"class folder 'be\ne' (2 such) is not in the class list of 1 names", "no such class"),
    (["1.jpg"], SourceOptions(classes=["ant"]), "--classes needs class folders", "a flat folder"),
    (["a/1"], SourceOptions(classes="classes.txt"), "the text 'classes.txt'", "the name of a file is not a list"),
    (["a/1"], SourceOptions(classes=["a", "b", "a"]), "classes: expected each name once, got 'a' 2 times", "which?"),
    (["a/1"], SourceOptions(classes=["a", ""]), "'' is not the name of a class", "a folder has a name"),
    (["a/1"], SourceOptions(classes=["a", 1]), "1 is not the name of a class", "a name is text"),  # type: ignore[list-item]
    (["a/1"], SourceOptions(classes=[]), "got none", "no folder would fit"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:source .* left out")
@pytest.mark.parametrize(("files", "options", "message", "reason"), FILES_REFUSED)
def test_a_source_without_samples_or_with_other_classes_is_refused(
    files: list[str], options: SourceOptions, message: str, reason: str, tmp_path: Path
) -> None:
    assert message in refusal(make(tmp_path, *files), options), reason


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
    make(tmp_path, "file", "broken -> nowhere", "loop -> loop")
    said = refusal(tmp_path / name)
    assert message in said and repr(f"{tmp_path}/{name}") in said, reason


def test_no_name_is_not_the_folder_where_one_stands(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inside)
    assert "source '' does not exist" in refusal("")


# Label tables


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six images, three of them cats."""
    return make(tmp_path / "photos", *(f"{name}/{i}.jpg" for name in ("cats", "dogs") for i in range(3)))


def table(folder: Path, text: str, name: str = "labels.csv", **options: Any) -> SourceOptions:
    (folder / name).write_text(text)
    return SourceOptions(labels=folder / name, **options)


def test_a_table_lists_the_samples_in_its_own_order(photos: Path, tmp_path: Path) -> None:
    (photos / "dogs/0.jpg").write_bytes(b"12345")
    source = scan(photos, table(tmp_path, "label,path,score\nb,dogs/0.jpg,1.5\na,cats/2.jpg,\n"))
    assert source.classes == ("a", "b")
    assert source.table.column_names == ["path", "source_nbytes", "source_mtime_ns", "label", "score"]
    assert source.table.drop_columns("source_mtime_ns").to_pylist() == [
        {"path": "dogs/0.jpg", "source_nbytes": 5, "label": 1, "score": 1.5},
        {"path": "cats/2.jpg", "source_nbytes": 1, "label": 0, "score": None},
    ]
    assert source.table.schema.field("label").type == pa.int32()


TWO = "path,label\ncats/0.jpg,cat\ndogs/0.jpg,dog\n"
DIGITS = "path,label\ncats/0.jpg,10\ndogs/0.jpg,9\n"
TABLES: list[tuple[str, dict[str, Any], str | None, dict[str, Any], str]] = [
    ("path,label\ncats/0.jpg,70\ncats/1.jpg,-1\n", {}, None, {"classes": None, "labels": [70, -1]}, "whole numbers"),
    ("path\ncats/0.jpg\n", {}, None, {"paths": ["cats/0.jpg"], **FLAT}, "no labels are needed"),
    ("path\n.hidden.jpg\nnotes.txt\n", {}, None, {"paths": [".hidden.jpg", "notes.txt"]}, "hidden and other files"),
    (TWO, {"classes": ["dog", "ant", "cat"]}, None, {"classes": ("dog", "ant", "cat"), "labels": [2, 0]}, "a list"),
    (DIGITS, {}, "class", {"classes": ("9", "10"), "labels": [1, 0]}, "digits are names, by their values, if told"),
    (DIGITS, {}, "text", {"classes": ("10", "9")}, "and by their texts"),
    (DIGITS, {"classes": ["10", "9"]}, "class", {"classes": ("10", "9"), "labels": [0, 1]}, "and by a list"),
    ("path,n\n{photos}/dogs/1.jpg,1\ncats/0.jpg,2\n", {}, None, {"paths": ["dogs/1.jpg", "cats/0.jpg"]}, "absolute"),
    ("path,caption\ncats/0.jpg,a\ndogs/0.jpg,b\ncats/0.jpg,c\n", {"repeated": "list"}, None,
     {"paths": ["cats/0.jpg", "dogs/0.jpg"]}, "repeated rows are one sample"),
    ("path\ncats/0.jpg\nkittens/0.jpg\ncat.jpg\n", {}, None, {"paths": ["cats/0.jpg", "kittens/0.jpg", "cat.jpg"]},
     "one file by several paths is several samples"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "label_type", "expected", "reason"), TABLES)
def test_a_table_says_what_the_samples_are(
    text: str, options: dict[str, Any], label_type: Any, expected: dict[str, Any], reason: str,
    photos: Path, tmp_path: Path,
) -> None:  # fmt: skip
    make(photos, ".hidden.jpg", "notes.txt", "kittens -> cats", "cat.jpg -> cats/0.jpg")
    types = [ColumnType("label", label_type)] if label_type else []
    source = scan(photos, table(tmp_path, text.replace("{photos}", str(photos)), **options), types=types)
    assert facts(source, *expected) == expected, reason


LISTS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("dogs/1.jpg\ncats/0.jpg\ndogs/0.jpg\n", {}, {"classes": ("cats", "dogs"), "labels": [1, 0, 1]}, "folders"),
    ("dogs/1.jpg\n", {"classes": ["pets", "dogs"]}, {"labels": [1]}, "a class list"),
    ("dogs/1.jpg\n1.jpg\n", {}, {"classes": None, "labels": None}, "one path has no folder"),
    ("dogs/1.jpg pet\ncats/0.jpg lion\n", {}, {"classes": ("lion", "pet")}, "labels of its own"),
    ("dogs/1.jpg 7\ncats/0.jpg 2\n", {}, {"classes": None, "labels": [7, 2]}, "numbers of its own"),
    ("val/dogs/2.jpg\ntrain/cats/1.jpg\n", {"split": "folders"}, {"classes": ("cats", "dogs"), "labels": [1, 0]},
     "the second folder, with splits"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "expected", "reason"), LISTS)
def test_a_list_has_the_labels_of_its_lines_or_the_folders_as_classes(
    text: str, options: dict[str, Any], expected: dict[str, Any], reason: str, photos: Path, tmp_path: Path
) -> None:
    make(photos, "1.jpg", "train/cats/1.jpg", "val/dogs/2.jpg")
    source = scan(photos, table(tmp_path, text, "train.txt", **options))
    assert facts(source, *expected) == expected, reason
    assert paths(source) == [line.split()[0] for line in text.splitlines()]


NO_CLASSES = "--classes needs a label column of strings"
TABLES_REFUSED = [
    (TWO, ["cat"], "the label 'dog' is not in the class list of 1 names"),
    ("path\ncats/0.jpg\n", ["cat"], NO_CLASSES),
    ("path,label\ncats/0.jpg,5\n", ["5"], f"{NO_CLASSES}; --column-type label:class reads numbers as their names"),
    ("path,label\ncats/0.jpg,\1\0\0\0\n", None, r"the label b'\x01\x00\x00\x00' is not text: it looks like a little"),
    ("path\ncats\\0.jpg\n", None, "does not exist; expected / between folders, not a backslash"),
]


@pytest.mark.parametrize(("text", "classes", "message"), TABLES_REFUSED)
def test_a_table_of_other_labels_or_paths_is_refused(
    text: str, classes: list[str] | None, message: str, photos: Path, tmp_path: Path
) -> None:
    assert message in refusal(photos, table(tmp_path, text, classes=classes))


def test_options_of_tables_need_one(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [ColumnType("label", "class")]
    assert "--column-type is for label tables, label tables of buckets, Parquet files" in refusal(photos, types=typed)
    monkeypatch.chdir(tmp_path)
    assert "labels './none': expected a name that ends with" in refusal(photos, SourceOptions(labels="./none"))
    assert "is a file; expected a folder" in refusal(photos / "cats/0.jpg", table(tmp_path, "path\ncats/0.jpg\n"))


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
    make(photos, "broken.jpg -> nowhere", "loop.jpg -> loop.jpg", "zero -> /dev/zero", "out -> ../elsewhere")
    make(photos, "out.jpg -> ../elsewhere/1.jpg")
    os.mkfifo(photos / "pipe")
    said = refusal(photos, table(tmp_path, f"path\ncats/0.jpg\n{path}\nalso gone\n"))
    assert said.startswith(f"labels '{tmp_path}/labels.csv': 2 of its 3 paths cannot be used, the first: ")
    assert message in said, reason
    if path.startswith("out"):
        assert paths(scan(photos, table(tmp_path, f"path\n{path}\n"), follow_links=True)) == [path]


def test_a_table_is_looked_up_a_piece_at_a_time(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "path,n\n" + "".join(f"{name}/{i}.jpg,{i}\n" for i in (2, 0, 1) for name in ("dogs", "cats"))
    whole = scan(photos, table(tmp_path, text))
    monkeypatch.setattr("presize.sources.columns.ROWS_AT_ONCE", 4)
    assert scan(photos, table(tmp_path, text)).table.equals(whole.table)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20))
def test_any_name_in_a_table_is_a_sample_or_a_one_line_error(name: str, photos: Path, tmp_path: Path) -> None:
    options = table(tmp_path, f'{{"path": {json.dumps(name)}}}\n', "labels.jsonl")
    try:
        source = scan(photos, options)
    except SourceError as error:
        assert str(error).isprintable()
    else:
        assert paths(source) == [name]


# Names from Windows

WINDOWS = ("train\\cats\\1.jpg", "train\\dogs\\2.jpg")
SAID = (
    r"2 of 2 names hold backslashes, such as 'train\\cats\\1.jpg': folders on Windows, but not here, and no sample has"
)


def test_names_with_backslashes_that_leave_samples_without_labels_are_said(tmp_path: Path) -> None:
    root = make(tmp_path / "raw", *WINDOWS)
    with pytest.warns(PresizeWarning, match=SAID + " a label; unpack the archive with unzip, which makes them$"):
        assert len(scan(root).table) == 2
    with pytest.warns(PresizeWarning, match=SAID):
        scan(root, table(tmp_path, "\n".join(WINDOWS), "list.txt"))
    one_class = make(tmp_path / "one", *(f"data/{name}" for name in WINDOWS))
    with pytest.warns(PresizeWarning, match="2 of 2 names hold backslashes, .* and all samples are of one class; unp"):
        assert scan(one_class).classes == ("data",)
    write_tar(tmp_path / "a.tar", [(name, picture(1)) for name in WINDOWS])
    with pytest.warns(PresizeWarning, match=SAID + " a label; write it again with / in names$"):
        scan(tmp_path / "a.tar")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan(root, SourceOptions(labels="none"))
        assert scan(root, table(tmp_path, f"path,label\n{WINDOWS[0]},cat\n")).classes == ("cat",)
