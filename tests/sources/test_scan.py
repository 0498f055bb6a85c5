"""Listings of sources: their order and their refusals."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builds import put
from effort import examples
from foreign import write_tar
from listings import labels, make, paths, rejected
from presize.errors import PresizeWarning, SourceError
from presize.options import SourceOptions
from presize.sources.scan import scan
from presize.store.rejects import UNREADABLE, Reject

# Order


def image_folder(root: str) -> list[tuple[str, int]]:
    """List the samples of torchvision's ImageFolder, if every file were an image."""
    found = []
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            found += [(os.path.relpath(os.path.join(folder, file), root), number) for file in sorted(files)]
    return found


LETTERS = [*"abA-~0 \n\t!.é中🐈\uffff\x7f\\", "e\u0301"]
"""Characters that sort around the slash, and ones that sort differently in UTF-16."""
NAMES = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3).map("".join).filter(lambda s: not s.startswith("."))
TREES = st.lists(st.lists(NAMES, min_size=2, max_size=4).map("/".join), min_size=1, max_size=15)


@pytest.mark.filterwarnings("ignore:source .* names contain backslashes")
@pytest.mark.filterwarnings("ignore:source .* differ only in whitespace")
@given(tree=TREES)
@settings(max_examples=examples(50), deadline=None)
def test_order_and_labels_are_those_of_imagefolder_and_without_labels_of_a_sorted_walk(tree: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file in tree:
            with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):  # its name is taken
                make(Path(name), file)
        source = scan(name)
        assert list(zip(paths(source), labels(source) or [], strict=True)) == image_folder(name)
        assert source.classes == tuple(sorted(os.listdir(name)))
        walked = [(folder, sorted(files)) for folder, _, files in sorted(os.walk(name))]
        expected = [os.path.relpath(os.path.join(folder, file), name) for folder, files in walked for file in files]
        assert paths(scan(name, SourceOptions(labels="none"))) == expected


def test_order_does_not_depend_on_the_number_of_files_listed_at_once(
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


# Listed files


def test_sizes_and_times_are_those_of_the_files(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "a/2", "b/1 -> ../a/1")
    (tmp_path / "a/1").write_bytes(b"12345")
    os.utime(tmp_path / "a/2", ns=(0, 1_234_567_890_123_456_789))
    table = scan(tmp_path).table
    assert table.column("source_nbytes").to_pylist() == [5, 1, 5], "a link has the size of its target"
    assert table.column("source_mtime_ns").to_pylist()[1] == 1_234_567_890_123_456_789


@pytest.mark.parametrize("folder", [None, "/dev/shm"], ids=["disk", "tmpfs"])  # smaller range on ext4, xfs
def test_a_time_outside_the_range_of_the_index_counts_as_the_nearest_one(folder: str | None, tmp_path: Path) -> None:
    if folder is not None and not os.access(folder, os.W_OK):
        pytest.skip(f"{folder} cannot be written to")
    with tempfile.TemporaryDirectory(dir=folder or tmp_path) as photos:
        file = make(Path(photos), "a/1.jpg") / "a/1.jpg"
        for seconds in (-1, 15_000_000_000, 2**62, -11_676_096_000):  # 1969, 2445, the last, 1600
            os.utime(file, (seconds, seconds))
            for options in (table(tmp_path, "path\na/1.jpg\n"), SourceOptions()):
                mtimes = scan(photos, options).table.column("source_mtime_ns").to_pylist()
                assert mtimes == [min(max(file.stat().st_mtime_ns, -(2**63)), 2**63 - 1)]


def test_a_path_longer_than_the_system_allows_is_rejected(tmp_path: Path) -> None:
    here = os.open(make(tmp_path, "a/1"), os.O_RDONLY)
    for _ in range(17):  # folders of 250 characters each, created one by one: PATH_MAX is 4096
        os.mkdir("d" * 250, dir_fd=here)
        deeper = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    source = scan(tmp_path)
    assert paths(source) == ["a/1"]
    assert list(rejected(source).values()) == ["cannot be accessed: File name too long"]


def test_many_files_do_not_create_many_python_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/0", "b/")
    for i in range(1, 4000):
        os.link(tmp_path / "a/0", tmp_path / f"{'ab'[i % 2]}/a name of thirty characters {i:04}")
    monkeypatch.setattr("presize.sources.tree.PATHS_AT_ONCE", 256)
    scan(tmp_path)  # imports and caches
    tracemalloc.start()
    try:
        source = scan(tmp_path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.table) == 4000
    assert kept < 4000 * 8, "bytes of Python memory, so less than a pointer per file"
    assert peak < 4000 * 56, "bytes, so never an object per file"


# Links


def test_pipes_and_sockets_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = make(tmp_path, "a/1.jpg")
    os.mkfifo(inside / "a/pipe.jpg")  # opening it would block forever
    monkeypatch.chdir(inside / "a")  # the name of a socket may have 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        source = scan(inside)
    assert rejected(source) == dict.fromkeys(["a/pipe.jpg", "a/socket.jpg"], "neither a file nor a folder")
    assert paths(source) == ["a/1.jpg"]


def test_the_source_may_be_a_link_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "source"
    make(inside, "a/1.jpg", f"b/2.jpg -> {inside}/a/1.jpg", "../link -> source")
    source = scan(inside.parent / "link")
    assert (source.root, paths(source)) == (inside.resolve(), ["a/1.jpg", "b/2.jpg"])
    monkeypatch.chdir(inside / "a")
    assert scan("..") == scan(inside)
    assert scan(".").root == (inside / "a").resolve()


# Problematic names and files


class Entry:
    """An entry of os.scandir. Its stat fails with a disk error if its name starts with "bad", and with "not found" if
    it starts with "gone"."""

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
        for name, number in (("\nforbidden", errno.EACCES), ("lost+found", errno.EPERM), ("stale", errno.ESTALE)):
            if path.endswith(name):
                raise OSError(number, os.strerror(number), path)
        with listed(path) as entries:
            yield map(Entry, entries)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.usefixtures("failing_disk")
@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [("bad.jpg", UNREADABLE, "Input/output error"), ("gone.jpg", "SourceError", "No such file or directory")],
)
def test_a_file_that_the_disk_cannot_find_or_that_disappears_is_rejected(
    name: str, error: str, reason: str, tmp_path: Path
) -> None:
    source = scan(make(tmp_path, "a/1.jpg", f"a/{name}"))
    assert list(source.rejects) == [Reject(f"a/{name}", error, f"cannot be accessed: {reason}")]
    assert paths(source) == ["a/1.jpg"]


@pytest.mark.usefixtures("failing_disk")
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("b/bad/1.jpg", "/b/bad': Input/output error"),
        ("bad/1.jpg", "/bad': Input/output error"),
        ("stale/1.jpg", "/stale': Stale file handle"),
    ],
)
def test_a_folder_on_a_failing_disk_stops_the_scan(file: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^folder '") as caught:
        scan(make(tmp_path, "a/1.jpg", file))
    assert str(caught.value).endswith(said)


@pytest.mark.usefixtures("failing_disk")
@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (("a/1.jpg", "b/2.jpg", "lost+found/1"), ("a", "b")),
        (("a/1.jpg", "a/\nforbidden/1.jpg"), ("a",)),
        (("1.jpg", "lost+found/1"), None),
        (("1.tar", "lost+found/1"), None),
        (("a/1.tar", "b/\nforbidden/2.tar"), None),
    ],
)
def test_a_forbidden_folder_is_skipped_and_not_a_class(
    names: tuple[str, ...], classes: tuple[str, ...] | None, tmp_path: Path
) -> None:
    make(tmp_path, *names)
    for name in names:
        if name.endswith(".tar"):
            write_tar(tmp_path / name, [("0.jpg", b"x")])
    with pytest.warns(PresizeWarning, match="1 folder left out with everything inside; the first: "):
        source = scan(tmp_path)
    (reject,) = source.rejects
    assert (reject.path, reject.error) == (names[-1].rpartition("/")[0], UNREADABLE)
    assert reject.reason in ("cannot be accessed: Permission denied", "cannot be accessed: Operation not permitted")
    assert (source.classes, len(source.table)) == (classes, len(names) - 1)


# Label tables


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Create six images, three of them cats."""
    return make(tmp_path / "photos", *(f"{name}/{i}.jpg" for name in ("cats", "dogs") for i in range(3)))


def table(folder: Path, text: str, name: str = "labels.csv", **options: Any) -> SourceOptions:
    (folder / name).write_text(text)
    return SourceOptions(labels=folder / name, **options)


def test_a_table_is_looked_up_piece_by_piece(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_columns_named_like_those_of_places_are_kept(tmp_path: Path) -> None:
    put(tmp_path / "raw" / "a.png", 1)
    (tmp_path / "table.csv").write_text("path,offset:x,run\na.png,3,4\n")
    assert scan(tmp_path / "raw", SourceOptions(labels=tmp_path / "table.csv")).fields == ["offset:x", "run"]
    image = (tmp_path / "raw" / "a.png").read_bytes()
    pyarrow.parquet.write_table(pa.table({"image": [image], "offset:x": [3], "run": [4]}), tmp_path / "a.parquet")
    assert scan(tmp_path / "a.parquet").fields == ["offset_x", "run_"]
