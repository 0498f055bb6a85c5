"""Matching of companions and samples, and samples without companions."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from presize.errors import OptionError
from presize.options import Companion
from presize.sources.companions import companion_paths, companions_of
from presize.sources.scan import scan
from presize.store.rejects import UNREADABLE, Reject
from trees import write_tree

MASK = Companion("mask", "masks/{stem}.png")


# Patterns


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("masks/{stem}.png", "masks/1.tar.png"),
        ("masks/{dir}/{stem}.png", "masks/a/b/1.tar.png"),
        ("{dir}/{stem}_mask.png", "a/b/1.tar_mask.png"),
        ("{{{stem}}}/x", "{1.tar}/x"),
        ("masks/{subdir}/{stem}.png", "masks/b/1.tar.png"),
        ("masks/{subdir}/{stem%.tar}_mask.png", "masks/b/1_mask.png"),
        ("{dir%/b}/masks/{name%.tar.gz}.png", "a/masks/1.png"),
        ("{dir}/{stem%_img}.png", None),
    ],
)
def test_a_pattern_maps_a_path_to_its_companion(pattern: str, path: str | None) -> None:
    table = pa.table({"path": pa.array(["a/b/1.tar.gz"], pa.large_string())})
    assert companion_paths(Companion("mask", pattern), table).to_pylist() == [path]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mask", r"expected NAME=PATTERN, such as mask=masks/\{stem\}\.png, got 'mask'"),
        ("1=x", "expected a name of up to 32 letters, digits and _, got '1'"),
        ("source=x", "'source' would duplicate columns of the index"),
        ("mask=", "pair: expected a path relative to the source for mask, got ''"),
        ("mask=/etc/{stem}", "pair: expected a path relative to the source for mask, got '/etc/"),
        ("mask={file}", r"expected \{stem\}, \{dir\}, \{subdir\} or \{name\} in '\{file\}', got \{file\}"),
    ],
)
def test_invalid_pairs_are_refused(text: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        Companion.parse(text)


def test_a_pair_is_a_pattern_or_a_column_and_formats_and_filters_apply_to_one_or_all() -> None:
    assert Companion.parse("mask=column:seg") == Companion("mask", column="seg")
    assert Companion.parse("mask=a=b/{stem}") == Companion("mask", "a=b/{stem}")
    with pytest.raises(OptionError, match="got both"):
        Companion("mask", "x", "y")
    both = ["mask=masks/{stem}.png", "view=views/{name}"]
    mask, view = companions_of(both, ["raw", "view=jpeg"], ["view=bicubic"])
    assert (mask.format, mask.filter) == ("raw", "nearest")
    assert (view.format, view.filter) == ("jpeg", "bicubic")
    with pytest.raises(OptionError, match=r"pair_format: 'depth=png' matches no --pair \(names: mask, view\)"):
        companions_of(both, ["depth=png"], [])
    with pytest.raises(OptionError, match=r"pair_filter: 'box' matches no --pair \(names: none\)"):
        companions_of([], [], ["box"])
    with pytest.raises(OptionError, match="pair_format: jpeg changes the values of pixels, which nearest keeps"):
        companions_of(["mask=x"], ["jpeg"], [])


# Samples


def test_a_companion_that_the_disk_cannot_find_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.lstat

    def lstat(path: str) -> os.stat_result:
        if str(path).endswith("masks/01.png"):
            raise OSError(errno.EIO, "Input/output error")
        return look(path)

    names = ["images/01.jpg", "images/02.jpg", "masks/01.png", "masks/02.png"]
    monkeypatch.setattr(os, "lstat", lstat)
    (reject,) = scan(write_tree(tmp_path, dict.fromkeys(names, "x")), companions=[MASK]).rejects
    assert reject == Reject("images/01.jpg", UNREADABLE, "companion mask cannot be accessed: Input/output error")
