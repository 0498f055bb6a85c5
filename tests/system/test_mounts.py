"""What is mounted where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.system.mounts import Mount, mount_of, read_mounts
from trees import write_tree

LINES = {
    "29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro": Mount(
        "259:2", "/", "/", "ext4", "/dev/nvme0n1p2", ("rw", "errors=remount-ro")
    ),
    "1203 1033 0:61 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d": Mount(
        "0:61", "/", "/", "overlay", "overlay", ("rw", "lowerdir=/a:/b", "upperdir=/c", "workdir=/d")
    ),
    "55 29 0:44 /@home /home rw shared:20 master:3 - btrfs /dev/sda3 rw": Mount(
        "0:44", "/@home", "/home", "btrfs", "/dev/sda3", ("rw",)
    ),
    r"311 29 0:52 / /my\040data rw - nfs4 filer:/my\134data rw": Mount(
        "0:52", "/", "/my data", "nfs4", r"filer:/my\data", ("rw",)
    ),
}


def mounts_of(tmp_path: Path, text: str) -> tuple[Mount, ...]:
    return read_mounts(write_tree(tmp_path / "proc", {"self/mountinfo": text}))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split(" - ")[1].split()[0])
def test_a_line_of_the_kernel_is_read(line: str, tmp_path: Path) -> None:
    assert mounts_of(tmp_path, f"{line}\n") == (LINES[line],)


@pytest.mark.parametrize("text", ["", "\n", "29 1 259:2 / /\n", "29 1 259:2 / / rw - ext4\n", "no mountinfo at all\n"])
def test_a_line_of_another_form_is_left_out(text: str, tmp_path: Path) -> None:
    assert mounts_of(tmp_path, text) == ()


def test_a_system_without_proc_has_no_mounts(tmp_path: Path) -> None:
    assert read_mounts(tmp_path / "absent") == ()


def escaped(name: str) -> str:
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in name)


@given(name=st.text(st.characters(exclude_characters="\0\r", codec="utf-8")))
def test_any_name_comes_back_as_it_was(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    line = f"1 0 8:1 / /{escaped(name)} rw - ext4 /dev/sda1 rw\n"
    assert [mount.point for mount in mounts_of(tmp_path_factory.mktemp("mounts"), line)] == [f"/{name}"]


def mount(point: str, source: str) -> Mount:
    return Mount("8:1", "/", point, "ext4", source, ())


PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(points=st.lists(PATHS, max_size=6), path=PATHS)
def test_the_innermost_mount_holds_a_path_and_the_last_of_those_at_one_place(points: list[str], path: str) -> None:
    around = [str(folder) for folder in (Path(path), *Path(path).parents)]  # the nearest first
    nearest = next((folder for folder in around if folder in points), None)
    found = mount_of(path, [mount(point, str(number)) for number, point in enumerate(points)])
    if nearest is None:
        assert found is None
    else:
        last = max(number for number, point in enumerate(points) if point == nearest)
        assert found == mount(nearest, str(last))
