"""Class lists, numbered labels, and splits: by folder, and by shares of a hash of the path."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builds import SERIAL, SMALL
from listings import make
from presize.builder.run import build_dataset
from presize.errors import DatasetError, SourceError
from presize.options import SourceOptions, parse_shares
from presize.sources.contents import Source
from presize.sources.labels import class_labels, draw_splits, read_classes
from presize.sources.scan import scan


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
    with pytest.raises(SourceError, match=r"the label 'c\\nat' is not in the class list of 1 name"):
        numbered(["dog", "c\nat"], ["dog"])


@pytest.mark.parametrize(
    ("content", "names", "reason"),
    [
        (b"dog\ncat\n", ("dog", "cat"), "in their order"),
        (b"dog\r\ncat\r\n", ("dog", "cat"), "from Windows"),
        (b"\xef\xbb\xbfdog\n", ("dog",), "with a byte order mark"),
        (b" dog \nbull dog\n", (" dog ", "bull dog"), "spaces are part of a name"),
        ("Hündin\u2028🐈\n".encode(), ("Hündin\u2028🐈",), "a line ends with a newline and nothing else"),
        (b"a\rb\n", ("a\rb",), "a line ends with a newline and nothing else"),
    ],
)
def test_a_class_list_has_a_name_per_line(content: bytes, names: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    assert read_classes(written(tmp_path / "classes.txt", content)) == names, reason


@pytest.mark.parametrize(
    ("content", "message", "reason"),
    [
        (None, "No such file or directory; expected a readable file: an absolute path, or", "missing"),
        (b"", "expected at least one name, got none", "empty"),
        (b"\n\n", "expected at least one name, got none", "blank lines"),
        (b"dog\ncat\ndog\n", "'dog' 2 times", "which of the two numbers?"),
        (b"caf\xe9\n", "it is not UTF-8 text; expected one name per line", "Latin-1"),
    ],
)
def test_invalid_class_lists_are_refused(content: bytes | None, message: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "cl\nasses.txt"
    with pytest.raises(SourceError, match=r"^classes") as caught:
        read_classes(path if content is None else written(path, content))
    assert message in str(caught.value), reason
    assert repr(str(path)) in str(caught.value) and str(caught.value).isprintable()


def test_the_classes_of_a_dataset_can_be_used(dataset: Path, raw: Path, tmp_path: Path) -> None:
    assert read_classes(dataset) == tuple(sorted(os.listdir(raw)))
    with pytest.raises(DatasetError, match="is not a presize dataset"):
        read_classes(tmp_path)
    one_class = min(path for path in raw.iterdir() if path.is_dir())
    build_dataset(one_class, tmp_path / "out", SMALL, SERIAL)
    with pytest.raises(SourceError, match=r"^classes '.*/out': the dataset has no classes$"):
        read_classes(tmp_path / "out")


def by_path(source: Source) -> dict[str, str]:
    return dict(zip(source.table["path"].to_pylist(), source.table["split"].to_pylist(), strict=True))


def drawn(paths: list[str], text: str = "train=0.9,val=0.1", seed: int = 0) -> dict[str, str]:
    splits = draw_splits(pa.chunked_array([pa.array(paths, pa.large_string())]), parse_shares(text), seed)
    return dict(zip(paths, splits.to_pylist(), strict=True))


PATHS = [f"{name}/{i}.jpg" for name in ("ant", "bee") for i in range(4000)]


# Splits by shares


def test_shares_hold_approximately_in_each_class() -> None:
    found = drawn(PATHS, "train=0.8,val=0.15,test=0.05")
    for name in ("ant", "bee"):
        counts = Counter(split for path, split in found.items() if path.startswith(name))
        assert counts["train"] == pytest.approx(3200, abs=130)
        assert counts["val"] == pytest.approx(600, abs=115)
        assert counts["test"] == pytest.approx(200, abs=70)


@given(some=st.sets(st.sampled_from(PATHS[:300])), seed=st.integers(0, 2**63 - 1))
def test_the_split_of_a_path_does_not_depend_on_others(some: set[str], seed: int) -> None:
    whole = drawn(PATHS[:300], seed=seed)
    assert drawn(sorted(some), seed=seed) == {path: whole[path] for path in some}


def test_a_larger_share_moves_samples_into_it_and_none_out_of_it() -> None:
    small, large = (drawn(PATHS, f"train={share},val={1 - share:.1f}") for share in (0.5, 0.9))
    assert {path for path in PATHS if small[path] == "train"} < {path for path in PATHS if large[path] == "train"}


def test_the_split_is_the_same_on_every_machine() -> None:
    for seed, expected in ((7, "baabbbbaaaab"), (8, "bbbbbaaabbaa")):
        assert "".join(drawn([f"{i}.jpg" for i in range(12)], "a=0.5,b=0.5", seed).values()) == expected


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


def test_class_folders_are_split_by_shares(tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{i}.jpg" for name in "ab" for i in range(40)))
    source = scan(tmp_path, SourceOptions(split="train=0.5,val=0.5"))
    assert source.classes == ("a", "b")
    assert source.table.column_names == ["path", "source_nbytes", "source_mtime_ns", "label", "split"]
    assert source.table.schema.field("split").type == pa.large_string()
    assert by_path(source) == drawn(list(by_path(source)), "train=0.5,val=0.5")


def test_each_split_has_the_order_of_its_own_folder(tmp_path: Path) -> None:
    names = ("b/2", "b/1/x", "b/1-", "a/9", "a/10", "c/é")
    make(tmp_path, *(f"{split}/{name}.jpg" for split in ("train", "test") for name in names))
    source = scan(tmp_path, SourceOptions(split="folders"))
    for split in ("train", "test"):
        own = [f"{split}/{path}" for path in scan(tmp_path / split).table["path"].to_pylist()]
        assert [path for path, its in by_path(source).items() if its == split] == own
