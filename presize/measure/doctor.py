"""Facts of a machine -> findings: limits on how fast images load, and their fixes."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from presize.codecs.plugins import OPENCVS
from presize.formatting import plural, printable, size_text
from presize.measure.codec_features import Baseline, Codecs, read_codecs
from presize.measure.read_speed import Content, Reading, list_content, measure
from presize.system.resources import (
    Cpu,
    Limits,
    Memory,
    Nvidia,
    SharedMemory,
    Torch,
    max_open_shards,
    read_cpu,
    read_limits,
    read_memory,
    read_nvidia,
    read_shared_memory,
    whole_cores,
)
from presize.system.storage import Storage, find_storage

Level = Literal["ok", "warn", "bad", "unknown"]


class Finding(NamedTuple):
    """Result of one check, and its fix. "warn": slower than possible, or a pitfall. "bad": training fails, or is
    several times slower."""

    topic: str
    level: Level
    found: str
    fix: str | None = None


@dataclass(frozen=True)
class CheckUp:
    cpu: Cpu
    memory: Memory
    shared_memory: SharedMemory | None
    limits: Limits
    open_shards: int  # most that a dataset keeps open
    codecs: Codecs
    nvidia: Nvidia | None
    torch: Torch | str  # or the reason why it cannot be imported
    storage: Storage  # of the path, by default the current folder
    content: Content | None = None  # of the path
    reading: Reading | str | None = None  # of the content, or its error; None if there is too little to measure

    def known(self) -> dict[str, Any]:
        """Return the facts as plain values of JSON. The content is summarized, without its file names."""
        known, content = asdict(replace(self, content=None)), self.content
        if content is not None:
            known["content"] = {"files": len(content.files), "bytes": content.nbytes}
            known["content"] |= {"all_files": content.all_files, "record_bytes": content.record_bytes}
        return known


Judged = tuple[Level, str] | tuple[Level, str, str | None]  # a finding without its topic

# 256 images of 224 px as float32. A DataLoader often sends batches through /dev/shm, with two per worker under way.
_BATCH_BYTES = 256 * 3 * 224 * 224 * 4
# A process with torch takes about 0.3 GB, and there are several processes, each with batches.
_LITTLE_MEMORY_BYTES = 2_000_000_000
_OPEN_FILES = 1024  # Linux's own soft limit
# Images/s that a fast core reads and decodes: 256 px JPEGs from LMDB; files with torchvision. An Intel Xeon reads
# 4,000, 570 of 256 px, and 280 of 110 kB (benchmarks/reading/results/read.csv, 2026-11-28).
_CORE_IMAGES_PER_S = 5000
_CORE_FILES_PER_S, _CORE_FILE_BYTES_PER_S = 700, 40e6
_MOST_READERS = 16  # enough to keep any disk busy; with more, Python would be the limit

_BY_SHARDS = "read shard by shard: shuffle=ShardShuffled(...) with readahead=True"


def _own_code(state: Baseline, code: str, reason: str | None, library: str) -> tuple[Level, str, str | None]:
    own = f"presize's own {code}"
    if state == "not compiled":
        fix = "apt-get install gcc python3-dev (a C compiler), then pip install --force-reinstall --no-deps presize"
        return "warn", f"{own}, which is faster, is not compiled", fix
    if state == "switched off":
        return "warn", f"{own}, which is faster, is switched off: {reason}", "unset PRESIZE_DECODER"
    if state == "failed its self-check":
        fix = f"report this output as a bug; {library} is used meanwhile: slower, with correct pixels"
        return "bad", f"{own} failed its self-check and is off: {reason}", fix
    return "ok", f"{own}{' is for x86-64 and ARM64' if state == 'not for this processor' else ''}", None


def _cpu(facts: CheckUp) -> Judged:
    model, instructions = facts.cpu.model, facts.cpu.instructions
    if instructions is None:
        return "unknown", f"{model}; its SIMD instructions are not known"
    if not instructions:
        return "warn", f"{model}, without SSE4, AVX2 or NEON", "use a newer CPU: codecs are slow without SIMD"
    if instructions == ("SSE4",):
        return "warn", f"{model}, SSE4", "codecs are faster with AVX2: pass the host CPU through to the virtual machine"
    return "ok", f"{model}, {instructions[-1]}"


def _cores(facts: CheckUp) -> Judged:
    cpu = facts.cpu
    of = f" of {cpu.online}" if cpu.online and cpu.online != cpu.cores else ""
    if cpu.usable < cpu.cores:
        fix = (
            "builds and presize's loaders respect the quota, but torch's DataLoader does not; raise it with docker run "
            "--cpus or Kubernetes resources.limits.cpu"
        )
        return "warn", f"{cpu.cores}{of} visible, but a cgroup quota of {cpu.usable:g}", fix
    if cpu.cores == 1:
        fix = "request more: sbatch --cpus-per-task, docker run --cpuset-cpus"
        return "warn", f"1{of}: training and loading share it", fix
    return "ok", f"{cpu.cores}{of}"


def _memory(facts: CheckUp) -> Judged:
    memory = facts.memory
    total = min(filter(None, (memory.total, memory.limit)), default=None)
    found = f"{size_text(memory.available)} available" + (f" of {size_text(total)}" if total else "")
    found += " (cgroup limit)" if memory.limit is not None else ""
    if memory.available < _LITTLE_MEMORY_BYTES:
        return "warn", found, "use fewer workers and smaller batches, or raise the limit: docker run --memory"
    if memory.swap_used and memory.swap_used > (memory.total or 0) / 10:
        fix = "free memory, or use fewer workers: swapping is slower than reading again"
        return "warn", f"{found}; {size_text(memory.swap_used)} swapped out", fix
    return "ok", found


def _shared_memory(facts: CheckUp) -> Judged:
    shm = facts.shared_memory
    if shm is None:
        return "unknown", "does not exist; loaders use other shared memory of the system"
    workers = whole_cores(facts.cpu.usable)
    needed = workers * 2 * _BATCH_BYTES
    found = f"{size_text(shm.free)} free of {size_text(shm.total)}"
    if shm.free >= needed:
        return "ok", found
    found += f"; a DataLoader with transforms needs up to {size_text(needed)}"
    fix = (
        f"docker run --shm-size={-(-needed // 10**9)}g (or --ipc=host; Kubernetes: an emptyDir of medium Memory), or "
        'read with Loader, or with crop= and decode="tensor", which need almost none'
    )
    level: Level = "bad" if shm.free < _BATCH_BYTES else "warn"
    return level, f"{found} ({plural(workers, 'worker')}, 256 images of 224 px)", fix


def _open_files(facts: CheckUp) -> Judged:
    limit, hard = facts.limits.open_files, facts.limits.open_files_at_most
    shards = len(facts.content.files) if facts.content is not None and facts.content.shards else 0
    if limit is None:
        return "ok", "unlimited"
    found, wanted = f"{limit:,} per process", max(_OPEN_FILES, 2 * shards)
    if limit >= wanted:
        return "ok", found
    if shards > facts.open_shards:
        found += f": {facts.open_shards:,} of the {shards:,} shards stay open; the others are reopened again and again"
    fix = f"ulimit -n {wanted} before starting"
    if hard is not None and hard < wanted:
        fix += f" (the hard limit is {hard:,}; raise it with docker run --ulimit nofile={wanted} or in limits.conf)"
    return "warn", found, fix


def _locked_memory(facts: CheckUp) -> Judged:
    locked, content = facts.limits.locked_bytes, facts.content
    if locked is None:
        return "ok", "unlimited"
    if content is not None and content.shards and content.nbytes <= locked:
        return "ok", f"{size_text(locked)}, enough for this dataset"
    return "ok", size_text(locked), 'for preload="memory" raise it: ulimit -l, docker run --ulimit memlock=-1'


def _jpeg(facts: CheckUp) -> Judged:
    jpeg = facts.codecs.jpeg
    found = f"simplejpeg {jpeg.simplejpeg}"
    if jpeg.libjpeg_turbo is None:
        return "unknown", f"{found}; its libjpeg-turbo is not known"
    found += f", libjpeg-turbo {jpeg.libjpeg_turbo}"
    if not jpeg.simd:
        fix = "pip install --force-reinstall --no-deps --only-binary :all: simplejpeg (or build it with nasm installed)"
        return "bad", f"{found} without SIMD", fix
    if jpeg.simd_limits:
        level: Level = "bad" if "JSIMD_FORCENONE=1" in jpeg.simd_limits else "warn"
        fix = f"unset {' '.join(name.partition('=')[0] for name in jpeg.simd_limits)}"
        return level, f"{found}, with SIMD limited by {' and '.join(jpeg.simd_limits)}", fix
    level, own, fix_own = _own_code(jpeg.baseline, "decoder for baseline JPEG", jpeg.baseline_reason, "libjpeg-turbo")
    return level, f"{found} with SIMD; {own}", fix_own


def _resizer(facts: CheckUp) -> Judged:
    resizer = facts.codecs.resizer
    level, found, fix = _own_code(resizer.own, "resize", resizer.reason, "Pillow")
    return level, f"{found}, {resizer.instructions or 'plain C'}" if resizer.own == "used" else found, fix


def _pillow(facts: CheckUp) -> Judged:
    pillow = facts.codecs.pillow
    turbo = f"libjpeg-turbo {pillow.libjpeg_turbo}" if pillow.libjpeg_turbo else "a libjpeg that is not libjpeg-turbo"
    found = f"{'pillow-simd' if pillow.simd else 'Pillow'} {pillow.version}, {turbo}"
    reinstall = "pip uninstall -y pillow pillow-simd && pip install pillow"
    if len(pillow.distributions) > 1:
        return "warn", f"{found}; Pillow and pillow-simd are both installed, in the same folder", reinstall
    if pillow.simd:
        return "warn", f"{found}; it lacks recent fixes of Pillow's decoders", reinstall
    if not pillow.libjpeg_turbo:
        return "warn", found, "pip install --force-reinstall --only-binary :all: pillow"
    return "ok", found


def _opencv(facts: CheckUp) -> Judged:
    opencv = facts.codecs.opencv
    best = opencv.instructions[-1] if opencv.instructions else "no SIMD"
    found = f"{opencv.version}, {best}, {plural(opencv.threads, 'thread')}"
    only_one = f"pip install {OPENCVS[0]} (or the one that you need)"
    if opencv.distributions:
        only_one = f"pip uninstall -y {' '.join(opencv.distributions)} && {only_one}"
    if not opencv.version:
        what = f"cannot be imported: {opencv.broken}"
        if ".so" not in opencv.broken:  # a missing shared library of the system is another problem
            what += "; uninstalling another OpenCV may have deleted its files"
        return "bad", what, only_one
    if len(opencv.distributions) > 1:
        both = " and ".join(opencv.distributions)
        return "warn", f"{found}; {both} own the same folder: removing one breaks the other", only_one
    if not opencv.optimized:
        return "warn", f"{found}, optimized code is off", "cv2.setUseOptimized(True)"
    own = "in your own DataLoader: cv2.setNumThreads(0) in each worker"  # presize's loaders do that
    return "ok", found, own if opencv.threads > 1 else None


def _torch(facts: CheckUp) -> Judged:
    torch, cores = facts.torch, facts.cpu.usable
    if isinstance(torch, str):
        return "warn", torch, 'pip install "presize[torch]" (builds work without it)'
    found = f"{torch.version}, {torch.instructions}, {plural(torch.threads, 'thread')}"
    if torch.threads > max(1, cores):
        return "warn", f"{found} for {cores:g} cores", f"set OMP_NUM_THREADS={max(1, int(cores))} in the environment"
    return "ok", found


def _gpu(facts: CheckUp) -> Judged:
    torch, nvidia = facts.torch, facts.nvidia
    driver = f"{_counted(nvidia.gpus) or 'NVIDIA'}, driver {nvidia.driver}" if nvidia else None
    if isinstance(torch, str):
        return "unknown", f"{driver}; no torch to use it" if driver else "unknown without torch"
    if torch.gpus:
        about = [_counted([f"{gpu.name} ({size_text(gpu.memory_bytes)})" for gpu in torch.gpus]), torch.platform]
        about.append(f"driver {nvidia.driver}" if nvidia else None)
        capabilities = sorted({gpu.capability for gpu in torch.gpus if gpu.capability})
        about.append(f"compute capability {', '.join(capabilities)}" if capabilities else None)
        about.append(f"{min(nvidia.pcie_lanes)} PCIe lanes" if nvidia and nvidia.pcie_lanes else None)
        return "ok", ", ".join(filter(None, about))
    if driver and torch.platform is None:
        fix = "install a CUDA build: pytorch.org/get-started"
        return "bad", f"{driver}; torch {torch.version} is built for the CPU only", fix
    if driver or torch.said:
        found = f"{driver or 'a GPU'}; torch {torch.version} ({torch.platform}) cannot use it"
        fix = "update the driver, or give the container the GPU: docker run --gpus all"
        return "bad", f"{found}: {torch.said}" if torch.said else found, fix
    return "ok", f"{torch.accelerator} (torch's name)" if torch.accelerator else "none"


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in Counter(names).items())


def _storage(facts: CheckUp) -> Judged:
    storage, reading = facts.storage, facts.reading
    if storage.file_system is None:
        return "unknown", "its kind is not known"
    found = f"{storage.described}; read-ahead {storage.window_bytes >> 10:,} KiB"
    is_measured = isinstance(reading, Reading) and reading.cold
    if storage.kind in ("network", "rotating") and not is_measured:
        return "warn", f"{found}; random reads are slow", _faster(facts)
    return "ok", found


def _reading(facts: CheckUp) -> Judged | None:
    content, reading = facts.content, facts.reading
    if content is None:
        return None
    if isinstance(reading, str):
        return "bad", reading, "check the permissions, the disk (dmesg) and the mount"
    if not content.files:
        return "unknown", "no files found; links are not followed"
    if reading is None:
        return "unknown", f"{size_text(content.nbytes)} is too little to measure"
    found = (
        f"{_rounded(reading.random_reads_per_s)} {'records' if content.shards else 'files'}/s of "
        f"{size_text(reading.record_bytes)} in random order ({plural(reading.readers, 'reader')}), "
        f"{size_text(reading.sequential_bytes_per_s)}/s sequentially"
    )
    if facts.storage.kind == "memory":
        return "ok", found
    if reading.cold is None:
        return "unknown", f"{found}, but data may come from the page cache"
    if not reading.cold:
        return "unknown", f"{found}, but the page cache keeps the files", "if they are new, try again in a minute"
    core_rate = min(_CORE_FILES_PER_S, _CORE_FILE_BYTES_PER_S / max(1, reading.record_bytes))
    needed = reading.readers * (_CORE_IMAGES_PER_S if content.shards else core_rate)
    if reading.random_reads_per_s >= needed:
        return "ok", f"{found}, cold"
    found += f", cold; {plural(reading.readers, 'core')} can use about {_rounded(needed)}/s"
    return "warn", found, _faster(facts)


def _faster(facts: CheckUp) -> str:
    content = facts.content
    if content is not None and not content.shards:
        return "presize build reads the files once, in order; put OUT on a local SSD"
    if content is not None and content.nbytes > facts.memory.available:
        return f"{_BY_SHARDS}, or copy it to a local SSD"
    return 'preload="page-cache" reads a dataset in order before training; or copy it to a local SSD'


def _rounded(rate: float) -> str:
    """Return the rate to two significant digits, since runs differ in the third."""
    return f"{float(f'{rate:.2g}'):,.0f}"


def _size(facts: CheckUp) -> Judged | None:
    content, available = facts.content, facts.memory.available
    if content is None or not content.files:
        return None
    size = size_text(content.nbytes)
    if content.nbytes <= available:
        return ("ok", f"{size}, fits into memory: later epochs need no disk") if content.all_files else None
    found = f"{'' if content.all_files else 'more than '}{size}, does not fit into {size_text(available)} of memory"
    return "warn", found, f"{_BY_SHARDS}, or build it smaller" if content.shards else "presize build makes it smaller"


CHECKS: Final[dict[str, Callable[[CheckUp], Judged | None]]] = {
    "CPU": _cpu, "cores": _cores, "memory": _memory, "/dev/shm": _shared_memory, "open files": _open_files,
    "locked memory": _locked_memory, "JPEG": _jpeg, "resize": _resizer, "PIL": _pillow, "OpenCV": _opencv,
    "torch": _torch, "GPU": _gpu, "storage": _storage, "reading": _reading, "size": _size,
}  # fmt: skip
"""The check of each topic, in the order in which they are shown."""


def judge(facts: CheckUp) -> list[Finding]:
    """Return one finding per topic, always in the same order. Topics of a path are left out if there is none."""
    judged = ((topic, check(facts)) for topic, check in CHECKS.items())
    return [Finding(topic, *found) for topic, found in judged if found is not None]


def verdict(findings: Iterable[Finding]) -> Level:
    """Return the worst level among `findings`; "unknown" counts as "ok"."""
    levels = {finding.level for finding in findings}
    return "bad" if "bad" in levels else "warn" if "warn" in levels else "ok"


def check_up(torch: Torch | str, path: Path | None = None, readers: int | None = None) -> CheckUp:
    """Gather the facts of this machine in a few seconds, without writing. `path`: a dataset, a folder of images or a
    file, part of which is read; None reads nothing. `readers`: threads that read, by default one per core, at most 16.
    Raises DatasetError if `path` does not exist."""
    cpu = read_cpu()
    content = None if path is None else list_content(path)
    reading: Reading | str | None = None
    if content is not None:
        try:
            reading = measure(content, readers or max(1, min(_MOST_READERS, int(cpu.usable))))
        except OSError as error:
            name = os.fsencode(error.filename or path or "").decode("utf-8", "backslashreplace")
            reading = f"{name}: {error.strerror}"
    return CheckUp(
        cpu, read_memory(), read_shared_memory(), read_limits(), max_open_shards(), read_codecs(), read_nvidia(), torch,
        find_storage(path or Path()), content, reading,
    )  # fmt: skip


def as_text(findings: Sequence[Finding], width: int = 100) -> str:
    """Return the verdict, problems with their fixes, then the rest, in lines of at most `width` characters unless a
    word is longer. Unprintable characters are escaped."""
    of = {level: [one for one in findings if one.level == level] for level in get_args(Level)}
    problems = [plural(len(of["bad"]), "problem")] if of["bad"] else []
    problems += [plural(len(of["warn"]), "warning")] if of["warn"] else []
    lines = [f"Found {' and '.join(problems)}; {len(of['ok'])} ok." if problems else "No problems found."]
    topic_width = max((len(finding.topic) for finding in findings), default=0)
    indent = topic_width + 11
    rest = [finding for finding in findings if finding.level in ("ok", "unknown")]
    for group in filter(None, ([*of["bad"], *of["warn"]], rest)):
        lines.append("")
        for topic, level, found, fix in group:
            lines += _wrapped(f"{level:7}  {topic:{topic_width}}  ", found, indent, width)
            lines += _wrapped(" " * indent + "-> ", fix, indent + 3, width) if fix else []
    return "\n".join(lines)


def _wrapped(head: str, text: str, indent: int, width: int) -> list[str]:
    return textwrap.wrap(
        printable(text), max(width, indent + 30), initial_indent=head, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip
