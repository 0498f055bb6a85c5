"""Facts of a machine -> findings: what limits how fast images load here, and what to do about it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from presize.formatting import plural, printable, size_text
from presize.measure.codec_features import Codecs, read_codecs
from presize.measure.read_speed import Content, Reading, list_content, measure
from presize.system.machine import (
    Cpu,
    Limits,
    Nvidia,
    SharedMemory,
    Torch,
    read_cpu,
    read_limits,
    read_nvidia,
    read_shared_memory,
)
from presize.system.resources import Memory, max_open_shards, read_memory, whole_cores
from presize.system.storage import Storage, find_storage

Level = Literal["ok", "warn", "bad", "unknown"]


class Finding(NamedTuple):
    """What a check-up has to say on one topic.

    Attributes:
        topic: What it is about, in a word or two.
        level: "ok"; "warn" for what is slower than it could be, or a trap; "bad" for what makes training fail, or
            several times slower; "unknown" for what could not be found out.
        found: What there is.
        fix: What to do about it; None if there is nothing to do.
    """

    topic: str
    level: Level
    found: str
    fix: str | None = None


@dataclass(frozen=True)
class CheckUp:
    """The facts that findings are drawn from.

    Attributes:
        cpu: The processor.
        memory: Main memory and its limits.
        shared_memory: /dev/shm; None if there is none.
        limits: Limits of this process.
        open_shards: Shards that a dataset keeps open at most.
        codecs: Codecs and resizers that are installed.
        nvidia: The NVIDIA driver and its GPUs; None if there is none.
        torch: What torch offers, or why it cannot be imported.
        storage: Where the path lies, or the current folder.
        content: What there is to read in the path; None if no path was given.
        reading: How fast that was read, or what went wrong; None if there is too little to read.
    """

    cpu: Cpu
    memory: Memory
    shared_memory: SharedMemory | None
    limits: Limits
    open_shards: int
    codecs: Codecs
    nvidia: Nvidia | None
    torch: Torch | str
    storage: Storage
    content: Content | None = None
    reading: Reading | str | None = None

    def known(self) -> dict[str, Any]:
        """The facts as JSON has them; of the content the number and size of its files only."""
        content = self.content and {
            "files": len(self.content.files),
            "bytes": self.content.nbytes,
            "all_files": self.content.all_files,
            "record_bytes": self.content.record_bytes,
        }
        return asdict(replace(self, content=None)) | {"content": content}


def jpeg_finding(facts: CheckUp) -> Finding:
    jpeg = facts.codecs.jpeg
    found = f"simplejpeg {jpeg.simplejpeg}"
    if jpeg.libjpeg_turbo is None:
        return Finding("JPEG", "unknown", f"{found}; its libjpeg-turbo is not known")
    found += f", libjpeg-turbo {jpeg.libjpeg_turbo}"
    if not jpeg.simd:
        return Finding(
            "JPEG", "bad", f"{found} without SIMD",
            "pip install --force-reinstall --no-deps --only-binary :all: simplejpeg (or build it with nasm installed)",
        )  # fmt: skip
    if jpeg.simd_limits:
        return Finding(
            "JPEG", "bad" if "JSIMD_FORCENONE=1" in jpeg.simd_limits else "warn",
            f"{found}, with SIMD limited by {' and '.join(jpeg.simd_limits)}",
            f"unset {' '.join(name.partition('=')[0] for name in jpeg.simd_limits)}",
        )  # fmt: skip
    found += " with SIMD"
    if jpeg.baseline == "failed its self-check":
        return Finding(
            "JPEG", "bad", f"{found}; presize's own decoder failed its self-check and is off: {jpeg.baseline_reason}",
            "report it, with this output; libjpeg-turbo decodes meanwhile: slower, and the pixels are right",
        )  # fmt: skip
    if jpeg.baseline == "switched off":
        return Finding(
            "JPEG", "warn", f"{found}; presize's own, faster decoder is switched off: {jpeg.baseline_reason}",
            "unset PRESIZE_DECODER",
        )  # fmt: skip
    if jpeg.baseline == "not compiled":
        return Finding(
            "JPEG", "warn", f"{found}; presize's own, faster decoder is not compiled",
            "apt-get install gcc python3-dev (a C compiler), then pip install --force-reinstall --no-deps presize",
        )  # fmt: skip
    if jpeg.baseline == "not for this processor":
        return Finding("JPEG", "ok", f"{found}; presize's own decoder is for x86-64 and ARM64")
    return Finding("JPEG", "ok", f"{found}; presize's own decoder for baseline JPEG")


def resizer_finding(facts: CheckUp) -> Finding:
    resizer, best = facts.codecs.resizer, facts.cpu.instructions or ()
    found = f"cykooz.resizer {resizer.version}, {resizer.instructions or 'no SIMD'}"
    possible = next((name for name in ("AVX2", "SSE4", "NEON") if name in best), None)
    if possible and resizer.instructions != possible:
        return Finding(
            "resize", "warn", f"{found}, though the CPU has {possible}",
            "pip install --upgrade --force-reinstall --no-deps --only-binary :all: cykooz.resizer",
        )  # fmt: skip
    return Finding("resize", "ok" if resizer.instructions else "warn", found)


def pillow_finding(facts: CheckUp) -> Finding:
    pillow = facts.codecs.pillow
    turbo = f"libjpeg-turbo {pillow.libjpeg_turbo}" if pillow.libjpeg_turbo else "a libjpeg that is not libjpeg-turbo"
    found = f"{'pillow-simd' if pillow.simd else 'Pillow'} {pillow.version}, {turbo}"
    anew = "pip uninstall -y pillow pillow-simd && pip install pillow"
    if len(pillow.distributions) > 1:
        return Finding("PIL", "warn", f"{found}; Pillow and pillow-simd are both installed, in the same folder", anew)
    if pillow.simd:
        return Finding("PIL", "warn", f"{found}; it lacks the latest fixes to Pillow's decoders", anew)
    if not pillow.libjpeg_turbo:
        return Finding("PIL", "warn", found, "pip install --force-reinstall --only-binary :all: pillow")
    return Finding("PIL", "ok", found)


def opencv_finding(facts: CheckUp) -> Finding:
    opencv = facts.codecs.opencv
    best = opencv.instructions[-1] if opencv.instructions else "no SIMD"
    found = f"{opencv.version}, {best}, {plural(opencv.threads, 'thread')}"
    if not opencv.optimized:
        return Finding("OpenCV", "warn", f"{found}, optimized code is off", "cv2.setUseOptimized(True)")
    own = "in a DataLoader of your own: cv2.setNumThreads(0) in each worker"  # presize's loaders do that
    return Finding("OpenCV", "ok", found, own if opencv.threads > 1 else None)


def torch_finding(facts: CheckUp) -> Finding:
    torch, cpu = facts.torch, facts.cpu
    if isinstance(torch, str):
        return Finding("torch", "warn", torch, 'pip install "presize[torch]" (builds work without it)')
    found = f"{torch.version}, {torch.instructions}, {plural(torch.threads, 'thread')}"
    if torch.threads > max(1, cpu.usable):
        cores = max(1, int(cpu.usable))
        return Finding(
            "torch", "warn", f"{found} for {cpu.usable:g} cores", f"OMP_NUM_THREADS={cores} in the environment"
        )
    return Finding("torch", "ok", found)


def gpu_finding(facts: CheckUp) -> Finding:
    torch, nvidia = facts.torch, facts.nvidia
    there = f"{_counted(nvidia.gpus) or 'NVIDIA'}, driver {nvidia.driver}" if nvidia else None
    if isinstance(torch, str):
        return Finding("GPU", "unknown", f"{there}; no torch to use it" if there else "not known without torch")
    if torch.gpus:
        gpus = _counted([f"{gpu.name} ({size_text(gpu.memory_bytes)})" for gpu in torch.gpus])
        about = [torch.platform, f"driver {nvidia.driver}" if nvidia else None]
        capabilities = sorted({gpu.capability for gpu in torch.gpus if gpu.capability})
        about.append(f"compute capability {', '.join(capabilities)}" if capabilities else None)
        about.append(f"{min(nvidia.pcie_lanes)} PCIe lanes" if nvidia and nvidia.pcie_lanes else None)
        return Finding("GPU", "ok", ", ".join([gpus, *filter(None, about)]))
    if there and torch.platform is None:
        return Finding(
            "GPU", "bad", f"{there}; torch {torch.version} is built for the CPU only",
            "install a CUDA build: pytorch.org/get-started",
        )  # fmt: skip
    if there or torch.said:
        said = f": {torch.said}" if torch.said else ""
        return Finding(
            "GPU", "bad", f"{there or 'a GPU'}; torch {torch.version} ({torch.platform}) cannot use it{said}",
            "update the driver, or give the container the GPU: docker run --gpus all",
        )  # fmt: skip
    return Finding("GPU", "ok", f"{torch.accelerator} (torch's name)" if torch.accelerator else "none")


def _counted(names: Sequence[str]) -> str:
    """``2 x H100, L4``"""
    return ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


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


_CORE_IMAGES_PER_S = 5000
"""256 px JPEGs from LMDB that one core reads and decodes: benchmarks/reading/results/read.csv (2026-11-25)."""

_CORE_FILES_PER_S = 700
_CORE_FILE_BYTES_PER_S = 40e6
"""Files that one core reads and decodes with torchvision: 660 a second of 256 px, 360 of 110 kB, in the same table."""

_BY_SHARDS = "read shard by shard: shuffle=ShardShuffled(...) with readahead=True"


def storage_finding(facts: CheckUp) -> Finding:
    storage, reading = facts.storage, facts.reading
    if storage.file_system is None:
        return Finding("storage", "unknown", "its kind is not known here")
    found = f"{storage.described}; read-ahead {storage.window_bytes >> 10:,} KiB"
    measured = isinstance(reading, Reading) and reading.cold
    if storage.kind in ("network", "rotating") and not measured:
        return Finding("storage", "warn", f"{found}; slow in random order", _faster(facts))
    return Finding("storage", "ok", found)


def reading_finding(facts: CheckUp) -> Finding | None:
    content, reading = facts.content, facts.reading
    if content is None:
        return None
    if isinstance(reading, str):
        return Finding("reading", "bad", reading, "check the permissions, the disk (dmesg) and the mount")
    if not content.files:
        return Finding("reading", "unknown", "no files found; links are not followed")
    if reading is None:
        return Finding("reading", "unknown", f"{size_text(content.nbytes)} is too little to measure")
    what = "records" if content.shards else "files"
    found = (
        f"{_rounded(reading.random_reads_per_s)} {what}/s of {size_text(reading.record_bytes)} in random order "
        f"({plural(reading.readers, 'reader')}), {size_text(reading.sequential_bytes_per_s)}/s sequentially"
    )
    if facts.storage.kind == "memory":
        return Finding("reading", "ok", found)
    if not reading.cold:
        why = "the page cache keeps it" if reading.cold is False else "it may come from the page cache"
        again = "if it was just written, try again in a minute" if reading.cold is False else None
        return Finding("reading", "unknown", f"{found}, but {why}", again)
    found += ", cold"
    needed = reading.readers * _core_rate(content, reading)
    if reading.random_reads_per_s >= needed:
        return Finding("reading", "ok", found)
    found += f"; {plural(reading.readers, 'core')} can use about {_rounded(needed)}"
    return Finding("reading", "warn", found, _faster(facts))


def _faster(facts: CheckUp) -> str:
    """What to do about storage that is slow in random order."""
    content = facts.content
    if content is not None and not content.shards:
        return "presize build reads the files once and in order: put OUT on a local SSD"
    if content is not None and content.nbytes > facts.memory.available:
        return f"{_BY_SHARDS}, or copy it to a local SSD"
    return 'preload="page-cache" reads a dataset in order before training; or copy it to a local SSD'


def _core_rate(content: Content, reading: Reading) -> float:
    """Records or files per second that one core can decode."""
    if content.shards:
        return _CORE_IMAGES_PER_S
    return min(_CORE_FILES_PER_S, _CORE_FILE_BYTES_PER_S / max(1, reading.record_bytes))


def fits_finding(facts: CheckUp) -> Finding | None:
    content, available = facts.content, facts.memory.available
    if content is None or not content.files:
        return None
    more = "" if content.all_files else "more than "
    if content.nbytes <= available:
        fits = "fits into memory: later epochs need no disk"
        return Finding("size", "ok", f"{size_text(content.nbytes)}, {fits}") if content.all_files else None
    return Finding(
        "size", "warn", f"{more}{size_text(content.nbytes)}, does not fit into {size_text(available)} of memory",
        f"{_BY_SHARDS}, or build it smaller" if content.shards else "presize build makes it smaller",
    )  # fmt: skip


def _rounded(rate: float) -> str:
    """In two digits, as the next run will differ in the third."""
    return f"{float(f'{rate:.2g}'):,.0f}"


_TOPICS: Sequence[Callable[[CheckUp], Finding | None]] = (
    cpu_finding,
    cores_finding,
    memory_finding,
    shared_memory_finding,
    open_files_finding,
    locked_memory_finding,
    jpeg_finding,
    resizer_finding,
    pillow_finding,
    opencv_finding,
    torch_finding,
    gpu_finding,
    storage_finding,
    reading_finding,
    fits_finding,
)
"""In the order in which they are shown."""


def judge(facts: CheckUp) -> list[Finding]:
    """One finding for each topic, always in the same order; those on a path only if one was given."""
    return [finding for topic in _TOPICS if (finding := topic(facts))]


def verdict(findings: Iterable[Finding]) -> Level:
    """The worst level among `findings`; "unknown" counts as "ok"."""
    levels = {finding.level for finding in findings}
    return "bad" if "bad" in levels else "warn" if "warn" in levels else "ok"


_MOST_READERS = 16
"""Enough to keep any disk busy; with more, Python is what is measured."""


def check_up(torch: Torch | str, path: Path | None = None) -> CheckUp:
    """Gather the facts of this machine. Takes a few seconds; nothing is written.

    Args:
        torch: presize.datasets.timing.devices.read_torch(), or why torch cannot be imported.
        path: A dataset, a folder of images or a file. Some of it is read, to measure how fast that is. None looks at
            the storage of the current folder and reads nothing.

    Raises:
        DatasetError: `path` does not exist.
    """
    cpu = read_cpu()
    content = None
    reading: Reading | str | None = None
    if path is not None:
        content = list_content(path)
        try:
            reading = measure(content, max(1, min(_MOST_READERS, int(cpu.usable))))
        except OSError as error:
            name = os.fsencode(error.filename or path).decode("utf-8", "backslashreplace")
            reading = f"{name}: {error.strerror}"
    return CheckUp(
        cpu, read_memory(), read_shared_memory(), read_limits(), max_open_shards(), read_codecs(), read_nvidia(), torch,
        find_storage(path or Path()), content, reading,
    )  # fmt: skip


def as_text(findings: Sequence[Finding], width: int = 100) -> str:
    """The verdict, then what to fix, then the rest, in lines of at most `width` characters where words allow it.
    Unprintable characters are escaped."""
    worst_first = [finding for level in ("bad", "warn") for finding in findings if finding.level == level]
    others = [finding for finding in findings if finding.level not in ("bad", "warn")]
    level_width = max(map(len, get_args(Level)))
    topic_width = max((len(finding.topic) for finding in findings), default=0)
    indent = level_width + topic_width + 4
    lines = [_verdict_line(findings)]
    for group in (worst_first, others):
        lines += [""] if group else []
        for finding in group:
            head = f"{finding.level:{level_width}}  {finding.topic:{topic_width}}  "
            lines += _wrapped(head, finding.found, indent, width)
            if finding.fix:
                lines += _wrapped(" " * indent + "-> ", finding.fix, indent + 3, width)
    return "\n".join(lines)


def _verdict_line(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in get_args(Level)}
    if verdict(findings) == "ok":
        return "No problems found."
    problems = [f"{counts['bad']} bad"] * bool(counts["bad"])
    problems += [plural(counts["warn"], "warning")] * bool(counts["warn"])
    return f"Found {' and '.join(problems)}; {counts['ok']} ok."


def _wrapped(head: str, text: str, indent: int, width: int) -> list[str]:
    return textwrap.wrap(
        printable(text), max(width, indent + 30), initial_indent=head, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip
