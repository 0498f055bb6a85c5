"""Class lists, and labels as their numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from builds import SERIAL, SMALL
from presize.builder.run import build_dataset
from presize.errors import DatasetError, SourceError
from presize.sources.labels import class_labels, read_classes


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def numbered(values: list[str], classes: list[str] | None = None) -> tuple[list[int], tuple[str, ...]]:
    numbers, known = class_labels(pa.chunked_array([pa.array(values, pa.large_string())]), classes)
    assert numbers.type == pa.int32()
    return numbers.to_pylist(), known


def test_labels_are_numbered_in_the_order_of_their_names_or_by_the_class_list() -> None:
    assert numbered(["dog", "Cat", "é", "dog", "cat"]) == ([2, 0, 3, 2, 1], ("Cat", "cat", "dog", "é"))
    assert numbered(["dog", "cat"], ["dog", "ant", "cat"]) == ([0, 2], ("dog", "ant", "cat"))
    with pytest.raises(SourceError, match=r"the label 'c\\nat' is not in the class list of 1 names"):
        numbered(["dog", "c\nat"], ["dog"])


@pytest.mark.parametrize(
    ("content", "names", "reason"),
    [
        (b"dog\ncat\n", ("dog", "cat"), "in their order"),
        (b"dog\ncat", ("dog", "cat"), "no newline at the end"),
        (b"dog\r\ncat\r\n", ("dog", "cat"), "from Windows"),
        (b"\xef\xbb\xbfdog\n", ("dog",), "with a byte order mark"),
        (b"\ndog\n\n\ncat\n", ("dog", "cat"), "blank lines are none"),
        (b" dog \nbull dog\n", (" dog ", "bull dog"), "spaces are part of a name"),
        ("Hündin\u2028🐈\n".encode(), ("Hündin\u2028🐈",), "a line ends with a newline and nothing else"),
        (b"a\rb\n", ("a\rb",), "a line ends with a newline and nothing else"),
    ],
)
def test_a_class_list_is_a_name_a_line(content: bytes, names: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    assert read_classes(written(tmp_path / "classes.txt", content)) == names, reason


@pytest.mark.parametrize(
    ("content", "message", "reason"),
    [
        (b"", "expected at least one name, got none", "nothing at all"),
        (b"\n\n", "expected at least one name, got none", "blank lines"),
        (b"dog\ncat\ndog\n", "'dog' 2 times", "which of the two numbers?"),
        (b"caf\xe9\n", "it is not UTF-8 text; expected one name per line", "Latin-1"),
        (bytes(range(256)), "is not UTF-8 text; expected one name per line", "an image, say"),
    ],
)
def test_what_is_no_class_list_is_refused(content: bytes, message: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^classes") as caught:
        read_classes(written(tmp_path / "cl\nasses.txt", content))
    assert message in str(caught.value), reason
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["no\nwhere", "x" * 300])
def test_a_class_list_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^classes") as caught:
        read_classes(tmp_path / name)
    assert repr(str(tmp_path / name)) in str(caught.value) and str(caught.value).isprintable()


def test_the_classes_of_a_dataset_are_taken_over(dataset: Path, raw: Path, tmp_path: Path) -> None:
    assert read_classes(dataset) == tuple(sorted(os.listdir(raw)))
    with pytest.raises(DatasetError, match="is not a presize dataset"):
        read_classes(tmp_path)
    one_class = min(path for path in raw.iterdir() if path.is_dir())
    build_dataset(one_class, tmp_path / "out", SMALL, SERIAL)
    with pytest.raises(SourceError, match=r"^classes '.*/out': the dataset has no classes$"):
        read_classes(tmp_path / "out")
