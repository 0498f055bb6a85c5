"""presize doctor: this machine looked at, and findings as text."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import DatasetError
from presize.measure.doctor import Finding, as_text, check_up, judge, verdict

NOTHING = "not asked"

LEVELS = st.sampled_from(["ok", "warn", "bad", "unknown"])
TEXTS = st.text(max_size=200)
FINDINGS = st.lists(
    st.builds(Finding, topic=st.sampled_from(["CPU", "memory"]), level=LEVELS, found=TEXTS, fix=st.none() | TEXTS)
)


# --- this machine ---


def test_this_machine_can_be_judged() -> None:
    facts = check_up(NOTHING)
    assert facts.cpu.cores >= 1
    assert facts.memory.available > 0
    assert facts.content is None
    assert facts.reading is None
    assert judge(facts)


def test_a_path_is_read(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(os.urandom(200_000))
    facts = check_up(NOTHING, tmp_path)
    assert facts.content is not None
    assert len(facts.content.files) == 40
    assert facts.reading is not None
    assert {"reading", "size"} <= {finding.topic for finding in judge(facts)}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be another user")
def test_a_file_that_cannot_be_read_is_bad_and_named() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not in pytest's, which nobody else may enter
        os.chmod(folder, 0o755)
        secret = Path(folder, os.fsdecode(b"secret \xff"))
        secret.write_bytes(bytes(5 << 20))
        secret.chmod(0)
        os.seteuid(65534)
        try:
            facts = check_up(NOTHING, secret)
        finally:
            os.seteuid(0)
    assert facts.reading == rf"{folder}/secret \xff: Permission denied"
    assert verdict(judge(facts)) == "bad"


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="absent"):
        check_up(NOTHING, tmp_path / "absent")


# --- as text ---

SOME = [
    Finding("CPU", "ok", "fast"),
    Finding("memory", "warn", "little of it, in words that take more than a line", "buy more of it"),
    Finding("GPU", "unknown", "nobody knows"),
    Finding("/dev/shm", "bad", "none", "docker run --shm-size=1g"),
]


def test_the_verdict_comes_first_then_what_is_worst() -> None:
    assert as_text(SOME, 48).splitlines() == [
        "Found 1 bad and 1 warning; 1 ok.",
        "",
        "bad      /dev/shm  none",
        "                   -> docker run --shm-size=1g",
        "warn     memory    little of it, in words that",
        "                   take more than a line",
        "                   -> buy more of it",
        "",
        "ok       CPU       fast",
        "unknown  GPU       nobody knows",
    ]


def test_where_all_is_well_that_is_said_first() -> None:
    assert as_text(SOME[::2]).splitlines()[0] == "No problems found."


@given(findings=FINDINGS, width=st.integers(60, 140))
def test_nothing_that_was_found_harms_a_terminal(findings: list[Finding], width: int) -> None:
    text = as_text(findings, width)
    assert all(line.isprintable() for line in text.split("\n"))


@given(
    found=st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=1, max_size=40).map(" ".join),
    width=st.integers(60, 140),
)
def test_lines_are_as_wide_as_they_may_be_and_lose_no_word(found: str, width: int) -> None:
    lines = as_text([Finding("memory", "warn", found, found)], width).splitlines()
    assert max(map(len, lines)) <= width
    told = " ".join(line.strip() for line in lines[2:])
    assert told.split() == ["warn", "memory", *found.split(), "->", *found.split()]


def test_the_text_agrees_with_the_verdict() -> None:
    findings = judge(check_up(NOTHING))
    first = as_text(findings).splitlines()[0]
    assert first.startswith("No problems") == (verdict(findings) == "ok")
