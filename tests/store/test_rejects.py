"""rejects.jsonl, and which names claim to be an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import DatasetError
from presize.store.rejects import Reject, claims_to_be_an_image, read_rejects, to_jsonl

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=6)
ERRORS = st.sampled_from(["ImageError", "SourceError"])
COUNT = st.integers(-(2**63), 2**63 - 1)  # a modification time may lie before 1970
REJECT = st.builds(Reject, TEXT, ERRORS, TEXT, COUNT, COUNT) | st.builds(
    Reject, TEXT, ERRORS, TEXT, st.none(), st.none()
)
REJECTS = st.lists(REJECT, max_size=6, unique_by=lambda reject: reject[:3])


@given(rejects=REJECTS)
def test_rejects_read_back_as_they_were_written(
    rejects: list[Reject], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("rejects") / "rejects.jsonl"
    file.write_bytes(to_jsonl(rejects))
    assert [Reject(**json.loads(line)) for line in file.read_bytes().splitlines()] == sorted(rejects)
    assert read_rejects(file) == sorted(rejects)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON"),
        ("7", "no object"),
        ('["path", "error", "reason"]', "no object either"),
        ('{"path": "a", "error": "ImageError"}', "no reason"),
        ('{"path": 1, "error": "ImageError", "reason": "empty"}', "a path that is no text"),
        ('{"path": "\\ud800", "error": "ImageError", "reason": "empty"}', "a path that is no Unicode"),
    ],
)
def test_a_file_that_holds_something_else_is_damaged(line: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "rejects.jsonl").write_text(line + "\n")
    with pytest.raises(DatasetError, match=r"rejects.jsonl is damaged"):
        read_rejects(tmp_path / "rejects.jsonl")
    assert reason


@pytest.mark.parametrize(
    "counts",
    [
        '"source_nbytes": 3',
        '"source_nbytes": true, "source_mtime_ns": 4',
        f'"source_nbytes": 3, "source_mtime_ns": {2**63}',
        f'"source_nbytes": 3, "source_mtime_ns": {-(2**63) - 1}',
        "",
    ],
)
def test_a_line_without_sound_counts_has_none(counts: str, tmp_path: Path) -> None:
    facts = '"path": "a", "error": "ImageError", "reason": "empty"'
    (tmp_path / "rejects.jsonl").write_text("{" + ", ".join(filter(None, [facts, counts])) + "}\n")
    assert read_rejects(tmp_path / "rejects.jsonl") == [Reject("a", "ImageError", "empty")]


@given(rejects=REJECTS, data=st.data())
def test_the_order_in_which_they_were_met_does_not_show(rejects: list[Reject], data: st.DataObject) -> None:
    assert to_jsonl(data.draw(st.permutations(rejects))) == to_jsonl(rejects)


def test_a_line_is_for_people_and_programs() -> None:
    assert to_jsonl([Reject("cat é/🐈\n.jpg", "ImageError", "truncated")]) == (
        '{"path": "cat é/🐈\\n.jpg", "error": "ImageError", "reason": "truncated"}\n'.encode()
    )


def test_no_rejects_are_an_empty_file() -> None:
    assert to_jsonl([]) == b""


@pytest.mark.parametrize(
    ("path", "claims", "reason"),
    [
        ("a/cat.jpg", True, "the usual suffix"),
        ("cat.JPeG", True, "case does not matter"),
        ("cat.heic", True, "an image, if one that is not read"),
        ("cat.tar.png", True, "the last suffix counts"),
        ("cat.txt", False, "another suffix"),
        ("cat", False, "no suffix"),
        ("cat.", False, "an empty suffix"),
        ("cat.jpg/readme", False, "the suffix is the folder's"),
        (".jpg", False, "a hidden file without a suffix"),
        ("cat.jpg.part", False, "a download that was not finished"),
        ("cat.jpg\n", False, "a newline is part of the suffix"),
    ],
)
def test_a_name_claims_to_be_an_image_by_its_suffix(path: str, claims: bool, reason: str) -> None:
    assert claims_to_be_an_image(path) == claims, reason
