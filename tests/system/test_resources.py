"""Resources of a machine and limits of a process, from fake /proc and /sys trees, and from this machine."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader
from presize.system.resources import (
    Cpu,
    Nvidia,
    cpu_quota,
    cpu_seconds,
    limit_of,
    max_open_shards,
    read_cpu,
    read_limits,
    read_memory,
    read_nvidia,
    read_shared_memory,
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


GROUPS = [
    ("version 2: a container sees its own group as the root", V2_ROOT, "0::/\n",
     {"cpu.max": "250000 100000\n", "memory.max": f"{8 * GIB}\n"}, (2.5, 8 * GIB)),
    ("version 2: a group is limited by those that it lies in", V2_ROOT, "0::/system.slice/run.scope\n",
     {"system.slice/cpu.max": "400000 100000\n", "system.slice/memory.max": "max\n",
      "system.slice/run.scope/cpu.max": "max 100000\n", "system.slice/run.scope/memory.max": f"{GIB}\n"}, (4.0, GIB)),
    ("version 2: a group outside of what is mounted", V2_ROOT, "0::/../../else\n",
     {"cpu.max": "100000 100000\n", "../../else/cpu.max": "1 100000\n"}, (1.0, None)),
    ("version 2: the root of a machine has no limits", V2_ROOT, "0::/\n", {"cgroup.procs": "1\n"}, (None, None)),
    ("version 1: a container", V1.format(root="/docker/1f"), V1_OWN.format(path="/docker/1f"),
     {"cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
      "memory/memory.limit_in_bytes": f"{2 * GIB}\n"}, (1.5, 2 * GIB)),
    ("version 1: a batch job", V1.format(root="/"), V1_OWN.format(path="/slurm/job_7"),
     {"cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/slurm/job_7/cpu.cfs_period_us": "100000\n",
      "memory/slurm/job_7/memory.limit_in_bytes": f"{4 * GIB}\n", "memory/memory.limit_in_bytes": UNLIMITED},
     (None, 4 * GIB)),
    ("version 1: no limits", V1.format(root="/"), V1_OWN.format(path="/"),
     {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "memory/memory.limit_in_bytes": UNLIMITED}, (None, None)),
    ("both versions", V1.format(root="/") + V2_ROOT.replace("/cgroup rw", "/cgroup/unified rw"),
     V1_OWN.format(path="/a") + "0::/b\n",
     {"memory/a/memory.limit_in_bytes": f"{GIB}\n", "unified/b/cpu.max": "max 100000\n"}, (None, GIB)),
    ("no control groups", "", "", {}, (None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "mounts", "own", "groups", "expected"), GROUPS, ids=[row[0] for row in GROUPS])
def test_the_limits_of_control_groups_are_found(
    reason: str, mounts: str, own: str, groups: Mapping[str, str], expected: tuple[object, object], tmp_path: Path
) -> None:
    proc = {"meminfo": MEMINFO, "self/mountinfo": mounts, "self/cgroup": own}
    places = roots(tmp_path, proc, {f"fs/cgroup/{name}": text for name, text in groups.items()})
    assert (cpu_quota(*places), read_memory(*places).limit) == expected, reason


def test_figures_of_memory_are_those_of_the_kernel(tmp_path: Path) -> None:
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
def test_the_page_cache_of_a_group_is_available_memory(
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


def test_without_proc_memory_is_that_of_the_system(tmp_path: Path) -> None:
    memory = read_memory(tmp_path / "none", tmp_path / "none")
    assert (memory.total, memory.limit, memory.swap, memory.swap_used) == (None, None, None, None)
    assert memory.available > 0


# --- cores ---


@pytest.mark.parametrize(("quota", "cores"), [("250000", 3), ("1000", 1), ("6400000", 4), ("max", 4)])
def test_usable_cores_are_limited_by_the_quota_including_fractions(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presize.system.resources.allowed_cores", lambda: 4)
    own = {"self/mountinfo": V2_ROOT, "self/cgroup": "0::/\n"}
    assert usable_cores(*roots(tmp_path, own, {"fs/cgroup/cpu.max": f"{quota} 100000\n"})) == cores


def test_without_affinity_all_cores_are_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path, tmp_path) == os.cpu_count()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_loaders_have_a_worker_per_usable_core(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presize.datasets.reading.workers.usable_cores", lambda: 3)
    data = LMDBDataset(dataset, crop=RandomResizedCrop(24), decode="tensor")
    assert Loader(data, 4).num_workers == 3
    assert make_loader(data, 4).num_workers == 3


@pytest.mark.parametrize(
    ("soft", "shards", "reason"),
    [
        (1024, 512, "the usual limit: the other half is for the program"),
        (10, 8, "fewer would be opened and closed all the time"),
        (1_048_576, 30_000, "as in containers: Linux allows a process 65,530 maps"),
        (resource.RLIM_INFINITY, 30_000, "no limit on files means none on maps"),
    ],
)
def test_the_number_of_open_shards_follows_from_the_limits(
    soft: int, shards: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert max_open_shards() == shards, reason


X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz
flags\t\t: fpu sse sse2 ssse3 sse4_1 sse4_2 avx avx2 avx512f avx512bw

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
ARM = (
    "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd evtstrm aes\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
)

XEON = "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"


@pytest.mark.parametrize(
    ("proc", "online", "model", "instructions", "cores"),
    [
        ({"cpuinfo": X86}, "0-31,64-95", XEON, ("SSE4", "AVX2", "AVX-512"), 64),
        ({"cpuinfo": X86}, "0", XEON, ("SSE4", "AVX2", "AVX-512"), 1),
        ({"cpuinfo": ARM}, "0-3,8", None, ("NEON",), 5),
        ({}, "0-0,2,4-63", None, None, 62),
        ({}, None, None, None, os.cpu_count()),
    ],
)
def test_a_cpu_has_a_model_instructions_and_cores(
    proc: Mapping[str, str], online: str | None, model: str | None, instructions: Any, cores: int, tmp_path: Path
) -> None:
    cpu = read_cpu(*roots(tmp_path, proc, {"devices/system/cpu/online": f"{online}\n"} if online else {}))
    assert (cpu.instructions, cpu.online, cpu.quota) == (instructions, cores, None)
    assert cpu.model == model if model else cpu.model


def test_this_process_may_use_the_cores_to_which_it_is_bound() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert read_cpu().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert read_cpu().cores == len(allowed)


@pytest.mark.parametrize(("cores", "quota", "usable"), [(64, 2.5, 2.5), (2, 8.0, 2.0), (4, None, 4.0)])
def test_cpu_time_is_limited_by_the_number_of_cores_and_the_quota(
    cores: int, quota: float | None, usable: float
) -> None:
    assert Cpu("", None, cores, 64, quota).usable == usable


def test_shared_memory_may_be_absent(tmp_path: Path) -> None:
    assert read_shared_memory(tmp_path / "shm") is None
    found = read_shared_memory(tmp_path)
    assert found is not None
    assert 0 < found.free <= found.total


def test_limits_are_those_of_this_process(tmp_path: Path) -> None:
    limits = read_limits(tmp_path)
    files, locked = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_MEMLOCK)
    expected = [None if value == resource.RLIM_INFINITY else value for value in (*files, locked[0])]
    assert [limits.open_files, limits.open_files_at_most, limits.locked_bytes] == expected


@pytest.mark.parametrize(("capabilities", "any_amount"), [("000001fffeffffff", True), ("00000000a80425fb", False)])
def test_the_capability_permits_locking_any_amount(capabilities: str, any_amount: bool, tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        pytest.skip("locking is not limited")
    proc, _ = roots(tmp_path, {"self/status": f"Name:\tpython\nCapEff:\t{capabilities}\n"})
    assert (read_limits(proc).locked_bytes is None) == any_amount


PIDS = {"self/mountinfo": "41 31 0:35 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n", "self/cgroup": "8:pids:/a\n"}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("can't start new thread"), "pids.max 20 of a control group allows no more processes and threads"),
        (BlockingIOError(11, "again"), "pids.max 20 of a control group allows no more processes and threads"),
        (OSError(12, "Cannot allocate memory"), "this machine allows no more memory"),
        (MemoryError(), "this machine allows no more memory"),
        (ImportError("libx.so: failed to map segment from shared object"), "this machine allows no more memory"),
        (OSError(24, "Too many open files"), f"ulimit -n {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} allows no"),
        (RuntimeError("something else"), None),
        (OSError(2, "No such file"), None),
    ],
)
def test_an_error_names_the_nearest_limit(error: Exception, said: str | None, tmp_path: Path) -> None:
    groups = {
        "fs/cgroup/pids/pids.max": "1000\n", "fs/cgroup/pids/pids.current": "100\n",
        "fs/cgroup/pids/a/pids.max": "20\n", "fs/cgroup/pids/a/pids.current": "19\n",
    }  # fmt: skip
    found = limit_of(error, *roots(tmp_path, PIDS, groups))
    assert found == said or (said is not None and str(found).startswith(said))


VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version:  gcc 12\n"
DRIVER = {
    "driver/nvidia/version": VERSION,
    "driver/nvidia/gpus/0000:17:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n",
    "driver/nvidia/gpus/0000:65:00.0/information": "Model: \t\t NVIDIA L4\n",
}


def test_the_driver_and_its_gpus_are_known_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvidia(tmp_path) is None
    assert read_nvidia(roots(tmp_path, DRIVER)[0]) == Nvidia("570.86.15", ("NVIDIA H100 80GB HBM3", "NVIDIA L4"))


@pytest.mark.parametrize(("lanes", "expected"), [(16, (16, 16)), (None, ())])
def test_pynvml_reports_the_lanes_if_installed(
    lanes: int | None, expected: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NVMLError(Exception):
        pass

    def ask(_gpu: int) -> int:
        if lanes is None:  # the driver does not answer
            raise NVMLError
        return lanes

    nvml = SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number, nvmlDeviceGetCurrPcieLinkWidth=ask,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = read_nvidia(roots(tmp_path, DRIVER)[0])
    assert found is not None
    assert found.pcie_lanes == expected


def test_cpu_time_of_this_process_grows_with_its_work() -> None:
    before = cpu_seconds()
    sum(range(300_000))
    assert cpu_seconds() > before


def test_a_child_counts_while_it_runs_and_an_invalid_pid_counts_for_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        sum(range(2_000_000))
        os.read(0, 0)
        while True:
            pass
    try:
        while cpu_seconds([pid]) - cpu_seconds() < 0.02:
            pass
        assert cpu_seconds([2**22 + 1]) - cpu_seconds() < 0.02
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
