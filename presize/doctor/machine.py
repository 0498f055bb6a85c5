"""What this machine lets this process have: cores, memory, shared memory, open files, GPUs.

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presize.doctor.mounts import Mount, read_mounts
from presize.pagecache import available_memory

PROC, SYS, SHM = Path("/proc"), Path("/sys"), Path("/dev/shm")

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
class Memory:
    """In bytes. total: of the machine. limit: of the control group, if it is less. available: without swapping,
    what the page cache holds included. swap, swap_used: None where it is not known."""

    total: int | None
    limit: int | None
    available: int
    swap: int | None
    swap_used: int | None


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
    count = os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    quotas = list(_quotas(proc, sys))
    return Cpu(
        model=described.get("model name") or platform.processor() or platform.machine(),
        instructions=found,
        cores=cores,
        online=_count_ranges(_read(sys / "devices/system/cpu/online")) or count,
        quota=min(quotas, default=None),
    )


def _quotas(proc: Path, sys: Path) -> Iterator[float]:
    for group in control_groups("cpu", proc, sys):
        with contextlib.suppress(ValueError, ZeroDivisionError):  # "max" and "" are no numbers
            if (group / "cpu.max").exists():
                quota, period = map(int, _read(group / "cpu.max").split())
            else:
                quota, period = int(_read(group / "cpu.cfs_quota_us")), int(_read(group / "cpu.cfs_period_us"))
            if quota > 0:  # -1 is no limit
                yield quota / period


def _count_ranges(text: str) -> int:
    """``0-3,8`` are 5."""
    count = 0
    with contextlib.suppress(ValueError):
        for part in text.split(","):
            first, _, last = part.partition("-")
            count += int(last or first) - int(first) + 1
    return count


# --- control groups ---


def control_groups(controller: str, proc: Path = PROC, sys: Path = SYS) -> list[Path]:
    """The folders of the control groups that limit this process, innermost first: each that it lies in may.
    Version 1 has one hierarchy a controller, version 2 one for all; a machine may have both."""
    own = {}
    for line in _read(proc / "self" / "cgroup").splitlines():  # 4:cpu,cpuacct:/a/b, and of version 2 0::/a/b
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        own.update(dict.fromkeys(names.split(","), path))
    folders = []
    for mount in read_mounts(proc):
        version_1 = mount.type == "cgroup" and controller in mount.options
        group = own.get(controller if version_1 else "")
        if group is None or not (version_1 or mount.type == "cgroup2") or not mount.point.startswith("/sys/"):
            continue
        point = sys / mount.point.removeprefix("/sys/")
        inside = _inside(group, mount)
        folders += [point.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _inside(path: str, mount: Mount) -> list[str]:
    """The way from what is mounted to the group. None to go when it lies elsewhere, as in containers, which see
    their own group as the root."""
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return []
    parts = [part for part in path.removeprefix(root).split("/") if part]
    return [] if ".." in parts else parts


# --- memory ---

_GROUP_MEMORY = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)
"""Versions 2 and 1: files with the limit and what is used, and lines of memory.stat that count the page cache."""


def read_memory(proc: Path = PROC, sys: Path = SYS) -> Memory:
    found = {}
    for line in _read(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        with contextlib.suppress(ValueError, IndexError):
            found[name] = int(value.split()[0]) << 10
    total = found.get("MemTotal")
    available = found.get("MemAvailable", available_memory())
    limit = None
    for group in control_groups("memory", proc, sys):
        for limit_file, used_file, cached in _GROUP_MEMORY:
            allowed = _number(_read(group / limit_file))  # "max", or more than there is, for no limit
            if allowed is None or (total is not None and allowed >= total):
                continue
            lines = (line.partition(" ") for line in _read(group / "memory.stat").splitlines())
            used = (_number(_read(group / used_file)) or 0) - sum(
                _number(nbytes) or 0 for name, _, nbytes in lines if name in cached
            )
            limit = allowed if limit is None else min(limit, allowed)
            available = max(0, min(available, allowed - used))
    swap, swap_free = found.get("SwapTotal"), found.get("SwapFree")
    swap_used = None if swap is None or swap_free is None else swap - swap_free
    return Memory(total, limit, available, swap, swap_used)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


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
    for line in _read(proc / "self" / "status").splitlines():
        if line.startswith("CapEff:"):
            with contextlib.suppress(ValueError):
                return bool(int(line.split(":")[1], 16) & _CAP_IPC_LOCK)
    return False


# --- GPUs, without torch ---


def read_nvidia(proc: Path = PROC) -> Nvidia | None:
    """NVIDIA's driver, as the kernel knows it; None when there is none."""
    folder = proc / "driver" / "nvidia"
    line = _read(folder / "version").partition("\n")[0]  # NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15 ...
    driver = next((word for word in line.split() if word[0].isdigit() and "." in word), None)
    if driver is None:
        return None
    models = []
    for information in sorted(folder.glob("gpus/*/information")):
        lines = (line.partition(":") for line in _read(information).splitlines())
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


def _read(path: Path) -> str:
    """The text of a file of /proc or /sys; nothing when it is not there or may not be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
