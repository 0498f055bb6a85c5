"""The machine: its CPU, memory and GPUs, and how much of them this process can use within the limits of its control
groups. Unknown values are None or empty. Tests replace the roots ``/proc``, ``/sys`` and ``/dev/shm``."""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
import platform
import resource
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presize.system.storage import PROC, SYS, Mount, read_fields, read_mounts, read_text

SHM = Path("/dev/shm")

_INSTRUCTIONS = {"sse4_1": "SSE4", "avx2": "AVX2", "avx512bw": "AVX-512", "asimd": "NEON"}
"""Flags of /proc/cpuinfo for which codecs have special code, and their names."""

_CAP_IPC_LOCK = 1 << 14


# --- cores ---


def allowed_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(proc: Path = PROC, sys: Path = SYS) -> float | None:
    """Return the CPU time that control groups (containers) allow this process, in cores; None without a limit."""
    quotas = []
    for group in control_groups("cpu", proc, sys):
        with contextlib.suppress(ValueError, ZeroDivisionError):  # "max" and "" are not numbers
            if (group / "cpu.max").exists():
                quota, period = map(int, read_text(group / "cpu.max").split())
            else:
                quota, period = int(read_text(group / "cpu.cfs_quota_us")), int(read_text(group / "cpu.cfs_period_us"))
            if quota > 0:  # -1: no limit
                quotas.append(quota / period)
    return min(quotas, default=None)


def usable_cores(proc: Path = PROC, sys: Path = SYS) -> int:
    """Return the number of cores that this process can keep busy: the default number of worker processes."""
    return whole_cores(min(allowed_cores(), cpu_quota(proc, sys) or math.inf))


def whole_cores(usable: float) -> int:
    """Round up, so that no CPU time is left unused; at least 1."""
    return max(1, math.ceil(usable))


def cpu_seconds(pids: Iterable[int] = ()) -> float:
    """Return the CPU time, user and system, of this process and `pids`, its running children, since they started."""
    seconds = time.process_time()
    for pid in pids:
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime(~pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), in nanoseconds
    return seconds


@dataclass(frozen=True)
class Cpu:
    """The CPU.

    Attributes:
        instructions: which of SSE4, AVX2, AVX-512 and NEON it supports; None if unknown.
        cores: number of cores on which this process may run.
        online: number of cores of the machine.
        quota: CPU time that the control group allows, in cores; None without a limit.
    """

    model: str
    instructions: tuple[str, ...] | None
    cores: int
    online: int | None
    quota: float | None

    @property
    def usable(self) -> float:
        """CPU time that this process can use, in cores."""
        return float(self.cores) if self.quota is None else min(self.quota, self.cores)


def read_cpu(proc: Path = PROC, sys: Path = SYS) -> Cpu:
    described = read_fields(proc / "cpuinfo")
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
    """Count the numbers of a list such as ``0-3,8``: 5."""
    count = 0
    with contextlib.suppress(ValueError):
        for part in text.split(","):
            first, _, last = part.partition("-")
            count += int(last or first) - int(first) + 1
    return count


# --- control groups ---


def control_groups(controller: str, proc: Path = PROC, sys: Path = SYS) -> list[Path]:
    """Return the folders of this process's control groups, innermost first; each may limit it. Version 1 has a
    hierarchy for each controller, version 2 one for all; a machine may have both."""
    own = {}
    for line in read_text(proc / "self" / "cgroup").splitlines():  # version 1: 4:cpu,cpuacct:/a/b; version 2: 0::/a/b
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
    """Return the folders from the root of the mount to the group; empty if the group is outside, as in containers."""
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return []
    parts = [part for part in path.removeprefix(root).split("/") if part]
    return [] if ".." in parts else parts


# --- limits ---


@dataclass(frozen=True)
class Limits:
    """Limits of this process, None if unlimited: open files (soft and hard limit), and memory that it may lock."""

    open_files: int | None
    open_files_at_most: int | None
    locked_bytes: int | None


def read_limits(proc: Path = PROC) -> Limits:
    locked = _limit(resource.RLIMIT_MEMLOCK)
    with contextlib.suppress(ValueError):
        if int(read_fields(proc / "self" / "status").get("CapEff", ""), 16) & _CAP_IPC_LOCK:
            locked = None
    return Limits(_limit(resource.RLIMIT_NOFILE), _limit(resource.RLIMIT_NOFILE, hard=True), locked)


def _limit(kind: int, hard: bool = False) -> int | None:
    value = resource.getrlimit(kind)[hard]
    return None if value == resource.RLIM_INFINITY else value


def max_open_shards() -> int:
    """Return half of ``ulimit -n``, at least 8, at most 30,000: about half of the maps that Linux allows a process."""
    files = _limit(resource.RLIMIT_NOFILE)
    return 30_000 if files is None else min(max(8, files // 2), 30_000)


_NO_THREAD = ("can't start new thread", "failed to launch worker thread")
_NO_MEMORY = ("cannot allocate memory", "can't allocate memory", "insufficient memory", "failed to map segment")
"""Messages of Python, Arrow, torch, OpenCV and the dynamic linker, in exceptions without a specific class."""

_STACK_BYTES = 64 << 20
"""Address space of a new thread: its stack and its malloc arena."""


def limit_of(error: BaseException | None, proc: Path = PROC, sys: Path = SYS) -> str | None:
    """Return the limit that caused `error` or its context, such as "ulimit -u 64 allows no more processes and threads",
    or None. Call it before other processes end, since it names the limit with the least room."""
    if error is None:
        return None
    code, words = getattr(error, "errno", None), str(error).lower()
    starts = code == errno.EAGAIN or any(said in words for said in _NO_THREAD)
    address_bytes = _limit(resource.RLIMIT_AS)
    taken = (_number(read_text(proc / "self" / "statm").partition(" ")[0]) or 0) * os.sysconf("SC_PAGE_SIZE")
    in_memory = starts and address_bytes is not None and taken + _STACK_BYTES > address_bytes
    if in_memory or isinstance(error, MemoryError) or code == errno.ENOMEM or any(said in words for said in _NO_MEMORY):
        named = "this machine" if address_bytes is None else f"ulimit -v {address_bytes >> 10}"
        return f"{named} allows no more memory"
    if starts:
        return f"{_process_limit(proc, sys)} allows no more processes and threads"
    if code == errno.EMFILE:
        return f"ulimit -n {_limit(resource.RLIMIT_NOFILE)} allows no more open files"
    return limit_of(error.__context__, proc, sys)


def _process_limit(proc: Path, sys: Path) -> str:
    room = {}
    for group in control_groups("pids", proc, sys):
        allowed, current = (_number(read_text(group / name).strip()) for name in ("pids.max", "pids.current"))
        if allowed is not None:
            room[f"pids.max {allowed} of a control group"] = allowed - (current or 0)
    allowed = _limit(resource.RLIMIT_NPROC)
    if allowed is not None and os.getuid():  # root has no such limit
        processes = (read_fields(status) for status in proc.glob("[0-9]*/status"))
        own = (each for each in processes if each.get("Uid", "").split()[:1] == [str(os.getuid())])
        room[f"ulimit -u {allowed}"] = allowed - sum(_number(each.get("Threads", "")) or 0 for each in own)
    return min(room, key=room.__getitem__, default="this machine")


# --- memory ---


@dataclass(frozen=True)
class Memory:
    """Memory in bytes; None if unknown.

    Attributes:
        total: memory of the machine.
        limit: limit of the control group, if less than `total`.
        available: memory that this process can use without swapping, including the page cache.
        swap: swap space.
        swap_used: swap space in use.
        locked: memory that processes have locked.
    """

    total: int | None
    limit: int | None
    available: int
    swap: int | None
    swap_used: int | None
    locked: int = 0


_GROUP_MEMORY = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)
"""Of control groups, versions 2 and 1: files with limit and usage, and the page cache's lines of memory.stat."""


def read_memory(proc: Path = PROC, sys: Path = SYS) -> Memory:
    fields = read_fields(proc / "meminfo").items()
    found = {name: int(value.split()[0]) << 10 for name, value in fields if value[:1].isdigit()}
    total = found.get("MemTotal")
    available = found.get("MemAvailable", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit = None
    for group in control_groups("memory", proc, sys):
        for limit_file, used_file, cached in _GROUP_MEMORY:
            allowed = _number(read_text(group / limit_file))  # "max", or more than the total: no limit
            if allowed is None or (total is not None and allowed >= total):
                continue
            lines = (line.partition(" ") for line in read_text(group / "memory.stat").splitlines())
            used = (_number(read_text(group / used_file)) or 0) - sum(
                _number(nbytes) or 0 for name, _, nbytes in lines if name in cached
            )
            limit = allowed if limit is None else min(limit, allowed)
            available = max(0, min(available, allowed - used))
    swap, swap_free = found.get("SwapTotal"), found.get("SwapFree")
    swap_used = None if swap is None or swap_free is None else swap - swap_free
    return Memory(total, limit, available, swap, swap_used, found.get("Mlocked", 0))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True)
class SharedMemory:
    """Size of /dev/shm and free space in it, in bytes."""

    total: int
    free: int


def read_shared_memory(shm: Path = SHM) -> SharedMemory | None:
    try:
        usage = shutil.disk_usage(shm)
    except OSError:
        return None
    return SharedMemory(usage.total, usage.free)


# --- GPUs, without torch ---


def is_asynchronous(device: str) -> bool:
    """Return whether a torch device copies from pinned memory asynchronously. ROCm devices are named "cuda"."""
    return device.partition(":")[0] in ("cuda", "xpu")


@dataclass(frozen=True)
class Nvidia:
    """The NVIDIA driver's version, the model of each GPU, and its PCIe lanes; no lanes unless pynvml is installed."""

    driver: str
    gpus: tuple[str, ...]
    pcie_lanes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch sees; `capability` is NVIDIA's compute capability, such as "9.0"."""

    name: str
    memory_bytes: int
    capability: str | None


@dataclass(frozen=True)
class Torch:
    """The installed torch: its build, such as "CUDA 12.8", and the devices that it sees.

    Attributes:
        threads: number of its CPU threads.
        instructions: the CPU instruction set that it uses.
        accelerator: type of the accelerator in torch, such as "cuda" or "mps"; None without one.
        said: torch's message about a missing accelerator.
    """

    version: str
    platform: str | None
    threads: int
    instructions: str
    accelerator: str | None = None
    said: str | None = None
    gpus: tuple[Gpu, ...] = ()


def read_nvidia(proc: Path = PROC) -> Nvidia | None:
    folder = proc / "driver" / "nvidia"
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15 ...
    line = read_text(folder / "version").partition("\n")[0]
    driver = next((word for word in line.split() if word[0].isdigit() and "." in word), None)
    if driver is None:
        return None
    gpus = (read_fields(information) for information in sorted(folder.glob("gpus/*/information")))
    return Nvidia(driver, tuple(gpu["Model"] for gpu in gpus if "Model" in gpu), _pcie_lanes())


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
