"""presize doctor: facts about a machine, findings, and their text."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import PIL
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from presize.codecs import pillow_resize
from presize.codecs.compiled import VARIABLE
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.measure.codec_features import Codecs, Jpeg, OpenCV, Pillow, Resizer, libjpeg_turbo_in, read_codecs
from presize.measure.doctor import CHECKS, CheckUp, Finding, as_text, check_up, judge, verdict
from presize.measure.read_speed import Content, File, Reading
from presize.system.resources import Cpu, Gpu, Limits, Memory, Nvidia, SharedMemory, Torch
from presize.system.storage import Storage
from processes import run_command

FINDINGS = st.lists(
    st.builds(Finding, st.sampled_from(["CPU", "memory"]), st.sampled_from(["ok", "warn", "bad", "unknown"]),
              st.text(max_size=200), st.none() | st.text(max_size=200)),
    max_size=5,
)  # fmt: skip

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
        Resizer("used", None, "AVX2"),
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
    """Return `base` with other values in one of its facts."""
    return replace(base, **{part: replace(getattr(base, part), **values)})


def codec(name: str, **values: Any) -> CheckUp:
    return changed("codecs", **{name: replace(getattr(WELL.codecs, name), **values)})


CPU_ONLY = Torch("2.13.0+cpu", None, 16, "AVX512")
JUDGED = [
    (WELL, "CPU", "ok", "AMD EPYC 9654, AVX-512", "a CPU with SIMD"),
    (changed("cpu", instructions=("SSE4",)), "CPU", "warn", "AVX2", "a virtual machine without AVX2"),
    (changed("cpu", instructions=()), "CPU", "warn", "without SSE4", "a very old CPU"),
    (changed("cpu", instructions=("NEON",)), "CPU", "ok", "NEON", "ARM"),
    (changed("cpu", instructions=None), "CPU", "unknown", "not known", "no /proc"),
    (changed("cpu", quota=2.5, online=64), "cores", "warn", "respect the quota", "a container with a quota"),
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
    (
        replace(ON_DISK, content=replace(SHARDS, files=SHARDS.files * 50)), "open files", "warn",
        "512 of the 2,000 shards stay open; the others are reopened again and again -> ulimit -n 4000", "many shards",
    ),
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
    (WELL, "resize", "ok", "presize's own resize, AVX2", "a resize with SIMD"),
    (codec("resizer", instructions=None), "resize", "ok", "presize's own resize, plain C", "a resize without SIMD"),
    (codec("resizer", own="not compiled"), "resize", "warn", "a C compiler", "no resize of presize's own"),
    (
        codec("resizer", own="failed its self-check", reason="it makes other pixels"),
        "resize", "bad", "Pillow is used meanwhile", "a resize that is wrong",
    ),
    (codec("pillow", simd=True), "PIL", "warn", "pip uninstall -y pillow pillow-simd", "pillow-simd"),
    (codec("pillow", distributions=("pillow", "pillow-simd")), "PIL", "warn", "both installed", "two in one folder"),
    (codec("pillow", libjpeg_turbo=None), "PIL", "warn", "not libjpeg-turbo", "Pillow of a distribution"),
    (WELL, "OpenCV", "ok", "cv2.setNumThreads(0)", "threads of OpenCV"),
    (codec("opencv", optimized=False), "OpenCV", "warn", "cv2.setUseOptimized(True)", "OpenCV without SIMD"),
    (
        codec("opencv", distributions=("opencv-python-headless", "opencv-python")), "OpenCV", "warn",
        "opencv-python-headless and opencv-python own the same folder: removing one breaks the other", "two OpenCVs",
    ),
    (
        codec("opencv", version="", distributions=("opencv-python",)), "OpenCV", "bad",
        "pip uninstall -y opencv-python && pip install opencv-python-headless", "the rest of an OpenCV",
    ),
    (
        codec("opencv", version="", broken="No module named 'cv2'"), "OpenCV", "bad",
        "No module named 'cv2'; uninstalling another OpenCV may have deleted its files -> pip install opencv",
        "no OpenCV",
    ),
    (
        codec("opencv", version="", distributions=("opencv-python",), broken="libGL.so.1: cannot open shared object"),
        "OpenCV", "bad", "libGL.so.1: cannot open shared object -> pip uninstall", "an OpenCV for screens on a server",
    ),
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
    (replace(ON_DISK, reading=SLOW), "reading", "warn", "16 cores can use about 80,000/s", "a disk that is slower"),
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
def test_a_fact_is_judged_and_every_problem_has_a_fix(
    facts: CheckUp, topic: str, level: str, words: str, reason: str
) -> None:
    findings = {finding.topic: finding for finding in judge(facts)}
    finding = findings[topic]
    assert finding.level == level, reason
    assert words in f"{finding.found} -> {finding.fix}"
    assert finding.fix or level not in ("warn", "bad")
    assert list(findings) == [topic for topic in CHECKS if topic in findings]


def test_a_healthy_machine_has_no_problems_and_a_path_is_mentioned_only_if_given() -> None:
    assert {finding.level for facts in (WELL, ON_DISK) for finding in judge(facts)} == {"ok"}
    assert set(CHECKS) - {finding.topic for finding in judge(WELL)} == {"reading", "size"}


def test_the_verdict_is_the_worst_finding_and_unknown_facts_do_not_count() -> None:
    for levels, worst in ((["ok", "warn", "bad", "unknown"], "bad"), (["ok", "warn"], "warn"), (["unknown"], "ok")):
        assert verdict(Finding("topic", level, "found") for level in levels) == worst
    assert verdict([]) == "ok"


def test_facts_are_plain_values_without_file_names() -> None:
    known = ON_DISK.known()
    assert known["content"] == {"files": 40, "bytes": 2 * GB, "all_files": True, "record_bytes": 30_000}
    assert known["cpu"]["cores"] == 16
    assert known["torch"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"


def test_the_documentation_page_has_every_topic() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")
    assert [topic for topic in CHECKS if f"\n| {topic} |" not in page] == []


# --- this machine ---


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be another user")
def test_an_unreadable_file_is_bad_and_named() -> None:
    read_codecs({})  # imports modules that the other user may not be allowed to read
    with tempfile.TemporaryDirectory() as folder:  # not in pytest's folder, which no other user may enter
        os.chmod(folder, 0o755)
        secret = Path(folder, os.fsdecode(b"secret \xff"))
        secret.write_bytes(bytes(5 << 20))
        secret.chmod(0)
        os.seteuid(65534)
        try:
            facts = check_up("not asked", secret)
        finally:
            os.seteuid(0)
    assert facts.reading == rf"{folder}/secret \xff: Permission denied"
    assert verdict(judge(facts)) == "bad"


# --- text ---

SOME = [
    Finding("CPU", "ok", "fast"),
    Finding("memory", "warn", "little of it, in words that take more than a line", "buy more of it"),
    Finding("GPU", "unknown", "nobody knows"),
    Finding("/dev/shm", "bad", "none", "docker run --shm-size=1g"),
]


def test_the_verdict_comes_first_then_the_worst_findings() -> None:
    assert as_text(SOME, 48).splitlines() == [
        "Found 1 problem and 1 warning; 1 ok.",
        "",
        "bad      /dev/shm  none",
        "                   -> docker run --shm-size=1g",
        "warn     memory    little of it, in words that",
        "                   take more than a line",
        "                   -> buy more of it",
        "",
        "ok       CPU       fast",
        "unknown  GPU       nobody knows",
    ]


@given(findings=FINDINGS, width=st.integers(60, 140))
def test_findings_cannot_harm_a_terminal_and_success_is_reported_first(findings: list[Finding], width: int) -> None:
    text = as_text(findings, width)
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.startswith("No problems found.") == (verdict(findings) == "ok")


@given(
    found=st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=1, max_size=40).map(" ".join),
    width=st.integers(60, 140),
)
def test_lines_are_as_wide_as_allowed_and_lose_no_word(found: str, width: int) -> None:
    lines = as_text([Finding("memory", "warn", found, found)], width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines[2:]).split() == ["warn", "memory", *found.split(), "->", *found.split()]


# --- codecs ---


def test_versions_are_the_installed_ones_and_pillow_simd_is_recognized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codecs = read_codecs({})
    assert codecs.jpeg.simplejpeg == simplejpeg.__version__
    assert int(str(codecs.jpeg.libjpeg_turbo).partition(".")[0]) >= 2
    assert (codecs.resizer.own == "used") == pillow_resize.is_available()
    assert (codecs.pillow.version, codecs.opencv.version) == (PIL.__version__, cv2.__version__)
    assert (codecs.pillow.distributions, codecs.pillow.simd) == (("pillow",), False)
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    assert read_codecs({}).pillow.simd


@pytest.mark.parametrize(
    ("another", "codec", "found"),
    [
        ("pillow_simd-12.1.1.post0", "pillow", ("pillow", "pillow-simd")),
        ("opencv_python-4.12.0.88", "opencv", ("opencv-python-headless", "opencv-python")),
    ],
)
def test_two_distributions_of_one_package_are_found(
    another: str, codec: str, found: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / f"{another}.dist-info" / "METADATA"
    information.parent.mkdir()
    information.write_text(f"Metadata-Version: 2.1\nName: {found[1]}\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert getattr(read_codecs({}), codec).distributions == found


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["raise ModuleNotFoundError(name='cv2')", ""], ids=["removed", "an empty folder"])
def test_an_opencv_broken_by_another_one_is_a_finding(broken: str, tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text(broken)
    ran = run_command([sys.executable, "-m", "presize", "doctor"], env={"PYTHONPATH": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr
    assert re.search("bad +OpenCV +cannot be imported", ran.stdout)


def test_opencv_reports_whether_it_is_optimized() -> None:
    try:
        cv2.setUseOptimized(False)
        opencv = read_codecs({}).opencv
        assert (opencv.threads, opencv.optimized) == (cv2.getNumThreads(), False)
    finally:
        cv2.setUseOptimized(True)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("SSE SSE2 SSE3 *SSE4.1 *SSE4.2 *AVX *FP16 *AVX2 *AVX512-SKX?", ("SSE4", "AVX2")),
        ("SSE SSE2 SSE3 *SSE4.1? *SSE4.2? *AVX2?", ()),
        ("NEON FP16 *NEON_DOTPROD", ("NEON",)),
        ("", ()),
    ],
    ids=["without AVX-512", "old", "ARM", "says nothing"],
)
def test_opencv_uses_the_instructions_of_the_cpu(
    features: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cv2, "getCPUFeaturesLine", lambda: features)
    assert read_codecs({}).opencv.instructions == expected


def test_presizes_decoder_is_used_or_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(module: Any) -> tuple[str, str]:
        monkeypatch.setattr(jpeg_decoder, "compiled", replace(jpeg_decoder.compiled, module=module))
        jpeg = read_codecs({}).jpeg
        return jpeg.baseline, str(jpeg.baseline_reason)

    monkeypatch.delenv(VARIABLE, raising=False)
    assert (read_codecs({}).jpeg.baseline == "used") == jpeg_decoder.is_available()
    for machine, why in (("x86_64", "not compiled"), ("riscv64", "not for this processor")):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert told(None) == (why, "None")
    broken = SimpleNamespace(limit=int)
    baseline, reason = told(broken)
    assert baseline == "failed its self-check" and reason.startswith("it fails with AttributeError: ")
    monkeypatch.setenv(VARIABLE, "libjpeg")
    assert told(broken) == ("switched off", f"{VARIABLE}=libjpeg")


@pytest.mark.parametrize(
    ("binary", "expected"),
    [
        (b"\0libjpeg-turbo version 3.1.2 (build 2)\0JSIMD_FORCENONE\0", ("3.1.2", True)),
        (b"\0libjpeg-turbo version 2.1.5\0", ("2.1.5", False)),
        (b"\0another libjpeg\0", (None, None)),
    ],
    ids=["with SIMD", "without", "another"],
)
def test_a_library_is_recognized_by_its_texts(binary: bytes, expected: tuple[object, object], tmp_path: Path) -> None:
    path = tmp_path / "_jpeg.so"
    path.write_bytes(bytes(5000) + binary + bytes(5000))
    assert libjpeg_turbo_in(path) == expected


def test_variables_that_affect_libjpeg_turbo_are_reported() -> None:
    environ = {"JSIMD_FORCESSE2": "1", "JSIMD_NOHUFFENC": "1", "PATH": "/bin", "MY_JSIMD_FORCENONE": "1"}
    assert read_codecs(environ).jpeg.simd_limits == ("JSIMD_FORCESSE2=1", "JSIMD_NOHUFFENC=1")
