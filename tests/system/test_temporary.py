"""Temporary folders: removed by their owner, or by the next one."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from presize.system.files import temporary_folder
from processes import fork


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_at_the_end_of_its_block(place: Path) -> None:
    with temporary_folder("presize-test-") as folder:
        (folder / "file").touch()
        assert list(place.iterdir()) == [folder]
    assert not list(place.iterdir())


def test_folders_of_killed_owners_are_removed_and_those_of_others_stay(place: Path) -> None:
    def die() -> int:
        with temporary_folder("presize-test-") as folder:
            (folder / "file").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    sys.stdout.flush()
    os.waitpid(fork(die), 0)
    (left,) = place.iterdir()
    (place / "presize-test-file").touch()
    (place / "presize-test-link").symlink_to(Path(__file__).parent)
    names = {"other", "presize-test-imagenet", f"presize-test-{os.getuid()}-{os.getpid()}"}
    for name in names:
        (place / name).mkdir()
    with temporary_folder("presize-test-") as mine, temporary_folder("presize-test-") as another:
        assert mine.is_dir() and another.is_dir() and not left.exists()
    assert {path.name for path in place.iterdir()} == {"presize-test-file", "presize-test-link", *names}
    assert Path(__file__).exists()
