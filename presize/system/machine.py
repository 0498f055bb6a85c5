"""Facts about the machine: the CPU, shared memory, limits on open files and locked memory, GPUs.

What cannot be found out (another system, a container, no permission) is None or empty. The roots ``/proc``,
``/sys`` and ``/dev/shm`` are parameters, so that tests can pass their own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presize.system.resources import PROC, SYS, allowed_cores, cpu_quota, read_text

SHM = Path("/dev/shm")

_INSTRUCTIONS = {"sse4_1": "SSE4", "avx2": "AVX2", "avx512bw": "AVX-512", "asimd": "NEON"}
"""Flags of /proc/cpuinfo for which codecs have code, and the names of these instruction sets."""

_CAP_IPC_LOCK = 1 << 14


@dataclass(frozen=True)
class Cpu:
    """The CPU.

    Attributes:
        model: its name.
        instructions: those of SSE4, AVX2, AVX-512 and NEON that it has; None if unknown.
        cores: on which this process may run.
        online: cores of the machine.
        quota: the CPU time that the control group allows, in cores; None without a limit.
    """

    model: str
    instructions: tuple[str, ...] | None
    cores: int
    online: int | None
    quota: float | None

    @property
    def usable(self) -> float:
        """The CPU time that this process can use, in cores."""
        return float(self.cores) if self.quota is None else min(self.quota, self.cores)


@dataclass(frozen=True)
class SharedMemory:
    """The size of /dev/shm and the free space in it, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class Limits:
    """Limits of a process; None where there is no limit.

    Attributes:
        open_files: the soft limit on open files.
        open_files_at_most: the hard limit, up to which a process may raise it.
        locked_bytes: memory that it may lock.
    """

    open_files: int | None
    open_files_at_most: int | None
    locked_bytes: int | None


@dataclass(frozen=True)
class Nvidia:
    """The NVIDIA driver and its GPUs.

    Attributes:
        driver: its version.
        gpus: the model of each GPU.
        pcie_lanes: of each GPU; empty unless pynvml is installed.
    """

    driver: str
    gpus: tuple[str, ...]
    pcie_lanes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch sees.

    Attributes:
        name: its model.
        memory_bytes: all of its memory.
        capability: NVIDIA's compute capability, such as "9.0"; None for other makers.
    """

    name: str
    memory_bytes: int
    capability: str | None


@dataclass(frozen=True)
class Torch:
    """What torch is built for and sees.

    Attributes:
        version: torch's.
        platform: what it is built for, such as "CUDA 12.8".
        threads: its CPU threads.
        instructions: the CPU instruction set that it uses.
        accelerator: "cuda" or "mps"; None if there is none.
        said: torch's message about a missing accelerator.
        gpus: those that it sees.
    """

    version: str
    platform: str | None
    threads: int
    instructions: str
    accelerator: str | None = None
    said: str | None = None
    gpus: tuple[Gpu, ...] = ()


# --- cores ---


def read_cpu(proc: Path = PROC, sys: Path = SYS) -> Cpu:
    described: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (proc / "cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            described.setdefault(name.strip(), value.strip())
    flags = described.get("flags") or described.get("Features")  # x86, ARM
    found = None if flags is None else tuple(said for flag, said in _INSTRUCTIONS.items() if flag in flags.split())
    return Cpu(
        model=described.get("model name") or platform.processor() or platform.machine(),
        instructions=found,
        cores=allowed_cores(),
        online=_count_ranges(read_text(sys / "devices/system/cpu/online")) or os.cpu_count(),
        quota=cpu_quota(proc, sys),
    )


def _count_ranges(text: str) -> int:
    """How many numbers a list such as ``0-3,8`` names: 5."""
    count = 0
    with contextlib.suppress(ValueError):
        for part in text.split(","):
            first, _, last = part.partition("-")
            count += int(last or first) - int(first) + 1
    return count


def read_shared_memory(shm: Path = SHM) -> SharedMemory | None:
    try:
        usage = shutil.disk_usage(shm)
    except OSError:
        return None
    return SharedMemory(usage.total, usage.free)


# --- limits ---


def read_limits(proc: Path = PROC) -> Limits:
    files, most = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
    locked = None
    if hasattr(resource, "RLIMIT_MEMLOCK") and not _may_lock_all(proc):
        locked = _limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    return Limits(files, most, locked)


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _may_lock_all(proc: Path) -> bool:
    for line in read_text(proc / "self" / "status").splitlines():
        if line.startswith("CapEff:"):
            with contextlib.suppress(ValueError):
                return bool(int(line.split(":")[1], 16) & _CAP_IPC_LOCK)
    return False


# --- GPUs, without torch ---


def read_nvidia(proc: Path = PROC) -> Nvidia | None:
    """The NVIDIA driver that the kernel has loaded; None when there is none."""
    folder = proc / "driver" / "nvidia"
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15 ...
    line = read_text(folder / "version").partition("\n")[0]
    driver = next((word for word in line.split() if word[0].isdigit() and "." in word), None)
    if driver is None:
        return None
    models = []
    for information in sorted(folder.glob("gpus/*/information")):
        lines = (line.partition(":") for line in read_text(information).splitlines())
        models += [value.strip() for name, _, value in lines if name == "Model"]
    return Nvidia(driver, tuple(models), _pcie_lanes())


def _pcie_lanes() -> tuple[int, ...]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
        try:
            gpus = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return tuple(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu) for gpu in gpus)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return ()
