"""Facts -> findings: what is well, what is not, and that each says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from presize.measure.codec_features import Codecs, Jpeg, OpenCV, Pillow, Resizer
from presize.measure.doctor import CheckUp, Finding, judge, verdict
from presize.measure.read_speed import Content, File, Reading
from presize.system.machine import Cpu, Gpu, Limits, Nvidia, SharedMemory, Torch
from presize.system.resources import Memory
from presize.system.storage import Storage

GB = 10**9

H100 = Gpu("NVIDIA H100 80GB HBM3", 85 * GB, "9.0")
CUDA = Torch("2.13.0+cu130", "CUDA 13.0", 16, "AVX512", "cuda", gpus=(H100, H100))
WELL = CheckUp(
    cpu=Cpu("AMD EPYC 9654", ("SSE4", "AVX2", "AVX-512"), 16, 16, None),
    memory=Memory(128 * GB, None, 100 * GB, 0, 0),
    shared_memory=SharedMemory(64 * GB, 64 * GB),
    limits=Limits(1024, 1 << 20, None),
    open_shards=512,
    codecs=Codecs(
        Jpeg("1.9.0", "3.1.2", True, (), "used"),
        Resizer("4.0.1", "AVX2"),
        Pillow("13.0.0", False, "3.2.0", ("pillow",)),
        OpenCV("5.0.0", True, ("SSE4", "AVX2"), 16),
    ),
    nvidia=Nvidia("570.86.15", ("NVIDIA H100 80GB HBM3",) * 2, (16, 16)),
    torch=CUDA,
    storage=Storage("ext4", "nvme", "nvme0n1", 128 << 10),
)
SHARDS = Content(tuple(File(Path(f"{number}.lmdb"), 50_000_000) for number in range(40)), 30_000, True, True)
PHOTOS = Content(tuple(File(Path(f"{number}.jpg"), 110_000) for number in range(4000)), 110_000, False, False)
FAST = Reading(3e9, 100_000.0, 30_000, 16, True)
SLOW = Reading(2e9, 900.0, 30_000, 16, True)
SLOWER = Reading(80e6, 90.0, 30_000, 16, True)
ON_DISK = replace(WELL, content=SHARDS, reading=FAST)


def changed(part: str, base: CheckUp = WELL, **values: Any) -> CheckUp:
    """`base` with other values in one of its facts."""
    return replace(base, **{part: replace(getattr(base, part), **values)})


def codec(name: str, **values: Any) -> CheckUp:
    return changed("codecs", **{name: replace(getattr(WELL.codecs, name), **values)})


def of(facts: CheckUp, topic: str) -> Finding:
    return next(finding for finding in judge(facts) if finding.topic == topic)


CPU_ONLY = Torch("2.13.0+cpu", None, 16, "AVX512")
JUDGED = [
    (WELL, "CPU", "ok", "AMD EPYC 9654, AVX-512", "a CPU with SIMD"),
    (changed("cpu", instructions=("SSE4",)), "CPU", "warn", "AVX2", "a virtual machine without AVX2"),
    (changed("cpu", instructions=()), "CPU", "warn", "without SSE4", "a very old CPU"),
    (changed("cpu", instructions=("NEON",)), "CPU", "ok", "NEON", "ARM"),
    (changed("cpu", instructions=None), "CPU", "unknown", "not known", "no /proc"),
    (changed("cpu", quota=2.5, online=64), "cores", "warn", "heed the quota", "a container with a quota"),
    (changed("cpu", quota=0.5), "cores", "warn", "a cgroup quota of 0.5", "a container with half a core"),
    (changed("cpu", quota=32.0), "cores", "ok", "16", "a quota of more than there is"),
    (changed("cpu", cores=1, online=64), "cores", "warn", "--cpus-per-task", "a batch job with one core"),
    (changed("cpu", cores=8, online=64), "cores", "ok", "8 of 64", "a part of a machine"),
    (changed("memory", limit=4 * GB, available=3 * GB), "memory", "ok", "of 4 GB (cgroup limit)", "a memory limit"),
    (changed("memory", available=GB), "memory", "warn", "--memory", "little memory"),
    (changed("memory", swap=64 * GB, swap_used=30 * GB), "memory", "warn", "30 GB swapped out", "swapping"),
    (changed("memory", total=None), "memory", "ok", "100 GB available", "no /proc/meminfo"),
    (changed("shared_memory", total=67_108_864, free=67_108_864), "/dev/shm", "bad", "--shm-size=5g", "Docker's"),
    (changed("shared_memory", free=GB), "/dev/shm", "warn", "up to 4.93 GB (16 workers", "half full"),
    (replace(WELL, shared_memory=None), "/dev/shm", "unknown", "does not exist", "not Linux"),
    (changed("limits", open_files=256), "open files", "warn", "ulimit -n 1024", "macOS's limit"),
    (changed("limits", open_files=256, open_files_at_most=512), "open files", "warn", "nofile=1024", "a hard limit"),
    (changed("limits", open_files=None), "open files", "ok", "unlimited", "no limit"),
    (changed("limits", locked_bytes=8 << 20), "locked memory", "ok", 'preload="memory"', "Linux's own limit"),
    (changed("limits", ON_DISK, locked_bytes=3 * GB), "locked memory", "ok", "enough", "a dataset that may be locked"),
    (codec("jpeg", simd=False), "JPEG", "bad", "--only-binary", "a build without SIMD"),
    (codec("jpeg", simd_limits=("JSIMD_FORCENONE=1",)), "JPEG", "bad", "unset JSIMD_FORCENONE", "SIMD switched off"),
    (codec("jpeg", simd_limits=("JSIMD_FORCESSE2=1",)), "JPEG", "warn", "unset JSIMD_FORCESSE2", "AVX2 switched off"),
    (codec("jpeg", baseline="not compiled"), "JPEG", "warn", "a C compiler", "no decoder of presize's own"),
    (
        codec("jpeg", baseline="switched off", baseline_reason="PRESIZE_DECODER=libjpeg"),
        "JPEG", "warn", "switched off: PRESIZE_DECODER=libjpeg", "a decoder switched off",
    ),
    (
        codec("jpeg", baseline="failed its self-check", baseline_reason="it decodes other pixels"),
        "JPEG", "bad", "failed its self-check and is off: it decodes other pixels", "a decoder that is wrong",
    ),
    (codec("jpeg", libjpeg_turbo=None, simd=None), "JPEG", "unknown", "not known", "another libjpeg-turbo"),
    (codec("resizer", instructions="SSE4"), "resize", "warn", "though the CPU has AVX2", "a resizer without AVX2"),
    (codec("resizer", instructions=None), "resize", "warn", "no SIMD", "a resizer without SIMD"),
    (codec("pillow", simd=True), "PIL", "warn", "pip uninstall -y pillow pillow-simd", "pillow-simd"),
    (codec("pillow", distributions=("pillow", "pillow-simd")), "PIL", "warn", "both installed", "two in one folder"),
    (codec("pillow", libjpeg_turbo=None), "PIL", "warn", "not libjpeg-turbo", "Pillow of a distribution"),
    (WELL, "OpenCV", "ok", "cv2.setNumThreads(0)", "threads of OpenCV"),
    (codec("opencv", optimized=False), "OpenCV", "warn", "cv2.setUseOptimized(True)", "OpenCV without SIMD"),
    (replace(WELL, torch="not installed"), "torch", "warn", 'pip install "presize[torch]"', "no torch"),
    (changed("cpu", quota=2.0), "torch", "warn", "OMP_NUM_THREADS=2", "more threads than cores"),
    (WELL, "GPU", "ok", "2 x NVIDIA H100 80GB HBM3 (85 GB), CUDA 13.0, driver 570.86.15", "two GPUs"),
    (WELL, "GPU", "ok", "compute capability 9.0, 16 PCIe lanes", "what is known of them"),
    (replace(WELL, torch=CPU_ONLY), "GPU", "bad", "install a CUDA build", "torch for the CPU beside a GPU"),
    (
        replace(WELL, torch=replace(CPU_ONLY, platform="CUDA 13.0", said="driver too old")), "GPU", "bad",
        "cannot use it: driver too old", "a driver that torch refuses",
    ),
    (replace(WELL, torch=CPU_ONLY, nvidia=None), "GPU", "ok", "none", "no GPU"),
    (replace(WELL, torch=replace(CPU_ONLY, accelerator="mps"), nvidia=None), "GPU", "ok", "mps", "a Mac"),
    (replace(WELL, torch="not installed", nvidia=None), "GPU", "unknown", "without torch", "a GPU that nobody asks"),
    (replace(WELL, torch="not installed"), "GPU", "unknown", "no torch to use it", "a GPU and no torch"),
    (WELL, "storage", "ok", "ext4 on nvme0n1, an NVMe SSD; read-ahead 128 KiB", "an NVMe SSD"),
    (changed("storage", kind="network"), "storage", "warn", 'preload="page-cache"', "a network, not measured"),
    (changed("storage", kind="rotating"), "storage", "warn", "a rotating disk", "a rotating disk, not measured"),
    (changed("storage", ON_DISK, kind="network"), "storage", "ok", "over a network", "a network that is fast enough"),
    (changed("storage", file_system=None), "storage", "unknown", "not known", "no mountinfo"),
    (ON_DISK, "reading", "ok", "100,000 records/s of 30 kB in random order (16 readers), 3 GB/s", "a fast disk"),
    (replace(ON_DISK, reading=SLOW), "reading", "warn", "16 cores can use about 80,000", "a disk that is slower"),
    (replace(ON_DISK, reading=SLOW), "reading", "warn", 'preload="page-cache"', "a dataset that fits into memory"),
    (
        changed("memory", replace(ON_DISK, reading=SLOWER), available=GB), "reading", "warn", "ShardShuffled",
        "a slow disk and a dataset larger than memory",
    ),
    (replace(ON_DISK, content=PHOTOS, reading=SLOWER), "reading", "warn", "presize build", "slow photographs"),
    (
        replace(ON_DISK, content=PHOTOS, reading=replace(FAST, random_reads_per_s=12.0, record_bytes=60_000_000)),
        "reading", "ok", "12 files/s of 60 MB", "enormous photographs, which take long to decode",
    ),
    (replace(ON_DISK, reading=replace(SLOW, cold=False)), "reading", "unknown", "page cache", "kept in memory"),
    (replace(ON_DISK, reading=replace(SLOW, cold=None)), "reading", "unknown", "may come from", "files of others"),
    (
        changed("storage", replace(ON_DISK, reading=replace(SLOW, cold=False)), kind="memory"), "reading", "ok",
        "900 records/s", "a file system in memory",
    ),
    (replace(ON_DISK, reading=None), "reading", "unknown", "too little", "a small dataset"),
    (replace(ON_DISK, content=replace(PHOTOS, files=())), "reading", "unknown", "no files", "an empty folder"),
    (replace(ON_DISK, reading="a.jpg: Input/output error"), "reading", "bad", "dmesg", "a disk that fails"),
    (ON_DISK, "size", "ok", "2 GB, fits into memory", "a dataset that fits"),
    (changed("memory", ON_DISK, available=GB), "size", "warn", "ShardShuffled", "a dataset that does not"),
    (
        changed("memory", replace(ON_DISK, content=PHOTOS), available=10**8), "size", "warn",
        "more than 440 MB", "photographs of which not all were counted",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "topic", "level", "words", "reason"), JUDGED, ids=[row[4] for row in JUDGED])
def test_a_fact_is_judged(facts: CheckUp, topic: str, level: str, words: str, reason: str) -> None:
    finding = of(facts, topic)
    assert finding.level == level, reason
    assert words in f"{finding.found} -> {finding.fix}"


def test_what_is_not_well_has_a_fix() -> None:
    for facts, topic, level, *_ in JUDGED:
        if level in ("warn", "bad"):
            assert of(facts, topic).fix, of(facts, topic)


def test_a_well_machine_is_well() -> None:
    assert {finding.level for finding in judge(WELL)} == {"ok"}
    assert {finding.level for finding in judge(ON_DISK)} == {"ok"}


def test_a_topic_comes_once_and_always_in_the_same_order() -> None:
    order = [finding.topic for finding in judge(ON_DISK)]
    assert len(set(order)) == len(order)
    for facts, *_ in JUDGED:
        topics = [finding.topic for finding in judge(facts)]
        assert topics == [topic for topic in order if topic in topics]


def test_shards_that_cannot_all_stay_open_are_counted() -> None:
    many = replace(SHARDS, files=SHARDS.files * 50)
    finding = of(replace(ON_DISK, content=many), "open files")
    assert finding.level == "warn"
    assert "512 of the 2,000 shards stay open" in finding.found
    assert finding.fix == "ulimit -n 4000 before starting"


def test_without_a_path_nothing_is_said_of_reading() -> None:
    assert not {"reading", "size"} & {finding.topic for finding in judge(WELL)}


@pytest.mark.parametrize(
    ("levels", "worst"),
    [
        (["ok", "warn", "bad", "unknown"], "bad"),
        (["ok", "warn", "unknown"], "warn"),
        (["ok", "unknown"], "ok"),
        ([], "ok"),
    ],
)
def test_the_verdict_is_the_worst_and_not_knowing_is_no_reproach(levels: list[Any], worst: str) -> None:
    assert verdict(Finding("topic", level, "found") for level in levels) == worst


def test_facts_are_plain_values_without_the_names_of_files() -> None:
    known = ON_DISK.known()
    assert known["content"] == {"files": 40, "bytes": 2 * GB, "all_files": True, "record_bytes": 30_000}
    assert known["cpu"]["cores"] == 16
    assert known["torch"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"


def test_the_page_about_it_has_every_topic() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")
    assert [topic for finding in judge(ON_DISK) if f"\n| {(topic := finding.topic)} |" not in page] == []
