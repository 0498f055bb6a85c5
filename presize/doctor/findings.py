"""Facts of a machine -> findings: what decides loading speed, whether it is good, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from presize.doctor.codec_features import Codecs
from presize.measure.read_speed import Content, Reading
from presize.system.machine import Cpu, Limits, Nvidia, SharedMemory, Torch
from presize.system.resources import Memory, whole_cores
from presize.system.storage import Storage

Level = Literal["ok", "look", "bad", "unknown"]

_CORE_IMAGES_PER_S = 2500
"""What a core reads of 256 px JPEGs from LMDB, decoding included: benchmarks/reading/results/read.csv (2026-11-21)."""

_CORE_FILES_PER_S = 700
_CORE_FILE_BYTES_PER_S = 40e6
"""What a core reads of files with torchvision, at most: 710 a second of 256 px, 370 of 110 kB, in the same table."""

_BATCH_BYTES = 256 * 3 * 224 * 224 * 4
"""256 images of 224 px as float32, as a transform makes them: what a DataLoader often sends through /dev/shm."""

_PREFETCH = 2
"""DataLoader's prefetch_factor."""

_LITTLE_MEMORY_BYTES = 2_000_000_000
"""A process with torch has about 0.3 GB, and there are some of them and their batches."""

_OPEN_FILES = 1024
"""Linux's own soft limit."""


class Finding(NamedTuple):
    """level: "ok"; "look", slower than it could be, or a trap; "bad", training fails or is several times slower;
    "unknown". found: what there is. cure: what to do about it."""

    topic: str
    level: Level
    found: str
    cure: str | None = None


@dataclass(frozen=True)
class CheckUp:
    """All facts. torch: why it cannot be imported, if it cannot. content, reading: of a path that was named;
    reading is what went wrong, if something did, and None when there is too little to read."""

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
        """As JSON has it; of the content not each file, but their number and size."""
        content = self.content and {
            "files": len(self.content.files),
            "bytes": self.content.nbytes,
            "all_files": self.content.all_files,
            "record_bytes": self.content.record_bytes,
        }
        return asdict(replace(self, content=None)) | {"content": content}


def judge(facts: CheckUp) -> list[Finding]:
    """One finding a topic, always in this order; those of a path only where one was named."""
    return [finding for topic in _TOPICS if (finding := topic(facts))]


def verdict(findings: Iterable[Finding]) -> Level:
    """The worst of them; what is not known is no reproach."""
    levels = {finding.level for finding in findings}
    return "bad" if "bad" in levels else "look" if "look" in levels else "ok"


# --- what each fact means ---


def _cpu(facts: CheckUp) -> Finding:
    cpu, best = facts.cpu, facts.cpu.instructions
    if best is None:
        return Finding("CPU", "unknown", f"{cpu.model}; its instructions are not known")
    if not best:
        return Finding("CPU", "look", f"{cpu.model}, without SSE4, AVX2 or NEON", "use a newer one: codecs need SIMD")
    found = f"{cpu.model}, {best[-1]}"
    if best == ("SSE4",):
        return Finding(
            "CPU", "look", found, "codecs are faster with AVX2: let the virtual machine pass the CPU through"
        )
    return Finding("CPU", "ok", found)


def _cores(facts: CheckUp) -> Finding:
    cpu = facts.cpu
    of = f" of {cpu.online}" if cpu.online and cpu.online != cpu.cores else ""
    if cpu.usable < cpu.cores:
        return Finding(
            "cores", "look", f"{cpu.cores}{of} in sight, but the time of {cpu.usable:g} only (cgroup quota)",
            "builds and presize's loaders mind it by themselves, torch's DataLoader does not; to allow more: "
            "docker run --cpus, Kubernetes resources.limits.cpu",
        )  # fmt: skip
    if cpu.cores == 1:
        return Finding(
            "cores", "look", f"1{of}: training and loading share it",
            "ask for more: sbatch --cpus-per-task, docker run --cpuset-cpus",
        )  # fmt: skip
    return Finding("cores", "ok", f"{cpu.cores}{of}")


def _memory(facts: CheckUp) -> Finding:
    memory = facts.memory
    total = min((amount for amount in (memory.total, memory.limit) if amount is not None), default=None)
    found = f"{_bytes(memory.available)} available" + (f" of {_bytes(total)}" if total else "")
    if memory.limit is not None:
        found += " (cgroup limit)"
    if memory.available < _LITTLE_MEMORY_BYTES:
        return Finding(
            "memory", "look", found, "choose fewer workers and smaller batches, or allow more: docker run --memory"
        )
    if memory.swap_used and memory.swap_used > (memory.total or 0) / 10:
        return Finding(
            "memory", "look", f"{found}; {_bytes(memory.swap_used)} are swapped out",
            "end what fills the memory, or choose fewer workers: swapping is slower than reading again",
        )  # fmt: skip
    return Finding("memory", "ok", found)


def _shared_memory(facts: CheckUp) -> Finding:
    shm = facts.shared_memory
    if shm is None:
        return Finding("/dev/shm", "unknown", "not there; loaders use what the system has instead")
    workers = whole_cores(facts.cpu.usable)
    needed = workers * _PREFETCH * _BATCH_BYTES
    found = f"{_bytes(shm.free)} free of {_bytes(shm.total)}"
    if shm.free >= needed:
        return Finding("/dev/shm", "ok", found)
    loader = f"a DataLoader with transforms takes up to {_bytes(needed)}"
    return Finding(
        "/dev/shm", "bad" if shm.free < _BATCH_BYTES else "look",
        f"{found}; {loader} ({_some(workers, 'worker')}, 256 images of 224 px)",
        f"docker run --shm-size={-(-needed // 10**9)}g (or --ipc=host; Kubernetes: an emptyDir of medium Memory), or "
        'read with Loader, or with crop= and decode="tensor", which need next to none',
    )  # fmt: skip


def _open_files(facts: CheckUp) -> Finding:
    limits, content = facts.limits, facts.content
    shards = len(content.files) if content is not None and content.shards else 0
    open_files = limits.open_files
    if open_files is None:
        return Finding("open files", "ok", "any number")
    found = f"{open_files:,} a process"
    wanted = max(_OPEN_FILES, 2 * shards)
    if open_files >= wanted:
        return Finding("open files", "ok", found)
    if shards > facts.open_shards:
        found += f": {facts.open_shards:,} of the {shards:,} shards stay open, others are opened again and again"
    most = limits.open_files_at_most
    cure = f"ulimit -n {wanted} before starting"
    if most is not None and most < wanted:
        cure += f" (allowed are {most:,}; more with docker run --ulimit nofile={wanted} or in limits.conf)"
    return Finding("open files", "look", found, cure)


def _locked_memory(facts: CheckUp) -> Finding:
    locked, content = facts.limits.locked_bytes, facts.content
    if locked is None:
        return Finding("locked memory", "ok", "any amount")
    found = f"{_bytes(locked)}"
    if content is not None and content.shards and content.nbytes <= locked:
        return Finding("locked memory", "ok", f"{found}, enough for this dataset")
    return Finding(
        "locked memory", "ok", found, 'for preload="memory" allow more: ulimit -l, docker run --ulimit memlock=-1'
    )


def _jpeg(facts: CheckUp) -> Finding:
    jpeg = facts.codecs.jpeg
    found = f"simplejpeg {jpeg.simplejpeg}"
    if jpeg.libjpeg_turbo is None:
        return Finding("JPEG", "unknown", f"{found}; which libjpeg-turbo is in it is not known")
    found += f", libjpeg-turbo {jpeg.libjpeg_turbo}"
    if not jpeg.simd:
        return Finding(
            "JPEG", "bad", f"{found} without SIMD",
            "pip install --force-reinstall --no-deps --only-binary :all: simplejpeg (or build it with nasm installed)",
        )  # fmt: skip
    if jpeg.told:
        return Finding(
            "JPEG", "bad" if "JSIMD_FORCENONE=1" in jpeg.told else "look",
            f"{found}, told by {' and '.join(jpeg.told)} to use less SIMD",
            f"unset {' '.join(name.partition('=')[0] for name in jpeg.told)}",
        )  # fmt: skip
    found += " with SIMD"
    if jpeg.baseline == "not compiled":
        return Finding(
            "JPEG", "look", f"{found}; presize's own decoder, which is faster, is not compiled",
            "a C compiler (apt-get install gcc python3-dev), then pip install --force-reinstall --no-deps presize",
        )  # fmt: skip
    if jpeg.baseline == "not for this processor":
        return Finding("JPEG", "ok", f"{found}; presize's own decoder needs AVX2")
    return Finding("JPEG", "ok", f"{found}; presize's own decoder for baseline JPEG")


def _resizer(facts: CheckUp) -> Finding:
    resizer, best = facts.codecs.resizer, facts.cpu.instructions or ()
    found = f"cykooz.resizer {resizer.version}, {resizer.instructions or 'no SIMD'}"
    possible = next((name for name in ("AVX2", "SSE4", "NEON") if name in best), None)
    if possible and resizer.instructions != possible:
        return Finding(
            "resize", "look", f"{found}, where the CPU has {possible}",
            "pip install --upgrade --force-reinstall --no-deps --only-binary :all: cykooz.resizer",
        )  # fmt: skip
    return Finding("resize", "ok" if resizer.instructions else "look", found)


def _pillow(facts: CheckUp) -> Finding:
    pillow = facts.codecs.pillow
    turbo = f"libjpeg-turbo {pillow.libjpeg_turbo}" if pillow.libjpeg_turbo else "a libjpeg that is not libjpeg-turbo"
    found = f"{'pillow-simd' if pillow.simd else 'Pillow'} {pillow.version}, {turbo}"
    anew = "pip uninstall -y pillow pillow-simd && pip install pillow"
    if len(pillow.distributions) > 1:
        return Finding("PIL", "look", f"{found}; Pillow and pillow-simd are both installed, in one folder", anew)
    if pillow.simd:
        return Finding("PIL", "look", f"{found}; it lacks the latest fixes of Pillow's decoders", anew)
    if not pillow.libjpeg_turbo:
        return Finding("PIL", "look", found, "pip install --force-reinstall --only-binary :all: pillow")
    return Finding("PIL", "ok", found)


def _opencv(facts: CheckUp) -> Finding:
    opencv = facts.codecs.opencv
    best = opencv.instructions[-1] if opencv.instructions else "no SIMD"
    found = f"{opencv.version}, {best}, {_some(opencv.threads, 'thread')}"
    if not opencv.optimized:
        return Finding("OpenCV", "look", f"{found}, optimized code switched off", "cv2.setUseOptimized(True)")
    own = "in a DataLoader of your own: cv2.setNumThreads(0) in each worker"  # presize's loaders do that
    return Finding("OpenCV", "ok", found, own if opencv.threads > 1 else None)


def _torch(facts: CheckUp) -> Finding:
    torch, cpu = facts.torch, facts.cpu
    if isinstance(torch, str):
        return Finding("torch", "look", torch, 'pip install "presize[torch]" (builds do without it)')
    found = f"{torch.version}, {torch.instructions}, {_some(torch.threads, 'thread')}"
    if torch.threads > max(1, cpu.usable):
        cores = max(1, int(cpu.usable))
        return Finding(
            "torch", "look", f"{found} for {cpu.usable:g} cores", f"OMP_NUM_THREADS={cores} in the environment"
        )
    return Finding("torch", "ok", found)


def _gpu(facts: CheckUp) -> Finding:
    torch, nvidia = facts.torch, facts.nvidia
    there = f"{_counted(nvidia.gpus) or 'NVIDIA'}, driver {nvidia.driver}" if nvidia else None
    if isinstance(torch, str):
        return Finding(
            "GPU", "unknown", f"{there}; there is no torch to use it" if there else "not known without torch"
        )
    if torch.gpus:
        gpus = _counted([f"{gpu.name} ({_bytes(gpu.memory_bytes)})" for gpu in torch.gpus])
        about = [torch.platform, f"driver {nvidia.driver}" if nvidia else None]
        capabilities = sorted({gpu.capability for gpu in torch.gpus if gpu.capability})
        about.append(f"compute capability {', '.join(capabilities)}" if capabilities else None)
        about.append(f"{min(nvidia.pcie_lanes)} PCIe lanes" if nvidia and nvidia.pcie_lanes else None)
        return Finding("GPU", "ok", ", ".join([gpus, *filter(None, about)]))
    if there and torch.platform is None:
        return Finding(
            "GPU", "bad", f"{there}; torch {torch.version} is built for the CPU alone",
            "install a build for CUDA, as pytorch.org/get-started tells",
        )  # fmt: skip
    if there or torch.said:
        said = f": {torch.said}" if torch.said else ""
        return Finding(
            "GPU", "bad", f"{there or 'one'}; torch {torch.version} ({torch.platform}) cannot use it{said}",
            "update the driver, or let the container have the GPU: docker run --gpus all",
        )  # fmt: skip
    return Finding("GPU", "ok", f"{torch.accelerator}, as torch calls it" if torch.accelerator else "none")


def _gpu_decoder(facts: CheckUp) -> Finding | None:
    torch = facts.torch
    if isinstance(torch, str) or not torch.gpus:
        return None
    if torch.decoder:
        return Finding("GPU decoder", "ok", f'JPEG with {torch.decoder}; Loader(decode_on="device") uses it')
    return Finding("GPU decoder", "ok", "none, so that workers decode", torch.no_decoder)


_BY_SHARDS = "read shard by shard: order=ShardShuffled(...) with readahead=True"


def _storage(facts: CheckUp) -> Finding:
    storage, reading = facts.storage, facts.reading
    if storage.file_system is None:
        return Finding("storage", "unknown", "what it is on is not known here")
    found = f"{storage.described}; the kernel reads ahead {storage.window_bytes >> 10:,} KiB"
    measured = isinstance(reading, Reading) and reading.cold
    if storage.kind in ("network", "rotating") and not measured:
        return Finding("storage", "look", f"{found}; slow in random order", _faster(facts))
    return Finding("storage", "ok", found)


def _reading(facts: CheckUp) -> Finding | None:
    content, reading = facts.content, facts.reading
    if content is None:
        return None
    if isinstance(reading, str):
        return Finding("reading", "bad", reading, "check the permissions, the disk (dmesg) and the mount")
    if not content.files:
        return Finding("reading", "unknown", "no files were found; links are not followed")
    if reading is None:
        return Finding("reading", "unknown", f"{_bytes(content.nbytes)} are too little to measure")
    what = "records" if content.shards else "files"
    found = (
        f"{_rounded(reading.random_reads_per_s)} {what}/s of {_bytes(reading.record_bytes)} in random order "
        f"({reading.readers} at a time), {_bytes(reading.sequential_bytes_per_s)}/s from end to end"
    )
    if facts.storage.kind == "memory":
        return Finding("reading", "ok", found)
    if not reading.cold:
        why = "the page cache does not let go of it" if reading.cold is False else "it may come from the page cache"
        again = "run it again in a minute if it was written just now" if reading.cold is False else None
        return Finding("reading", "unknown", f"{found}, but {why}", again)
    found += ", cold"
    needed = reading.readers * _core_rate(content, reading)
    if reading.random_reads_per_s >= needed:
        return Finding("reading", "ok", found)
    found += f"; {_some(reading.readers, 'core')} can use about {_rounded(needed)}"
    return Finding("reading", "look", found, _faster(facts))


def _faster(facts: CheckUp) -> str:
    """What to do about storage that is slow in random order."""
    content = facts.content
    if content is not None and not content.shards:
        return "presize build reads the files once and in order: put OUT on a local SSD"
    if content is not None and content.nbytes > facts.memory.available:
        return f"{_BY_SHARDS}, or copy it to a local SSD"
    return 'preload="page-cache" reads a dataset in order before training; or copy it to a local SSD'


def _core_rate(content: Content, reading: Reading) -> float:
    """How many of them a second one core can decode."""
    if content.shards:
        return _CORE_IMAGES_PER_S
    return min(_CORE_FILES_PER_S, _CORE_FILE_BYTES_PER_S / max(1, reading.record_bytes))


def _fits(facts: CheckUp) -> Finding | None:
    content, available = facts.content, facts.memory.available
    if content is None or not content.files:
        return None
    more = "" if content.all_files else "more than "
    if content.nbytes <= available:
        fits = "fits into memory: later epochs need no disk"
        return Finding("size", "ok", f"{_bytes(content.nbytes)}, {fits}") if content.all_files else None
    return Finding(
        "size", "look", f"{more}{_bytes(content.nbytes)}, which {_bytes(available)} of memory do not hold",
        f"{_BY_SHARDS}, or build it smaller" if content.shards else "presize build makes it smaller",
    )  # fmt: skip


_TOPICS: Sequence[Callable[[CheckUp], Finding | None]] = (
    _cpu, _cores, _memory, _shared_memory, _open_files, _locked_memory, _jpeg, _resizer, _pillow, _opencv, _torch, _gpu,
    _gpu_decoder, _storage, _reading, _fits,
)  # fmt: skip


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _rounded(rate: float) -> str:
    """To two digits: the next time it will be another."""
    return f"{float(f'{rate:.2g}'):,.0f}"


def _counted(names: Sequence[str]) -> str:
    """``2 x H100, L4``"""
    return ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


def _bytes(nbytes: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:,.3g} {unit}" if nbytes < 1000 * size else f"{nbytes / size:,.0f} {unit}"
    return f"{nbytes:.0f} bytes"
