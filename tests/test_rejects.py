"""rejects.jsonl, and which names claim to be an image."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.rejects import Reject, claims_to_be_an_image, to_jsonl

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=6)
REJECTS = st.lists(st.builds(Reject, TEXT, st.sampled_from(["ImageError", "SourceError"]), TEXT), max_size=6)


@given(rejects=REJECTS)
def test_rejects_read_back_as_they_were_written(rejects: list[Reject]) -> None:
    lines = to_jsonl(rejects).split(b"\n")
    assert lines.pop() == b""
    assert [Reject(**json.loads(line)) for line in lines] == sorted(rejects)


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
