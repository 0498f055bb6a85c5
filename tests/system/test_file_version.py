"""Versions of a file: two looks tell whether it is the same file with the same content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from presize.system import file_version
from presize.system.file_version import FileVersion
from presize.system.storage import Mount

HERE = FileVersion(nbytes=10, mtime_ns=20, ctime_ns=30, inode=40, host="a")


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"nbytes": 11}, False),
        ({"mtime_ns": 21}, False),
        ({"ctime_ns": 31}, False),
        ({"inode": 41}, False),
        ({"host": "b"}, True),
        ({"host": "b", "inode": 41, "ctime_ns": 31}, True),
        ({"host": "b", "mtime_ns": 21}, False),
        ({"host": "b", "nbytes": 11}, False),
    ],
)
def test_more_is_compared_within_a_host_than_between_hosts(change: dict[str, Any], is_same: bool) -> None:
    other = HERE._replace(**change)
    assert HERE.same_as(other) is other.same_as(HERE) is is_same


@pytest.mark.parametrize(
    ("file_system", "inode"),
    [("ext4", 5), ("nfs4", 5), ("fuseblk", 5), ("fuse.sshfs", 0), ("fuse", 0), ("vfat", 0), ("exfat", 0)],
)
def test_inodes_count_if_the_file_system_keeps_them(
    file_system: str, inode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 1000 + sum(file_system.encode())  # number of a device, which is queried once
    mounts = (Mount(f"0:{number}", "/", "/mnt", file_system, "none", ()),)
    monkeypatch.setattr(file_version, "read_mounts", lambda: mounts)
    status = os.stat_result([0o100644, 5, os.makedev(0, number), 1, 0, 0, 7, 0, 0, 0])
    assert FileVersion.of(status).inode == inode


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert FileVersion.at(str(tmp_path / "pipe")).nbytes == 0
