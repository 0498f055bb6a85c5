"""Mounts and the storage of a path, from fake /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.system.storage import Mount, find_storage, mount_of, read_mounts, window_bytes
from processes import run_python
from trees import block_device, write_tree

PCI = "devices/pci0000:00/0000:00:1d.0"
SYS = {
    **block_device(f"{PCI}/nvme/nvme0/nvme0n1", 0, "Samsung SSD 980 PRO 1TB", partition="nvme0n1p2"),
    **block_device(f"{PCI}/nvme/nvme1/nvme1n1", 0, "Amazon Elastic Block Store"),
    **block_device(f"{PCI}/ata1/block/sda", 0, "Samsung SSD 870", partition="sda1"),
    **block_device(f"{PCI}/ata2/block/sdb", 1, "ST16000NM001G-2K", partition="sdb1"),
    **block_device(f"{PCI}/virtio1/block/vda", 1, partition="vda1"),
    **block_device("devices/virtual/block/dm-0", 1),
    "devices/virtual/block/dm-0/slaves/sdb1": f"->../../../../../{PCI}/ata2/block/sdb/sdb1",
    "dev/block/259:2": f"->../../{PCI}/nvme/nvme0/nvme0n1/nvme0n1p2",
    "dev/block/259:9": f"->../../{PCI}/nvme/nvme1/nvme1n1",
    "dev/block/8:1": f"->../../{PCI}/ata1/block/sda/sda1",
    "dev/block/8:17": f"->../../{PCI}/ata2/block/sdb/sdb1",
    "dev/block/254:1": f"->../../{PCI}/virtio1/block/vda/vda1",
    "dev/block/253:0": "->../../devices/virtual/block/dm-0",
    "class/block/nvme0n1p2": f"->../../{PCI}/nvme/nvme0/nvme0n1/nvme0n1p2",
}
MOUNTS = """\
29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 29 8:17 / /disk rw,relatime shared:2 - ext4 /dev/sdb1 rw
31 29 8:1 / /ssd rw,relatime shared:3 - xfs /dev/sda1 rw,inode64
32 29 254:1 / /virtual rw - ext4 /dev/vda1 rw
33 29 253:0 / /logical rw - xfs /dev/mapper/vg-data rw
34 29 259:9 / /cloud rw - ext4 /dev/nvme1n1 rw
35 29 0:52 / /nfs rw,relatime - nfs4 filer:/export rw,vers=4.2,rsize=1048576
36 29 0:61 / /layers rw,relatime - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d
37 29 0:24 / /memory rw - tmpfs tmpfs rw,size=65536k
38 29 0:33 /@data /btrfs rw - btrfs /dev/nvme0n1p2 rw,ssd,subvol=/@data
39 29 0:70 / /bucket rw - fuse.gcsfuse bucket rw,user_id=0
40 29 0:71 / /host rw - virtiofs mount0 rw
41 29 0:72 / /pool rw - zfs pool/data rw
42 29 7:9 / /gone rw - ext4 /dev/loop9 rw
43 29 0:73 / /odd rw - fuse.\udcff odd rw
"""
STORED = [
    ("/photos/a", "ext4", "nvme", "nvme0n1", "a partition of an NVMe SSD"),
    ("/ssd/a", "xfs", "ssd", "sda", "a SATA SSD"),
    ("/disk/a", "ext4", "rotating", "sdb", "a disk that rotates"),
    ("/virtual/a", "ext4", "virtual", "vda", "virtio says that it rotates whatever is behind it"),
    ("/logical/a", "xfs", "rotating", "sdb", "a logical volume is as fast as the disk below"),
    ("/cloud/a", "ext4", "virtual", "nvme1n1", "EBS is no SSD in this machine"),
    ("/nfs/a", "nfs4", "network", None, "NFS"),
    ("/layers/a", "overlay", "container", None, "a container's own file system"),
    ("/memory/a", "tmpfs", "memory", None, "tmpfs"),
    ("/btrfs/a", "btrfs", "nvme", "nvme0n1", "btrfs names its disk as the source alone"),
    ("/bucket/a", "fuse.gcsfuse", "network", None, "a bucket through FUSE"),
    ("/host/a", "virtiofs", "network", None, "a folder of the host"),
    ("/pool/a", "zfs", "unknown", None, "zfs names no disk"),
    ("/gone/a", "ext4", "unknown", None, "a disk that /sys does not know"),
    ("/odd/a", "fuse.\\xff", "network", None, "FUSE takes any name, which is made printable"),
]


@pytest.mark.parametrize(("path", "file_system", "kind", "device", "reason"), STORED, ids=[row[4] for row in STORED])
def test_a_path_is_on_the_disk_of_its_mount(
    path: str, file_system: str, kind: str, device: str | None, reason: str, tmp_path: Path
) -> None:
    proc = write_tree(tmp_path / "proc", {"self/mountinfo": MOUNTS})
    found = find_storage(Path(path), proc, write_tree(tmp_path / "sys", SYS))
    assert (found.file_system, found.kind, found.device) == (file_system, kind, device), reason


def test_a_link_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/nfs/data")
    proc = write_tree(tmp_path / "proc", {"self/mountinfo": MOUNTS})
    assert find_storage(tmp_path / "link", proc, tmp_path / "none").kind == "network"


def test_a_cycle_of_disks_ends_the_search(tmp_path: Path) -> None:
    loop = {"devices/dm-0/slaves/dm-0": "->../../dm-0", "devices/dm-0/queue/rotational": "0\n"}
    sys = write_tree(tmp_path / "sys", {"dev/block/253:0": "->../../devices/dm-0", **loop})
    proc = write_tree(tmp_path / "proc", {"self/mountinfo": MOUNTS})
    assert find_storage(Path("/logical"), proc, sys).kind == "ssd"


def test_a_removed_current_folder_is_unknown() -> None:
    script = """
        import os, tempfile
        from pathlib import Path
        from presize.system.storage import Mount, find_storage, mount_of, read_mounts

        os.chdir(folder := tempfile.mkdtemp())
        os.rmdir(folder)
        print(find_storage(Path()).kind)
    """
    assert run_python(script) == "unknown\n"


def test_without_proc_the_storage_is_unknown(tmp_path: Path) -> None:
    assert read_mounts(tmp_path / "none") == ()
    found = find_storage(tmp_path, tmp_path / "none", tmp_path / "none")
    assert (found.file_system, found.kind, found.device) == (None, "unknown", None)
    assert found.window_bytes > 0 and window_bytes(tmp_path / "absent") == 128 << 10


def test_this_machine_knows_the_storage_of_its_files(tmp_path: Path) -> None:
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("needs Linux")
    assert find_storage(tmp_path).file_system and window_bytes(tmp_path) % 1024 == 0
    assert find_storage(Path("/proc")).file_system == "proc"


def mounts_of(tmp_path: Path, text: str) -> tuple[Mount, ...]:
    return read_mounts(write_tree(tmp_path / "proc", {"self/mountinfo": text}))


@pytest.mark.parametrize("text", ["", "\n", "29 1 259:2 / /\n", "29 1 259:2 / / rw - ext4\n", "no mountinfo at all\n"])
def test_a_malformed_line_is_skipped(text: str, tmp_path: Path) -> None:
    assert mounts_of(tmp_path, text) == ()


def escaped(name: str) -> str:
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in name)


@given(name=st.text(st.characters(exclude_characters="\0\r", codec="utf-8")))
def test_any_name_round_trips(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    line = f"1 0 8:1 / /{escaped(name)} rw - ext4 /dev/sda1 rw\n"
    assert [mount.point for mount in mounts_of(tmp_path_factory.mktemp("mounts"), line)] == [f"/{name}"]


def mount(point: str, source: str) -> Mount:
    return Mount("8:1", "/", point, "ext4", source, ())


PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(points=st.lists(PATHS, max_size=6), path=PATHS)
def test_the_innermost_mount_holds_a_path_and_the_last_one_of_several_at_a_place(points: list[str], path: str) -> None:
    around = [str(folder) for folder in (Path(path), *Path(path).parents)]  # nearest first
    nearest = next((folder for folder in around if folder in points), None)
    found = mount_of(path, [mount(point, str(number)) for number, point in enumerate(points)])
    if nearest is None:
        assert found is None
    else:
        last = max(number for number, point in enumerate(points) if point == nearest)
        assert found == mount(nearest, str(last))
