"""What publishing removes: a folder or an index that cannot be read, for once, is neither empty nor damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from presize.builder.cleanup import remove_replaced, remove_unpublished
from presize.builder.state import Place, State
from presize.system.files import names_in


def refuse(folder: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def test_nothing_is_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert names_in(tmp_path) == ["file"]
    assert names_in(tmp_path / "absent") == names_in(tmp_path / "file" / "below") == []


def test_a_folder_that_cannot_be_listed_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", refuse)
    place = Place(tmp_path, (tmp_path,))
    for look in (
        place.has_leftovers,
        place.has_finished_shards,
        place.clear,
        lambda: remove_unpublished(tmp_path, None),
    ):
        with pytest.raises(PermissionError):
            look()


def test_an_index_that_cannot_be_read_for_once_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.arrow").touch()
    monkeypatch.setattr(Path, "open", lambda path, *_: refuse(path))
    with pytest.raises(PermissionError):
        remove_replaced(tmp_path, State({}, 1, replaces=("index.arrow",)))
