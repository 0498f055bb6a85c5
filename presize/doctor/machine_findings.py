"""Findings on the machine: CPU, cores, memory and limits of a process. Pure."""

from __future__ import annotations

from presize.doctor.facts import CheckUp, Finding
from presize.formatting import plural, size_text
from presize.system.resources import whole_cores

_BATCH_BYTES = 256 * 3 * 224 * 224 * 4
"""256 images of 224 px as float32, as a transform makes them: what a DataLoader often sends through /dev/shm."""

_PREFETCH = 2
"""DataLoader's prefetch_factor."""

_LITTLE_MEMORY_BYTES = 2_000_000_000
"""A process with torch takes about 0.3 GB, and there are several of them and their batches."""

_OPEN_FILES = 1024
"""Linux's own soft limit."""


def cpu_finding(facts: CheckUp) -> Finding:
    cpu, best = facts.cpu, facts.cpu.instructions
    if best is None:
        return Finding("CPU", "unknown", f"{cpu.model}; its SIMD instructions are not known")
    if not best:
        return Finding("CPU", "warn", f"{cpu.model}, without SSE4, AVX2 or NEON", "use a newer CPU: codecs need SIMD")
    found = f"{cpu.model}, {best[-1]}"
    if best == ("SSE4",):
        return Finding(
            "CPU", "warn", found, "codecs are faster with AVX2: pass the host CPU through to the virtual machine"
        )
    return Finding("CPU", "ok", found)


def cores_finding(facts: CheckUp) -> Finding:
    cpu = facts.cpu
    of = f" of {cpu.online}" if cpu.online and cpu.online != cpu.cores else ""
    if cpu.usable < cpu.cores:
        return Finding(
            "cores", "warn", f"{cpu.cores}{of} visible, but a cgroup quota of {cpu.usable:g}",
            "builds and presize's loaders heed the quota, torch's DataLoader does not; raise it with docker run --cpus "
            "or Kubernetes resources.limits.cpu",
        )  # fmt: skip
    if cpu.cores == 1:
        return Finding(
            "cores", "warn", f"1{of}: training and loading share it",
            "request more: sbatch --cpus-per-task, docker run --cpuset-cpus",
        )  # fmt: skip
    return Finding("cores", "ok", f"{cpu.cores}{of}")


def memory_finding(facts: CheckUp) -> Finding:
    memory = facts.memory
    total = min((amount for amount in (memory.total, memory.limit) if amount is not None), default=None)
    found = f"{size_text(memory.available)} available" + (f" of {size_text(total)}" if total else "")
    if memory.limit is not None:
        found += " (cgroup limit)"
    if memory.available < _LITTLE_MEMORY_BYTES:
        return Finding(
            "memory", "warn", found, "use fewer workers and smaller batches, or raise the limit: docker run --memory"
        )
    if memory.swap_used and memory.swap_used > (memory.total or 0) / 10:
        return Finding(
            "memory", "warn", f"{found}; {size_text(memory.swap_used)} swapped out",
            "free memory, or use fewer workers: swapping is slower than reading again",
        )  # fmt: skip
    return Finding("memory", "ok", found)


def shared_memory_finding(facts: CheckUp) -> Finding:
    shm = facts.shared_memory
    if shm is None:
        return Finding("/dev/shm", "unknown", "does not exist; loaders use what the system offers instead")
    workers = whole_cores(facts.cpu.usable)
    needed = workers * _PREFETCH * _BATCH_BYTES
    found = f"{size_text(shm.free)} free of {size_text(shm.total)}"
    if shm.free >= needed:
        return Finding("/dev/shm", "ok", found)
    loader = f"a DataLoader with transforms needs up to {size_text(needed)}"
    return Finding(
        "/dev/shm", "bad" if shm.free < _BATCH_BYTES else "warn",
        f"{found}; {loader} ({plural(workers, 'worker')}, 256 images of 224 px)",
        f"docker run --shm-size={-(-needed // 10**9)}g (or --ipc=host; Kubernetes: an emptyDir of medium Memory), or "
        'read with Loader, or with crop= and decode="tensor", which need next to none',
    )  # fmt: skip


def open_files_finding(facts: CheckUp) -> Finding:
    limits, content = facts.limits, facts.content
    shards = len(content.files) if content is not None and content.shards else 0
    open_files = limits.open_files
    if open_files is None:
        return Finding("open files", "ok", "unlimited")
    found = f"{open_files:,} per process"
    wanted = max(_OPEN_FILES, 2 * shards)
    if open_files >= wanted:
        return Finding("open files", "ok", found)
    if shards > facts.open_shards:
        found += f": {facts.open_shards:,} of the {shards:,} shards stay open, the others are reopened again and again"
    most = limits.open_files_at_most
    fix = f"ulimit -n {wanted} before starting"
    if most is not None and most < wanted:
        fix += f" (the hard limit is {most:,}; raise it with docker run --ulimit nofile={wanted} or in limits.conf)"
    return Finding("open files", "warn", found, fix)


def locked_memory_finding(facts: CheckUp) -> Finding:
    locked, content = facts.limits.locked_bytes, facts.content
    if locked is None:
        return Finding("locked memory", "ok", "unlimited")
    found = size_text(locked)
    if content is not None and content.shards and content.nbytes <= locked:
        return Finding("locked memory", "ok", f"{found}, enough for this dataset")
    return Finding(
        "locked memory", "ok", found, 'for preload="memory" raise it: ulimit -l, docker run --ulimit memlock=-1'
    )
