"""Image files of a folder dataset: written under hidden names, renamed once all are there, removed without a trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from presize.builder.tasks.staging import is_written, remove_files, remove_staged, stage, staged_path, unstage
from presize.errors import BuildError


def tree(root: Path) -> list[str]:
    """Everything below a folder; folders end with a slash."""
    return sorted(path.relative_to(root).as_posix() + "/" * path.is_dir() for path in root.rglob("*"))


def make(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x")


def test_a_staged_file_is_hidden_beside_its_place(tmp_path: Path) -> None:
    stage(tmp_path, "cats/1.jpg", 7, b"image")
    assert tree(tmp_path) == ["cats/", "cats/.000000007.tmp"]
    assert staged_path(tmp_path, "cats/1.jpg", 7).read_bytes() == b"image"


def test_a_longest_name_is_staged_all_the_same(tmp_path: Path) -> None:
    stage(tmp_path, "x" * 251 + ".jpg", 7, b"image")
    unstage(tmp_path, "x" * 251 + ".jpg", 7)
    assert tree(tmp_path) == ["x" * 251 + ".jpg"]


def test_staging_again_replaces_what_was_staged(tmp_path: Path) -> None:
    stage(tmp_path, "1.jpg", 7, b"an image cut short")
    stage(tmp_path, "1.jpg", 7, b"image")
    assert staged_path(tmp_path, "1.jpg", 7).read_bytes() == b"image"


def test_unstaging_gives_a_file_its_name(tmp_path: Path) -> None:
    stage(tmp_path, "cats/1.jpg", 7, b"image")
    unstage(tmp_path, "cats/1.jpg", 7)
    assert tree(tmp_path) == ["cats/", "cats/1.jpg"]
    assert (tmp_path / "cats/1.jpg").read_bytes() == b"image"


def test_unstaging_replaces_the_file_of_an_older_dataset(tmp_path: Path) -> None:
    make(tmp_path, "1.jpg")
    stage(tmp_path, "1.jpg", 7, b"image")
    unstage(tmp_path, "1.jpg", 7)
    assert (tmp_path / "1.jpg").read_bytes() == b"image"


def test_unstaging_twice_changes_nothing(tmp_path: Path) -> None:
    stage(tmp_path, "1.jpg", 7, b"image")
    unstage(tmp_path, "1.jpg", 7)
    unstage(tmp_path, "1.jpg", 7)
    assert (tmp_path / "1.jpg").read_bytes() == b"image"


@pytest.mark.parametrize(
    ("publishing", "place", "nbytes", "expected", "reason"),
    [
        (False, "staged", 5, True, "it waits"),
        (False, "staged", 4, False, "it was cut short"),
        (False, "named", 5, False, "that is the file of an older dataset"),
        (True, "named", 5, True, "it has its name already"),
        (True, "named", 4, False, "another file has its name"),
        (True, "gone", 5, False, "it is nowhere"),
    ],
)
def test_a_record_counts_as_written_where_it_may_be(
    publishing: bool, place: str, nbytes: int, expected: bool, reason: str, tmp_path: Path
) -> None:
    stage(tmp_path, "1.jpg", 7, b"image")
    if place != "staged":
        unstage(tmp_path, "1.jpg", 7)
    if place == "gone":
        (tmp_path / "1.jpg").unlink()
    assert is_written(tmp_path, "1.jpg", 7, nbytes, publishing) is expected, reason


def test_a_file_whose_name_a_folder_has_is_named(tmp_path: Path) -> None:
    stage(tmp_path, "1.jpg", 7, b"image")
    make(tmp_path, "1.jpg/2.jpg")
    with pytest.raises(BuildError, match=r"cannot write .*/1\.jpg: Is a directory"):
        unstage(tmp_path, "1.jpg", 7)


def test_a_file_whose_folder_is_a_file_is_named(tmp_path: Path) -> None:
    make(tmp_path, "cats")
    with pytest.raises(BuildError, match=r"cannot write .*/cats/1\.jpg: File exists"):
        stage(tmp_path, "cats/1.jpg", 7, b"image")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BuildError, match="No space left on device"):
        stage(tmp_path, "1.jpg", 7, b"image")


def test_what_was_staged_is_removed_with_the_folders_it_leaves_empty(tmp_path: Path) -> None:
    for sample, file in enumerate(["1.jpg", "cats/1.jpg", "dogs/a/b/1.jpg", "birds/1.jpg"]):
        stage(tmp_path, file, sample, b"image")
    unstage(tmp_path, "birds/1.jpg", 3)
    remove_staged(tmp_path)
    assert tree(tmp_path) == ["birds/", "birds/1.jpg"]


def test_files_that_only_look_staged_are_left_alone(tmp_path: Path) -> None:
    others = ["000000001.tmp", ".000000001.tmp.jpg", ".1.tmp", ".000000001.tmp\n", "a/.x000000001.tmp"]
    make(tmp_path, *others)
    remove_staged(tmp_path)
    assert tree(tmp_path) == sorted([*others, "a/"])


def test_nothing_staged_leaves_empty_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "empty class").mkdir()
    remove_staged(tmp_path)
    assert tree(tmp_path) == ["empty class/"]


def test_files_are_removed_with_the_folders_that_this_leaves_empty(tmp_path: Path) -> None:
    make(
        tmp_path,
        "1.jpg",
        "cats/1.jpg",
        "cats/2.jpg",
        "dogs/a/b/1.jpg",
        "dogs/a-b/1.jpg",
        "birds/a/1.jpg",
        "birds/1.jpg",
    )
    (tmp_path / "empty class").mkdir()
    remove_files(tmp_path, ["1.jpg", "cats/1.jpg", "dogs/a/b/1.jpg", "dogs/a-b/1.jpg", "birds/a/1.jpg"])
    assert tree(tmp_path) == ["birds/", "birds/1.jpg", "cats/", "cats/2.jpg", "empty class/"]


def test_the_dataset_folder_itself_stays(tmp_path: Path) -> None:
    make(tmp_path, "out/1.jpg")
    remove_files(tmp_path / "out", ["1.jpg"])
    assert tree(tmp_path) == ["out/"]


def test_files_that_have_gone_already_do_not_matter(tmp_path: Path) -> None:
    make(tmp_path, "cats/1.jpg")
    remove_files(tmp_path, ["cats/1.jpg", "cats/2.jpg", "dogs/1.jpg"])
    assert tree(tmp_path) == []


def test_a_file_that_cannot_be_removed_is_a_build_error(tmp_path: Path) -> None:
    make(tmp_path, "1.jpg/2.jpg")
    with pytest.raises(BuildError, match="Is a directory"):
        remove_files(tmp_path, ["1.jpg"])


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(tmp_path, "cats/1.jpg", 7, b"image")
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        remove_staged(tmp_path)


def refuse(folder: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
