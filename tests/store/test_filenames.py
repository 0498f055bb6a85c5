"""Names of image files: distinct, with a matching suffix, and never outside of the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import SourceError
from presize.options import Format
from presize.store.filenames import can_be_made, file_names, folder_files, is_safe, path_problem, unsafe_paths

PARTS = st.lists(
    st.sampled_from(["a", "b", ".", "..", ".jpg", ".JPEG", ".png", ".gif", ".webp", " ", "\n", "\\", "é", "🐈", "-"]),
    min_size=1,
    max_size=4,
).map("".join)
"""Names of files and folders, combined from known problematic cases."""

PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join).filter(is_safe)


@st.composite
def trees(draw: st.DrawFn) -> list[str]:
    """Draw the files of one folder: distinct, and none of them is also a folder."""
    paths = sorted(draw(st.sets(PATHS, min_size=1, max_size=12)))
    return [path for path in paths if not any(other.startswith(path + "/") for other in paths)]


def named(paths: list[str], format: Format = "jpeg") -> list[str]:
    return file_names(pa.array(paths, pa.large_string()), format).to_pylist()


def test_duplicate_paths_are_refused() -> None:
    with pytest.raises(SourceError, match="a path occurs twice"):
        named(["a.jpg", "a.jpg"])


@given(paths=trees(), format=st.sampled_from(get_args(Format)))
def test_there_is_one_file_per_source_in_the_same_folders_and_none_is_a_folder(
    paths: list[str], format: Format
) -> None:
    names = named(paths, format)
    assert len({*names}) == len(paths)
    assert not [name for name in names for other in names if other.startswith(name + "/")]
    assert list(map(os.path.dirname, names)) == list(map(os.path.dirname, paths))
    assert all(map(is_safe, names))


@given(paths=trees(), format=st.sampled_from(get_args(Format)))
def test_a_valid_name_is_kept_independently_of_the_others(paths: list[str], format: Format) -> None:
    names = named(paths, format)
    kept = [path for path in paths if file_names(pa.array([path], pa.large_string()), format)[0].as_py() == path]
    assert [names[paths.index(path)] for path in kept] == kept
    assert named(names, format) == names, "all of them are valid now"


@given(paths=trees(), cut=st.integers(0, 12))
def test_names_do_not_depend_on_the_chunks_of_the_column(paths: list[str], cut: int) -> None:
    column = pa.array(paths, pa.large_string())
    pieces = pa.chunked_array([column[:cut], column[cut:]], pa.large_string())
    assert file_names(pieces, "jpeg").to_pylist() == named(paths)


@pytest.mark.parametrize(
    ("paths", "names", "reason"),
    [
        (["a.jpg"], ["a.jpg"], "it is valid"),
        (["a.JPEG", "b.jpe", "c.jfif"], ["a.JPEG", "b.jpe", "c.jfif"], "JPEG has many suffixes"),
        (["a.png"], ["a.jpg"], "the content is JPEG now"),
        (["a.png", "a.gif"], ["a.png.jpg", "a.gif.jpg"], "they would collide"),
        (["a.png", "a.jpg"], ["a.png.jpg", "a.jpg"], "the valid one keeps its name"),
        (["a.png", "a.gif", "a.png.jpg"], ["a.png.jpg.jpg", "a.gif.jpg", "a.png.jpg"], "they collide twice"),
        (["a.png", "a.gif", "a.png.bmp"], ["a.png.jpg.jpg", "a.gif.jpg", "a.png.bmp.jpg"], "one suffix per collision"),
        (["x/a.png", "y/a.png"], ["x/a.jpg", "y/a.jpg"], "in two folders they do not collide"),
        (["a.png", "a.jpg/b.png"], ["a.png.jpg", "a.jpg/b.jpg"], "it would collide with a folder"),
        (["a.png", "a.jpg/b/c.png"], ["a.png.jpg", "a.jpg/b/c.jpg"], "it would collide with a folder of folders"),
        (["v1.0/img"], ["v1.0/img.jpg"], "the dot belongs to the folder"),
        (["img"], ["img.jpg"], "without a suffix"),
        (["img."], ["img..jpg"], "an empty suffix is none"),
        ([".png", "x/.hidden"], [".png.jpg", "x/.hidden.jpg"], "a leading dot starts no suffix"),
        (["a.tar.gz"], ["a.tar.jpg"], "only the last suffix"),
        (["a.jpg\n", "a\n.png"], ["a.jpg", "a\n.jpg"], "a newline is a character like any other"),
        (["c a t.PNG", "🐈.heic"], ["c a t.jpg", "🐈.jpg"], "spaces and emoji"),
    ],
)
def test_jpeg_files_get_matching_names(paths: list[str], names: list[str], reason: str) -> None:
    assert named(paths) == names, reason


def test_each_format_has_its_suffix() -> None:
    names = {format: named(["a.bmp", "a.tif"], format)[0] for format in get_args(Format)}
    assert names == {"jpeg": "a.bmp.jpg", "png": "a.bmp.png", "webp": "a.bmp.webp", "raw": "a.bmp.png"}


def test_an_empty_list_of_paths_yields_no_names() -> None:
    assert file_names(pa.chunked_array([], pa.large_string()), "jpeg").to_pylist() == named([]) == []


def test_a_name_of_255_bytes_is_the_longest() -> None:
    longest = "d" * 200 + "/" + "é" * 125 + "a.jpg"
    assert named([longest]) == [longest]


def test_the_first_name_that_becomes_too_long_is_named() -> None:
    with pytest.raises(SourceError, match=r"'x{254}\.jpg' would be longer than 255 bytes"):
        named(["a.jpg", "x" * 254, "y" * 254])


def files_of_a_folder(path: str, classes: list[str]) -> list[str]:
    return folder_files(pa.chunked_array([[path]], pa.large_string()), "jpeg", classes).to_pylist()


@pytest.mark.parametrize("name", ["é" * 128, "a/b", "..", ""])
def test_a_class_that_cannot_be_a_folder_is_named(name: str) -> None:
    assert files_of_a_folder("cats/a.png", ["cats", "é" * 127 + "d"]) == ["cats/a.jpg"], "of 255 bytes"
    with pytest.raises(SourceError, match=f"creates a folder for each class, but {name!r} cannot be a folder name"):
        files_of_a_folder("cats/a.png", ["cats", name])


@pytest.mark.parametrize("path", ["manifest.json/a.png", ".presize/a.jpg", "index-3.arrow/b.png"])
def test_a_file_at_a_reserved_path_is_named(path: str) -> None:
    with pytest.raises(SourceError, match="reserves that name for presize's own files"):
        files_of_a_folder(path, [])


SAFE = ["a", "a/b/c.jpg", "...", "a/..b/c..", "a\\..\\b", "a\n"]
UNSAFE = ["", "/a", "a/", "a//b", ".", "./a", "..", "a/../b", "a/..", "a\0b"]


def test_a_safe_path_stays_inside() -> None:
    assert [path for path in (*SAFE, *UNSAFE) if is_safe(path)] == SAFE


@given(path=st.lists(st.sampled_from(["a", ".", "..", "/"]), max_size=6).map("".join))
def test_a_safe_path_is_its_own_normal_form(path: str) -> None:
    inside = Path("/root", path)
    normal = os.path.normpath(inside) == f"/root/{path}" and path != ""
    assert is_safe(path) == normal
    assert (path_problem(pa.array([path, "other"], pa.large_string())) is None) == normal


EDGES = ["a/" * 250 + "x", "a/" * 251 + "x", "é" * 2047, "é" * 2048]


@pytest.mark.parametrize("path", [*SAFE, *UNSAFE, *EDGES], ids=range(len([*SAFE, *UNSAFE, *EDGES])))
def test_all_functions_agree_on_a_path(path: str) -> None:
    alone = pa.array([path], pa.large_string())
    assert can_be_made(path) == (not unsafe_paths(alone)[0].as_py()) == (path_problem(alone) is None)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["a", "b", "a"], "the path 'a' twice"),
        (["a", "b", "c", "b", "c"], "the path 'b' twice"),
        (["a/" * 3000 + "b"], "longer than 4095 bytes"),
        (["a", "b/" * 3000 + "c", "d/" * 3000 + "e"], "the path 'b/b/"),
        (["a/" * 990 + "x.png"], "which has more than 250 folders"),
        (["a", "../b"], "the path '../b', which leads out of the folder"),
    ],
)
def test_paths_that_cannot_be_files_of_a_folder_are_named(paths: list[str], words: str) -> None:
    assert words in (path_problem(pa.array(paths, pa.large_string())) or "")
