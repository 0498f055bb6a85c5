"""Spellings of paths: their meaning, and that they never mean anything outside of the source."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from presize.sources.folder import names_of
from presize.sources.spellings import Spellings, plain

PARTS = st.text("aAé\u0301. \\-1", min_size=1, max_size=3).filter(lambda part: part not in (".", ".."))
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
FILES = st.lists(PATHS, min_size=1, max_size=8, unique=True)


@given(files=FILES, text=PATHS | st.text("aé/.\\: \0", max_size=8))
def test_any_text_finds_only_existing_files(files: list[str], text: str) -> None:
    folders = {path[:at] for path in files for at, letter in enumerate(path) if letter == "/"}
    found = Spellings(names_of(files)).find(text)
    assert {*found} <= {*files}
    if text in files and text not in folders:
        assert found == [text], "the literal name has priority"


@given(files=FILES, data=st.data())
def test_a_spelling_of_only_one_file_finds_that_file(files: list[str], data: st.DataObject) -> None:
    files = [path for path in files if path == plain(path)]
    alike = [unicodedata.normalize("NFC", path) for path in files]
    if len({*alike}) < len(files) or not files:
        return
    path = data.draw(st.sampled_from(files))
    form = data.draw(st.sampled_from(["NFC", "NFD"]))
    before = data.draw(st.sampled_from(["", "/", "./", ".//", "C:/", "\\", "C:\\"]))
    text = before + unicodedata.normalize(form, path).replace("/", data.draw(st.sampled_from(["/", "//", "/./", "\\"])))
    if any(each != path and plain(each) == plain(text) for each in files):
        return
    assert path in Spellings(names_of(files)).find(text)


@given(files=FILES, text=st.text("aA/é.\\% 2eF", max_size=12))
def test_a_hint_continues_a_line_and_is_printable(files: list[str], text: str) -> None:
    hint = Spellings(names_of(files)).hint(text)
    assert Spellings(names_of(files)).hint("a/" * 100_000) == "", "it takes no time"
    assert hint == "" or (hint.startswith("; ") and hint.isprintable())
