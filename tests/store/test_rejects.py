"""rejects.jsonl and its columns, and names with an image suffix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import DatasetError
from presize.store import rejects_file
from presize.store.rejects import BOXES, CRASH, UNREADABLE, Reject, claims_to_be_an_image, of_companion
from presize.store.rejects_file import SCHEMA, Rejects, read_rejects, to_jsonl

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=6)
ERRORS = st.sampled_from(["ImageError", "SourceError"])
COUNT = st.integers(-(2**63), 2**63 - 1)  # a modification time may be before 1970
REJECT = st.builds(Reject, TEXT, ERRORS, TEXT, COUNT, COUNT) | st.builds(
    Reject, TEXT, ERRORS, TEXT, st.none(), st.none()
)
REJECTS = st.lists(REJECT, max_size=6, unique_by=lambda reject: reject[:3])
TIES = st.lists(
    st.builds(
        Reject,
        st.sampled_from(["", "a", "b", "é", "\uffff", "🐈"]),
        ERRORS,
        st.sampled_from(["", "empty", "🐈"]),
        st.none() | st.sampled_from([-(2**63), 0, 2**63 - 1]),
        st.none() | st.sampled_from([-(2**63), 0, 2**63 - 1]),
    )
)


def oracle(rejects: list[Reject]) -> bytes:
    """Return the content of rejects.jsonl by its definition."""
    lines = sorted(rejects, key=lambda reject: [(value is not None, value) for value in reject])
    return "".join(f"{json.dumps(reject.known(), ensure_ascii=False)}\n" for reject in lines).encode()


def jsonl(rejects: list[Reject]) -> bytes:
    return b"".join(to_jsonl(Rejects.of(rejects)))


@given(rejects=REJECTS)
def test_rejects_read_back_as_written(rejects: list[Reject], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("rejects") / "rejects.jsonl"
    file.write_bytes(jsonl(rejects))
    assert [Reject(**json.loads(line)) for line in file.read_bytes().splitlines()] == sorted(rejects)
    assert list(read_rejects(file)) == sorted(rejects)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nothing", "Expecting value: line 1 column 1 (char 0)"),
        ("{", "Expecting property name"),
        ("7", "'int' object is not subscriptable"),
        ('["path", "error", "reason"]', "list indices must be integers"),
        ('{"path": "a", "error": "ImageError"}', "a line has no 'reason'"),
        ('{"path": 1, "error": "ImageError", "reason": "empty"}', "a line has no path, error and reason"),
        ('{"path": "\\ud800", "error": "ImageError", "reason": "empty"}', "surrogates not allowed"),
        ('{"path": "a", "error": "ImageError", "reason": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_other_content_is_damage(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "rejects.jsonl").write_text(line + "\n")
    with pytest.raises(DatasetError) as caught:
        read_rejects(tmp_path / "rejects.jsonl")
    assert str(caught.value).startswith(f"{tmp_path}/rejects.jsonl is damaged: ")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; copy or build the dataset again")


@pytest.mark.parametrize(
    ("counts", "read"),
    [
        (f', "source_nbytes": {2**63 - 1}, "source_mtime_ns": {-(2**63)}', (2**63 - 1, -(2**63))),
        (', "source_nbytes": 3', (None, None)),
        (', "source_nbytes": true, "source_mtime_ns": 4', (None, None)),
        (f', "source_nbytes": 3, "source_mtime_ns": {2**63}', (None, None)),
        (f', "source_nbytes": 3, "source_mtime_ns": {-(2**63) - 1}', (None, None)),
        ("", (None, None)),
    ],
)
def test_a_line_without_valid_counts_of_64_bits_has_none(
    counts: str, read: tuple[int | None, int | None], tmp_path: Path
) -> None:
    (tmp_path / "rejects.jsonl").write_text(f'{{"path": "a", "error": "ImageError", "reason": "empty"{counts}}}\n')
    assert list(read_rejects(tmp_path / "rejects.jsonl")) == [Reject("a", "ImageError", "empty", *read)]


@given(rejects=REJECTS | TIES, data=st.data())
def test_the_file_is_sorted_with_none_before_values(rejects: list[Reject], data: st.DataObject) -> None:
    assert jsonl(data.draw(st.permutations(rejects))) == oracle(rejects)


@given(parts=st.lists(REJECTS | TIES, max_size=4))
def test_parts_whose_dictionaries_differ_join_to_one(parts: list[list[Reject]]) -> None:
    joined = Rejects.joined(map(Rejects.of, parts))
    assert list(joined) == [reject for part in parts for reject in part]
    assert b"".join(to_jsonl(joined)) == oracle(list(joined))


def test_processing_in_several_batches_yields_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects_file, "ROWS_AT_ONCE", 3)
    rejects = [Reject(f"{number % 8}.jpg", "ImageError", f"reason {number}", number, None) for number in range(20)]
    pieces = list(to_jsonl(Rejects.of(rejects)))
    assert len(pieces) == 7
    assert b"".join(pieces) == oracle(rejects)
    known = [reject._replace(source_mtime_ns=1) for reject in rejects]
    (tmp_path / "rejects.jsonl").write_bytes(jsonl(known))
    assert list(read_rejects(tmp_path / "rejects.jsonl")) == sorted(known)


def test_reading_stores_each_distinct_reason_once(tmp_path: Path) -> None:
    (tmp_path / "rejects.jsonl").write_bytes(jsonl([Reject(f"{number}", "ImageError", "empty") for number in range(9)]))
    read = read_rejects(tmp_path / "rejects.jsonl")
    assert read.columns.schema == SCHEMA
    assert read.columns.column("reason").dictionary.to_pylist() == ["empty"]


@pytest.mark.parametrize(
    ("error", "reason", "is_forgotten"),
    [
        ("ImageError", "truncated", False),
        (UNREADABLE, "cannot be read: Input/output error", True),
        (UNREADABLE, "companion mask: it changed during the build", True),
        ("ImageError", of_companion("mask") + " is missing", True),
        ("ImageError", f"{BOXES}: outside", True),
        ("ImageError", "the file cannot be read", False),
        (CRASH, "killed by SIGSEGV", True),
    ],
)
def test_the_state_of_a_file_that_may_be_stored_next_time_is_forgotten(
    error: str, reason: str, is_forgotten: bool
) -> None:
    other, reject = Reject("a", "ImageError", "empty", 1, 2), Reject("b", error, reason, 3, 4)
    forgotten = reject._replace(source_nbytes=None, source_mtime_ns=None) if is_forgotten else reject
    assert list(Rejects.of([other, reject]).forgetting()) == [other, forgotten]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", ""])
def test_lines_end_like_those_of_any_text(end: str, tmp_path: Path) -> None:
    lines = [json.dumps(Reject(path, "ImageError", "empty").known()) for path in "ab"]
    (tmp_path / "rejects.jsonl").write_bytes(f"{lines[0]}{end or chr(10)}{lines[1]}{end}".encode())
    assert [reject.path for reject in read_rejects(tmp_path / "rejects.jsonl")] == ["a", "b"]


def test_a_line_is_readable_and_sorts_before_the_same_line_with_counts() -> None:
    facts = ("cat é/🐈\n.jpg", "ImageError", "truncated")
    line = '{"path": "cat é/🐈\\n.jpg", "error": "ImageError", "reason": "truncated"'
    both = f'{line}}}\n{line}, "source_nbytes": 3, "source_mtime_ns": 4}}\n'.encode()
    assert jsonl([Reject(*facts, 3, 4), Reject(*facts)]) == both
    assert jsonl([]) == b""


CLAIMING = ["a/cat.jpg", "cat.JPeG", "cat.heic", "cat.tar.png"]
NOT_CLAIMING = ["cat.txt", "cat", "cat.", "cat.jpg/readme", ".jpg", "cat.jpg.part", "cat.jpg\n"]


def test_an_image_is_recognized_by_its_suffix() -> None:
    assert [path for path in (*CLAIMING, *NOT_CLAIMING) if claims_to_be_an_image(path)] == CLAIMING
