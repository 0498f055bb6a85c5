"""What this machine lets this process have: cores, shared memory, open files, GPUs; presize.system.resources has more.

Everything here may be absent (another system, a container, no permission), and is None or empty then. The roots
``/proc``, ``/sys`` and ``/dev/shm`` are parameters, so that tests can give trees of their own.
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
"""Flags of /proc/cpuinfo that codecs have code for, and what they are called."""

_CAP_IPC_LOCK = 1 << 14


@dataclass(frozen=True)
class Cpu:
    """model: as it calls itself. instructions: those of SSE4, AVX2, AVX-512 and NEON that it has, or None.
    cores: that this process may run on. online: that the machine has. quota: of how many cores the time may
    be used, where a control group limits it."""

    model: str
    instructions: tuple[str, ...] | None
    cores: int
    online: int | None
    quota: float | None

    @property
    def usable(self) -> float:
        """Cores whose time this process can have."""
        return float(self.cores) if self.quota is None else min(self.quota, self.cores)


@dataclass(frozen=True)
class SharedMemory:
    """/dev/shm, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class Limits:
    """What a process may have: files open now and at most if it asks, and bytes locked; None is any number."""

    open_files: int | None
    open_files_at_most: int | None
    locked_bytes: int | None


@dataclass(frozen=True)
class Nvidia:
    """The driver's version, and the models of its GPUs. pcie_lanes: of each GPU, where pynvml is installed."""

    driver: str
    gpus: tuple[str, ...]
    pcie_lanes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """One that torch sees. capability: such as "9.0", of NVIDIA's."""

    name: str
    memory_bytes: int
    capability: str | None


@dataclass(frozen=True)
class Torch:
    """What torch has. platform: what it is built for, such as "CUDA 12.8". instructions: of the CPU, that it uses.
    accelerator: its kind, "cuda" or "mps", if there is one. said: what torch said about not having one.
    decoder: the library that decodes JPEGs on the first GPU; no_decoder: why there is none."""

    version: str
    platform: str | None
    threads: int
    instructions: str
    accelerator: str | None = None
    said: str | None = None
    gpus: tuple[Gpu, ...] = ()
    decoder: str | None = None
    no_decoder: str | None = None


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
    """``0-3,8`` are 5."""
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
    """NVIDIA's driver, as the kernel knows it; None when there is none."""
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
