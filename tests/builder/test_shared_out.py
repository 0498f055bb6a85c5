"""OUT in a folder shared by several users, and on a file system without locks."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from builds import SERIAL, SMALL, Builder, Stopped, files, stop, write_photos
from presize.builder.run import build_dataset, build_part
from presize.errors import BuildError, PresizeWarning
from presize.options import BuildOptions, BuildPart
from presize.system.locks import file_lock
from users import GROUP, NEEDS_ROOT, shared_folder, user, without_locks

FIVES = replace(SMALL, shard_samples=5)
FOLDER = BuildOptions(SMALL.image, "folder")


@NEEDS_ROOT
@pytest.mark.parametrize("options", [FIVES, FOLDER], ids=["shards", "folder"])
def test_a_second_user_of_the_group_resumes_a_build(options: BuildOptions, tmp_path: Path) -> None:
    build_dataset(write_photos(tmp_path / "photos"), tmp_path / "out", options, SERIAL)
    with shared_folder() as folder:
        out, photos = folder / "out", write_photos(folder / "photos")
        photos.chmod(0o755)
        with user(1001):
            with pytest.raises(Stopped):
                build_dataset(photos, out, options, SERIAL, on_shard=stop)
            with file_lock(out / ".presize.lock"):
                pass  # stays, as after a kill
        with user(1002):
            assert build_dataset(photos, out, options, SERIAL).resumed > 0
        assert files(out) == files(tmp_path / "out")


@NEEDS_ROOT
def test_users_of_a_group_build_parts_and_all_files_belong_to_the_group() -> None:
    with shared_folder() as folder:
        out, photos = folder / "out", write_photos(folder / "photos")
        for number in (1, 2):
            with user(1000 + number):
                build_part(photos, out, BuildPart(number, 2), FIVES, SERIAL)
            for path in [out, *out.rglob("*")]:
                status = path.stat()
                assert (status.st_gid, status.st_mode & 0o070) == (GROUP, 0o070 if path.is_dir() else 0o060), path
        with user(1003):
            assert build_dataset(photos, out, FIVES, SERIAL).stored == 12


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_one_process_builds_without_locks_with_a_warning(
    number: int, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.options = FIVES
    build(out="locked")
    without_locks(monkeypatch, number)
    with pytest.warns(PresizeWarning, match=rf"^{build.out}: its file system has no locks .* run one at a time$"):
        build.stopped()
    assert not (build.out / ".presize.lock").exists()
    with pytest.warns(PresizeWarning, match="no locks"):
        assert build().resumed > 0
    assert build.files() == build.files("locked")


def test_a_build_continues_if_a_folder_cannot_be_synced(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):  # as on some CIFS and FUSE mounts
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    assert build().stored == 12


def test_parts_need_locks_and_leave_nothing_without_them(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    said = rf"^OUT {build.out}: its file system has no locks \(flock: .*-o flock.*; a build without --part needs no.*"
    with pytest.raises(BuildError, match=said):
        build_part(build.source, build.out, BuildPart(1, 2), build.options, SERIAL)
    assert not build.out.exists()
