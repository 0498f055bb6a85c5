"""What a machine lets a process have, as made-up /proc and /sys trees tell it; and what this one tells."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from types import ModuleType

import pytest

from presize.system.machine import Cpu, Nvidia, read_cpu, read_limits, read_nvidia, read_shared_memory
from trees import roots

MIB = 1 << 20

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


# --- the CPU ---


def test_a_pc_tells_its_model_and_instructions(tmp_path: Path) -> None:
    cpu = read_cpu(*roots(tmp_path, {"cpuinfo": X86}, {"devices/system/cpu/online": "0-31,64-95\n"}))
    assert cpu.model == "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"
    assert cpu.instructions == ("SSE4", "AVX2", "AVX-512")
    assert (cpu.online, cpu.quota) == (64, None)


def test_arm_has_neon_and_no_name_for_itself(tmp_path: Path) -> None:
    cpu = read_cpu(*roots(tmp_path, {"cpuinfo": ARM}))
    assert cpu.instructions == ("NEON",)
    assert cpu.model


def test_without_proc_the_instructions_are_not_known(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path / "none", tmp_path / "none")
    assert cpu.instructions is None
    assert cpu.model
    assert cpu.online == os.cpu_count()


def test_this_process_may_use_the_cores_it_is_bound_to() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert read_cpu().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert read_cpu().cores == len(allowed)


@pytest.mark.parametrize(("cores", "quota", "usable"), [(64, 2.5, 2.5), (2, 8.0, 2.0), (4, None, 4.0)])
def test_the_time_of_no_more_cores_can_be_used_than_there_are_and_than_the_quota_is(
    cores: int, quota: float | None, usable: float
) -> None:
    assert Cpu("", None, cores, 64, quota).usable == usable


@pytest.mark.parametrize(("online", "cores"), [("0", 1), ("0-3,8", 5), ("0-0,2,4-63", 62)])
def test_ranges_of_cores_are_counted(online: str, cores: int, tmp_path: Path) -> None:
    assert read_cpu(*roots(tmp_path, {"cpuinfo": X86}, {"devices/system/cpu/online": f"{online}\n"})).online == cores


# --- memory ---


def test_shared_memory_may_be_absent(tmp_path: Path) -> None:
    assert read_shared_memory(tmp_path / "shm") is None
    found = read_shared_memory(tmp_path)
    assert found is not None
    assert 0 < found.free <= found.total


# --- limits ---


def test_limits_are_those_of_this_process(tmp_path: Path) -> None:
    limits = read_limits(tmp_path)
    files, locked = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_MEMLOCK)
    expected = [None if value == resource.RLIM_INFINITY else value for value in (*files, locked[0])]
    assert [limits.open_files, limits.open_files_at_most, limits.locked_bytes] == expected


@pytest.mark.parametrize(("capabilities", "any_amount"), [("000001fffeffffff", True), ("00000000a80425fb", False)])
def test_who_has_the_capability_may_lock_any_amount(capabilities: str, any_amount: bool, tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        pytest.skip("this machine has no limit")
    proc, _ = roots(tmp_path, {"self/status": f"Name:\tpython\nCapEff:\t{capabilities}\n"})
    assert (read_limits(proc).locked_bytes is None) == any_amount


# --- NVIDIA's driver ---

VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version:  gcc 12\n"
DRIVER = {
    "driver/nvidia/version": VERSION,
    "driver/nvidia/gpus/0000:17:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n",
    "driver/nvidia/gpus/0000:65:00.0/information": "Model: \t\t NVIDIA L4\n",
}


def test_the_driver_and_its_gpus_are_known_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    proc, _ = roots(tmp_path, DRIVER)
    assert read_nvidia(proc) == Nvidia("570.86.15", ("NVIDIA H100 80GB HBM3", "NVIDIA L4"))


def test_without_a_driver_there_is_nothing(tmp_path: Path) -> None:
    assert read_nvidia(tmp_path) is None


class NVMLError(Exception):
    pass


def nvml(lanes: int | None) -> ModuleType:
    """As pynvml is to be called: no GPU here to ask. None for a driver that does not answer."""

    def ask(_gpu: int) -> int:
        if lanes is None:
            raise NVMLError
        return lanes

    module = ModuleType("pynvml")
    vars(module).update(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number, nvmlDeviceGetCurrPcieLinkWidth=ask,
    )  # fmt: skip
    return module


@pytest.mark.parametrize(("lanes", "expected"), [(16, (16, 16)), (None, ())])
def test_pynvml_tells_the_lanes_where_it_is_installed(
    lanes: int | None, expected: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(lanes))
    found = read_nvidia(roots(tmp_path, DRIVER)[0])
    assert found is not None
    assert found.pcie_lanes == expected
