"""Cores and memory that a process may have, as made-up /proc and /sys trees tell it; and what this one has."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

import pytest

from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader
from presize.system.resources import (
    available_memory,
    control_groups,
    cpu_quota,
    max_open_shards,
    read_memory,
    usable_cores,
)
from trees import roots

MIB = 1 << 20
MEMINFO = f"MemTotal:       {64 * MIB} kB\nMemFree:   5 kB\nMemAvailable:   {32 * MIB} kB\nMlocked:   0 kB\n"
GIB = 1 << 30

UNLIMITED = "9223372036854771712\n"
V2_ROOT = "35 24 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "41 31 0:35 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n42 31 0:36 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"  # noqa: E501
V1_OWN = "4:memory:{path}\n3:cpu,cpuacct:{path}\n1:name=systemd:/\n"


# --- control groups ---

GROUPS = [
    (
        {"self/mountinfo": V2_ROOT, "self/cgroup": "0::/\n"},
        {"fs/cgroup/cpu.max": "250000 100000\n", "fs/cgroup/memory.max": f"{8 * GIB}\n"},
        (2.5, 8 * GIB), "version 2: a container sees its own group as the root",
    ),
    (
        {"self/mountinfo": V2_ROOT, "self/cgroup": "0::/system.slice/run.scope\n"},
        {
            "fs/cgroup/system.slice/cpu.max": "400000 100000\n", "fs/cgroup/system.slice/memory.max": "max\n",
            "fs/cgroup/system.slice/run.scope/cpu.max": "max 100000\n",
            "fs/cgroup/system.slice/run.scope/memory.max": f"{GIB}\n",
        },
        (4.0, GIB), "version 2: a group is limited by those that it lies in",
    ),
    (
        {"self/mountinfo": V2_ROOT, "self/cgroup": "0::/../../else\n"},
        {"fs/cgroup/cpu.max": "100000 100000\n", "else/cpu.max": "1 100000\n"},
        (1.0, None), "version 2: a group outside of what is mounted",
    ),
    (
        {"self/mountinfo": V2_ROOT, "self/cgroup": "0::/\n"}, {"fs/cgroup/cgroup.procs": "1\n"}, (None, None),
        "version 2: the root of a machine has no limits",
    ),
    (
        {"self/mountinfo": V1.format(root="/docker/1f"), "self/cgroup": V1_OWN.format(path="/docker/1f")},
        {
            "fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        },
        (1.5, 2 * GIB), "version 1: a container",
    ),
    (
        {"self/mountinfo": V1.format(root="/"), "self/cgroup": V1_OWN.format(path="/slurm/job_7")},
        {
            "fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us": "-1\n",
            "fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_period_us": "100000\n",
            "fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": f"{4 * GIB}\n",
            "fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
        },
        (None, 4 * GIB), "version 1: a batch job",
    ),
    (
        {"self/mountinfo": V1.format(root="/"), "self/cgroup": V1_OWN.format(path="/")},
        {
            "fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
        },
        (None, None), "version 1: no limits",
    ),
    (
        {"self/mountinfo": V1.format(root="/") + V2_ROOT.replace("/cgroup rw", "/cgroup/unified rw"),
         "self/cgroup": V1_OWN.format(path="/a") + "0::/b\n"},
        {"fs/cgroup/memory/a/memory.limit_in_bytes": f"{GIB}\n", "fs/cgroup/unified/b/cpu.max": "max 100000\n"},
        (None, GIB), "both versions",
    ),
    ({}, {}, (None, None), "no control groups"),
]  # fmt: skip


@pytest.mark.parametrize(("proc", "sys", "expected", "reason"), GROUPS, ids=[row[3] for row in GROUPS])
def test_limits_of_control_groups(
    proc: Mapping[str, str], sys: Mapping[str, str], expected: tuple[object, object], reason: str, tmp_path: Path
) -> None:
    places = roots(tmp_path, {"meminfo": MEMINFO, **proc}, sys)
    assert (cpu_quota(*places), read_memory(*places).limit) == expected, reason


def test_the_innermost_group_comes_first_and_none_lies_outside(tmp_path: Path) -> None:
    own = {"self/mountinfo": V2_ROOT, "self/cgroup": "0::/a/b\n"}
    proc, sys = roots(tmp_path, own, {"fs/cgroup/a/b/x": "", "fs/x": ""})
    groups = [group.relative_to(sys).as_posix() for group in control_groups("cpu", proc, sys)]
    assert groups == ["fs/cgroup/a/b", "fs/cgroup/a", "fs/cgroup"]


# --- memory ---


def test_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    swap = f"SwapTotal: {8 * MIB} kB\nSwapFree:  {6 * MIB} kB\n"
    memory = read_memory(*roots(tmp_path, {"meminfo": MEMINFO + swap}))
    assert (memory.total, memory.available, memory.limit) == (64 * GIB, 32 * GIB, None)
    assert (memory.swap, memory.swap_used) == (8 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("mounts", "own", "names"),
    [
        (V2_ROOT, "0::/\n", ("memory.max", "memory.current", "memory.stat", "")),
        (
            V1.format(root="/"),
            V1_OWN.format(path="/"),
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_what_the_page_cache_of_a_group_holds_is_available(
    mounts: str, own: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    limit, used, stat, prefix = names
    group = {
        f"fs/cgroup/{limit}": f"{10 * GIB}\n",
        f"fs/cgroup/{used}": f"{9 * GIB}\n",
        f"fs/cgroup/{stat}": f"anon 5\n{prefix}active_file {GIB}\n{prefix}inactive_file {2 * GIB}\n",
    }
    memory = read_memory(*roots(tmp_path, {"meminfo": MEMINFO, "self/mountinfo": mounts, "self/cgroup": own}, group))
    assert (memory.limit, memory.available) == (10 * GIB, 4 * GIB)


def test_without_proc_memory_is_what_the_system_has(tmp_path: Path) -> None:
    memory = read_memory(tmp_path / "none", tmp_path / "none")
    assert (memory.total, memory.limit, memory.swap, memory.swap_used) == (None, None, None, None)
    assert memory.available > 0


def test_there_is_no_more_memory_than_the_machine_has() -> None:
    assert 0 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# --- cores ---


@pytest.mark.parametrize(("quota", "cores"), [("250000", 3), ("1000", 1), ("6400000", 4), ("max", 4)])
def test_as_many_cores_are_usable_as_the_quota_allows_in_part_or_as_there_are(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presize.system.resources.allowed_cores", lambda: 4)
    own = {"self/mountinfo": V2_ROOT, "self/cgroup": "0::/\n"}
    assert usable_cores(*roots(tmp_path, own, {"fs/cgroup/cpu.max": f"{quota} 100000\n"})) == cores


def test_without_affinity_all_cores_are_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path, tmp_path) == os.cpu_count()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_loaders_have_a_worker_for_each_usable_core(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presize.datasets.reading.workers.usable_cores", lambda: 3)
    data = LMDBDataset(dataset, crop=RandomResizedCrop(24), decode="tensor")
    assert Loader(data, 4).num_workers == 3
    assert make_loader(data, 4).num_workers == 3


@pytest.mark.parametrize(
    ("soft", "shards", "reason"),
    [
        (1024, 512, "the usual limit: the other half is for the program"),
        (10, 8, "fewer would open and close all the time"),
        (1_048_576, 30_000, "as in containers: Linux allows a process 65,530 maps"),
        (resource.RLIM_INFINITY, 30_000, "no limit on files is none on maps"),
    ],
)
def test_the_number_of_open_shards_follows_from_the_limits(
    soft: int, shards: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert max_open_shards() == shards, reason
