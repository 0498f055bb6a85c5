"""What is in a folder, when there is one and when it cannot be listed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from presize.build.cleanup import remove_unpublished
from presize.build.state import Place
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
