"""Cleanup by publishing: a folder or an index that is temporarily unreadable is neither empty nor damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from presize.builder.output_dir import BuildJournal, OutputDir
from presize.system.files import names_in


def refuse(folder: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def test_a_missing_folder_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert names_in(tmp_path) == ["file"]
    assert names_in(tmp_path / "absent") == names_in(tmp_path / "file" / "below") == []


def test_a_folder_that_cannot_be_listed_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", refuse)
    output = OutputDir.of(tmp_path)
    for look in (output.has_leftovers, output.has_finished_shards, output.clear, output.discard):
        with pytest.raises(PermissionError):
            look()
    monkeypatch.undo()
    monkeypatch.setattr(os, "scandir", refuse)  # staged files are looked up in all folders below
    with pytest.raises(PermissionError):
        output.discard()


def test_a_temporarily_unreadable_index_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "64").mkdir()
    (tmp_path / "64" / "index.arrow").touch()
    abandoned = BuildJournal({"options": {"image": {"sizes": ["64", "32"]}}}, 0, replaces=("index.arrow",))
    monkeypatch.setattr(Path, "open", lambda path, *_: refuse(path))
    with pytest.raises(PermissionError):
        OutputDir.of(tmp_path).start({}, {}, abandoned, update=False)
